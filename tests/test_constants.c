/* What a program without training makes of parameters and statistics once: that answers follow every change of those, that it
 * is not done in every run, that norms vanish into weights, and that runs take no memory. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "data_files.h"
#include "golden/frozen_norm.h"
#include "program_net.h"
#include "user_ops.h"
#include "worker_sleeps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 5, CLASSES = 3, PIXELS = 2 * 3 * 3, MOST_PARAMETERS = 1024 };
static const int32_t labels[BATCH] = {0, 2, 1, 1, 2};

/* ---- nets ---- */

/* That of make_frozen_norm.py. */
static tw_value *recorded(tw_model *model, tw_value *x) {
    x = tw_conv2d(model, x, 4, 3, TW_OPTIONS(conv2d, .padding = 1, .no_bias = true));
    x = tw_relu(model, tw_batch_norm(model, x, NULL));
    tw_value *y = tw_conv2d(model, x, 4, 3, TW_OPTIONS(conv2d, .padding = 1, .no_bias = true));
    y = tw_batch_norm(model, y, TW_OPTIONS(batch_norm, .epsilon = 1e-3f));
    return tw_dense(model, tw_relu(model, tw_add(model, y, x)), CLASSES, NULL);
}

/* Norms behind biased convolutions and a dense layer, one of 16 channels, and a user's op between them. */
static tw_value *various(tw_model *model, tw_value *x) {
    x = tw_batch_norm(model, tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1)), NULL);
    x = check_device() ? tw_relu(model, x) : user_ops_apply_prelu(model, x, "slope"); /* which is for the CPU */
    x = tw_batch_norm(model, tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1, .no_bias = true)), NULL);
    x = tw_batch_norm(model, tw_dense(model, tw_relu(model, x), 8, NULL), NULL);
    return tw_dense(model, tw_relu(model, x), CLASSES, NULL);
}

/* Who else reads what the convolution gives keeps the norm from vanishing. */
static tw_value *read_twice(tw_model *model, tw_value *x) {
    x = tw_conv2d(model, x, 4, 3, TW_OPTIONS(conv2d, .padding = 1, .no_bias = true));
    tw_value *before = tw_relu(model, x), *y = tw_batch_norm(model, x, NULL);
    return tw_dense(model, tw_add(model, y, before), CLASSES, NULL);
}

/* As open_net, with the user's op in the context. */
static void open(net *n, tw_value *(*build)(tw_model *, tw_value *)) {
    CHECK_OK(tw_context_create(&n->context, check_device_or_cpu(), TW_OPTIONS(context, .threads = 2)));
    CHECK_OK(user_ops_prelu(n->context, TW_OP_ANY_LAYOUT, NULL));
    CHECK_OK(tw_model_create(&n->model, n->context));
    n->x = tw_input(n->model, 2, 3, 3);
    n->labels = tw_input_labels(n->model, NULL);
    n->logits = build(n->model, n->x);
    n->loss = (tw_loss){tw_cross_entropy(n->model, n->logits, n->labels, NULL), 1};
    CHECK_OK(tw_model_build(n->model, n->logits, TW_OPTIONS(model, .seed = 1)));
}

static tw_program *answering(net *n, int64_t batch, bool no_fusion, size_t limit) {
    tw_program *program;
    CHECK_OK(tw_program_create(
        &program, n->model, batch,
        TW_OPTIONS(program, .outputs = &n->logits, .output_count = 1, .no_fusion = no_fusion, .memory_limit = limit)));
    return program;
}

static void answer(net *n, tw_program *program, int64_t batch, float *logits) {
    CHECK_OK(tw_program_write(program, n->x, TW_F32, frozen_x, batch * PIXELS));
    CHECK_OK(tw_program_run(program));
    CHECK_OK(tw_program_read(program, n->logits, logits, batch * CLASSES));
}

static void train(net *n, tw_program *program) {
    CHECK_OK(tw_program_write(program, n->x, TW_F32, frozen_x, BATCH * PIXELS));
    CHECK_OK(tw_program_write(program, n->labels, TW_I32, labels, BATCH));
    CHECK_OK(tw_program_run(program));
}

