/* What a heap's notes say: blocks, statistics, peaks.
 *
 * Notes are copied from the device while the heap is sealed and quiet, and read afterwards; so whoever is called back may do
 * as he likes, and the kernels that were waited for make every figure exact. A simulated device keeps no contents: there a
 * heap looks as it was made. */
#include <stdlib.h>
#include <string.h>

#include "heap/heap.h"

/* ---- Images ------------------------------------------------------------------------------------- */

static cla_status read_part(cla_heap *h, cla_heap_image *image, uint64_t begin, uint64_t nbytes) {
  if (!nbytes) return CLA_OK;
  const cl_int err = cla__enqueue_read(h->device->driver, h->device->service->queue, h->memory, CL_TRUE, (size_t)begin,
                                       (size_t)nbytes, (char *)image->words + begin, 0, NULL, NULL);
  return err ? cla__driver_error(CLA_CALL_enqueue_read, err) : CLA_OK;
}

static cla_status read_parts(cla_heap *h, cla_heap_parts parts, cla_heap_image *image) {
  const cla__heap_plan *plan = &image->plan;
  if (parts == CLA_HEAP_EVERYTHING) return read_part(h, image, 0, plan->metadata_bytes);
  return read_part(h, image, 0, plan->hints_begin);
}

cla_status cla__heap_image_take(cla_heap *h, cla_heap_parts parts, cla_heap_image *out) {
  out->words = NULL;
  out->plan = h->plan;
  out->plan.flags = cla__heap_flags(h, h->is_exact);
  out->payload16 = (uint32_t)(h->payload_at / CLA_HEAP_GRAIN);
  out->counts = h->counts;
  if (!h->memory) return CLA_OK;
  out->words = calloc(1, h->plan.metadata_bytes);
  if (!out->words)
    return cla__error(CLA_E_NOMEM, "heap: no host memory for %llu bytes of notes",
                      (unsigned long long)h->plan.metadata_bytes);
  const cla_status status = read_parts(h, parts, out);
  if (status) {
    free(out->words);
    out->words = NULL;
  } else if (h->device->info.simulated) {
    cla__heap_pristine(&out->plan, out->words);
  }
  return status;
}

/* A copy with the heap open again afterwards. */
static cla_status look(cla_heap *h, cla_heap_parts parts, cla_heap_image *out) {
  cla_status status = cla__heap_seal(h, true);
  if (status) return status;
  status = cla__heap_image_take(h, parts, out);
  cla__heap_unseal(h);
  return status;
}

cla_status cla__heap_look(cla_heap *h, cla_heap_image *out) { return look(h, CLA_HEAP_EVERYTHING, out); }

/* ---- Blocks ------------------------------------------------------------------------------------- */

static bool is_slab(uint32_t code) { return code != CLA_HEAP_FREE && code <= CLA_HEAP_CLASSES_MAX; }

/* The page that says what block this one belongs to: the head, for a page of a run. */
static uint32_t leading_page(const cla_heap_image *image, uint32_t p) {
  while (p > 0 && cla__page_code(cla__heap_page(image, p)) == CLA_HEAP_BODY) p--;
  return p;
}

cla_status cla__heap_read_bits(cla_heap *h, cla_heap_image *image, uint64_t at) {
  const cla__heap_plan *plan = &image->plan;
  const uint32_t p = leading_page(image, (uint32_t)(at >> plan->page_shift));
  return read_part(h, image, 4 * cla__heap_bits_at(plan, p), UINT64_C(4) << (plan->page_shift - CLA_HEAP_LEAST_SHIFT));
}

