/* Model files: what is saved whole comes back whole, by itself. What is wrong in a file is in test_model_file_damage.c. */
#include "check.h"
#include "data_files.h"
#include "io/safetensors.h"
#include "small_task.h"
#include "user_ops.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>

static int open_folder(void **state) { return make_folder(state) || task_open(state); }
static int close_folder(void **state) { return task_close(state) | remove_folder(state); }
#define in_context(test) cmocka_unit_test_setup_teardown(test, open_folder, close_folder)

enum { BATCH = 3, MOST = 1 << 16 };

static tw_model *opened_again(const tw_model *model) {
    tw_model *other;
    CHECK_OK(tw_model_save_whole(model, path_of("model.safetensors")));
    CHECK_OK(tw_model_open(&other, task_context, path_of("model.safetensors"), NULL));
    return other;
}

static void predict(tw_model *model, const float *x, int64_t count, float *y, int64_t results) {
    tw_program *program;
    tw_value *output = tw_model_get_output(model);
    CHECK_OK(tw_program_create(&program, model, BATCH, TW_OPTIONS(program, .outputs = &output, .output_count = 1)));
    CHECK_OK(tw_program_write(program, tw_model_get_input(model), TW_F32, x, count));
    CHECK_OK(tw_program_run(program));
    CHECK_OK(tw_program_read(program, output, y, results));
    tw_program_destroy(program);
}

/* The two have the same parameters and predict the same, to the bit; both are destroyed. */
static void assert_same(tw_model *model, tw_model *other, int64_t pixels, int64_t results) {
    size_t count;
    float *x = malloc((size_t)(BATCH * pixels) * sizeof *x), *y[2];
    for (int64_t i = 0; i < BATCH * pixels; i++) x[i] = (float)(i * 7919 % 251) / 125 - 1;
    for (int i = 0; i < 2; i++) {
        y[i] = malloc((size_t)(BATCH * results) * sizeof **y);
        predict(i ? other : model, x, BATCH * pixels, y[i], BATCH * results);
    }
    assert_memory_equal(y[0], y[1], (size_t)(BATCH * results) * sizeof **y);
    float *values = task_parameters(model, &count);
    assert_int_equal(tw_model_count_parameters(model), tw_model_count_parameters(other));
    assert_true(task_unchanged(other, values));
    free(values);
    free(x);
    free(y[0]);
    free(y[1]);
    tw_model_destroy(model);
    tw_model_destroy(other);
}

/* Every kind of layer, and every kind of attribute off its default. */
static tw_value *all_layers(tw_model *model) {
    tw_value *x = tw_input(model, 2, 9, 8);
    x = tw_conv2d(model, x, 4, 3,
                  TW_OPTIONS(conv2d, .kernel_w = 2, .stride = 2, .padding = 1, .pad_right = 1, .groups = 2));
    x = tw_relu(model, tw_batch_norm(model, x, TW_OPTIONS(batch_norm, .epsilon = 1.23456789e-3f)));
    x = tw_max_pool(model, x, 2, TW_OPTIONS(pool, .ceil_mode = true));
    tw_scope_begin(model, "a \"scope\"\n\xC3\xA9");
    x = tw_residual(model, x, 4, TW_OPTIONS(residual, .name = "block"));
    x = tw_conv2d(model, x, 4, 1, TW_OPTIONS(conv2d, .name = "one", .no_bias = true, .dilation = 2));
    x = tw_conv2d(model, x, 4, 1,
                  TW_OPTIONS(conv2d, .name = "two", .no_bias = true, .tied_to = "a \"scope\"\n\xC3\xA9.one"));
    tw_scope_end(model);
    x = tw_avg_pool(model, x, 2, TW_OPTIONS(pool, .stride = 1, .padding = 1, .exclude_padding = true));
    x = tw_reshape(model, x, 2, (int64_t[]){2, -1});
    x = tw_dropout(model, tw_flatten(model, x), 0.1f);
    return tw_softmax(model, tw_dense(model, x, 5, NULL));
}

static tw_model *all_model(void) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *output = all_layers(model);
    CHECK_OK(tw_model_build(model, output, TW_OPTIONS(model, .seed = 3)));
    return model;
}

