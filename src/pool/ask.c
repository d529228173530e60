/* Asking others: the functions of a policy, called for one decision at a time.
 *
 * Assumes the pool's lock held, and holds it again on return; a function runs without it, so the pool may be another one
 * afterwards: whoever asks looks again. What a function may do is anything but allocate from the pool that asks:
 * that is refused on the thread that is asking, by a list of what it is asking for. The answers are checked here as far as
 * that needs no look at blocks. */
#include "pool/pool.h"

/* ---- What is being asked on this thread -------------------------------------------------------- */

typedef struct asking {
  const cla_pool *pool;
  struct asking *outer;
} asking;

static _Thread_local asking *innermost;

bool cla__is_asking(const cla_pool *p) {
  const asking *a = innermost;
  while (a && a->pool != p) a = a->outer;
  return a != NULL;
}

/* Drops the lock. The reference keeps `arg` until the answer is there, should the pool end meanwhile. */
static void leave_lock(cla_pool *p, asking *a) {
  *a = (asking){.pool = p, .outer = innermost};
  innermost = a;
  atomic_fetch_add(&p->refs, 1);
  cla__unlock(&p->lock);
}

static cla_status begin(cla_pool *p, asking *a) {
  if (cla__is_asking(p))
    return cla__error(CLA_E_BUSY, "alloc: a decision of the policy '%s' allocates from its own pool", p->name);
  leave_lock(p, a);
  return CLA_OK;
}

static cla_status end(cla_pool *p, const asking *a, cla_status status) {
  innermost = a->outer;
  cla__pool_unref(p);
  cla__lock(&p->lock);
  return status ? status : cla__pool_live(p);
}

cla_request cla__request(const cla_pool *p, size_t nbytes, size_t size, const cla_owner *o) {
  const cla_stats *s = &p->stats;
  return (cla_request){.pool = (cla_pool *)p,
                       .nbytes = nbytes,
                       .size = size,
                       .stream = o && o->stream ? o->stream->id : 0,
                       .active = s->active_bytes,
                       .requested = s->requested_bytes,
                       .cached = s->reserved_bytes - s->active_bytes - s->held_bytes,
                       .held = s->held_bytes,
                       .reserved = s->reserved_bytes,
                       .peak_reserved = s->peak_reserved_bytes,
                       .limit = p->limit,
                       .alike = p->live_of_class[cla__class_of(size >> p->align_log2)]};
}

cla_status cla_decision_error(cla_status status, const char *message) {
  return cla__error(status, "%s", message ? message : "a decision of the policy failed");
}

/* ---- The questions ----------------------------------------------------------------------------- */

static size_t aligned(const cla_pool *p, size_t n) { return (n + p->align - 1) & ~(p->align - 1); }

cla_status cla__ask_round(cla_pool *p, size_t nbytes, size_t otherwise, size_t *out) {
  size_t slot = (size_t)((uint64_t)nbytes * 0x9E3779B97F4A7C15u >> (64 - CLA_MEMO_SLOTS_LOG2));
  if (innermost && cla__is_asking(p)) slot = SIZE_MAX; /* refused below, known size or not */
  if (slot != SIZE_MAX && p->memo->slots[slot].size && p->memo->slots[slot].nbytes == nbytes) {
    *out = p->memo->slots[slot].size;
    return CLA_OK;
  }
  asking a;
  size_t size = otherwise;
  bool is_fixed = false;
  cla_status status = begin(p, &a);
  if (status) return status;
  status = end(p, &a, p->decisions.round(p->decisions.arg, nbytes, &size, &is_fixed));
  if (status) return status;
  if (size < nbytes)
    return cla__error(CLA_E_INVALID, "policy '%s': round: %zu bytes for a request of %zu", p->name, size, nbytes);
  if (size > cla__policy_most(p)) size = otherwise; /* a legal request stays one */
  *out = size ? aligned(p, size) : p->align;
  if (is_fixed) {
    p->memo->slots[slot].nbytes = nbytes;
    p->memo->slots[slot].size = *out;
  }
  return CLA_OK;
}

