/* The same tests where one item of a crowd looks for the next page and the others give it a moment, as on NVIDIA in a
 * small heap: this build of the kernels does it everywhere. */
#define OPTIONS "-cl-std=CL1.2 -D CLA_HEAP_TEST_CROWDS"
#define CHOSEN  "stories two_ends churn mixed_fill crowd crowded_runs"
#define NAME    "heap_crowds"

#include "heap_device.c" /* NOLINT(bugprone-suspicious-include): one program, built in two ways */
