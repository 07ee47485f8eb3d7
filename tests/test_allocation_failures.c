/* Every single allocation of a train-save-load run fails in turn, and every one from some point on: each time a status,
 * nothing left over, no file lost, and the same context trains on to the same numbers. oneDNN allocates by itself: only
 * the library's own allocator is made to fail. */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */
#include "check.h"
#include "small_task.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BATCH = 4, SAMPLES = 8, STEPS = 3, MOST = 5000 };

/* Fails the allocation number `at`, and with `on` all that follow. */
typedef struct plan {
    uint64_t at;
    bool on;
} plan;

static bool fail_planned(void *user, uint64_t index, size_t bytes) {
    const plan *p = user;
    (void)bytes;
    return p->on ? index >= p->at : index == p->at;
}

static char folder[64], path[128];

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/talweg-allocation-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/a.safetensors", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    remove(path);
    return rmdir(folder); /* fails if a temporary file is left */
}

/* ---- the run ---- */

typedef struct run {
    tw_dataset *data;
    tw_loader *loader;
    tw_model *model;
    tw_program *train, *predict;
    double loss;
    float logits[TASK_CLASSES];
} run;

static uint8_t images[SAMPLES * TASK_PIXELS];
static const int32_t labels[SAMPLES] = {0, 1, 2, 0, 1, 2, 0, 1};

#define TRY(call)                    \
    do {                             \
        tw_status status_ = (call);  \
        if (status_) return status_; \
    } while (0)
/* What failed to be made is NULL. */
#define TRY_MAKE(out, call)                            \
    do {                                               \
        tw_status status_ = (call);                    \
        assert_true(status_ ? !(out) : (out) != NULL); \
        if (status_) return status_;                   \
    } while (0)

static tw_status build(run *r, tw_context *context) {
    TRY_MAKE(r->model, tw_model_create(&r->model, context));
    tw_value *x = tw_input(r->model, 1, TASK_SIDE, TASK_SIDE);
    x = tw_conv2d(r->model, x, TASK_CHANNELS, 3, TW_OPTIONS(conv2d, .padding = 1));
    x = tw_max_pool(r->model, tw_relu(r->model, tw_batch_norm(r->model, x, NULL)), 2, NULL);
    x = tw_dense(r->model, tw_dropout(r->model, x, 0.1f), TASK_CLASSES, NULL);
    tw_value *loss =
        tw_cross_entropy(r->model, x, tw_input_labels(r->model, "labels"), TW_OPTIONS(cross_entropy, .name = "loss"));
    TRY(tw_model_build(r->model, x, TW_OPTIONS(model, .seed = 1)));
    assert_non_null(loss);
    return TW_OK;
}

static tw_status train(run *r) {
    static const tw_optimizer_options adam = {.size = sizeof adam, .kind = TW_ADAMW};
    const tw_loss loss = {tw_model_find(r->model, "loss"), 0};
    TRY_MAKE(r->train, tw_program_create(&r->train, r->model, BATCH,
                                         TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1,
                                                    .optimizer = &adam, .accumulate = true)));
    for (int i = 0; i < STEPS; i++) {
        tw_batch batch;
        if (i % (SAMPLES / BATCH) == 0) TRY(tw_loader_start(r->loader, i / (SAMPLES / BATCH), 0));
        TRY(tw_loader_next(r->loader, &batch));
        assert_int_equal(batch.count, BATCH);
        TRY(tw_program_write(r->train, tw_model_get_input(r->model), TW_F32, batch.images, BATCH * TASK_PIXELS));
        TRY(tw_program_write(r->train, tw_model_find(r->model, "labels"), TW_I32, batch.labels, BATCH));
        TRY(tw_program_run(r->train));
        r->loss = tw_program_get_loss(r->train);
    }
    return TW_OK;
}

static tw_status predict(run *r) {
    tw_value *output = tw_model_get_output(r->model);
    float x[TASK_PIXELS];
    for (int i = 0; i < TASK_PIXELS; i++) x[i] = (float)i / TASK_PIXELS;
    TRY_MAKE(r->predict,
             tw_program_create(&r->predict, r->model, 1, TW_OPTIONS(program, .outputs = &output, .output_count = 1)));
    TRY(tw_program_write(r->predict, tw_model_get_input(r->model), TW_F32, x, TASK_PIXELS));
    TRY(tw_program_run(r->predict));
    return tw_program_read(r->predict, output, r->logits, TASK_CLASSES);
}

