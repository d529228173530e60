/* A stream's share of a pool: its free blocks, its quick lists, and the blocks that wait for it.
 *
 * A freed block may be used again by its own stream at once: the queue's order makes that safe. Others may use it when
 * the stream has completed the number at which it was freed. So free blocks are kept by owner, and neighbours merge
 * only within an owner.
 *
 * Quick lists take blocks of sizes freed and asked for in turn, a few a size: a hit cuts nothing and merges nothing.
 * They are emptied into the bins before anything else is decided: whenever a request finds no exact block there, and
 * before statistics, snapshots, trims and checks. So nobody can see that they exist, but for the speed. */
#include <stdlib.h>

#include "pool/pool.h"

/* ---- Life ---- */

cla_owner *cla__owner_new(cla_pool *p, cla_stream *s) {
  cla_owner *o = calloc(1, sizeof *o);
  if (!o) return NULL;
  o->pool = p;
  o->stream = s;
  if (s) cla__stream_hold(s);
  o->next = p->owners;
  p->owners = o;
  return o;
}

cla_status cla__owner_make(cla_pool *p, cla_stream *s, cla_owner **out) {
  if (s->slot >= p->nslots) {
    size_t n = p->nslots ? p->nslots : 8;
    while (n <= s->slot) n *= 2;
    cla_owner **grown = realloc(p->by_slot, n * sizeof *grown);
    if (!grown) return cla__error(CLA_E_NOMEM, "no host memory for a stream's share of the pool");
    for (size_t i = p->nslots; i < n; i++) grown[i] = NULL;
    p->by_slot = grown;
    p->nslots = n;
  }
  cla_owner *o = cla__owner_new(p, s);
  if (!o) return cla__error(CLA_E_NOMEM, "no host memory for a stream's share of the pool");
  *out = p->by_slot[s->slot] = o;
  p->nstreams++;
  return CLA_OK;
}

static void give_all(cla_bins *bins, cla_owner *to) {
  while (bins->fl) {
    unsigned fl = (unsigned)__builtin_ctzll(bins->fl), sl = (unsigned)__builtin_ctz(bins->sl[fl]);
    cla_block *b = bins->heads[fl][sl];
    cla__owner_unbin(b);
    cla__block_give(b, to);
    b->freed_at = 0;
    cla__owner_bin(to, b);
  }
}

void cla__owners_reap(cla_pool *p, cla_owner **chain) {
  for (cla_owner **link = &p->owners; *link;) {
    cla_owner *o = *link;
    if (o->stream && cla__stream_closed(o->stream) && cla__stream_done(o->stream, cla__stream_submitted(o->stream))) {
      cla__owner_flush(o);
      give_all(&o->parts, p->nobody);
      give_all(&o->wholes, p->nobody);
      if (!o->nrefs && !o->held_first) {
        p->by_slot[o->stream->slot] = NULL;
        p->nstreams--;
        *link = o->next;
        o->next = *chain;
        *chain = o;
        continue;
      }
    }
    link = &o->next;
  }
}

void cla__owners_release(cla_owner *chain) {
  while (chain) {
    cla_owner *next = chain->next;
    if (chain->stream) cla__stream_unhold(chain->stream);
    free(chain);
    chain = next;
  }
}

uint64_t cla__owner_done(const cla_owner *o) {
  return o->stream ? atomic_load_explicit(&o->stream->completed, memory_order_acquire) : UINT64_MAX;
}

void cla__block_give(cla_block *b, cla_owner *to) {
  b->owner->nrefs--;
  b->owner = to;
  to->nrefs++;
}

/* ---- Bins ---- */

static cla_bins *bins_for(const cla_block *b) { return cla__is_whole(b) ? &b->owner->wholes : &b->owner->parts; }

void cla__owner_unbin(cla_block *b) { cla__bins_remove(bins_for(b), b, b->owner->pool->align_log2); }

static bool joins(const cla_block *a, const cla_owner *o) { return a && a->state == CLA_BINNED && a->owner == o; }

void cla__owner_bin(cla_owner *o, cla_block *b) {
  cla_pool *p = o->pool;
  b->state = CLA_BINNED;
  if (joins(b->next, o)) {
    cla__owner_unbin(b->next);
    cla__block_join(p, b);
  }
  if (joins(b->prev, o)) {
    b = b->prev;
    cla__owner_unbin(b);
    cla__block_join(p, b);
  }
  cla__bins_insert(bins_for(b), b, p->align_log2);
}

/* ---- Quick lists ---- */

void cla__owner_flush(cla_owner *o) {
  for (int i = 0; o->nquick && i < CLA_QUICK_SLOTS; i++) {
    cla_quick *q = &o->quick[i];
    while (q->count) {
      cla_block *b = q->head;
      q->head = b->after;
      q->count--;
      o->nquick--;
      cla__owner_bin(o, b);
    }
  }
}

void cla__pool_flush(cla_pool *p) {
  for (cla_owner *o = p->owners; o; o = o->next) cla__owner_flush(o);
}

/* ---- Held blocks ---- */

/* The list ascends. A block freed late with an early number is put a few places up at most; beyond that it takes the
 * number of the block it stands behind: a little late, never early, and nothing is scanned. */
void cla__owner_hold(cla_owner *o, cla_block *b, uint64_t number) {
  enum { LOOK = 16 };
  cla_block *behind = o->held_last;
  for (int look = LOOK; behind && behind->held_until > number && look; look--) behind = behind->before;
  if (behind && behind->held_until > number) number = behind->held_until;
  b->held_until = number;
  b->before = behind;
  b->after = behind ? behind->after : o->held_first;
  if (b->after) b->after->before = b;
  else o->held_last = b;
  if (behind) behind->after = b;
  else o->held_first = b;
  b->waits_for = o;
  cla__stream_want(o->stream, number);
}

void cla__owner_unhold(cla_owner *o, cla_block *b) {
  if (b->before) b->before->after = b->after;
  else o->held_first = b->after;
  if (b->after) b->after->before = b->before;
  else o->held_last = b->before;
  b->before = b->after = NULL;
  b->waits_for = NULL;
}
