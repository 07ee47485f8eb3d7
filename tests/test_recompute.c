/* Forward steps that are done again in the backward: not a bit of what is learned differs, memory does; and what a memory limit
 * makes of a plan. */
#include "program_net.h"

enum { CLASSES = 10, BATCH_MOST = 24 };

/* A device that is named may be an emulated one, which is slow. */
static int side(void) { return check_device() ? 8 : 16; }
static int batch_of(void) { return check_device() ? 5 : BATCH_MOST; }
static int step_count(void) { return check_device() ? 2 : check_sampled() ? 5 : 20; }

/* ---- nets ---- */

/* Branches of several lengths, a view, dropout whose masks are drawn again, pooling with indices. */
static tw_value *branches(tw_model *model, tw_value *x) {
    x = tw_relu(model, tw_batch_norm(model, tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1)), NULL));
    for (int i = 0; i < 3; i++) {
        tw_value *shortcut = x;
        x = tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1));
        x = tw_dropout(model, tw_relu(model, tw_batch_norm(model, x, NULL)), 0.2f);
        x = tw_batch_norm(model, tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1)), NULL);
        x = tw_relu(model, tw_add(model, x, shortcut));
    }
    x = tw_flatten(model, tw_max_pool(model, x, 2, NULL));
    x = tw_relu(model, tw_batch_norm(model, tw_dense(model, x, 32, NULL), NULL));
    return tw_dense(model, tw_dropout(model, x, 0.5f), CLASSES, NULL);
}

/* No branch at all; every buffer is a border. */
static tw_value *chain(tw_model *model, tw_value *x) {
    for (int i = 0; i < 5; i++) {
        x = tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1));
        x = tw_dropout(model, tw_relu(model, tw_batch_norm(model, x, NULL)), 0.1f);
    }
    return tw_dense(model, tw_global_avg_pool(model, x), CLASSES, NULL);
}

static tw_value *lenet(tw_model *model, tw_value *x) { return tw_zoo_lenet5(model, x, CLASSES); }

/* ---- programs ---- */

typedef struct plan {
    tw_recompute recompute;
    double share; /* of what activations and workspaces of the plain plan take; 0: no limit */
    bool no_fusion;
} plan;

static tw_status try_plan(net *n, int64_t batch, const plan *p, tw_program **out) {
    tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.learning_rate = 0.05f;
    sgd.momentum = 0.9f;
    options.train = true;
    options.losses = &n->loss;
    options.loss_count = 1;
    options.outputs = &n->logits;
    options.output_count = 1;
    options.optimizer = &sgd;
    options.recompute = TW_RECOMPUTE_OFF;
    options.no_fusion = p->no_fusion;
    if (p->share > 0) {
        CHECK_OK(tw_program_create(out, n->model, batch, &options));
        const tw_program_stats s = tw_program_get_stats(*out);
        const size_t planned = s.arena_bytes + s.scratch_bytes, fixed = twi_program_bytes(*out) - planned;
        options.memory_limit = fixed + (size_t)(p->share * (double)planned);
        tw_program_destroy(*out);
    }
    options.recompute = p->recompute;
    options.plan_only = n->context->plans_only; /* or two of them would share the larger one's arena */
    return tw_program_create(out, n->model, batch, &options);
}

static tw_program *make_plan(net *n, int64_t batch, const plan *p) {
    tw_program *program;
    CHECK_OK(try_plan(n, batch, p, &program));
    return program;
}

/* ---- not a bit ---- */

typedef struct learned {
    float *values;
    size_t count;
} learned;

static void append(learned *l, const float *values, size_t count) {
    l->values = realloc(l->values, (l->count + count) * sizeof *values);
    assert_non_null(l->values);
    memcpy(l->values + l->count, values, count * sizeof *values);
    l->count += count;
}

static void append_parameters(learned *l, net *n, tw_program *program) {
    for (int i = 0; i < tw_model_count_parameters(n->model); i++) {
        tw_parameter parameter;
        size_t count = 1;
        CHECK_OK(tw_model_get_parameter(n->model, i, &parameter));
        for (int k = 0; k < parameter.rank; k++) count *= (size_t)parameter.dims[k];
        float *values = malloc(count * sizeof *values);
        assert_non_null(values);
        CHECK_OK(tw_parameter_read(n->model, parameter.name, values, (int64_t)count));
        append(l, values, count);
        if (parameter.learned)
            CHECK_OK(tw_program_read_parameter_gradient(program, parameter.name, values, (int64_t)count));
        if (parameter.learned) append(l, values, count);
        free(values);
    }
}

