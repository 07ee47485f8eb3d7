/* A small dense layer behind a large one, by ranges of the features between them, which lie feature by feature: which
 * calls are taken, and what products (gemm.h) they become. What comes sample by sample, the last layer's few numbers, is
 * transposed first. */
#include "dense.h"
#include "gemm.h"
#include "parts.h"
#include "point.h"
#include "backend/attrs.h"
#include "base/memory.h"

/* transposed: a bit for every operand that lies feature by feature. */
static const char *refuse_layout(const twi_call *call, unsigned transposed) {
    for (int o = 0; o < call->operand_count; o++) {
        const twi_operand *operand = &call->operand[o];
        if (!twi_is_f32(operand)) return "an operand is not f32";
        if (transposed >> o & 1 ? !twi_is_column_major(operand) : !twi_is_row_major(operand))
            return "an operand does not lie as it is expected";
    }
    return NULL;
}

/* ---- forward: x, w, parts ---- */

static const char *refuse_forward(const twi_call *call, twi_isa isa) {
    (void)isa;
    return refuse_layout(call, 1u << 0);
}
static tw_status prepare_forward(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    site->worker_bytes = twi_gemm_outer_scratch_of(main->operand[1].shape.dim[0], TWI_FEATURE_BLOCK) * sizeof(float);
    return TW_OK;
}
static void forward_parts(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_operand *x = &call->operand[0], *w = &call->operand[1], *parts = &call->operand[2];
    const int64_t samples = x->shape.dim[0], in = x->shape.dim[1], out = w->shape.dim[0];
    for (int64_t i = call->begin; i < call->end; i += TWI_FEATURE_BLOCK)
        twi_gemm_for(site->isa)->outer(out, samples, twi_smaller(TWI_FEATURE_BLOCK, call->end - i),
                                       (const float *)w->data + i, in, 1, (const float *)x->data + i * samples, samples,
                                       false, (float *)parts->data + i / TWI_FEATURE_BLOCK * out * samples, samples,
                                       workspace->scratch);
}

/* ---- their sum: parts, b, y ---- */

static const char *refuse_join(const twi_call *call, twi_isa isa) {
    (void)isa;
    return refuse_layout(call, 0);
}
static tw_status prepare_join(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    return twi_mul_size(&site->worker_bytes, (size_t)twi_shape_count(&main->operand[2].shape), sizeof(float),
                        "sums of a dense layer");
}
static void join_parts(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_operand *parts = &call->operand[0], *y = &call->operand[2];
    const int64_t out = parts->shape.dim[1], samples = y->shape.dim[0];
    float *sums = workspace->scratch;
    TWI_FOR_ISA(site->isa, point)
        ->sum_parts((const float *)parts->data + call->sample, parts->shape.dim[2], parts->shape.dim[0], out, samples,
                    call->operand[1].data, sums);
    twi_gemm_for(site->isa)->transpose(out, samples, sums, samples, y->data, out);
}

/* ---- backward, data: dy, w, y, g, db ---- */

static const char *refuse_data(const twi_call *call, twi_isa isa) {
    (void)isa;
    return refuse_layout(call, 1u << 2 | 1u << 3);
}

/* Floats of dy transposed, in whole cache lines, before a product's scratch. */
static int64_t transposed_floats(const twi_operand *dy) { return (twi_shape_count(&dy->shape) + 15) / 16 * 16; }

/* Floats of one's own, and the scratch of a product of m rows and sums of k terms. */
static tw_status want(twi_cpu_site *site, int64_t own, int64_t m, int64_t k) {
    size_t floats;
    TWI_TRY(twi_add_size(&floats, (size_t)own, twi_gemm_outer_scratch_of(m, k), "scratch of a dense layer"));
    return twi_mul_size(&site->worker_bytes, floats, sizeof(float), "scratch of a dense layer");
}
static tw_status prepare_data(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    const twi_operand *dy = &main->operand[0], *w = &main->operand[1];
    return want(site, transposed_floats(dy), w->shape.dim[1], w->shape.dim[0]);
}
static void backward_data(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_operand *dy = &call->operand[0], *w = &call->operand[1], *y = &call->operand[2], *g = &call->operand[3];
    const int64_t samples = dy->shape.dim[0], out = dy->shape.dim[1], in = w->shape.dim[1];
    const twi_gemm *gemm = twi_gemm_for(site->isa);
    float *transposed = workspace->scratch, *db = call->operand[4].data, *to = (float *)g->data + call->begin * samples;
    gemm->transpose(samples, out, dy->data, out, transposed, samples);
    gemm->outer(call->end - call->begin, samples, out, (const float *)w->data + call->begin, 1, in, transposed, samples,
                false, to, samples, transposed + transposed_floats(dy));
    TWI_FOR_ISA(site->isa, point)
        ->relu_backward_rows(to, (const float *)y->data + call->begin * samples, to, db + call->begin,
                             call->end - call->begin, samples);
}

/* ---- backward, weights: x, dy, dw, db ---- */

static const char *refuse_weights(const twi_call *call, twi_isa isa) {
    (void)isa;
    return refuse_layout(call, 1u << 0);
}
/* A block of columns of dw, transposed, before the product's scratch. */
static int64_t block_floats(const twi_operand *dy) { return TWI_FEATURE_BLOCK * dy->shape.dim[1]; }

static tw_status prepare_weights(twi_cpu_site *site, const twi_call *main, const twi_call *tail) {
    (void)tail;
    const twi_operand *dy = &main->operand[1];
    return want(site, block_floats(dy), TWI_FEATURE_BLOCK, dy->shape.dim[0]);
}
static void backward_weights(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_operand *x = &call->operand[0], *dy = &call->operand[1], *dw = &call->operand[2], *db = &call->operand[3];
    const int64_t samples = x->shape.dim[0], in = x->shape.dim[1], out = dy->shape.dim[1];
    const twi_gemm *gemm = twi_gemm_for(site->isa);
    float *sums = workspace->scratch;
    for (int64_t i = call->begin, some; i < call->end; i += some) {
        some = twi_smaller(TWI_FEATURE_BLOCK, call->end - i);
        gemm->outer(some, out, samples, (const float *)x->data + i * samples, samples, 1, dy->data, out, false, sums,
                    out, sums + block_floats(dy));
        gemm->transpose(some, out, sums, out, (float *)dw->data + i, in);
    }
    if (db->data && call->begin == 0) twi_sum_columns(dy, 0, out, db->data);
}

/* ---- table ---- */

const twi_cpu_impl twi_cpu_features_impls[] = {
    {"dense.forward_parts", "gemm", .refuse = refuse_forward, .prepare = prepare_forward, .run = forward_parts},
    {"dense.join_parts", "gemm", .refuse = refuse_join, .prepare = prepare_join, .run = join_parts},
    {"dense.backward_data_relu_features", "gemm", .refuse = refuse_data, .prepare = prepare_data, .run = backward_data},
    {"dense.backward_weights_columns", "gemm", .refuse = refuse_weights, .prepare = prepare_weights,
     .run = backward_weights},
    {.kernel = NULL},
};
