/* Tensors: creation, views that share memory, elements in and out, casts, and every allocation failing once. */
#include "base/context.h"
#include "base/text.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <talweg/tensor.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define DIMS(...) ((const int64_t[]){__VA_ARGS__})

static int setup(void **state) {
    return twi_context_open((tw_context **)state, TW_OPTIONS(context, .threads = 1)) != TW_OK;
}

/* The blocks of the context itself: context, pool, its table of workers. */
enum { OWN_BLOCKS = 3 };

static int teardown(void **state) {
    bool clean = tw_context_get_memory(*state).blocks == OWN_BLOCKS;
    twi_context_close(*state);
    return clean ? 0 : 1;
}

static void assert_error_says(const char *part) {
    if (!strstr(tw_last_error(), part)) fail_msg("\"%s\" does not say \"%s\"", tw_last_error(), part);
}

/* An i32 tensor holding 0, 1, 2, ... */
static tw_tensor *counted(tw_context *context, int rank, const int64_t *dims) {
    tw_tensor *tensor;
    assert_int_equal(tw_tensor_create(&tensor, context, TW_I32, rank, dims), TW_OK);
    int32_t *data = tw_tensor_data(tensor);
    for (int64_t i = 0; i < tw_tensor_count(tensor); i++) data[i] = (int32_t)i;
    return tensor;
}

static void assert_elements(const tw_tensor *tensor, const int32_t *expected, int64_t count) {
    int32_t elements[64];
    assert_int_equal(tw_tensor_count(tensor), count);
    assert_int_equal(tw_tensor_read(tensor, elements, count), TW_OK);
    assert_memory_equal(elements, expected, (size_t)count * sizeof *expected);
}

static void test_zeros(void **state) {
    tw_tensor *t;
    for (int dtype = TW_F32; dtype <= TW_U8; dtype++) {
        assert_int_equal(tw_tensor_create(&t, *state, (tw_dtype)dtype, 3, DIMS(2, 3, 5)), TW_OK);
        assert_int_equal(tw_tensor_get_dtype(t), dtype);
        assert_int_equal(tw_tensor_get_rank(t), 3);
        assert_int_equal(tw_tensor_get_dim(t, 2), 5);
        assert_int_equal(tw_tensor_get_dim(t, 3), 0);
        assert_int_equal(tw_tensor_get_dim(t, -1), 0);
        assert_int_equal(tw_tensor_count(t), 30);
        const unsigned char *bytes = tw_tensor_data(t);
        for (size_t i = 0; i < 30 * tw_dtype_size((tw_dtype)dtype); i++) assert_int_equal(bytes[i], 0);
        tw_tensor_destroy(t);
    }
}

static void test_scalars_and_empty_tensors(void **state) {
    tw_tensor *t;
    const float pi = 3.14159274f;
    float read = 0;
    assert_int_equal(tw_tensor_create_from(&t, *state, TW_F32, 0, NULL, &pi), TW_OK);
    assert_int_equal(tw_tensor_count(t), 1);
    assert_int_equal(tw_tensor_read(t, &read, 1), TW_OK);
    assert_true(read == pi);
    tw_tensor_destroy(t);

    assert_int_equal(tw_tensor_create(&t, *state, TW_F32, 2, DIMS(0, 4)), TW_OK);
    assert_int_equal(tw_tensor_count(t), 0);
    assert_non_null(tw_tensor_data(t));
    assert_int_equal(tw_tensor_read(t, &read, 0), TW_OK);
    tw_tensor *slice, *cast, *flat;
    assert_int_equal(tw_tensor_slice(&slice, t, 1, 1, 2), TW_OK);
    assert_int_equal(tw_tensor_cast(&cast, slice, TW_U8), TW_OK);
    assert_int_equal(tw_tensor_reshape(&flat, slice, 3, DIMS(7, 0, 9)), TW_OK);
    tw_tensor_destroy(flat);
    tw_tensor_destroy(cast);
    tw_tensor_destroy(slice);
    tw_tensor_destroy(t);
}

