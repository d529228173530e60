/* Gates: user events that hold streams still until the host opens them. A gate that is let go of is opened
 * first, so no queue is ever left hanging. Streams keep notes of the gates that hold them; a note outlives the
 * handle as a few bytes that say "open". */
#include <stdlib.h>

#include "runtime/runtime.h"

cla_status cla_gate_create(cla_device *d, cla_gate **out) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!d || !out) return cla__error(CLA_E_INVALID, "gate: no device");
  cla_gate *g = calloc(1, sizeof *g);
  if (!g) return cla__error(CLA_E_NOMEM, "no host memory for a gate");
  cl_int err = CL_SUCCESS;
  g->event = cla__create_user_event(d->driver, d->context, &err);
  if (!g->event) {
    free(g);
    return cla__driver_error(CLA_CALL_create_user_event, err);
  }
  atomic_init(&g->refs, 1);
  g->device = d;
  g->thread = pthread_self();
  cla_device_retain(d);
  *out = g;
  return CLA_OK;
}

void cla_gate_set_exclusive(cla_gate *g, bool exclusive) { atomic_store(&g->is_exclusive, exclusive); }

cla_status cla_gate_open(cla_gate *g) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!g) return cla__error(CLA_E_INVALID, "gate_open: no gate");
  if (atomic_exchange(&g->is_open, true)) return CLA_OK;
  cl_int err = cla__set_user_event(g->device->driver, g->event, CL_COMPLETE);
  return err ? cla__driver_error(CLA_CALL_set_user_event, err) : CLA_OK;
}

void cla__gate_hold(cla_gate *g) { atomic_fetch_add(&g->refs, 1); }

void cla__gate_unhold(cla_gate *g) {
  if (atomic_fetch_sub(&g->refs, 1) == 1) free(g);
}

void cla_gate_release(cla_gate *g) {
  if (!g || cla__driver_forbidden()) return;
  cla_error_memo memo;
  cla__error_keep(&memo);
  cla_gate_open(g);
  cla__error_restore(&memo);
  cla__release_event(g->device->driver, g->event);
  cla_device_release(g->device);
  cla__gate_unhold(g);
}