/* Losses and logits of every step, gradients of some, and in the end all parameters and running statistics. */
static learned train(net *n, tw_program *program, int channels) {
    learned l = {0};
    const int batch = batch_of(), steps = step_count();
    const int64_t pixels = (int64_t)batch * channels * side() * side();
    float *images = malloc((size_t)pixels * sizeof *images), logits[BATCH_MOST * CLASSES];
    int32_t labels[BATCH_MOST];
    uint32_t draw = 1;
    assert_non_null(images);
    for (int step = 0; step < steps; step++) {
        for (int64_t i = 0; i < pixels; i++) {
            draw = draw * 1664525u + 1013904223u;
            images[i] = (float)(draw >> 8) / (float)(1 << 23) - 1;
        }
        for (int i = 0; i < batch; i++) labels[i] = (i * 7 + step) % CLASSES;
        CHECK_OK(tw_program_write(program, n->x, TW_F32, images, pixels));
        CHECK_OK(tw_program_write(program, n->labels, TW_I32, labels, batch));
        CHECK_OK(tw_program_run(program));
        const float loss = (float)tw_program_get_loss(program);
        append(&l, &loss, 1);
        CHECK_OK(tw_program_read(program, n->logits, logits, batch * CLASSES));
        append(&l, logits, (size_t)batch * CLASSES);
        if (step % 5 == 4 || step + 1 == steps) append_parameters(&l, n, program);
    }
    free(images);
    return l;
}

static learned learn(tw_value *(*build)(tw_model *, tw_value *), int channels, const plan *p, tw_program_stats *stats,
                     uint64_t *hash) {
    net n;
    open_net(&n, build, channels, side());
    tw_program *program = make_plan(&n, batch_of(), p);
    *stats = tw_program_get_stats(program);
    *hash = tw_program_get_plan_hash(program);
    learned l = train(&n, program, channels);
    tw_program_destroy(program);
    close_net(&n);
    return l;
}

static void assert_bits(tw_value *(*build)(tw_model *, tw_value *), int channels, bool no_fusion) {
    const plan plans[] = {{TW_RECOMPUTE_OFF, 0, no_fusion},
                          {TW_RECOMPUTE_BLOCKS, 0, no_fusion},
                          {TW_RECOMPUTE_AUTO, 0.9, no_fusion},
                          {TW_RECOMPUTE_AUTO, 0.85, no_fusion}};
    tw_program_stats plain, again;
    uint64_t hash, other;
    learned expected = learn(build, channels, &plans[0], &plain, &hash);
    assert_int_equal(plain.recomputed_steps, 0);
    int most = 0;
    for (size_t i = 1; i < sizeof plans / sizeof *plans; i++) {
        learned l = learn(build, channels, &plans[i], &again, &other);
        assert_int_equal(l.count, expected.count);
        assert_true(again.recomputed_steps > 0 || again.workspace_limit);
        assert_int_equal(again.steps, plain.steps + again.recomputed_steps);
        assert_true(again.arena_bytes < plain.arena_bytes);
        assert_true(again.flops >= plain.flops);
        most = again.recomputed_steps > most ? again.recomputed_steps : most;
        if (again.workspace_limit && other != hash) { /* sums are cut into fewer groups, which shows */
            free(l.values);
            continue;
        }
        assert_int_equal(other, hash);
        for (size_t k = 0; k < l.count; k++)
            if (memcmp(&l.values[k], &expected.values[k], sizeof(float)) != 0)
                fail_msg("plan %zu: value %zu of %zu is %.9g, without recomputation %.9g", i, k, l.count,
                         (double)l.values[k], (double)expected.values[k]);
        free(l.values);
    }
    assert_true(most > 0);
    free(expected.values);
}

static void not_a_bit_differs_with_branches(void **state) {
    (void)state;
    assert_bits(branches, 3, false);
    assert_bits(branches, 3, true);
}

static void not_a_bit_differs_in_a_chain(void **state) {
    (void)state;
    assert_bits(chain, 1, false);
}

static void not_a_bit_differs_in_resnet20(void **state) {
    (void)state;
    assert_bits(resnet20, 3, false);
}

/* ---- what is done again ---- */

