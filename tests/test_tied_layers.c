/* Layers that share parameters: one parameter under several names, in training, in look-ups and in files. */
#include "check.h"
#include "data_files.h"
#include "golden/tied_layers.h"
#include "io/safetensors.h"
#include "small_task.h"

#include <math.h>
#include <stdio.h>

static int open_folder(void **state) { return make_folder(state) || task_open(state); }
static int close_folder(void **state) { return task_close(state) | remove_folder(state); }
#define in_context(test) cmocka_unit_test_setup_teardown(test, open_folder, close_folder)

/* ---- training, against PyTorch ---- */

enum { PIXELS_IN = 16, WEIGHTS = TIED_FEATURES * TIED_FEATURES };

typedef struct tied_net {
    tw_model *model;
    tw_value *x, *labels;
    tw_program *program;
} tied_net;

static const struct recorded {
    const char *name, *alias;
    int count;
    const float *before, *gradient, *after;
} recorded[] = {
    {"conv1.weight", "conv2.weight", 36, tied_conv_weight_before, tied_conv_weight_gradient, tied_conv_weight_after},
    {"conv1.bias", "conv2.bias", 2, tied_conv_bias_before, tied_conv_bias_gradient, tied_conv_bias_after},
    {"fc1.weight", "fc3.weight", WEIGHTS, tied_fc_weight_before, tied_fc_weight_gradient, tied_fc_weight_after},
    {"fc1.bias", "fc2.bias", TIED_FEATURES, tied_fc_bias_before, tied_fc_bias_gradient, tied_fc_bias_after},
};
enum { RECORDED = sizeof recorded / sizeof *recorded };

/* The network of golden/make_tied_layers.py. */
static tw_value *tied_layers(tw_model *model, tw_value *x) {
    x = tw_conv2d(model, x, 2, 3, TW_OPTIONS(conv2d, .padding = 1));
    x = tw_conv2d(model, tw_relu(model, x), 2, 3, TW_OPTIONS(conv2d, .padding = 1, .tied_to = "conv1"));
    x = tw_relu(model, tw_dense(model, x, TIED_FEATURES, NULL));
    x = tw_relu(model, tw_dense(model, x, TIED_FEATURES, TW_OPTIONS(dense, .tied_to = "fc1")));
    return tw_dense(model, x, TIED_FEATURES, TW_OPTIONS(dense, .tied_to = "fc2", .no_bias = true));
}

static tw_model *tied_model(uint64_t seed) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *y = tied_layers(model, tw_input(model, 2, 2, 4));
    CHECK_OK(tw_model_build(model, y, TW_OPTIONS(model, .seed = seed)));
    return model;
}

static void open_net(tied_net *net) {
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.learning_rate = 0.1;
    sgd.momentum = 0.9f;
    sgd.weight_decay = 0.05f;
    net->model = tied_model(1);
    net->x = tw_model_get_input(net->model);
    net->labels = tw_input_labels(net->model, NULL);
    tw_loss loss = {tw_cross_entropy(net->model, tw_model_get_output(net->model), net->labels, NULL), 1};
    for (int i = 0; i < RECORDED; i++) /* by its alias, half of them */
        CHECK_OK(tw_parameter_write(net->model, i % 2 ? recorded[i].alias : recorded[i].name, recorded[i].before,
                                    recorded[i].count));
    CHECK_OK(
        tw_program_create(&net->program, net->model, TIED_BATCH,
                          TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1, .optimizer = &sgd)));
}

static void close_net(tied_net *net) {
    tw_program_destroy(net->program);
    tw_model_destroy(net->model);
}

static void step(tied_net *net) {
    CHECK_OK(tw_program_write(net->program, net->x, TW_F32, tied_x, TIED_BATCH * PIXELS_IN));
    CHECK_OK(tw_program_write(net->program, net->labels, TW_I64, tied_labels, TIED_BATCH));
    CHECK_OK(tw_program_run(net->program));
}

static void assert_near(const char *name, const float *got, const float *expected, int count, double bound) {
    double largest = 0;
    for (int i = 0; i < count; i++) largest = fmax(largest, fabs((double)expected[i]));
    for (int i = 0; i < count; i++)
        if (!(fabs((double)got[i] - (double)expected[i]) <= bound * largest))
            fail_msg("%s[%d]: %.9g, PyTorch %.9g", name, i, (double)got[i], (double)expected[i]);
}

static void test_gradients_are_pytorchs(void **state) {
    (void)state;
    tied_net net;
    float got[WEIGHTS], by_alias[WEIGHTS];
    open_net(&net);
    step(&net);
    for (int i = 0; i < RECORDED; i++) {
        const struct recorded *r = &recorded[i];
        CHECK_OK(tw_program_read_parameter_gradient(net.program, r->name, got, r->count));
        CHECK_OK(tw_program_read_parameter_gradient(net.program, r->alias, by_alias, r->count));
        assert_memory_equal(got, by_alias, (size_t)r->count * sizeof *got);
        assert_near(r->name, got, r->gradient, r->count, 1e-5);
    }
    close_net(&net);
}

