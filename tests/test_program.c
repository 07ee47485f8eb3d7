/* The passes: what fusion makes of real nets, that the memory plan never lets two living buffers meet, what a run refuses.
 * Values are the business of test_ops.c and test_trajectories.c. */
#include "program_net.h"

#include <math.h>
#include <stdio.h>

static tw_value *lenet5(tw_model *model, tw_value *x) { return tw_zoo_lenet5(model, x, 10); }
static tw_value *dense(tw_model *model, tw_value *x) { return tw_dense(model, x, 3, TW_OPTIONS(dense, .name = "fc")); }

static int count_kernel(const tw_program *program, const char *name) {
    int count = 0;
    for (int i = 0; i < program->step_count; i++) count += strcmp(program->step[i].kernel->name, name) == 0;
    return count;
}

/* --- fusion --- */

typedef struct expected {
    const char *kernel;
    int count;
} expected;

static void check_kernels(const tw_program *program, const expected *rows) {
    for (; rows->kernel; rows++)
        if (count_kernel(program, rows->kernel) != rows->count)
            fail_msg("%s: %d steps, expected %d", rows->kernel, count_kernel(program, rows->kernel), rows->count);
}

static void test_fusion_of_lenet5(void **state) {
    (void)state;
    static const expected rows[] = {{"dense.forward_bias_relu", 2},
                                    {"dense.forward_bias", 1},
                                    {"bias.backward", 0},
                                    {"dense.backward_weights_bias", 1},
                                    {"softmax_cross_entropy.both", 1},
                                    {"relu.forward", 0},
                                    {"relu.backward", 0},
                                    {NULL, 0}};
    static const expected on_cpu[] = {{"conv2d.forward_bias_max_pool_relu", 2},
                                      {"conv2d.backward_weights_unpooled", 2},
                                      {"conv2d.backward_data_unpooled", 1},
                                      {"max_pool.backward", 0},
                                      {"bias_relu.backward", 2},
                                      {"dense.backward_data_relu", 2},
                                      {"dense.backward_weights", 1},
                                      {"dense.backward_weights_measure", 1},
                                      {NULL, 0}};
    static const expected elsewhere[] = {{"conv2d.forward_bias_relu", 2},
                                         {"max_pool.backward", 2},
                                         {"bias_relu.backward", 4},
                                         {"dense.backward_weights", 2},
                                         {NULL, 0}};
    net n;
    open_net(&n, lenet5, 1, 28);
    tw_program *program = make(&n, 16, false);
    check_kernels(program, rows);
    check_kernels(program, check_device() ? elsewhere : on_cpu);
    assert_true(program->fused_bytes > 0);
    tw_program_destroy(program);
    close_net(&n);
}

static int count_turned(const tw_program *program) {
    int count = 0;
    for (int i = 0; i < program->buffer_count; i++) count += program->buffer[i].lanes != 0;
    return count;
}

/* What convolutions hand to each other lies side by side; what is read from outside does not. */
static void test_samples_side_by_side(void **state) {
    (void)state;
    if (check_device()) skip();
    net n;
    open_net(&n, lenet5, 1, 28);
    tw_program *program = make(&n, 40, false);
    assert_true(count_turned(program) >= 8); /* two results of pooling with their indices, and four gradients */
    tw_program_destroy(program);
    tw_value *kept[] = {tw_model_find(n.model, "maxpool1")};
    assert_non_null(kept[0]);
    CHECK_OK(
        tw_program_create(&program, n.model, 40,
                          TW_OPTIONS(program, .losses = &n.loss, .loss_count = 1, .outputs = kept, .output_count = 1)));
    assert_int_equal(count_kernel(program, "conv2d.forward_bias_max_pool_relu"), 2);
    assert_int_equal(program->buffer[program->value_buffer[kept[0]->id]].lanes, 0);
    tw_program_destroy(program);
    close_net(&n);
}

static tw_value *many_channels(tw_model *model, tw_value *x) {
    x = tw_conv2d(model, x, 40, 3, TW_OPTIONS(conv2d, .padding = 1));
    x = tw_max_pool(model, tw_relu(model, tw_conv2d(model, x, 40, 3, TW_OPTIONS(conv2d, .padding = 1))), 2, NULL);
    return tw_dense(model, x, 10, NULL);
}

