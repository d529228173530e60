/* A heap's life: made for the first kernel, shared by all streams, dropped when nobody uses it.
 *
 * Streams share the heap without order among them: the kernels allocate without locks. Only its making, and launches that
 * want it to themselves, are ordered: the first by waiting on the host, once, the others on the device. */
#include <stdlib.h>
#include <string.h>

#include "heap/heap.h"

enum { MOST_TRIES = 64 /* to find the heap quiet, against threads that keep launching */ };

/* ---- Users -------------------------------------------------------------------------------------- */

/* Room for one more that enters. Locked. */
static cla_status reserve_user(cla_heap *h) {
  const size_t needed = h->nusers + h->entered + h->outside + 2;
  if (needed <= h->room) return CLA_OK;
  cla_heap_user *grown = realloc(h->users, 2 * needed * sizeof *grown);
  if (!grown) return cla__error(CLA_E_NOMEM, "no host memory for the heap's list of streams");
  h->users = grown;
  h->room = 2 * needed;
  return CLA_OK;
}

/* Locked. */
static void note_user(cla_heap *h, cla_stream *s, uint64_t number) {
  for (size_t i = 0; i < h->nusers; i++)
    if (h->users[i].stream == s) {
      if (number > h->users[i].number) h->users[i].number = number;
      return;
    }
  cla__stream_hold(s);
  h->users[h->nusers++] = (cla_heap_user){s, number};
}

/* A user whose commands are done, taken out of the list; NULL: none. Locked; the caller lets go of it, unlocked. */
static cla_stream *take_done(cla_heap *h) {
  for (size_t i = 0; i < h->nusers; i++) {
    cla_stream *s = h->users[i].stream;
    if (!cla__stream_done(s, h->users[i].number)) continue;
    h->users[i] = h->users[--h->nusers];
    return s;
  }
  cla_stream *s = h->alone;
  if (s && cla__stream_done(s, h->alone_number)) h->alone = NULL;
  else s = NULL;
  return s;
}

/* Called unlocked. */
static void drop_done(cla_heap *h) {
  for (cla_stream *s;;) {
    pthread_mutex_lock(&h->lock);
    s = take_done(h);
    pthread_mutex_unlock(&h->lock);
    if (!s) return;
    cla__stream_unhold(s);
  }
}

/* Users are gone through from the last to the first: where one is done and taken out meanwhile, the last comes into its
 * place, and that one has had its turn. New ones are behind them all. */
static size_t count_users(cla_heap *h) {
  pthread_mutex_lock(&h->lock);
  const size_t n = h->nusers;
  pthread_mutex_unlock(&h->lock);
  return n;
}

/* The i-th user, held; false: there are not so many any more. */
static bool get_user(cla_heap *h, size_t i, cla_heap_user *out) {
  pthread_mutex_lock(&h->lock);
  const bool is_there = i < h->nusers;
  if (is_there) {
    *out = h->users[i];
    cla__stream_hold(out->stream);
  }
  pthread_mutex_unlock(&h->lock);
  return is_there;
}

/* For those noted by now; more may come meanwhile. */
static cla_status wait_for_users(cla_heap *h) {
  cla_heap_user u;
  cla_status status = CLA_OK;
  for (size_t i = count_users(h); i-- > 0 && !status;) {
    if (!get_user(h, i, &u)) continue;
    status = cla__stream_wait(u.stream, u.number);
    cla__stream_unhold(u.stream);
  }
  drop_done(h);
  return status;
}

bool cla__heap_is_idle(cla_heap *h) {
  cla_heap_user u;
  for (size_t i = count_users(h); i-- > 0;) {
    if (!get_user(h, i, &u)) continue;
    cla__stream_poll(u.stream, u.number);
    cla__stream_unhold(u.stream);
  }
  drop_done(h);
  pthread_mutex_lock(&h->lock);
  const bool is_idle = !h->nusers && !h->entered && !h->outside && !h->is_sealed;
  pthread_mutex_unlock(&h->lock);
  return is_idle;
}

/* ---- Sealing ------------------------------------------------------------------------------------ */

static cla_status busy_outside(void) {
  return cla__error(CLA_E_BUSY, "heap: a launch is being prepared: cla_heap_use without its cla_heap_used");
}

