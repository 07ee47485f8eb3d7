/* See back_end_task.h. */
#include "back_end_task.h"
#include "program/model.h"

#include <math.h>

static uint32_t hashed(uint32_t x) {
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return x ^ x >> 16;
}

void task_images(uint8_t *images, int64_t count) {
    for (int64_t i = 0; i < count * TASK_PIXELS; i++) images[i] = (uint8_t)(hashed((uint32_t)i) % 251);
}

void task_labels(int32_t *labels, int64_t count) {
    for (int64_t i = 0; i < count; i++) labels[i] = (int32_t)(i % TASK_CLASSES);
}

#define TRY(call)                    \
    do {                             \
        tw_status status_ = (call);  \
        if (status_) return status_; \
    } while (0)

static bool norms_frozen;
void task_freeze_norms(bool frozen) { norms_frozen = frozen; }

tw_status task_network(tw_model **out, tw_context *context) {
    TRY(tw_model_create(out, context));
    tw_model *model = *out;
    tw_value *x = tw_conv2d(model, tw_input(model, TASK_CHANNELS, TASK_SIDE, TASK_SIDE), 4, 3,
                            TW_OPTIONS(conv2d, .padding = 1, .no_bias = true));
    x = tw_max_pool(model, tw_relu(model, tw_batch_norm(model, x, NULL)), 2, NULL);
    x = tw_relu(model, tw_conv2d(model, x, 4, 3, TW_OPTIONS(conv2d, .padding = 1)));
    x = tw_relu(model, tw_dense(model, tw_dropout(model, x, 0.2f), 8, NULL));
    TRY(tw_model_build(model, tw_dense(model, x, TASK_CLASSES, NULL), TW_OPTIONS(model, .seed = 5)));
    return norms_frozen ? tw_model_set_statistics_frozen(model, "", true) : TW_OK;
}

tw_trainer_options task_options(void) {
    tw_trainer_options options = TW_TRAINER_OPTIONS_INIT;
    options.epochs = 2;
    options.batch = TASK_BATCH;
    options.evaluation_batch = TASK_BATCH;
    options.optimizer.learning_rate = 0.05;
    options.optimizer.momentum = 0.9f;
    options.optimizer.schedule.kind = TW_SCHEDULE_COSINE;
    options.flip = true;
    options.crop_padding = 1;
    return options;
}

static tw_status make_data(tw_dataset **out, tw_context *context, int64_t count) {
    uint8_t images[TASK_SAMPLES * TASK_PIXELS];
    int32_t labels[TASK_SAMPLES];
    task_images(images, count);
    task_labels(labels, count);
    return tw_dataset_create_from(out, context, TW_U8, images, count, TASK_CHANNELS, TASK_SIDE, TASK_SIDE, labels,
                                  NULL);
}

tw_status task_make(task *t, tw_context *context, const tw_trainer_options *options) {
    *t = (task){.context = context};
    TRY(make_data(&t->train, context, TASK_SAMPLES));
    TRY(make_data(&t->test, context, TASK_TESTED));
    TRY(task_network(&t->model, context));
    return tw_trainer_create(&t->trainer, t->model, options);
}

tw_status task_run(task *t, tw_context *context, const tw_trainer_options *options, const char *path) {
    TRY(task_make(t, context, options));
    TRY(tw_trainer_fit(t->trainer, t->train, NULL));
    TRY(tw_trainer_evaluate(t->trainer, t->test, &t->tested));
    return path ? tw_model_save(t->model, path) : TW_OK;
}

void task_drop(task *t) {
    tw_trainer_destroy(t->trainer);
    tw_model_destroy(t->model);
    tw_dataset_destroy(t->test);
    tw_dataset_destroy(t->train);
    *t = (task){0};
}

/* ---- what came of it ---- */

task_state task_state_of(const tw_model *model) {
    const twi_store *store = &model->store;
    const struct {
        const void *array;
        int64_t count;
    } arrays[] = {{store->weights, store->learned_count},
                  {store->buffers, store->buffer_count},
                  {store->moment[0], store->learned_count},
                  {store->moment[1], store->learned_count}};
    const uint64_t counters[] = {store->updates, store->attempts};
    task_state state = {NULL, sizeof counters};
    for (size_t i = 0; i < 4; i++) state.size += arrays[i].array ? (size_t)arrays[i].count * sizeof(float) : 0;
    state.bytes = malloc(state.size);
    assert_non_null(state.bytes);
    memcpy(state.bytes, counters, sizeof counters);
    unsigned char *at = state.bytes + sizeof counters;
    for (size_t i = 0; i < 4; i++) {
        const size_t bytes = arrays[i].array ? (size_t)arrays[i].count * sizeof(float) : 0;
        if (bytes) CHECK_OK(model->context->backend->copy_out(model->context, at, arrays[i].array, bytes));
        at += bytes;
    }
    return state;
}