/* Where no convolution pools its own result, relu and pooling stay in their order. */
static void test_fusion_of_many_channels(void **state) {
    (void)state;
    static const expected rows[] = {{"conv2d.forward_bias_max_pool_relu", 0},
                                    {"conv2d.forward_bias_relu", 1},
                                    {"conv2d.backward_weights_unpooled", 0},
                                    {"max_pool.forward", 1},
                                    {"max_pool.backward", 1},
                                    {"relu.forward", 0},
                                    {"relu.backward", 0},
                                    {"bias_relu.backward", 1},
                                    {NULL, 0}};
    net n;
    open_net(&n, many_channels, 3, 8);
    tw_program *program = make(&n, 1, false);
    check_kernels(program, rows);
    tw_program_destroy(program);
    close_net(&n);
}

/* Fewer images than half a vector are pooled by the convolution all the same, but not their gradients. */
static void test_fusion_of_few_images(void **state) {
    (void)state;
    static const expected rows[] = {{"conv2d.forward_bias_max_pool_relu", 2},
                                    {"conv2d.backward_weights_unpooled", 0},
                                    {"max_pool.forward", 0},
                                    {"max_pool.backward", 2},
                                    {"relu.forward", 0},
                                    {"relu.backward", 2},
                                    {"bias_relu.backward", 0},
                                    {"dense.backward_data_relu", 2},
                                    {NULL, 0}};
    if (check_device()) skip();
    net n;
    open_net(&n, lenet5, 1, 28);
    tw_program *program = make(&n, 1, false);
    check_kernels(program, rows);
    tw_program_destroy(program);
    close_net(&n);
}

/* 21 batch norms: the stem's and 9 inner ones end in a relu alone, 9 blocks end in sum and relu, 2 projections in nothing.
 * No relu is left to run by itself, forward or backward. */
static void test_fusion_of_resnet20(void **state) {
    (void)state;
    static const expected rows[] = {{"batch_norm.apply_relu", 10},
                                    {"batch_norm.apply_add_relu", 9},
                                    {"batch_norm.apply", 2},
                                    {"batch_norm.backward_sums_masked", 21},
                                    {"batch_norm.backward_apply_masked", 21},
                                    {"add.masked", 7},
                                    {"add.forward", 2},
                                    {"relu.backward", 0},
                                    {"relu.backward_masked", 0},
                                    {"reshape.copy", 0},
                                    {NULL, 0}};
    net n;
    open_net(&n, resnet20, 3, 32);
    tw_program *program = make(&n, 8, false);
    check_kernels(program, rows);
    tw_program_destroy(program);
    program = make(&n, 8, true);
    assert_int_equal(count_kernel(program, "batch_norm.apply"), 21);
    assert_int_equal(count_kernel(program, "relu.backward"), 19);
    tw_program_destroy(program);
    close_net(&n);
}

static tw_value *norm_of_input(tw_model *model, tw_value *x) {
    x = tw_relu(model, tw_add(model, tw_batch_norm(model, x, NULL), x));
    return tw_dense(model, x, 10, NULL);
}

/* No backward, no masks. */
static void test_inference_makes_no_masks(void **state) {
    (void)state;
    net n;
    open_net(&n, norm_of_input, 3, 32);
    tw_program *program;
    CHECK_OK(tw_program_create(&program, n.model, 4, TW_OPTIONS(program, .outputs = &n.logits, .output_count = 1)));
    assert_int_equal(count_kernel(program, "batch_norm.apply_add_relu"), 1);
    for (int i = 0; i < program->buffer_count; i++) assert_int_not_equal(program->buffer[i].store, TWI_BITS);
    tw_program_destroy(program);
    close_net(&n);
}

