/* The family of convolutions by cuDNN, on the emulated device, against the specification: every case of the op, in
 * every type. What cuDNN itself supports: cudnn_plans.c. */
#include "check.h"
#include "cudnn_stand_in.h"
#include "dnn_device.h"
#include "emu.h"
#include "ops/op.h"

static const char *const kernels[] = {"conv2d.forward", "conv2d.forward_bias", "conv2d.forward_bias_relu",
                                      "conv2d.backward_data", "conv2d.backward_weights"};
enum { KERNELS = 5, TYPES = 3 };

/* The numbers of a case, as src/ops/op_conv2d.c lists them. */
static conv_check_case case_of(const twi_case *c) {
    const int64_t *p = c->p;
    return (conv_check_case){p[0],
                             p[1],
                             p[2],
                             p[3],
                             p[4],
                             p[5],
                             p[6],
                             {.stride_h = (int32_t)(p[7] / 10),
                              .stride_w = (int32_t)(p[7] % 10),
                              .pad_top = (int32_t)(p[8] / 1000),
                              .pad_left = (int32_t)(p[8] / 100 % 10),
                              .pad_bottom = (int32_t)(p[8] / 10 % 10),
                              .pad_right = (int32_t)(p[8] % 10),
                              .dilation_h = (int32_t)(p[9] / 10),
                              .dilation_w = (int32_t)(p[9] % 10),
                              .groups = (int32_t)p[10]}};
}

static void run_cases(tw_dtype dtype) {
    dnn_device d;
    CHECK_OK(dnn_device_open(&d, NULL, NULL));
    const twi_op *op = twi_registry_find(&twi_registry_builtin, "conv2d");
    assert_non_null(op);
    for (const twi_case *c = op->cases; c->name; c++)
        for (int k = 0; k < KERNELS; k++) {
            const conv_check_case conv = case_of(c);
            dnn_run run = {.c = &conv, .kernel = kernels[k], .dtype = dtype};
            CHECK_OK(dnn_run_and_compare(&d, &run));
        }
    dnn_device_close(&d);
}

static void every_case_in_f32(void **state) { (void)state, run_cases(TW_F32); }
static void every_case_in_f16(void **state) { (void)state, run_cases(TW_F16); }
static void every_case_in_bf16(void **state) { (void)state, run_cases(TW_BF16); }

static const conv_check_case some = {2, 3, 7, 6, 4, 3, 2, {1, 2, 1, 0, 2, 1, 1, 1, 1}};

/* A gradient of halves lies in the workspace until it is widened, beside what cuDNN wants there. */
static void a_plan_with_workspace_and_a_gradient_of_halves(void **state) {
    (void)state;
    dnn_device d;
    CHECK_OK(dnn_device_open(&d, NULL, NULL));
    cudnn_stand_in_retire(4);
    dnn_run run = {.c = &some, .kernel = kernels[4], .dtype = TW_BF16};
    CHECK_OK(dnn_run_and_compare(&d, &run));
    assert_int_equal(run.workspace_bytes, 256 + 131 + 64 * 7);
    dnn_device_close(&d);
}

static void other_layouts_graphs_and_not_a_number(void **state) {
    (void)state;
    dnn_device d;
    CHECK_OK(dnn_device_open(&d, NULL, NULL));
    for (int k = 0; k < KERNELS; k++)
        for (int t = 0; t < TYPES; t++) {
            dnn_run rows = {.c = &some, .kernel = kernels[k], .dtype = (tw_dtype)t, .rows = true};
            CHECK_OK(dnn_run_and_compare(&d, &rows));
            dnn_run captured = {.c = &some, .kernel = kernels[k], .dtype = (tw_dtype)t, .captured = true};
            CHECK_OK(dnn_run_and_compare(&d, &captured));
            dnn_run with_nan = {.c = &some, .kernel = kernels[k], .dtype = (tw_dtype)t, .with_nan = true};
            CHECK_OK(dnn_run_and_compare(&d, &with_nan));
        }
    dnn_device_close(&d);
}

/* ---- what it does not take ---- */

static tw_status prepare(dnn_device *d, const char *kernel_name, const twi_call *call) {
    const twi_kernel kernel = {.name = kernel_name};
    twi_cuda_site site = {.family = &twi_cuda_cudnn, .kernel = &kernel, .device = &d->device};
    tw_status status = twi_cuda_cudnn.prepare(&site, call);
    twi_cuda_cudnn.release(&site);
    return status;
}

static void calls_that_are_not_for_it_are_refused(void **state) {
    (void)state;
    dnn_device d;
    CHECK_OK(dnn_device_open(&d, NULL, NULL));
    const dnn_run run = {.c = &some, .kernel = kernels[2], .dtype = TW_F16};
    twi_call call;
    dnn_call(&call, &run);
    CHECK_OK(prepare(&d, kernels[2], &call));
    CHECK_FAILS(prepare(&d, "relu.forward", &call), TW_ERROR_UNSUPPORTED, "relu.forward");
    call.operand[1].dtype = TW_F32; /* weights of another type */
    CHECK_FAILS(prepare(&d, kernels[2], &call), TW_ERROR_UNSUPPORTED, "all in f16");
    dnn_call(&call, &run);
    call.operand[0].shape.dim[0] = call.operand[3].shape.dim[0] = 0; /* no samples */
    CHECK_FAILS(prepare(&d, kernels[2], &call), TW_ERROR_UNSUPPORTED, "one element or more");
    dnn_call(&call, &run);
    call.operand[3].shape.dim[2]--; /* an output that is too small */
    CHECK_FAILS(prepare(&d, kernels[2], &call), TW_ERROR_UNSUPPORTED, "does not fit");
    dnn_call(&call, &run);
    call.operand[2].stride[0] = 2; /* a bias with gaps */
    CHECK_FAILS(prepare(&d, kernels[2], &call), TW_ERROR_UNSUPPORTED, "cuDNN");
    const dnn_run weights = {.c = &some, .kernel = kernels[4], .dtype = TW_F16};
    dnn_call(&call, &weights);
    for (int axis = 0; axis < 4; axis++) call.operand[2].stride[axis] *= 2;
    CHECK_FAILS(prepare(&d, kernels[4], &call), TW_ERROR_UNSUPPORTED, "dense");
    twi_cuda_dnn *dnn = d.device.dnn;
    d.device.dnn = NULL;
    CHECK_FAILS(prepare(&d, kernels[4], &call), TW_ERROR_UNSUPPORTED, "not opened");
    d.device.dnn = dnn;
    dnn_device_close(&d);
}

static int leave_clean(void **state) {
    (void)state;
    cudnn_stand_in_retire(0);
    cudnn_stand_in_set_version(0);
    emu_reset();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_case_in_f32, leave_clean),
        cmocka_unit_test_teardown(every_case_in_f16, leave_clean),
        cmocka_unit_test_teardown(every_case_in_bf16, leave_clean),
        cmocka_unit_test_teardown(a_plan_with_workspace_and_a_gradient_of_halves, leave_clean),
        cmocka_unit_test_teardown(other_layouts_graphs_and_not_a_number, leave_clean),
        cmocka_unit_test_teardown(calls_that_are_not_for_it_are_refused, leave_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