static void near(const float *found, const float *expected, int64_t count) {
    float largest = 0.1f;
    for (int64_t i = 0; i < count; i++) largest = fmaxf(largest, fabsf(expected[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(found[i] - expected[i]) <= 1e-5f * largest))
            fail_msg("answer %lld is %.9g, expected %.9g", (long long)i, (double)found[i], (double)expected[i]);
}

/* What the model answers, by a model of its own that never saw another state, without fusion. */
static void oracle(const net *n, tw_value *(*build)(tw_model *, tw_value *), float *logits) {
    net fresh;
    open(&fresh, build);
    for (int p = 0; p < tw_model_count_parameters(n->model); p++) {
        tw_parameter parameter;
        float values[MOST_PARAMETERS * 4];
        CHECK_OK(tw_model_get_parameter(n->model, p, &parameter));
        int64_t count = 1;
        for (int axis = 0; axis < parameter.rank; axis++) count *= parameter.dims[axis];
        assert_true(count <= MOST_PARAMETERS * 4);
        CHECK_OK(tw_parameter_read(n->model, parameter.name, values, count));
        CHECK_OK(tw_parameter_write(fresh.model, parameter.name, values, count));
    }
    tw_program *program = answering(&fresh, BATCH, true, 0);
    answer(&fresh, program, BATCH, logits);
    tw_program_destroy(program);
    close_net(&fresh);
}

static void follows(net *n, tw_program *program, tw_value *(*build)(tw_model *, tw_value *)) {
    float found[BATCH * CLASSES], expected[BATCH * CLASSES];
    oracle(n, build, expected);
    answer(n, program, BATCH, found);
    near(found, expected, BATCH * CLASSES);
}

static int steps_of(const tw_program *program, const char *kernel) {
    int count = 0;
    for (int i = 0; i < program->step_count; i++)
        count += strncmp(program->step[i].kernel->name, kernel, strlen(kernel)) == 0;
    return count;
}

/* ---- norms in weights ---- */

static void test_answers_are_those_of_pytorch(void **state) {
    (void)state;
    static const struct {
        const char *name;
        const float *values;
        int64_t count;
    } parameters[] = {{"conv1.weight", frozen_conv1_weight, 72},
                      {"bn1.weight", frozen_bn1_weight, 4},
                      {"bn1.bias", frozen_bn1_bias, 4},
                      {"conv2.weight", frozen_conv2_weight, 144},
                      {"bn2.weight", frozen_bn2_weight, 4},
                      {"bn2.bias", frozen_bn2_bias, 4},
                      {"fc1.weight", frozen_fc1_weight, 108},
                      {"fc1.bias", frozen_fc1_bias, 3},
                      {"bn1.running_mean", frozen_bn1_running_mean, 4},
                      {"bn1.running_var", frozen_bn1_running_var, 4},
                      {"bn2.running_mean", frozen_bn2_running_mean, 4},
                      {"bn2.running_var", frozen_bn2_running_var, 4}};
    net n;
    open(&n, recorded);
    tw_program *program = answering(&n, BATCH, false, 0);
    float logits[BATCH * CLASSES];
    answer(&n, program, BATCH, logits); /* of other parameters */
    for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++)
        CHECK_OK(tw_parameter_write(n.model, parameters[i].name, parameters[i].values, parameters[i].count));
    answer(&n, program, BATCH, logits);
    near(logits, frozen_logits, BATCH * CLASSES);
    tw_program_destroy(program);
    close_net(&n);
}

static void test_norms_vanish_into_weights(void **state) {
    (void)state;
    static const struct {
        tw_value *(*build)(tw_model *, tw_value *);
        int folds, norms;
    } nets[] = {{recorded, 2, 0}, {various, 3, 0}, {read_twice, 0, 1}};
    for (size_t k = 0; k < sizeof nets / sizeof *nets; k++) {
        net n;
        open(&n, nets[k].build);
        tw_program *training = make(&n, BATCH, false);
        for (int i = 0; i < 3; i++) train(&n, training);
        assert_int_equal(steps_of(training, "batch_norm.fold"), 0);
        tw_program *program = answering(&n, BATCH, false, 0), *plain = answering(&n, BATCH, true, 0);
        assert_int_equal(steps_of(program, "batch_norm.fold"), nets[k].folds);
        assert_int_equal(steps_of(program, "batch_norm.apply"), nets[k].norms);
        assert_int_equal(steps_of(plain, "batch_norm.fold"), 0);
        follows(&n, program, nets[k].build);
        follows(&n, plain, nets[k].build);
        tw_program_destroy(training);
        tw_program_destroy(program);
        tw_program_destroy(plain);
        close_net(&n);
    }
}

