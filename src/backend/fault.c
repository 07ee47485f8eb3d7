/* The fault word of a run: why it refused. Reading it, wording it and clearing it are left to the runner. */
#include "step.h"

void twi_fault_raise(twi_control *control, tw_status code, int32_t node, int64_t sample, double value) {
    twi_fault *fault = &control->fault;
    /* Held for a few instructions, and only when something has gone wrong: spinning is enough. */
    while (atomic_exchange_explicit(&fault->lock, 1, memory_order_acquire)) continue;
    bool first =
        !twi_fault_raised(control) || sample < fault->sample || (sample == fault->sample && node < fault->node);
    if (first) {
        fault->node = node;
        fault->sample = sample;
        fault->value = value;
        atomic_store_explicit(&fault->code, (int32_t)code, memory_order_release);
    }
    atomic_store_explicit(&fault->lock, 0, memory_order_release);
}
