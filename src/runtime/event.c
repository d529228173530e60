/* Events given out by commands, for callers that must not care which driver made them. */
#include "runtime/runtime.h"

cla_status cla_event_wait(cla_device *d, cl_event event) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!d || !event) return cla__error(CLA_E_INVALID, "event_wait: no device or no event");
  cl_int err = cla__wait_events(d->driver, 1, &event);
  return err ? cla__driver_error(CLA_CALL_wait_events, err) : CLA_OK;
}

cla_status cla_event_query(cla_device *d, cl_event event, bool *complete) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!d || !event || !complete) return cla__error(CLA_E_INVALID, "event_query: no device or no event");
  cl_int state = CL_QUEUED;
  cl_int err = cla__get_event_info(d->driver, event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
  if (err) return cla__driver_error(CLA_CALL_get_event_info, err);
  *complete = state <= CL_COMPLETE;
  return CLA_OK;
}

void cla_event_release(cla_device *d, cl_event event) {
  if (d && event) cla__release_event(d->driver, event);
}
