/* Dense layers, and any convolution, by products of matrices (gemm.h, conv_patches.h): which calls are taken, and what
 * they become. */
#include "conv_patches.h"
#include "dense.h"
#include "gemm.h"
#include "halves.h"
#include "parts.h"
#include "backend/attrs.h"
#include "base/half.h"
#include "base/memory.h"
#include "point.h"
#include "sweep.h"

#include <string.h>

const twi_gemm *twi_gemm_for(twi_isa isa) {
#if defined(__x86_64__)
    static const twi_gemm *const versions[] = {&twi_gemm_baseline, &twi_gemm_avx2, &twi_gemm_avx512};
    return versions[isa < TWI_ISA_AVX512 ? isa : TWI_ISA_AVX512];
#else
    (void)isa;
    return &twi_gemm_baseline;
#endif
}

/* ---- dense layers ---- */

static const char *refuse_dense(const twi_call *call, twi_isa isa) {
    (void)isa;
    for (int i = 0; i < call->operand_count; i++) {
        if (!twi_is_f32(&call->operand[i])) return "an operand is not f32";
        if (!twi_is_row_major(&call->operand[i])) return "an operand is not row-major";
    }
    return NULL;
}

/* A product of m rows, each of sums of k terms; a range is a part of the rows. */
static tw_status want_outer(twi_cpu_site *site, int64_t m, int64_t k) {
    site->worker_bytes = twi_gemm_outer_scratch_of(m, k) * sizeof(float);
    return TW_OK;
}
static tw_status prepare_data(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail; /* is shorter */
    return want_outer(site, main->operand[0].shape.dim[0], main->operand[1].shape.dim[0]);
}
static tw_status prepare_weights(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    return want_outer(site, main->operand[2].shape.dim[0], main->operand[0].shape.dim[0]);
}

/* Rows begin .. end-1 of w, which are as many features of y. */
static void run_dense_rows(const twi_cpu_site *site, const twi_call *call, int64_t begin, int64_t end,
                           const float *bias, bool relu) {
    const twi_operand *x = &call->operand[0], *w = &call->operand[1], *y = &call->operand[call->operand_count - 1];
    int64_t samples = x->shape.dim[0], in = x->shape.dim[1], out = w->shape.dim[0];
    twi_gemm_for(site->isa)->dot(samples, end - begin, in, x->data, in, (const float *)w->data + begin * in, in,
                                 bias ? bias + begin : NULL, relu, (float *)y->data + begin, out);
}
static void run_dense_forward(const twi_cpu_site *site, const twi_call *call, const float *bias, bool relu) {
    run_dense_rows(site, call, 0, call->operand[1].shape.dim[0], bias, relu);
}
static void dense_forward(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    run_dense_forward(site, call, NULL, false);
}
static void dense_forward_bias(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    run_dense_forward(site, call, call->operand[2].data, false);
}
static void dense_forward_bias_relu(const twi_cpu_site *site, const twi_call *call,
                                    const twi_cpu_workspace *workspace) {
    (void)workspace;
    run_dense_forward(site, call, call->operand[2].data, true);
}

static void dense_rows(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    run_dense_rows(site, call, call->begin, call->end, NULL, false);
}
static void dense_rows_bias(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    run_dense_rows(site, call, call->begin, call->end, call->operand[2].data, false);
}
static void dense_rows_bias_relu(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    run_dense_rows(site, call, call->begin, call->end, call->operand[2].data, true);
}

/* Behind each chunk's product, while it is in cache. x, w, b, y, and what the gelu reads if somebody wants it. */
static void dense_forward_bias_gelu(const twi_cpu_site *site, const twi_call *call,
                                    const twi_cpu_workspace *workspace) {
    const twi_operand *y = &call->operand[3], *kept = &call->operand[4];
    twi_call part = *call;
    part.operand_count = 4;
    part.operand[3] = kept->data ? *kept : *y;
    run_dense_forward(site, &part, call->operand[2].data, false);
    part.operand_count = 2;
    part.operand[0] = part.operand[3];
    part.operand[1] = *y;
    TWI_FOR_ISA(site->isa, point)->gelu_forward_tanh(&part, workspace);
}

static void dense_backward_data(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_operand *dy = &call->operand[0], *w = &call->operand[1], *dx = &call->operand[2];
    int64_t samples = dy->shape.dim[0], out = w->shape.dim[0], in = w->shape.dim[1];
    twi_gemm_for(site->isa)->outer(samples, in, out, dy->data, out, 1, w->data, in, false, dx->data, in,
                                   workspace->scratch);
}

