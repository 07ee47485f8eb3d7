/* Values that lie feature by feature between a large dense layer and a small one: where that is done, that steps by ranges of
 * features compute what their specification says, and that neither threads nor what is recomputed show in a bit. */
#include "impl_call.h"
#include "program_net.h"
#include "backend/attrs.h"
#include "ops/op.h"

#include <math.h>
#include <string.h>

enum { SIDE = 17, PIXELS = SIDE * SIDE, HIDDEN = 72, CLASSES = 10, BATCH = 37, STEPS = 3 };

/* ---- kernels ---- */

/* An operand feature by feature: of samples x features. */
static void by_features(twi_call *call, int o, int64_t samples, int64_t features, float *data) {
    impl_rows(call, o, TWI_REAL, features, samples, data);
    call->operand[o].shape = (twi_shape){2, {samples, features}};
    call->operand[o].stride[0] = 1;
    call->operand[o].stride[1] = samples;
}
static void row_major(twi_call *call, int o, int64_t rows, int64_t columns, float *data) {
    impl_operand(call, o, TWI_REAL, &(impl_shape){2, {rows, columns}, false}, data);
}

/* Runs a kernel part by part on what its implementation and its specification each write to, and compares the outputs. */
static void compare(const char *name, twi_isa isa, twi_call *call, const int *outputs, int64_t grain, int64_t range) {
    const twi_kernel *kernel = twi_registry_find_kernel(&twi_registry_builtin, name);
    assert_non_null(kernel);
    call->kernel = kernel;
    twi_call specified = *call;
    for (const int *o = outputs; *o >= 0; o++) {
        if (!call->operand[*o].data) continue;
        specified.operand[*o].data = impl_floats(twi_shape_count(&call->operand[*o].shape));
    }
    for (int64_t begin = 0; begin < range; begin += grain) {
        call->begin = specified.begin = begin;
        call->end = specified.end = begin + grain < range ? begin + grain : range;
        impl_run(twi_cpu_features_impls, name, isa, call);
        kernel->run(&specified);
    }
    for (const int *o = outputs; *o >= 0; o++)
        for (int64_t i = 0; call->operand[*o].data && i < twi_shape_count(&call->operand[*o].shape); i++)
            impl_close(((const float *)specified.operand[*o].data)[i], ((const float *)call->operand[*o].data)[i], 2e-5,
                       name, i);
}

static const int64_t sizes[][3] = {{16, 64, 10}, {37, 72, 10}, {64, 128, 1}, {65, 131, TWI_FEATURE_BLOCK},
                                   {17, 95, 3},  {300, 64, 7}};

static void kernels_compute_what_is_specified(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa)
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int biased = 0; biased < 2; biased++) {
            const int64_t samples = sizes[s][0], in = sizes[s][1], out = sizes[s][2],
                          blocks = (in + TWI_FEATURE_BLOCK - 1) / TWI_FEATURE_BLOCK,
                          grain = TWI_FEATURE_BLOCK * (1 + (int64_t)s % 2);
            float *x = impl_floats(samples * in), *w = impl_floats(in * out), *dy = impl_floats(samples * out);
            const impl_shape parts = {1, {blocks * out * samples}, false};
            twi_call forward = {0}, join = {0}, data = {0}, weights = {0};
            by_features(&forward, 0, samples, in, x);
            row_major(&forward, 1, out, in, w);
            row_major(&forward, 2, blocks * out, samples, impl_floats(impl_count(&parts)));
            forward.operand[2].shape = (twi_shape){3, {blocks, out, samples}};
            forward.operand[2].stride[0] = out * samples;
            forward.operand[2].stride[1] = samples;
            forward.operand[2].stride[2] = 1;
            compare("dense.forward_parts", (twi_isa)isa, &forward, (int[]){2, -1}, grain, in);
            /* Of a chunk in the middle of the batch. */
            join.operand[0] = forward.operand[2];
            join.sample = 5;
            impl_rows(&join, 1, TWI_REAL, 1, out, biased ? impl_floats(out) : NULL);
            row_major(&join, 2, samples - 7, out, impl_floats((samples - 7) * out));
            compare("dense.join_parts", (twi_isa)isa, &join, (int[]){2, -1}, 1, 1);
            float *passed = impl_floats(samples * in); /* by a relu, which lets what is no number pass */
            passed[samples + 3] = NAN;
            row_major(&data, 0, samples, out, dy);
            row_major(&data, 1, out, in, w);
            by_features(&data, 2, samples, in, passed);
            by_features(&data, 3, samples, in, impl_floats(samples * in));
            impl_rows(&data, 4, TWI_ACC, 1, in, impl_floats(in));
            compare("dense.backward_data_relu_features", (twi_isa)isa, &data, (int[]){3, 4, -1}, grain, in);
            by_features(&weights, 0, samples, in, x);
            row_major(&weights, 1, samples, out, dy);
            row_major(&weights, 2, out, in, impl_floats(in * out));
            impl_rows(&weights, 3, TWI_ACC, 1, out, biased ? impl_floats(out) : NULL);
            compare("dense.backward_weights_columns", (twi_isa)isa, &weights, (int[]){2, 3, -1}, grain, in);
            impl_release();
        }
}

