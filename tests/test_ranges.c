/* Products by rows of their weights instead of by samples: which ones go so, and that not a bit tells. */
#include "program_net.h"

#include <string.h>

enum { BATCH = 37, CLASSES = 10, SIDE = 12, PIXELS = SIDE * SIDE, HIDDEN = 131, MOST_THREADS = 5, STEPS = 3 };

/* fc1 has weights of 75 kB, fc2 of 69 kB, fc3 of 5 kB. */
static tw_value *layers(tw_model *model, tw_value *x, bool relu, bool tied) {
    tw_value *flat = tw_flatten(model, x), *hidden = tw_dense(model, flat, HIDDEN, NULL);
    if (relu) hidden = tw_relu(model, hidden);
    if (tied) hidden = tw_add(model, hidden, tw_dense(model, flat, HIDDEN, TW_OPTIONS(dense, .tied_to = "fc1")));
    hidden = tw_relu(model, tw_dense(model, hidden, HIDDEN, NULL));
    return tw_dense(model, hidden, CLASSES, NULL);
}
static tw_value *plain(tw_model *model, tw_value *x) { return layers(model, x, false, false); }
static tw_value *with_relu(tw_model *model, tw_value *x) { return layers(model, x, true, false); }
static tw_value *tied(tw_model *model, tw_value *x) { return layers(model, x, true, true); }

static tw_program *program_of(net *n, bool train, bool no_fusion, tw_precision precision) {
    tw_program *program;
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.momentum = 0.9f;
    CHECK_OK(tw_program_create(&program, n->model, BATCH,
                               TW_OPTIONS(program, .train = train, .losses = &n->loss, .loss_count = 1,
                                          .outputs = &n->logits, .output_count = 1, .optimizer = train ? &sgd : NULL,
                                          .no_fusion = no_fusion, .precision = precision)));
    return program;
}

static void run(net *n, tw_program *program, int step) {
    static float images[BATCH * PIXELS];
    int32_t labels[BATCH];
    for (int i = 0; i < BATCH * PIXELS; i++) images[i] = (float)((i * 37 + step * 11) % 101) / 50 - 1;
    for (int i = 0; i < BATCH; i++) labels[i] = (i + step) % CLASSES;
    CHECK_OK(tw_program_write(program, n->x, TW_F32, images, BATCH * PIXELS));
    CHECK_OK(tw_program_write(program, n->labels, TW_I32, labels, BATCH));
    CHECK_OK(tw_program_run(program));
}

/* The layers whose product goes by rows, in order. */
static const char *ranged_layers(const tw_program *program, const char *kernel) {
    static char names[128];
    names[0] = '\0';
    for (int i = 0; i < program->step_count; i++)
        if (strcmp(program->step[i].kernel->name, kernel) == 0) {
            strcat(names, program->step[i].label);
            strcat(names, " ");
        }
    return names;
}

/* Those of the first layer alone: the second reads what a step made, and its own backward reads its weights. */
static void products_of_what_is_fed_go_by_rows(void **state) {
    (void)state;
    for (int relu = 0; relu < 2; relu++) {
        net n;
        open_net_on(&n, "cpu", 2, relu ? with_relu : plain, 1, SIDE);
        tw_program *fused = program_of(&n, true, false, TW_PRECISION_F32),
                   *single = program_of(&n, true, true, TW_PRECISION_F32),
                   *halves = program_of(&n, true, false, TW_PRECISION_BF16),
                   *answers = program_of(&n, false, false, TW_PRECISION_F32);
        const char *const kernels[] = {"dense.forward_bias_rows", "dense.forward_bias_relu_rows", "dense.forward_rows"};
        for (int k = 0; k < 3; k++) {
            assert_string_equal(ranged_layers(fused, kernels[k]), k == relu ? "fc1.product " : "");
            assert_string_equal(ranged_layers(single, kernels[k]), k == 2 ? "fc1.product " : "");
            assert_string_equal(ranged_layers(halves, kernels[k]), "");
            assert_string_equal(ranged_layers(answers, kernels[k]), "");
        }
        close_net(&n);
    }
    net n;
    open_net_on(&n, "cpu", 2, tied, 1, SIDE);
    assert_string_equal(ranged_layers(program_of(&n, true, false, TW_PRECISION_F32), "dense.forward_bias_relu_rows"),
                        "");
    close_net(&n);
}

/* What the program computes by rows, one without training computes by samples. */
static void answers_are_the_same_by_rows_and_by_samples(void **state) {
    (void)state;
    for (int way = 0; way < 4; way++) {
        net n;
        float by_rows[BATCH * CLASSES], by_samples[BATCH * CLASSES];
        open_net_on(&n, "cpu", 2, way & 1 ? with_relu : plain, 1, SIDE);
        tw_program *answers = program_of(&n, false, way & 2, TW_PRECISION_F32),
                   *trained = program_of(&n, true, way & 2, TW_PRECISION_F32);
        run(&n, answers, 0);
        CHECK_OK(tw_program_read(answers, n.logits, by_samples, BATCH * CLASSES));
        run(&n, trained, 0);
        CHECK_OK(tw_program_read(trained, n.logits, by_rows, BATCH * CLASSES));
        assert_memory_equal(by_rows, by_samples, sizeof by_rows);
        assert_true(by_rows[0] != by_rows[CLASSES]);
        close_net(&n);
    }
}

static void any_number_of_threads_gives_the_same_bits(void **state) {
    (void)state;
    enum { WEIGHTS = HIDDEN * PIXELS };
    static float first[WEIGHTS], weights[WEIGHTS];
    for (int threads = 1; threads <= MOST_THREADS; threads++) {
        net n;
        open_net_on(&n, "cpu", threads, with_relu, 1, SIDE);
        tw_program *program = program_of(&n, true, false, TW_PRECISION_F32);
        for (int i = 0; i < STEPS; i++) run(&n, program, i);
        CHECK_OK(tw_parameter_read(n.model, "fc1.weight", threads == 1 ? first : weights, WEIGHTS));
        if (threads > 1) assert_memory_equal(first, weights, sizeof first);
        close_net(&n);
    }
}

/* Of every parameter, so that a share of an update is a share of every weight: there is no decay that would tell 256
 * weights of a layer from the 16 biases behind it. */
static tw_value *even(tw_model *model, tw_value *x) {
    x = tw_relu(model, tw_dense(model, tw_flatten(model, x), 16, NULL));
    return tw_dense(model, tw_relu(model, tw_dense(model, x, 16, NULL)), CLASSES, NULL);
}
static void updates_go_over_every_parameter_by_itself(void **state) {
    (void)state;
    net n;
    open_net_on(&n, "cpu", 2, even, 1, SIDE);
    tw_program *program = program_of(&n, true, false, TW_PRECISION_F32);
    int updates = 0;
    for (int i = 0; i < program->step_count; i++) {
        if (strcmp(program->step[i].kernel->name, "sgd.update") != 0) continue;
        const twi_update_attrs *attrs = program->step[i].attrs;
        assert_int_equal(attrs->segment_count, 6);
        assert_int_equal(attrs->segment[2].end - attrs->segment[2].begin, 16 * 16);
        updates++;
    }
    assert_int_equal(updates, 1);
    close_net(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_what_is_fed_go_by_rows),
        cmocka_unit_test(answers_are_the_same_by_rows_and_by_samples),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(updates_go_over_every_parameter_by_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
