/* What the lanes of heap_warp.c run, each for itself. blocks, sizes: a place an item. Each of the builds has names of its
 * own: take_warp and so on. */

#define JOINED(a, b) a##_##b
#define JOIN(a, b)   JOINED(a, b)
#define NAMED(name)  JOIN(name, BUILD)

void played_born(CLA_HEAP heap, __global void *block, ulong nbytes); /* the oracle of live blocks */
void played_dies(__global void *block);

static uint next(uint *dice) {
  *dice = *dice * 1664525u + 1013904223u;
  return *dice >> 8;
}

/* Filled with the item's number, to see that nobody else writes there. */
static void stamp(__global uint *block, uint nbytes) {
  for (uint i = 0; i < nbytes / 4u; i += 4u) block[i] = get_global_id(0);
}

static uint is_stamped(__global uint *block, uint nbytes, uint item) {
  uint is = 1;
  for (uint i = 0; i < nbytes / 4u; i += 4u) is &= block[i] == item;
  return is;
}

/* One block an item, of least to most bytes. */
void NAMED(take)(CLA_HEAP heap, __global void **blocks, uint *sizes, uint least, uint most, uint seed) {
  const uint i = get_global_id(0);
  uint dice = cla__mix(seed * 77u + i);
  sizes[i] = least + next(&dice) % (most - least + 1u);
  blocks[i] = cla_malloc(heap, sizes[i]);
  if (blocks[i] == 0) return;
  played_born(heap, blocks[i], sizes[i]);
  stamp(blocks[i], sizes[i]);
}

/* Item i frees the block of item i * step. */
uint NAMED(give)(CLA_HEAP heap, __global void **blocks, uint *sizes, uint step) {
  const uint i = (uint)((ulong)get_global_id(0) * step % get_global_size(0));
  const uint is_good = blocks[i] == 0 || is_stamped(blocks[i], sizes[i], i);
  if (blocks[i] != 0) played_dies(blocks[i]);
  cla_free(heap, blocks[i]);
  return is_good;
}

/* Each item, nrounds times, by chance: frees what it holds, takes something else, both, or a block of many pages for a
 * moment. It ends with a block or none. */
uint NAMED(swap)(CLA_HEAP heap, __global void **blocks, uint *sizes, uint nrounds, uint most, uint seed) {
  const uint i = get_global_id(0);
  uint dice = cla__mix(seed * 77u + i), is_good = 1;
  for (uint round = 0; round < nrounds; round++) {
    const uint what = next(&dice) & 15u;
    if (what == 0u) {
      __global uint *run = cla_malloc(heap, 8u * most);
      if (run != 0) {
        played_born(heap, run, 8u * most);
        stamp(run, 8u * most);
        is_good &= is_stamped(run, 8u * most, i);
        played_dies(run);
      }
      cla_free(heap, run);
    }
    if (blocks[i] != 0 && (what & 1u) != 0u) {
      is_good &= is_stamped(blocks[i], sizes[i], i);
      played_dies(blocks[i]);
      cla_free(heap, blocks[i]);
      blocks[i] = 0;
    }
    if (blocks[i] == 0 && (what & 2u) != 0u) {
      sizes[i] = 1u + next(&dice) % most;
      blocks[i] = cla_malloc(heap, sizes[i]);
      if (blocks[i] != 0) {
        played_born(heap, blocks[i], sizes[i]);
        stamp(blocks[i], sizes[i]);
      }
    }
  }
  return is_good;
}

/* Each item counts nrounds keys in a hash table with chains, whose nodes are of the heap: reference of the next, key,
 * count. A node made in vain goes back at once. */
void NAMED(table)(CLA_HEAP heap, cla__words heads, uint nchains, uint nkeys, uint nrounds, uint seed) {
  uint dice = cla__mix(seed * 77u + get_global_id(0));
  for (uint round = 0; round < nrounds; round++) {
    const uint key = next(&dice) % nkeys;
    cla__words head = heads + key % nchains, mine = 0;
    uint seen = 0;
    bool is_counted = false;
    while (!is_counted) {
      const uint now = *head;
      cla__words found = 0;
      for (uint at = now; at != seen && found == 0;) {
        cla__words node = cla_at(heap, at);
        if (node[1] == key) found = node;
        at = node[0];
      }
      seen = now;
      if (found != 0) {
        atomic_inc(found + 2);
        is_counted = true;
      } else {
        if (mine == 0) {
          mine = cla_malloc(heap, 12);
          played_born(heap, (__global void *)mine, 12);
        }
        mine[0] = now, mine[1] = key, mine[2] = 1u;
        cla_fence();
        is_counted = atomic_cmpxchg(head, now, cla_ref(heap, (__global void *)mine)) == now;
        if (is_counted) mine = 0;
      }
    }
    if (mine != 0) played_dies((__global void *)mine);
    cla_free(heap, (__global void *)mine);
  }
}

/* Is there a block of nbytes to be had? */
uint NAMED(can_have)(CLA_HEAP heap, uint nbytes) {
  __global void *block = cla_malloc(heap, nbytes);
  cla_free(heap, block);
  return block != 0;
}

/* Every item frees the same block, and one that nobody has. */
void NAMED(give_twice)(CLA_HEAP heap, __global void **blocks) {
  cla_free(heap, blocks[0]);
  cla_free(heap, (__global char *)blocks[1] + 8);
  cla_free(heap, (__global char *)blocks[1] + 16);
}

/* Each item for itself: all the calls, sizes up to `most`, four blocks at a time. 0: a block was not its owner's. */
uint NAMED(live)(CLA_HEAP heap, uint nrounds, uint most, uint seed) {
  __global uint *held[4] = {0, 0, 0, 0};
  uint sizes[4], dice = cla__mix(seed * 77u + get_global_id(0)), is_good = 1;
  for (uint round = 0; round < nrounds + 4u; round++) {
    const uint k = round & 3u, what = next(&dice) & 7u;
    if (held[k] != 0) {
      is_good &= is_stamped(held[k], sizes[k], get_global_id(0));
      if (what == 0u && round < nrounds) {
        const uint nbytes = 16u + next(&dice) % most, was = sizes[k],
                   is_small = nbytes <= cla_usable_size(heap, held[k]);
        if (!is_small) played_dies(held[k]);
        __global uint *moved = cla_realloc(heap, held[k], nbytes);
        if (moved != 0) {
          held[k] = moved, sizes[k] = nbytes;
          is_good &= is_stamped(moved, min(was, nbytes), get_global_id(0));
        }
        if (!is_small) played_born(heap, held[k], sizes[k]);
      } else {
        played_dies(held[k]);
        cla_free(heap, held[k]);
        held[k] = 0;
      }
    }
    if (held[k] == 0 && round < nrounds) {
      sizes[k] = 16u + next(&dice) % most;
      if (what == 1u) {
        held[k] = cla_calloc(heap, sizes[k], 1);
        is_good &= held[k] == 0 || is_stamped(held[k], sizes[k], 0u);
      } else if (what == 2u) {
        held[k] = cla_aligned_alloc(heap, 64, sizes[k]);
        is_good &= ((ulong)held[k] & 63ul) == 0ul;
      } else {
        held[k] = cla_malloc(heap, sizes[k]);
      }
      if (held[k] != 0) played_born(heap, held[k], sizes[k]);
    }
    if (held[k] != 0) stamp(held[k], sizes[k]);
  }
  return is_good;
}
