/* From any address to the range it lies in, in O(1).
 *
 * One reservation of address space is made once and never given back: PROT_NONE pages that cost nothing, of
 * 2^44 bytes where the system allows it, down to 2^34 (valgrind, sanitizers). It is cut into slots; a table
 * holds, for each slot, the range that owns it. The table is itself lazily backed memory. Lookups in the
 * reservation are one atomic load and take no lock.
 *
 * Slots are handed out next-fit, so that a freed range's addresses are not issued again soon: until then they are
 * recognised as freed. Memory with an address of its own (SVM, pinned) lies in a small sorted array.
 *
 * Why one reservation: the kernel limits the number of mappings of a process (65,530 by default), not their size. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/runtime.h"

enum {
  LARGEST_LOG2 = 44,
  SMALLEST_LOG2 = 34,
  SLOTS_LOG2 = 23, /* at most so many slots: a table of 64 MiB, backed where used */
  SMALLEST_SLOT_LOG2 = 16
};

static pthread_mutex_t map_lock = PTHREAD_MUTEX_INITIALIZER;

/* Guarded by map_lock for writing; `slots` and the constants are read without it after `reservation` is published. */
static struct {
  atomic_uintptr_t reservation; /* 0: not made yet */
  unsigned log2, slot_log2;
  size_t nslots;
  _Atomic(cla_range *) *slots;
  size_t cursor;           /* where the next search begins */
  atomic_uintptr_t issued; /* end of the part handed out so far */
} map;

static struct {
  cla_range **ranges; /* by base */
  size_t count, capacity;
} others;

