/* Building models: failures that stick and name their layer, names and scopes. */
#include "check.h"
#include "golden/state_names.h"
#include "small_task.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>

/* ---- failures ---- */

static tw_value *foreign; /* a value of another model */

#define CONV(model, x, ...) tw_conv2d(model, x, 4, 3, TW_OPTIONS(conv2d, .name = "c", __VA_ARGS__))
#define POOL(model, x, kernel, ...) tw_max_pool(model, x, kernel, TW_OPTIONS(pool, .name = "p", __VA_ARGS__))
#define BUILDER(name, ...)                       \
    static void name(tw_model *m, tw_value *x) { \
        (void)m, (void)x;                        \
        __VA_ARGS__;                             \
    }

/* clang-format off */
/* x is an image of 6 channels, 8 x 8. */
BUILDER(conv_null, tw_conv2d(m, NULL, 4, 3, NULL))
BUILDER(conv_groups_negative, CONV(m, x, .groups = -1))
BUILDER(conv_groups_5, CONV(m, x, .groups = 5))
BUILDER(conv_groups_3, CONV(m, x, .groups = 3))
BUILDER(conv_stride, CONV(m, x, .stride = -1))
BUILDER(conv_stride_w, CONV(m, x, .stride_w = -2))
BUILDER(conv_dilation, CONV(m, x, .dilation = -1))
BUILDER(conv_padding, CONV(m, x, .padding = -1))
BUILDER(conv_padding_w, CONV(m, x, .padding = 1, .padding_w = -2))
BUILDER(conv_pad_bottom, CONV(m, x, .pad_bottom = -1))
BUILDER(conv_pad_overflow, CONV(m, x, .padding = INT_MAX, .pad_bottom = INT_MAX))
BUILDER(conv_too_large, tw_conv2d(m, x, 4, 9, TW_OPTIONS(conv2d, .name = "c")))
BUILDER(conv_dilated_too_large, CONV(m, x, .dilation = 4))
BUILDER(conv_kernel_0, tw_conv2d(m, x, 4, 0, TW_OPTIONS(conv2d, .name = "c")))
BUILDER(conv_kernel_negative, tw_conv2d(m, x, 4, -3, TW_OPTIONS(conv2d, .name = "c")))
BUILDER(conv_kernel_w, CONV(m, x, .kernel_w = -1))
BUILDER(conv_kernel_huge, tw_conv2d(m, x, INT64_MAX, INT_MAX, TW_OPTIONS(conv2d, .name = "c", .kernel_w = INT_MAX)))
BUILDER(conv_no_output, tw_conv2d(m, x, 0, 3, TW_OPTIONS(conv2d, .name = "c")))
BUILDER(conv_rank, tw_conv2d(m, tw_flatten(m, x), 4, 3, TW_OPTIONS(conv2d, .name = "c")))
BUILDER(conv_init, CONV(m, x, .weight_init = {(tw_init_kind)99, 0}))
BUILDER(conv_bias_init, CONV(m, x, .bias_init = {(tw_init_kind)-1, 0}))
BUILDER(pool_kernel, POOL(m, x, 0, .stride = 1))
BUILDER(pool_stride, POOL(m, x, 2, .stride = -1))
BUILDER(pool_padding, POOL(m, x, 2, .padding = 2))
BUILDER(pool_padding_negative, POOL(m, x, 2, .padding = -1))
BUILDER(pool_too_large, POOL(m, x, 9, .stride = 1))
BUILDER(avg_pool_null, tw_avg_pool(m, NULL, 2, NULL))
BUILDER(dense_0, tw_dense(m, x, 0, TW_OPTIONS(dense, .name = "d")))
BUILDER(dense_null, tw_dense(m, NULL, 2, NULL))
BUILDER(dense_huge, tw_dense(m, x, INT64_MAX / 2, TW_OPTIONS(dense, .name = "d")))
BUILDER(dropout_above, tw_dropout(m, x, 1.5f))
BUILDER(dropout_below, tw_dropout(m, x, -0.1f))
BUILDER(dropout_nan, tw_dropout(m, x, NAN))
BUILDER(norm_epsilon, tw_batch_norm(m, x, TW_OPTIONS(batch_norm, .name = "n", .epsilon = -1)))
BUILDER(norm_momentum, tw_batch_norm(m, x, TW_OPTIONS(batch_norm, .name = "n", .momentum = 2)))
BUILDER(norm_rank, tw_batch_norm(m, tw_reshape(m, x, 2, (int64_t[]){6, 64}), TW_OPTIONS(batch_norm, .name = "n")))
BUILDER(relu_null, tw_relu(m, NULL))
BUILDER(add_null, tw_add(m, x, NULL))
BUILDER(add_shapes, tw_add(m, x, tw_global_avg_pool(m, x)))
BUILDER(reshape_count, tw_reshape(m, x, 2, (int64_t[]){6, 65}))
BUILDER(reshape_unknowns, tw_reshape(m, x, 2, (int64_t[]){-1, -1}))
BUILDER(reshape_rank, tw_reshape(m, x, 6, (int64_t[]){6, 64, 1, 1, 1, 1}))
BUILDER(reshape_null, tw_reshape(m, x, 2, NULL))
BUILDER(softmax_rank, tw_softmax(m, x))
BUILDER(loss_smoothing, tw_cross_entropy(m, tw_flatten(m, x), tw_input_labels(m, "l"),
                                         TW_OPTIONS(cross_entropy, .name = "loss", .label_smoothing = 2)))
