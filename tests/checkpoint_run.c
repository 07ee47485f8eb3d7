/* See checkpoint_run.h. */
#define _POSIX_C_SOURCE 200809L
#include "checkpoint_run.h"
#include "io/checksum.h"

#include <stdio.h>
#include <unistd.h>

enum { SIDE = 28, PIXELS = SIDE * SIDE, CLASSES = 10 };

/* ---- networks ---- */

static tw_value *lenet(tw_model *model) { return tw_zoo_lenet5(model, tw_input(model, 1, SIDE, SIDE), CLASSES); }

static tw_value *dropping(tw_model *model) {
    tw_value *x = tw_dropout(model, tw_input(model, 1, SIDE, SIDE), 0.1f);
    x = tw_max_pool(model, tw_relu(model, tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .stride = 2))), 2, NULL);
    x = tw_dropout(model, tw_relu(model, tw_dense(model, x, 20, NULL)), 0.5f);
    return tw_dense(model, x, CLASSES, NULL);
}

static tw_value *normed(tw_model *model) {
    tw_value *x = tw_conv2d(model, tw_input(model, 1, SIDE, SIDE), 16, 3, TW_OPTIONS(conv2d, .stride = 4));
    x = tw_residual(model, tw_relu(model, tw_batch_norm(model, x, NULL)), 16, NULL);
    return tw_dense(model, tw_dropout(model, tw_global_avg_pool(model, x), 0.2f), CLASSES, NULL);
}

static tw_value *small(tw_model *model) {
    tw_value *x = tw_max_pool(model, tw_input(model, 1, SIDE, SIDE), 7, NULL);
    return tw_dense(model, tw_batch_norm(model, tw_dense(model, x, 5, NULL), NULL), CLASSES, NULL);
}

const run_kind run_kinds[RUN_KINDS] = {
    {"lenet, sgd, cosine",
     lenet,
     {.optimizer = {.learning_rate = 0.05,
                    .momentum = 0.9f,
                    .nesterov = true,
                    .weight_decay = 1e-3f,
                    .schedule = {.kind = TW_SCHEDULE_COSINE, .minimum = 1e-4}},
      .warmup_epochs = 0.5,
      .flip = true,
      .crop_padding = 2,
      .workers = 2}},
    {"dropout, adamw, cosine",
     dropping,
     {.optimizer = {.kind = TW_ADAMW,
                    .learning_rate = 0.01,
                    .weight_decay = 0.05f,
                    .schedule = {.kind = TW_SCHEDULE_COSINE, .warmup = 2}},
      .flip = true,
      .label_smoothing = 0.1f,
      .evaluate_every = 2}},
    {"batch norm, sgd without momentum, steps",
     normed,
     {.optimizer = {.learning_rate = 0.1, .schedule = {.kind = TW_SCHEDULE_STEP, .every = 5}},
      .crop_padding = 3,
      .drop_last = true,
      .workers = 2}},
    {"dropout, sgd, several batches an update",
     dropping,
     {.optimizer = {.learning_rate = 0.05, .momentum = 0.5f}, .accumulate = 4, .flip = true}},
    {"one short batch an epoch", dropping, {.optimizer = {.momentum = 0.9f}, .batch = 64}},
    {"small, adamw", small, {.optimizer = {.kind = TW_ADAMW, .learning_rate = 0.01}}},
};

/* ---- runs ---- */

static tw_dataset *data(tw_context *context, int count, uint32_t x) {
    uint8_t *images = malloc((size_t)count * PIXELS);
    int32_t labels[RUN_SAMPLES];
    tw_dataset *dataset;
    assert_true(images && count <= RUN_SAMPLES);
    for (int i = 0; i < count; i++) {
        labels[i] = i % CLASSES;
        for (int p = 0; p < PIXELS; p++) {
            x = x * 1664525u + 1013904223u;
            images[i * PIXELS + p] = (uint8_t)((x >> 24) / 2 + (p / 3 % CLASSES == labels[i] ? 100 : 0));
        }
    }
    CHECK_OK(tw_dataset_create_from(&dataset, context, TW_U8, images, count, 1, SIDE, SIDE, labels, NULL));
    free(images);
    return dataset;
}