/* The bias and gelu behind which the layer stands: of dy, w, z, g, db what bias_gelu.backward takes, g in place of its
 * dy. */
static twi_call bias_gelu_part(const twi_call *call) {
    const twi_operand *g = &call->operand[3];
    twi_call part = *call;
    part.operand_count = 4;
    part.operand[0] = *g;
    part.operand[1] = call->operand[2];
    part.operand[2] = *g;
    part.operand[3] = call->operand[4];
    return part;
}

static tw_status prepare_data_gelu(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    const twi_call part = bias_gelu_part(main);
    TWI_TRY(twi_sweep_prepare(site, &part, tail));
    size_t product = twi_gemm_outer_scratch() * sizeof(float); /* one after the other */
    if (site->worker_bytes < product) site->worker_bytes = product;
    return TW_OK;
}

static void dense_backward_data_gelu(const twi_cpu_site *site, const twi_call *call,
                                     const twi_cpu_workspace *workspace) {
    twi_call part = *call;
    part.operand[2] = call->operand[3];
    dense_backward_data(site, &part, workspace);
    part = bias_gelu_part(call);
    TWI_FOR_ISA(site->isa, point)->bias_gelu_backward(&part, workspace);
}

/* A range of rows of dw, from the whole batch. */
static void dense_backward_weights(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_operand *x = &call->operand[0], *dy = &call->operand[1], *dw = &call->operand[2];
    int64_t samples = x->shape.dim[0], out = dw->shape.dim[0], in = dw->shape.dim[1];
    twi_gemm_for(site->isa)->outer(call->end - call->begin, in, samples, (const float *)dy->data + call->begin, 1, out,
                                   x->data, in, false, (float *)dw->data + call->begin * in, in, workspace->scratch);
}

static const char *refuse_merged(const twi_call *call, twi_isa isa) {
    if (call->operand[0].shape.dim[0] > TWI_GEMM_DEPTH) return "sums over so many samples are made in parts";
    return refuse_dense(call, isa);
}

/* And the update of those rows. */
static void dense_backward_weights_sgd(const twi_cpu_site *site, const twi_call *call,
                                       const twi_cpu_workspace *workspace) {
    const twi_operand *x = &call->operand[0], *dy = &call->operand[1], *w = &call->operand[2];
    const twi_update_attrs *attrs = call->attrs;
    const int64_t samples = x->shape.dim[0], out = w->shape.dim[0], in = w->shape.dim[1];
    float *momentum = call->operand[3].data;
    if (twi_run_refused(call->control)) return;
    const twi_gemm_update update = {.rate = (float)call->control->learning_rate,
                                    .decay = attrs->segment[0].weight_decay,
                                    .momentum = attrs->momentum,
                                    .factor = (float)call->control->guard.factor,
                                    .nesterov = attrs->nesterov,
                                    .buffer = momentum ? momentum + call->begin * in : NULL};
    twi_gemm_for(site->isa)->outer_update(call->end - call->begin, in, samples, (const float *)dy->data + call->begin,
                                          1, out, x->data, in, &update, (float *)w->data + call->begin * in, in,
                                          workspace->scratch);
}

/* And as many numbers of db, each the sum of the column of dy that its row of dw was made with. */
static void sum_columns(const twi_call *call) {
    const twi_operand *dy = &call->operand[1];
    int64_t samples = dy->shape.dim[0], out = dy->shape.dim[1], count = call->end - call->begin;
    const float *from = (const float *)dy->data + call->begin;
    float *restrict db = (float *)call->operand[3].data + call->begin;
    memset(db, 0, (size_t)count * sizeof *db);
    for (int64_t n = 0; n < samples; n++, from += out)
        for (int64_t o = 0; o < count; o++) db[o] += from[o];
}
static void dense_backward_weights_bias(const twi_cpu_site *site, const twi_call *call,
                                        const twi_cpu_workspace *workspace) {
    dense_backward_weights(site, call, workspace);
    sum_columns(call);
}

/* ---- and what the guard keeps of each of those rows ---- */

/* Of rows begin .. end-1 of the gradient; they are the last operand. */
static float *blocks_of(const twi_call *call) {
    return (float *)call->operand[call->operand_count - 1].data + twi_measure_first_block(call->attrs) + call->begin;
}
static float block_of(const twi_cpu_site *site, float squares, const float *row, int64_t count) {
    return twi_squares_hold(squares) ? twi_block_of_squares(squares)
                                     : TWI_FOR_ISA(site->isa, point)->guard_block(row, count, 0);
}

