/* oneDNN's convolutions through the back end's runner, against sums in double; skipped where there is no oneDNN. */
#include "hand_plan.h"
#include "backend/cpu/onednn.h"
#include "backend/attrs.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_WORKERS = 3 };

/* ---- the kernels, without loops of their own: nothing else can be chosen ---- */

static double plenty(const twi_call *call) {
    (void)call;
    return 1e9;
}

/* clang-format off */
#define READ(name, reach) {name, TWI_READ, TWI_REAL, reach, 0}
static const twi_kernel forward = {
    .name = "conv2d.forward", .operand_count = 3, .flops = plenty,
    .operand = {READ("x", TWI_BATCHED), READ("w", TWI_WHOLE), {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}}};
static const twi_kernel forward_bias = {
    .name = "conv2d.forward_bias", .operand_count = 4, .flops = plenty,
    .operand = {READ("x", TWI_BATCHED), READ("w", TWI_WHOLE), READ("b", TWI_WHOLE),
                {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}}};
static const twi_kernel forward_bias_relu = {
    .name = "conv2d.forward_bias_relu", .operand_count = 4, .flops = plenty,
    .operand = {READ("x", TWI_BATCHED), READ("w", TWI_WHOLE), READ("b", TWI_WHOLE),
                {"y", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}}};
static const twi_kernel backward_data = {
    .name = "conv2d.backward_data", .operand_count = 3, .flops = plenty,
    .operand = {READ("dy", TWI_BATCHED), READ("w", TWI_WHOLE), {"dx", TWI_WRITE, TWI_REAL, TWI_BATCHED, 0}}};
static const twi_kernel backward_weights = {
    .name = "conv2d.backward_weights", .operand_count = 3, .flops = plenty,
    .operand = {READ("x", TWI_BATCHED), READ("dy", TWI_BATCHED), {"dw", TWI_WRITE, TWI_ACC, TWI_SUMMED, 0}}};
/* clang-format on */

typedef struct conv_case {
    int64_t n, c, h, w, o, kh, kw;
    twi_conv2d_attrs attrs;
    int64_t chunk;
    int groups;
} conv_case;

/* stride, padding top left bottom right, dilation, groups */
static const conv_case cases[] = {
    {8, 16, 9, 7, 16, 5, 3, {1, 1, 2, 1, 2, 1, 1, 1, 1}, 4, 2},   /* as wide as it is */
    {7, 16, 10, 10, 32, 3, 3, {2, 2, 1, 1, 1, 1, 1, 1, 1}, 2, 3}, /* strided; a last chunk of one */
    {5, 32, 8, 8, 64, 1, 1, {2, 2, 0, 0, 0, 0, 1, 1, 1}, 2, 2},   /* a shortcut */
    {6, 16, 8, 9, 24, 3, 2, {1, 2, 0, 1, 2, 0, 1, 1, 1}, 4, 2},   /* padded otherwise on each side */
    {4, 24, 7, 7, 40, 3, 3, {1, 1, 2, 2, 2, 2, 2, 2, 1}, 3, 2},   /* dilated; channels that fill no vector of 16 */
    {4, 24, 6, 6, 40, 3, 2, {1, 1, 1, 1, 1, 0, 1, 1, 1}, 2, 2},   /* no square, which Winograd would take */
    {3, 64, 4, 4, 16, 1, 1, {1, 1, 0, 0, 0, 0, 1, 1, 1}, 3, 1},   /* one group */
    {4, 24, 6, 6, 40, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}, 2, 2}, /* channels that do not fill Winograd's vectors of 16 */
};
/* The last is Winograd's where vectors are shorter. */
static int case_count(void) { return (int)(sizeof cases / sizeof cases[0]) - (twi_cpu_isa() < TWI_ISA_AVX512); }

static int64_t out_size(int64_t in, int64_t k, int32_t stride, int32_t before, int32_t after, int32_t dilation) {
    return (in + before + after - (k - 1) * dilation - 1) / stride + 1;
}

/* The four buffers of a case: x, w, y, bias. */
typedef struct conv {
    hand h;
    const conv_case *c;
    int x, w, y, b;
} conv;

