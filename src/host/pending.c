/* Blocks that were freed while recorded streams may still use them.
 *
 * They wait in one list a stream, so a stuck stream delays only its own; a block that several streams use waits for one
 * after the other. Hooks are asked without the lock: a pass that asks about a stream hides no block from other threads. */
#include <stdlib.h>

#include "host/host.h"

void cla__host_waitings_free(cla_host_waiting *w) {
  while (w) {
    cla_host_waiting *next = w->next;
    if (w->stream) cla__stream_unhold(w->stream);
    free(w);
    w = next;
  }
}

/* Takes out the entries of closed streams that nothing refers to, chained. Holds the lock. Those of a cache that is being
 * closed stay: that walks them without the lock. */
static cla_host_waiting *reap(cla_host *c) {
  cla_host_waiting *gone = NULL;
  if (atomic_load(&c->is_closed)) return NULL;
  for (cla_host_waiting **link = &c->waitings; *link;) {
    cla_host_waiting *w = *link;
    if (w->nuses || !w->stream || !cla__stream_closed(w->stream)) {
      link = &w->next;
      continue;
    }
    *link = w->next;
    w->next = gone;
    gone = w;
  }
  return gone;
}

/* The entry of a stream, with a use counted. Holds the lock; `gone` is for the caller to free without it. */
cla_host_waiting *cla__host_waiting_of(cla_host *c, cla_stream *s, cla_host_waiting **gone) {
  cla_host_waiting *w = c->waitings;
  while (w && w->stream != s) w = w->next;
  if (!w && (w = calloc(1, sizeof *w)) != NULL) {
    *gone = reap(c);
    w->stream = s;
    cla__stream_hold(s);
    w->next = c->waitings;
    c->waitings = w;
  }
  if (w) w->nuses++;
  return w;
}

static cla_host_use *last_use(cla_host_block *b) { return &b->uses[b->nuses - 1]; }

/* The list ascends. A block freed late goes to the front or a few places up from the end; in between it waits a little
 * longer than it must, but for nothing that was submitted after it was freed. */
static void wait_on(cla_host_waiting *w, cla_host_block *b) {
  enum { LOOK = 16 };
  bool is_oldest = w->first && last_use(b)->ticket <= last_use(w->first)->ticket;
  cla_host_block *behind = is_oldest ? NULL : w->last;
  for (int look = LOOK; behind && last_use(behind)->ticket > last_use(b)->ticket && look; look--)
    behind = behind->before;
  if (behind && last_use(behind)->ticket > last_use(b)->ticket) last_use(b)->ticket = last_use(behind)->ticket;
  b->before = behind;
  b->after = behind ? behind->after : w->first;
  if (b->after) b->after->before = b;
  else w->last = b;
  if (behind) behind->after = b;
  else w->first = b;
}

static void stop_waiting(cla_host_waiting *w, cla_host_block *b) {
  if (b->before) b->before->after = b->after;
  else w->first = b->after;
  if (b->after) b->after->before = b->before;
  else w->last = b->before;
  b->before = b->after = NULL;
}

/* A pending block of no list: waits for the stream of its last use, or is free. Holds the lock. */
static void settle(cla_host *c, cla_host_block *b, cla_host_block **chain) {
  while (b->nuses && last_use(b)->ticket <= last_use(b)->on->done) last_use(b)->on->nuses--, b->nuses--;
  if (b->nuses) {
    wait_on(last_use(b)->on, b);
    return;
  }
  c->totals.pending_bytes -= b->size;
  c->totals.pending_blocks--;
  cla__host_keep(c, b, chain);
}

void cla__host_pend(cla_host *c, cla_host_block *b, cla_host_block **chain) {
  cla_host_stats *t = &c->totals;
  cla__host_set_state(b, CLA_HOST_PENDING);
  t->pending_bytes += b->size;
  t->pending_blocks++;
  if (t->pending_bytes > t->peak_pending_bytes) t->peak_pending_bytes = t->pending_bytes;
  settle(c, b, chain);
}

/* Everything that waits for tickets up to `done` moves on. Holds the lock. */
bool cla__host_collect(cla_host *c, cla_host_waiting *w, uint64_t done, cla_host_block **chain) {
  bool any = false;
  if (done > w->done) w->done = done;
  while (w->first && last_use(w->first)->ticket <= done) {
    cla_host_block *b = w->first;
    stop_waiting(w, b);
    b->nuses--;
    w->nuses--;
    if (b->nuses) c->has_moved = true;
    settle(c, b, chain);
    any = true;
  }
  return any;
}

/* The stream of the entry, for use without the lock until unborrow: meanwhile the cache may be closed, which lets go of
 * streams. Both hold the lock before and after. */
static cla_stream *borrow(cla_host *c, cla_host_waiting *w) {
  cla_stream *s = w->stream;
  cla__stream_hold(s);
  w->nuses++;
  cla__unlock(&c->lock);
  return s;
}

static void unborrow(cla_host *c, cla_host_waiting *w, cla_stream *s) {
  cla__stream_unhold(s);
  cla__lock(&c->lock);
  w->nuses--;
}

/* Asks about one stream until it says no. Holds the lock before and after. */
bool cla__host_ask(cla_host *c, cla_host_waiting *w, cla_host_block **chain) {
  bool any = false, done = true;
  while (done && w->first && w->stream) {
    uint64_t ticket = last_use(w->first)->ticket;
    cla_stream *s = borrow(c, w);
    done = c->hooks.query(c->hooks.arg, s, ticket);
    unborrow(c, w, s);
    if (done && cla__host_collect(c, w, ticket, chain)) any = true;
  }
  return any;
}

bool cla__host_wait(cla_host *c, size_t nbytes) {
  cla__lock(&c->lock);
  bool is_enough = c->totals.pending_bytes >= nbytes;
  for (cla_host_waiting *w = is_enough ? c->waitings : NULL; w; w = w->next) {
    if (!w->first || !w->stream) continue;
    cla_stream *s = borrow(c, w);
    uint64_t all = cla__stream_submitted(s);
    if (!cla__stream_would_hang(s, all)) cla__stream_wait(s, all);
    unborrow(c, w, s);
  }
  cla__unlock(&c->lock);
  return is_enough;
}

bool cla__host_process(cla_host *c) {
  cla_host_block *chain = NULL;
  bool any = false;
  cla__lock(&c->lock);
  do { /* again when a block that waits for several streams may have moved to one asked before */
    c->has_moved = false;
    for (cla_host_waiting *w = c->waitings; w; w = w->next)
      if (cla__host_ask(c, w, &chain)) any = true;
  } while (c->has_moved);
  cla_host_waiting *gone = reap(c);
  cla__unlock(&c->lock);
  cla__host_waitings_free(gone);
  cla__host_release(c, chain);
  return any;
}