BUILDER(loss_no_labels, tw_cross_entropy(m, tw_flatten(m, x), NULL, TW_OPTIONS(cross_entropy, .name = "loss")))
BUILDER(loss_labels_image, tw_cross_entropy(m, tw_flatten(m, x), x, TW_OPTIONS(cross_entropy, .name = "loss")))
BUILDER(rank_labels_real, tw_class_rank(m, tw_flatten(m, x), tw_input_shaped(m, "l", 0, NULL)))
BUILDER(relu_of_labels, tw_relu(m, tw_input_labels(m, "l")))
BUILDER(dense_of_classes, tw_dense(m, tw_argmax(m, tw_flatten(m, x)), 2, NULL))
BUILDER(residual_rank, tw_residual(m, tw_flatten(m, x), 4, TW_OPTIONS(residual, .name = "r")))
BUILDER(residual_0, tw_residual(m, x, 0, TW_OPTIONS(residual, .name = "r")))
BUILDER(residual_huge, tw_residual(m, x, INT64_MAX, TW_OPTIONS(residual, .name = "r", .bottleneck = true)))
BUILDER(residual_stride, tw_residual(m, x, 4, TW_OPTIONS(residual, .name = "r", .stride = -1)))
BUILDER(input_negative, tw_input(m, 3, -8, 8))
BUILDER(input_huge, tw_input(m, INT64_MAX / 2, INT64_MAX / 2, 8))
BUILDER(input_rank, tw_input_shaped(m, "i", 6, (int64_t[]){1, 1, 1, 1, 1, 1}))
BUILDER(input_null, tw_input_shaped(m, "i", 2, NULL))
BUILDER(name_twice, CONV(m, CONV(m, x, .padding = 1), .padding = 1))
BUILDER(name_of_input, (tw_input_shaped(m, "i", 0, NULL), tw_input_labels(m, "i")))
BUILDER(name_empty, tw_dense(m, x, 2, TW_OPTIONS(dense, .name = "")))
BUILDER(name_of_files, tw_weight(m, "__metadata__", 1, (int64_t[]){2}, NULL))
BUILDER(scope_empty, tw_scope_begin(m, ""))
BUILDER(scope_null, tw_scope_begin(m, NULL))
BUILDER(scope_end, tw_scope_end(m))
BUILDER(scope_deep, for (int i = 0; i < 40; i++) tw_scope_begin(m, "s"))
BUILDER(foreign_relu, tw_relu(m, foreign))
BUILDER(foreign_conv, CONV(m, foreign, .padding = 1))
BUILDER(foreign_add, tw_add(m, x, foreign))
BUILDER(options_size_0, tw_conv2d(m, x, 4, 3, &(tw_conv2d_options){.name = "c"}))
BUILDER(lenet_narrow, tw_zoo_lenet5(m, tw_input(m, 1, 28, 11), 10))
BUILDER(lenet_small, tw_zoo_lenet5(m, tw_input(m, 1, 8, 8), 10))
BUILDER(resnet_width, tw_zoo_resnet20(m, x, 10, TW_OPTIONS(resnet, .width = -1)))
BUILDER(resnet_wide, tw_zoo_resnet50(m, x, 10, TW_OPTIONS(resnet, .width = INT64_MAX)))
BUILDER(mlp_null, tw_zoo_mlp(m, x, 2, NULL))
BUILDER(mlp_none, tw_zoo_mlp(m, x, 0, (int64_t[]){2}))