/* Locked. */
static bool is_quiet(const cla_heap *h) {
  for (size_t i = 0; i < h->nusers; i++)
    if (!cla__stream_done(h->users[i].stream, h->users[i].number)) return false;
  return true;
}

cla_status cla__heap_seal(cla_heap *h, bool quiet) {
  for (int i = 0; i < MOST_TRIES; i++) {
    cla_status status = quiet ? wait_for_users(h) : CLA_OK;
    if (status) return status;
    pthread_mutex_lock(&h->lock);
    while (h->is_sealed || h->entered) pthread_cond_wait(&h->changed, &h->lock);
    const bool is_free = !h->outside && (!quiet || is_quiet(h));
    h->is_sealed = is_free;
    if (h->outside) status = busy_outside();
    pthread_mutex_unlock(&h->lock);
    if (is_free || status) return status;
  }
  return cla__error(CLA_E_BUSY, "heap: other threads keep launching kernels that use it");
}

void cla__heap_unseal(cla_heap *h) {
  pthread_mutex_lock(&h->lock);
  h->is_sealed = false;
  pthread_cond_broadcast(&h->changed);
  pthread_mutex_unlock(&h->lock);
}

/* ---- Reset ------------------------------------------------------------------------------------- */

/* Sealed, quiet: as it was before its first use. */
static void drop_memory(cla_heap *h) {
  const cla_driver *driver = h->device->driver;
  cla__heap_end_service(h);
  if (h->memory) cla__release_buffer(driver, h->memory);
  h->memory = NULL;
}

cla_status cla_heap_reset(cla_heap *h) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!h) return cla__error(CLA_E_INVALID, "heap_reset: no heap");
  status = cla__heap_seal(h, true);
  if (status) return status;
  drop_memory(h);
  cla__heap_unseal(h);
  return CLA_OK;
}

/* ---- Entering ----------------------------------------------------------------------------------- */

/* Inside or sealed, unlocked: later commands of `s` come after what others have in their queues. */
static cla_status order_after_users(cla_heap *h, cla_stream *s) {
  cla_heap_user u;
  cla_status status = CLA_OK;
  for (size_t i = count_users(h); i-- > 0 && !status;) {
    if (!get_user(h, i, &u)) continue;
    status = cla__stream_order_after(s, u.stream, u.number);
    cla__stream_unhold(u.stream);
  }
  return status;
}

static cla_status order_after_alone(cla_heap *h, cla_stream *s) {
  pthread_mutex_lock(&h->lock);
  cla_stream *alone = h->alone;
  const uint64_t number = h->alone_number;
  if (alone) cla__stream_hold(alone);
  pthread_mutex_unlock(&h->lock);
  if (!alone) return CLA_OK;
  const cla_status status = cla__stream_order_after(s, alone, number);
  cla__stream_unhold(alone);
  return status;
}

/* Makes the memory while sealed; an instant later it may be gone again, so whoever called looks once more. Someone at
 * work outside the library has it made, or had: that is no failure. */
static cla_status make_sealed(cla_heap *h) {
  cla_error_memo memo;
  cla__error_keep(&memo);
  cla_status status = cla__heap_seal(h, false);
  if (status == CLA_E_BUSY) cla__error_restore(&memo);
  if (status) return status == CLA_E_BUSY ? CLA_OK : status;
  status = cla__heap_make(h);
  cla__heap_unseal(h);
  return status;
}

/* What the device's pool keeps without using it goes back to the driver. Called unsealed, as it waits for streams. */
static bool give_back(const cla_heap *h) {
  cla_error_memo memo;
  size_t freed = 0;
  pthread_mutex_lock(&h->device->lock);
  cla_pool *pool = h->device->pool;
  pthread_mutex_unlock(&h->device->lock);
  cla__error_keep(&memo);
  const bool is_trimmed = pool && !cla_pool_trim(pool, &freed);
  cla__error_restore(&memo);
  return is_trimmed && freed > 0;
}

cla_status cla__heap_ready(cla_heap *h) {
  pthread_mutex_lock(&h->lock);
  while (h->is_sealed) pthread_cond_wait(&h->changed, &h->lock);
  const bool is_made = h->memory != NULL;
  pthread_mutex_unlock(&h->lock);
  if (is_made) return CLA_OK;
  const cla_status status = make_sealed(h);
  return status == CLA_E_NOMEM && give_back(h) ? make_sealed(h) : status;
}

