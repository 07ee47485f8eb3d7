/* How parameters lie in the store: row-major, convolution weights O,H,W,I; and that what is written is read. */
#include "program/model.h"
#include "small_task.h"

enum { MOST = 7 * 6 * 5 * 3, OUTSIDE = 2 };

static const tw_init beside = {TW_INIT_CONSTANT, 3};

static const twi_shape shapes[] = {{1, {7}},          {2, {7, 6}},       {2, {1, 6}},       {2, {7, 1}},
                                   {4, {7, 6, 3, 5}}, {4, {7, 6, 5, 3}}, {4, {7, 6, 1, 1}}, {4, {7, 6, 1, 3}},
                                   {4, {7, 6, 3, 1}}, {4, {7, 1, 5, 3}}, {4, {1, 6, 3, 5}}, {4, {7, 1, 1, 1}},
                                   {4, {1, 6, 1, 1}}, {4, {1, 1, 3, 5}}, {4, {1, 1, 1, 1}}, {1, {1}}};

/* Where the element at logical position i lies. */
static int64_t place_of(const twi_shape *shape, int64_t i) {
    if (shape->rank != 4) return i;
    const int64_t in = shape->dim[1], pixels = shape->dim[2] * shape->dim[3];
    const int64_t pixel = i % pixels, channel = i / pixels % in, out = i / pixels / in;
    return (out * pixels + pixel) * in + channel;
}

static float value_of(int64_t i) { return (float)i + 0.25f; }

static void test_layout(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int64_t count = twi_shape_count(&shapes[s]);
        const twi_parameter before = {.name = "before", .shape = {1, {OUTSIDE}}, .learned = true, .init = beside},
                            behind = {.name = "behind", .shape = {1, {OUTSIDE}}, .learned = true, .init = beside},
                            parameter = {.name = "it", .shape = shapes[s], .learned = true};
        for (size_t real = sizeof(float); real <= sizeof(double); real += sizeof(float)) {
            twi_store store;
            int first, index, last;
            float written[MOST], read[MOST] = {0};
            twi_store_init(&store, task_context, real);
            CHECK_OK(twi_store_add(&store, &before, &first));
            CHECK_OK(twi_store_add(&store, &parameter, &index));
            CHECK_OK(twi_store_add(&store, &behind, &last));
            CHECK_OK(twi_store_build(&store));
            CHECK_OK(twi_store_initialize(&store, 1));
            for (int64_t i = 0; i < count; i++) written[i] = value_of(i);
            CHECK_OK(twi_store_write(&store, store.weights, index, written));
            double stored[MOST];
            CHECK_OK(task_context->backend->copy_out(task_context, stored, twi_store_at(&store, store.weights, index),
                                                     (size_t)count * real));
            for (int64_t i = 0; i < count; i++) {
                const int64_t at = place_of(&shapes[s], i);
                const double value = real == sizeof(float) ? ((const float *)(const void *)stored)[at] : stored[at];
                assert_true(value == value_of(i));
            }
            CHECK_OK(twi_store_read(&store, store.weights, index, read));
            assert_memory_equal(read, written, (size_t)count * sizeof *read);
            for (int k = 0; k < 2; k++) { /* its neighbours stay as they were */
                CHECK_OK(twi_store_read(&store, store.weights, k ? last : first, read));
                assert_true(read[0] == 3 && read[1] == 3);
            }
            twi_store_free(&store);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {with_context(test_layout)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