static const struct failure {
    const char *name;
    void (*build)(tw_model *, tw_value *);
    const char *says[2];
} failures[] = {
#define ROW(function, first, second) {#function, function, {first, second}}
    ROW(conv_null, "conv2d", "input is NULL"),
    ROW(conv_groups_negative, "conv2d 'c'", "groups"),
    ROW(conv_groups_5, "conv2d 'c'", "groups"),
    ROW(conv_groups_3, "conv2d 'c'", "groups"),
    ROW(conv_stride, "'c.product'", "stride_h is -1"),
    ROW(conv_stride_w, "'c.product'", "stride_w is -2"),
    ROW(conv_dilation, "'c.product'", "dilation_h is -1"),
    ROW(conv_padding, "'c.product'", "pad_top is -1"),
    ROW(conv_padding_w, "'c.product'", "pad_left is -2"),
    ROW(conv_pad_bottom, "'c.product'", "pad_bottom is -1"),
    ROW(conv_pad_overflow, "conv2d 'c'", "pad_bottom"),
    ROW(conv_too_large, "'c.product'", "larger than the padded input"),
    ROW(conv_dilated_too_large, "'c.product'", "larger than the padded input"),
    ROW(conv_kernel_0, "conv2d 'c'", "kernel 0"),
    ROW(conv_kernel_negative, "conv2d 'c'", "kernel -3"),
    ROW(conv_kernel_w, "conv2d 'c'", "kernel 3 x -1"),
    ROW(conv_kernel_huge, "c", "more elements"),
    ROW(conv_no_output, "conv2d 'c'", "out_channels 0"),
    ROW(conv_rank, "conv2d 'c'", "N,C,H,W"),
    ROW(conv_init, "c.weight", "init kind 99"),
    ROW(conv_bias_init, "c.bias", "init kind -1"),
    ROW(pool_kernel, "max_pool 'p'", "kernel_h is 0"),
    ROW(pool_stride, "max_pool 'p'", "stride_h is -1"),
    ROW(pool_padding, "max_pool 'p'", "pad"),
    ROW(pool_padding_negative, "max_pool 'p'", "pad_top is -1"),
    ROW(pool_too_large, "max_pool 'p'", "larger than the padded input"),
    ROW(avg_pool_null, "avgpool", "input is NULL"),
    ROW(dense_0, "dense 'd'", "out 0"),
    ROW(dense_null, "dense", "input is NULL"),
    ROW(dense_huge, "d.weight", "more elements"),
    ROW(dropout_above, "dropout 'dropout1'", "1.5"),
    ROW(dropout_below, "dropout 'dropout1'", "-0.1"),
    ROW(dropout_nan, "dropout 'dropout1'", "nan"),
    ROW(norm_epsilon, "batch_norm 'n'", "epsilon is -1"),
    ROW(norm_momentum, "batch_norm 'n'", "is 2"),
    ROW(norm_rank, "batch_norm 'n'", "[1, 6, 64]"),
    ROW(relu_null, "relu 'relu1'", "input 0 is NULL"),
    ROW(add_null, "add 'add1'", "input 1 is NULL"),
    ROW(add_shapes, "add 'add1'", "[1, 6, 1, 1]"),
    ROW(reshape_count, "reshape 'reshape1'", "65"),
    ROW(reshape_unknowns, "reshape 'reshape1'", "-1"),
    ROW(reshape_rank, "reshape", "6 axes"),
    ROW(reshape_null, "reshape", "2 axes"),
    ROW(softmax_rank, "softmax 'softmax1'", "[1, 6, 8, 8]"),
    ROW(loss_smoothing, "cross_entropy 'loss'", "2"),
    ROW(loss_no_labels, "cross_entropy 'loss'", "input 1 is NULL"),
    ROW(loss_labels_image, "cross_entropy 'loss'", "labels"),
    ROW(rank_labels_real, "class_rank 'rank1'", "labels"),
    ROW(relu_of_labels, "relu 'relu1'", "class indices"),
    ROW(dense_of_classes, "flatten 'flatten2'", "class indices"),
    ROW(residual_rank, "residual 'r'", "N,C,H,W"),
    ROW(residual_0, "residual 'r'", "0 channels"),
    ROW(residual_huge, "residual 'r'", "channels"),
    ROW(residual_stride, "r.conv1", "stride_h is -1"),
    ROW(input_negative, "input 'input1'", "-8"),
    ROW(input_huge, "input", "more elements"),
    ROW(input_rank, "input 'i'", "6 axes"),
    ROW(input_null, "input 'i'", "2 axes"),
    ROW(name_twice, "name 'c' is taken", "scopes"),
    ROW(name_of_input, "name 'i' is taken", ""),
    ROW(name_empty, "fc", "empty name"),
    ROW(name_of_files, "__metadata__", "choose another"),
    ROW(scope_empty, "scope", "needs a name"),
    ROW(scope_null, "scope", "needs a name"),
    ROW(scope_end, "tw_scope_end", "tw_scope_begin"),
    ROW(scope_deep, "scope 's'", "deeper"),
    ROW(foreign_relu, "relu 'relu1'", "another model"),
    ROW(foreign_conv, "'c", "another model"),
    ROW(foreign_add, "add 'add1'", "input 1, 'input1', belongs to another model"),
    ROW(options_size_0, "conv2d", "size"),
    ROW(lenet_small, "tw_zoo_lenet5", "at least 12 x 12, got 8 x 8"),
    ROW(lenet_narrow, "tw_zoo_lenet5", "at least 12 x 12, got 28 x 11"),
    ROW(resnet_width, "resnet", "width -1"),
    ROW(resnet_wide, "resnet", "width"),
    ROW(mlp_null, "tw_zoo_mlp", "NULL"),
    ROW(mlp_none, "tw_zoo_mlp", "0"),
};
/* clang-format on */