static void test_a_model_comes_back_with_all_its_layers(void **state) {
    (void)state;
    tw_model *model = all_model();
    CHECK_OK(tw_model_set_trainable(model, "conv1", false));
    CHECK_OK(tw_model_set_statistics_frozen(model, "a \"scope\"\n\xC3\xA9.block.bn2", true));
    CHECK_OK(tw_parameter_write(model, "bn1.running_var", (float[]){1, 2, 3, 4}, 4));
    tw_model *other = opened_again(model);
    assert_string_equal(tw_model_dump(model), tw_model_dump(other));
    assert_non_null(strstr(tw_model_dump(other), " frozen=1"));
    for (int i = 0; i < tw_model_count_parameters(model); i++) {
        tw_parameter a, b;
        CHECK_OK(tw_model_get_parameter(model, i, &a));
        CHECK_OK(tw_model_get_parameter(other, i, &b));
        assert_string_equal(a.name, b.name);
        assert_true(a.learned == b.learned && a.trainable == b.trainable && a.decayed == b.decayed);
    }
    char epsilon[64];
    twi_tensor_file file;
    snprintf(epsilon, sizeof epsilon, "{\"epsilon\":%.9g}", (double)1.23456789e-3f); /* to the last bit */
    CHECK_OK(twi_tensor_file_open(&file, context->memory, path_of("model.safetensors")));
    assert_non_null(strstr(twi_tensor_file_find(&file, "talweg.graph"), epsilon));
    twi_tensor_file_close(&file);
    assert_non_null(tw_model_find(other, "a \"scope\"\n\xC3\xA9.two.weight"));
    assert_ptr_equal(tw_model_find(other, "a \"scope\"\n\xC3\xA9.two.weight"),
                     tw_model_find(other, "a \"scope\"\n\xC3\xA9.one.weight"));
    assert_same(model, other, 2 * 9 * 8, 5);
}

static tw_model *zoo(tw_value *(*net)(tw_model *, tw_value *), int channels, int side) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *output = net(model, tw_input(model, channels, side, side));
    CHECK_OK(tw_model_build(model, output, TW_OPTIONS(model, .seed = 4)));
    return model;
}

static tw_value *lenet5(tw_model *model, tw_value *x) { return tw_zoo_lenet5(model, x, 10); }
static tw_value *resnet20(tw_model *model, tw_value *x) { return tw_zoo_resnet20(model, x, 10, NULL); }

static void test_networks_of_the_zoo_come_back(void **state) {
    (void)state;
    tw_model *lenet = zoo(lenet5, 1, 28), *resnet = zoo(resnet20, 3, 32);
    assert_same(lenet, opened_again(lenet), 784, 10);
    assert_same(resnet, opened_again(resnet), 3072, 10);
}

static size_t get_bytes(const char *name, char *bytes) {
    FILE *file = fopen(path_of(name), "rb");
    assert_non_null(file);
    size_t size = fread(bytes, 1, MOST, file);
    fclose(file);
    assert_true(size < MOST);
    return size;
}

static void test_saving_what_was_opened_gives_the_same_bytes(void **state) {
    (void)state;
    tw_model *model = all_model();
    char *bytes = malloc(MOST), *again = malloc(MOST);
    CHECK_OK(tw_model_set_class_names(model, (const char *[]){"\"", "", "\n"}, 3));
    CHECK_OK(tw_model_set_normalization(model, &(tw_normalization){2, {0.1f, -3e-30f}, {1.0f / 3, 0}}));
    tw_model *other = opened_again(model);
    size_t size = get_bytes("model.safetensors", bytes);
    CHECK_OK(tw_model_save_whole(other, path_of("again.safetensors")));
    assert_int_equal(get_bytes("again.safetensors", again), size);
    assert_memory_equal(bytes, again, size);
    free(bytes);
    free(again);
    tw_model_destroy(model);
    tw_model_destroy(other);
}

/* A program whose locale writes 0,5 still saves and opens what others can, and keeps its locale. */
static void test_numbers_do_not_follow_the_locale(void **state) {
    (void)state;
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8") && !setlocale(LC_NUMERIC, "fr_FR.UTF-8")) {
        print_message("skipped: no locale with a decimal comma is installed\n");
        skip();
    }
    char number[8];
    twi_tensor_file file;
    tw_model *model = all_model();
    CHECK_OK(tw_model_set_normalization(model, &(tw_normalization){2, {0.5f, 0.25f}, {1, 1}}));
    tw_model *other = opened_again(model);
    snprintf(number, sizeof number, "%.1f", 0.5);
    setlocale(LC_NUMERIC, "C");
    assert_string_equal(number, "0,5");
    CHECK_OK(twi_tensor_file_open(&file, context->memory, path_of("model.safetensors")));
    assert_string_equal(twi_tensor_file_find(&file, "talweg.normalization"),
                        "{\"scale\":\"u8/255\",\"mean\":[0.5,0.25],\"deviation\":[1,1]}");
    twi_tensor_file_close(&file);
    assert_true(tw_model_get_normalization(other).mean[1] == 0.25f);
    assert_same(model, other, 2 * 9 * 8, 5);
}

