/* Windows: gradients of several batches summed before one update. Against the batch they stand for, against PyTorch
 * (tests/golden/make_windows.py), and what is left of a window that fails. */
#include "golden/windows.h"
#include "program/model.h"
#include "small_task.h"

#include <math.h>
#include <stdio.h>

/* Few enough steps that no relu or pool decides a near tie otherwise in parts than at once. */
enum { CLASSES = 10, PIXELS = 784, STEPS = 10, MOST = 512 };

static const tw_optimizer_options sgd = {
    .size = sizeof sgd, .learning_rate = 0.05, .momentum = 0.9f, .weight_decay = 1e-3f};

/* A net, its data, and how to train on them in parts. */
typedef struct subject {
    tw_context *context;
    tw_model *model;
    tw_value *x, *labels, *loss;
    int64_t pixels; /* of a sample */
    const tw_optimizer_options *optimizer;
    tw_program *program[MOST + 1]; /* by batch */
    float *image;
    int32_t label[MOST];
} subject;

typedef tw_value *(*build_fn)(tw_model *model, tw_value *x);

static tw_value *lenet5(tw_model *model, tw_value *x) { return tw_zoo_lenet5(model, x, CLASSES); }

static tw_value *with_dropout(tw_model *model, tw_value *x) {
    x = tw_max_pool(model, tw_relu(model, tw_conv2d(model, x, 4, 5, NULL)), 4, NULL);
    x = tw_relu(model, tw_dense(model, tw_dropout(model, x, 0.4f), 24, NULL));
    return tw_dense(model, tw_dropout(model, x, 0.3f), CLASSES, NULL);
}

static tw_value *with_batch_norm(tw_model *model, tw_value *x) {
    x = tw_batch_norm(model, tw_conv2d(model, x, 4, 5, NULL), NULL);
    return tw_dense(model, tw_max_pool(model, tw_dropout(model, tw_relu(model, x), 0.2f), 4, NULL), CLASSES, NULL);
}

static tw_value *with_tied_layers(tw_model *model, tw_value *x) {
    x = tw_relu(model, tw_dense(model, x, 16, NULL));
    x = tw_relu(model, tw_dense(model, x, 16, TW_OPTIONS(dense, .name = "first")));
    x = tw_dense(model, x, 16, TW_OPTIONS(dense, .name = "second", .tied_to = "first"));
    return tw_dense(model, x, CLASSES, NULL);
}

/* The hash of make_trajectories.py. */
static uint32_t hashed(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 16;
    x *= 0x846CA68Bu;
    return x ^ x >> 16;
}

static void make_samples(subject *s, int64_t first, int64_t count, int classes) {
    for (int64_t n = 0; n < count; n++) {
        uint32_t sample = (uint32_t)(first + n);
        s->label[n] = (int32_t)(hashed(sample) % (uint32_t)classes);
        for (int64_t p = 0; p < s->pixels; p++) {
            float noise = (float)(hashed(sample * (uint32_t)s->pixels + (uint32_t)p) >> 8) * 0x1p-24f;
            float pattern = (float)((s->label[n] * 7919 + p * 104729) % 251) / 251.0f;
            s->image[n * s->pixels + p] = noise + pattern - 1;
        }
    }
}

static subject open_subject(tw_context *context, build_fn build, int64_t pixels) {
    subject s = {.context = context, .pixels = pixels, .optimizer = &sgd};
    CHECK_OK(tw_model_create(&s.model, context));
    s.x = pixels == PIXELS ? tw_input(s.model, 1, 28, 28) : tw_input_shaped(s.model, "x", 1, &pixels);
    s.labels = tw_input_labels(s.model, NULL);
    tw_value *logits = build(s.model, s.x);
    s.loss = tw_cross_entropy(s.model, logits, s.labels, NULL);
    CHECK_OK(tw_model_build(s.model, logits, TW_OPTIONS(model, .seed = 3)));
    assert_non_null(s.image = malloc((size_t)(MOST * pixels) * sizeof *s.image));
    return s;
}

static void close_subject(subject *s) {
    for (int i = 0; i <= MOST; i++) tw_program_destroy(s->program[i]);
    tw_model_destroy(s->model);
    free(s->image);
}