/* And no norms, but in the weights. */
static void test_fusion_of_resnet20_without_training(void **state) {
    (void)state;
    static const expected rows[] = {{"batch_norm.from_running", 21},  {"batch_norm.fold", 21},
                                    {"batch_norm.apply", 0},          {"batch_norm.apply_relu", 0},
                                    {"batch_norm.apply_add_relu", 0}, {"bias.forward", 0},
                                    {"conv2d.forward_bias", 11},      {"conv2d.forward_bias_relu", 10},
                                    {"add.forward_relu", 9},          {NULL, 0}};
    net n;
    open_net(&n, resnet20, 3, 32);
    tw_program *program;
    CHECK_OK(tw_program_create(&program, n.model, 4, TW_OPTIONS(program, .outputs = &n.logits, .output_count = 1)));
    check_kernels(program, rows);
    tw_program_destroy(program);
    close_net(&n);
}

/* One parameter in two nodes: its gradient is the sum of both. */
static void test_shared_parameter(void **state) {
    (void)state;
    net n;
    CHECK_OK(tw_context_create(&n.context, "cpu", NULL));
    CHECK_OK(tw_model_create(&n.model, n.context));
    n.x = tw_input_shaped(n.model, "x", 1, (int64_t[]){2});
    twi_parameter record = {.learned = true, .trainable = true, .init = {TW_INIT_CONSTANT, 0.5f}, .shape = {2, {2, 2}}};
    tw_value *w = twi_model_parameter(n.model, "shared", "weight", &record);
    tw_value *first = twi_graph_node(&n.model->graph, "dense", "first", 2, (tw_value *[]){n.x, w}, NULL);
    n.logits = twi_graph_node(&n.model->graph, "dense", "second", 2, (tw_value *[]){first, w}, NULL);
    n.labels = tw_input_labels(n.model, NULL);
    n.loss = (tw_loss){tw_cross_entropy(n.model, n.logits, n.labels, NULL), 1};
    CHECK_OK(tw_model_build(n.model, n.logits, NULL));
    tw_program *program;
    CHECK_OK(tw_program_create(&program, n.model, 1,
                               TW_OPTIONS(program, .train = true, .losses = &n.loss, .loss_count = 1)));
    const float x[2] = {1, 2};
    const int32_t label = 0;
    CHECK_OK(tw_program_write(program, n.x, TW_F32, x, 2));
    CHECK_OK(tw_program_write(program, n.labels, TW_I32, &label, 1));
    CHECK_OK(tw_program_run_gradients(program));
    /* h = W x = (1.5, 1.5), y = W h, p = (1/2, 1/2): dy = (-1/2, 1/2); dW = dy h^T + (W^T dy) x^T, and W^T dy = 0. */
    float gradient[4];
    const float expected[4] = {-0.75f, -0.75f, 0.75f, 0.75f};
    CHECK_OK(tw_program_read_parameter_gradient(program, "shared.weight", gradient, 4));
    for (int i = 0; i < 4; i++) assert_true(fabsf(gradient[i] - expected[i]) < 1e-6f);
    assert_int_equal(count_kernel(program, "gradient_sum.add"), 1);
    tw_program_destroy(program);
    close_net(&n);
}

/* The gradient of a value is there to read although nothing before the value wants one. */
static void test_gradient_of_what_nothing_trains(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        net n;
        CHECK_OK(tw_context_create(&n.context, "cpu", NULL));
        CHECK_OK(tw_model_create(&n.model, n.context));
        n.x = tw_input_shaped(n.model, "x", 1, (int64_t[]){3});
        tw_value *asked = kind == 0 ? tw_softmax(n.model, n.x) : kind == 1 ? tw_dropout(n.model, n.x, 0.5f) : n.x;
        n.logits = kind == 2 ? tw_relu(n.model, n.x) : tw_dense(n.model, asked, 3, NULL);
        n.labels = tw_input_labels(n.model, NULL);
        n.loss = (tw_loss){tw_cross_entropy(n.model, n.logits, n.labels, NULL), 1};
        CHECK_OK(tw_model_build(n.model, n.logits, NULL));
        tw_value *gradients[] = {kind == 2 ? n.loss.value : asked};
        tw_program *program;
        CHECK_OK(tw_program_create(&program, n.model, 2,
                                   TW_OPTIONS(program, .train = true, .losses = &n.loss, .loss_count = 1,
                                              .gradients = gradients, .gradient_count = 1)));
        const float x[6] = {1, 2, 3, -1, 0, 1};
        const int32_t labels[2] = {0, 2};
        float gradient[6];
        CHECK_OK(tw_program_write(program, n.x, TW_F32, x, 6));
        CHECK_OK(tw_program_write(program, n.labels, TW_I32, labels, 2));
        CHECK_OK(tw_program_run(program));
        CHECK_OK(tw_program_read_gradient(program, gradients[0], gradient, kind == 2 ? 1 : 6));
        if (kind == 2) assert_true(gradient[0] == 0.5f); /* of the mean over two samples */
        tw_program_destroy(program);
        close_net(&n);
    }
}

