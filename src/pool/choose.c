/* Which free block serves a request, where in it, and how much of it is cut off.
 *
 * Where nobody is asked this is one or two looks in the bins and belongs to the hit path. A policy's function sees the
 * best candidates in order, a few at a time, as they were at one moment; what it answers is looked up again by segment
 * number and offset, under the lock, and counts only if the memory is free then, and may be used by the stream. */
#include <string.h>

#include "pool/count.h"

/* ---- Without asking ---------------------------------------------------------------------------- */

cla_block *cla__choose_of(cla_pool *p, const cla_owner *o, size_t size, uint64_t done) {
  size_t most = cla__policy_largest_for(p, size);
  cla_block *part = cla__bins_fit(&o->parts, size, most, done, p->align_log2);
  if (part && part->size == size) return part;
  cla_block *whole = cla__bins_fit(&o->wholes, size, most, done, p->align_log2);
  return part && !(whole && whole->size == size) ? part : whole;
}

cla_block *cla__choose_own(cla_pool *p, cla_owner *o, size_t size) {
  cla_block *b = cla__choose_of(p, o, size, UINT64_MAX);
  if (o->nquick && !(b && b->size == size)) {
    cla__owner_flush(o);
    b = cla__choose_of(p, o, size, UINT64_MAX);
  }
  return b;
}

/* Memory that other streams are done with: one bounded look a stream. */
static cla_block *adoptable(cla_pool *p, const cla_owner *o, size_t size) {
  cla_block *b = cla__choose_of(p, p->nobody, size, UINT64_MAX);
  if (b || p->nstreams < 2) return b;
  for (cla_owner *other = p->owners; other; other = other->next) {
    if (other == o || !other->stream) continue;
    cla__owner_flush(other);
    b = cla__choose_of(p, other, size, cla__owner_done(other));
    if (b) return b;
  }
  return NULL;
}

static cla_block *best(cla_pool *p, cla_owner *o, size_t size) {
  cla_block *b = cla__choose_own(p, o, size);
  return b ? b : adoptable(p, o, size);
}

/* ---- Cutting ----------------------------------------------------------------------------------- */

/* Out of its lists, and not live yet: active without a generation, which nobody else touches. */
static void pull(cla_pool *p, cla_block *b) {
  cla__owner_unbin(b);
  b->state = CLA_ACTIVE;
  p->cuts++;
  cla_segment *g = b->segment;
  if (g->is_unwanted | g->is_undecided) cla__segment_decided(p, g, false);
}

/* What is cut off stays with the owner it came from. */
static cla_block *trim_to(cla_pool *p, cla_owner *o, cla_block *b, size_t size) {
  cla_owner *from = b->owner;
  if (size < b->size) {
    cla_block *rest = cla__block_split(p, b, size);
    if (rest) cla__owner_bin(from, rest);
  }
  if (from != o) cla__block_give(b, o);
  return b;
}

cla_block *cla__take(cla_pool *p, cla_owner *o, cla_block *b, size_t size) {
  pull(p, b);
  return trim_to(p, o, b, cla__policy_may_split(p, b, size) ? size : b->size);
}

static cla_candidate describe(const cla_block *b) {
  cla_stream *s = b->owner->stream;
  return (cla_candidate){.segment = b->segment->number,
                         .segment_size = b->segment->size,
                         .offset = b->offset,
                         .size = b->size,
                         .stream = s ? s->id : 0,
                         .age = s ? cla__stream_submitted(s) - b->freed_at : 0};
}

cla_status cla__cut(cla_pool *p, cla_owner *o, size_t nbytes, cla_block *b, size_t size, cla_block **out) {
  if (!p->decisions.split) {
    *out = cla__take(p, o, b, size);
    return CLA_OK;
  }
  const cla_candidate block = describe(b);
  const cla_request r = cla__request(p, nbytes, size, o);
  size_t cut = cla__policy_may_split(p, b, size) ? size : b->size;
  pull(p, b);
  cla_status status = cla__ask_split(p, &r, &block, &cut);
  if (p->is_closed) return status; /* the block went with its pool */
  if (status) cla__owner_bin(b->owner, b);
  else *out = trim_to(p, o, b, cut);
  return status;
}

/* Exactly [offset, offset + size) of a free block that covers it. */
static cla_status carve(cla_pool *p, cla_owner *o, cla_block *b, size_t offset, size_t size, cla_block **out) {
  cla_owner *from = b->owner;
  pull(p, b);
  if (offset > b->offset) {
    cla_block *rest = cla__block_split(p, b, offset - b->offset);
    cla__owner_bin(from, b);
    if (!rest) return cla__error(CLA_E_NOMEM, "no host memory to cut a block");
    b = rest;
  }
  *out = trim_to(p, o, b, size);
  return CLA_OK;
}