static void test_failures_name_the_layer(void **state) {
    (void)state;
    tw_model *other;
    CHECK_OK(tw_model_create(&other, task_context));
    foreign = tw_input(other, 6, 8, 8);
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        tw_model *model;
        CHECK_OK(tw_model_create(&model, task_context));
        tw_value *x = tw_input_shaped(model, "x", 3, (int64_t[]){6, 8, 8});
        failures[i].build(model, x);
        /* what comes after does nothing and does not hide the first failure */
        if (tw_dense(model, x, 3, TW_OPTIONS(dense, .name = "later"))) fail_msg("%s did not fail", failures[i].name);
        assert_null(tw_relu(model, NULL));
        for (int k = 0; k < 20; k++) tw_scope_end(model); /* more than were begun */
        tw_clear_error();
        tw_status status = tw_model_build(model, x, NULL);
        if (status == TW_OK || status == TW_ERROR_INTERNAL)
            fail_msg("%s: %s", failures[i].name, tw_status_name(status));
        for (int k = 0; k < 2; k++)
            if (!strstr(tw_last_error(), failures[i].says[k]))
                fail_msg("%s: \"%s\" does not say \"%s\"", failures[i].name, tw_last_error(), failures[i].says[k]);
        tw_model_destroy(model);
    }
    tw_model_destroy(other);
    tw_model_destroy(task_model(task_context, 1)); /* the context works on */
}

static void test_building_at_the_wrong_time(void **state) {
    (void)state;
    tw_model *model, *other = task_plain_model(task_context, 1);
    float value;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_input_shaped(model, "x", 1, (int64_t[]){2});
    tw_scope_begin(model, "head");
    x = tw_dense(model, x, 3, NULL);
    CHECK_FAILS(tw_model_build(model, x, NULL), TW_ERROR_STATE, "scope 'head.' is still open");
    tw_scope_end(model);
    CHECK_FAILS(tw_model_build(model, NULL, NULL), TW_ERROR_ARGUMENT, "output is NULL");
    CHECK_FAILS(tw_model_build(model, tw_model_get_output(other), NULL), TW_ERROR_ARGUMENT, "another model");
    CHECK_FAILS(tw_parameter_read(model, "head.fc1.weight", &value, 1), TW_ERROR_STATE, "not built");
    assert_null(tw_model_get_output(model));
    tw_program *program = (void *)1;
    CHECK_FAILS(tw_program_create(&program, model, 1, TW_OPTIONS(program, .outputs = &x, .output_count = 1)),
                TW_ERROR_STATE, "build");
    assert_null(program);
    CHECK_OK(tw_model_build(model, x, NULL));
    CHECK_FAILS(tw_model_build(model, x, NULL), TW_ERROR_STATE, "built already");
    assert_non_null(tw_softmax(model, x)); /* ops without parameters may still come */
    assert_null(tw_dense(model, x, 3, NULL));
    CHECK_FAILS(tw_program_create(&program, model, 1, TW_OPTIONS(program, .outputs = &x, .output_count = 1)),
                TW_ERROR_STATE, "fc1");
    tw_model_destroy(model);
    tw_model_destroy(other);
}