cla_status cla__ask_fit(cla_pool *p, const cla_request *r, const cla_candidate *candidates, size_t n, cla_fit *answer) {
  asking a;
  cla_status status = begin(p, &a);
  if (status) return status;
  status = end(p, &a, p->decisions.fit(p->decisions.arg, r, candidates, n, answer));
  bool is_place = answer->choice == CLA_CHOOSE_BLOCK || answer->choice == CLA_CHOOSE_PLACE;
  if (!status && is_place && answer->offset % p->align)
    status = cla__error(CLA_E_INVALID, "policy '%s': fit: offset %zu is no multiple of the alignment, %zu", p->name,
                        answer->offset, p->align);
  return status;
}

cla_status cla__ask_split(cla_pool *p, const cla_request *r, const cla_candidate *block, size_t *size) {
  asking a;
  cla_status status = begin(p, &a);
  if (status) return status;
  status = end(p, &a, p->decisions.split(p->decisions.arg, r, block, size));
  if (status) return status;
  if (*size < r->size || *size > block->size)
    return cla__error(CLA_E_INVALID, "policy '%s': split: %zu bytes of a block of %zu for a request of %zu", p->name,
                      *size, block->size, r->size);
  *size = aligned(p, *size);
  return CLA_OK;
}

cla_status cla__ask_grow(cla_pool *p, const cla_request *r, size_t refused, size_t *nbytes) {
  asking a;
  cla_status status = begin(p, &a);
  if (status) return status;
  status = end(p, &a, p->decisions.grow(p->decisions.arg, r, refused, nbytes));
  if (status) return status;
  if (*nbytes < r->size)
    return cla__error(CLA_E_INVALID, "policy '%s': grow: %zu bytes for a request of %zu", p->name, *nbytes, r->size);
  size_t most = cla__policy_most(p);
  *nbytes = *nbytes > most ? most : aligned(p, *nbytes);
  return CLA_OK;
}

cla_status cla__ask_oom(cla_pool *p, const cla_request *r, unsigned times, bool *again) {
  asking a;
  cla_status status = begin(p, &a);
  if (status) return status;
  return end(p, &a, p->decisions.oom(p->decisions.arg, r, times, again));
}

cla_status cla__ask_admit(cla_pool *p, const cla_request *r) {
  asking a;
  cla_status status = begin(p, &a);
  if (status) return status;
  return end(p, &a, p->decisions.admit(p->decisions.arg, r));
}

/* ---- Segments that nobody uses any more -------------------------------------------------------- */

static cla_segment *undecided_of(const cla_pool *p) {
  cla_segment *g = p->segments;
  while (g && !(g->is_undecided && cla__is_whole(g->first) && g->first->state == CLA_BINNED)) g = g->next;
  return g;
}

void cla__ask_keep(cla_pool *p) {
  cla_error_memo memo;
  asking a;
  if (cla__is_asking(p)) return; /* freed by a decision: asked about at the next free */
  cla__error_keep(&memo);
  for (cla_segment *g; p->nundecided && !p->is_closed && (g = undecided_of(p)) != NULL;) {
    cla_request r = cla__request(p, 0, g->size, g->first->owner);
    uint64_t number = r.segment = g->number;
    cla__segment_decided(p, g, false);
    if (begin(p, &a)) break;
    bool keeps = p->decisions.keep(p->decisions.arg, &r);
    if (end(p, &a, CLA_OK)) break;
    bool is_there = g->range.base && g->number == number; /* descriptors are used again, numbers are not */
    if (!keeps && is_there && !g->nlive && cla__is_whole(g->first)) cla__segment_decided(p, g, true);
  }
  cla__error_restore(&memo);
}

/* ---- Telling ----------------------------------------------------------------------------------- */

/* Also of what a decision frees. */
cla_status cla__tell(cla_pool *p, const cla_note *note) {
  asking a;
  cla_status status = CLA_OK;
  cla__lock(&p->lock);
  if (!p->is_closed && p->decisions.note) {
    leave_lock(p, &a);
    status = end(p, &a, p->decisions.note(p->decisions.arg, note));
  }
  cla__unlock(&p->lock);
  return status;
}