bool task_same(const task_state *a, const task_state *b) {
    return a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0;
}

task_state task_outcome(const task *t) {
    task_state state = task_state_of(t->model);
    const double measured[] = {t->tested.loss, t->tested.top1, (double)t->tested.samples};
    state.bytes = realloc(state.bytes, state.size + sizeof measured);
    assert_non_null(state.bytes);
    memcpy(state.bytes + state.size, measured, sizeof measured);
    state.size += sizeof measured;
    return state;
}

/* ---- what was done for want of memory ---- */

void task_listen(void *user, tw_log_level level, const char *message) {
    task_log *log = user;
    if (level > TW_LOG_INFO) return;
    strncat(log->text, message, sizeof log->text - 2 - strlen(log->text));
    strcat(log->text, "\n");
}

enum { COUNTERS = 2 * sizeof(uint64_t), LOSS = 0, TOP1 = 1, SAMPLES = 2, MEASURED = 3 };

static bool near(double a, double b) { return fabs(a - b) <= 1e-5; }

/* Where what was measured lies: behind counters and floats. */
static size_t measured_at(const task_state *outcome) { return outcome->size - MEASURED * sizeof(double); }

static double measured(const task_state *outcome, int which) {
    double value;
    memcpy(&value, outcome->bytes + measured_at(outcome) + (size_t)which * sizeof value, sizeof value);
    return value;
}

static void check_numbers(const task_state *found, const task_state *expected) {
    for (size_t at = COUNTERS; at < measured_at(expected); at += sizeof(float)) {
        float a, b;
        memcpy(&a, found->bytes + at, sizeof a);
        memcpy(&b, expected->bytes + at, sizeof b);
        if (!near(a, b)) fail_msg("number %zu is %.9g, not %.9g", (at - COUNTERS) / sizeof a, (double)a, (double)b);
    }
}

static void check_measures(const task_state *found, const task_state *expected) {
    if (!near(measured(found, LOSS), measured(expected, LOSS)))
        fail_msg("the loss is %.9g, not %.9g", measured(found, LOSS), measured(expected, LOSS));
    assert_true(measured(found, TOP1) == measured(expected, TOP1));
}

/* What holds of any outcome: as many updates, and as many samples. */
static task_state outcome_like(const task *t, const task_state *expected) {
    const task_state found = task_outcome(t);
    assert_int_equal(found.size, expected->size);
    assert_memory_equal(found.bytes, expected->bytes, COUNTERS);
    assert_true(measured(&found, SAMPLES) == measured(expected, SAMPLES));
    return found;
}

void task_check_near(const task *t, const task_state *expected) {
    task_state found = outcome_like(t, expected);
    check_numbers(&found, expected);
    check_measures(&found, expected);
    free(found.bytes);
}

bool task_check_outcome(const task *t, const task_state *expected, const task_log *log) {
    const bool parts = strstr(log->text, "are run in"), smaller = strstr(log->text, "measured in batches of"),
               apart = strstr(log->text, "batch norm takes the statistics of each part");
    if (apart) {
        assert_true(parts && !norms_frozen && isfinite(t->tested.loss));
    } else if (parts || strstr(log->text, "workspaces of at most")) {
        task_check_near(t, expected);
        return true;
    }
    task_state found = outcome_like(t, expected);
    if (!apart) assert_memory_equal(found.bytes, expected->bytes, smaller ? measured_at(expected) : expected->size);
    if (!apart && smaller) check_measures(&found, expected);
    free(found.bytes);
    return !apart;
}

tw_context *task_device(void) {
    tw_context *context;
    CHECK_OK(tw_context_create(&context, check_device(), TW_OPTIONS(context, .threads = 1)));
    return context;
}

size_t task_device_bytes(void) {
    size_t left, total;
    assert_int_equal(cudaMemGetInfo(&left, &total), cudaSuccess);
    return total - left;
}