static tw_program *make_program(const subject *s, int64_t batch, bool accumulate) {
    tw_program *program;
    CHECK_OK(tw_program_create(&program, s->model, batch,
                               TW_OPTIONS(program, .train = true, .losses = &(tw_loss){s->loss, 0}, .loss_count = 1,
                                          .optimizer = s->optimizer, .accumulate = accumulate, .record_passes = true)));
    return program;
}

/* The program for a batch, with samples `first`.. of what was made. */
static tw_program *fed(subject *s, int64_t first, int64_t batch) {
    if (!s->program[batch]) s->program[batch] = make_program(s, batch, true);
    CHECK_OK(tw_program_write(s->program[batch], s->x, TW_F32, s->image + first * s->pixels, batch * s->pixels));
    CHECK_OK(tw_program_write(s->program[batch], s->labels, TW_I32, s->label + first, batch));
    return s->program[batch];
}

/* Gradients of the batches, which end with 0; returns the last one's program. */
static tw_program *sum_gradients(subject *s, const int *batches) {
    tw_program *program = NULL;
    int64_t total = 0, first = 0;
    for (int i = 0; batches[i]; i++) total += batches[i];
    CHECK_OK(tw_window_open(s->model, total));
    for (int i = 0; batches[i]; first += batches[i++]) {
        program = fed(s, first, batches[i]);
        CHECK_OK(tw_program_run_gradients(program));
    }
    return program;
}

static double step(subject *s, const int *batches) {
    CHECK_OK(tw_program_run_update(sum_gradients(s, batches)));
    return tw_window_get_loss(s->model);
}

#define CHECK_NEAR(found, expected, tolerance)                                           \
    do {                                                                                 \
        double found_ = (found), expected_ = (expected);                                 \
        if (!(fabs(found_ - expected_) <= (tolerance)*fabs(expected_)))                  \
            fail_msg("%s is %.9g, expected %.9g: %.2e apart", #found, found_, expected_, \
                     fabs(found_ / expected_ - 1));                                      \
    } while (0)

/* ---- a window is the batch it stands for ---- */

static void follow_the_whole_batch(build_fn build, int64_t pixels, const int *batches, double tolerance) {
    subject parts = open_subject(task_context, build, pixels), whole = open_subject(task_context, build, pixels);
    int total = 0;
    for (int i = 0; batches[i]; i++) total += batches[i];
    for (int i = 0; i < STEPS; i++) {
        make_samples(&parts, i * total, total, CLASSES);
        make_samples(&whole, i * total, total, CLASSES);
        double expected = step(&whole, (int[]){total, 0});
        CHECK_NEAR(step(&parts, batches), expected, tolerance);
    }
    assert_int_equal(tw_model_get_updates(parts.model), STEPS);
    assert_int_equal(tw_model_get_attempts(parts.model), STEPS);
    close_subject(&parts);
    close_subject(&whole);
}

static void lenet5_in_four_parts_learns_as_in_one(void **state) {
    (void)state;
    follow_the_whole_batch(lenet5, PIXELS, (int[]){16, 16, 16, 16, 0}, 1e-5);
}

static void masks_are_those_of_the_whole_batch(void **state) {
    (void)state;
    follow_the_whole_batch(with_dropout, PIXELS, (int[]){16, 16, 16, 16, 0}, 1e-5);
    follow_the_whole_batch(with_dropout, PIXELS, (int[]){7, 7, 3, 0}, 1e-5);
}

static void gradients_of_layers_that_share_weights(void **state) {
    (void)state;
    follow_the_whole_batch(with_tied_layers, 12, (int[]){9, 9, 2, 0}, 1e-5);
}

