/* Gradients of dense weights that go into the weights as they are made: where that is done, what is said where it is not, and
 * that the weights are those of the steps apart, to the bit. */
#include "program_net.h"

#include <string.h>

enum { BATCH = 37, CLASSES = 10, SIDE = 9, PIXELS = SIDE * SIDE, HIDDEN = 53, STEPS = 4, PARAMETERS = 6 };

/* fc1 and fc2 have a relu behind them, which takes the gradient of their bias; fc3 makes that of its bias with its
 * weight's. */
static tw_value *layers(tw_model *model, tw_value *x) {
    tw_value *hidden = tw_relu(model, tw_dense(model, x, HIDDEN, NULL));
    hidden = tw_relu(model, tw_dense(model, hidden, HIDDEN, NULL));
    return tw_dense(model, hidden, CLASSES, NULL);
}

/* What differs from a program whose gradients go into the weights. */
typedef struct difference {
    tw_optimizer_options optimizer;
    tw_program_options options;
    const char *reason;
} difference;

static tw_optimizer_options momentum_sgd(void) {
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.momentum = 0.9f;
    sgd.weight_decay = 0.01f;
    sgd.learning_rate = 0.1;
    return sgd;
}

static void run(net *n, tw_program *program, int step, int label) {
    static float images[BATCH * PIXELS];
    int32_t labels[BATCH];
    for (int i = 0; i < BATCH * PIXELS; i++) images[i] = (float)((i * 37 + step * 11) % 101) / 50 - 1;
    for (int i = 0; i < BATCH; i++) labels[i] = (i + step) % CLASSES;
    labels[BATCH - 1] = label;
    CHECK_OK(tw_program_write(program, n->x, TW_F32, images, BATCH * PIXELS));
    CHECK_OK(tw_program_write(program, n->labels, TW_I32, labels, BATCH));
    if (label < CLASSES)
        CHECK_OK(tw_program_run(program));
    else
        CHECK_FAILS(tw_program_run(program), TW_ERROR_LABEL, "label");
}

/* How many steps are merged; the last reason of one that is not. */
static int count_merged(const tw_program *program, const char **reason) {
    int merged = 0;
    *reason = NULL;
    for (int i = 0; i < tw_program_get_stats(program).steps; i++) {
        tw_step_info step = TW_STEP_INFO_INIT;
        CHECK_OK(tw_program_get_step(program, i, &step));
        merged += strcmp(step.kernel, "dense.backward_weights_sgd") == 0;
        if (step.apart) *reason = step.apart;
    }
    return merged;
}

static void read_weights(net *n, float *weights, int *count) {
    static const char *const names[PARAMETERS] = {"fc1.weight", "fc1.bias",   "fc2.weight",
                                                  "fc2.bias",   "fc3.weight", "fc3.bias"};
    static const int counts[PARAMETERS] = {HIDDEN * PIXELS, HIDDEN, HIDDEN * HIDDEN, HIDDEN, CLASSES * HIDDEN, CLASSES};
    *count = 0;
    for (int i = 0; i < PARAMETERS; i++) {
        CHECK_OK(tw_parameter_read(n->model, names[i], weights + *count, counts[i]));
        *count += counts[i];
    }
}

/* Momentum, none, Nesterov, on any number of threads. */
static void weights_are_those_of_steps_apart(void **state) {
    (void)state;
    if (check_device()) skip();
    static float apart[HIDDEN * (PIXELS + HIDDEN + CLASSES + 4)], merged[sizeof apart / sizeof *apart];
    for (int way = 0; way < 3; way++)
        for (int threads = 1; threads < 4; threads++) {
            tw_optimizer_options sgd = momentum_sgd();
            sgd.momentum = way ? 0.9f : 0;
            sgd.nesterov = way == 2;
            int count = 0;
            double bytes[2];
            for (int ignore = 0; ignore < 2; ignore++) {
                net n;
                open_net_on(&n, check_device_or_cpu(), threads, layers, 1, SIDE);
                tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
                options.on_non_finite = ignore ? TW_NON_FINITE_IGNORE : TW_NON_FINITE_STOP;
                tw_program *program = program_with(&n, BATCH, &options, &sgd);
                const char *reason;
                assert_int_equal(count_merged(program, &reason), ignore ? 2 : 0);
                bytes[ignore] = tw_program_get_stats(program).bytes;
                if (ignore) assert_null(reason);
                for (int i = 0; i < STEPS; i++) run(&n, program, i, 0);
                assert_int_equal(tw_model_get_updates(n.model), STEPS);
                read_weights(&n, ignore ? merged : apart, &count);
                if (ignore) {
                    run(&n, program, 0, CLASSES); /* a label that is none: nothing changes */
                    read_weights(&n, merged, &count);
                    CHECK_FAILS(tw_program_run_gradients(program), TW_ERROR_STATE, "TW_NON_FINITE_IGNORE");
                    CHECK_FAILS(
                        tw_program_read_parameter_gradient(program, "fc1.weight", merged + count, HIDDEN * PIXELS),
                        TW_ERROR_STATE, "name it in the program's gradients");
                }
                close_net(&n);
            }
            assert_memory_equal(apart, merged, (size_t)count * sizeof *apart);
            /* Two weights' gradients are neither written nor read, and nobody looks at any; parameters begin at whole vectors. */
            const double gone = 8.0 * HIDDEN * (PIXELS + HIDDEN) + 4.0 * count;
            assert_true(bytes[0] - bytes[1] > gone - 4096 && bytes[0] - bytes[1] < gone + 4096);
        }
}

