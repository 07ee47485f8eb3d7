/* Dense layers by products of matrices (gemm.h): which calls are taken, and what they become. */
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

/* transposed: the number of an operand that may lie feature by feature as well; -1: none may. */
static const char *refuse_layout(const twi_call *call, int transposed) {
    for (int i = 0; i < call->operand_count; i++) {
        if (!twi_is_f32(&call->operand[i])) return "an operand is not f32";
        if (!twi_is_row_major(&call->operand[i]) && (i != transposed || !twi_is_column_major(&call->operand[i])))
            return "an operand is not row-major";
    }
    return NULL;
}
static const char *refuse_dense(const twi_call *call, twi_isa isa) {
    (void)isa;
    return refuse_layout(call, -1);
}
static const char *refuse_rows(const twi_call *call, twi_isa isa) {
    (void)isa;
    return refuse_layout(call, call->operand_count - 1);
}
/* x, dy and what is made of them. */
static const char *refuse_weights(const twi_call *call, twi_isa isa) {
    (void)isa;
    return refuse_layout(call, 1);
}

/* A product of m rows of n sums of k terms; a range is a part of the rows. */
static tw_status want_product(twi_cpu_site *site, int64_t m, int64_t n, int64_t k) {
    site->worker_bytes = twi_gemm_sparse_scratch_of(m, n, k) * sizeof(float);
    return TW_OK;
}
static tw_status prepare_data(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail; /* is shorter */
    return want_product(site, main->operand[0].shape.dim[0], main->operand[1].shape.dim[1],
                        main->operand[1].shape.dim[0]);
}
static tw_status prepare_weights(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    return want_product(site, main->operand[2].shape.dim[0], main->operand[2].shape.dim[1],
                        main->operand[0].shape.dim[0]);
}

/* Where y lies feature by feature, so many rows of w are gone through with so many samples at a time, and then transposed:
 * a product the other way round, whose rows are features, has tiles that fit worse, and took 8 % longer. */
enum { FEATURE_ROWS = 8, FEATURE_SAMPLES = 96 };

static tw_status prepare_rows(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    if (!twi_is_row_major(&main->operand[3])) site->worker_bytes = FEATURE_ROWS * FEATURE_SAMPLES * sizeof(float);
    return TW_OK;
}

/* x, w, b, y, with a relu. */
static void run_rows_by_features(const twi_cpu_site *site, const twi_call *call, float *scratch) {
    const twi_operand *x = &call->operand[0], *w = &call->operand[1], *y = &call->operand[3];
    const float *bias = call->operand[2].data;
    const twi_gemm *gemm = twi_gemm_for(site->isa);
    const int64_t samples = x->shape.dim[0], in = x->shape.dim[1];
    for (int64_t o = call->begin, rows; o < call->end; o += rows) {
        rows = twi_smaller(FEATURE_ROWS, call->end - o);
        for (int64_t n = 0, some; n < samples; n += some) {
            some = twi_smaller(FEATURE_SAMPLES, samples - n);
            gemm->dot(some, rows, in, (const float *)x->data + n * in, in, (const float *)w->data + o * in, in,
                      bias + o, false, true, scratch, rows);
            gemm->transpose(some, rows, scratch, rows, (float *)y->data + o * samples + n, samples);
        }
    }
}

/* Rows begin .. end-1 of w, which are as many features of y. */
static void run_dense_rows(const twi_cpu_site *site, const twi_call *call, int64_t begin, int64_t end,
                           const float *bias, bool relu) {
    const twi_operand *x = &call->operand[0], *w = &call->operand[1], *y = &call->operand[call->operand_count - 1];
    int64_t samples = x->shape.dim[0], in = x->shape.dim[1], out = w->shape.dim[0];
    twi_gemm_for(site->isa)->dot(samples, end - begin, in, x->data, in, (const float *)w->data + begin * in, in,
                                 bias ? bias + begin : NULL, false, relu, (float *)y->data + begin, out);
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
    if (twi_is_row_major(&call->operand[3]))
        run_dense_rows(site, call, call->begin, call->end, call->operand[2].data, true);
    else
        run_rows_by_features(site, call, workspace->scratch);
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
    twi_gemm_for(site->isa)->outer_sparse(samples, in, out, dy->data, out, 1, w->data, in, false, dx->data, in,
                                          workspace->scratch);
}