static tw_status whole(run *r, tw_context *context) {
    float bias[TASK_CLASSES] = {0};
    memset(r, 0, sizeof *r);
    TRY_MAKE(r->data,
             tw_dataset_create_from(&r->data, context, TW_U8, images, SAMPLES, 1, TASK_SIDE, TASK_SIDE, labels, NULL));
    TRY_MAKE(r->loader,
             tw_loader_create(&r->loader, r->data,
                              TW_OPTIONS(loader, .batch = BATCH, .seed = 1, .flip = true, .crop_padding = 1)));
    TRY(build(r, context));
    TRY(train(r));
    TRY(tw_model_save(r->model, path));
    TRY(tw_parameter_write(r->model, "fc1.bias", bias, TASK_CLASSES));
    TRY(tw_model_load(r->model, path, NULL));
    TRY(predict(r));
    return tw_model_dump(r->model) && tw_program_dump(r->train, TW_PASS_MEMORY) ? TW_OK : TW_ERROR_OUT_OF_MEMORY;
}

static void drop(run *r) {
    tw_program_destroy(r->predict);
    tw_program_destroy(r->train);
    tw_model_destroy(r->model);
    tw_loader_destroy(r->loader);
    tw_dataset_destroy(r->data);
}

static uint64_t blocks(const tw_context *context) { return tw_context_get_memory(context).blocks; }

/* ---- failing ---- */

static run expected; /* what the run gives when nothing fails */

static void assert_runs(tw_context *context) {
    run r;
    CHECK_OK(whole(&r, context));
    assert_true(r.loss == expected.loss);
    assert_memory_equal(r.logits, expected.logits, sizeof r.logits);
    drop(&r);
}

/* The run with a failure; true if nothing failed. */
static bool run_failing(plan *p, bool again) {
    tw_context *context = (void *)1;
    run r;
    tw_status status = tw_context_create(
        &context, "cpu", TW_OPTIONS(context, .threads = 1, .memory_hook = fail_planned, .memory_hook_user = p));
    if (status) {
        assert_int_equal(status, TW_ERROR_OUT_OF_MEMORY);
        assert_null(context);
        return false;
    }
    uint64_t before = blocks(context);
    status = whole(&r, context);
    if (status && (status != TW_ERROR_OUT_OF_MEMORY || !strstr(tw_last_error(), "on request by the memory hook")))
        fail_msg("allocation %d: %s: %s", (int)p->at, tw_status_name(status), tw_last_error());
    tw_context_set_memory_hook(context, NULL, NULL);
    drop(&r);
    assert_int_equal(blocks(context), before);
    if (again) assert_runs(context);
    assert_int_equal(blocks(context), before);
    tw_context_destroy(context);
    return status == TW_OK;
}

static void open_expected(void) {
    tw_context *context;
    for (size_t i = 0; i < sizeof images; i++) images[i] = (uint8_t)(i * 37 % 251);
    CHECK_OK(tw_context_create(&context, "cpu", TW_OPTIONS(context, .threads = 1)));
    CHECK_OK(whole(&expected, context));
    assert_true(expected.loss > 0);
    drop(&expected);
    tw_context_destroy(context);
}

static void test_each_allocation_once(void **state) {
    (void)state;
    plan p = {0, false};
    open_expected();
    while (!run_failing(&p, true)) assert_true(++p.at < MOST);
    print_message("%d allocations failed in turn\n", (int)p.at);
    assert_true(p.at > 50);
}

static void test_all_from_one_on(void **state) {
    (void)state;
    plan p = {0, true};
    open_expected();
    while (!run_failing(&p, p.at % 8 == 0)) assert_true(++p.at < MOST);
}

/* ---- what was there stays ---- */