/* Without a window a run is one of one batch: bit for bit what a program that cannot accumulate does. */
static void a_window_of_one_batch_is_a_plain_run(void **state) {
    (void)state;
    subject s[3];
    float *values[3];
    size_t count;
    for (int way = 0; way < 3; way++) {
        s[way] = open_subject(task_context, with_batch_norm, PIXELS);
        tw_program *plain = way == 0 ? make_program(&s[way], 16, false) : NULL;
        if (plain) s[way].program[16] = plain;
        for (int i = 0; i < 3; i++) {
            make_samples(&s[way], i * 16, 16, CLASSES);
            if (way == 1)
                step(&s[way], (int[]){16, 0});
            else
                CHECK_OK(tw_program_run(fed(&s[way], 0, 16)));
        }
        values[way] = task_parameters(s[way].model, &count);
    }
    for (int way = 0; way < 3; way++) {
        assert_memory_equal(values[way], values[0], count * sizeof **values);
        assert_int_equal(tw_model_get_attempts(s[way].model), 3);
    }
    for (int way = 0; way < 3; way++) {
        free(values[way]);
        close_subject(&s[way]);
    }
}

/* ---- against PyTorch ---- */

static void load_lenet5(subject *s) {
    const char *source = getenv("TALWEG_SOURCE_DIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/lenet5.safetensors", source ? source : ".");
    CHECK_OK(tw_model_load(s->model, path, NULL));
}

static double norm_of(tw_program *program, const tw_parameter *parameter) {
    int64_t count = 1;
    for (int axis = 0; axis < parameter->rank; axis++) count *= parameter->dims[axis];
    float *values = malloc((size_t)count * sizeof *values);
    double sum = 0;
    CHECK_OK(tw_program_read_parameter_gradient(program, parameter->name, values, count));
    for (int64_t i = 0; i < count; i++) sum += (double)values[i] * values[i];
    free(values);
    return sqrt(sum);
}

/* 64 + 64 + 17 count as the 145 samples they are. */
static void lenet5_with_a_shorter_last_batch_as_pytorch(void **state) {
    (void)state;
    static const tw_optimizer_options optimizer = {.size = sizeof optimizer, .learning_rate = 0.05, .momentum = 0.9f};
    const int batches[2][4] = {{64, 64, 17, 0}, {145, 0}};
    for (int way = 0; way < 2; way++) {
        subject s = open_subject(task_context, lenet5, PIXELS);
        s.optimizer = &optimizer;
        load_lenet5(&s);
        for (int i = 0; i < 3; i++) {
            make_samples(&s, i * 145, 145, CLASSES);
            tw_program *last = sum_gradients(&s, batches[way]);
            for (int p = 0; i == 0 && p < tw_model_count_parameters(s.model); p++) {
                tw_parameter parameter;
                CHECK_OK(tw_model_get_parameter(s.model, p, &parameter));
                CHECK_NEAR(norm_of(last, &parameter), lenet5_gradient_norms[p], 2e-5);
            }
            CHECK_OK(tw_program_run_update(last));
            CHECK_NEAR(tw_window_get_loss(s.model), lenet5_window_losses[i], 2e-6);
        }
        close_subject(&s);
    }
}

static tw_value *small(tw_model *model, tw_value *x) {
    x = tw_relu(model, tw_batch_norm(model, tw_dense(model, x, 4, NULL), NULL));
    return tw_dense(model, x, 3, NULL);
}

static void fill_hashed(tw_model *model, const char *name, int64_t count) {
    float values[16];
    for (int64_t i = 0; i < count; i++) values[i] = (float)(hashed((uint32_t)i) / 0x1p32 - 0.5);
    CHECK_OK(tw_parameter_write(model, name, values, count));
}

static void check_parameter(const tw_model *model, const char *name, const double *expected, int64_t count) {
    float values[16];
    CHECK_OK(tw_parameter_read(model, name, values, count));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)values[i] - expected[i]) <= 2e-6))
            fail_msg("%s[%d]: %.9g, expected %.9g", name, (int)i, values[i], expected[i]);
}

