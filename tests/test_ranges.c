/* Products by rows of their weights instead of by samples: which ones go so, and that not a bit tells. */
#include "program_net.h"

#include <string.h>

enum { BATCH = 37, CLASSES = 10, SIDE = 12, PIXELS = SIDE * SIDE, HIDDEN = 131, MOST_THREADS = 5, STEPS = 3 };

typedef struct setting {
    tw_context *context;
    tw_model *model;
    tw_value *x, *labels, *logits;
    tw_loss loss;
    tw_program *program[4]; /* all that it made, to be destroyed with it */
    int programs;
} setting;

/* fc1 has weights of 75 kB, fc2 of 69 kB, fc3 of 5 kB. */
static void open_setting(setting *s, int threads, bool relu, bool tied) {
    s->programs = 0;
    CHECK_OK(tw_context_create(&s->context, "cpu", TW_OPTIONS(context, .threads = threads)));
    CHECK_OK(tw_model_create(&s->model, s->context));
    s->x = tw_input(s->model, 1, SIDE, SIDE);
    tw_value *flat = tw_flatten(s->model, s->x), *hidden = tw_dense(s->model, flat, HIDDEN, NULL);
    if (relu) hidden = tw_relu(s->model, hidden);
    if (tied) hidden = tw_add(s->model, hidden, tw_dense(s->model, flat, HIDDEN, TW_OPTIONS(dense, .tied_to = "fc1")));
    hidden = tw_relu(s->model, tw_dense(s->model, hidden, HIDDEN, NULL));
    s->logits = tw_dense(s->model, hidden, CLASSES, NULL);
    s->labels = tw_input_labels(s->model, NULL);
    s->loss = (tw_loss){tw_cross_entropy(s->model, s->logits, s->labels, NULL), 1};
    CHECK_OK(tw_model_build(s->model, s->logits, TW_OPTIONS(model, .seed = 3)));
}

static void close_setting(setting *s) {
    for (int i = 0; i < s->programs; i++) tw_program_destroy(s->program[i]);
    tw_model_destroy(s->model);
    tw_context_destroy(s->context);
}

static tw_program *program_of(setting *s, bool train, bool no_fusion, tw_precision precision) {
    tw_program *program;
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.momentum = 0.9f;
    CHECK_OK(tw_program_create(&program, s->model, BATCH,
                               TW_OPTIONS(program, .train = train, .losses = &s->loss, .loss_count = 1,
                                          .outputs = &s->logits, .output_count = 1, .optimizer = train ? &sgd : NULL,
                                          .no_fusion = no_fusion, .precision = precision)));
    return s->program[s->programs++] = program;
}

static void run(setting *s, tw_program *program, int step) {
    static float images[BATCH * PIXELS];
    int32_t labels[BATCH];
    for (int i = 0; i < BATCH * PIXELS; i++) images[i] = (float)((i * 37 + step * 11) % 101) / 50 - 1;
    for (int i = 0; i < BATCH; i++) labels[i] = (i + step) % CLASSES;
    CHECK_OK(tw_program_write(program, s->x, TW_F32, images, BATCH * PIXELS));
    CHECK_OK(tw_program_write(program, s->labels, TW_I32, labels, BATCH));
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
        setting s;
        open_setting(&s, 2, relu, false);
        tw_program *fused = program_of(&s, true, false, TW_PRECISION_F32),
                   *single = program_of(&s, true, true, TW_PRECISION_F32),
                   *halves = program_of(&s, true, false, TW_PRECISION_BF16),
                   *answers = program_of(&s, false, false, TW_PRECISION_F32);
        const char *const kernels[] = {"dense.forward_bias_rows", "dense.forward_bias_relu_rows", "dense.forward_rows"};
        for (int k = 0; k < 3; k++) {
            assert_string_equal(ranged_layers(fused, kernels[k]), k == relu ? "fc1.product " : "");
            assert_string_equal(ranged_layers(single, kernels[k]), k == 2 ? "fc1.product " : "");
            assert_string_equal(ranged_layers(halves, kernels[k]), "");
            assert_string_equal(ranged_layers(answers, kernels[k]), "");
        }
        close_setting(&s);
    }
    setting s;
    open_setting(&s, 2, true, true);
    assert_string_equal(ranged_layers(program_of(&s, true, false, TW_PRECISION_F32), "dense.forward_bias_relu_rows"),
                        "");
    close_setting(&s);
}

/* What the program computes by rows, one without training computes by samples. */
static void answers_are_the_same_by_rows_and_by_samples(void **state) {
    (void)state;
    for (int way = 0; way < 4; way++) {
        setting s;
        float by_rows[BATCH * CLASSES], by_samples[BATCH * CLASSES];
        open_setting(&s, 2, way & 1, false);
        tw_program *answers = program_of(&s, false, way & 2, TW_PRECISION_F32),
                   *trained = program_of(&s, true, way & 2, TW_PRECISION_F32);
        run(&s, answers, 0);
        CHECK_OK(tw_program_read(answers, s.logits, by_samples, BATCH * CLASSES));
        run(&s, trained, 0);
        CHECK_OK(tw_program_read(trained, s.logits, by_rows, BATCH * CLASSES));
        assert_memory_equal(by_rows, by_samples, sizeof by_rows);
        assert_true(by_rows[0] != by_rows[CLASSES]);
        close_setting(&s);
    }
}

static void any_number_of_threads_gives_the_same_bits(void **state) {
    (void)state;
    enum { WEIGHTS = HIDDEN * PIXELS };
    static float first[WEIGHTS], weights[WEIGHTS];
    for (int threads = 1; threads <= MOST_THREADS; threads++) {
        setting s;
        open_setting(&s, threads, true, false);
        tw_program *program = program_of(&s, true, false, TW_PRECISION_F32);
        for (int i = 0; i < STEPS; i++) run(&s, program, i);
        CHECK_OK(tw_parameter_read(s.model, "fc1.weight", threads == 1 ? first : weights, WEIGHTS));
        if (threads > 1) assert_memory_equal(first, weights, sizeof first);
        close_setting(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_what_is_fed_go_by_rows),
        cmocka_unit_test(answers_are_the_same_by_rows_and_by_samples),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