static void conv_open(conv *v, const conv_case *c, int threads) {
    v->c = c;
    hand_open(&v->h, threads);
    const twi_conv2d_attrs *a = &c->attrs;
    int64_t p = out_size(c->h, c->kh, a->stride_h, a->pad_top, a->pad_bottom, a->dilation_h);
    int64_t q = out_size(c->w, c->kw, a->stride_w, a->pad_left, a->pad_right, a->dilation_w);
    v->x = hand_buffer(&v->h, TWI_PLACE_ARENA, true, DIMS(c->n, c->c, c->h, c->w));
    v->w = hand_buffer(&v->h, TWI_PLACE_ARENA, false, DIMS(c->o, c->c, c->kh, c->kw));
    v->y = hand_buffer(&v->h, TWI_PLACE_ARENA, true, DIMS(c->n, c->o, p, q));
    v->b = hand_buffer(&v->h, TWI_PLACE_ARENA, false, DIMS(c->o));
    hand_segment(&v->h, TWI_BY_SAMPLE, c->n, c->chunk, c->groups);
}

/* Prepares the one step by oneDNN and fills all buffers. */
static void conv_ready(conv *v, const twi_kernel *kernel, const int *operands) {
    int step = hand_step(&v->h, kernel, NULL, &v->c->attrs, operands);
    assert_int_equal(hand_choose(&v->h), TW_OK);
    assert_string_equal(v->h.step[step].choice.implementation, "onednn");
    assert_int_equal(hand_bind(&v->h), TW_OK);
    for (int buffer = 0; buffer < 4; buffer++) hand_fill(&v->h, buffer);
}

/* ---- the reference: every product pairs one element each of x, w and y ---- */

/* sum[k] and size[k]: the sum of products that make element k of `result`, and of their magnitudes. */
static void reference(const conv *v, int result, double *sum, double *size) {
    const twi_conv2d_attrs *a = &v->c->attrs;
    const twi_buffer_plan *bx = &v->h.buffer[v->x], *bw = &v->h.buffer[v->w], *by = &v->h.buffer[v->y];
    const float *x = hand_data(&v->h, v->x), *w = hand_data(&v->h, v->w), *y = hand_data(&v->h, v->y);
    for (int64_t n = 0; n < v->c->n; n++)
        for (int64_t o = 0; o < v->c->o; o++)
            for (int64_t p = 0; p < by->shape.dim[2]; p++)
                for (int64_t q = 0; q < by->shape.dim[3]; q++)
                    for (int64_t c = 0; c < v->c->c; c++)
                        for (int64_t i = 0; i < v->c->kh; i++)
                            for (int64_t j = 0; j < v->c->kw; j++) {
                                int64_t row = p * a->stride_h - a->pad_top + i * a->dilation_h;
                                int64_t column = q * a->stride_w - a->pad_left + j * a->dilation_w;
                                if (row < 0 || row >= v->c->h || column < 0 || column >= v->c->w) continue;
                                int64_t at_x = n * bx->stride[0] + c * bx->stride[1] + row * bx->stride[2] +
                                               column * bx->stride[3];
                                int64_t at_w =
                                    o * bw->stride[0] + c * bw->stride[1] + i * bw->stride[2] + j * bw->stride[3];
                                int64_t at_y =
                                    n * by->stride[0] + o * by->stride[1] + p * by->stride[2] + q * by->stride[3];
                                int64_t at = result == v->x ? at_x : result == v->w ? at_w : at_y;
                                double product = result == v->x   ? (double)w[at_w] * y[at_y]
                                                 : result == v->w ? (double)x[at_x] * y[at_y]
                                                                  : (double)x[at_x] * w[at_w];
                                sum[at] += product;
                                size[at] += fabs(product);
                            }
}

/* Channels are innermost, so element k of y belongs to filter k mod o. */
static void add_bias(const conv *v, double *sum, double *size, bool relu) {
    for (int64_t k = 0; k < hand_count(&v->h, v->y); k++) {
        double bias = hand_data(&v->h, v->b)[k % v->c->o];
        sum[k] += bias;
        size[k] += fabs(bias);
        if (relu && sum[k] < 0) sum[k] = 0;
    }
}