/* A larger program fails to be made: the smaller one beside it goes on, bit for bit. */
static void test_the_program_beside_it(void **state) {
    (void)state;
    plan p = {0, false};
    tw_context *context;
    float first[TASK_CLASSES], x[TASK_PIXELS];
    for (int i = 0; i < TASK_PIXELS; i++) x[i] = (float)i / TASK_PIXELS;
    CHECK_OK(tw_context_create(&context, "cpu", TW_OPTIONS(context, .threads = 1)));
    uint64_t before = blocks(context);
    for (tw_status status = TW_ERROR_OUT_OF_MEMORY; status; p.at++) {
        run r = {0}; /* each time a model whose arena must grow */
        assert_true(p.at < MOST);
        CHECK_OK(build(&r, context));
        CHECK_OK(predict(&r));
        if (p.at == 0) memcpy(first, r.logits, sizeof first);
        tw_program *larger = (void *)1, *beside = r.predict; /* another one that is bound to the arena */
        tw_value *output = tw_model_get_output(r.model);
        CHECK_OK(predict(&r));
        tw_context_set_memory_hook(context, fail_planned, &p);
        status = tw_program_create(&larger, r.model, 64, TW_OPTIONS(program, .outputs = &output, .output_count = 1));
        tw_context_set_memory_hook(context, NULL, NULL);
        assert_true(status ? status == TW_ERROR_OUT_OF_MEMORY && !larger : larger != NULL);
        tw_program *const both[] = {r.predict, beside};
        for (int i = 0; i < 2; i++) {
            CHECK_OK(tw_program_write(both[i], tw_model_get_input(r.model), TW_F32, x, TASK_PIXELS));
            CHECK_OK(tw_program_run(both[i]));
            CHECK_OK(tw_program_read(both[i], output, r.logits, TASK_CLASSES));
            assert_memory_equal(r.logits, first, sizeof first);
        }
        tw_program_destroy(beside);
        tw_program_destroy(larger);
        drop(&r);
        assert_int_equal(blocks(context), before);
    }
    assert_true(p.at > 10);
    tw_context_destroy(context);
}

/* A build that failed can be tried again. */
static void test_building_again(void **state) {
    (void)state;
    plan p = {0, false};
    tw_context *context;
    CHECK_OK(tw_context_create(&context, "cpu", TW_OPTIONS(context, .threads = 1)));
    uint64_t before = blocks(context);
    for (tw_status status = TW_ERROR_OUT_OF_MEMORY; status; p.at++) {
        tw_model *model;
        float bias[3];
        assert_true(p.at < MOST);
        CHECK_OK(tw_model_create(&model, context));
        tw_value *y = tw_dense(model, tw_input_shaped(model, "x", 1, (int64_t[]){2}), 3, NULL);
        tw_context_set_memory_hook(context, fail_planned, &p);
        status = tw_model_build(model, y, NULL);
        tw_context_set_memory_hook(context, NULL, NULL);
        if (status) {
            assert_int_equal(status, TW_ERROR_OUT_OF_MEMORY);
            CHECK_FAILS(tw_parameter_read(model, "fc1.bias", bias, 3), TW_ERROR_STATE, "not built");
            CHECK_OK(tw_model_build(model, y, NULL));
        }
        CHECK_OK(tw_parameter_read(model, "fc1.bias", bias, 3));
        tw_model_destroy(model);
        assert_int_equal(blocks(context), before);
    }
    assert_true(p.at > 4);
    tw_context_destroy(context);
}

/* A load that fails leaves the model, a save that fails the file. */
static void test_loads_and_saves(void **state) {
    (void)state;
    run r = {0};
    plan p = {0, false};
    tw_context *context;
    struct stat first, second;
    size_t count;
    CHECK_OK(tw_context_create(&context, "cpu", TW_OPTIONS(context, .threads = 1)));
    CHECK_OK(build(&r, context));
    CHECK_OK(tw_model_save(r.model, path));
    CHECK_OK(tw_parameter_write(r.model, "fc1.bias", (float[]){5, 6, 7}, 3));
    CHECK_OK(tw_parameter_write(r.model, "bn1.running_mean", (float[TASK_CHANNELS]){8}, TASK_CHANNELS));
    float *before = task_parameters(r.model, &count);
    uint64_t held = blocks(context);
    for (tw_status status = TW_ERROR_OUT_OF_MEMORY; status; p.at++) {
        assert_true(p.at < MOST);
        tw_context_set_memory_hook(context, fail_planned, &p);
        status = tw_model_load(r.model, path, NULL);
        tw_context_set_memory_hook(context, NULL, NULL);
        assert_int_equal(task_unchanged(r.model, before), status != TW_OK);
        assert_int_equal(blocks(context), held);
    }
    free(before);
    assert_int_equal(stat(path, &first), 0);
    p.at = 0;
    for (tw_status status = TW_ERROR_OUT_OF_MEMORY; status; p.at++) {
        assert_true(p.at < MOST);
        tw_context_set_memory_hook(context, fail_planned, &p);
        status = tw_model_save(r.model, path);
        tw_context_set_memory_hook(context, NULL, NULL);
        assert_int_equal(stat(path, &second), 0);
        assert_int_equal(first.st_ino == second.st_ino, status != TW_OK); /* not even replaced by its like */
        assert_int_equal(blocks(context), held);
    }
    drop(&r);
    tw_context_destroy(context);
}

#define in_folder(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        in_folder(test_each_allocation_once), in_folder(test_all_from_one_on), in_folder(test_the_program_beside_it),
        in_folder(test_building_again),       in_folder(test_loads_and_saves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
