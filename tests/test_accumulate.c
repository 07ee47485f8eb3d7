/* Windows: gradients of several batches summed before one update. Against the batch they stand for, against PyTorch
 * (tests/golden/make_windows.py);
 * test_windows.c has what may be called when. */
#include "golden/windows.h"
#include "program/model.h"
#include "small_task.h"
#include "subject.h"

#include <math.h>
#include <stdio.h>

enum { STEPS = 20 };

static tw_value *lenet5(tw_model *model, tw_value *x) { return tw_zoo_lenet5(model, x, SUBJECT_CLASSES); }

static tw_value *with_dropout(tw_model *model, tw_value *x) {
    x = tw_max_pool(model, tw_relu(model, tw_conv2d(model, x, 4, 5, NULL)), 4, NULL);
    x = tw_relu(model, tw_dense(model, tw_dropout(model, x, 0.4f), 24, NULL));
    return tw_dense(model, tw_dropout(model, x, 0.3f), SUBJECT_CLASSES, NULL);
}

static tw_value *with_tied_layers(tw_model *model, tw_value *x) {
    x = tw_relu(model, tw_dense(model, x, 16, NULL));
    x = tw_relu(model, tw_dense(model, x, 16, TW_OPTIONS(dense, .name = "first")));
    x = tw_dense(model, x, 16, TW_OPTIONS(dense, .name = "second", .tied_to = "first"));
    return tw_dense(model, x, SUBJECT_CLASSES, NULL);
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
    subject parts = subject_open(task_context, build, pixels), whole = subject_open(task_context, build, pixels);
    int total = 0;
    int64_t next = 0;
    for (int i = 0; batches[i]; i++) total += batches[i];
    for (int i = 0; i < STEPS; i++) {
        subject_clear_samples(&whole, &next, total);
        memcpy(parts.image, whole.image, (size_t)(total * pixels) * sizeof *parts.image);
        memcpy(parts.label, whole.label, sizeof parts.label);
        double expected = subject_step(&whole, (int[]){total, 0});
        CHECK_NEAR(subject_step(&parts, batches), expected, tolerance);
    }
    assert_int_equal(tw_model_get_updates(parts.model), STEPS);
    assert_int_equal(tw_model_get_attempts(parts.model), STEPS);
    subject_close(&parts);
    subject_close(&whole);
}

static void lenet5_in_four_parts_learns_as_in_one(void **state) {
    (void)state;
    follow_the_whole_batch(lenet5, SUBJECT_PIXELS, (int[]){16, 16, 16, 16, 0}, 1e-5);
}

static void masks_are_those_of_the_whole_batch(void **state) {
    (void)state;
    follow_the_whole_batch(with_dropout, SUBJECT_PIXELS, (int[]){16, 16, 16, 16, 0}, 1e-5);
    follow_the_whole_batch(with_dropout, SUBJECT_PIXELS, (int[]){7, 7, 3, 0}, 1e-5);
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
        s[way] = subject_open(task_context, subject_batch_norm, SUBJECT_PIXELS);
        tw_program *plain = way == 0 ? subject_program(&s[way], 16, false) : NULL;
        if (plain) s[way].program[16] = plain;
        for (int i = 0; i < 3; i++) {
            subject_samples(&s[way], i * 16, 16, SUBJECT_CLASSES);
            if (way == 1)
                subject_step(&s[way], (int[]){16, 0});
            else
                CHECK_OK(tw_program_run(subject_fed(&s[way], 0, 16)));
        }
        values[way] = task_parameters(s[way].model, &count);
    }
    for (int way = 0; way < 3; way++) {
        assert_memory_equal(values[way], values[0], count * sizeof **values);
        assert_int_equal(tw_model_get_attempts(s[way].model), 3);
    }
    for (int way = 0; way < 3; way++) {
        free(values[way]);
        subject_close(&s[way]);
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
        subject s = subject_open(task_context, lenet5, SUBJECT_PIXELS);
        s.optimizer = &optimizer;
        load_lenet5(&s);
        for (int i = 0; i < 3; i++) {
            subject_samples(&s, i * 145, 145, SUBJECT_CLASSES);
            tw_program *last = subject_sum(&s, batches[way]);
            for (int p = 0; i == 0 && p < tw_model_count_parameters(s.model); p++) {
                tw_parameter parameter;
                CHECK_OK(tw_model_get_parameter(s.model, p, &parameter));
                CHECK_NEAR(norm_of(last, &parameter), lenet5_gradient_norms[p], 2e-5);
            }
            CHECK_OK(tw_program_run_update(last));
            CHECK_NEAR(tw_window_get_loss(s.model), lenet5_window_losses[i], 2e-6);
        }
        subject_close(&s);
    }
}

static tw_value *small(tw_model *model, tw_value *x) {
    x = tw_relu(model, tw_batch_norm(model, tw_dense(model, x, 4, NULL), NULL));
    return tw_dense(model, x, 3, NULL);
}

static void fill_hashed(tw_model *model, const char *name, int64_t count) {
    float values[16];
    for (int64_t i = 0; i < count; i++) values[i] = (float)(subject_hash((uint32_t)i) / 0x1p32 - 0.5);
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
    subject s = subject_open(task_context, small, 3);
    s.optimizer = &optimizer;
    fill_hashed(s.model, "fc1.weight", 12);
    fill_hashed(s.model, "fc1.bias", 4);
    fill_hashed(s.model, "fc2.weight", 12);
    fill_hashed(s.model, "fc2.bias", 3);
    for (int i = 0; i < 2; i++) {
        subject_samples(&s, i * 13, 13, 3);
        CHECK_NEAR(subject_step(&s, (int[]){5, 5, 3, 0}), small_window_losses[i], 2e-6);
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
    subject_close(&s);
}

/* ---- the same bytes, and no memory ---- */

static void any_number_of_threads(void **state) {
    (void)state;
    float *values[2];
    size_t count;
    for (int way = 0; way < 2; way++) {
        tw_context *context;
        CHECK_OK(tw_context_create(&context, check_device_or_cpu(), TW_OPTIONS(context, .threads = 1 + way)));
        subject s = subject_open(context, subject_batch_norm, SUBJECT_PIXELS);
        for (int i = 0; i < 3; i++) {
            subject_samples(&s, i * 41, 41, SUBJECT_CLASSES);
            subject_step(&s, (int[]){16, 16, 9, 0});
        }
        values[way] = task_parameters(s.model, &count);
        subject_close(&s);
        tw_context_destroy(context);
    }
    assert_memory_equal(values[0], values[1], count * sizeof **values);
    free(values[0]);
    free(values[1]);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
