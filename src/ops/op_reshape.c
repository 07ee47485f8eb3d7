/* reshape: y holds the elements of x in logical row-major order under other axes; the batch axis stays
 *
 * x [N,...], y [N,dims...]; one of dims may be -1 and is worked out. The logical order is N,C,H,W whatever the layout
 * in memory, so an image kept channels last is transposed on the way. A copy that moves nothing is dropped by the
 * layout pass. */
#include "backend/attrs.h"
#include "kernels.h"
#include "rules.h"

#include <inttypes.h>

/* ---- shape rule ---- */

static tw_status infer(twi_infer *infer) {
    const twi_reshape_attrs *attrs = infer->attrs;
    const twi_shape *x = &infer->input[0];
    if (attrs->rank < 0 || attrs->rank >= TW_MAX_RANK)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "reshape '%s': rank is %" PRId32 ", expected 0 to %d axes beside the batch",
                        infer->name, attrs->rank, TW_MAX_RANK - 1);
    TWI_TRY(twi_rule_input(infer, 0, "the input", x->rank, true));

    twi_shape y = {1 + attrs->rank, {x->dim[0]}};
    int64_t elements = twi_shape_count_from(x, 1), known = 1;
    int unknown_axis = 0;
    bool fits = true;
    for (int axis = 1; axis < y.rank; axis++) {
        y.dim[axis] = attrs->dims[axis - 1];
        if (y.dim[axis] == -1 && !unknown_axis)
            unknown_axis = axis;
        else if (y.dim[axis] < 1 || __builtin_mul_overflow(known, y.dim[axis], &known))
            fits = false;
    }
    if (fits && unknown_axis && elements % known == 0) {
        y.dim[unknown_axis] = elements / known;
        known = elements;
    }
    char x_text[TWI_SHAPE_TEXT], y_text[TWI_SHAPE_TEXT];
    if (!fits || known != elements)
        return TWI_FAIL(TW_ERROR_SHAPE,
                        "reshape '%s': %s to %s: expected %" PRId64
                        " elements a sample and axes of 1 or more, one of which "
                        "may be -1",
                        infer->name, twi_shape_text(x, x_text), twi_shape_text(&y, y_text), elements);
    return twi_rule_output(infer, y);
}

/* ---- lowering ---- */

void TWI_NAME(twi_reshape_forward)(twi_lower *lower) {
    twi_lower_step(lower, &TWI_NAME(twi_kernel_reshape_copy),
                   (twi_ref[]){twi_lower_input(lower, 0), twi_lower_output(lower, 0)});
}

void TWI_NAME(twi_reshape_backward)(twi_lower *lower) {
    if (twi_lower_wants_gradient(lower, 0))
        twi_lower_step(lower, &TWI_NAME(twi_kernel_reshape_copy),
                       (twi_ref[]){twi_lower_output_gradient(lower, 0), twi_lower_input_gradient(lower, 0)});
}

/* ---- specification ---- */

static void run_copy(const twi_call *call) {
    const twi_operand *x = &call->operand[0], *y = &call->operand[1];
    const tw_real *x_data = x->data;
    tw_real *y_data = y->data;
    int64_t elements = twi_sample_count(x);
    for (int64_t n = 0; n < x->shape.dim[0]; n++)
        for (int64_t i = 0; i < elements; i++) y_data[twi_offset(y, n, i)] = x_data[twi_offset(x, n, i)];
}

/* ---- kernels ---- */

const twi_kernel TWI_NAME(twi_kernel_reshape_copy) = {
    .name = "reshape.copy",
    .operand_count = 2,
    .operand = {{"x", TWI_READ, TWI_REAL, TWI_BATCHED, 0}, {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}},
    .split = TWI_BY_SAMPLE,
    .run = run_copy,
};

static const twi_kernel *const kernels[] = {&TWI_NAME(twi_kernel_reshape_copy), NULL};

/* ---- cases ---- */

/* An image, and the rank and dims of what becomes of a sample. */
enum { BATCH, CHANNELS, HEIGHT, WIDTH, RANK, DIMS };

static const twi_case cases[] = {
    {"image to features", {2, 3, 4, 5, 1, 60}},
    {"image to another image", {2, 3, 4, 5, 3, 5, 2, 6}},
    {"one axis worked out", {2, 3, 4, 5, 2, 6, -1}},
    {"more axes", {1, 4, 3, 2, 5, 2, 2, 3, 1, 2}},
    {"one element to a number", {3, 1, 1, 1, 0}},
    {"large", {17, 16, 7, 9, 2, 63, 16}},
    {NULL, {0}},
};

static tw_value *build_case(twi_builder *builder, const twi_case *c) {
    twi_reshape_attrs attrs = {.rank = (int32_t)c->p[RANK]};
    for (int axis = 0; axis < attrs.rank; axis++) attrs.dims[axis] = c->p[DIMS + axis];
    tw_value *x = builder->input(builder, "x", 4, &c->p[BATCH]);
    return builder->node(builder, "reshape", "reshape", 1, &x, &attrs);
}

/* ---- record ---- */

static const twi_attr attr_table[] = {
    {"rank", TWI_ATTR_INT, offsetof(twi_reshape_attrs, rank), 1},
    {"dims", TWI_ATTR_INTS, offsetof(twi_reshape_attrs, dims), -1},
};

const twi_op TWI_NAME(twi_op_reshape) = {
    .name = "reshape",
    .formula = "y[n,dims...] = x[n,...], elements in logical order",
    .inputs_min = 1,
    .inputs_max = 1,
    .outputs = 1,
    .attrs = attr_table,
    .attr_count = sizeof attr_table / sizeof *attr_table,
    .attr_size = sizeof(twi_reshape_attrs),
    .infer = infer,
    .forward = TWI_NAME(twi_reshape_forward),
    .backward = TWI_NAME(twi_reshape_backward),
    .kernels = kernels,
    .cases = cases,
    .build_case = build_case,
};