static void check(const conv_case *c, const twi_kernel *kernel, int result, const int *operands, bool bias, bool relu) {
    float *first = NULL;
    for (int threads = 1; threads <= MOST_WORKERS; threads++) {
        conv v;
        conv_open(&v, c, threads);
        conv_ready(&v, kernel, operands);
        int64_t count = hand_count(&v.h, result);
        double *sum = calloc((size_t)count, sizeof *sum), *size = calloc((size_t)count, sizeof *size);
        if (!first) first = calloc((size_t)count, sizeof *first);
        assert_true(sum && size && first);
        reference(&v, result, sum, size);
        if (bias) add_bias(&v, sum, size, relu);
        float *got = hand_data(&v.h, result);
        memset(got, 0xff, (size_t)count * sizeof *got); /* not-a-number: what is left out shows */
        hand_run(&v.h);
        for (int64_t k = 0; k < count; k++)
            if (!(fabs(got[k] - sum[k]) <= 1e-6 * size[k] + 1e-12))
                fail_msg("case %d, %s, element %d: %g, expected %g", (int)(c - cases), kernel->name, (int)k,
                         (double)got[k], sum[k]);
        hand_run(&v.h); /* a second run starts afresh */
        if (threads == 1) memcpy(first, got, (size_t)count * sizeof *got);
        assert_memory_equal(got, first, (size_t)count * sizeof *got);
        assert_int_equal(v.h.control.fault.code, 0);
        free(sum);
        free(size);
        hand_close(&v.h);
    }
    free(first);
}

static void skip_without(void) {
    if (!twi_cpu_onednn_impls[0].kernel) {
        print_message("skipped: built without oneDNN\n");
        skip();
    }
    if (twi_cpu_isa() < TWI_ISA_AVX2) {
        print_message("skipped: no AVX2 here\n");
        skip();
    }
}

enum { X, W, Y, B }; /* the buffers in the order of conv_open */

static void test_forward(void **state) {
    (void)state;
    skip_without();
    for (int i = 0; i < case_count(); i++) check(&cases[i], &forward, Y, OPERANDS(X, W, Y), false, false);
}
static void test_forward_bias(void **state) {
    (void)state;
    skip_without();
    for (int i = 0; i < case_count(); i++) check(&cases[i], &forward_bias, Y, OPERANDS(X, W, B, Y), true, false);
}
static void test_forward_bias_relu(void **state) {
    (void)state;
    skip_without();
    for (int i = 0; i < case_count(); i++) check(&cases[i], &forward_bias_relu, Y, OPERANDS(X, W, B, Y), true, true);
}
static void test_backward_data(void **state) {
    (void)state;
    skip_without();
    for (int i = 0; i < case_count(); i++) check(&cases[i], &backward_data, X, OPERANDS(Y, W, X), false, false);
}
static void test_backward_weights(void **state) {
    (void)state;
    skip_without();
    for (int i = 0; i < case_count(); i++) check(&cases[i], &backward_weights, W, OPERANDS(X, Y, W), false, false);
}

/* A first layer's three colours: forward and weights, not the gradient nobody wants. Few images are conv_pixels_impls.c's. */
static void test_colours(void **state) {
    (void)state;
    skip_without();
    static const conv_case colours = {20, 3, 12, 12, 16, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}, 8, 3};
    check(&colours, &forward, Y, OPERANDS(X, W, Y), false, false);
    check(&colours, &backward_weights, W, OPERANDS(X, Y, W), false, false);
}

static void test_not_a_number_passes_relu(void **state) {
    (void)state;
    skip_without();
    conv v;
    conv_open(&v, &cases[0], 1);
    conv_ready(&v, &forward_bias_relu, OPERANDS(X, W, B, Y));
    hand_data(&v.h, v.b)[3] = NAN;
    hand_run(&v.h);
    for (int64_t k = 0; k < hand_count(&v.h, v.y); k++)
        assert_int_equal(isnan(hand_data(&v.h, v.y)[k]) != 0, k % v.c->o == 3);
    hand_close(&v.h);
}

static const char *refusal(const conv_case *c, const twi_kernel *kernel, const int *operands, uint8_t dtype,
                           twi_isa isa) {
    conv v;
    conv_open(&v, c, 1);
    hand_step(&v.h, kernel, NULL, &c->attrs, operands);
    twi_call call = {.attrs = &c->attrs, .operand_count = kernel->operand_count};
    for (int o = 0; o < call.operand_count; o++) {
        call.operand[o].shape = v.h.buffer[operands[o]].shape;
        memcpy(call.operand[o].stride, v.h.buffer[operands[o]].stride, sizeof call.operand[o].stride);
        call.operand[o].store = TWI_REAL;
        call.operand[o].dtype = dtype;
    }
    const twi_cpu_impl *impl = twi_cpu_onednn_impls;
    while (strcmp(impl->kernel, kernel->name) != 0) impl++;
    const char *reason = impl->refuse(&call, isa);
    hand_close(&v.h);
    return reason;
}