/* Weights and bias that a norm went into are rounded to the program's type, as the norm's result would have been. In each of
 * three layers input, weights, bias, product and norm are rounded, by half a unit at most, and such errors add up by their
 * squares. */
static void test_norms_vanish_in_halves(void **state) {
    (void)state;
    enum { ROUNDINGS = 3 * 5 };
    static const struct {
        tw_precision precision;
        double half_unit;
    } types[] = {{TW_PRECISION_BF16, 0x1p-9}, {TW_PRECISION_F16, 0x1p-12}};
    static const struct {
        tw_value *(*build)(tw_model *, tw_value *);
        int folds;
    } nets[] = {{recorded, 2}, {various, 3}};
    for (size_t k = 0; k < sizeof nets / sizeof *nets; k++) {
        net n;
        float expected[BATCH * CLASSES], found[BATCH * CLASSES];
        open(&n, nets[k].build);
        tw_program *training = make(&n, BATCH, false);
        for (int i = 0; i < 3; i++) train(&n, training);
        oracle(&n, nets[k].build, expected);
        for (int t = 0; t < 2; t++)
            for (int plain = 0; plain < 2; plain++) {
                tw_program *program;
                CHECK_OK(tw_program_create(&program, n.model, BATCH,
                                           TW_OPTIONS(program, .outputs = &n.logits, .output_count = 1,
                                                      .no_fusion = plain, .precision = types[t].precision)));
                assert_int_equal(steps_of(program, "batch_norm.fold"), plain ? 0 : nets[k].folds);
                answer(&n, program, BATCH, found);
                double away = 0, norm = 0;
                for (int i = 0; i < BATCH * CLASSES; i++) {
                    away += pow((double)found[i] - (double)expected[i], 2);
                    norm += pow((double)expected[i], 2);
                }
                if (!(sqrt(away) <= sqrt(ROUNDINGS * norm) * types[t].half_unit))
                    fail_msg("net %zu in %s%s: answers are %.2g away, by %.3g roundings", k,
                             tw_precision_name(types[t].precision), plain ? ", unfused" : "", sqrt(away),
                             sqrt(away / norm) / types[t].half_unit);
                tw_program_destroy(program);
            }
        tw_program_destroy(training);
        close_net(&n);
    }
}

/* ---- changes ---- */

static void test_answers_follow_training(void **state) {
    (void)state;
    tw_value *(*const nets[])(tw_model *, tw_value *) = {recorded, various, read_twice};
    for (size_t k = 0; k < sizeof nets / sizeof *nets; k++) {
        net n;
        open(&n, nets[k]);
        tw_program *training = make(&n, BATCH, false), *program = answering(&n, BATCH, false, 0);
        for (int i = 0; i < 3; i++) {
            follows(&n, program, nets[k]);
            train(&n, training);
        }
        follows(&n, program, nets[k]);
        tw_program_destroy(training);
        tw_program_destroy(program);
        close_net(&n);
    }
}

/* Statistics move without an update, too: in memory of its own, the answering program is not told by its arena. */
static void test_answers_follow_statistics(void **state) {
    (void)state;
    net n;
    tw_program *training;
    open(&n, recorded);
    CHECK_OK(tw_program_create(&training, n.model, BATCH,
                               TW_OPTIONS(program, .train = true, .losses = &n.loss, .loss_count = 1)));
    tw_program *program = answering(&n, BATCH, false, 0);
    follows(&n, program, recorded);
    const uint64_t before = n.model->store.moved;
    train(&n, training);
    assert_true(n.model->store.moved > before);
    n.model->arena_turns--; /* as if the program had kept its memory */
    follows(&n, program, recorded);
    tw_program_destroy(training);
    tw_program_destroy(program);
    close_net(&n);
}