static void test_null_arguments(void **state) {
    (void)state;
    tw_model *model = NULL;
    CHECK_FAILS(tw_model_create(NULL, task_context), TW_ERROR_ARGUMENT, "out is NULL");
    CHECK_FAILS(tw_model_create(&model, NULL), TW_ERROR_ARGUMENT, "context is NULL");
    CHECK_FAILS(tw_model_build(NULL, NULL, NULL), TW_ERROR_ARGUMENT, "model is NULL");
    tw_model_destroy(NULL);
    tw_program_destroy(NULL);
    assert_null(tw_input(NULL, 1, 1, 1));
    assert_null(tw_relu(NULL, NULL));
    assert_null(tw_conv2d(NULL, NULL, 1, 1, NULL));
    assert_null(tw_zoo_resnet18(NULL, NULL, 1, NULL));
    assert_null(tw_zoo_mlp(NULL, NULL, 1, NULL));
    tw_scope_begin(NULL, "a");
    tw_scope_end(NULL);
    assert_null(tw_model_get_output(NULL));
    assert_null(tw_model_get_input(NULL));
    assert_null(tw_model_find(NULL, "x"));
    assert_null(tw_model_dump(NULL));
    assert_string_equal(tw_value_get_name(NULL), "");
    assert_int_equal(tw_model_count_parameters(NULL), 0);
    assert_int_equal(tw_model_count_weights(NULL), 0);
    model = task_plain_model(task_context, 1);
    tw_parameter parameter;
    float values[3] = {0};
    CHECK_FAILS(tw_model_get_parameter(model, 2, &parameter), TW_ERROR_ARGUMENT, "outside 0 .. 1");
    CHECK_FAILS(tw_model_get_parameter(model, -1, &parameter), TW_ERROR_ARGUMENT, "outside");
    CHECK_FAILS(tw_parameter_read(model, "fc1.bias", NULL, 3), TW_ERROR_ARGUMENT, "NULL");
    CHECK_FAILS(tw_parameter_write(model, "fc1.bias", NULL, 3), TW_ERROR_ARGUMENT, "NULL");
    CHECK_FAILS(tw_parameter_write(model, "fc1.bias", values, 2), TW_ERROR_ARGUMENT, "has 3 elements, got 2");
    CHECK_FAILS(tw_parameter_read(model, "fc2.bias", values, 3), TW_ERROR_ARGUMENT, "no parameter 'fc2.bias'");
    CHECK_FAILS(tw_parameter_read(model, "fc1", values, 3), TW_ERROR_ARGUMENT,
                "no parameter 'fc1'; there are fc1.weight, fc1.bias");
    CHECK_FAILS(tw_parameter_write(model, "fc1.w", values, 3), TW_ERROR_ARGUMENT,
                "no parameter 'fc1.w'; there is fc1.weight");
    CHECK_FAILS(tw_model_set_trainable(model, "conv", false), TW_ERROR_ARGUMENT, "begins with 'conv'");
    tw_model_destroy(model);
}

/* ---- names ---- */

static tw_value *lenet5(tw_model *m) { return tw_zoo_lenet5(m, tw_input(m, 1, 28, 28), 10); }
static tw_value *resnet20(tw_model *m) { return tw_zoo_resnet20(m, tw_input(m, 3, 32, 32), 10, NULL); }
static tw_value *resnet18(tw_model *m) { return tw_zoo_resnet18(m, tw_input(m, 3, 224, 224), 1000, NULL); }
static tw_value *resnet50(tw_model *m) { return tw_zoo_resnet50(m, tw_input(m, 3, 224, 224), 1000, NULL); }

/* "name 64x3x7x7;" of parameter `index`. */
static void describe(const tw_model *model, int index, char *text, size_t size) {
    tw_parameter p;
    CHECK_OK(tw_model_get_parameter(model, index, &p));
    int length = snprintf(text, size, "%s ", p.name);
    for (int k = 0; k < p.rank; k++)
        length += snprintf(text + length, size - (size_t)length, k ? "x%d" : "%d", (int)p.dims[k]);
    snprintf(text + length, size - (size_t)length, ";");
    /* weights decay; biases, norm parameters and buffers do not; buffers are not learned */
    assert_int_equal(p.decayed, p.rank > 1);
    assert_int_equal(p.learned, !strstr(p.name, "running_") && !strstr(p.name, "num_batches"));
    assert_int_equal(p.trainable, p.learned);
}

