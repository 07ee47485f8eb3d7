/* Shape rules of the ops, asked directly: sizes as PyTorch 1.13 gives them, and what every bad parameter is answered. */
#include "backend/attrs.h"
#include "ops/op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct query {
    const char *op;
    const void *attrs;
    twi_shape input[2]; /* the second: rank 0 if there is none */
} query;

/* Runs a shape rule on a node called "probe". Ops take a batched first input; of add, two. */
static tw_status ask(const query *q, twi_shape *out) {
    twi_infer infer = {.op = twi_registry_find(&twi_registry_builtin, q->op), .name = "probe", .attrs = q->attrs};
    assert_non_null(infer.op);
    infer.input_count = q->input[1].rank ? 2 : 1;
    for (int i = 0; i < infer.input_count; i++) {
        infer.input[i] = q->input[i];
        infer.batched[i] = i == 0 || strcmp(q->op, "add") == 0;
    }
    tw_clear_error();
    tw_status status = infer.op->infer(&infer);
    *out = infer.output[0];
    return status;
}

static void expect_shape(const query *q, const char *expected) {
    twi_shape shape;
    char text[TWI_SHAPE_TEXT];
    tw_status status = ask(q, &shape);
    if (status) fail_msg("%s: %s: %s", q->op, tw_status_name(status), tw_last_error());
    assert_string_equal(twi_shape_text(&shape, text), expected);
}

/* The message must name op and node, and hold each of the texts separated by '|'. */
static void expect_failure(const query *q, tw_status expected, const char *texts) {
    twi_shape shape;
    char rest[200], *part, *state = rest;
    tw_status status = ask(q, &shape);
    if (status != expected)
        fail_msg("%s: %s instead of %s (%s)", q->op, tw_status_name(status), tw_status_name(expected), texts);
    snprintf(rest, sizeof rest, "%s|%s|'probe'", texts, q->op);
    while (state) {
        part = state;
        if ((state = strchr(part, '|')) != NULL) *state++ = 0;
        if (!strstr(tw_last_error(), part)) fail_msg("\"%s\" is not in \"%s\"", part, tw_last_error());
    }
}

#define SHAPE(...)                                                                 \
    {                                                                              \
        (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), { __VA_ARGS__ } \
    }

/* ---- convolution ---- */

static const twi_conv2d_attrs plain = {1, 1, 0, 0, 0, 0, 1, 1, 1};

