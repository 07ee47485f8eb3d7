/* Long use: making and destroying again and again, thousands of steps, many shapes, programs beside each other: memory
 * comes back to what it was, to the byte, and a run takes none. */
#include "check.h"
#include "small_task.h"

#include <stdio.h>
#include <unistd.h>

enum { BATCH = 4 };

/* The memory of the sanitizers grows for reasons of their own, and so does that of a GPU's driver. */
#ifndef __has_feature
#define __has_feature(name) 0 /* clang's way of saying it */
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer) || \
    __has_feature(thread_sanitizer)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* Bytes of the process in memory. */
static long resident(void) {
    long pages = 0, size = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%ld %ld", &size, &pages) != 2) pages = 0;
    if (file) fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

typedef struct net {
    tw_model *model;
    tw_value *labels, *loss;
    tw_program *program;
    int side;
} net;

static net make_net(tw_context *context, int side) {
    net n = {.side = side};
    CHECK_OK(tw_model_create(&n.model, context));
    tw_value *x = tw_input(n.model, 1, side, side);
    x = tw_relu(n.model, tw_batch_norm(n.model, tw_conv2d(n.model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1)), NULL));
    x = tw_relu(n.model, tw_conv2d(n.model, x, 16, 3, NULL)); /* 16 channels: oneDNN's, where there is one */
    x = tw_dense(n.model, tw_global_avg_pool(n.model, x), 3, NULL);
    n.labels = tw_input_labels(n.model, "labels");
    n.loss = tw_cross_entropy(n.model, x, n.labels, NULL);
    CHECK_OK(tw_model_build(n.model, x, NULL));
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.momentum = 0.5f;
    CHECK_OK(tw_program_create(&n.program, n.model, BATCH,
                               TW_OPTIONS(program, .train = true, .losses = &(tw_loss){n.loss, 0}, .loss_count = 1,
                                          .outputs = &x, .output_count = 1, .optimizer = &sgd)));
    return n;
}

static void step(const net *n) {
    static float x[BATCH * 64 * 64];
    float out[BATCH * 3];
    for (int i = 0; i < BATCH * n->side * n->side; i++) x[i] = (float)(i * 37 % 101) / 101;
    CHECK_OK(tw_program_write(n->program, tw_model_get_input(n->model), TW_F32, x, BATCH * n->side * n->side));
    CHECK_OK(tw_program_write(n->program, n->labels, TW_I32, (int32_t[BATCH]){0, 1, 2, 1}, BATCH));
    CHECK_OK(tw_program_run(n->program));
    CHECK_OK(tw_program_read(n->program, tw_model_get_output(n->model), out, BATCH * 3));
}

static void drop_net(net *n) {
    tw_program_destroy(n->program);
    tw_model_destroy(n->model);
}

/* A context keeps what the first model of a kind makes it learn: lists that have grown, choices of a library. */
static void warm(tw_context *context, int side) {
    net n = make_net(context, side);
    step(&n);
    drop_net(&n);
}

static void assert_flat(long before, long after, const char *what) {
    if (!SANITIZED && !check_device() && after - before > 2 << 20)
        fail_msg("%s: %ld bytes of resident memory more", what, after - before);
}

static void test_made_and_destroyed(void **state) {
    (void)state;
    enum { ROUNDS = 200, WARM = 20 };
    warm(task_context, 8);
    tw_memory_stats held = tw_context_get_memory(task_context);
    long before = 0;
    for (int round = 0; round < ROUNDS; round++) {
        if (round == WARM) before = resident();
        net n = make_net(task_context, 8);
        step(&n);
        drop_net(&n);
        assert_int_equal(tw_context_get_memory(task_context).bytes, held.bytes);
        assert_int_equal(tw_context_get_memory(task_context).blocks, held.blocks);
    }
    assert_flat(before, resident(), "models");
    for (int round = 0; round < ROUNDS; round++) {
        if (round == WARM) before = resident();
        tw_context *context;
        CHECK_OK(tw_context_create(&context, check_device_or_cpu(), TW_OPTIONS(context, .threads = 2)));
        tw_context_destroy(context);
    }
    assert_flat(before, resident(), "contexts");
}

static void test_failing_again_and_again(void **state) {
    (void)state;
    net n = make_net(task_context, 8);
    tw_memory_stats held = tw_context_get_memory(task_context);
    tw_program_options losses = {.size = sizeof losses, .losses = &(tw_loss){n.loss, 0}, .loss_count = 1};
    tw_context_set_memory_limit(task_context, held.bytes + (1 << 20));
    for (int round = 0; round < 200; round++) {
        tw_program *program;
        tw_model *model;
        tw_dataset *data;
        assert_int_equal(tw_model_load(n.model, "/dev/null", NULL), TW_ERROR_FILE);
        assert_int_equal(tw_model_save(n.model, "/nowhere/x"), TW_ERROR_FILE);
        assert_int_equal(tw_dataset_open(&data, task_context, "/nowhere", TW_TRAIN, NULL), TW_ERROR_FILE);
        assert_int_equal(tw_program_create(&program, n.model, 4096, &losses), TW_ERROR_OUT_OF_MEMORY);
        CHECK_OK(tw_model_create(&model, task_context));
        tw_conv2d(model, tw_input(model, 1, 4, 4), 4, 5, NULL);
        assert_int_equal(tw_model_build(model, NULL, NULL), TW_ERROR_SHAPE);
        tw_model_destroy(model);
        if (round == 0 && check_device())
            held = tw_context_get_memory(task_context); /* with what was chosen for 4096 */
        assert_int_equal(tw_context_get_memory(task_context).bytes, held.bytes);
        assert_int_equal(tw_context_get_memory(task_context).blocks, held.blocks);
    }
    tw_context_set_memory_limit(task_context, 0);
    step(&n);
    drop_net(&n);
}

