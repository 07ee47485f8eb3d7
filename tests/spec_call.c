/* Calls of specification loops by hand; see spec_call.h. */
#include "spec_call.h"

twi_operand *spec_operand(twi_call *call, const void *data, int64_t rank, const int64_t *dims) {
    twi_operand *o = &call->operand[call->operand_count++];
    *o = (twi_operand){.data = (void *)data, .shape.rank = (int)rank};
    int64_t stride = 1;
    for (int axis = (int)rank - 1; axis >= 0; axis--) {
        o->shape.dim[axis] = dims[axis];
        o->stride[axis] = stride;
        stride *= dims[axis];
    }
    return o;
}

void spec_channels_last(twi_operand *o) {
    const int64_t *dim = o->shape.dim;
    const int64_t stride[] = {dim[1] * dim[2] * dim[3], 1, dim[1] * dim[3], dim[1]};
    memcpy(o->stride, stride, sizeof stride);
}

void spec_run(const char *kernel_name, const twi_call *call) {
    const twi_kernel *kernel = twi_registry_find_kernel(&twi_registry_builtin, kernel_name);
    assert_non_null(kernel);
    int count = kernel->operand_count; /* what holds halves beside others may be left out */
    while (count > call->operand_count && kernel->half_of[count - 1]) count--;
    assert_int_equal(call->operand_count, count);
    kernel->run(call);
}

void spec_check(int line, const float *found, int64_t count, const double *expected, double tolerance) {
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(found[i] - expected[i]) <= tolerance * (1 + fabs(expected[i]))))
            fail_msg("line %d: element %d is %.9g, expected %.9g", line, (int)i, found[i], expected[i]);
}
