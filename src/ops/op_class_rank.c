/* How many classes the logits put ahead of the labelled one: 0 is a hit, less than 5 a top-5 hit.
 *
 *   rank[n] = #{c : x[n,c] > x[n,label] or (x[n,c] == x[n,label] and c < label)}
 *
 * A sample whose logits hold any NaN, or whose label is outside 0..C-1, has rank C: never a hit, however k is chosen.
 * No gradient flows through it. */
#include "kernels.h"
#include "rules.h"

#include <tgmath.h>

/* ---- shape rule ---- */

static tw_status infer(twi_infer *infer) {
    TWI_TRY(twi_rule_labels(infer, 1));
    infer->output_store[0] = TWI_I32;
    return twi_rule_output(infer, infer->input[1]);
}

/* ---- lowering ---- */

static const twi_kernel class_rank_forward;

static void forward(twi_lower *lower) {
    twi_lower_step(lower, &class_rank_forward,
                   (twi_ref[]){twi_lower_input(lower, 0), twi_lower_input(lower, 1), twi_lower_output(lower, 0)});
}

/* ---- specification ---- */

static int32_t rank_of(const tw_real *x, int64_t stride, int32_t classes, int32_t label) {
    int32_t ahead = 0;
    if (label < 0 || label >= classes) return classes;
    for (int32_t c = 0; c < classes; c++) {
        if (isnan(x[c * stride])) return classes;
        if (x[c * stride] > x[label * stride] || (x[c * stride] == x[label * stride] && c < label)) ahead++;
    }
    return ahead;
}

static void forward_run(const twi_call *call) {
    const twi_operand *xo = &call->operand[0], *lo = &call->operand[1], *ro = &call->operand[2];
    for (int64_t n = 0; n < xo->shape.dim[0]; n++)
        TWI_DATA(int32_t, call, 2)
        [n * ro->stride[0]] = rank_of(TWI_DATA(const tw_real, call, 0) + n * xo->stride[0], xo->stride[1],
                                      (int32_t)xo->shape.dim[1], TWI_DATA(const int32_t, call, 1)[n * lo->stride[0]]);
}

/* ---- kernels ---- */

static const twi_kernel class_rank_forward = {
    .name = "class_rank.forward",
    .operand_count = 3,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0},
                {"labels", TWI_READ, TWI_I32, TWI_BATCHED, 0},
                {"rank", TWI_WRITE, TWI_I32, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = forward_run,
};

/* ---- cases ---- */

/* {N, classes} */
static const twi_case cases[] = {
    {"one class", {3, 1}}, {"5 classes", {1, 5}}, {"17 classes", {4, 17}}, {"large", {65, 1000}}, {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    tw_value *x = builder->input(builder, "x", 2, c->p), *labels = builder->labels(builder, c->p[0], c->p[1]);
    return builder->node(builder, "class_rank", "rank", 2, (tw_value *[]){x, labels}, NULL);
}

/* ---- record ---- */

static const twi_kernel *const kernels[] = {&class_rank_forward, NULL};

const twi_op TWI_NAME(twi_op_class_rank) = {
    .name = "class_rank",
    .formula = "rank[n] = number of classes ahead of label[n]",
    .inputs_min = 2,
    .inputs_max = 2,
    .outputs = 1,
    .infer = infer,
    .forward = forward,
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
};
