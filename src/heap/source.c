/* The heap in OpenCL C, inside the library: the files of this folder as they stand, one after the other.
 *
 * The assembler takes them in, found as headers are, from src: no step before compiling, none that a package manager would
 * have to know. */
#include "heap/heap.h"

#define TEXT_BEGINS(name) ".globl " #name "\n.hidden " #name "\n" #name ":\n"
#define TEXT_OF(file)     ".incbin \"heap/" file "\"\n"
#define TEXT_ENDS         ".byte 0\n"

/* clang-format off */
__asm__(".pushsection .rodata\n"
        TEXT_BEGINS(cla__heap_text) TEXT_OF("heap_layout.h") TEXT_OF("heap.cl") TEXT_ENDS
        TEXT_BEGINS(cla__heap_settle_text) TEXT_OF("heap_layout.h") TEXT_OF("heap_settle.cl") TEXT_ENDS
        TEXT_BEGINS(cla__heap_service_text) TEXT_OF("heap_layout.h") TEXT_OF("heap.cl") TEXT_OF("heap_host.cl") TEXT_ENDS
        ".popsection\n");
/* clang-format on */

extern const char cla__heap_text[] __attribute__((visibility("hidden")));

const char *cla_heap_source(void) { return cla__heap_text; }