static void no_sum_over_the_batch_is_done_twice(void **state) {
    (void)state;
    net n;
    open_net(&n, branches, 3, side());
    tw_program *program = make_plan(&n, batch_of(), &(plan){.recompute = TW_RECOMPUTE_BLOCKS});
    int again = 0;
    for (int i = 0; i < program->step_count; i++) {
        const twi_step *step = &program->step[i];
        if (!step->again) continue;
        again++;
        assert_int_equal(step->part, TWI_PART_BACKWARD);
        for (int o = 0; o < step->kernel->operand_count; o++) {
            if (step->operand[o] < 0 || step->kernel->operand[o].access == TWI_READ) continue;
            assert_int_equal(step->kernel->operand[o].reach, TWI_BATCHED);
            assert_int_equal(program->buffer[step->operand[o]].source, TWI_SOURCE_ARENA);
        }
    }
    assert_int_equal(again, tw_program_get_stats(program).recomputed_steps);
    assert_non_null(strstr(tw_program_dump(program, TW_PASS_MEMORY), " again    "));
    tw_program_destroy(program);
    close_net(&n);
}

/* A chunk of LeNet goes through forward and backward at once: on the CPU there is nothing to drop. */
static void what_lives_within_a_chunk_is_not_done_again(void **state) {
    (void)state;
    net n;
    open_net(&n, lenet, 1, 28);
    if (n.context->backend->chunked) {
        tw_program *program = make_plan(&n, 64, &(plan){.recompute = TW_RECOMPUTE_BLOCKS});
        assert_int_equal(tw_program_get_stats(program).recomputed_steps, 0);
        tw_program_destroy(program);
    }
    close_net(&n);
}

/* ---- limits ---- */

static void limits_are_kept_or_refused_with_the_floor(void **state) {
    (void)state;
    static const double shares[] = {0.9, 0.7, 0.5};
    net n;
    tw_program *program;
    open_net(&n, resnet20, 3, 32);
    double work = 0;
    tw_program *plain = make_plan(&n, 64, &(plan){.recompute = TW_RECOMPUTE_OFF});
    const tw_program_stats s = tw_program_get_stats(plain);
    tw_program_destroy(plain);
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        program = make_plan(&n, 64, &(plan){.recompute = TW_RECOMPUTE_AUTO, .share = shares[i]});
        const tw_program_stats limited = tw_program_get_stats(program);
        assert_true((double)(limited.arena_bytes + limited.scratch_bytes) <=
                    shares[i] * (double)(s.arena_bytes + s.scratch_bytes));
        assert_true(limited.recomputed_work >= work && limited.recomputed_work < 0.35);
        work = limited.recomputed_work;
        tw_program_destroy(program);
    }
    CHECK_FAILS(try_plan(&n, 64, &(plan){.recompute = TW_RECOMPUTE_AUTO, .share = 0.05}, &program),
                TW_ERROR_OUT_OF_MEMORY, "the least that batch 64 was planned with is");
    CHECK_FAILS(try_plan(&n, 64, &(plan){.recompute = TW_RECOMPUTE_OFF, .share = 0.5}, &program),
                TW_ERROR_OUT_OF_MEMORY, "batch 64, without recomputation, was planned with");
    assert_null(program);
    program = make_plan(&n, 64, &(plan){.recompute = TW_RECOMPUTE_AUTO, .share = 1.0});
    assert_int_equal(tw_program_get_stats(program).recomputed_steps,
                     0); /* the context still works, and changes nothing for nothing */
    tw_program_destroy(program);
    close_net(&n);
}

/* Results depend on how sums are cut: no step is cut otherwise for standing beside one that is done again. */
static void assert_cut_alike(const tw_program *plain, const tw_program *again) {
    for (int i = 0, k = 0; i < again->step_count; i++) {
        const twi_step *step = &again->step[i];
        const twi_segment *segment = &again->segment[step->segment];
        assert_true(segment->chunk == step->chunk && segment->groups == step->groups);
        if (!step->again) {
            assert_ptr_equal(step->kernel, plain->step[k].kernel);
            assert_true(step->chunk == plain->step[k].chunk && step->groups == plain->step[k].groups);
            k++;
            continue;
        }
        int original = 0;
        while (again->step[original].kernel != step->kernel || again->step[original].node != step->node) original++;
        assert_false(again->step[original].again);
        assert_true(again->step[original].chunk == step->chunk && again->step[original].groups == step->groups);
    }
}