static void test_arguments_that_are_refused(void **state) {
    tw_context *context = *state;
    tw_tensor *t = (tw_tensor *)1;
    const float data[1] = {0};
    assert_int_equal(tw_tensor_create(NULL, context, TW_F32, 0, NULL), TW_ERROR_ARGUMENT);
    const struct {
        tw_dtype dtype;
        int rank;
        int64_t dims[2];
        tw_status status;
        const char *says;
    } rows[] = {
        {TW_F32, 7, {1, 1}, TW_ERROR_ARGUMENT, "rank 7"},
        {TW_F32, -1, {1, 1}, TW_ERROR_ARGUMENT, "rank -1"},
        {TW_F32, 2, {3, -4}, TW_ERROR_ARGUMENT, "axis 1 is -4"},
        {TW_F32, 2, {INT64_MAX, 2}, TW_ERROR_OVERFLOW, "[9223372036854775807, 2]"},
        {(tw_dtype)9, 2, {1, 1}, TW_ERROR_ARGUMENT, "element type 9"},
        {TW_F32, 2, {(int64_t)1 << 40, 1024}, TW_ERROR_OUT_OF_MEMORY, "out of memory"},
    };
    tw_context_set_memory_limit(context, 1 << 20);
    int64_t dims[7] = {0};
    for (size_t i = 0; i < COUNT(rows); i++) {
        memcpy(dims, rows[i].dims, sizeof rows[i].dims);
        t = (tw_tensor *)1;
        assert_int_equal(tw_tensor_create(&t, context, rows[i].dtype, rows[i].rank, dims), rows[i].status);
        assert_null(t);
        assert_error_says("tw_tensor_create");
        assert_error_says(rows[i].says);
    }
    tw_context_set_memory_limit(context, 0);
    assert_int_equal(tw_tensor_create(&t, NULL, TW_F32, 1, DIMS(1)), TW_ERROR_ARGUMENT);
    assert_int_equal(tw_tensor_create(&t, context, TW_F32, 1, NULL), TW_ERROR_ARGUMENT);
    assert_int_equal(tw_tensor_create_from(&t, context, TW_F32, 1, DIMS(1), NULL), TW_ERROR_ARGUMENT);
    assert_null(t);
    assert_int_equal(tw_tensor_create_from(&t, context, TW_F32, 1, DIMS(1), data), TW_OK);
    assert_int_equal(tw_tensor_write(t, data, 2), TW_ERROR_ARGUMENT);
    assert_error_says("count is 2, but the tensor [1] has 1");
    assert_int_equal(tw_tensor_write(t, NULL, 1), TW_ERROR_ARGUMENT);
    assert_int_equal(tw_tensor_read(t, NULL, 1), TW_ERROR_ARGUMENT);
    tw_tensor_destroy(t);
    /* A handle that is NULL, because its creation failed, is no reason to crash. */
    tw_tensor_destroy(NULL);
    assert_int_equal(tw_tensor_count(NULL), 0);
    assert_null(tw_tensor_data(NULL));
    assert_int_equal(tw_tensor_cast(&t, NULL, TW_F32), TW_ERROR_ARGUMENT);
    assert_int_equal(tw_tensor_slice(&t, NULL, 0, 0, 0), TW_ERROR_ARGUMENT);
    assert_int_equal(tw_tensor_reshape(&t, NULL, 0, NULL), TW_ERROR_ARGUMENT);
}

/* Recorded from the definition written once more in Python: seed 7, uniform on [-1, 3), normal with mean 1/2 and
 * deviation 2. */
static void test_random_is_pinned(void **state) {
    const float uniform[4] = {0x1.7bfb78p+0f, 0x1.39be64p+1f, 0x1.086ap-2f, -0x1.9bac6p-3f};
    const float normal[4] = {-0x1.73529ep+0f, -0x1.19f74p-1f, -0x1.85c308p-1f, 0x1.eeee4p+1f};
    tw_tensor *t;
    assert_int_equal(tw_tensor_create_random(&t, *state, 2, DIMS(2, 2), TW_RANDOM_UNIFORM, -1, 3, 7), TW_OK);
    assert_int_equal(tw_tensor_get_dtype(t), TW_F32);
    assert_memory_equal(tw_tensor_data(t), uniform, sizeof uniform);
    tw_tensor_destroy(t);
    assert_int_equal(tw_tensor_create_random(&t, *state, 1, DIMS(4), TW_RANDOM_NORMAL, 0.5f, 2, 7), TW_OK);
    for (int i = 0; i < 4; i++) assert_float_equal(((float *)tw_tensor_data(t))[i], normal[i], 1e-6);
    tw_tensor_destroy(t);
}

