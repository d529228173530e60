/* What program.c, kernel.c, signature.c, typedefs.c and argument.c share: programs, kernels, parameters.
 *
 * A program lists its open kernels, and closes them before it lets go of its cl_program: a driver
 * that is told to release the program first keeps both (inducer/pyopencl#300). A kernel's user
 * value keeps its program reachable. */
#ifndef CLA_LUA_KERNEL_H
#define CLA_LUA_KERNEL_H

#include "heap/heap.h"
#include "lua/binding.h"

extern const char CLA_LUA_LOCALMEM[]; /* a type, as those of binding.h */

typedef struct lua_kernel lua_kernel;

typedef struct lua_program {
  cl_program program;  /* NULL: closed */
  cla_device *device;  /* retained while open */
  lua_kernel *kernels; /* open ones, linked by next */
} lua_program;         /* user values: 1 name -> kernel, or false before its first use; 2 the names; 3 source and 4
                        * options as built */

typedef struct lua_localmem { /* room in local memory, what cl.localmem() gives */
  size_t nbytes;              /* > 0 */
} lua_localmem;

typedef enum cla_arg_kind {
  CLA_ARG_INT,        /* two's complement, nbytes wide */
  CLA_ARG_UINT,       /* the same without a sign */
  CLA_ARG_FLOAT,      /* half, float or double by width */
  CLA_ARG_BOOL,       /* one byte */
  CLA_ARG_BYTES,      /* a struct or a name of the source's own: sent as the string has it */
  CLA_ARG_BUFFER,     /* pointer to global or constant memory */
  CLA_ARG_LOCAL,      /* pointer to local memory: a size */
  CLA_ARG_HEAP,       /* CLA_HEAP: dev.heap */
  CLA_ARG_UNSUPPORTED /* image, sampler, pipe, queue, event */
} cla_arg_kind;

enum { CLA_ARG_MOST = 128 /* bytes of the widest built-in type, double16 */ };

/* A parameter of a kernel, and its argument in the launch being prepared. */
typedef struct cla_arg {
  cla_arg_kind kind;
  unsigned lanes;                    /* of a vector; 1: a scalar */
  size_t element;                    /* bytes of a lane */
  size_t nbytes;                     /* lanes * element, 3 lanes as 4; of BYTES: 0 when unknown */
  const char *name;                  /* strings of Lua's, kept by the user value of the array */
  const char *type;                  /* "float4", "pair", "float*" */
  const char *qualifier;             /* "global const", "private" */
  const char *declared;              /* "global const float *": what messages show */
  bool is_set;                       /* values and local sizes: the driver has this one already */
  size_t local_nbytes;               /* LOCAL */
  const void *bytes;                 /* BYTES: inside a string of the launch's table */
  size_t bytes_size;                 /* BYTES */
  const lua_buffer *view;            /* BUFFER; NULL: a null pointer */
  bool is_given;                     /* HEAP; false: a null pointer */
  unsigned char value[CLA_ARG_MOST]; /* the others */
} cla_arg;

struct lua_kernel {
  cl_kernel kernel;     /* NULL: closed */
  lua_program *program; /* open while the kernel is */
  lua_kernel *next;     /* of the same program */
  const char *name;     /* kept by user value 3 */
  size_t max_group;     /* work-items */
  unsigned nargs;
  unsigned nhidden;          /* parameters behind those, bound by the launch: 0, 1: the heap, 2: and the site */
  cla_heap *heap;            /* the device's, when a parameter takes it; else NULL */
  cl_uint site;              /* for the hidden one */
  uint64_t readings;         /* of arguments into args: tells whether they are still those of this launch */
  cla_arg *args;             /* user value 2 */
  cla_pin *pins;             /* behind args: room for one each */
  const void *buffer_type;   /* metatables, for quick checks */
  const void *localmem_type; /* likewise */
};                           /* user values: 1 the program, 2 args and pins, 3 the name */

/* ---- build_log.c ---- */
/* What the library made of a source before the compiler got it. */
typedef struct cla_lua_input {
  bool has_heap, is_rewritten;
  size_t nlines_before; /* lines that it put in front */
} cla_lua_input;
/* Pushes what the compiler said, with a hint where it speaks of the heap; "": nothing. */
void cla_lua_pushlog(lua_State *L, const lua_program *p, const cla_lua_input *input);
void cla_lua_renumber(char *log, size_t nlines_before); /* a log of NVIDIA's, in place */

/* ---- kernel.c ---- */
/* Pushes a new kernel of the open program at index `program`; raises when there is none such. */
void cla_lua_newkernel(lua_State *L, int program, const char *name);
void cla_lua_closekernel(lua_kernel *k);

/* ---- signature.c ---- */
/* Reads the parameters of the kernel at the stack's top into k->args. May raise for want of memory only. */
cla_status cla_lua_signature(lua_State *L, lua_kernel *k);
/* For the name of a built-in type: what it takes. Any other name changes nothing. */
void cla_lua_findtype(const char *name, cla_arg *a);
/* Pushes "kernel saxpy(float a, global const float *x)". */
void cla_lua_pushsignature(lua_State *L, const lua_kernel *k);
/* Pushes the list of {name =, type =, qualifier =}. */
void cla_lua_pushargs(lua_State *L, const lua_kernel *k);

/* ---- typedefs.c ---- */
/* Finds out about parameters with type names of the source's own. The program object is at the index `program`. */
void cla_lua_typedefs(lua_State *L, lua_kernel *k, int program);

/* ---- argument.c ---- */
/* Converts the value at the stack's top for parameter i, from 0; raises when it does not fit. No Lua code runs, and no
 * collection but before raising. */
void cla_lua_argument(lua_State *L, lua_kernel *k, unsigned i);
/* Raises "saxpy: argument 1 'a' (float): " and the message, in lua_pushfstring's format. */
int cla_lua_argerror(lua_State *L, const lua_kernel *k, unsigned i, const char *format, ...);
/* Pushes what the value at `index` is, for "got ...": a number itself, else the type. */
const char *cla_lua_pushgiven(lua_State *L, int index);

#endif