/* ---- with trainers ---- */

static void test_an_opened_model_needs_nothing_else_to_predict(void **state) {
    (void)state;
    static const char *const names[] = {"upper", "middle", "lower"};
    enum { SAMPLES = 30 };
    int32_t classes[2][SAMPLES];
    tw_metrics metrics[2];
    tw_trainer *trainer;
    tw_dataset *data = task_data(task_context, SAMPLES, 5);
    tw_model *model = task_model(task_context, 1);
    CHECK_OK(tw_model_set_class_names(model, names, 3));
    CHECK_OK(tw_trainer_create(&trainer, model, TW_OPTIONS(trainer, .epochs = 2, .batch = 8)));
    CHECK_OK(tw_trainer_fit(trainer, data, NULL));
    tw_normalization used = tw_trainer_get_normalization(trainer);
    assert_true(used.channels == 1 && used.mean[0] > 0.2f && used.deviation[0] > 0.1f);
    CHECK_OK(tw_trainer_predict(trainer, data, classes[0]));
    CHECK_OK(tw_trainer_evaluate(trainer, data, &metrics[0]));
    CHECK_OK(tw_model_save_whole(model, path_of("model.safetensors")));
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);

    CHECK_OK(tw_model_open(&model, task_context, path_of("model.safetensors"), TW_OPTIONS(model, .seed = 9)));
    assert_int_equal(tw_model_get_seed(model), 9);
    assert_null(tw_model_find(model, "trainer.labels"));
    assert_int_equal(tw_model_count_class_names(model), 3);
    for (int i = 0; i < 3; i++) assert_string_equal(tw_model_get_class_name(model, i), names[i]);
    assert_string_equal(tw_model_get_class_name(model, 3), "");
    assert_string_equal(tw_model_get_class_name(model, -1), "");
    tw_normalization read = tw_model_get_normalization(model);
    assert_memory_equal(&read, &used, sizeof used);
    CHECK_OK(tw_trainer_create(&trainer, model, TW_OPTIONS(trainer, .epochs = 1)));
    CHECK_OK(tw_trainer_predict(trainer, data, classes[1]));
    CHECK_OK(tw_trainer_evaluate(trainer, data, &metrics[1]));
    assert_memory_equal(classes[0], classes[1], sizeof classes[0]);
    assert_true(metrics[0].loss == metrics[1].loss && metrics[0].top1 == metrics[1].top1);
    CHECK_OK(tw_trainer_fit(trainer, data, NULL)); /* goes on learning, with the normalisation it has */
    read = tw_trainer_get_normalization(trainer);
    assert_memory_equal(&read, &used, sizeof used);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