/* Gradients that are rounded to halves are measured as that. */
static const char *refuse_measured(const twi_call *call, twi_isa isa) {
    const twi_measure_attrs *attrs = call->attrs;
    return attrs->dtype == TW_F32 ? refuse_dense(call, isa) : "the gradient is kept in half precision";
}
static tw_status prepare_measured(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    site->worker_bytes =
        twi_gemm_squares_scratch_of(main->operand[2].shape.dim[0], main->operand[0].shape.dim[0]) * sizeof(float);
    return TW_OK;
}
static void dense_backward_weights_measure(const twi_cpu_site *site, const twi_call *call,
                                           const twi_cpu_workspace *workspace) {
    const twi_operand *x = &call->operand[0], *dy = &call->operand[1], *dw = &call->operand[2];
    const int64_t samples = x->shape.dim[0], out = dw->shape.dim[0], in = dw->shape.dim[1];
    float *row = (float *)dw->data + call->begin * in, *block = blocks_of(call);
    twi_gemm_for(site->isa)->outer_squares(call->end - call->begin, in, samples, (const float *)dy->data + call->begin,
                                           1, out, x->data, in, row, in, block, workspace->scratch);
    for (int64_t o = call->begin; o < call->end; o++, block++, row += in) *block = block_of(site, *block, row, in);
}
static void dense_backward_weights_bias_measure(const twi_cpu_site *site, const twi_call *call,
                                                const twi_cpu_workspace *workspace) {
    dense_backward_weights_measure(site, call, workspace);
    sum_columns(call);
}

/* ---- gradients of dense layers' weights, in halves ---- */

/* Rows of dw that are worked on at once: their sums are f32. */
enum { HALF_ROWS = 32 };

static const char *refuse_dense_halves(const twi_call *call, twi_isa isa) {
    (void)isa;
    for (int i = 0; i < 2; i++)
        if (!twi_cpu_is_half(call, i)) return "x and dy are no halves";
    if (call->operand[0].dtype != call->operand[1].dtype) return "operands are of different types";
    for (int i = 0; i < call->operand_count; i++)
        if (!twi_is_row_major(&call->operand[i])) return "an operand is not row-major";
    return NULL;
}

static tw_status prepare_weights_halves(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    const int64_t samples = main->operand[0].shape.dim[0], in = main->operand[0].shape.dim[1];
    size_t sums, product = twi_gemm_outer_scratch_of(HALF_ROWS, samples) * sizeof(float);
    TWI_TRY(twi_mul_size(&sums, (size_t)in * HALF_ROWS, sizeof(float), "sums of a dense layer's gradient"));
    return twi_add_size(&site->worker_bytes, sums, product, "scratch of a dense layer");
}

/* Squares of a row that are summed up in f32, which is exact as long as they are few. */
enum { SQUARES = 1024 };

/* One row of sums, rounded where the gradient is kept so. Returns the sum of the squares of what it has become. */
static float keep_row(const twi_cpu_site *site, const twi_operand *dw, int64_t row, float *sums, int64_t in) {
    const twi_halves_loops *halves = twi_halves_for(site->isa);
    const tw_dtype dtype = (tw_dtype)dw->dtype;
    uint16_t *to = dtype == TW_F32 ? NULL : (uint16_t *)dw->data + row * in;
    double squares = 0;
    for (int64_t i = 0; i < in; i += SQUARES) {
        const int64_t count = twi_smaller(SQUARES, in - i);
        squares += (double)(to ? halves->narrow_squares(to + i, sums + i, dtype, count)
                               : TWI_FOR_ISA(site->isa, point)->guard_sum(sums + i, count));
    }
    if (to && !twi_squares_hold((float)squares)) halves->widen(sums, to, dtype, in); /* somebody will look at them */
    return (float)squares;
}

/* block: of the first row; NULL: the guard looks later. */
static void run_weights_halves(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace,
                               float *block) {
    const twi_operand *x = &call->operand[0], *dy = &call->operand[1], *dw = &call->operand[2];
    const int64_t samples = x->shape.dim[0], out = dw->shape.dim[0], in = dw->shape.dim[1];
    const bool narrow = twi_cpu_is_half(call, 2);
    float *sums = workspace->scratch, *product = sums + in * HALF_ROWS;
    for (int64_t row = call->begin, rows; row < call->end; row += rows) {
        rows = twi_smaller(HALF_ROWS, call->end - row);
        float *to = narrow ? sums : (float *)dw->data + row * in;
        twi_gemm_for(site->isa)->outer_halves((tw_dtype)x->dtype, rows, in, samples, (const uint16_t *)dy->data + row,
                                              1, out, x->data, in, false, to, in, product);
        for (int64_t r = 0; block && r < rows; r++, to += in, block++)
            *block = block_of(site, keep_row(site, dw, row + r, to, in), to, in);
        if (narrow && !block)
            twi_halves_for(site->isa)->narrow((uint16_t *)dw->data + row * in, sums, (tw_dtype)dw->dtype, rows * in);
    }
}
static void dense_backward_weights_halves(const twi_cpu_site *site, const twi_call *call,
                                          const twi_cpu_workspace *workspace) {
    run_weights_halves(site, call, workspace, NULL);
}