static void chunks_and_groups_are_those_of_the_plain_plan(void **state) {
    (void)state;
    tw_value *(*const builds[])(tw_model *, tw_value *) = {resnet20, branches, chain};
    for (size_t b = 0; b < sizeof builds / sizeof *builds; b++)
        for (int batch = 7; batch < 100; batch += 19) {
            net n;
            open_net(&n, builds[b], 3, 32);
            tw_program *plain = make_plan(&n, batch, &(plan){.recompute = TW_RECOMPUTE_OFF}),
                       *blocks = make_plan(&n, batch, &(plan){.recompute = TW_RECOMPUTE_BLOCKS});
            assert_cut_alike(plain, blocks);
            tw_program_destroy(plain);
            tw_program_destroy(blocks);
            close_net(&n);
        }
}

/* The floor that is named can be planned with. */
static void the_floor_is_one(void **state) {
    (void)state;
    net n;
    tw_program *program;
    open_net(&n, resnet20, 3, 32);
    tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
    options.train = true;
    options.losses = &n.loss;
    options.loss_count = 1;
    options.memory_limit = 1;
    CHECK_FAILS(tw_program_create(&program, n.model, 64, &options), TW_ERROR_OUT_OF_MEMORY, "raise the limit");
    const char *floor = strstr(tw_last_error(), "was planned with is");
    assert_non_null(floor);
    options.memory_limit = (size_t)strtoull(strchr(floor, '(') + 1, NULL, 10);
    CHECK_OK(tw_program_create(&program, n.model, 64, &options));
    assert_true(twi_program_bytes(program) <= options.memory_limit);
    tw_program_destroy(program);
    close_net(&n);
}

static void count_lines(void *user, tw_log_level level, const char *line) {
    int *lines = user;
    if (level == TW_LOG_INFO && strstr(line, "plan of batch") && strstr(line, "more work")) ++*lines;
}

/* A network that is only planned: at least 40 % less for at most 35 % more work. */
static void plan_resnet50(const char *device) {
    net n = {0};
    int lines = 0;
    if (tw_context_create(
            &n.context, device,
            TW_OPTIONS(context, .threads = 2, .log = count_lines, .log_user = &lines, .log_level = TW_LOG_INFO))) {
        print_message("not planned on '%s': %s\n", device, tw_last_error());
        return;
    }
    CHECK_OK(tw_model_create(&n.model, n.context));
    n.x = tw_input(n.model, 3, 224, 224);
    n.labels = tw_input_labels(n.model, NULL);
    n.logits = tw_zoo_resnet50(n.model, n.x, 1000, NULL);
    n.loss = (tw_loss){tw_cross_entropy(n.model, n.logits, n.labels, NULL), 1};
    CHECK_OK(tw_model_build(n.model, n.logits, NULL));
    tw_program *plain = make_plan(&n, 32, &(plan){.recompute = TW_RECOMPUTE_OFF}),
               *blocks = make_plan(&n, 32, &(plan){.recompute = TW_RECOMPUTE_BLOCKS});
    const tw_program_stats a = tw_program_get_stats(plain), b = tw_program_get_stats(blocks);
    const double share = (double)(b.arena_bytes + b.scratch_bytes) / (double)(a.arena_bytes + a.scratch_bytes);
    print_message("ResNet-50, batch 32, %s: %.1f %% of the memory, %.1f %% more work, %.1f %% more FLOPs\n", device,
                  100 * share, 100 * b.recomputed_work, 100 * (b.flops / a.flops - 1));
    assert_true(share <= 0.6);
    assert_true(b.flops <= 1.35 * a.flops && b.bytes <= 1.35 * a.bytes && b.recomputed_work <= 0.35);
    assert_int_equal(lines, 1);
    assert_cut_alike(plain, blocks);
    tw_program_destroy(plain);
    tw_program_destroy(blocks);
    close_net(&n);
}

static void resnet50_is_planned_with_much_less(void **state) {
    (void)state;
    plan_resnet50("plan:cpu");
    plan_resnet50("plan:h200");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(not_a_bit_differs_with_branches),
        cmocka_unit_test(not_a_bit_differs_in_a_chain),
        cmocka_unit_test(not_a_bit_differs_in_resnet20),
        cmocka_unit_test(no_sum_over_the_batch_is_done_twice),
        cmocka_unit_test(what_lives_within_a_chunk_is_not_done_again),
        cmocka_unit_test(limits_are_kept_or_refused_with_the_floor),
        cmocka_unit_test(chunks_and_groups_are_those_of_the_plain_plan),
        cmocka_unit_test(the_floor_is_one),
        cmocka_unit_test(resnet50_is_planned_with_much_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