/* Into the heap, beside others. */
static cla_status enter_shared(cla_heap *h, size_t *count) {
  for (;;) {
    pthread_mutex_lock(&h->lock);
    while (h->is_sealed) pthread_cond_wait(&h->changed, &h->lock);
    cla_status status = reserve_user(h);
    const bool is_made = h->memory != NULL;
    if (!status && is_made) ++*count;
    pthread_mutex_unlock(&h->lock);
    if (status || is_made) return status;
    status = cla__heap_ready(h);
    if (status) return status;
  }
}

static cla_status enter_alone(cla_heap *h) {
  cla_status status = cla__heap_ready(h);
  if (!status) status = cla__heap_seal(h, false);
  if (status) return status;
  pthread_mutex_lock(&h->lock);
  status = reserve_user(h);
  pthread_mutex_unlock(&h->lock);
  if (!status) status = cla__heap_make(h);
  if (status) cla__heap_unseal(h);
  return status;
}

static void leave(cla_heap *h, size_t *count) {
  pthread_mutex_lock(&h->lock);
  --*count;
  if (!h->entered) pthread_cond_broadcast(&h->changed);
  pthread_mutex_unlock(&h->lock);
}

static cla_status check_stream(const cla_heap *h, const cla_stream *s) {
  if (s->device == h->device) return CLA_OK;
  return cla__error(CLA_E_INVALID, "heap: the stream belongs to %s, the heap to %s", s->device->info.name,
                    h->device->info.name);
}

cla_status cla__heap_enter(cla_heap *h, cla_stream *s, bool alone, cl_mem *out) {
  cla_status status = check_stream(h, s);
  if (!status) status = alone ? enter_alone(h) : enter_shared(h, &h->entered);
  if (status) return status;
  if (alone) status = order_after_users(h, s);
  if (!status) status = order_after_alone(h, s);
  if (status) cla__heap_leave(h, s, alone, 0);
  else *out = h->memory;
  return status;
}

void cla__heap_leave(cla_heap *h, cla_stream *s, bool alone, uint64_t number) {
  cla_stream *before = NULL;
  pthread_mutex_lock(&h->lock);
  if (number) note_user(h, s, number);
  if (number && alone) {
    before = h->alone;
    cla__stream_hold(s);
    h->alone = s;
    h->alone_number = number;
  }
  pthread_mutex_unlock(&h->lock);
  if (alone) cla__heap_unseal(h);
  else leave(h, &h->entered);
  if (before) cla__stream_unhold(before);
  drop_done(h);
}

cla_status cla_heap_use(cla_heap *h, cla_stream *s, cl_mem *out) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!h || !s || !out) return cla__error(CLA_E_INVALID, "heap_use: no heap, no stream or no place for the result");
  status = check_stream(h, s);
  if (!status) status = enter_shared(h, &h->outside);
  if (status) return status;
  status = order_after_alone(h, s);
  if (status) leave(h, &h->outside);
  else *out = h->memory;
  return status;
}

cla_status cla_heap_used(cla_heap *h, cla_stream *s) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!h || !s) return cla__error(CLA_E_INVALID, "heap_used: no heap or no stream");
  status = check_stream(h, s);
  if (status) return status;
  pthread_mutex_lock(&h->lock);
  if (h->outside) {
    h->outside--;
    note_user(h, s, cla__stream_submitted(s));
  } else {
    status = cla__error(CLA_E_INVALID, "heap_used: without a cla_heap_use before it");
  }
  pthread_mutex_unlock(&h->lock);
  drop_done(h);
  return status;
}

/* ---- Settings ----------------------------------------------------------------------------------- */

/* Locked; waits for a making or a reset that is under way. CLA_E_BUSY once there is memory. */
static cla_status check_unmade(cla_heap *h, const char *what) {
  while (h->is_sealed) pthread_cond_wait(&h->changed, &h->lock);
  if (!h->memory) return CLA_OK;
  return cla__error(
      CLA_E_BUSY,
      "%s: fixed since the heap is in use (limit %llu bytes, as CUDA has it): reset the heap first, which "
      "frees everything in it",
      what, (unsigned long long)h->limit);
}