static void test_uniform_leaves_out_its_upper_end(void **state) {
    const float a = 16777216, b = 16777218; /* neighbours of f32: rounding would reach b half the time */
    tw_tensor *t;
    assert_int_equal(tw_tensor_create_random(&t, *state, 1, DIMS(100), TW_RANDOM_UNIFORM, a, b, 1), TW_OK);
    for (int i = 0; i < 100; i++) assert_true(((float *)tw_tensor_data(t))[i] == a);
    tw_tensor_destroy(t);

    const float bad[][2] = {{1, 1}, {2, 1}, {NAN, 1}, {0, INFINITY}};
    for (size_t i = 0; i < COUNT(bad); i++) {
        tw_status status = tw_tensor_create_random(&t, *state, 1, DIMS(1), TW_RANDOM_UNIFORM, bad[i][0], bad[i][1], 1);
        assert_int_equal(status, TW_ERROR_ARGUMENT);
        assert_null(t);
    }
    assert_int_equal(tw_tensor_create_random(&t, *state, 1, DIMS(1), TW_RANDOM_NORMAL, 0, -1, 1), TW_ERROR_ARGUMENT);
    assert_int_equal(tw_tensor_create_random(&t, *state, 1, DIMS(1), (tw_random)2, 0, 1, 1), TW_ERROR_ARGUMENT);
}

static void test_slices(void **state) {
    tw_tensor *t = counted(*state, 3, DIMS(2, 3, 4)), *middle, *corner;
    assert_int_equal(tw_tensor_slice(&middle, t, 1, 1, 2), TW_OK);
    assert_null(tw_tensor_data(middle)); /* a gap between its two halves */
    assert_elements(middle, (const int32_t[]){4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23}, 16);
    assert_int_equal(tw_tensor_slice(&corner, middle, 2, 2, 2), TW_OK); /* a slice of a slice */
    assert_elements(corner, (const int32_t[]){6, 7, 10, 11, 18, 19, 22, 23}, 8);
    tw_tensor_destroy(middle);

    const int32_t news[8] = {-1, -2, -3, -4, -5, -6, -7, -8};
    assert_int_equal(tw_tensor_write(corner, news, 8), TW_OK);
    tw_tensor_destroy(corner);
    assert_elements(
        t, (const int32_t[]){0, 1, 2, 3, 4, 5, -1, -2, 8, 9, -3, -4, 12, 13, 14, 15, 16, 17, -5, -6, 20, 21, -7, -8},
        24);

    tw_tensor *row, *column;
    assert_int_equal(tw_tensor_slice(&row, t, 0, 1, 1), TW_OK);
    assert_int_equal(*(int32_t *)tw_tensor_data(row), 12); /* a slice of the first axis has no gaps */
    assert_int_equal(tw_tensor_slice(&column, row, 2, 3, 1), TW_OK);
    assert_elements(column, (const int32_t[]){15, -6, -8}, 3);
    tw_tensor_destroy(column);
    assert_int_equal(tw_tensor_slice(&column, row, 1, 2, 1), TW_OK);
    assert_non_null(tw_tensor_data(column)); /* [1, 1, 4]: how far apart single elements would be does not matter */
    tw_tensor_destroy(column);
    tw_tensor_destroy(row);

    const struct {
        int axis;
        int64_t start, length;
    } bad[] = {{3, 0, 1}, {-1, 0, 1}, {0, 0, 3}, {0, 2, 1}, {0, -1, 1}, {0, 0, -1}, {0, 3, 0}, {0, 1, INT64_MAX}};
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(tw_tensor_slice(&row, t, bad[i].axis, bad[i].start, bad[i].length), TW_ERROR_ARGUMENT);
        assert_null(row);
        assert_error_says("[2, 3, 4]");
    }
    tw_tensor_destroy(t);
}