bool cla__heap_block_at(const cla_heap_image *image, uint64_t at, uint64_t *start, uint64_t *size) {
  const cla__heap_plan *plan = &image->plan;
  const uint64_t page = UINT64_C(1) << plan->page_shift;
  const uint32_t p = leading_page(image, (uint32_t)(at >> plan->page_shift));
  const uint32_t code = cla__page_code(cla__heap_page(image, p));
  *start = p * page;
  if (code == CLA_HEAP_HEAD) {
    *size = cla__heap_page_bits(image, p)[0] * page;
  } else if (is_slab(code)) {
    const uint32_t slot = (uint32_t)(at % page) / plan->size[code - 1];
    if (slot >= plan->capacity[code - 1] || !cla__heap_is_live(image, p, slot)) return false;
    *start += (uint64_t)slot * plan->size[code - 1];
    *size = plan->size[code - 1];
  } else {
    return false;
  }
  return at - *start < *size;
}

typedef struct walk {
  cla_heap *heap;
  const cla_heap_image *image;
  bool (*visit)(const cla_heap_block *, void *);
  void *arg;
} walk;

/* Strings of names live as long as the heap. */
static const char *kernel_of(cla_heap *h, uint32_t site) {
  const uint32_t number = site >> CLA_HEAP_LINE_BITS;
  pthread_mutex_lock(&h->lock);
  const char *name = number && number <= h->nkernels ? h->kernels[number - 1] : NULL;
  pthread_mutex_unlock(&h->lock);
  return name;
}

static bool visit_block(const walk *w, uint64_t offset, uint64_t size) {
  const cla__heap_plan *plan = &w->image->plan;
  cla_heap_block b = {.ref = cla__heap_ref(plan, offset), .offset = offset, .size = size};
  if (plan->sites) b.site = w->image->words[plan->sites + offset / CLA_HEAP_GRAIN];
  if (b.site) b.kernel = kernel_of(w->heap, b.site);
  b.line = b.site & CLA_HEAP_MAX_LINE;
  return w->visit(&b, w->arg);
}

static bool visit_page(const walk *w, uint32_t p) {
  const cla__heap_plan *plan = &w->image->plan;
  const uint32_t code = cla__page_code(cla__heap_page(w->image, p));
  const uint64_t start = (uint64_t)p << plan->page_shift;
  if (code == CLA_HEAP_HEAD)
    return visit_block(w, start, (uint64_t)cla__heap_page_bits(w->image, p)[0] << plan->page_shift);
  if (!is_slab(code)) return true;
  const uint64_t size = plan->size[code - 1];
  for (uint32_t slot = 0; slot < plan->capacity[code - 1]; slot++)
    if (cla__heap_is_live(w->image, p, slot) && !visit_block(w, start + slot * size, size)) return false;
  return true;
}

cla_status cla_heap_blocks(cla_heap *h, bool (*visit)(const cla_heap_block *, void *arg), void *arg) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!h || !visit) return cla__error(CLA_E_INVALID, "heap_blocks: no heap or no visitor");
  cla_heap_image image;
  status = look(h, CLA_HEAP_EVERYTHING, &image);
  if (status || !image.words) return status;
  const walk w = {h, &image, visit, arg};
  for (uint32_t p = 0; p < image.plan.npages && visit_page(&w, p); p++) {
  }
  free(image.words);
  return CLA_OK;
}

/* ---- Names for sites ---------------------------------------------------------------------------- */

enum { MOST_KERNELS = (1u << (32 - CLA_HEAP_LINE_BITS)) - 1 };

/* Locked. 0: there is no number left. */
static cla_status add_kernel(cla_heap *h, const char *name, uint32_t *number) {
  *number = 0;
  for (size_t i = 0; i < h->nkernels; i++)
    if (strcmp(h->kernels[i], name) == 0) {
      *number = (uint32_t)i + 1;
      return CLA_OK;
    }
  if (h->nkernels == MOST_KERNELS) return CLA_OK;
  char **grown = realloc(h->kernels, (h->nkernels + 1) * sizeof *grown);
  if (grown) h->kernels = grown;
  char *copy = grown ? strdup(name) : NULL;
  if (!copy) return cla__error(CLA_E_NOMEM, "no host memory for the name of a kernel");
  h->kernels[h->nkernels++] = copy;
  *number = (uint32_t)h->nkernels;
  return CLA_OK;
}