/* With the settings as they are but for the limit; `effective`: whole pages. */
static cla_status check_limit(const cla_heap *h, uint64_t nbytes, uint64_t *effective) {
  cla__heap_plan plan;
  if (!cla__heap_plan_for(h, nbytes, &plan))
    return cla__error(CLA_E_TOO_LARGE, "heap: a limit of %llu bytes is more than a heap can manage%s",
                      (unsigned long long)nbytes, h->has_sites ? " with sites" : "");
  *effective = plan.payload_bytes;
  return cla__heap_check_size(h, &plan);
}

cla_status cla_heap_set_limit(cla_heap *h, uint64_t nbytes) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!h) return cla__error(CLA_E_INVALID, "heap_set_limit: no heap");
  pthread_mutex_lock(&h->lock);
  status = check_unmade(h, "heap_set_limit");
  if (!status) status = check_limit(h, nbytes, &nbytes);
  if (!status) h->limit = nbytes;
  pthread_mutex_unlock(&h->lock);
  return status;
}

cla_status cla_heap_set_counting(cla_heap *h, bool on) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!h) return cla__error(CLA_E_INVALID, "heap_set_counting: no heap");
  pthread_mutex_lock(&h->lock);
  status = check_unmade(h, "heap_set_counting");
  if (!status) h->counts = on;
  pthread_mutex_unlock(&h->lock);
  return status;
}

/* Sites take room beside the limit. */
cla_status cla_heap_set_sites(cla_heap *h, bool on) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!h) return cla__error(CLA_E_INVALID, "heap_set_sites: no heap");
  pthread_mutex_lock(&h->lock);
  const bool before = h->has_sites;
  uint64_t limit = 0;
  status = check_unmade(h, "heap_set_sites");
  if (!status) {
    h->has_sites = on;
    status = check_limit(h, h->limit, &limit);
    if (status) h->has_sites = before;
  }
  pthread_mutex_unlock(&h->lock);
  return status;
}

uint64_t cla_heap_limit(cla_heap *h) { return h->limit; }
bool cla_heap_counting(cla_heap *h) { return h->counts; }
bool cla_heap_sites(cla_heap *h) { return h->has_sites; }

/* ---- Life --------------------------------------------------------------------------------------- */

static void heap_free(cla_heap *h) {
  for (size_t i = 0; i < h->nkernels; i++) free(h->kernels[i]);
  free(h->kernels);
  free(h->users);
  pthread_cond_destroy(&h->changed);
  pthread_mutex_destroy(&h->lock);
  free(h);
}

/* The device ends: no handle to a gate of it is left, so every wait ends. */
void cla__heap_close(cla_heap *h) {
  for (size_t i = 0; i < h->nusers; i++) {
    cla__stream_wait(h->users[i].stream, h->users[i].number);
    cla__stream_unhold(h->users[i].stream);
  }
  if (h->alone) cla__stream_unhold(h->alone);
  drop_memory(h);
  heap_free(h);
}

static cla_heap *heap_new(cla_device *d) {
  cla_heap *h = calloc(1, sizeof *h);
  if (!h) return NULL;
  pthread_mutex_init(&h->lock, NULL);
  pthread_cond_init(&h->changed, NULL);
  h->device = d;
  h->limit = CLA_HEAP_DEFAULT_LIMIT;
  h->counts = true;
  return h;
}

cla_status cla_device_heap(cla_device *d, cla_heap **out) {
  const cla_status status = cla__alive();
  if (status) return status;
  if (!d || !out) return cla__error(CLA_E_INVALID, "device_heap: no device or no place for the result");
  pthread_mutex_lock(&d->lock);
  cla_heap *h = d->heap;
  pthread_mutex_unlock(&d->lock);
  if (!h) {
    cla_heap *fresh = heap_new(d);
    if (!fresh) return cla__error(CLA_E_NOMEM, "no host memory for a heap");
    pthread_mutex_lock(&d->lock);
    h = d->heap;
    if (!h) {
      h = d->heap = fresh;
      d->heap_closer = cla__heap_close;
      fresh = NULL;
    }
    pthread_mutex_unlock(&d->lock);
    if (fresh) heap_free(fresh);
  }
  *out = h;
  return CLA_OK;
}