/* The recipe of a model whose samples were fed as they are is mean 0, deviation 1; names are the data set's. */
static void test_fit_notes_what_it_trained_with(void **state) {
    (void)state;
    tw_trainer *trainer;
    tw_dataset *data = task_data(task_context, 6, 5);
    tw_model *model = task_model(task_context, 1);
    assert_int_equal(tw_model_get_normalization(model).channels, 0);
    assert_int_equal(tw_model_count_class_names(model), 0);
    CHECK_OK(tw_trainer_create(&trainer, model, TW_OPTIONS(trainer, .no_normalization = true)));
    CHECK_OK(tw_trainer_fit(trainer, data, NULL));
    tw_normalization noted = tw_model_get_normalization(model);
    assert_true(noted.channels == 1 && noted.mean[0] == 0 && noted.deviation[0] == 1);
    assert_int_equal(tw_model_count_class_names(model), TASK_CLASSES);
    assert_string_equal(tw_model_get_class_name(model, 2), tw_dataset_get_class_name(data, 2));
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

/* ---- what is in the file ---- */

/* A second head that the output does not need is no part of it; nor are the labels of a loss. */
static void test_only_what_the_output_needs_is_saved(void **state) {
    (void)state;
    tw_model *model, *other;
    twi_tensor_file file;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_relu(model, tw_dense(model, tw_input_shaped(model, "x", 1, (int64_t[]){4}), 3, NULL));
    tw_value *aside = tw_dense(model, x, 7, TW_OPTIONS(dense, .name = "aside"));
    tw_value *output = tw_dense(model, x, 2, TW_OPTIONS(dense, .name = "head"));
    (void)tw_cross_entropy(model, aside, tw_input_labels(model, "labels"), NULL);
    CHECK_OK(tw_model_build(model, output, NULL));
    other = opened_again(model);
    assert_null(tw_model_find(other, "aside"));
    assert_null(tw_model_find(other, "labels"));
    assert_int_equal(tw_model_count_parameters(other), 4);
    CHECK_OK(twi_tensor_file_open(&file, context->memory, path_of("model.safetensors")));
    assert_int_equal(file.count, 4);
    assert_string_equal(twi_tensor_file_find(&file, "format"), "pt");
    assert_string_equal(twi_tensor_file_find(&file, "talweg.version"), "1");
    assert_string_equal(
        twi_tensor_file_find(&file, "talweg.graph"),
        "{\"values\":[{\"name\":\"x\",\"kind\":\"input\",\"shape\":[4],\"type\":\"real\"},"
        "{\"name\":\"fc1.weight\",\"kind\":\"parameter\",\"shape\":[3,4],\"trainable\":true,\"decayed\":true},"
        "{\"name\":\"fc1.bias\",\"kind\":\"parameter\",\"shape\":[3],\"trainable\":true},"
        "{\"name\":\"head.weight\",\"kind\":\"parameter\",\"shape\":[2,3],\"trainable\":true,\"decayed\":true},"
        "{\"name\":\"head.bias\",\"kind\":\"parameter\",\"shape\":[2],\"trainable\":true}],\"aliases\":[],"
        "\"nodes\":[{\"op\":\"dense\",\"name\":\"fc1.product\",\"inputs\":[\"x\",\"fc1.weight\"],\"attributes\":{}},"
        "{\"op\":\"bias\",\"name\":\"fc1\",\"inputs\":[\"fc1.product\",\"fc1.bias\"],\"attributes\":{}},"
        "{\"op\":\"relu\",\"name\":\"relu1\",\"inputs\":[\"fc1\"],\"attributes\":{}},"
        "{\"op\":\"dense\",\"name\":\"head.product\",\"inputs\":[\"relu1\",\"head.weight\"],\"attributes\":{}},"
        "{\"op\":\"bias\",\"name\":\"head\",\"inputs\":[\"head.product\",\"head.bias\"],\"attributes\":{}}],"
        "\"outputs\":[\"head\"]}");
    assert_null(twi_tensor_file_find(&file, "talweg.normalization"));
    assert_null(twi_tensor_file_find(&file, "talweg.class_names"));
    twi_tensor_file_close(&file);
    tw_model_destroy(model);
    tw_model_destroy(other);
}

static void test_a_model_file_is_a_weights_file_too(void **state) {
    (void)state;
    tw_model *model = task_model(task_context, 1), *other = task_model(task_context, 2);
    CHECK_OK(tw_model_save_whole(model, path_of("model.safetensors")));
    CHECK_OK(tw_model_load(other, path_of("model.safetensors"), NULL));
    assert_same(model, other, TASK_PIXELS, TASK_CLASSES);
}

/* ---- a user's ops ---- */

static tw_model *user_model(tw_context *own, float gain) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, own));
    tw_value *x = user_ops_apply_prelu(model, tw_input(model, 2, 3, 3), "slopes");
    x = tw_apply(model, "running_tanh", &x, 1,
                 TW_OPTIONS(apply, .name = "sums", .attrs = &(running_attrs){gain, true}));
    CHECK_OK(tw_model_build(model, x, NULL));
    return model;
}