static void test_five_steps_are_pytorchs(void **state) {
    (void)state;
    tied_net net;
    float got[WEIGHTS];
    open_net(&net);
    for (int i = 0; i < TIED_STEPS; i++) {
        step(&net);
        assert_true(fabs(tw_program_get_loss(net.program) - tied_losses[i]) <= 1e-5 * tied_losses[i]);
    }
    for (int i = 0; i < RECORDED; i++) {
        CHECK_OK(tw_parameter_read(net.model, recorded[i].alias, got, recorded[i].count));
        assert_near(recorded[i].name, got, recorded[i].after, recorded[i].count, 1e-5);
    }
    close_net(&net);
}

/* ---- names ---- */

static void test_a_tied_parameter_is_counted_once_and_found_by_every_name(void **state) {
    (void)state;
    tw_model *model = tied_model(1);
    tw_parameter parameter;
    assert_int_equal(tw_model_count_parameters(model), 4);
    assert_int_equal(tw_model_count_weights(model), 36 + 2 + WEIGHTS + TIED_FEATURES);
    assert_ptr_equal(tw_model_find(model, "fc3.weight"), tw_model_find(model, "fc1.weight"));
    assert_null(tw_model_find(model, "fc3.bias"));
    CHECK_OK(tw_model_set_trainable(model, "fc3", false));
    CHECK_OK(tw_model_get_parameter(model, 2, &parameter));
    assert_string_equal(parameter.name, "fc1.weight");
    assert_false(parameter.trainable);
    CHECK_OK(tw_model_get_parameter(model, 3, &parameter));
    assert_true(parameter.trainable);
    CHECK_FAILS(tw_model_set_trainable(model, "fc4", false), TW_ERROR_ARGUMENT, "fc4");
    tw_model_destroy(model);
}

static void test_ties_reach_into_scopes(void **state) {
    (void)state;
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_input(model, 4, 5, 5);
    tw_scope_begin(model, "a");
    x = tw_conv2d(model, x, 4, 3, TW_OPTIONS(conv2d, .no_bias = true));
    tw_scope_end(model);
    tw_scope_begin(model, "b");
    x = tw_conv2d(model, x, 4, 3, TW_OPTIONS(conv2d, .no_bias = true, .tied_to = "a.conv1"));
    tw_scope_end(model);
    CHECK_OK(tw_model_build(model, x, NULL));
    assert_ptr_equal(tw_model_find(model, "b.conv1.weight"), tw_model_find(model, "a.conv1.weight"));
    tw_model_destroy(model);
}

/* A model that cannot be built; fc1 is 4 x 4 with bias, fc2 has none. */
static void assert_refused(const tw_dense_options *options, int64_t out, tw_status status, const char *const *says) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_dense(model, tw_input_shaped(model, "x", 1, (int64_t[]){4}), 4, NULL);
    x = tw_dense(model, x, 4, TW_OPTIONS(dense, .no_bias = true));
    x = tw_dense(model, x, out, options);
    for (; *says; says++) CHECK_FAILS(tw_model_build(model, x, NULL), status, *says);
    tw_model_destroy(model);
}

static void test_wrong_ties_are_refused(void **state) {
    (void)state;
    assert_refused(TW_OPTIONS(dense, .tied_to = "fc7"), 4, TW_ERROR_ARGUMENT,
                   (const char *[]){"'fc3'", "tied to 'fc7'", "no parameter 'fc7.weight'", NULL});
    assert_refused(TW_OPTIONS(dense, .tied_to = "fc3"), 4, TW_ERROR_ARGUMENT,
                   (const char *[]){"'fc3'", "no parameter 'fc3.weight'", NULL});
    assert_refused(TW_OPTIONS(dense, .tied_to = "fc1"), 3, TW_ERROR_SHAPE,
                   (const char *[]){"'fc3'", "weight would be [3, 4]", "'fc1.weight' is [4, 4]", NULL});
    assert_refused(TW_OPTIONS(dense, .tied_to = "fc2"), 4, TW_ERROR_ARGUMENT,
                   (const char *[]){"'fc3'", "no parameter 'fc2.bias'", "no_bias", NULL});
    assert_refused(TW_OPTIONS(dense, .tied_to = "fc1", .weight_init = {TW_INIT_XAVIER_NORMAL, 0}), 4, TW_ERROR_ARGUMENT,
                   (const char *[]){"'fc3'", "initial values", "'fc1'", NULL});
}