static void test_refusals(void **state) {
    (void)state;
    skip_without();
    conv_case c = cases[0];
    const int *xwy = OPERANDS(X, W, Y);
    assert_null(refusal(&c, &forward, xwy, TW_F32, TWI_ISA_AVX2));
    assert_non_null(refusal(&c, &forward, xwy, TW_F32, TWI_ISA_BASELINE));
    assert_non_null(refusal(&c, &forward, xwy, TW_BF16, TWI_ISA_AVX2));
    for (c.o = 6; c.o <= 20; c.o += 14) assert_non_null(refusal(&c, &forward, xwy, TW_F32, TWI_ISA_AVX2));
    c.o = 16;
    c.c = 3;
    assert_null(refusal(&c, &forward, xwy, TW_F32, TWI_ISA_AVX2));
    assert_non_null(refusal(&c, &backward_data, OPERANDS(Y, W, X), TW_F32, TWI_ISA_AVX2));
    c = cases[0];
    c.attrs.groups = 2;
    assert_non_null(refusal(&c, &forward, xwy, TW_F32, TWI_ISA_AVX2));
    /* 2.4 MB of weights for 124 and for 128 pixels */
    conv_case heavy = {31, 256, 2, 2, 256, 3, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1}, 31, 1};
    const int *data = OPERANDS(Y, W, X), *weights = OPERANDS(X, Y, W);
    assert_non_null(strstr(refusal(&heavy, &forward, xwy, TW_F32, TWI_ISA_AVX2), "pixels"));
    assert_non_null(strstr(refusal(&heavy, &backward_weights, weights, TW_F32, TWI_ISA_AVX2), "pixels"));
    assert_null(refusal(&heavy, &backward_data, data, TW_F32, TWI_ISA_AVX2));
    heavy.n = heavy.chunk = 32;
    assert_null(refusal(&heavy, &forward, xwy, TW_F32, TWI_ISA_AVX2));
    assert_null(refusal(&heavy, &backward_weights, weights, TW_F32, TWI_ISA_AVX2));
}

/* Threads of this process now. */
static int thread_count(void) {
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    int count = -2; /* . and .. */
    while (readdir(tasks)) count++;
    closedir(tasks);
    return count;
}

/* Workers are threads already: oneDNN starts none, and the caller keeps what it had granted to OpenMP. */
static void test_no_threads_of_its_own(void **state) {
    (void)state;
    skip_without();
    int before = twi_onednn_enter(); /* 0: this oneDNN is built without OpenMP */
    twi_onednn_leave(before ? 3 : 0);
    conv v;
    conv_open(&v, &cases[0], 1);
    conv_ready(&v, &forward, OPERANDS(X, W, Y));
    hand_run(&v.h);
    hand_close(&v.h);
    assert_int_equal(thread_count(), 1);
    assert_int_equal(twi_onednn_enter(), before ? 3 : 0);
    assert_int_equal(twi_onednn_enter(), before ? 1 : 0);
    twi_onednn_leave(before);
}

static bool fail_at(void *user, uint64_t index, size_t bytes) {
    (void)bytes;
    return index == *(uint64_t *)user;
}

static void test_allocation_failures(void **state) {
    (void)state;
    skip_without();
    conv v;
    conv_open(&v, &cases[1], 2);
    hand_step(&v.h, &backward_weights, NULL, &cases[1].attrs, OPERANDS(X, Y, W));
    uint64_t blocks = tw_context_get_memory(v.h.context).blocks, k = 0;
    tw_status status = TW_ERROR_OUT_OF_MEMORY;
    for (; status; k++) {
        tw_context_set_memory_hook(v.h.context, fail_at, &k);
        status = hand_choose(&v.h);
        tw_context_set_memory_hook(v.h.context, NULL, NULL);
        if (status) {
            assert_int_equal(status, TW_ERROR_OUT_OF_MEMORY);
            assert_int_equal(tw_context_get_memory(v.h.context).blocks, blocks);
        }
    }
    assert_in_range(k, 5, 12);
    hand_close(&v.h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_forward_bias),
        cmocka_unit_test(test_forward_bias_relu),
        cmocka_unit_test(test_backward_data),
        cmocka_unit_test(test_backward_weights),
        cmocka_unit_test(test_colours),
        cmocka_unit_test(test_not_a_number_passes_relu),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_threads_of_its_own),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