/* ---- programs ---- */

static tw_value *mlp_of(tw_model *model, tw_value *x, int hidden, int classes) {
    return tw_dense(model, tw_relu(model, tw_dense(model, tw_flatten(model, x), hidden, NULL)), classes, NULL);
}
static tw_value *mlp(tw_model *model, tw_value *x) { return mlp_of(model, x, HIDDEN, CLASSES); }
static tw_value *narrow(tw_model *model, tw_value *x) { return mlp_of(model, x, 2 * TWI_FEATURE_BLOCK - 1, CLASSES); }
static tw_value *many_classes(tw_model *model, tw_value *x) { return mlp_of(model, x, HIDDEN, TWI_FEATURE_BLOCK + 1); }
static tw_value *unbiased(tw_model *model, tw_value *x) {
    x = tw_relu(model, tw_dense(model, x, HIDDEN, NULL));
    return tw_dense(model, x, CLASSES, TW_OPTIONS(dense, .no_bias = true));
}
static tw_value *dropped_out(tw_model *model, tw_value *x) {
    x = tw_dropout(model, tw_relu(model, tw_dense(model, x, HIDDEN, NULL)), 0.5);
    return tw_dense(model, x, CLASSES, NULL);
}
static tw_value *two_heads(tw_model *model, tw_value *x) {
    x = tw_relu(model, tw_dense(model, x, HIDDEN, NULL));
    return tw_add(model, tw_dense(model, x, CLASSES, NULL), tw_dense(model, x, CLASSES, NULL));
}
/* One head learns, the other one answers alone. */
static tw_value *second_head(tw_model *model, tw_value *x) {
    x = tw_relu(model, tw_dense(model, x, HIDDEN, NULL));
    tw_value *first = tw_dense(model, x, CLASSES, NULL);
    (void)tw_dense(model, x, 3, TW_OPTIONS(dense, .name = "answer"));
    return first;
}
static tw_value *deep(tw_model *model, tw_value *x) {
    return mlp(model, tw_relu(model, tw_dense(model, x, HIDDEN, NULL)));
}

/* The large layer and the first small one are a segment of the way forward, three steps one of the way back; but for
 * one that updates the weight as well. */
static bool goes_by_features(const tw_program *program, int small) {
    int found = 0, merged = 0, segments = 0, last = -1;
    for (int i = 0; i < program->step_count; i++) {
        if (!program->step[i].features) continue;
        assert_int_equal(program->step[i].kernel->split, TWI_BY_RANGE);
        found++;
        merged += strcmp(program->step[i].kernel->name, "dense.backward_weights_sgd") == 0;
        segments += program->step[i].segment != last;
        last = program->step[i].segment;
    }
    assert_true(found == 0 || (found == 4 + small && segments == 1 + small + merged));
    return found > 0;
}

static tw_program *train(net *n, int64_t batch, const tw_program_options *options) {
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.momentum = 0.9f;
    return program_with(n, batch, options, &sgd);
}