static void test_reshape(void **state) {
    tw_tensor *t = counted(*state, 3, DIMS(2, 3, 4)), *flat, *view;
    assert_int_equal(tw_tensor_reshape(&flat, t, 2, DIMS(-1, 6)), TW_OK);
    assert_int_equal(tw_tensor_get_dim(flat, 0), 4);
    assert_ptr_equal(tw_tensor_data(flat), tw_tensor_data(t));
    ((int32_t *)tw_tensor_data(flat))[23] = 77;
    assert_int_equal(((int32_t *)tw_tensor_data(t))[23], 77);

    const struct {
        int rank;
        int64_t dims[3];
        tw_status status;
    } bad[] = {
        {2, {5, 5}, TW_ERROR_SHAPE},
        {2, {-1, 5}, TW_ERROR_SHAPE},
        {2, {-1, 0}, TW_ERROR_SHAPE},
        {2, {-1, -1}, TW_ERROR_ARGUMENT},
        {2, {-2, 12}, TW_ERROR_ARGUMENT},
        {0, {0}, TW_ERROR_SHAPE},
        {-1, {0}, TW_ERROR_ARGUMENT},
        {2, {INT64_MAX, 2}, TW_ERROR_OVERFLOW},
        {3, {-1, INT64_MAX, 2}, TW_ERROR_OVERFLOW},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(tw_tensor_reshape(&view, t, bad[i].rank, bad[i].dims), bad[i].status);
        assert_null(view);
    }
    assert_int_equal(tw_tensor_reshape(&view, t, 2, DIMS(-1, 5)), TW_ERROR_SHAPE);
    assert_error_says("24 elements are not a multiple of the 5");
    assert_int_equal(tw_tensor_reshape(&view, t, 2, DIMS(-1, -1)), TW_ERROR_ARGUMENT);
    assert_error_says("axes 0 and 1 are both -1");
    assert_int_equal(tw_tensor_reshape(&view, t, 7, DIMS(1, 1, 1, 1, 1, 1, 24)), TW_ERROR_ARGUMENT);

    tw_tensor *part, *whole;
    assert_int_equal(tw_tensor_slice(&part, t, 2, 0, 3), TW_OK);
    assert_int_equal(tw_tensor_reshape(&view, part, 1, DIMS(18)), TW_ERROR_STATE);
    assert_null(view);
    assert_error_says("tw_tensor_cast");
    assert_int_equal(tw_tensor_cast(&whole, part, TW_I32), TW_OK); /* what the message advises */
    assert_int_equal(tw_tensor_reshape(&view, whole, 1, DIMS(18)), TW_OK);
    assert_elements(view, (const int32_t[]){0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 16, 17, 18, 20, 21, 22}, 18);
    tw_tensor_destroy(view);
    tw_tensor_destroy(whole);
    tw_tensor_destroy(part);
    tw_tensor_destroy(flat);
    tw_tensor_destroy(t);
}

static void test_a_view_outlives_its_tensor(void **state) {
    tw_tensor *t = counted(*state, 2, DIMS(3, 2)), *view;
    assert_int_equal(tw_tensor_slice(&view, t, 0, 1, 2), TW_OK);
    tw_tensor_destroy(t);
    assert_elements(view, (const int32_t[]){2, 3, 4, 5}, 4);
    tw_tensor_destroy(view);
    assert_int_equal(tw_context_get_memory(*state).blocks, OWN_BLOCKS);
}

static void test_cast_of_a_view(void **state) {
    const float data[6] = {-1.5f, 300, NAN, 2.5f, 70000, 0.1f};
    tw_tensor *t, *right, *u8, *f16;
    assert_int_equal(tw_tensor_create_from(&t, *state, TW_F32, 2, DIMS(2, 3), data), TW_OK);
    assert_int_equal(tw_tensor_slice(&right, t, 1, 1, 2), TW_OK);
    assert_int_equal(tw_tensor_cast(&u8, right, TW_U8), TW_OK);
    assert_int_equal(tw_tensor_get_dtype(u8), TW_U8);
    assert_int_equal(tw_tensor_get_dim(u8, 1), 2);
    assert_memory_equal(tw_tensor_data(u8), ((const uint8_t[]){255, 0, 255, 0}), 4);
    assert_int_equal(tw_tensor_cast(&f16, right, TW_F16), TW_OK);
    const uint16_t *bits = tw_tensor_data(f16);
    assert_int_equal(bits[0], 0x5CB0); /* 300 */
    assert_int_equal(bits[2], 0x7C00);
    assert_int_equal(bits[3], 0x2E66);
    tw_tensor_destroy(f16);
    assert_int_equal(tw_tensor_cast(&f16, right, (tw_dtype)6), TW_ERROR_ARGUMENT);
    assert_null(f16);
    tw_tensor_destroy(u8);
    tw_tensor_destroy(right);
    tw_tensor_destroy(t);
}

