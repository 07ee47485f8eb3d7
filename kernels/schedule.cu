/* The scalars that a run starts from: the learning rate of its update and the gradient of its losses. Formulas:
 * src/ops/op_schedule.c, op_loss_seed.c. */
#include "backend/attrs.h"
#include "entries.h"
#include "portable.h"
#include <talweg/optim.h>

#include <math.h>

namespace {

__device__ double after_warmup(const twi_schedule_attrs &s, int64_t u) {
    const double pi = 3.14159265358979323846;
    if (s.kind == TW_SCHEDULE_STEP && s.every > 0) return s.base * pow(s.factor, (double)(u / s.every));
    int64_t last = s.total - 1, length = s.total - s.warmup;
    if (s.kind != TW_SCHEDULE_COSINE || length <= 0) return s.base;
    int64_t done = (u < last ? u : last) - s.warmup + (s.warmup > 0);
    return s.base - (s.base - s.minimum) * ((1 - cos(pi * (double)done / (double)length)) / 2);
}

__global__ void learning_rate(twi_schedule_attrs s, twi_control *control) {
    int64_t u = (int64_t)control->update;
    control->learning_rate = u < s.warmup ? s.base * ((double)(u + 1) / (double)s.warmup) : after_warmup(s, u);
}

__global__ void loss_seed(twi_loss_seed_attrs s, const twi_control *control, float *seed) {
    seed[0] = (float)(control->sample_weight * s.weight * (s.scaled ? control->guard.scale : 1));
}

cudaError_t run_learning_rate(const twi_call *call, const twk_launch *launch) {
    return TWC_LAUNCH(learning_rate, 1, 1, 0, launch->stream, *(const twi_schedule_attrs *)call->attrs, call->control);
}

cudaError_t run_loss_seed(const twi_call *call, const twk_launch *launch) {
    return TWC_LAUNCH(loss_seed, 1, 1, 0, launch->stream, *(const twi_loss_seed_attrs *)call->attrs,
                      call->control, (float *)call->operand[0].data);
}

} // namespace

extern "C" const twk_entry twk_schedule_entries[] = {
    {"schedule.learning_rate", NULL, NULL, run_learning_rate},
    {"loss_seed.write", NULL, NULL, run_loss_seed},
    {},
};
