/* An infinity planted in an input, a weight, an activation, a gradient or the loss is caught in the same run, and the message names
 * the first value that is not finite, with its samples. */
#include "check.h"
#include "program/model.h"
#include "program/program.h"
#include <talweg/talweg.h>

#include <math.h>
#include <stdio.h>

enum { BATCH = 4 };

/* x [1] -> fc1 -> fc2, a weight each; the loss is the dot product with g [1]. */
typedef struct chain {
    tw_context *context;
    tw_model *model;
    tw_value *x, *g;
    tw_loss loss;
    tw_program *program;
    uint64_t blocks;
} chain;

static void open_chain(chain *c, bool train, const tw_loss_scaling *scaling, bool accumulate) {
    const int64_t one = 1;
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.momentum = 0.9f;
    CHECK_OK(tw_context_create(&c->context, check_device_or_cpu(), TW_OPTIONS(context, .threads = 2)));
    CHECK_OK(tw_model_create(&c->model, c->context));
    c->x = tw_input_shaped(c->model, "x", 1, &one);
    c->g = tw_input_shaped(c->model, "g", 1, &one);
    tw_value *h = tw_dense(c->model, c->x, 1, TW_OPTIONS(dense, .name = "fc1", .no_bias = true));
    tw_value *y = tw_dense(c->model, h, 1, TW_OPTIONS(dense, .name = "fc2", .no_bias = true));
    c->loss = (tw_loss){twi_graph_node(&c->model->graph, "dot", "loss", 2, (tw_value *[]){y, c->g}, NULL), 1};
    CHECK_OK(tw_model_build(c->model, y, NULL));
    CHECK_OK(tw_program_create(&c->program, c->model, BATCH,
                               TW_OPTIONS(program, .train = train, .losses = &c->loss, .loss_count = 1,
                                          .accumulate = accumulate, .optimizer = train ? &sgd : NULL,
                                          .loss_scaling = scaling)));
    c->blocks = tw_context_get_memory(c->context).blocks;
}

static void close_chain(chain *c) {
    if (!check_device()) assert_int_equal(tw_context_get_memory(c->context).blocks, c->blocks);
    tw_program_destroy(c->program);
    tw_model_destroy(c->model);
    tw_context_destroy(c->context);
}

static void set(chain *c, float w1, float w2) {
    CHECK_OK(tw_parameter_write(c->model, "fc1.weight", &w1, 1));
    CHECK_OK(tw_parameter_write(c->model, "fc2.weight", &w2, 1));
}

/* Sample 2 gets (x, g), the others 1. */
static void feed(chain *c, float x, float g) {
    const float xs[BATCH] = {1, 1, x, 1}, gs[BATCH] = {1, 1, g, 1};
    CHECK_OK(tw_program_write(c->program, c->x, TW_F32, xs, BATCH));
    CHECK_OK(tw_program_write(c->program, c->g, TW_F32, gs, BATCH));
}

static const struct planted {
    const char *what;
    float x, g, w1, w2;
    bool loss; /* the loss is not finite */
    const char *says;
} planted[] = {
    {"input", NAN, 1, 1, 1, true, "input 'x' holds nan in sample 2"},
    {"input", 1, INFINITY, 1, 1, true, "input 'g' holds inf in sample 2"},
    {"weight", 1, 1, 1, INFINITY, true, "weight 'fc2.weight' holds inf"},
    {"weight", 1, 1, -INFINITY, 1, true, "weight 'fc1.weight' holds -inf"},
    {"activation", 1e20f, 1, 1e20f, 1, true, "activation 'fc1' holds inf in sample 2"},
    {"activation", 1e20f, 1, 1, 1e20f, true, "activation 'fc2' holds inf in sample 2"},
    {"loss", 1e20f, 1e20f, 1, 1, true, "loss 'loss' holds inf"},
    {"gradient", 1, 1e30f, 0, 1e10f, false, "gradient of 'fc1' holds inf in sample 2"},
    {"gradient of a weight", 1e20f, 1e20f, 1, 1e-30f, false, "gradient of 'fc2.weight' holds inf"},
};