static void sum_columns_halves(const twi_cpu_site *site, const twi_call *call) {
    const twi_operand *dy = &call->operand[1];
    const int64_t samples = dy->shape.dim[0], out = dy->shape.dim[1];
    float part[HALF_ROWS];
    for (int64_t row = call->begin, rows; row < call->end; row += rows) {
        float *restrict db = (float *)call->operand[3].data + row;
        rows = twi_smaller(HALF_ROWS, call->end - row);
        memset(db, 0, (size_t)rows * sizeof *db);
        for (int64_t n = 0; n < samples; n++) {
            twi_halves_for(site->isa)->widen(part, (const uint16_t *)dy->data + n * out + row, (tw_dtype)dy->dtype,
                                             rows);
            for (int64_t o = 0; o < rows; o++) db[o] += part[o];
        }
    }
}
static void dense_backward_weights_bias_halves(const twi_cpu_site *site, const twi_call *call,
                                               const twi_cpu_workspace *workspace) {
    run_weights_halves(site, call, workspace, NULL);
    sum_columns_halves(site, call);
}

static const char *refuse_measured_halves(const twi_call *call, twi_isa isa) {
    const twi_measure_attrs *attrs = call->attrs;
    if (attrs->dtype != call->operand[2].dtype) return "the gradient is kept in another type";
    return refuse_dense_halves(call, isa);
}
static void dense_backward_weights_measure_halves(const twi_cpu_site *site, const twi_call *call,
                                                  const twi_cpu_workspace *workspace) {
    run_weights_halves(site, call, workspace, blocks_of(call));
}
static void dense_backward_weights_bias_measure_halves(const twi_cpu_site *site, const twi_call *call,
                                                       const twi_cpu_workspace *workspace) {
    run_weights_halves(site, call, workspace, blocks_of(call));
    sum_columns_halves(site, call);
}

/* ---- convolutions ---- */

static const char *refuse_conv(const twi_call *call, twi_isa isa) {
    (void)isa;
    return twi_conv_refuse_layout(call);
}

static twi_conv_shape forward_shape(const twi_call *call) {
    return twi_conv_shape_of(call, 0, 1, call->operand_count - 1);
}
static twi_conv_shape backward_data_shape(const twi_call *call) { return twi_conv_shape_of(call, 2, 1, 0); }
static twi_conv_shape backward_weights_shape(const twi_call *call) { return twi_conv_shape_of(call, 0, 2, 1); }

static tw_status prepare_conv(twi_cpu_site *site, twi_conv_shape shape) {
    size_t floats;
    TWI_TRY(twi_patches_scratch(&shape, &floats));
    return twi_mul_size(&site->worker_bytes, floats, sizeof(float), "convolution patches");
}
static tw_status prepare_forward(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    return prepare_conv(site, forward_shape(main));
}
static tw_status prepare_backward_data(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    return prepare_conv(site, backward_data_shape(main));
}
static tw_status prepare_backward_weights(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    return prepare_conv(site, backward_weights_shape(main));
}

static void run_conv_forward(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace,
                             const float *bias, bool relu) {
    twi_conv_shape shape = forward_shape(call);
    twi_patches_forward(twi_gemm_for(site->isa), &shape, call->operand[0].data, call->operand[1].data, bias, relu,
                        call->operand[call->operand_count - 1].data, workspace->scratch);
}
static void conv_forward(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    run_conv_forward(site, call, workspace, NULL, false);
}
static void conv_forward_bias(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    run_conv_forward(site, call, workspace, call->operand[2].data, false);
}
static void conv_forward_bias_relu(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    run_conv_forward(site, call, workspace, call->operand[2].data, true);
}

static void conv_backward_data(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_conv_shape shape = backward_data_shape(call);
    twi_patches_backward_data(twi_gemm_for(site->isa), &shape, call->operand[0].data, call->operand[1].data,
                              call->operand[2].data, workspace->scratch);
}

