/* Sets up sweeps: checks layouts, spreads per-channel numbers over a period and folds sums back. The loops themselves
 * are in sweep_kernel.h, compiled per instruction set. */
#include "sweep.h"
#include "dense.h"
#include "base/half.h"
#include "base/memory.h"

#include <string.h>

static const char *refuse(const twi_call *call, bool flat) {
    bool channels_last = true, row_major = flat;
    for (int o = 0; o < call->operand_count; o++) {
        const twi_operand *operand = &call->operand[o];
        if (operand->store != TWI_REAL || operand->shape.rank < 2) continue;
        if (operand->dtype != call->operand[0].dtype) return "operands are of different types";
        channels_last = channels_last && twi_is_channels_last(operand);
        row_major = row_major && twi_is_row_major(operand);
    }
    return channels_last || row_major ? NULL : "operands are not dense in one order, channels innermost";
}

const char *twi_sweep_refuse(const twi_call *call, twi_isa isa) {
    (void)isa;
    return refuse(call, false);
}

const char *twi_sweep_refuse_flat(const twi_call *call, twi_isa isa) {
    (void)isa;
    return refuse(call, true);
}

/* At least 64: sums of few channels then wait less for each other. */
static int64_t period_of(int64_t channels) {
    int64_t a = channels, b = TWI_SWEEP_BLOCK;
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    int64_t period = channels / a * TWI_SWEEP_BLOCK;
    return period * ((64 + period - 1) / period);
}

tw_status twi_sweep_prepare(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    size_t bytes;
    TWI_TRY(twi_mul_size(&bytes, (size_t)period_of(main->operand[0].shape.dim[1]),
                         (TWI_SWEEP_COEFFICIENTS + TWI_SWEEP_SUMS) * sizeof(float), "batch norm or bias scratch"));
    site->worker_bytes = bytes;
    return TW_OK;
}

twi_sweep twi_sweep_over(const twi_call *call, bool bits, const twi_cpu_workspace *workspace) {
    const twi_operand *x = &call->operand[0];
    int64_t samples = x->shape.dim[0], elements = twi_shape_count_from(&x->shape, 1);
    /* Samples of whole bytes of bits follow each other without a gap. */
    bool joined = !bits || elements % 8 == 0;
    int64_t channels = x->shape.rank > 1 ? x->shape.dim[1] : 1;
    return (twi_sweep){.runs = joined ? 1 : samples,
                       .run = joined ? samples * elements : elements,
                       .dtype = (tw_dtype)x->dtype,
                       .channels = channels,
                       .period = period_of(channels),
                       .scratch = workspace->scratch};
}

void twi_sweep_spread(twi_sweep *sweep, int k, const float *row) {
    sweep->coef[k] = row;
    if (sweep->period == sweep->channels) return;
    float *spread = sweep->scratch + k * sweep->period;
    for (int64_t i = 0; i < sweep->period; i += sweep->channels)
        memcpy(spread + i, row, (size_t)sweep->channels * sizeof(float));
    sweep->coef[k] = spread;
}

void twi_sweep_spread_operand(twi_sweep *sweep, int k, const twi_operand *row) {
    if (twi_is_f32(row)) {
        twi_sweep_spread(sweep, k, row->data);
        return;
    }
    const uint16_t *halves = row->data;
    float *spread = sweep->scratch + k * sweep->period;
    for (int64_t i = 0; i < sweep->period; i++)
        spread[i] = twi_half_to_f32((tw_dtype)row->dtype, halves[i % sweep->channels]);
    sweep->coef[k] = spread;
}

void twi_sweep_begin_sums(twi_sweep *sweep, int count) {
    for (int k = 0; k < count; k++) {
        sweep->sum[k] = sweep->scratch + (TWI_SWEEP_COEFFICIENTS + k) * sweep->period;
        memset(sweep->sum[k], 0, (size_t)sweep->period * sizeof(float));
    }
}

void twi_sweep_fold(const twi_sweep *sweep, int k, float *row, bool first) {
    for (int64_t c = 0; c < sweep->channels; c++) {
        float sum = 0;
        for (int64_t i = c; i < sweep->period; i += sweep->channels) sum += sweep->sum[k][i];
        row[c] = first ? sum : row[c] + sum;
    }
}