static void what_stands_against_it_is_said(void **state) {
    (void)state;
    if (check_device()) skip();
    const tw_optimizer_options sgd = momentum_sgd();
    difference differences[] = {{sgd, TW_PROGRAM_OPTIONS_INIT, "the guard"},
                                {sgd, TW_PROGRAM_OPTIONS_INIT, "clip_norm"},
                                {sgd, TW_PROGRAM_OPTIONS_INIT, "loss scaling"},
                                {sgd, TW_PROGRAM_OPTIONS_INIT, "summed over a window"},
                                {sgd, TW_PROGRAM_OPTIONS_INIT, "no_fusion"},
                                {sgd, TW_PROGRAM_OPTIONS_INIT, "half precision"},
                                {sgd, TW_PROGRAM_OPTIONS_INIT, "no such form"},
                                {sgd, TW_PROGRAM_OPTIONS_INIT, "limit of memory"},
                                {sgd, TW_PROGRAM_OPTIONS_INIT, NULL}};
    const tw_loss_scaling scaling = {0};
    enum { COUNT = sizeof differences / sizeof *differences };
    for (int i = 3; i < COUNT; i++) differences[i].options.on_non_finite = TW_NON_FINITE_IGNORE;
    differences[1].optimizer.clip_norm = 1;
    differences[2].options.loss_scaling = &scaling;
    differences[3].options.accumulate = true;
    differences[4].options.no_fusion = true;
    differences[5].options.precision = TW_PRECISION_BF16;
    differences[6].optimizer.kind = TW_ADAMW;
    differences[6].optimizer.momentum = 0;
    differences[7].options.recompute = TW_RECOMPUTE_BLOCKS;
    for (int i = 0; i < COUNT; i++) {
        net n;
        open_net_on(&n, check_device_or_cpu(), 1, layers, 1, SIDE);
        const char *reason;
        const int merged =
            count_merged(program_with(&n, BATCH, &differences[i].options, &differences[i].optimizer), &reason);
        assert_int_equal(merged, differences[i].reason ? 0 : 2);
        if (!differences[i].reason)
            assert_null(reason);
        else if (!reason || !strstr(reason, differences[i].reason))
            fail_msg("the reason is '%s', expected '%s'", reason ? reason : "none", differences[i].reason);
        close_net(&n);
    }
}

/* The gradient of fc1's weight is kept and read; fc2's goes into the weight. */
static void a_gradient_that_is_kept_stays(void **state) {
    (void)state;
    if (check_device()) skip();
    static float kept[HIDDEN * PIXELS], apart[HIDDEN * PIXELS];
    const tw_optimizer_options sgd = momentum_sgd();
    for (int ignore = 0; ignore < 2; ignore++) {
        net n;
        open_net_on(&n, check_device_or_cpu(), 2, layers, 1, SIDE);
        tw_value *gradients[] = {tw_model_find(n.model, "fc1.weight")};
        tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
        options.on_non_finite = ignore ? TW_NON_FINITE_IGNORE : TW_NON_FINITE_STOP;
        options.gradients = gradients;
        options.gradient_count = 1;
        tw_program *program = program_with(&n, BATCH, &options, &sgd);
        const char *reason;
        assert_int_equal(count_merged(program, &reason), ignore);
        if (ignore) assert_non_null(strstr(reason, "kept to be read"));
        run(&n, program, 0, 0);
        CHECK_OK(tw_program_read_parameter_gradient(program, "fc1.weight", ignore ? kept : apart, HIDDEN * PIXELS));
        close_net(&n);
    }
    assert_memory_equal(kept, apart, sizeof kept);
}

/* On every device: updates are made whatever the gradients are, and what needs somebody to look is refused. */
static void without_a_guard_nobody_looks(void **state) {
    (void)state;
    net n;
    open_net_on(&n, check_device_or_cpu(), 1, layers, 1, SIDE);
    tw_optimizer_options sgd = momentum_sgd();
    tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
    options.on_non_finite = TW_NON_FINITE_IGNORE;
    tw_program *program = program_with(&n, BATCH, &options, &sgd), *refused;
    for (int i = 0; i < tw_program_get_stats(program).steps; i++) {
        tw_step_info step = TW_STEP_INFO_INIT;
        CHECK_OK(tw_program_get_step(program, i, &step));
        assert_string_not_equal(step.kernel, "guard.measure");
    }
    run(&n, program, 0, 0);
    assert_int_equal(tw_model_get_updates(n.model), 1);
    assert_true(tw_model_get_guard(n.model).gradient_norm == 0);
    options.train = true;
    options.losses = &n.loss;
    options.loss_count = 1;
    options.optimizer = &sgd;
    sgd.clip_norm = 1;
    CHECK_FAILS(tw_program_create(&refused, n.model, BATCH, &options), TW_ERROR_ARGUMENT, "clip_norm");
    sgd.clip_norm = 0;
    options.loss_scaling = &(tw_loss_scaling){0};
    CHECK_FAILS(tw_program_create(&refused, n.model, BATCH, &options), TW_ERROR_ARGUMENT, "loss scaling");
    close_net(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_those_of_steps_apart),
        cmocka_unit_test(what_stands_against_it_is_said),
        cmocka_unit_test(a_gradient_that_is_kept_stays),
        cmocka_unit_test(without_a_guard_nobody_looks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
