/* Built after heap_layout.h; run once with one item when a heap is made: moves the payload up to a page's alignment. */
kernel void cla__heap_settle(global uint *heap) {
  const ulong page = 1ul << heap[CLA_HEAP_PAGE_SHIFT];
  const ulong payload = (ulong)heap + ((ulong)heap[CLA_HEAP_PAYLOAD16] << 4);
  heap[CLA_HEAP_PAYLOAD16] += (uint)((0ul - payload & (page - 1)) >> 4);
}