static void what_goes_by_features(void **state) {
    (void)state;
    const struct {
        tw_value *(*layers)(tw_model *, tw_value *);
        int64_t batch;
        tw_program_options options;
        bool features;
    } ways[] = {{mlp, BATCH, TW_PROGRAM_OPTIONS_INIT, true},
                {unbiased, BATCH, TW_PROGRAM_OPTIONS_INIT, true},
                {narrow, BATCH, TW_PROGRAM_OPTIONS_INIT, false},
                {many_classes, BATCH, TW_PROGRAM_OPTIONS_INIT, false},
                {dropped_out, BATCH, TW_PROGRAM_OPTIONS_INIT, false},
                {two_heads, BATCH, TW_PROGRAM_OPTIONS_INIT, false},
                {deep, BATCH, TW_PROGRAM_OPTIONS_INIT, false},
                {mlp, 15, TW_PROGRAM_OPTIONS_INIT, false},
                {mlp, 16, TW_PROGRAM_OPTIONS_INIT, true}};
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        net n;
        open_net_on(&n, "cpu", 2, ways[w].layers, 1, SIDE);
        assert_int_equal(goes_by_features(train(&n, ways[w].batch, &ways[w].options), 1), ways[w].features);
        close_net(&n);
    }
    net n;
    tw_program_options options[4] = {TW_PROGRAM_OPTIONS_INIT, TW_PROGRAM_OPTIONS_INIT, TW_PROGRAM_OPTIONS_INIT,
                                     TW_PROGRAM_OPTIONS_INIT};
    open_net_on(&n, "cpu", 2, mlp, 1, SIDE);
    tw_value *hidden = tw_model_find(n.model, "relu1");
    options[0].outputs = options[1].gradients = &hidden;
    options[0].output_count = options[1].gradient_count = 1;
    options[2].no_fusion = true;
    options[3].precision = TW_PRECISION_BF16;
    for (int i = 0; i < 4; i++) assert_false(goes_by_features(train(&n, BATCH, &options[i]), 1));
    close_net(&n);
}

static void step(net *n, tw_program *program, int turn) {
    static float images[BATCH * PIXELS];
    int32_t labels[BATCH];
    for (int i = 0; i < BATCH * PIXELS; i++) images[i] = (float)((i * 37 + turn * 11) % 101) / 50 - 1;
    for (int i = 0; i < BATCH; i++) labels[i] = (i + turn) % CLASSES;
    CHECK_OK(tw_program_write(program, n->x, TW_F32, images, BATCH * PIXELS));
    CHECK_OK(tw_program_write(program, n->labels, TW_I32, labels, BATCH));
    CHECK_OK(tw_program_run(program));
}

enum { PARAMETERS = HIDDEN * (PIXELS + 1) + CLASSES * (HIDDEN + 1) };

/* All parameters after some steps; what there is not stays as it is. */
static void learn(tw_value *(*layers)(tw_model *, tw_value *), int threads, const tw_program_options *options,
                  float *learned) {
    static const char *const names[] = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"};
    static const int counts[] = {HIDDEN * PIXELS, HIDDEN, CLASSES * HIDDEN, CLASSES};
    net n;
    open_net_on(&n, "cpu", threads, layers, 1, SIDE);
    tw_program *program = train(&n, BATCH, options);
    assert_int_equal(goes_by_features(program, 1), !options->no_fusion);
    for (int i = 0; i < STEPS; i++) step(&n, program, i);
    for (int p = 0; p < 4; learned += counts[p], p++)
        if (tw_model_find(n.model, names[p])) CHECK_OK(tw_parameter_read(n.model, names[p], learned, counts[p]));
    close_net(&n);
}

static void parameters_are_those_of_single_steps(void **state) {
    (void)state;
    static float ranged[PARAMETERS], single[PARAMETERS];
    for (int biased = 0; biased < 2; biased++) {
        tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
        learn(biased ? mlp : unbiased, 2, &options, ranged);
        options.no_fusion = true;
        learn(biased ? mlp : unbiased, 2, &options, single);
        for (int i = 0; i < PARAMETERS; i++) impl_close(single[i], ranged[i], 1e-5, "parameter", i);
    }
}