/* A value that is read from outside may not vanish into a fused step. */
static void test_fusion_keeps_outputs(void **state) {
    (void)state;
    net n;
    open_net(&n, lenet5, 1, 28);
    tw_value *kept[] = {tw_model_find(n.model, "conv1.product")};
    assert_non_null(kept[0]);
    tw_program *program;
    CHECK_OK(
        tw_program_create(&program, n.model, 4,
                          TW_OPTIONS(program, .losses = &n.loss, .loss_count = 1, .outputs = kept, .output_count = 1)));
    assert_int_equal(count_kernel(program, "conv2d.forward"), 1);
    assert_int_equal(count_kernel(program, "conv2d.forward_bias_relu") +
                         count_kernel(program, "conv2d.forward_bias_max_pool_relu"),
                     1); /* of the other convolution */
    tw_program_destroy(program);
    close_net(&n);
}

/* --- memory --- */

/* First and last segment in which a buffer's memory is touched, through any view. */
static void life(const tw_program *program, int root, int *first, int *last) {
    *first = program->segment_count;
    *last = -1;
    for (int i = 0; i < program->step_count; i++)
        for (int o = 0; o < program->step[i].kernel->operand_count; o++) {
            int ref = program->step[i].operand[o];
            if (ref < 0 || twi_program_root(program, ref) != root) continue;
            if (program->step[i].segment < *first) *first = program->step[i].segment;
            if (program->step[i].segment > *last) *last = program->step[i].segment;
        }
    if (program->buffer[root].pinned) *first = 0, *last = program->segment_count - 1;
}

/* One of the two was written over the other on purpose: they may share memory. */
static bool in_place(const tw_program *program, int a, int b) {
    for (int k = a; k >= 0; k = program->buffer[k].over)
        if (k == b) return true;
    for (int k = b; k >= 0; k = program->buffer[k].over)
        if (k == a) return true;
    return false;
}

static void check_plan(const tw_program *program) {
    for (int a = 0; a < program->buffer_count; a++)
        for (int b = 0; b < a; b++) {
            const twi_buffer *x = &program->buffer[a], *y = &program->buffer[b];
            if (x->source != TWI_SOURCE_ARENA || y->source != TWI_SOURCE_ARENA || x->alias >= 0 || y->alias >= 0)
                continue;
            if (x->local || y->local || in_place(program, a, b)) continue;
            int first[2], last[2];
            life(program, a, &first[0], &last[0]);
            life(program, b, &first[1], &last[1]);
            bool meet = first[0] <= last[1] && first[1] <= last[0],
                 overlap = x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
            if (meet && overlap)
                fail_msg("'%s' and '%s' live at once at %zu and %zu", x->name, y->name, x->offset, y->offset);
            assert_true(last[0] < 0 || x->offset + x->bytes <= program->arena_bytes);
        }
}

static void test_plan_never_overlaps(void **state) {
    (void)state;
    static const int64_t batches[] = {1, 7, 64};
    for (int fusion = 0; fusion < 2; fusion++)
        for (int i = 0; i < 3; i++) {
            net n;
            open_net(&n, resnet20, 3, 32);
            tw_program *program = make(&n, batches[i], !fusion);
            check_plan(program);
            tw_program_destroy(program);
            close_net(&n);
        }
}