cla_status cla_heap_kernel_number(cla_heap *h, const char *kernel, uint32_t *number) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!h || !kernel || !number)
    return cla__error(CLA_E_INVALID, "heap_kernel_number: no heap, no name or no place for the result");
  pthread_mutex_lock(&h->lock);
  status = add_kernel(h, kernel, number);
  pthread_mutex_unlock(&h->lock);
  return status;
}

/* ---- Statistics --------------------------------------------------------------------------------- */

static uint64_t word64(const uint32_t *words) { return words[0] | (uint64_t)words[1] << 32; }

static cla_heap_fault_kind kind_of(uint32_t kind) {
  return kind >= CLA_HEAP_DOUBLE && kind <= CLA_HEAP_INTERIOR ? (cla_heap_fault_kind)kind : CLA_HEAP_FREE_FOREIGN;
}

static void read_faults(const cla_heap_image *image, cla_heap_stats *out) {
  const uint32_t used = image->words[CLA_HEAP_RECORDS_USED];
  out->nfaults = used < CLA_HEAP_RECORDS ? used : CLA_HEAP_RECORDS;
  for (unsigned i = 0; i < out->nfaults; i++) {
    const uint32_t *r = image->words + CLA_HEAP_RECORDED + i * CLA_HEAP_RECORD_WORDS;
    const uint64_t offset = word64(r + CLA_HEAP_RECORD_OFFSET);
    out->faults[i] = (cla_heap_fault){.kind = kind_of(r[CLA_HEAP_RECORD_KIND]),
                                      .pointer = word64(r + CLA_HEAP_RECORD_POINTER),
                                      .offset = offset < image->plan.payload_bytes ? offset : UINT64_MAX,
                                      .item = word64(r + CLA_HEAP_RECORD_ITEM)};
  }
}

static void read_counts(const cla_heap_image *image, cla_heap_stats *out) {
  const cla__heap_plan *plan = &image->plan;
  const uint32_t *words = image->words;
  const uint64_t refused = words[CLA_HEAP_REFUSED], huge = (uint64_t)words[CLA_HEAP_REFUSED_64K] << 16;
  out->failed = word64(words + CLA_HEAP_FAILED);
  out->largest_refused = huge > refused ? huge : refused;
  out->double_frees = word64(words + CLA_HEAP_DOUBLES);
  out->bad_frees = word64(words + CLA_HEAP_BADS);
  if (words[CLA_HEAP_FLAGS] & CLA_HEAP_COUNT) out->peak = (uint64_t)words[CLA_HEAP_PAGES_PEAK] << plan->page_shift;
  if (words[CLA_HEAP_FLAGS] & CLA_HEAP_PEAK) out->peak_live = (uint64_t)words[CLA_HEAP_PEAK16] * CLA_HEAP_GRAIN;
  if (!image->counts) return; /* counted now and then at most */
  for (uint32_t i = 0; i < CLA_HEAP_SHARDS; i++) {
    const uint32_t *shard = words + CLA_HEAP_SHARDS_AT + i * CLA_HEAP_SHARD_WORDS;
    out->mallocs += word64(shard + CLA_HEAP_SHARD_MALLOCS);
    out->frees += word64(shard + CLA_HEAP_SHARD_FREES);
  }
}

/* The largest slot in a slab that has room: what is left where no page is free. */
static uint64_t largest_slot(const cla_heap_image *image) {
  uint64_t largest = 0;
  for (uint32_t p = 0; p < image->plan.npages; p++) {
    const uint32_t word = cla__heap_page(image, p), code = cla__page_code(word);
    if (!is_slab(code) || (word & CLA_HEAP_USED) >= image->plan.capacity[code - 1]) continue;
    if (image->plan.size[code - 1] > largest) largest = image->plan.size[code - 1];
  }
  return largest;
}