static void assert_state(tw_value *(*add)(tw_model *), const char *const *expected, int64_t weights, int64_t classes) {
    tw_model *model;
    char text[128];
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *y = add(model);
    assert_non_null(y);
    assert_int_equal(tw_value_get_rank(y), 2);
    assert_int_equal(tw_value_get_dim(y, 0), 0);
    assert_int_equal(tw_value_get_dim(y, 1), classes);
    assert_int_equal(tw_model_count_weights(model), weights);
    const char *at = *expected;
    for (int i = 0; i < tw_model_count_parameters(model); i++) {
        if (!*at) at = *++expected;
        assert_non_null(at);
        describe(model, i, text, sizeof text);
        if (strncmp(at, text, strlen(text)) != 0) fail_msg("%s where PyTorch has %.60s", text, at);
        at += strlen(text);
    }
    assert_true(*at == 0 && !expected[1]);
    tw_model_destroy(model);
}

static void test_names_are_pytorchs(void **state) {
    (void)state;
    assert_state(lenet5, lenet5_state, lenet5_weights, 10);
    assert_state(resnet20, resnet20_state, resnet20_weights, 10);
    assert_state(resnet18, resnet18_state, resnet18_weights, 1000);
    assert_state(resnet50, resnet50_state, resnet50_weights, 1000);
}

static tw_value *least_lenet5(tw_model *m) { return tw_zoo_lenet5(m, tw_input(m, 1, 12, 12), 10); }
static tw_value *least_resnet20(tw_model *m) { return tw_zoo_resnet20(m, tw_input(m, 3, 1, 1), 10, NULL); }
static tw_value *least_resnet18(tw_model *m) { return tw_zoo_resnet18(m, tw_input(m, 3, 1, 1), 10, NULL); }
static tw_value *least_resnet50(tw_model *m) { return tw_zoo_resnet50(m, tw_input(m, 3, 1, 1), 10, NULL); }

/* What is refused as too small is: LeNet-5 alone has a least size of images, and takes that. */
static void test_networks_take_the_smallest_images(void **state) {
    (void)state;
    tw_value *(*const add[])(tw_model *) = {least_lenet5, least_resnet20, least_resnet18, least_resnet50};
    for (size_t i = 0; i < sizeof add / sizeof *add; i++) {
        tw_model *model;
        CHECK_OK(tw_model_create(&model, task_context));
        if (!add[i](model)) fail_msg("network %zu: %s", i, tw_last_error());
        tw_model_destroy(model);
    }
}

static void test_scopes_and_automatic_names(void **state) {
    (void)state;
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_input_shaped(model, "x", 1, (int64_t[]){2});
    x = tw_dense(model, x, 2, NULL);
    tw_scope_begin(model, "a");
    x = tw_dense(model, x, 2, NULL);
    tw_scope_begin(model, "b");
    x = tw_relu(model, tw_dense(model, x, 2, TW_OPTIONS(dense, .name = "own")));
    assert_string_equal(tw_value_get_name(x), "a.b.relu1");
    tw_scope_end(model);
    x = tw_dense(model, x, 2, NULL);
    tw_scope_end(model);
    x = tw_dense(model, x, 2, NULL);
    CHECK_OK(tw_model_build(model, x, NULL));
    static const char *const names[] = {"fc1", "a.fc1", "a.b.own", "a.fc2", "fc2"};
    for (int i = 0; i < 5; i++) {
        tw_parameter p;
        CHECK_OK(tw_model_get_parameter(model, 2 * i, &p));
        assert_int_equal(strncmp(p.name, names[i], strlen(names[i])), 0);
        assert_string_equal(p.name + strlen(names[i]), ".weight");
        tw_value *value = tw_model_find(model, names[i]);
        assert_non_null(value);
        assert_string_equal(tw_value_get_name(value), names[i]);
    }
    assert_true(tw_model_get_output(model) == x && tw_model_find(model, "fc2") == x);
    const char *dump = tw_model_dump(model);
    assert_true(dump && strstr(dump, "a.b.own") && strstr(dump, "dense") && strstr(dump, "[2, 2]"));
    tw_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        with_context(test_failures_name_the_layer),
        with_context(test_building_at_the_wrong_time),
        with_context(test_null_arguments),
        with_context(test_names_are_pytorchs),
        with_context(test_networks_take_the_smallest_images),
        with_context(test_scopes_and_automatic_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
