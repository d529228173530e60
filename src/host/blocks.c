/* Block descriptors and the contexts that stand for allocations.
 *
 * A context is a number, not an address: the descriptor's index and the allocation's generation, with the lowest bit
 * set. It is decoded without following anything, so a foreign context is an error and not a crash, and a freed one is
 * recognised for ever. */
#include <stdlib.h>

#include "host/host.h"

enum { CHUNK = 1024, CHUNKS = 1 << 14, INDEX_BITS = 63 - CLA_HOST_GENERATION_BITS };

static cla_lock spare_lock;
static cla_host_block *spares;
static uint32_t issued;
static _Atomic(cla_host_block *) chunks[CHUNKS];

static bool add_chunk(cla_status (*record)(const void *address, cla_stream *s)) {
  if (issued == (uint32_t)CHUNK * CHUNKS) return false;
  cla_host_block *chunk = calloc(CHUNK, sizeof *chunk);
  if (!chunk) return false;
  for (uint32_t i = 0; i < CHUNK; i++) {
    chunk[i].index = issued + i;
    chunk[i].range.owner = &chunk[i]; /* this and the next for good: who finds a range reads them without a lock */
    chunk[i].range.record = record;
    chunk[i].after = i + 1 < CHUNK ? &chunk[i + 1] : spares;
  }
  spares = chunk;
  atomic_store_explicit(&chunks[issued / CHUNK], chunk, memory_order_release);
  issued += CHUNK;
  return true;
}

cla_host_block *cla__host_block_new(cla_status (*record)(const void *address, cla_stream *s)) {
  cla__lock(&spare_lock);
  cla_host_block *b = NULL;
  if (spares || add_chunk(record)) {
    b = spares;
    spares = b->after;
    b->after = b->before = NULL;
  }
  cla__unlock(&spare_lock);
  return b;
}

/* One whose generations are used up is not used again: its contexts would be those of long ago. */
void cla__host_block_drop(cla_host_block *b) {
  cla__host_set_state(b, CLA_HOST_UNUSED);
  if (cla__host_is_worn(atomic_load(&b->life))) return;
  cla__lock(&spare_lock);
  b->after = spares;
  spares = b;
  cla__unlock(&spare_lock);
}

void *cla__host_context(const cla_host_block *b, uint64_t life) {
  uint64_t generation = cla__host_generation(life);
  return (void *)(uintptr_t)((generation << INDEX_BITS | b->index) << 1 | 1); /* NOLINT: a number */
}

cla_host_block *cla__host_block_of(const void *context, uint64_t *life, bool *was_issued) {
  uint64_t number = (uintptr_t)context;
  *was_issued = false;
  if (!(number & 1)) return NULL;
  number >>= 1;
  uint32_t index = (uint32_t)(number & ((1u << INDEX_BITS) - 1));
  cla_host_block *chunk = atomic_load_explicit(&chunks[index / CHUNK], memory_order_acquire);
  if (!chunk) return NULL;
  cla_host_block *b = &chunk[index % CHUNK];
  *life = atomic_load_explicit(&b->life, memory_order_acquire);
  uint64_t generation = cla__host_generation(*life), theirs = number >> INDEX_BITS;
  *was_issued = theirs <= generation && theirs % 2 == 1;
  return *was_issued && theirs == generation ? b : NULL;
}