static void test_answers_follow_parameters_written_by_hand(void **state) {
    (void)state;
    static const char *const names[] = {"conv1.weight", "bn1.weight", "bn1.running_var", "bn1.running_mean",
                                        "fc1.bias"};
    net n;
    open(&n, various);
    tw_program *program = answering(&n, BATCH, false, 0);
    follows(&n, program, various);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        float values[288];
        const int64_t count = i == 0 ? 288 : i == 4 ? 8 : 16;
        CHECK_OK(tw_parameter_read(n.model, names[i], values, count));
        for (int64_t k = 0; k < count; k++) values[k] = values[k] * 1.5f + 0.25f;
        CHECK_OK(tw_parameter_write(n.model, names[i], values, count));
        follows(&n, program, various);
    }
    tw_program_destroy(program);
    close_net(&n);
}

static void test_answers_follow_loaded_weights(void **state) {
    (void)state;
    net n;
    open(&n, various);
    CHECK_OK(tw_model_save(n.model, path_of("first.safetensors")));
    tw_program *training = make(&n, BATCH, false), *program = answering(&n, BATCH, false, 0);
    float first[BATCH * CLASSES], last[BATCH * CLASSES];
    answer(&n, program, BATCH, first);
    for (int i = 0; i < 3; i++) train(&n, training);
    answer(&n, program, BATCH, last);
    assert_true(memcmp(first, last, sizeof first) != 0);
    CHECK_OK(tw_model_load(n.model, path_of("first.safetensors"), NULL));
    answer(&n, program, BATCH, last);
    assert_memory_equal(first, last, sizeof first);
    tw_program_destroy(training);
    tw_program_destroy(program);
    close_net(&n);
}

/* Programs of one model share memory: what one keeps there is gone when another ran. */
static void test_two_programs_take_turns(void **state) {
    (void)state;
    net n;
    open(&n, various);
    tw_program *one = answering(&n, 1, false, 0), *all = answering(&n, BATCH, false, 0);
    float expected[BATCH * CLASSES], found[BATCH * CLASSES];
    oracle(&n, various, expected);
    for (int i = 0; i < 3; i++) {
        answer(&n, one, 1, found);
        near(found, expected, CLASSES);
        answer(&n, one, 1, found);
        near(found, expected, CLASSES);
        answer(&n, all, BATCH, found);
        near(found, expected, BATCH * CLASSES);
    }
    tw_program_destroy(one);
    tw_program_destroy(all);
    close_net(&n);
}

/* ---- once ---- */

static void calls_of_constants(const tw_program *program, uint64_t expected) {
    int found = 0;
    for (int i = 0; i < program->step_count; i++) {
        tw_step_info step = TW_STEP_INFO_INIT;
        CHECK_OK(tw_program_get_step(program, i, &step));
        found += step.constant;
        if (step.constant && strcmp(step.kernel, "batch_norm.from_running") == 0)
            assert_int_equal(step.calls, expected);
    }
    assert_true(found > 0);
}

static void test_constants_are_made_once(void **state) {
    (void)state;
    net n;
    open(&n, various);
    if (!n.context->backend->times_steps) {
        close_net(&n);
        skip();
    }
    tw_program *program = answering(&n, 1, false, 0);
    float logits[CLASSES], slope[16] = {0};
    CHECK_OK(tw_program_set_timing(program, true));
    for (int i = 0; i < 5; i++) answer(&n, program, 1, logits);
    calls_of_constants(program, 1);
    CHECK_OK(tw_parameter_write(n.model, "slope", slope, 16));
    for (int i = 0; i < 5; i++) answer(&n, program, 1, logits);
    calls_of_constants(program, 2);
    tw_program_destroy(program);
    close_net(&n);
}

