/* The heap in OpenCL C, inside the library: heap_layout.h and heap.cl as they stand in this folder, one after the other.
 *
 * The assembler takes the files in, found as headers are, from src: no step before compiling, none that a package manager
 * would have to know. */
#include "heap/heap.h"

__asm__(".pushsection .rodata\n"
        ".globl cla__heap_text\n"
        ".hidden cla__heap_text\n"
        "cla__heap_text:\n"
        ".incbin \"heap/heap_layout.h\"\n"
        ".incbin \"heap/heap.cl\"\n"
        ".byte 0\n"
        ".popsection\n");

extern const char cla__heap_text[] __attribute__((visibility("hidden")));

const char *cla_heap_source(void) { return cla__heap_text; }