void cla__heap_read_stats(const cla_heap_image *image, cla_heap_stats *out) {
  cla__heap_tally tally;
  cla__heap_tally_make(&image->plan, image->words, &tally);
  out->reserved = image->plan.total_bytes;
  out->used = tally.used_bytes;
  out->live_blocks = tally.live_blocks;
  out->waste = tally.waste_bytes;
  out->largest_free = tally.largest_free ? tally.largest_free : largest_slot(image);
  read_counts(image, out);
  read_faults(image, out);
}

cla_status cla_heap_get_stats(cla_heap *h, cla_heap_stats *out) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!h || !out) return cla__error(CLA_E_INVALID, "heap_get_stats: no heap or no place for the result");
  cla_heap_image image;
  status = look(h, CLA_HEAP_NOTES, &image);
  if (status) return status;
  memset(out, 0, sizeof *out);
  out->limit = out->largest_free = image.words ? image.plan.payload_bytes : cla_heap_limit(h);
  if (image.words) cla__heap_read_stats(&image, out);
  free(image.words);
  return CLA_OK;
}

/* ---- Peaks -------------------------------------------------------------------------------------- */

static cla_status put(cla_heap *h, uint32_t at, const uint32_t *words, size_t nwords) {
  const cl_int err = cla__enqueue_write(h->device->driver, h->device->service->queue, h->memory, CL_TRUE,
                                        4 * (size_t)at, 4 * nwords, words, 0, NULL, NULL);
  return err ? cla__driver_error(CLA_CALL_enqueue_write, err) : CLA_OK;
}

static uint32_t pages_in_use(const cla_heap_image *image) {
  uint32_t n = 0;
  for (uint32_t p = 0; p < image->plan.npages; p++) n += cla__page_code(cla__heap_page(image, p)) != CLA_HEAP_FREE;
  return n;
}

/* Sealed, quiet. Slabs without blocks become free pages, as they serve already: kernels leave them as they are, so that the
 * same pages would count for every run after the first. */
static cla_status free_empty_slabs(cla_heap *h, const cla_heap_image *image) {
  const uint32_t npages = image->plan.npages;
  bool is_changed = false;
  for (uint32_t p = 0; p < npages; p++) {
    uint32_t *word = image->words + cla__page_word(p);
    if (!is_slab(cla__page_code(*word)) || (*word & CLA_HEAP_USED)) continue;
    *word &= CLA_HEAP_TICKETS | CLA_HEAP_FREE_BIT;
    is_changed = true;
  }
  if (!is_changed) return CLA_OK;
  return put(h, cla__page_word(0), image->words + cla__page_word(0), cla__page_word(npages) - cla__page_word(0));
}

/* Sealed, quiet. The figures begin anew at what is in use, before the flags that make kernels count. */
static cla_status write_peaks(cla_heap *h, bool exact) {
  cla_heap_image image;
  cla_status status = cla__heap_image_take(h, CLA_HEAP_NOTES, &image);
  if (status) return status;
  status = free_empty_slabs(h, &image);
  cla__heap_tally tally;
  cla__heap_tally_make(&image.plan, image.words, &tally);
  const uint32_t live = (uint32_t)(tally.used_bytes / CLA_HEAP_GRAIN), pages = pages_in_use(&image);
  const uint32_t flags = cla__heap_flags(h, exact);
  if (!status) status = put(h, CLA_HEAP_USED16, (uint32_t[]){live, exact ? live : 0}, 2);
  if (!status) status = put(h, CLA_HEAP_PAGES_NOW, (uint32_t[]){pages, pages}, 2);
  if (!status) status = put(h, CLA_HEAP_FLAGS, &flags, 1);
  free(image.words);
  return status;
}

cla_status cla_heap_reset_peaks(cla_heap *h, bool exact) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!h) return cla__error(CLA_E_INVALID, "heap_reset_peaks: no heap");
  status = cla__heap_seal(h, true);
  if (status) return status;
  if (h->memory) status = write_peaks(h, exact);
  if (!status) h->is_exact = exact;
  cla__heap_unseal(h);
  return status;
}