static void *lazily_backed(size_t size, int protection) {
  void *p = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

static cla_status make_reservation(void) {
  if (atomic_load(&map.reservation)) return CLA_OK;
  void *space = NULL;
  unsigned log2 = LARGEST_LOG2;
  for (; log2 >= SMALLEST_LOG2; log2--)
    if ((space = lazily_backed((size_t)1 << log2, PROT_NONE)) != NULL) break;
  if (!space)
    return cla__error(CLA_E_NOMEM, "no address space: a reservation of %zu bytes was refused (ulimit -v?)",
                      (size_t)1 << SMALLEST_LOG2);
  unsigned slot_log2 = log2 - SLOTS_LOG2;
  if (slot_log2 < SMALLEST_SLOT_LOG2) slot_log2 = SMALLEST_SLOT_LOG2;
  size_t nslots = (size_t)1 << (log2 - slot_log2);
  void *slots = lazily_backed(nslots * sizeof *map.slots, PROT_READ | PROT_WRITE);
  if (!slots) {
    munmap(space, (size_t)1 << log2);
    return cla__error(CLA_E_NOMEM, "no host memory for the address map");
  }
  map.log2 = log2;
  map.slot_log2 = slot_log2;
  map.nslots = nslots;
  map.slots = slots;
  atomic_store(&map.issued, (uintptr_t)space);
  atomic_store_explicit(&map.reservation, (uintptr_t)space, memory_order_release);
  return CLA_OK;
}

static cla_range *slot_owner(size_t slot) { return atomic_load_explicit(&map.slots[slot], memory_order_acquire); }

static size_t slots_of(const cla_range *r) { return (r->span + ((size_t)1 << map.slot_log2) - 1) >> map.slot_log2; }

/* First run of `need` free slots in [from, to), or `to`. Occupied ranges are jumped over whole. */
static size_t find_run(size_t need, size_t from, size_t to) {
  size_t begin = from, at = from;
  while (at < to && at - begin < need) {
    const cla_range *r = slot_owner(at);
    if (r) begin = at = at + slots_of(r);
    else at++;
  }
  return at <= to && at - begin >= need ? begin : to;
}

cla_status cla__map_reserve(cla_range *r, size_t span) {
  pthread_mutex_lock(&map_lock);
  cla_status status = make_reservation();
  if (status) goto done;
  uintptr_t reservation = atomic_load(&map.reservation);
  size_t need = (span >> map.slot_log2) + ((span & (((size_t)1 << map.slot_log2) - 1)) != 0);
  if (need == 0) need = 1;
  size_t at = need > map.nslots ? map.nslots : find_run(need, map.cursor, map.nslots);
  if (at == map.nslots && need <= map.nslots) at = find_run(need, 0, map.nslots);
  if (at == map.nslots) {
    status = cla__error(CLA_E_NOMEM, "no run of %zu bytes left in the %zu bytes of address space", span,
                        (size_t)1 << map.log2);
    goto done;
  }
  r->span = span;
  r->is_host_memory = false;
  r->base = reservation + (at << map.slot_log2);
  for (size_t i = 0; i < need; i++) atomic_store_explicit(&map.slots[at + i], r, memory_order_release);
  map.cursor = at + need < map.nslots ? at + need : 0;
  uintptr_t end = r->base + (need << map.slot_log2);
  if (end > atomic_load(&map.issued)) atomic_store(&map.issued, end);
done:
  pthread_mutex_unlock(&map_lock);
  return status;
}

/* Index of the first range whose base is above the address. */
static size_t others_after(uintptr_t address) {
  size_t low = 0, high = others.count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (others.ranges[middle]->base <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

cla_status cla__map_insert(cla_range *r, void *base, size_t span) {
  pthread_mutex_lock(&map_lock);
  cla_status status = CLA_OK;
  if (others.count == others.capacity) {
    size_t capacity = others.capacity ? others.capacity * 2 : 64;
    cla_range **grown = realloc(others.ranges, capacity * sizeof *grown);
    if (!grown) {
      status = cla__error(CLA_E_NOMEM, "no host memory for the address map");
      goto done;
    }
    others.ranges = grown;
    others.capacity = capacity;
  }
  r->span = span;
  r->is_host_memory = true;
  r->base = (uintptr_t)base;
  size_t at = others_after(r->base);
  memmove(others.ranges + at + 1, others.ranges + at, (others.count - at) * sizeof *others.ranges);
  others.ranges[at] = r;
  others.count++;
done:
  pthread_mutex_unlock(&map_lock);
  return status;
}

void cla__map_remove(cla_range *r) {
  if (!r->base) return;
  pthread_mutex_lock(&map_lock);
  if (r->is_host_memory) {
    size_t at = others_after(r->base);
    if (at > 0 && others.ranges[at - 1] == r) {
      memmove(others.ranges + at - 1, others.ranges + at, (others.count - at) * sizeof *others.ranges);
      others.count--;
    }
  } else {
    size_t at = (r->base - atomic_load(&map.reservation)) >> map.slot_log2, n = slots_of(r);
    for (size_t i = 0; i < (n ? n : 1); i++) atomic_store_explicit(&map.slots[at + i], NULL, memory_order_release);
  }
  r->base = 0;
  pthread_mutex_unlock(&map_lock);
}

static cla_range *find_other(uintptr_t address) {
  pthread_mutex_lock(&map_lock);
  size_t at = others_after(address);
  cla_range *r = at > 0 ? others.ranges[at - 1] : NULL;
  if (r && address - r->base >= r->span) r = NULL;
  pthread_mutex_unlock(&map_lock);
  return r;
}

cla_range *cla__map_find(const void *address) {
  uintptr_t reservation = atomic_load_explicit(&map.reservation, memory_order_acquire);
  uintptr_t a = (uintptr_t)address;
  if (reservation && a - reservation < (uintptr_t)1 << map.log2) return slot_owner((a - reservation) >> map.slot_log2);
  return find_other(a);
}

bool cla__map_was_issued(const void *address) {
  uintptr_t reservation = atomic_load_explicit(&map.reservation, memory_order_acquire);
  uintptr_t a = (uintptr_t)address;
  return reservation && a >= reservation && a < atomic_load_explicit(&map.issued, memory_order_acquire);
}