static void test_thousands_of_steps(void **state) {
    (void)state;
    const int steps = check_device() ? 1000 : 10000; /* an emulated one takes its time */
    tw_context *context;
    CHECK_OK(tw_context_create(&context, check_device_or_cpu(), TW_OPTIONS(context, .threads = 2)));
    net n = make_net(context, 4);
    for (int i = 0; i < 10; i++) step(&n);
    tw_memory_stats before = tw_context_get_memory(context);
    long start = resident();
    for (int i = 0; i < steps; i++) step(&n);
    tw_memory_stats after = tw_context_get_memory(context);
    assert_flat(start, resident(), "steps");
    assert_int_equal(after.allocations, before.allocations); /* not one */
    assert_int_equal(after.bytes, before.bytes);
    assert_int_equal(tw_model_get_updates(n.model), steps + 10);
    drop_net(&n);
    tw_context_destroy(context);
}

static void test_many_shapes(void **state) {
    (void)state;
    tw_memory_stats held = {0};
    long middle = 0;
    for (int round = 0; round < 4; round++) {
        for (int side = 5; side < 45; side++) warm(task_context, side);
        if (round == 0) held = tw_context_get_memory(task_context);
        if (round == 1) middle = resident();
    }
    assert_flat(middle, resident(), "shapes");
    assert_int_equal(tw_context_get_memory(task_context).bytes, held.bytes);
}

/* Making a larger program moves the arena: what the smaller one was fed is gone, which it says; fed again, it runs. The
 * arena stays as large as the larger one needed. */
static void test_an_arena_that_moves(void **state) {
    (void)state;
    net n = make_net(task_context, 8);
    tw_value *output = tw_model_get_output(n.model);
    tw_program *small, *large;
    float x[64], first[3], again[3];
    for (int i = 0; i < 64; i++) x[i] = (float)i / 64;
    tw_program_destroy(n.program);
    CHECK_OK(tw_program_create(&small, n.model, 1, TW_OPTIONS(program, .outputs = &output, .output_count = 1)));
    CHECK_FAILS(tw_program_run(small), TW_ERROR_STATE, "feed them");
    CHECK_OK(tw_program_write(small, tw_model_get_input(n.model), TW_F32, x, 64));
    CHECK_OK(tw_program_run(small));
    CHECK_OK(tw_program_read(small, output, first, 3));
    CHECK_OK(tw_program_create(&large, n.model, 100, TW_OPTIONS(program, .outputs = &output, .output_count = 1)));
    CHECK_FAILS(tw_program_run(small), TW_ERROR_STATE, "feed them again");
    CHECK_FAILS(tw_program_read(small, output, again, 3), TW_ERROR_STATE, "");
    CHECK_OK(tw_program_write(small, tw_model_get_input(n.model), TW_F32, x, 64));
    CHECK_OK(tw_program_run(small));
    CHECK_OK(tw_program_read(small, output, again, 3));
    assert_memory_equal(first, again, sizeof first);
    tw_program_destroy(small);
    tw_program_destroy(large);
    tw_memory_stats held = tw_context_get_memory(task_context);
    CHECK_OK(tw_program_create(&large, n.model, 100, TW_OPTIONS(program, .outputs = &output, .output_count = 1)));
    CHECK_FAILS(tw_program_run(large), TW_ERROR_STATE, "feed them"); /* not taken for the one that lay at its address */
    tw_program_destroy(large);
    assert_int_equal(tw_context_get_memory(task_context).bytes, held.bytes);
    tw_model_destroy(n.model);
}

/* A cap on the memory that programs take, the host's or a GPU's: a status, and what fits runs. */
static void test_a_cap(void **state) {
    (void)state;
    tw_context *context;
    CHECK_OK(tw_context_create(&context, check_device_or_cpu(),
                               TW_OPTIONS(context, .threads = 1, .memory_limit = check_device() ? 0 : 4 << 20,
                                          .device_memory_limit = 4 << 20)));
    net n = make_net(context, 16);
    tw_value *output = tw_model_get_output(n.model);
    tw_program *program;
    CHECK_FAILS(tw_program_create(&program, n.model, 4096, TW_OPTIONS(program, .outputs = &output, .output_count = 1)),
                TW_ERROR_OUT_OF_MEMORY, check_device() ? "out of device memory" : "over the context's cap");
    assert_non_null(strstr(tw_last_error(), "activation arena"));
    CHECK_OK(tw_program_create(&program, n.model, 8, TW_OPTIONS(program, .outputs = &output, .output_count = 1)));
    step(&n);
    tw_program_destroy(program);
    drop_net(&n);
    tw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        with_context(test_made_and_destroyed),  with_context(test_failing_again_and_again),
        with_context(test_thousands_of_steps),  with_context(test_many_shapes),
        with_context(test_an_arena_that_moves), cmocka_unit_test(test_a_cap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