/* The arena is what a straight sum of all activations is not: reused. */
static void test_plan_reuses_memory(void **state) {
    (void)state;
    net n;
    open_net(&n, resnet20, 3, 32);
    tw_program *program = make(&n, 32, false);
    size_t all = 0;
    for (int i = 0; i < program->buffer_count; i++)
        if (program->buffer[i].source == TWI_SOURCE_ARENA && program->buffer[i].alias < 0)
            all += program->buffer[i].bytes;
    assert_true(program->arena_bytes < all * 3 / 4);
    tw_program_destroy(program);
    close_net(&n);
}

static void test_dumps(void **state) {
    (void)state;
    net n;
    open_net(&n, lenet5, 1, 28);
    tw_program *program = make(&n, 16, false);
    const char *const says[] = {
        "MFLOP", "relu.backward", "fusion saves", "in chunks of", check_device() ? "kernel" : "specification", "arena"};
    for (int pass = TW_PASS_LOWER; pass <= TW_PASS_MEMORY; pass++) {
        const char *text = tw_program_dump(program, (tw_pass)pass);
        assert_non_null(text);
        if (!strstr(text, says[pass])) fail_msg("pass %d does not say \"%s\":\n%s", pass, says[pass], text);
    }
    assert_null(tw_program_dump(program, (tw_pass)6));
    tw_program_destroy(program);
    close_net(&n);
}

/* --- running --- */

static void feed(net *n, tw_program *program, float value) {
    float images[4 * 4];
    const int32_t labels[4] = {0, 1, 2, 0};
    for (int i = 0; i < 16; i++) images[i] = value * (float)(i % 5 - 2);
    CHECK_OK(tw_program_write(program, n->x, TW_F32, images, 16));
    CHECK_OK(tw_program_write(program, n->labels, TW_I32, labels, 4));
}

/* A finite loss whose gradient overflows: logits stay small, the input is at the end of f32. */
static void test_gradient_overflow_changes_nothing(void **state) {
    (void)state;
    net n;
    open_net(&n, dense, 1, 2);
    float zeros[12] = {0}, bias[3] = {0}, after[12];
    CHECK_OK(tw_parameter_write(n.model, "fc.weight", zeros, 12));
    CHECK_OK(tw_parameter_write(n.model, "fc.bias", bias, 3));
    n.loss.weight = 1000;
    tw_program *program = make(&n, 4, false);
    feed(&n, program, 1e38f);
    CHECK_FAILS(tw_program_run(program), TW_ERROR_NUMERIC, "the gradient of 'fc.weight'");
    assert_true(isfinite(tw_program_get_loss(program)));
    CHECK_OK(tw_parameter_read(n.model, "fc.weight", after, 12));
    assert_memory_equal(after, zeros, sizeof zeros);
    assert_int_equal(tw_model_get_updates(n.model), 0);
    assert_int_equal(tw_model_get_attempts(n.model), 1);
    feed(&n, program, 1);
    CHECK_OK(tw_program_run(program));
    assert_int_equal(tw_model_get_updates(n.model), 1);
    tw_program_destroy(program);
    close_net(&n);
}

/* Programs of a model share an arena: what another overwrote must be fed again. */
static void test_shared_arena_is_guarded(void **state) {
    (void)state;
    net n;
    float logits[12];
    open_net(&n, dense, 1, 2);
    tw_program *a = make(&n, 4, false), *b = make(&n, 4, false);
    CHECK_FAILS(tw_program_run(a), TW_ERROR_STATE, "feed them again");
    feed(&n, a, 1);
    CHECK_OK(tw_program_run(a));
    CHECK_OK(tw_program_read(a, n.logits, logits, 12));
    feed(&n, b, 1);
    CHECK_FAILS(tw_program_read(a, n.logits, logits, 12), TW_ERROR_STATE, "shar");
    CHECK_FAILS(tw_program_run(a), TW_ERROR_STATE, "feed them again");
    CHECK_OK(tw_program_run(b));
    const int32_t labels[4] = {0, 1, 2, 0};
    CHECK_OK(tw_program_write(a, n.labels, TW_I32, labels, 4)); /* one input is not all */
    CHECK_FAILS(tw_program_run(a), TW_ERROR_STATE, "input 'input1'");
    CHECK_FAILS(tw_program_read(a, n.logits, logits, 12), TW_ERROR_STATE, "has not run");
    CHECK_FAILS(tw_program_read_parameter_gradient(a, "fc.weight", logits, 12), TW_ERROR_STATE, "another one trained");
    CHECK_OK(tw_program_read_parameter_gradient(b, "fc.weight", logits, 12));
    tw_program_destroy(a);
    tw_program_destroy(b);
    close_net(&n);
}