static void conv_backward_weights(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_conv_shape shape = backward_weights_shape(call);
    twi_patches_backward_weights(twi_gemm_for(site->isa), &shape, call->operand[0].data, call->operand[1].data,
                                 !call->first, call->operand[2].data, workspace->scratch);
}

static tw_status prepare_backward_weights_ranged(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    const twi_conv_shape shape = backward_weights_shape(main);
    size_t floats;
    TWI_TRY(twi_patches_part_scratch(&shape, &floats));
    return twi_mul_size(&site->worker_bytes, floats, sizeof(float), "convolution patches");
}
static void conv_backward_weights_ranged(const twi_cpu_site *site, const twi_call *call,
                                         const twi_cpu_workspace *workspace) {
    const twi_conv_shape shape = backward_weights_shape(call);
    for (int64_t i = call->begin; i < call->end; i++) {
        const twi_conv2d_part part = twi_conv2d_part_at(call->operand[2].shape.dim, i);
        twi_patches_backward_weights_part(twi_gemm_for(site->isa), &shape, &part, call->operand[0].data,
                                          call->operand[1].data, call->operand[2].data, workspace->scratch);
    }
}

/* ---- table ---- */

#define DENSE_HALVES(kernel_name, run_fn)                                              \
    {                                                                                  \
        .kernel = "dense." kernel_name, .name = "gemm", .refuse = refuse_dense_halves, \
        .prepare = prepare_weights_halves, .run = run_fn                               \
    }
#define DENSE(kernel_name, prepare_fn, run_fn) \
    { .kernel = "dense." kernel_name, .name = "gemm", .refuse = refuse_dense, .prepare = prepare_fn, .run = run_fn }
#define MEASURED(kernel_name, refuse_fn, prepare_fn, run_fn)                                                         \
    {                                                                                                                \
        .kernel = "dense.backward_weights_" kernel_name, .name = "gemm", .refuse = refuse_fn, .prepare = prepare_fn, \
        .run = run_fn                                                                                                \
    }
#define CONV(kernel_name, prepare_fn, run_fn)                                                             \
    {                                                                                                     \
        .kernel = "conv2d." kernel_name, .name = "patches", .refuse = refuse_conv, .prepare = prepare_fn, \
        .run = run_fn, .describe = twi_conv_describe                                                      \
    }

const twi_cpu_impl twi_cpu_gemm_impls[] = {
    DENSE("forward", NULL, dense_forward),
    DENSE("forward_bias", NULL, dense_forward_bias),
    DENSE("forward_bias_relu", NULL, dense_forward_bias_relu),
    DENSE("forward_bias_gelu", NULL, dense_forward_bias_gelu),
    DENSE("forward_rows", NULL, dense_rows),
    DENSE("forward_bias_rows", NULL, dense_rows_bias),
    DENSE("forward_bias_relu_rows", NULL, dense_rows_bias_relu),
    DENSE("backward_data", prepare_data, dense_backward_data),
    DENSE("backward_data_gelu", prepare_data_gelu, dense_backward_data_gelu),
    DENSE("backward_weights", prepare_weights, dense_backward_weights),
    DENSE("backward_weights_bias", prepare_weights, dense_backward_weights_bias),
    MEASURED("measure", refuse_measured, prepare_measured, dense_backward_weights_measure),
    MEASURED("bias_measure", refuse_measured, prepare_measured, dense_backward_weights_bias_measure),
    {.kernel = "dense.backward_weights_sgd",
     .name = "gemm",
     .refuse = refuse_merged,
     .prepare = prepare_weights,
     .run = dense_backward_weights_sgd},
    DENSE_HALVES("backward_weights", dense_backward_weights_halves),
    DENSE_HALVES("backward_weights_bias", dense_backward_weights_bias_halves),
    MEASURED("measure", refuse_measured_halves, prepare_weights_halves, dense_backward_weights_measure_halves),
    MEASURED("bias_measure", refuse_measured_halves, prepare_weights_halves,
             dense_backward_weights_bias_measure_halves),
    CONV("forward", prepare_forward, conv_forward),
    CONV("forward_bias", prepare_forward, conv_forward_bias),
    CONV("forward_bias_relu", prepare_forward, conv_forward_bias_relu),
    CONV("backward_data", prepare_backward_data, conv_backward_data),
    CONV("backward_weights", prepare_backward_weights, conv_backward_weights),
    CONV("backward_weights_ranged", prepare_backward_weights_ranged, conv_backward_weights_ranged),
    {.kernel = NULL},
};
