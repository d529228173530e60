/* Recounts a heap from its notes. What must hold once no kernel is at work is written in heap_layout.h; each rule has a
 * function here, and the first contradiction is named with the page where it is. */
#include <stdlib.h>
#include <string.h>

#include "heap/heap.h"

typedef struct audit {
  const cla_heap_image *image;
  uint64_t live, pages_in_use;
} audit;

static bool bit_of(const uint32_t *words, uint32_t i) { return words[i / 32] >> (i % 32) & 1; }

static cla_status wrong(uint32_t page, const char *what) {
  return cla__error(CLA_E_INVALID, "heap_check: page %lu: %s", (unsigned long)page, what);
}

/* ---- Control words ------------------------------------------------------------------------------ */

/* The geometry is written once: another value there was written by a kernel that strayed. */
static cla_status check_control(const cla_heap_image *image) {
  uint32_t *as_made = malloc(4 * CLA_HEAP_CONTROL_WORDS);
  if (!as_made) return cla__error(CLA_E_NOMEM, "no host memory to check a heap");
  cla__heap_control(&image->plan, as_made);
  as_made[CLA_HEAP_PAYLOAD16] = image->payload16;
  const bool is_same = memcmp(as_made, image->words, 4 * CLA_HEAP_FAILED) == 0 &&
                       memcmp(as_made + CLA_HEAP_CLASS, image->words + CLA_HEAP_CLASS,
                              4 * (CLA_HEAP_CONTROL_WORDS - CLA_HEAP_CLASS)) == 0;
  free(as_made);
  if (is_same) return CLA_OK;
  return cla__error(CLA_E_INVALID, "heap_check: the heap's description of itself has been overwritten");
}

/* ---- Bitmaps of pages --------------------------------------------------------------------------- */

/* Level 1 has a bit for every word of level 0 that is not 0. */
static cla_status check_levels(const cla_heap_image *image, uint32_t at, const char *what) {
  const uint32_t *level0 = image->words + at, *level1 = level0 + image->plan.level0;
  for (uint32_t i = 0; i < image->plan.level0; i++)
    if (level0[i] && !bit_of(level1, i)) return wrong(32 * i, what);
  return CLA_OK;
}

static uint32_t room_map(const cla__heap_plan *plan, uint32_t k) {
  return plan->room_maps + k * (plan->level0 + plan->level1);
}

static cla_status check_maps(const cla_heap_image *image) {
  cla_status status = check_levels(image, image->plan.free_map, "level 1 of the free pages misses it");
  for (uint32_t k = 0; k < image->plan.nclasses && !status; k++)
    status = check_levels(image, room_map(&image->plan, k), "level 1 of the pages with room misses it");
  return status;
}

/* ---- Pages -------------------------------------------------------------------------------------- */

static uint32_t bits_set(const uint32_t *words, uint32_t n) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < n; i++) sum += (uint32_t)__builtin_popcount(words[i]);
  return sum;
}

static bool is_hinted(const cla_heap_image *image, uint32_t k, uint32_t p) {
  const uint32_t *hints = image->words + image->plan.hints[k];
  for (uint32_t i = 0; i < 4 * image->plan.nhints[k]; i++)
    if (hints[i] == p) return true;
  return false;
}

static cla_status check_slab(audit *a, uint32_t p, uint32_t word) {
  const cla__heap_plan *plan = &a->image->plan;
  const uint32_t k = cla__page_code(word) - 1, used = word & CLA_HEAP_USED;
  const uint32_t *bits = cla__heap_page_bits(a->image, p);
  if (k >= plan->nclasses) return wrong(p, "it is a slab of a class that there is not");
  if (used > plan->capacity[k]) return wrong(p, "more blocks are used than it has");
  if (bits_set(bits, 1u << (plan->page_shift - CLA_HEAP_LEAST_SHIFT)) != used)
    return wrong(p, "its count of blocks differs from its bits");
  for (uint32_t slot = 0, seen = 0; seen < used; slot++) {
    if (slot == plan->capacity[k]) return wrong(p, "a block lies beyond its last");
    seen += cla__heap_is_live(a->image, p, slot);
  }
  if (used && used < plan->capacity[k] && !bit_of(a->image->words + room_map(plan, k), p) && !is_hinted(a->image, k, p))
    return wrong(p, "it has room that nobody will find");
  a->live += used;
  return CLA_OK;
}