/* Of several small layers each has its own parts and sums. */
static void every_small_layer_answers(void **state) {
    (void)state;
    float first[2][BATCH * CLASSES], answer[2][BATCH * 3];
    for (int single = 0; single < 2; single++) {
        net n;
        open_net_on(&n, "cpu", 2, second_head, 1, SIDE);
        tw_value *outputs[] = {n.logits, tw_model_find(n.model, "answer")};
        tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
        options.outputs = outputs;
        options.output_count = 2;
        options.no_fusion = single;
        tw_program *program = train(&n, BATCH, &options);
        assert_int_equal(goes_by_features(program, 2), !single);
        step(&n, program, 0);
        CHECK_OK(tw_program_read(program, outputs[0], first[single], BATCH * CLASSES));
        CHECK_OK(tw_program_read(program, outputs[1], answer[single], BATCH * 3));
        close_net(&n);
    }
    for (int i = 0; i < BATCH * CLASSES; i++) impl_close(first[1][i], first[0][i], 1e-5, "first head", i);
    for (int i = 0; i < BATCH * 3; i++) impl_close(answer[1][i], answer[0][i], 1e-5, "second head", i);
}

/* Nor does it show whether a gradient goes into its weight as it is made, or is measured. */
static void neither_threads_nor_recomputing_show(void **state) {
    (void)state;
    static float first[PARAMETERS], other[PARAMETERS];
    for (int ignore = 0; ignore < 2; ignore++) {
        tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
        options.on_non_finite = ignore ? TW_NON_FINITE_IGNORE : TW_NON_FINITE_STOP;
        if (!ignore) learn(mlp, 1, &options, first);
        for (int threads = 1; threads <= 7; threads++) {
            learn(mlp, threads, &options, other);
            assert_memory_equal(first, other, sizeof first);
        }
        options.recompute = TW_RECOMPUTE_BLOCKS;
        learn(mlp, 2, &options, other);
        assert_memory_equal(first, other, sizeof first);
    }
}

/* The sample is told whose features, or whose sums of them, are not finite. */
static void a_culprit_is_named_with_its_sample(void **state) {
    (void)state;
    static float images[BATCH * PIXELS], weights[HIDDEN * PIXELS];
    static const char *const found[] = {"activation 'relu1' holds inf in sample 21",
                                        "activation 'fc2' holds inf in sample 21"};
    const int32_t labels[BATCH] = {0};
    const tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
    for (int layer = 0; layer < 2; layer++) {
        net n;
        open_net_on(&n, "cpu", 2, mlp, 1, SIDE);
        tw_program *program = train(&n, BATCH, &options);
        assert_true(goes_by_features(program, 1));
        for (int i = 0; i < HIDDEN * PIXELS; i++) weights[i] = layer ? 1 : 1e30f;
        CHECK_OK(tw_parameter_write(n.model, "fc1.weight", weights, HIDDEN * PIXELS));
        for (int i = 0; i < CLASSES * HIDDEN; i++) weights[i] = 1e10f;
        if (layer) CHECK_OK(tw_parameter_write(n.model, "fc2.weight", weights, CLASSES * HIDDEN));
        for (int i = 0; i < PIXELS; i++) images[21 * PIXELS + i] = 1e30f;
        CHECK_OK(tw_program_write(program, n.x, TW_F32, images, BATCH * PIXELS));
        CHECK_OK(tw_program_write(program, n.labels, TW_I32, labels, BATCH));
        CHECK_FAILS(tw_program_run(program), TW_ERROR_NUMERIC, found[layer]);
        close_net(&n);
    }
}

/* What is little to do is not cut, since one worker does it; what is more, is. */
static void small_batches_are_joined_in_one_go(void **state) {
    (void)state;
    const int64_t batches[] = {BATCH, 100 * BATCH};
    const tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
    for (int many = 0; many < 2; many++) {
        net n;
        int joins = 0;
        open_net_on(&n, "cpu", 2, mlp, 1, SIDE);
        const tw_program *program = train(&n, batches[many], &options);
        for (int i = 0; i < program->step_count; i++) {
            if (strcmp(program->step[i].kernel->name, "dense.join_parts") != 0) continue;
            assert_int_equal(program->step[i].groups > 1, many);
            assert_int_equal(program->step[i].chunk < batches[many], many);
            joins++;
        }
        assert_int_equal(joins, 1);
        close_net(&n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_compute_what_is_specified),
        cmocka_unit_test(what_goes_by_features),
        cmocka_unit_test(parameters_are_those_of_single_steps),
        cmocka_unit_test(neither_threads_nor_recomputing_show),
        cmocka_unit_test(every_small_layer_answers),
        cmocka_unit_test(small_batches_are_joined_in_one_go),
        cmocka_unit_test(a_culprit_is_named_with_its_sample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