/* The bias and gelu, or relu, behind which the layer stands: of dy, w, z, g, db what bias_gelu.backward takes, g in
 * place of its dy; for a relu its result instead of z. */
static twi_call activation_part(const twi_call *call) {
    const twi_operand *g = &call->operand[3];
    twi_call part = *call;
    part.operand_count = 4;
    part.operand[0] = *g;
    part.operand[1] = call->operand[2];
    part.operand[2] = *g;
    part.operand[3] = call->operand[4];
    return part;
}

static tw_status prepare_data_activation(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    const twi_call part = activation_part(main);
    TWI_TRY(twi_sweep_prepare(site, &part, tail));
    const int64_t *w = main->operand[1].shape.dim;
    const size_t product =
        twi_gemm_sparse_scratch_of(main->operand[0].shape.dim[0], w[1], w[0]) * sizeof(float); /* one after the other */
    if (site->worker_bytes < product) site->worker_bytes = product;
    return TW_OK;
}

static void run_backward_data(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace,
                              twi_cpu_loop *activation) {
    twi_call part = *call;
    part.operand[2] = call->operand[3];
    dense_backward_data(site, &part, workspace);
    part = activation_part(call);
    activation(&part, workspace);
}
static void dense_backward_data_gelu(const twi_cpu_site *site, const twi_call *call,
                                     const twi_cpu_workspace *workspace) {
    run_backward_data(site, call, workspace, TWI_FOR_ISA(site->isa, point)->bias_gelu_backward);
}
static void dense_backward_data_relu(const twi_cpu_site *site, const twi_call *call,
                                     const twi_cpu_workspace *workspace) {
    run_backward_data(site, call, workspace, TWI_FOR_ISA(site->isa, point)->bias_relu_backward);
}

/* Of dy, those that a range of rows of dw is made with. */
static const float *columns_of(const twi_call *call) {
    const twi_operand *dy = &call->operand[1];
    return (const float *)dy->data + call->begin * dy->stride[1];
}

/* A range of rows of dw, from the whole batch. */
static void dense_backward_weights(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_operand *x = &call->operand[0], *dy = &call->operand[1], *dw = &call->operand[2];
    int64_t samples = x->shape.dim[0], in = dw->shape.dim[1];
    twi_gemm_for(site->isa)->outer_sparse(call->end - call->begin, in, samples, columns_of(call), dy->stride[1],
                                          dy->stride[0], x->data, in, false, (float *)dw->data + call->begin * in, in,
                                          workspace->scratch);
}

static const char *refuse_merged(const twi_call *call, twi_isa isa) {
    if (call->operand[0].shape.dim[0] > TWI_GEMM_DEPTH) return "sums over so many samples are made in parts";
    return refuse_weights(call, isa);
}

/* And the update of those rows. */
static void dense_backward_weights_sgd(const twi_cpu_site *site, const twi_call *call,
                                       const twi_cpu_workspace *workspace) {
    const twi_operand *x = &call->operand[0], *dy = &call->operand[1], *w = &call->operand[2];
    const twi_update_attrs *attrs = call->attrs;
    const int64_t samples = x->shape.dim[0], in = w->shape.dim[1];
    float *momentum = call->operand[3].data;
    if (twi_run_refused(call->control)) return;
    const twi_gemm_update update = {.rate = (float)call->control->learning_rate,
                                    .decay = attrs->segment[0].weight_decay,
                                    .momentum = attrs->momentum,
                                    .factor = (float)call->control->guard.factor,
                                    .nesterov = attrs->nesterov,
                                    .buffer = momentum ? momentum + call->begin * in : NULL};
    twi_gemm_for(site->isa)->outer_update(call->end - call->begin, in, samples, columns_of(call), dy->stride[1],
                                          dy->stride[0], x->data, in, &update, (float *)w->data + call->begin * in, in,
                                          workspace->scratch);
}