/* `next`: the page behind the run. */
static cla_status check_run(audit *a, uint32_t p, uint32_t *next) {
  const cla__heap_plan *plan = &a->image->plan;
  const uint32_t length = cla__heap_page_bits(a->image, p)[0];
  if (!length || length > plan->npages - p) return wrong(p, "its run has an impossible length");
  for (uint32_t i = 1; i < length; i++)
    if (cla__page_code(cla__heap_page(a->image, p + i)) != CLA_HEAP_BODY) return wrong(p + i, "its run is broken");
  *next = p + length;
  a->pages_in_use += length - 1;
  a->live++;
  return CLA_OK;
}

static cla_status check_page(audit *a, uint32_t p, uint32_t *next) {
  const uint32_t word = cla__heap_page(a->image, p), code = cla__page_code(word);
  const bool is_slab = code != CLA_HEAP_FREE && code <= CLA_HEAP_CLASSES_MAX;
  *next = p + 1;
  a->pages_in_use += code != CLA_HEAP_FREE;
  if (code == CLA_HEAP_HEAD) return check_run(a, p, next);
  if (code == CLA_HEAP_BODY) return wrong(p, "it continues a run that does not begin");
  if (code != CLA_HEAP_FREE && !is_slab) return wrong(p, "it is half taken");
  const cla_status status = is_slab ? check_slab(a, p, word) : CLA_OK;
  if (status) return status;
  if (code == CLA_HEAP_FREE && (word & CLA_HEAP_USED)) return wrong(p, "it is free and has blocks");
  if (!(word & CLA_HEAP_USED) && !bit_of(a->image->words + a->image->plan.free_map, p))
    return wrong(p, "it is free and nobody will find it");
  return CLA_OK;
}

/* ---- Counts ------------------------------------------------------------------------------------- */

static cla_status check_counts(const audit *a) {
  cla_heap_stats s = {0};
  cla__heap_read_stats(a->image, &s);
  if (s.live_blocks != a->live)
    return cla__error(CLA_E_INVALID, "heap_check: %llu live blocks by the pages, %llu by their bits",
                      (unsigned long long)s.live_blocks, (unsigned long long)a->live);
  if (!a->image->counts) return CLA_OK;
  if (s.mallocs - s.frees != a->live)
    return cla__error(CLA_E_INVALID, "heap_check: %llu allocations less %llu frees, but %llu live blocks",
                      (unsigned long long)s.mallocs, (unsigned long long)s.frees, (unsigned long long)a->live);
  const uint32_t now = a->image->words[CLA_HEAP_PAGES_NOW];
  if (now != a->pages_in_use)
    return cla__error(CLA_E_INVALID, "heap_check: %lu pages counted as taken, %llu are", (unsigned long)now,
                      (unsigned long long)a->pages_in_use);
  return CLA_OK;
}

static cla_status check_image(const cla_heap_image *image) {
  audit a = {.image = image};
  cla_status status = check_control(image);
  if (!status) status = check_maps(image);
  for (uint32_t p = 0; p < image->plan.npages && !status;) status = check_page(&a, p, &p);
  return status ? status : check_counts(&a);
}

cla_status cla_heap_check(cla_heap *h) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!h) return cla__error(CLA_E_INVALID, "heap_check: no heap");
  cla_heap_image image;
  status = cla__heap_look(h, &image);
  if (status || !image.words) return status;
  status = check_image(&image);
  free(image.words);
  return status;
}