/* ---- files ---- */

static void test_a_tied_parameter_is_saved_once_with_its_aliases(void **state) {
    (void)state;
    static const char metadata[] = "{\"__metadata__\":{\"format\":\"pt\",\"conv2.weight\":\"conv1.weight\","
                                   "\"conv2.bias\":\"conv1.bias\",\"fc2.weight\":\"fc1.weight\","
                                   "\"fc2.bias\":\"fc1.bias\",\"fc3.weight\":\"fc1.weight\"},\"conv1.weight\":";
    tw_model *model = tied_model(1), *other = tied_model(2);
    size_t count;
    char header[sizeof metadata];
    twi_tensor_file file;
    CHECK_OK(tw_model_save(model, path_of("a.safetensors")));
    CHECK_OK(twi_tensor_file_open(&file, context->memory, path_of("a.safetensors")));
    assert_int_equal(file.count, 4);
    twi_tensor_file_close(&file);
    FILE *raw = fopen(path_of("a.safetensors"), "rb");
    assert_non_null(raw);
    assert_int_equal(fseek(raw, 8, SEEK_SET), 0);
    assert_int_equal(fread(header, 1, sizeof metadata - 1, raw), sizeof metadata - 1);
    fclose(raw);
    assert_memory_equal(header, metadata, sizeof metadata - 1);
    CHECK_OK(tw_model_load(other, path_of("a.safetensors"), NULL));
    float *values = task_parameters(model, &count);
    assert_true(task_unchanged(other, values));
    free(values);
    tw_model_destroy(model);
    tw_model_destroy(other);
}

/* in -> 1 -> out with 1 x 1 weights: one layer tied to the other, or not. */
static tw_model *pair(bool tied, const char *first, const char *second) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_input_shaped(model, "x", 1, (int64_t[]){1});
    x = tw_dense(model, x, 1, TW_OPTIONS(dense, .name = first, .no_bias = true));
    x = tw_dense(model, x, 1, TW_OPTIONS(dense, .name = second, .no_bias = true, .tied_to = tied ? first : NULL));
    CHECK_OK(tw_model_build(model, x, NULL));
    return model;
}

static void save_pair(float first, float second) {
    tw_model *model = pair(false, "one", "two");
    CHECK_OK(tw_parameter_write(model, "one.weight", &first, 1));
    CHECK_OK(tw_parameter_write(model, "two.weight", &second, 1));
    CHECK_OK(tw_model_save(model, path_of("pair.safetensors")));
    tw_model_destroy(model);
}

static void test_files_that_hold_both_names(void **state) {
    (void)state;
    tw_model *model = pair(true, "one", "two");
    float got, before;
    save_pair(3, 3);
    CHECK_OK(tw_model_load(model, path_of("pair.safetensors"), NULL));
    CHECK_OK(tw_parameter_read(model, "one.weight", &got, 1));
    assert_true(got == 3);
    save_pair(NAN, NAN);
    CHECK_OK(tw_model_load(model, path_of("pair.safetensors"), NULL));
    before = 5;
    CHECK_OK(tw_parameter_write(model, "two.weight", &before, 1));
    save_pair(3, 4);
    for (int partial = 0; partial < 2; partial++) {
        CHECK_FAILS(tw_model_load(model, path_of("pair.safetensors"), TW_OPTIONS(load, .partial = partial)),
                    TW_ERROR_MISMATCH, "'one.weight' and 'two.weight' differ");
        CHECK_OK(tw_parameter_read(model, "one.weight", &got, 1));
        assert_true(got == before);
    }
    tw_model_destroy(model);
}

/* PyTorch keeps the name that comes first in the alphabet, whichever layer is which here. */
static void test_files_that_hold_an_alias_alone(void **state) {
    (void)state;
    tw_model *saved = pair(true, "a", "b"), *model = pair(true, "b", "a");
    float got;
    CHECK_OK(tw_parameter_write(saved, "a.weight", (float[]){7}, 1));
    CHECK_OK(tw_model_save(saved, path_of("alias.safetensors")));
    CHECK_OK(tw_model_load(model, path_of("alias.safetensors"), NULL));
    CHECK_OK(tw_parameter_read(model, "b.weight", &got, 1));
    assert_true(got == 7);
    tw_model_destroy(saved);
    tw_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        in_context(test_gradients_are_pytorchs),
        in_context(test_five_steps_are_pytorchs),
        in_context(test_a_tied_parameter_is_counted_once_and_found_by_every_name),
        in_context(test_ties_reach_into_scopes),
        in_context(test_wrong_ties_are_refused),
        in_context(test_a_tied_parameter_is_saved_once_with_its_aliases),
        in_context(test_files_that_hold_both_names),
        in_context(test_files_that_hold_an_alias_alone),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
