/* Errors: one message a thread, kept until the next failure; a mended failure leaves none.
 * Assumes nothing; allocates nothing. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/runtime.h"

static _Thread_local char last_message[sizeof(((cla_error_memo *)0)->text)];

const char *cla_last_error(void) { return last_message; }

const char *cla_status_name(cla_status status) {
  switch (status) {
  case CLA_OK: return "OK";
  case CLA_E_INVALID: return "INVALID";
  case CLA_E_FOREIGN: return "FOREIGN";
  case CLA_E_FREED: return "FREED";
  case CLA_E_BOUNDS: return "BOUNDS";
  case CLA_E_NOMEM: return "NOMEM";
  case CLA_E_LIMIT: return "LIMIT";
  case CLA_E_TOO_LARGE: return "TOO_LARGE";
  case CLA_E_NO_DEVICE: return "NO_DEVICE";
  case CLA_E_DRIVER: return "DRIVER";
  case CLA_E_CLOSED: return "CLOSED";
  case CLA_E_FORKED: return "FORKED";
  case CLA_E_BUSY: return "BUSY";
  case CLA_E_UNSUPPORTED: return "UNSUPPORTED";
  }
  return "UNKNOWN";
}

void cla__note(const char *format, ...) {
  char text[sizeof last_message]; /* the arguments may include the old message */
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  memcpy(last_message, text, sizeof text);
}

void cla__error_keep(cla_error_memo *memo) { memcpy(memo->text, last_message, sizeof memo->text); }

void cla__error_restore(const cla_error_memo *memo) { memcpy(last_message, memo->text, sizeof last_message); }

cla_status cla__forked(void) {
  return cla__error(CLA_E_FORKED, "this process was forked after OpenCL was opened; "
                                  "device memory stays with the parent: open devices after fork, or exec");
}

bool cla__is_out_of_memory(cl_int code) {
  return code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_RESOURCES || code == CL_OUT_OF_HOST_MEMORY;
}

void cla__note_driver(cla_call call, cl_int code) {
  if (cla__driver_forbidden()) cla__forked();
  else cla__note("%s failed: %s (%d)", cla__call_name(call), cla__cl_name(code), (int)code);
}

const char *cla__cl_name(cl_int code) {
  static const struct {
    cl_int code;
    const char *name;
  } names[] = {
#define ROW(name) {name, #name}
      ROW(CL_SUCCESS),
      ROW(CL_DEVICE_NOT_FOUND),
      ROW(CL_DEVICE_NOT_AVAILABLE),
      ROW(CL_COMPILER_NOT_AVAILABLE),
      ROW(CL_MEM_OBJECT_ALLOCATION_FAILURE),
      ROW(CL_OUT_OF_RESOURCES),
      ROW(CL_OUT_OF_HOST_MEMORY),
      ROW(CL_PROFILING_INFO_NOT_AVAILABLE),
      ROW(CL_MEM_COPY_OVERLAP),
      ROW(CL_BUILD_PROGRAM_FAILURE),
      ROW(CL_MAP_FAILURE),
      ROW(CL_MISALIGNED_SUB_BUFFER_OFFSET),
      ROW(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
      ROW(CL_COMPILE_PROGRAM_FAILURE),
      ROW(CL_LINKER_NOT_AVAILABLE),
      ROW(CL_LINK_PROGRAM_FAILURE),
      ROW(CL_KERNEL_ARG_INFO_NOT_AVAILABLE),
      ROW(CL_INVALID_VALUE),
      ROW(CL_INVALID_DEVICE_TYPE),
      ROW(CL_INVALID_PLATFORM),
      ROW(CL_INVALID_DEVICE),
      ROW(CL_INVALID_CONTEXT),
      ROW(CL_INVALID_QUEUE_PROPERTIES),
      ROW(CL_INVALID_COMMAND_QUEUE),
      ROW(CL_INVALID_HOST_PTR),
      ROW(CL_INVALID_MEM_OBJECT),
      ROW(CL_INVALID_BINARY),
      ROW(CL_INVALID_BUILD_OPTIONS),
      ROW(CL_INVALID_PROGRAM),
      ROW(CL_INVALID_PROGRAM_EXECUTABLE),
      ROW(CL_INVALID_KERNEL_NAME),
      ROW(CL_INVALID_KERNEL_DEFINITION),
      ROW(CL_INVALID_KERNEL),
      ROW(CL_INVALID_ARG_INDEX),
      ROW(CL_INVALID_ARG_VALUE),
      ROW(CL_INVALID_ARG_SIZE),
      ROW(CL_INVALID_KERNEL_ARGS),
      ROW(CL_INVALID_WORK_DIMENSION),
      ROW(CL_INVALID_WORK_GROUP_SIZE),
      ROW(CL_INVALID_WORK_ITEM_SIZE),
      ROW(CL_INVALID_GLOBAL_OFFSET),
      ROW(CL_INVALID_EVENT_WAIT_LIST),
      ROW(CL_INVALID_EVENT),
      ROW(CL_INVALID_OPERATION),
      ROW(CL_INVALID_BUFFER_SIZE),
      ROW(CL_INVALID_GLOBAL_WORK_SIZE),
      ROW(CL_INVALID_PROPERTY),
      {-1001, "CL_PLATFORM_NOT_FOUND_KHR"},
#undef ROW
  };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (names[i].code == code) return names[i].name;
  return "unknown OpenCL error";
}
