/* flatten: y[n, i] = element i of sample n, in logical row-major order
 *
 * x [N,...], y [N, elements of a sample]. The steps are those of a reshape (op_reshape.c). */
#include "kernels.h"
#include "rules.h"

/* ---- shape rule ---- */

static tw_status infer(twi_infer *infer) {
    const twi_shape *x = &infer->input[0];
    TWI_TRY(twi_rule_input(infer, 0, "the input", x->rank, true));
    return twi_rule_output(infer, (twi_shape){2, {x->dim[0], twi_shape_count_from(x, 1)}});
}

/* ---- cases ---- */

enum { RANK, DIMS };

static const twi_case cases[] = {
    {"image", {4, 2, 3, 4, 5}},   {"features", {2, 3, 5}},      {"one number a sample", {1, 4}},
    {"one row", {4, 2, 3, 1, 6}}, {"large", {4, 17, 16, 5, 7}}, {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    tw_value *x = builder->input(builder, "x", (int)c->p[RANK], &c->p[DIMS]);
    return builder->node(builder, "flatten", "flatten", 1, &x, NULL);
}

/* ---- record ---- */

static const twi_kernel *const kernels[] = {NULL};

const twi_op TWI_NAME(twi_op_flatten) = {
    .name = "flatten",
    .formula = "y[n,i] = element i of sample n",
    .inputs_min = 1,
    .inputs_max = 1,
    .outputs = 1,
    .infer = infer,
    .forward = TWI_NAME(twi_reshape_forward),
    .backward = TWI_NAME(twi_reshape_backward),
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
};