/* Each batch moves the running statistics, once, whatever its size. */
static void running_statistics_as_pytorch(void **state) {
    (void)state;
    static const tw_optimizer_options optimizer = {.size = sizeof optimizer, .learning_rate = 0.5};
    subject s = open_subject(task_context, small, 3);
    s.optimizer = &optimizer;
    fill_hashed(s.model, "fc1.weight", 12);
    fill_hashed(s.model, "fc1.bias", 4);
    fill_hashed(s.model, "fc2.weight", 12);
    fill_hashed(s.model, "fc2.bias", 3);
    for (int i = 0; i < 2; i++) {
        make_samples(&s, i * 13, 13, 3);
        CHECK_NEAR(step(&s, (int[]){5, 5, 3, 0}), small_window_losses[i], 2e-6);
    }
    check_parameter(s.model, "bn1.running_mean", small_bn1_running_mean, 4);
    check_parameter(s.model, "bn1.running_var", small_bn1_running_var, 4);
    check_parameter(s.model, "bn1.num_batches_tracked", small_bn1_num_batches_tracked, 1);
    check_parameter(s.model, "bn1.weight", small_bn1_weight, 4);
    check_parameter(s.model, "bn1.bias", small_bn1_bias, 4);
    check_parameter(s.model, "fc1.weight", small_fc1_weight, 12);
    check_parameter(s.model, "fc1.bias", small_fc1_bias, 4);
    check_parameter(s.model, "fc2.weight", small_fc2_weight, 12);
    check_parameter(s.model, "fc2.bias", small_fc2_bias, 3);
    close_subject(&s);
}

/* ---- the same bytes, and no memory ---- */

static void any_number_of_threads(void **state) {
    (void)state;
    float *values[2];
    size_t count;
    for (int way = 0; way < 2; way++) {
        tw_context *context;
        CHECK_OK(tw_context_create(&context, check_device_or_cpu(), TW_OPTIONS(context, .threads = 1 + way)));
        subject s = open_subject(context, with_batch_norm, PIXELS);
        for (int i = 0; i < 3; i++) {
            make_samples(&s, i * 41, 41, CLASSES);
            step(&s, (int[]){16, 16, 9, 0});
        }
        values[way] = task_parameters(s.model, &count);
        close_subject(&s);
        tw_context_destroy(context);
    }
    assert_memory_equal(values[0], values[1], count * sizeof **values);
    free(values[0]);
    free(values[1]);
}

static void windows_take_no_memory(void **state) {
    (void)state;
    subject s = open_subject(task_context, with_batch_norm, PIXELS);
    make_samples(&s, 0, 41, CLASSES);
    step(&s, (int[]){16, 16, 9, 0});
    uint64_t before = tw_context_get_memory(task_context).allocations;
    for (int i = 0; i < 50; i++) step(&s, (int[]){16, 16, 9, 0});
    assert_int_equal(tw_context_get_memory(task_context).allocations, before);
    close_subject(&s);
}

static void only_those_that_accumulate_pay(void **state) {
    (void)state;
    subject s = open_subject(task_context, with_batch_norm, PIXELS);
    tw_program *plain = make_program(&s, 8, false);
    size_t gradients = tw_program_get_stats(plain).gradient_bytes;
    assert_null(strstr(tw_program_dump(plain, TW_PASS_LOWER), "accumulate"));
    assert_null(s.model->store.gradient_sums);
    tw_program *sums = fed(&s, 0, 8);
    const char *dump = tw_program_dump(sums, TW_PASS_MEMORY), *update = strstr(dump, "update   commit.copy");
    assert_non_null(strstr(dump, "accumulate.gradients"));
    assert_non_null(strstr(dump, "accumulate.resume"));
    assert_true(update && strstr(update, "update   sgd.update")); /* running statistics wait for the update */
    assert_int_equal(tw_program_get_stats(sums).gradient_bytes, 2 * gradients);
    tw_program_destroy(plain);
    close_subject(&s);
}

/* ---- windows that fail ---- */

/* All that lasts of a model, byte for byte. */
typedef struct lasting {
    float *parameters;
    void *moment;
    size_t moment_bytes;
    uint64_t updates;
    double learning_rate;
} lasting;

static lasting keep(const subject *s) {
    size_t count;
    lasting l = {.parameters = task_parameters(s->model, &count),
                 .moment_bytes = (size_t)s->model->store.learned_count * sizeof(float),
                 .updates = tw_model_get_updates(s->model),
                 .learning_rate = tw_model_get_learning_rate(s->model)};
    assert_non_null(l.moment = malloc(l.moment_bytes));
    memcpy(l.moment, s->model->store.moment[0], l.moment_bytes);
    return l;
}