/* ---- Candidates, best first -------------------------------------------------------------------- */

enum { BATCH = 8, MOST_BATCHES = 1 << 16 };

typedef struct survey {
  cla_pool *pool;
  cla_owner *owner;
  size_t size;
  bool is_on_others; /* the stream's own have all been shown */
  size_t n;
  cla_block *found[BATCH];
  cla_candidate shown[BATCH];
  cla_candidate last; /* shown in an earlier batch; size 0: none was */
} survey;

static bool comes_before(const cla_block *a, size_t size, uint64_t segment, size_t offset) {
  if (a->size != size) return a->size < size;
  if (a->segment->number != segment) return a->segment->number < segment;
  return a->offset < offset;
}

static void offer(survey *v, cla_block *b) {
  const cla_candidate *last = &v->last;
  if (last->size && comes_before(b, last->size, last->segment, last->offset + 1)) return; /* shown already */
  size_t i = v->n < BATCH ? v->n : BATCH;
  while (i && comes_before(b, v->found[i - 1]->size, v->found[i - 1]->segment->number, v->found[i - 1]->offset)) i--;
  if (i == BATCH) return;
  if (v->n < BATCH) v->n++;
  for (size_t k = v->n - 1; k > i; k--) v->found[k] = v->found[k - 1];
  v->found[i] = b;
}

static void look_in(survey *v, const cla_bins *bins, uint64_t done) {
  unsigned align_log2 = v->pool->align_log2;
  size_t least = v->last.size > v->size ? v->last.size : v->size;
  unsigned class = cla__bins_next(bins, cla__class_of(least >> align_log2));
  for (; class < CLA_CLASSES; class = cla__bins_next(bins, class + 1)) {
    if (v->n == BATCH && cla__class_of(v->found[BATCH - 1]->size >> align_log2) < class) return;
    for (cla_block *b = bins->heads[class / CLA_SL][class % CLA_SL]; b; b = b->after)
      if (b->size >= v->size && b->freed_at <= done) offer(v, b);
  }
}

static void look_at_own(survey *v) {
  look_in(v, &v->owner->parts, UINT64_MAX);
  look_in(v, &v->owner->wholes, UINT64_MAX);
}

static void look_at_others(survey *v) {
  for (const cla_owner *other = v->pool->owners; other; other = other->next) {
    if (other == v->owner) continue;
    look_in(v, &other->parts, cla__owner_done(other));
    look_in(v, &other->wholes, cla__owner_done(other));
  }
}

/* The next batch; 0: there are no more. A batch is the stream's own blocks, or others'. */
static size_t next_batch(survey *v) {
  v->n = 0;
  if (!v->is_on_others) {
    look_at_own(v);
    if (!v->n) {
      v->is_on_others = true;
      v->last = (cla_candidate){0};
    }
  }
  if (v->is_on_others) look_at_others(v);
  for (size_t i = 0; i < v->n; i++) v->shown[i] = describe(v->found[i]);
  if (v->n) v->last = v->shown[v->n - 1];
  return v->n;
}

/* ---- Asking ------------------------------------------------------------------------------------ */

cla_moment cla__now(const cla_pool *p) {
  const cla_stats *s = &p->stats;
  cla_moment m = {.counts = {p->generation, s->active_blocks, s->held_blocks, p->cuts, s->driver_allocs,
                             s->driver_frees, p->limit}};
  for (const cla_owner *o = p->owners; o; o = o->next) m.completed += cla__owner_done(o);
  return m;
}

bool cla__is_now(const cla_pool *p, const cla_moment *m) {
  const cla_moment now = cla__now(p);
  return memcmp(&now, m, sizeof now) == 0;
}

/* Shows batch after batch until the function chooses. */
static cla_status ask_for_block(survey *v, const cla_request *r, cla_moment *when, cla_fit *answer) {
  cla_pool *p = v->pool;
  for (int batch = 0; batch < MOST_BATCHES && next_batch(v); batch++) {
    *answer = (cla_fit){.choice = CLA_CHOOSE_DEFAULT};
    *when = cla__now(p);
    cla_status status = cla__ask_fit(p, r, v->shown, v->n, answer);
    if (status || answer->choice != CLA_CHOOSE_MORE) return status;
  }
  *answer = (cla_fit){.choice = CLA_CHOOSE_GROW};
  return CLA_OK;
}

