/* The heap in OpenCL C, inside the library: the files of `kernels` as they stand, one after the other, lowest first.
 *
 * The assembler takes them in, found as headers are, from src: no step before compiling, none that a package manager would
 * have to know. */
#include "heap/heap.h"

#define TEXT_BEGINS(name) ".globl " #name "\n.hidden " #name "\n" #name ":\n"
#define TEXT_OF(file)     ".incbin \"heap/" file "\"\n"
#define TEXT_ENDS         ".byte 0\n"

/* clang-format off */
#define PROGRAMS_GET \
  TEXT_OF("heap_layout.h") TEXT_OF("kernels/begin.cl") TEXT_OF("kernels/warp.cl") TEXT_OF("kernels/items.cl") \
  TEXT_OF("kernels/words.cl") TEXT_OF("kernels/maps.cl") TEXT_OF("kernels/pages.cl") TEXT_OF("kernels/reserve.cl") \
  TEXT_OF("kernels/slots.cl") TEXT_OF("kernels/runs.cl") TEXT_OF("kernels/free.cl") TEXT_OF("kernels/calls.cl")

__asm__(".pushsection .rodata\n"
        TEXT_BEGINS(cla__heap_text) PROGRAMS_GET TEXT_ENDS
        TEXT_BEGINS(cla__heap_settle_text) TEXT_OF("heap_layout.h") TEXT_OF("kernels/settle.cl") TEXT_ENDS
        TEXT_BEGINS(cla__heap_service_text) PROGRAMS_GET TEXT_OF("kernels/host.cl") TEXT_ENDS
        ".popsection\n");
/* clang-format on */

extern const char cla__heap_text[] __attribute__((visibility("hidden")));

const char *cla_heap_source(void) { return cla__heap_text; }