static void plants_are_found(bool train) {
    for (size_t i = 0; i < sizeof planted / sizeof *planted; i++) {
        const struct planted *p = &planted[i];
        if (!train && !p->loss) continue;
        chain c;
        open_chain(&c, train, NULL, false);
        set(&c, 1, 1);
        feed(&c, 1, 1);
        CHECK_OK(tw_program_run(c.program));
        const uint64_t updates = tw_model_get_updates(c.model);
        set(&c, p->w1, p->w2);
        feed(&c, p->x, p->g);
        tw_status status = tw_program_run(c.program);
        if (status != TW_ERROR_NUMERIC) fail_msg("%s: status %d", p->what, (int)status);
        if (!strstr(tw_last_error(), p->says)) fail_msg("\"%s\" does not say \"%s\"", tw_last_error(), p->says);
        assert_non_null(strstr(tw_last_error(), "The first that is not finite"));
        assert_non_null(strstr(tw_last_error(), p->loss ? "the loss is" : "the gradient of"));
        float after;
        CHECK_OK(tw_parameter_read(c.model, "fc2.weight", &after, 1));
        assert_true(after == p->w2);
        assert_int_equal(tw_model_get_updates(c.model), updates);
        set(&c, 1, 1); /* and nothing of it stays */
        feed(&c, 1, 1);
        CHECK_OK(tw_program_run(c.program));
        assert_true(tw_program_get_loss(c.program) == 1);
        close_chain(&c);
    }
}

static void plants_are_found_in_training(void **state) {
    (void)state;
    plants_are_found(true);
}
static void plants_are_found_in_inference(void **state) {
    (void)state;
    plants_are_found(false);
}

/* What the run left is there still: the inputs for another run, outputs and gradients for reading. */
static void the_search_leaves_the_run_as_it_was(void **state) {
    (void)state;
    chain c;
    open_chain(&c, true, NULL, false);
    set(&c, 1, 1);
    feed(&c, INFINITY, 1);
    for (int i = 0; i < 2; i++) {
        float loss, gradient;
        CHECK_FAILS(tw_program_run(c.program), TW_ERROR_NUMERIC, "input 'x' holds inf in sample 2");
        CHECK_OK(tw_program_read(c.program, c.loss.value, &loss, 1));
        assert_true(isinf(loss));
        CHECK_OK(tw_program_read_parameter_gradient(c.program, "fc1.weight", &gradient, 1));
        assert_true(isinf(gradient));
    }
    close_chain(&c);
}

/* Samples are counted through the window. */
static void samples_of_a_window_are_named(void **state) {
    (void)state;
    chain c;
    open_chain(&c, true, NULL, true);
    set(&c, 1, 1);
    CHECK_OK(tw_window_open(c.model, 3 * BATCH));
    feed(&c, 1, 1);
    CHECK_OK(tw_program_run_gradients(c.program));
    feed(&c, INFINITY, 1);
    CHECK_FAILS(tw_program_run_gradients(c.program), TW_ERROR_NUMERIC, "input 'x' holds inf in sample 6");
    close_chain(&c);
}

/* With a loss scale it is found when patience ends: in a plain run and at the end of a window. */
static void a_collapse_names_the_culprit(void **state) {
    (void)state;
    const tw_loss_scaling scaling = {.patience = 3, .initial = 4};
    for (int window = 0; window < 2; window++) {
        chain c;
        open_chain(&c, true, &scaling, window);
        set(&c, 1, 1);
        for (int i = 0; i < 3; i++) {
            tw_status status = TW_OK;
            if (window) CHECK_OK(tw_window_open(c.model, BATCH));
            feed(&c, 1e20f, 1e20f);
            if (window) CHECK_OK(tw_program_run_gradients(c.program));
            status = window ? tw_program_run_update(c.program) : tw_program_run(c.program);
            assert_int_equal(status, i < 2 ? TW_OK : TW_ERROR_NUMERIC);
        }
        if (!strstr(tw_last_error(), "update 1 was left out 3 times") ||
            !strstr(tw_last_error(), "loss 'loss' holds inf"))
            fail_msg("\"%s\"", tw_last_error());
        close_chain(&c);
    }
}

/* The run is repeated with the scale it had: without it, all would be finite. */
static void what_the_scale_did_is_found(void **state) {
    (void)state;
    const tw_loss_scaling scaling = {.initial = 0x1p+20, .minimum = 0x1p+19, .patience = 2};
    chain c;
    open_chain(&c, true, &scaling, false);
    set(&c, 1, 1);
    feed(&c, 1, 1e34f);
    CHECK_OK(tw_program_run(c.program));
    CHECK_FAILS(tw_program_run(c.program), TW_ERROR_NUMERIC, "gradient of 'fc2' holds inf in sample 2");
    close_chain(&c);
}