static void conv2d_sizes(void **state) {
    (void)state;
    static const struct {
        twi_conv2d_attrs attrs;
        twi_shape x, w;
        const char *y;
    } rows[] = {
        {{1, 1, 0, 0, 0, 0, 1, 1, 1}, SHAPE(8, 1, 28, 28), SHAPE(6, 1, 5, 5), "[8, 6, 24, 24]"},
        {{1, 1, 1, 1, 1, 1, 1, 1, 1}, SHAPE(2, 3, 5, 7), SHAPE(4, 3, 3, 3), "[2, 4, 5, 7]"},
        {{2, 2, 3, 3, 3, 3, 1, 1, 1}, SHAPE(1, 3, 224, 224), SHAPE(64, 3, 7, 7), "[1, 64, 112, 112]"},
        {{2, 3, 0, 1, 2, 3, 1, 1, 1}, SHAPE(1, 1, 8, 9), SHAPE(1, 1, 3, 2), "[1, 1, 4, 4]"},
        {{1, 2, 0, 0, 0, 0, 3, 2, 1}, SHAPE(1, 2, 9, 9), SHAPE(5, 2, 3, 4), "[1, 5, 3, 2]"},
        {{1, 1, 1, 1, 1, 1, 1, 1, 3}, SHAPE(1, 6, 4, 4), SHAPE(9, 2, 3, 3), "[1, 9, 4, 4]"},
        {{9, 9, 0, 0, 0, 0, 1, 1, 1}, SHAPE(1, 1, 3, 3), SHAPE(1, 1, 3, 3), "[1, 1, 1, 1]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_shape(&(query){"conv2d", &rows[i].attrs, {rows[i].x, rows[i].w}}, rows[i].y);
}

static void conv2d_bad_parameters(void **state) {
    (void)state;
    const twi_shape x = SHAPE(2, 4, 5, 6), w = SHAPE(6, 4, 3, 3);
    static const struct {
        size_t offset;
        int32_t value;
        tw_status status;
        const char *texts;
    } rows[] = {
        {offsetof(twi_conv2d_attrs, groups), 0, TW_ERROR_ARGUMENT, "groups is 0"},
        {offsetof(twi_conv2d_attrs, groups), -1, TW_ERROR_ARGUMENT, "groups is -1"},
        {offsetof(twi_conv2d_attrs, groups), INT32_MIN, TW_ERROR_ARGUMENT, "groups is -2147483648"},
        {offsetof(twi_conv2d_attrs, groups), 3, TW_ERROR_ARGUMENT, "groups is 3|[2, 4, 5, 6]|[6, 4, 3, 3]"},
        {offsetof(twi_conv2d_attrs, groups), 4, TW_ERROR_ARGUMENT, "groups is 4|6 filters"},
        {offsetof(twi_conv2d_attrs, groups), 2, TW_ERROR_SHAPE, "groups 2|[2, 4, 5, 6]|[6, 4, 3, 3]"},
        {offsetof(twi_conv2d_attrs, stride_h), 0, TW_ERROR_ARGUMENT, "stride_h is 0"},
        {offsetof(twi_conv2d_attrs, stride_w), -2, TW_ERROR_ARGUMENT, "stride_w is -2"},
        {offsetof(twi_conv2d_attrs, dilation_h), 0, TW_ERROR_ARGUMENT, "dilation_h is 0"},
        {offsetof(twi_conv2d_attrs, dilation_w), INT32_MIN, TW_ERROR_ARGUMENT, "dilation_w is -2147483648"},
        {offsetof(twi_conv2d_attrs, pad_top), -1, TW_ERROR_ARGUMENT, "pad_top is -1"},
        {offsetof(twi_conv2d_attrs, pad_left), -1, TW_ERROR_ARGUMENT, "pad_left is -1"},
        {offsetof(twi_conv2d_attrs, pad_bottom), -7, TW_ERROR_ARGUMENT, "pad_bottom is -7"},
        {offsetof(twi_conv2d_attrs, pad_right), -1, TW_ERROR_ARGUMENT, "pad_right is -1"},
        {offsetof(twi_conv2d_attrs, dilation_h), 3, TW_ERROR_SHAPE, "kernel_h 3|7 with dilation 3|0 + 5 + 0"},
        {offsetof(twi_conv2d_attrs, dilation_w), INT32_MAX, TW_ERROR_SHAPE, "kernel_w 3|4294967295|0 + 6 + 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        twi_conv2d_attrs attrs = plain;
        memcpy((char *)&attrs + rows[i].offset, &rows[i].value, sizeof rows[i].value);
        expect_failure(&(query){"conv2d", &attrs, {x, w}}, rows[i].status, rows[i].texts);
        expect_shape(&(query){"conv2d", &plain, {x, w}}, "[2, 6, 3, 4]"); /* and life goes on */
    }
}

static void conv2d_bad_shapes(void **state) {
    (void)state;
    static const struct {
        twi_shape x, w;
        tw_status status;
        const char *texts;
    } rows[] = {
        {SHAPE(2, 3, 5, 5), SHAPE(6, 4, 3, 3), TW_ERROR_SHAPE, "[2, 3, 5, 5]|[6, 4, 3, 3]|3 channels"},
        {SHAPE(2, 3, 2, 5), SHAPE(6, 3, 3, 3), TW_ERROR_SHAPE, "kernel_h 3|0 + 2 + 0"},
        {SHAPE(2, 12), SHAPE(6, 3, 3, 3), TW_ERROR_SHAPE, "[2, 12]|4 axes"},
        {SHAPE(2, 3, 5, 5), SHAPE(6, 27), TW_ERROR_SHAPE, "weight|[6, 27]|4 axes"},
        {SHAPE(2, 0, 5, 5), SHAPE(6, 0, 3, 3), TW_ERROR_SHAPE, "1 channel"},
        {SHAPE(2, 3, 0, 5), SHAPE(6, 3, 1, 1), TW_ERROR_ARGUMENT, "image size h is 0"},
        {SHAPE(2, 3, 5, 5), SHAPE(6, 3, 3, 0), TW_ERROR_ARGUMENT, "kernel_w is 0"},
        {SHAPE(1 << 20, 1, 1 << 18, 1 << 18), SHAPE(1 << 20, 1, 1, 1), TW_ERROR_OVERFLOW, "[1048576, 1048576,"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_failure(&(query){"conv2d", &plain, {rows[i].x, rows[i].w}}, rows[i].status, rows[i].texts);
    const twi_conv2d_attrs dilated = {1, 1, 0, 0, 0, 0, INT32_MAX, 1, 1};
    expect_failure(&(query){"conv2d", &dilated, {SHAPE(1, 1, 9, 9), SHAPE(1, 1, (int64_t)1 << 40, 1)}},
                   TW_ERROR_OVERFLOW, "kernel_h 1099511627776|dilation_h 2147483647");
}

static void batch_where_it_belongs(void **state) {
    (void)state;
    twi_infer infer = {.op = twi_registry_find(&twi_registry_builtin, "conv2d"), .name = "probe", .attrs = &plain};
    infer.input_count = 2;
    infer.input[0] = (twi_shape)SHAPE(2, 3, 5, 5);
    infer.input[1] = (twi_shape)SHAPE(6, 3, 3, 3);
    assert_int_equal(infer.op->infer(&infer), TW_ERROR_ARGUMENT);
    assert_non_null(strstr(tw_last_error(), "no batch axis"));
    infer.batched[0] = infer.batched[1] = true;
    assert_int_equal(infer.op->infer(&infer), TW_ERROR_ARGUMENT);
    assert_non_null(strstr(tw_last_error(), "the weight [6, 3, 3, 3] has a batch axis"));
}

/* ---- pooling ---- */

/* Image sides, kernel, stride, padding: positions rounded down and up. The first five are the sizes that others got wrong. */
static void pool_sizes(void **state) {
    (void)state;
    static const struct {
        int32_t size, kernel, stride, padding;
        const char *floor, *ceil;
    } rows[] = {
        {5, 2, 2, 1, "[1, 1, 3, 3]", "[1, 1, 3, 3]"},       {6, 1, 2, 0, "[1, 1, 3, 3]", "[1, 1, 3, 3]"},
        {8, 3, 4, 0, "[1, 1, 2, 2]", "[1, 1, 2, 2]"},       {9, 4, 4, 2, "[1, 1, 3, 3]", "[1, 1, 3, 3]"},
        {5, 3, 3, 1, "[1, 1, 2, 2]", "[1, 1, 2, 2]"},       {4, 3, 2, 1, "[1, 1, 2, 2]", "[1, 1, 3, 3]"},
        {7, 2, 2, 0, "[1, 1, 3, 3]", "[1, 1, 4, 4]"},       {1, 1, 1, 0, "[1, 1, 1, 1]", "[1, 1, 1, 1]"},
        {112, 3, 2, 1, "[1, 1, 56, 56]", "[1, 1, 57, 57]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t k = rows[i].kernel, s = rows[i].stride, p = rows[i].padding;
        twi_pool_attrs attrs = {k, k, s, s, p, p, p, p, false, false};
        query q = {"max_pool", &attrs, {SHAPE(1, 1, rows[i].size, rows[i].size)}};
        expect_shape(&q, rows[i].floor);
        attrs.ceil_mode = true;
        expect_shape(&q, rows[i].ceil);
        q.op = "avg_pool";
        expect_shape(&q, rows[i].ceil);
    }
    twi_pool_attrs uneven = {3, 2, 2, 1, 0, 1, 2, 0, false, false};
    expect_shape(&(query){"avg_pool", &uneven, {SHAPE(4, 5, 6, 7)}}, "[4, 5, 3, 7]");
    twi_pool_attrs overhang = {3, 3, 3, 3, 0, 0, 0, 0, true, false};
    expect_shape(&(query){"max_pool", &overhang, {SHAPE(1, 2, 1, 2)}}, "[1, 2, 1, 1]");
}

static void pool_bad_parameters(void **state) {
    (void)state;
    static const struct {
        const char *op;
        twi_pool_attrs attrs;
        tw_status status;
        const char *texts;
    } rows[] = {
        {"max_pool", {0, 2, 1, 1, 0, 0, 0, 0, false, false}, TW_ERROR_ARGUMENT, "kernel_h is 0"},
        {"avg_pool", {2, -1, 1, 1, 0, 0, 0, 0, false, false}, TW_ERROR_ARGUMENT, "kernel_w is -1"},
        {"max_pool", {2, 2, 0, 1, 0, 0, 0, 0, true, false}, TW_ERROR_ARGUMENT, "stride_h is 0"},
        {"avg_pool", {2, 2, 1, 0, 0, 0, 0, 0, false, true}, TW_ERROR_ARGUMENT, "stride_w is 0"},
        {"max_pool", {2, 2, 1, 1, -1, 0, 0, 0, false, false}, TW_ERROR_ARGUMENT, "pad_top is -1"},
        {"max_pool", {2, 2, 1, 1, 0, 0, 0, -3, false, false}, TW_ERROR_ARGUMENT, "pad_right is -3"},
        {"max_pool", {2, 2, 1, 1, 2, 0, 0, 0, false, false}, TW_ERROR_ARGUMENT, "pad_top is 2|kernel_h, 2"},
        {"avg_pool", {3, 3, 1, 1, 0, 3, 0, 0, false, false}, TW_ERROR_ARGUMENT, "pad_left is 3|kernel_w, 3"},
        {"avg_pool", {3, 3, 1, 1, 0, 0, 4, 0, true, false}, TW_ERROR_ARGUMENT, "pad_bottom is 4|kernel_h, 3"},
        {"max_pool", {6, 2, 1, 1, 0, 0, 0, 0, false, false}, TW_ERROR_SHAPE, "kernel_h 6|0 + 5 + 0"},
        {"max_pool", {8, 2, 1, 1, 1, 0, 1, 0, true, false}, TW_ERROR_SHAPE, "kernel_h 8|1 + 5 + 1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_failure(&(query){rows[i].op, &rows[i].attrs, {SHAPE(2, 3, 5, 6)}}, rows[i].status, rows[i].texts);
    const twi_pool_attrs huge = {16, 16, 1, 1, 0, 0, 0, 0, false, false};
    expect_failure(&(query){"max_pool", &huge, {SHAPE(1, 1, 20, 20)}}, TW_ERROR_ARGUMENT, "16 x 16|255");
    expect_shape(&(query){"avg_pool", &huge, {SHAPE(1, 1, 20, 20)}}, "[1, 1, 5, 5]");
    expect_failure(&(query){"max_pool", &huge, {SHAPE(1, 400)}}, TW_ERROR_SHAPE, "[1, 400]|4 axes");
}

static void global_pool(void **state) {
    (void)state;
    expect_shape(&(query){"global_avg_pool", NULL, {SHAPE(2, 3, 4, 5)}}, "[2, 3, 1, 1]");
    expect_failure(&(query){"global_avg_pool", NULL, {SHAPE(2, 3)}}, TW_ERROR_SHAPE, "[2, 3]|4 axes");
    expect_failure(&(query){"global_avg_pool", NULL, {SHAPE(2, 3, 0, 5)}}, TW_ERROR_SHAPE, "[2, 3, 0, 5]");
}

/* ---- the others ---- */

static void dense(void **state) {
    (void)state;
    expect_shape(&(query){"dense", NULL, {SHAPE(5, 7), SHAPE(3, 7)}}, "[5, 3]");
    expect_failure(&(query){"dense", NULL, {SHAPE(5, 7), SHAPE(7, 3)}}, TW_ERROR_SHAPE, "[5, 7]|7 features|[7, 3]");
    expect_failure(&(query){"dense", NULL, {SHAPE(5, 7, 1, 1), SHAPE(3, 7)}}, TW_ERROR_SHAPE, "2 axes|flatten");
    expect_failure(&(query){"dense", NULL, {SHAPE(5, 0), SHAPE(3, 0)}}, TW_ERROR_SHAPE, "1 or more");
    expect_failure(&(query){"dense", NULL, {SHAPE((int64_t)1 << 40, 1), SHAPE(1 << 30, 1)}}, TW_ERROR_OVERFLOW, "");
}

static void bias(void **state) {
    (void)state;
    expect_shape(&(query){"bias", NULL, {SHAPE(5, 7), SHAPE(7)}}, "[5, 7]");
    expect_shape(&(query){"bias", NULL, {SHAPE(5, 7, 2, 3), SHAPE(7)}}, "[5, 7, 2, 3]");
    expect_failure(&(query){"bias", NULL, {SHAPE(5, 7, 2, 3), SHAPE(3)}}, TW_ERROR_SHAPE,
                   "[5, 7, 2, 3]|7 channels|[3]");
    expect_failure(&(query){"bias", NULL, {SHAPE(5, 7), SHAPE(1, 7)}}, TW_ERROR_SHAPE, "[1, 7]|1 axes");
    expect_failure(&(query){"bias", NULL, {SHAPE(5), SHAPE(5)}}, TW_ERROR_SHAPE, "[5]|2 axes");
}

static void element_wise(void **state) {
    (void)state;
    expect_shape(&(query){"relu", NULL, {SHAPE(5, 7, 2)}}, "[5, 7, 2]");
    expect_shape(&(query){"add", NULL, {SHAPE(5, 7, 2), SHAPE(5, 7, 2)}}, "[5, 7, 2]");
    expect_failure(&(query){"add", NULL, {SHAPE(5, 7, 2), SHAPE(5, 1, 2)}}, TW_ERROR_SHAPE, "[5, 7, 2]|[5, 1, 2]");
    expect_failure(&(query){"add", NULL, {SHAPE(5, 7), SHAPE(5, 7, 1)}}, TW_ERROR_SHAPE, "[5, 7]|[5, 7, 1]");
}

static void reshape_and_flatten(void **state) {
    (void)state;
    const twi_shape x = SHAPE(2, 3, 4, 5);
    expect_shape(&(query){"flatten", NULL, {x}}, "[2, 60]");
    expect_shape(&(query){"flatten", NULL, {SHAPE(7)}}, "[7, 1]");
    static const struct {
        twi_reshape_attrs attrs;
        const char *y; /* NULL: an error */
    } rows[] = {
        {{1, {60}}, "[2, 60]"},
        {{3, {5, 4, 3}}, "[2, 5, 4, 3]"},
        {{2, {-1, 6}}, "[2, 10, 6]"},
        {{1, {-1}}, "[2, 60]"},
        {{2, {7, -1}}, NULL},
        {{2, {-1, -1}}, NULL},
        {{1, {59}}, NULL},
        {{2, {0, -1}}, NULL},
        {{0, {0}}, NULL},
        {{2, {-2, -30}}, NULL},
        {{3, {(int64_t)1 << 40, (int64_t)1 << 40, 60}}, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        query q = {"reshape", &rows[i].attrs, {x}};
        if (rows[i].y)
            expect_shape(&q, rows[i].y);
        else
            expect_failure(&q, TW_ERROR_SHAPE, "[2, 3, 4, 5]|60 elements");
    }
    const twi_reshape_attrs deep = {TW_MAX_RANK, {60, 1, 1, 1, 1, 1}}, negative = {-1, {0}};
    expect_failure(&(query){"reshape", &deep, {x}}, TW_ERROR_ARGUMENT, "rank is 6");
    expect_failure(&(query){"reshape", &negative, {x}}, TW_ERROR_ARGUMENT, "rank is -1");
    expect_shape(&(query){"reshape", &(twi_reshape_attrs){0, {0}}, {SHAPE(3, 1, 1)}}, "[3]");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv2d_sizes),
        cmocka_unit_test(conv2d_bad_parameters),
        cmocka_unit_test(conv2d_bad_shapes),
        cmocka_unit_test(batch_where_it_belongs),
        cmocka_unit_test(pool_sizes),
        cmocka_unit_test(pool_bad_parameters),
        cmocka_unit_test(global_pool),
        cmocka_unit_test(dense),
        cmocka_unit_test(bias),
        cmocka_unit_test(element_wise),
        cmocka_unit_test(reshape_and_flatten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