/* Nobody else's memory overlaps with that of constants, at whatever time. */
static void test_constants_keep_their_place(void **state) {
    (void)state;
    net n;
    open(&n, various);
    tw_program *program = answering(&n, BATCH, false, 0);
    int found = 0;
    for (int i = 0; i < program->buffer_count; i++) {
        const twi_buffer *constant = &program->buffer[i];
        if (!constant->constant || constant->last < 0) continue;
        found++;
        assert_int_equal(constant->first, 0);
        assert_int_equal(constant->last, program->segment_count - 1);
        for (int k = 0; k < program->buffer_count; k++) {
            const twi_buffer *other = &program->buffer[k];
            if (k == i || other->source != TWI_SOURCE_ARENA || other->alias >= 0 || other->local || other->last < 0)
                continue;
            assert_true(other->offset + other->bytes <= constant->offset ||
                        constant->offset + constant->bytes <= other->offset);
        }
    }
    assert_int_equal(found, 9); /* of three norms: coefficients, weights, bias */
    tw_program_destroy(program);
    close_net(&n);
}

/* Where memory is short nothing is kept from run to run. */
static void test_a_limit_of_memory_keeps_no_constants(void **state) {
    (void)state;
    net n;
    open(&n, various);
    tw_program *plain = answering(&n, BATCH, false, 0);
    assert_true(plain->constant_segments > 0);
    const size_t bytes = twi_program_bytes(plain);
    tw_program_destroy(plain);
    twi_model_trim(n.model);
    tw_program *program = answering(&n, BATCH, false, bytes - 256);
    assert_true(twi_program_bytes(program) <= bytes - 256);
    assert_int_equal(program->constant_segments, 0);
    assert_true(steps_of(program, "batch_norm.fold") > 0);
    follows(&n, program, various);
    follows(&n, program, various);
    tw_program_destroy(program);
    close_net(&n);
}

static void test_runs_take_no_memory(void **state) {
    (void)state;
    net n;
    open(&n, various);
    tw_program *program = answering(&n, 1, false, 0);
    float logits[CLASSES];
    const uint64_t before = tw_context_get_memory(n.context).allocations,
                   device = tw_context_get_device_memory(n.context).allocations;
    for (int i = 0; i < 50; i++) answer(&n, program, 1, logits);
    assert_int_equal(tw_context_get_memory(n.context).allocations, before);
    assert_int_equal(tw_context_get_device_memory(n.context).allocations, device);
    tw_program_destroy(program);
    close_net(&n);
}

/* One image is one worker's: the others sleep on, but for what is done once. */
static void test_one_image_wakes_nobody(void **state) {
    (void)state;
    enum { RUNS = 40, FEW = 10 };
    const struct timespec while_spinning = {.tv_nsec = 2000000};
    if (check_device()) skip();
    net n;
    static float image[3 * 32 * 32];
    float logits[10];
    long before = 0;
    const threads_known known = threads_find();
    open_net(&n, resnet20, 3, 32);
    tw_program *program = answering(&n, 1, false, 0);
    for (int i = 0; i < RUNS + FEW; i++) {
        CHECK_OK(tw_program_write(program, n.x, TW_F32, image, 3 * 32 * 32));
        CHECK_OK(tw_program_run(program));
        CHECK_OK(tw_program_read(program, n.logits, logits, 10));
        nanosleep(&while_spinning, NULL);
        if (i + 1 == FEW) before = threads_sleeps_of_others(&known);
    }
    assert_true(before > 0);
    const long woken = threads_sleeps_of_others(&known) - before;
    if (woken > FEW) fail_msg("%d runs woke a worker %ld times", RUNS, woken);
    tw_program_destroy(program);
    close_net(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_are_those_of_pytorch),
        cmocka_unit_test(test_norms_vanish_in_halves),
        cmocka_unit_test(test_norms_vanish_into_weights),
        cmocka_unit_test(test_answers_follow_training),
        cmocka_unit_test(test_answers_follow_statistics),
        cmocka_unit_test(test_answers_follow_parameters_written_by_hand),
        in_folder(test_answers_follow_loaded_weights),
        cmocka_unit_test(test_two_programs_take_turns),
        cmocka_unit_test(test_constants_are_made_once),
        cmocka_unit_test(test_constants_keep_their_place),
        cmocka_unit_test(test_a_limit_of_memory_keeps_no_constants),
        cmocka_unit_test(test_runs_take_no_memory),
        cmocka_unit_test(test_one_image_wakes_nobody),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