/* Weights reordered once serve until they change: by an update, by hand, or because another program ran. */
static void test_constants_follow_the_weights(void **state) {
    (void)state;
    net n;
    open_net(&n, lenet5, 1, 28);
    float image[784], first[10], second[10], weight[150];
    for (int i = 0; i < 784; i++) image[i] = (float)(i % 11) * 0.1f;
    tw_program *infer, *train = make(&n, 1, false);
    const int32_t label = 3;
    CHECK_OK(tw_program_create(&infer, n.model, 1, TW_OPTIONS(program, .outputs = &n.logits, .output_count = 1)));
    for (int change = 0; change < 3; change++) {
        CHECK_OK(tw_program_write(infer, n.x, TW_F32, image, 784));
        CHECK_OK(tw_program_run(infer));
        CHECK_OK(tw_program_read(infer, n.logits, first, 10));
        CHECK_OK(tw_program_run(infer));
        CHECK_OK(tw_program_read(infer, n.logits, second, 10));
        assert_memory_equal(first, second, sizeof first);
        if (change == 0) {
            CHECK_OK(tw_parameter_read(n.model, "conv1.weight", weight, 150));
            for (int i = 0; i < 150; i++) weight[i] += 0.1f;
            CHECK_OK(tw_parameter_write(n.model, "conv1.weight", weight, 150));
        } else {
            CHECK_OK(tw_program_write(train, n.x, TW_F32, image, 784));
            CHECK_OK(tw_program_write(train, n.labels, TW_I32, &label, 1));
            CHECK_OK(tw_program_run(train));
            CHECK_OK(tw_program_write(infer, n.x, TW_F32, image, 784));
        }
        CHECK_OK(tw_program_run(infer));
        CHECK_OK(tw_program_read(infer, n.logits, second, 10));
        assert_memory_not_equal(first, second, sizeof first);
        tw_program *fresh; /* what a program that has seen nothing computes */
        CHECK_OK(tw_program_create(&fresh, n.model, 1, TW_OPTIONS(program, .outputs = &n.logits, .output_count = 1)));
        CHECK_OK(tw_program_write(fresh, n.x, TW_F32, image, 784));
        CHECK_OK(tw_program_run(fresh));
        CHECK_OK(tw_program_read(fresh, n.logits, first, 10));
        assert_memory_equal(first, second, sizeof first);
        tw_program_destroy(fresh);
    }
    tw_program_destroy(infer);
    tw_program_destroy(train);
    close_net(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fusion_of_lenet5),
        cmocka_unit_test(test_fusion_of_many_channels),
        cmocka_unit_test(test_fusion_of_few_images),
        cmocka_unit_test(test_samples_side_by_side),
        cmocka_unit_test(test_fusion_of_resnet20),
        cmocka_unit_test(test_inference_makes_no_masks),
        cmocka_unit_test(test_fusion_of_resnet20_without_training),
        cmocka_unit_test(test_shared_parameter),
        cmocka_unit_test(test_gradient_of_what_nothing_trains),
        cmocka_unit_test(test_fusion_keeps_outputs),
        cmocka_unit_test(test_plan_never_overlaps),
        cmocka_unit_test(test_plan_reuses_memory),
        cmocka_unit_test(test_dumps),
        cmocka_unit_test(test_gradient_overflow_changes_nothing),
        cmocka_unit_test(test_shared_arena_is_guarded),
        cmocka_unit_test(test_constants_follow_the_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