/* The segment of this number, or NULL. Who names places names the same segment again and again. */
static cla_segment *numbered(cla_pool *p, uint64_t number) {
  cla_segment *g = p->named;
  if (g && g->range.base && g->number == number) return g;
  for (g = p->segments; g && g->number != number;) g = g->next;
  if (g) p->named = g;
  return g;
}

/* The free block that covers the place and may be used by `o`, or NULL. */
static cla_block *free_at(cla_pool *p, const cla_owner *o, uint64_t segment, size_t offset, size_t size) {
  const cla_segment *g = numbered(p, segment);
  if (!g || offset >= g->size) return NULL;
  cla_block *b = cla__block_at(p, g, offset);
  if (b->state != CLA_BINNED || b->offset + b->size - offset < size) return NULL;
  return b->owner == o || b->freed_at <= cla__owner_done(b->owner) ? b : NULL;
}

static cla_status take_answer(cla_pool *p, cla_owner *o, const cla_request *r, const cla_fit *answer, cla_block *b,
                              cla_block **out) {
  bool is_place = answer->choice == CLA_CHOOSE_PLACE || answer->offset != b->offset;
  return is_place ? carve(p, o, b, answer->offset, r->size, out) : cla__cut(p, o, r->nbytes, b, r->size, out);
}

static cla_status not_free(const cla_pool *p, const cla_request *r, const cla_fit *answer) {
  return cla__error(CLA_E_INVALID, "policy '%s': fit: %zu bytes at offset %zu of segment %llu are not free", p->name,
                    r->size, answer->offset, (unsigned long long)answer->segment);
}

static cla_status choose_asking(cla_pool *p, cla_owner *o, size_t nbytes, size_t size, cla_block **out) {
  enum { TRIES = 3 };
  cla_fit answer = {.choice = CLA_CHOOSE_DEFAULT};
  cla_block *b = NULL;
  for (int i = 0; i < TRIES; i++) {
    survey v = {.pool = p, .owner = o, .size = size};
    const cla_request r = cla__request(p, nbytes, size, o);
    cla_moment when = cla__now(p);
    cla_status status = ask_for_block(&v, &r, &when, &answer);
    if (status) return status;
    if (answer.choice != CLA_CHOOSE_BLOCK && answer.choice != CLA_CHOOSE_PLACE) break;
    b = free_at(p, o, answer.segment, answer.offset, size);
    if (b) return take_answer(p, o, &r, &answer, b, out);
    if (answer.may_miss) answer.choice = answer.otherwise;
    if (answer.may_miss) break;
    if (cla__is_now(p, &when)) return not_free(p, &r, &answer);
    answer.choice = CLA_CHOOSE_DEFAULT; /* somebody else was faster */
  }
  if (answer.choice == CLA_CHOOSE_DEFAULT) b = best(p, o, size);
  return b ? cla__cut(p, o, nbytes, b, size, out) : CLA_OK;
}

cla_status cla__choose(cla_pool *p, cla_owner *o, size_t nbytes, size_t size, cla_block **out) {
  *out = NULL;
  if (!p->policy.caches) return CLA_OK;
  if (p->decisions.fit) return choose_asking(p, o, nbytes, size, out);
  cla_block *b = best(p, o, size);
  return b ? cla__cut(p, o, nbytes, b, size, out) : CLA_OK;
}

cla_status cla__choose_fresh(cla_pool *p, cla_owner *o, size_t nbytes, size_t size, cla_block **out) {
  cla_block *b = p->segments->first; /* the newest: its block is free, and the lock has been held since */
  uint64_t number = b->segment->number;
  *out = NULL;
  if (p->decisions.fit && p->policy.caches) {
    const cla_candidate fresh = describe(b);
    const cla_request r = cla__request(p, nbytes, size, o);
    cla_fit answer = {.choice = CLA_CHOOSE_DEFAULT};
    cla_moment when = cla__now(p);
    cla_segment *g = b->segment;
    g->pins++; /* a trim leaves it here */
    cla_status status = cla__ask_fit(p, &r, &fresh, 1, &answer);
    if (!p->is_closed) g->pins--;
    if (status) return status;
    if (answer.choice == CLA_CHOOSE_BLOCK || answer.choice == CLA_CHOOSE_PLACE) {
      b = free_at(p, o, answer.segment, answer.offset, size);
      if (b) return take_answer(p, o, &r, &answer, b, out);
      if (!answer.may_miss && cla__is_now(p, &when)) return not_free(p, &r, &answer);
    }
    b = free_at(p, o, number, 0, size);
  }
  return b ? cla__cut(p, o, nbytes, b, size, out) : CLA_OK;
}