static void assert_as_kept(const subject *s, lasting *l) {
    assert_true(task_unchanged(s->model, l->parameters));
    assert_memory_equal(s->model->store.moment[0], l->moment, l->moment_bytes);
    assert_int_equal(tw_model_get_updates(s->model), l->updates);
    assert_true(tw_model_get_learning_rate(s->model) == l->learning_rate);
    free(l->parameters);
    free(l->moment);
}

static void a_fault_in_a_later_batch_changes_nothing(void **state) {
    (void)state;
    const int batches[] = {16, 16, 9, 0};
    subject s = open_subject(task_context, with_batch_norm, PIXELS),
            twin = open_subject(task_context, with_batch_norm, PIXELS);
    make_samples(&s, 0, 41, CLASSES);
    make_samples(&twin, 0, 41, CLASSES);
    step(&s, batches);
    step(&twin, batches);
    lasting before = keep(&s);
    s.label[21] = 10;
    CHECK_OK(tw_window_open(s.model, 41));
    CHECK_OK(tw_program_run_gradients(fed(&s, 0, 16)));
    CHECK_FAILS(tw_program_run_gradients(fed(&s, 16, 16)), TW_ERROR_LABEL, "label 10 of sample 21 is outside 0 .. 9");
    CHECK_FAILS(tw_program_run_gradients(fed(&s, 32, 9)), TW_ERROR_STATE, "a run of the open window failed");
    CHECK_FAILS(tw_program_run_update(s.program[16]), TW_ERROR_STATE, "a run of the open window failed");
    s.image[17 * PIXELS] = INFINITY;
    CHECK_OK(tw_window_open(s.model, 41));
    CHECK_OK(tw_program_run_gradients(fed(&s, 0, 16)));
    CHECK_FAILS(tw_program_run_gradients(fed(&s, 16, 16)), TW_ERROR_LABEL, "sample 21");
    s.label[21] = twin.label[21];
    CHECK_OK(tw_window_open(s.model, 41));
    CHECK_OK(tw_program_run_gradients(fed(&s, 0, 16)));
    CHECK_FAILS(tw_program_run_gradients(fed(&s, 16, 16)), TW_ERROR_NUMERIC,
                "in run 4, batch 2 of its window; nothing was updated");
    CHECK_FAILS(tw_program_run_update(s.program[16]), TW_ERROR_STATE, "a run of the open window failed");
    tw_window_close(s.model);
    CHECK_FAILS(tw_program_run_update(s.program[16]), TW_ERROR_STATE, "no gradients of this program");
    assert_int_equal(tw_model_get_attempts(s.model), 4);
    assert_as_kept(&s, &before);
    /* Neither sums nor shadows of what failed reach the next window. */
    s.image[17 * PIXELS] = twin.image[17 * PIXELS];
    twin.model->store.attempts = 4;
    assert_true(step(&s, batches) == step(&twin, batches));
    before = keep(&twin);
    assert_as_kept(&s, &before);
    close_subject(&s);
    close_subject(&twin);
}

/* ---- what may be called when ---- */