/* And as many numbers of db, each the sum of the column of dy that its row of dw was made with. */
static void sum_columns(const twi_call *call) {
    twi_sum_columns(&call->operand[1], call->begin, call->end, call->operand[3].data);
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
    return attrs->dtype == TW_F32 ? refuse_weights(call, isa) : "the gradient is kept in half precision";
}
static const char *refuse_bias_measured(const twi_call *call, twi_isa isa) {
    const char *reason = refuse_measured(call, isa);
    return reason ? reason : refuse_dense(call, isa);
}
static tw_status prepare_measured(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    const int64_t *dw = main->operand[2].shape.dim;
    site->worker_bytes = twi_gemm_squares_scratch_of(dw[0], dw[1], main->operand[0].shape.dim[0]) * sizeof(float);
    return TW_OK;
}
static void dense_backward_weights_measure(const twi_cpu_site *site, const twi_call *call,
                                           const twi_cpu_workspace *workspace) {
    const twi_operand *x = &call->operand[0], *dy = &call->operand[1], *dw = &call->operand[2];
    const int64_t samples = x->shape.dim[0], in = dw->shape.dim[1];
    float *row = (float *)dw->data + call->begin * in, *block = blocks_of(call);
    twi_gemm_for(site->isa)->outer_squares(call->end - call->begin, in, samples, columns_of(call), dy->stride[1],
                                           dy->stride[0], x->data, in, row, in, block, workspace->scratch);
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

/* ---- table ---- */

#define DENSE_IF(kernel_name, refuse_fn, prepare_fn, run_fn) \
    { .kernel = "dense." kernel_name, .name = "gemm", .refuse = refuse_fn, .prepare = prepare_fn, .run = run_fn }
#define DENSE(kernel_name, prepare_fn, run_fn) DENSE_IF(kernel_name, refuse_dense, prepare_fn, run_fn)
const twi_cpu_impl twi_cpu_gemm_impls[] = {
    DENSE("forward", NULL, dense_forward),
    DENSE("forward_bias", NULL, dense_forward_bias),
    DENSE("forward_bias_relu", NULL, dense_forward_bias_relu),
    DENSE("forward_bias_gelu", NULL, dense_forward_bias_gelu),
    DENSE("forward_rows", NULL, dense_rows),
    DENSE("forward_bias_rows", NULL, dense_rows_bias),
    DENSE_IF("forward_bias_relu_rows", refuse_rows, prepare_rows, dense_rows_bias_relu),
    DENSE("backward_data", prepare_data, dense_backward_data),
    DENSE("backward_data_gelu", prepare_data_activation, dense_backward_data_gelu),
    DENSE("backward_data_relu", prepare_data_activation, dense_backward_data_relu),
    DENSE_IF("backward_weights", refuse_weights, prepare_weights, dense_backward_weights),
    DENSE("backward_weights_bias", prepare_weights, dense_backward_weights_bias),
    DENSE_IF("backward_weights_measure", refuse_measured, prepare_measured, dense_backward_weights_measure),
    DENSE_IF("backward_weights_bias_measure", refuse_bias_measured, prepare_measured,
             dense_backward_weights_bias_measure),
    DENSE_IF("backward_weights_sgd", refuse_merged, prepare_weights, dense_backward_weights_sgd),
    DENSE_IF("backward_weights", refuse_dense_halves, prepare_weights_halves, dense_backward_weights_halves),
    DENSE_IF("backward_weights_bias", refuse_dense_halves, prepare_weights_halves, dense_backward_weights_bias_halves),
    DENSE_IF("backward_weights_measure", refuse_measured_halves, prepare_weights_halves,
             dense_backward_weights_measure_halves),
    DENSE_IF("backward_weights_bias_measure", refuse_measured_halves, prepare_weights_halves,
             dense_backward_weights_bias_measure_halves),
    {.kernel = NULL},
};