static void test_a_users_ops_come_back_where_they_are_registered(void **state) {
    (void)state;
    tw_context *own; /* ops stay in their context's memory */
    tw_model *model, *other;
    CHECK_OK(tw_context_create(&own, "cpu", TW_OPTIONS(context, .threads = 1)));
    CHECK_OK(user_ops_prelu(own, TW_OP_ANY_LAYOUT, NULL));
    CHECK_OK(user_ops_running_tanh(own));
    model = user_model(own, 0.3f);
    CHECK_OK(tw_model_save_whole(model, path_of("model.safetensors")));
    CHECK_OK(tw_model_open(&other, own, path_of("model.safetensors"), NULL));
    assert_same(model, other, 18, 18);
    model = user_model(own, INFINITY);
    CHECK_FAILS(tw_model_save_whole(model, path_of("b.safetensors")), TW_ERROR_ARGUMENT,
                "running_tanh 'sums': attribute 'gain': it is not finite");
    tw_model_destroy(model);
    tw_context_destroy(own);
    CHECK_FAILS(tw_model_open(&other, task_context, path_of("model.safetensors"), NULL), TW_ERROR_UNSUPPORTED,
                "there is no op 'prelu' in this context");
}

/* ---- arguments ---- */

static void test_arguments(void **state) {
    (void)state;
    tw_model *model, *out = (tw_model *)&model;
    CHECK_OK(tw_model_create(&model, task_context));
    CHECK_FAILS(tw_model_save_whole(NULL, "x"), TW_ERROR_ARGUMENT, "NULL");
    CHECK_FAILS(tw_model_save_whole(model, NULL), TW_ERROR_ARGUMENT, "NULL");
    CHECK_FAILS(tw_model_save_whole(model, path_of("x")), TW_ERROR_STATE, "not built");
    CHECK_FAILS(tw_model_open(NULL, task_context, "x", NULL), TW_ERROR_ARGUMENT, "out is NULL");
    CHECK_FAILS(tw_model_open(&out, NULL, "x", NULL), TW_ERROR_ARGUMENT, "NULL");
    assert_null(out);
    CHECK_FAILS(tw_model_open(&out, task_context, NULL, NULL), TW_ERROR_ARGUMENT, "NULL");
    CHECK_FAILS(tw_model_open(&out, task_context, path_of("x"), NULL), TW_ERROR_FILE, "x");
    tw_model_destroy(model);

    model = task_model(task_context, 1);
    CHECK_FAILS(tw_model_set_normalization(NULL, &(tw_normalization){0}), TW_ERROR_ARGUMENT, "NULL");
    CHECK_FAILS(tw_model_set_normalization(model, NULL), TW_ERROR_ARGUMENT, "NULL");
    CHECK_FAILS(tw_model_set_normalization(model, &(tw_normalization){17, {0}, {0}}), TW_ERROR_ARGUMENT, "17 channels");
    CHECK_FAILS(tw_model_set_normalization(model, &(tw_normalization){1, {0}, {-1}}), TW_ERROR_ARGUMENT,
                "deviation -1");
    CHECK_FAILS(tw_model_set_normalization(model, &(tw_normalization){3, {0}, {0}}), TW_ERROR_MISMATCH,
                "3 channels, the model's input 'input1' has 1");
    CHECK_FAILS(tw_model_set_class_names(model, NULL, 1), TW_ERROR_ARGUMENT, "NULL");
    CHECK_FAILS(tw_model_set_class_names(model, (const char *[]){"a", NULL}, 2), TW_ERROR_ARGUMENT, "name 1 is NULL");
    CHECK_FAILS(tw_model_set_class_names(model, (const char *[]){"a", "b", "c", "d"}, 4), TW_ERROR_ARGUMENT,
                "4 names for a model of at most 3 classes");
    CHECK_FAILS(tw_model_set_class_names(model, (const char *[]){"a"}, -1), TW_ERROR_ARGUMENT, "-1 names");
    assert_int_equal(tw_model_count_class_names(model), 0);
    CHECK_OK(tw_model_set_class_names(model, (const char *[]){"a"}, 1));
    CHECK_OK(tw_model_set_class_names(model, NULL, 0));
    assert_string_equal(tw_model_get_class_name(model, 0), "");
    tw_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        in_context(test_a_model_comes_back_with_all_its_layers),
        in_context(test_networks_of_the_zoo_come_back),
        in_context(test_saving_what_was_opened_gives_the_same_bytes),
        in_context(test_numbers_do_not_follow_the_locale),
        in_context(test_an_opened_model_needs_nothing_else_to_predict),
        in_context(test_fit_notes_what_it_trained_with),
        in_context(test_only_what_the_output_needs_is_saved),
        in_context(test_a_model_file_is_a_weights_file_too),
        in_context(test_a_users_ops_come_back_where_they_are_registered),
        in_context(test_arguments),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