/* --- any allocation may fail --- */

typedef struct everything {
    tw_context *context;
    tw_tensor *zeros, *copy, *random, *slice, *flat, *cast;
    twi_text text;
    char *taken;
} everything;

static tw_status make(everything *e) {
    const float data[6] = {1, 2, 3, 4, 5, 6};
    TWI_TRY(tw_tensor_create(&e->zeros, e->context, TW_I64, 2, DIMS(2, 3)));
    TWI_TRY(tw_tensor_create_from(&e->copy, e->context, TW_F32, 2, DIMS(2, 3), data));
    TWI_TRY(tw_tensor_create_random(&e->random, e->context, 1, DIMS(5), TW_RANDOM_NORMAL, 0, 1, 1));
    TWI_TRY(tw_tensor_slice(&e->slice, e->copy, 1, 1, 2));
    TWI_TRY(tw_tensor_reshape(&e->flat, e->copy, 1, DIMS(-1)));
    TWI_TRY(tw_tensor_cast(&e->cast, e->slice, TW_BF16));
    for (int i = 0; i < 200; i++) twi_text_add(&e->text, "step %d\n", i);
    TWI_TRY(twi_text_take(&e->text, &e->taken));
    return TW_OK;
}

static void unmake(everything *e) {
    tw_tensor_destroy(e->zeros);
    tw_tensor_destroy(e->copy); /* before its views */
    tw_tensor_destroy(e->random);
    tw_tensor_destroy(e->slice);
    tw_tensor_destroy(e->flat);
    tw_tensor_destroy(e->cast);
    twi_put(e->context->memory, e->taken);
    twi_text_free(&e->text);
}

static bool fail_at(void *user, uint64_t index, size_t bytes) {
    (void)bytes;
    return index == *(const uint64_t *)user;
}

static void test_any_allocation_may_fail(void **state) {
    (void)state;
    uint64_t k = 0;
    for (bool done = false; !done; k++) {
        everything e = {0};
        tw_clear_error();
        tw_status status = twi_context_open(
            &e.context, TW_OPTIONS(context, .threads = 2, .memory_hook = fail_at, .memory_hook_user = &k));
        if (status) {
            assert_int_equal(status, TW_ERROR_OUT_OF_MEMORY);
            assert_null(e.context);
            continue;
        }
        twi_text_init(&e.text, e.context->memory);
        status = make(&e);
        unmake(&e);
        assert_int_equal(tw_context_get_memory(e.context).blocks, OWN_BLOCKS);
        done = status == TW_OK;
        if (!done) {
            assert_int_equal(status, TW_ERROR_OUT_OF_MEMORY);
            assert_error_says("memory hook");
            /* The context goes on working. */
            everything again = {.context = e.context};
            twi_text_init(&again.text, e.context->memory);
            assert_int_equal(make(&again), TW_OK);
            unmake(&again);
        }
        assert_int_equal(tw_context_get_memory(e.context).blocks, OWN_BLOCKS);
        twi_context_close(e.context);
    }
    assert_true(k > 15); /* all of the sequence was reached */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_zeros),
        TEST(test_scalars_and_empty_tensors),
        TEST(test_arguments_that_are_refused),
        TEST(test_random_is_pinned),
        TEST(test_uniform_leaves_out_its_upper_end),
        TEST(test_slices),
        TEST(test_reshape),
        TEST(test_a_view_outlives_its_tensor),
        TEST(test_cast_of_a_view),
        cmocka_unit_test(test_any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