/* Where there is no memory for the search, the message is the plain one. */
static bool refuse_one(void *user, uint64_t index, size_t bytes) {
    (void)bytes;
    return index == *(const uint64_t *)user;
}

static void without_memory_less_is_said(void **state) {
    (void)state;
    chain c;
    open_chain(&c, true, NULL, false);
    set(&c, 1, 1);
    feed(&c, INFINITY, 1);
    bool found = false;
    for (uint64_t k = 0; !found; k++) {
        tw_context_set_memory_hook(c.context, refuse_one, &k);
        CHECK_FAILS(tw_program_run(c.program), TW_ERROR_NUMERIC, "the loss is inf");
        found = strstr(tw_last_error(), "input 'x'") != NULL;
        assert_true(found == (strstr(tw_last_error(), "The first that is not finite") != NULL));
        if (k == 0) assert_false(found);
    }
    tw_context_set_memory_hook(c.context, NULL, NULL);
    close_chain(&c);
}

/* Whole networks, fused, in chunks, images in lanes; with batch norm and dropout: one bad pixel. A device has no chunks to be
 * filled. */
static tw_value *normed(tw_model *model, tw_value *x) {
    x = tw_relu(model, tw_batch_norm(model, tw_conv2d(model, x, 16, 3, NULL), NULL));
    x = tw_residual(model, tw_dropout(model, x, 0.2f), 16, NULL);
    return tw_dense(model, tw_global_avg_pool(model, x), 10, NULL);
}
static tw_value *lenet5(tw_model *model, tw_value *x) { return tw_zoo_lenet5(model, x, 10); }

static void one_bad_pixel(tw_value *(*build)(tw_model *, tw_value *), int channels, int side) {
    const int count = check_device() ? 12 : 48, bad = check_device() ? 7 : 17;
    const int64_t pixels = channels * side * side, all = count * pixels;
    float *images = malloc((size_t)all * sizeof *images);
    int32_t labels[48];
    char named[64];
    tw_context *context;
    tw_model *model;
    tw_program *program;
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    assert_non_null(images);
    CHECK_OK(tw_context_create(&context, check_device_or_cpu(), TW_OPTIONS(context, .threads = 3)));
    CHECK_OK(tw_model_create(&model, context));
    tw_value *x = tw_input(model, channels, side, side), *ids = tw_input_labels(model, NULL), *y = build(model, x);
    tw_loss loss = {tw_cross_entropy(model, y, ids, NULL), 1};
    CHECK_OK(tw_model_build(model, y, TW_OPTIONS(model, .seed = 2)));
    CHECK_OK(
        tw_program_create(&program, model, count,
                          TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1, .optimizer = &sgd)));
    for (int64_t i = 0; i < all; i++) images[i] = (float)(i * 7919 % 1009) / 1009 - 0.5f;
    for (int i = 0; i < count; i++) labels[i] = i % 10;
    for (int round = 0; round < 3; round++) {
        if (round == 1 && build == lenet5) continue;        /* which carries such numbers through */
        if (round == 1) images[bad * pixels + 100] = 3e38f; /* finite, but what is made of it is not for long */
        if (round == 2) images[bad * pixels + 100] = NAN;
        CHECK_OK(tw_program_write(program, x, TW_F32, images, all));
        CHECK_OK(tw_program_write(program, ids, TW_I32, labels, count));
        assert_int_equal(tw_program_run(program), round ? TW_ERROR_NUMERIC : TW_OK);
        snprintf(named, sizeof named, "input 'input1' holds nan in sample %d", bad);
        const char *const says[] = {NULL, "The first that is not finite: ", named};
        if (round && !strstr(tw_last_error(), says[round])) fail_msg("%s", tw_last_error());
    }
    tw_program_destroy(program);
    tw_model_destroy(model);
    tw_context_destroy(context);
    free(images);
}

static void one_bad_pixel_in_a_network(void **state) {
    (void)state;
    one_bad_pixel(normed, 3, 16);
    one_bad_pixel(lenet5, 1, 28);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plants_are_found_in_training),        cmocka_unit_test(plants_are_found_in_inference),
        cmocka_unit_test(the_search_leaves_the_run_as_it_was), cmocka_unit_test(samples_of_a_window_are_named),
        cmocka_unit_test(a_collapse_names_the_culprit),        cmocka_unit_test(what_the_scale_did_is_found),
        cmocka_unit_test(without_memory_less_is_said),         cmocka_unit_test(one_bad_pixel_in_a_network),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