static void note(void *user, tw_log_level level, const char *message) {
    run *r = user;
    const size_t length = strlen(r->log);
    (void)level;
    snprintf(r->log + length, sizeof r->log - length, "%s\n", message);
}

tw_trainer_options run_options(const run_kind *kind) {
    tw_trainer_options options = kind->options;
    options.size = sizeof options;
    options.epochs = RUN_EPOCHS;
    if (!options.batch) options.batch = RUN_BATCH;
    return options;
}

void run_open(run *r, const run_kind *kind, const tw_trainer_options *options, int threads) {
    memset(r, 0, sizeof *r);
    CHECK_OK(tw_context_create(
        &r->context, "cpu",
        TW_OPTIONS(context, .threads = threads, .log = note, .log_user = r, .log_level = TW_LOG_WARNING)));
    r->blocks = tw_context_get_memory(r->context).blocks;
    r->train = data(r->context, RUN_SAMPLES, 1);
    r->test = data(r->context, 20, 2);
    CHECK_OK(tw_model_create(&r->model, r->context));
    CHECK_OK(tw_model_build(r->model, kind->network(r->model), TW_OPTIONS(model, .seed = 11)));
    CHECK_OK(tw_trainer_create(&r->trainer, r->model, options));
}

void run_close(run *r) {
    tw_trainer_destroy(r->trainer);
    tw_model_destroy(r->model);
    tw_dataset_destroy(r->test);
    tw_dataset_destroy(r->train);
    assert_int_equal(tw_context_get_memory(r->context).blocks, r->blocks);
    tw_context_destroy(r->context);
}

/* ---- what comes of them ---- */

char *run_read(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    bytes[*size] = 0;
    fclose(file);
    return bytes;
}

void run_write(const char *path, const char *bytes, size_t size) {
    remove(path); /* cutting a file and writing it again makes some file systems flush */
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

void run_write_signed(const char *path, char *bytes, size_t size) {
    char *at = twi_checksum_find(bytes, size), text[TWI_CHECKSUM_DIGITS + 1];
    if (at) {
        memcpy(at, TWI_CHECKSUM_EMPTY, TWI_CHECKSUM_DIGITS);
        snprintf(text, sizeof text, "%08x", (unsigned)twi_checksum_add(0, bytes, size));
        memcpy(at, text, TWI_CHECKSUM_DIGITS);
    }
    run_write(path, bytes, size);
}

char *run_all_of(const run *r, size_t *size) {
    char other[] = "/tmp/talweg-checkpoint-other-XXXXXX";
    const int descriptor = mkstemp(other);
    assert_true(descriptor >= 0);
    close(descriptor);
    CHECK_OK(tw_trainer_save(r->trainer, other));
    char *bytes = run_read(other, size);
    remove(other);
    return bytes;
}

void run_assert_all_is(const run *r, const char *before, size_t size) {
    size_t now_size;
    char *now = run_all_of(r, &now_size);
    assert_int_equal(now_size, size);
    assert_memory_equal(now, before, size);
    free(now);
}

/* Takes the columns `seconds` and `images_per_second` out of the history. */
static void drop_times(char *csv) {
    char *to = csv;
    int column = 0;
    for (const char *from = csv; *from; from++) {
        if (column < 2 || column > 3 || *from == '\n') *to++ = *from;
        column = *from == '\n' ? 0 : column + (*from == ',');
    }
    *to = 0;
}

char *run_outcome(const run *r, size_t *size) {
    char path[] = "/tmp/talweg-outcome-XXXXXX";
    const int descriptor = mkstemp(path);
    size_t model_size, history_size;
    assert_true(descriptor >= 0);
    close(descriptor);
    CHECK_OK(tw_model_save(r->model, path));
    char *model = run_read(path, &model_size);
    CHECK_OK(tw_trainer_save_history(r->trainer, path));
    char *history = run_read(path, &history_size);
    remove(path);
    drop_times(history);
    history_size = strlen(history) + 1;
    *size = model_size + history_size;
    model = realloc(model, *size);
    assert_non_null(model);
    memcpy(model + model_size, history, history_size);
    free(history);
    return model;
}
