/* The learning rate of the update under way, from the number u = 0, 1, .. of updates committed before it.
 *
 *   warm-up, u < warmup:   base * (u + 1) / warmup: the first update already learns, the last of them has base
 *   constant:              base
 *   step:                  base * factor^floor(u / every), u counted from the start, warm-up included
 *   cosine:                minimum + (base - minimum) * (1 + cos(pi * t)) / 2
 *       after a warm-up    t = (u - warmup + 1) / (total - warmup): base is not used twice, the last update has minimum
 *       without            t = u / total: the first update has base
 *   From u = total on, cosine stays at its last value. No rate is above base, and after the peak none rises.
 *
 * u counts committed updates, so a refused one does not use up a place in the schedule.
 * Source: Loshchilov, Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017, without restarts. */
#include "backend/attrs.h"
#include "kernels.h"

#include <math.h>

/* ---- specification: always in double, one number a step ---- */

static double constant(const twi_schedule_attrs *s, int64_t u) {
    (void)u;
    return s->base;
}

static double drops(const twi_schedule_attrs *s, int64_t u) {
    return s->every > 0 ? s->base * pow(s->factor, (double)(u / s->every)) : s->base;
}

static double cosine(const twi_schedule_attrs *s, int64_t u) {
    const double pi = 3.14159265358979323846;
    int64_t last = s->total - 1, length = s->total - s->warmup;
    if (length <= 0) return s->base; /* warm-up was all there is */
    int64_t done = (u < last ? u : last) - s->warmup + (s->warmup > 0);
    /* Counted down from base, so that nothing rounds above it. */
    return s->base - (s->base - s->minimum) * ((1 - cos(pi * (double)done / (double)length)) / 2);
}

static double (*const after_warmup[])(const twi_schedule_attrs *, int64_t) = {constant, drops, cosine};

static void learning_rate_run(const twi_call *call) {
    const twi_schedule_attrs *s = call->attrs;
    int64_t u = (int64_t)call->control->update;
    call->control->learning_rate =
        u < s->warmup ? s->base * ((double)(u + 1) / (double)s->warmup) : after_warmup[s->kind](s, u);
}

/* ---- kernels ---- */

static const twi_kernel learning_rate = {
    .name = "schedule.learning_rate",
    .split = TWI_AT_ONCE,
    .control = TWI_CONTROL_READ | TWI_CONTROL_WRITE,
    .run = learning_rate_run,
};

/* ---- record: appended to a program by its update pass, never a node of a graph ---- */

static const twi_kernel *const kernels[] = {&learning_rate, NULL};

const twi_op TWI_NAME(twi_op_schedule) = {
    .name = "schedule",
    .formula = "learning_rate = f(update): linear warm-up, then constant, step or cosine",
    .attr_size = sizeof(twi_schedule_attrs),
    .kernels = kernels,
};