static void a_window_takes_what_was_announced(void **state) {
    (void)state;
    subject s = open_subject(task_context, with_batch_norm, PIXELS);
    make_samples(&s, 0, 41, CLASSES);
    step(&s, (int[]){16, 0});
    lasting before = keep(&s);
    tw_program *plain = make_program(&s, 16, false), *evaluation;
    CHECK_OK(tw_program_create(&evaluation, s.model, 16,
                               TW_OPTIONS(program, .losses = &(tw_loss){s.loss, 0}, .loss_count = 1)));
    CHECK_FAILS(tw_window_open(NULL, 1), TW_ERROR_ARGUMENT, "NULL");
    CHECK_FAILS(tw_window_open(s.model, 0), TW_ERROR_ARGUMENT, "samples is 0");
    CHECK_OK(tw_window_open(s.model, 30));
    CHECK_FAILS(tw_program_run_update(s.program[16]), TW_ERROR_STATE, "has run 0 of its 30 samples");
    assert_true(isnan(tw_window_get_loss(s.model)));
    CHECK_OK(tw_program_run_gradients(fed(&s, 0, 16)));
    CHECK_FAILS(tw_program_run_update(s.program[16]), TW_ERROR_STATE, "has run 16 of its 30 samples");
    CHECK_FAILS(tw_program_run_gradients(fed(&s, 16, 16)), TW_ERROR_STATE,
                "batch is 16, but the open window lacks only 14 of its 30");
    CHECK_FAILS(tw_program_run(s.program[16]), TW_ERROR_STATE, "tw_program_run: a window of 30 samples is open");
    CHECK_FAILS(tw_program_run(plain), TW_ERROR_STATE,
                "a window of 30 samples is open (16 run), and this program does not sum");
    CHECK_FAILS(tw_program_run_gradients(plain), TW_ERROR_STATE, "does not sum gradients");
    CHECK_FAILS(tw_program_run_update(plain), TW_ERROR_STATE, "does not sum gradients");
    assert_as_kept(&s, &before);
    /* What does not train may run in between, and what was refused has spoilt nothing. */
    s.program[0] = s.program[16];
    s.program[16] = evaluation;
    CHECK_OK(tw_program_run(fed(&s, 0, 16)));
    s.program[16] = s.program[0];
    s.program[0] = NULL;
    CHECK_OK(tw_program_run_gradients(fed(&s, 16, 14)));
    CHECK_OK(tw_program_run_update(s.program[14]));
    subject twin = open_subject(task_context, with_batch_norm, PIXELS);
    make_samples(&twin, 0, 41, CLASSES);
    step(&twin, (int[]){16, 0});
    step(&twin, (int[]){16, 14, 0});
    before = keep(&twin);
    assert_as_kept(&s, &before);
    CHECK_FAILS(tw_program_run_update(s.program[14]), TW_ERROR_STATE, "no gradients");
    tw_window_close(s.model);
    tw_window_close(NULL);
    assert_true(isnan(tw_window_get_loss(NULL)));
    tw_program_destroy(plain);
    tw_program_destroy(evaluation);
    close_subject(&twin);
    close_subject(&s);
}

static void a_window_left_open_is_dropped(void **state) {
    (void)state;
    subject s = open_subject(task_context, with_batch_norm, PIXELS),
            twin = open_subject(task_context, with_batch_norm, PIXELS);
    make_samples(&s, 0, 41, CLASSES);
    make_samples(&twin, 0, 41, CLASSES);
    CHECK_OK(tw_window_open(s.model, 32));
    CHECK_OK(tw_program_run_gradients(fed(&s, 25, 16)));
    twin.model->store.attempts = 1;
    assert_true(step(&s, (int[]){16, 16, 0}) == step(&twin, (int[]){16, 16, 0}));
    CHECK_OK(tw_program_run_gradients(fed(&s, 0, 16))); /* gradients of a run that is no window's .. */
    CHECK_OK(tw_window_open(s.model, 16));
    tw_window_close(s.model);
    CHECK_FAILS(tw_program_run_update(s.program[16]), TW_ERROR_STATE, "no gradients"); /* .. are dropped as well */
    lasting before = keep(&twin);
    assert_as_kept(&s, &before);
    tw_program *program;
    CHECK_FAILS(tw_program_create(&program, s.model, 4,
                                  TW_OPTIONS(program, .train = true, .losses = &(tw_loss){s.loss, 0}, .loss_count = 1,
                                             .accumulate = true)),
                TW_ERROR_ARGUMENT, "accumulate needs an optimizer");
    close_subject(&s);
    close_subject(&twin);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        with_context(lenet5_in_four_parts_learns_as_in_one),
        with_context(masks_are_those_of_the_whole_batch),
        with_context(gradients_of_layers_that_share_weights),
        with_context(a_window_of_one_batch_is_a_plain_run),
        with_context(lenet5_with_a_shorter_last_batch_as_pytorch),
        with_context(running_statistics_as_pytorch),
        cmocka_unit_test(any_number_of_threads),
        with_context(windows_take_no_memory),
        with_context(only_those_that_accumulate_pay),
        with_context(a_fault_in_a_later_batch_changes_nothing),
        with_context(a_window_takes_what_was_announced),
        with_context(a_window_left_open_is_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
