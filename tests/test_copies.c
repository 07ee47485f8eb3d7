/* Inputs of which every worker has a copy: which ones, that all of them are fed, that not a bit tells, and that a limit of
 * memory does without. */
#include "program_net.h"
#include "backend/cpu/cpu_program.h"

#include <math.h>
#include <string.h>

enum { BATCH = 131, CLASSES = 10, SIDE = 13, PIXELS = SIDE * SIDE, FED = BATCH * PIXELS, HIDDEN = 127, WORKERS = 3 };
enum { WEIGHTS = HIDDEN * PIXELS, MOST_THREADS = 5, STEPS = 3 };

static tw_value *dense(tw_model *model, tw_value *x) {
    return tw_dense(model, tw_relu(model, tw_dense(model, tw_flatten(model, x), HIDDEN, NULL)), CLASSES, NULL);
}
/* The weight is read twice, so its products go by samples; and so does what reads the input beside a product. */
static tw_value *tied(tw_model *model, tw_value *x) {
    tw_value *flat = tw_flatten(model, x), *hidden = tw_dense(model, flat, HIDDEN, NULL);
    hidden = tw_add(model, hidden, tw_dense(model, flat, HIDDEN, TW_OPTIONS(dense, .tied_to = "fc1")));
    return tw_dense(model, tw_relu(model, hidden), CLASSES, NULL);
}
static tw_value *beside(tw_model *model, tw_value *x) {
    tw_value *flat = tw_flatten(model, x), *hidden = tw_relu(model, tw_dense(model, flat, HIDDEN, NULL));
    return tw_add(model, tw_dense(model, hidden, CLASSES, NULL), tw_dense(model, tw_relu(model, flat), CLASSES, NULL));
}

static const tw_optimizer_options sgd = {.size = sizeof sgd, .learning_rate = 0.05f, .momentum = 0.9f};

/* Bytes from one copy to the next; 0: there is one. */
static size_t stride_of(const net *n, const tw_program *program) {
    return twi_copy_stride(&program->buffer[program->value_buffer[n->x->id]]);
}

static size_t stride_with(tw_value *(*build)(tw_model *, tw_value *), int threads, int64_t batch,
                          const tw_program_options *options) {
    net n;
    open_net_on(&n, "cpu", threads, build, 1, SIDE);
    const size_t stride = stride_of(&n, program_with(&n, batch, options, &sgd));
    close_net(&n);
    return stride;
}

static void what_workers_read_whole_is_copied(void **state) {
    (void)state;
    const tw_program_options plain = TW_PROGRAM_OPTIONS_INIT;
    tw_program_options halves = plain, single = plain;
    halves.precision = TW_PRECISION_BF16;
    single.no_fusion = true;
    const size_t stride = stride_with(dense, WORKERS, BATCH, &plain);
    assert_true(stride >= FED * sizeof(float) && stride % 64 == 0);
    assert_int_equal(stride_with(dense, WORKERS, BATCH, &single), stride);
    assert_int_equal(stride_with(dense, 1, BATCH, &plain), 0);
    assert_int_equal(stride_with(dense, WORKERS, 16, &plain), 0);   /* 11 kB */
    assert_int_equal(stride_with(dense, WORKERS, 1600, &plain), 0); /* 1.1 MB */
    assert_int_equal(stride_with(dense, WORKERS, BATCH, &halves), 0);
    assert_int_equal(stride_with(tied, WORKERS, BATCH, &plain), 0);
    assert_int_equal(stride_with(beside, WORKERS, BATCH, &plain), 0);
    net n;
    open_net_on(&n, "cpu", WORKERS, dense, 1, SIDE);
    tw_program *answers;
    CHECK_OK(tw_program_create(&answers, n.model, BATCH, TW_OPTIONS(program, .outputs = &n.logits, .output_count = 1)));
    assert_int_equal(stride_of(&n, answers), 0);
    close_net(&n);
}

/* On threads of the program's own, nobody knows whose cache is whose. */
static void one_by_one(void *user, int count, tw_parallel_task task, void *task_data) {
    (void)user;
    for (int i = 0; i < count; i++) task(task_data, i);
}
static void threads_of_the_program_have_no_copies(void **state) {
    (void)state;
    net n = {0};
    tw_program *program;
    CHECK_OK(tw_context_create(&n.context, "cpu", TW_OPTIONS(context, .threads = WORKERS, .parallel = one_by_one)));
    CHECK_OK(tw_model_create(&n.model, n.context));
    n.x = tw_input(n.model, 1, SIDE, SIDE);
    n.labels = tw_input_labels(n.model, NULL);
    n.logits = dense(n.model, n.x);
    n.loss = (tw_loss){tw_cross_entropy(n.model, n.logits, n.labels, NULL), 1};
    CHECK_OK(tw_model_build(n.model, n.logits, TW_OPTIONS(model, .seed = 1)));
    program = make(&n, BATCH, false);
    assert_int_equal(stride_of(&n, program), 0);
    close_net(&n);
}

/* ---- feeding ---- */

static void check_copies(const net *n, const tw_program *program, const float *fed, int line) {
    const char *copy = twi_program_address(program, program->value_buffer[n->x->id]);
    for (int w = 0; w < WORKERS; w++)
        if (memcmp(copy + (size_t)w * stride_of(n, program), fed, FED * sizeof *fed) != 0)
            fail_msg("line %d: copy %d of %d is not what was fed", line, w, WORKERS);
}

static void every_copy_is_fed(void **state) {
    (void)state;
    static float fed[FED];
    static uint8_t bytes[FED];
    net n;
    open_net_on(&n, "cpu", WORKERS, dense, 1, SIDE);
    tw_program *program = make(&n, BATCH, false);
    assert_true(program->arena_bytes >= WORKERS * stride_of(&n, program));
    for (int i = 0; i < FED; i++) fed[i] = (float)(i % 1013) / 509 - 1;
    CHECK_OK(tw_program_write(program, n.x, TW_F32, fed, FED));
    check_copies(&n, program, fed, __LINE__);
    for (int i = 0; i < FED; i++) fed[i] = bytes[i] = (uint8_t)(i * 31 + i / 97);
    CHECK_OK(tw_program_write(program, n.x, TW_U8, bytes, FED)); /* converted in place */
    check_copies(&n, program, fed, __LINE__);
    for (int i = 0; i < FED; i++) fed[i] = (float)(i % 997);
    CHECK_OK(twi_program_feed(program, n.x, fed)); /* as loaders do */
    check_copies(&n, program, fed, __LINE__);
    close_net(&n);
}

/* As every worker gathers for itself, whoever does what of the rest. */
static void every_copy_is_gathered(void **state) {
    (void)state;
    static uint8_t images[2 * FED];
    static float copied[WEIGHTS], alone[WEIGHTS];
    int32_t labels[2 * BATCH], order[2 * BATCH];
    for (int i = 0; i < 2 * FED; i++) images[i] = (uint8_t)(i * 31 + i / 97);
    for (int i = 0; i < 2 * BATCH; i++) labels[i] = i % CLASSES, order[i] = i * 5 % (2 * BATCH);
    for (int threads = 1; threads <= WORKERS; threads += WORKERS - 1) {
        net n;
        tw_resident *resident;
        open_net_on(&n, "cpu", threads, dense, 1, SIDE);
        CHECK_OK(tw_resident_create(&resident, n.context, TW_U8, images, 2 * BATCH, 1, SIDE, SIDE, labels));
        CHECK_OK(tw_resident_set_order(resident, 1, order, 2 * BATCH));
        tw_program *program = program_with(
            &n, BATCH,
            TW_OPTIONS(program, .source = TW_OPTIONS(source, .resident = resident, .images = n.x, .labels = n.labels,
                                                     .flip = true, .crop_padding = 2, .seed = 3)),
            &sgd);
        const char *first = twi_program_address(program, program->value_buffer[n.x->id]);
        const size_t stride = stride_of(&n, program);
        assert_int_equal(stride > 0, threads > 1);
        for (int i = 0; i < 2; i++) {
            CHECK_OK(tw_program_run(program));
            for (int w = 1; w < threads; w++)
                assert_memory_equal(first, first + (size_t)w * stride, FED * sizeof(float));
        }
        CHECK_OK(tw_parameter_read(n.model, "fc1.weight", threads > 1 ? copied : alone, WEIGHTS));
        tw_program_destroy(program);
        tw_resident_destroy(resident);
        close_net(&n);
    }
    assert_memory_equal(copied, alone, sizeof alone);
}

/* What sums over the batch right behind the gathering is cut as it is where nothing is copied, and where all is fed. */
enum { CUT = 16, WIDE = 128, ASIDE = 3 * 20 * 20 };
static uint64_t learn_beside(int threads, float *statistics) {
    static uint8_t images[CUT * WIDE * WIDE];
    static float aside[CUT * ASIDE];
    int32_t labels[CUT], order[CUT];
    net n;
    tw_resident *resident;
    tw_program *program;
    CHECK_OK(tw_context_create(&n.context, "cpu", TW_OPTIONS(context, .threads = threads)));
    CHECK_OK(tw_model_create(&n.model, n.context));
    n.x = tw_input(n.model, 1, WIDE, WIDE);
    n.labels = tw_input_labels(n.model, NULL);
    tw_value *side = tw_input_shaped(n.model, "side", 3, (int64_t[]){3, 20, 20});
    tw_value *pooled = tw_global_avg_pool(n.model, tw_relu(n.model, tw_batch_norm(n.model, side, NULL)));
    tw_value *hidden = tw_dense(n.model, pooled, 32, NULL);
    n.logits = tw_dense(n.model, tw_add(n.model, hidden, tw_dense(n.model, n.x, 32, NULL)), CLASSES, NULL);
    n.loss = (tw_loss){tw_cross_entropy(n.model, n.logits, n.labels, NULL), 1};
    CHECK_OK(tw_model_build(n.model, n.logits, TW_OPTIONS(model, .seed = 1)));
    for (int i = 0; i < CUT * WIDE * WIDE; i++) images[i] = (uint8_t)(i * 31 + i / 97);
    for (int i = 0; i < CUT * ASIDE; i++) aside[i] = (float)(i * 37 % 1013) / 509;
    for (int i = 0; i < CUT; i++) labels[i] = i % CLASSES, order[i] = i;
    CHECK_OK(tw_resident_create(&resident, n.context, TW_U8, images, CUT, 1, WIDE, WIDE, labels));
    CHECK_OK(tw_resident_set_order(resident, 0, order, CUT));
    program = program_with(
        &n, CUT,
        TW_OPTIONS(program, .source = TW_OPTIONS(source, .resident = resident, .images = n.x, .labels = n.labels)),
        &sgd);
    assert_int_equal(stride_of(&n, program) > 0, threads > 1);
    for (int i = 0; i < program->step_count && threads > 1; i++)
        if (strcmp(program->step[i].kernel->name, "gather.bytes") == 0)
            assert_int_equal(program->segment[program->step[i].segment].step_count, 1);
    CHECK_OK(tw_program_write(program, side, TW_F32, aside, CUT * ASIDE));
    CHECK_OK(tw_program_run(program));
    CHECK_OK(tw_parameter_read(n.model, "bn1.running_mean", statistics, 3));
    const uint64_t plan = tw_program_get_plan_hash(program);
    assert_int_equal(tw_program_get_plan_hash(make(&n, CUT, false)), plan);
    tw_program_destroy(program);
    tw_resident_destroy(resident);
    close_net(&n);
    return plan;
}

static void copies_cut_nothing_else(void **state) {
    (void)state;
    float alone[3], copied[3];
    const uint64_t plan = learn_beside(1, alone);
    assert_int_equal(learn_beside(WORKERS, copied), plan);
    assert_memory_equal(alone, copied, sizeof alone);
}

/* The product of the first layer, and its weight's gradient: `stride` bytes further on every worker's input. */
static void check_readers(const net *n, const tw_program *program, const void *first, size_t stride) {
    const twi_cpu_program *bound = program->prepared;
    const int input = program->value_buffer[n->x->id];
    int readers = 0;
    for (int i = 0; i < program->step_count; i++)
        for (int o = 0; o < program->step[i].kernel->operand_count; o++) {
            const twi_step *step = &program->step[i];
            if (step->operand[o] < 0 || twi_program_root(program, step->operand[o]) != input) continue;
            for (int w = 0; w < WORKERS; w++)
                assert_ptr_equal(bound->worker[w].call[bound->step[i].call].operand[o].data,
                                 (const char *)first + (size_t)w * stride);
            readers++;
        }
    assert_int_equal(readers, 2);
}

static void every_worker_reads_its_own(void **state) {
    (void)state;
    net n;
    open_net_on(&n, "cpu", WORKERS, dense, 1, SIDE);
    const tw_program *program = make(&n, BATCH, false);
    check_readers(&n, program, twi_program_address(program, program->value_buffer[n.x->id]), stride_of(&n, program));
    close_net(&n);
}

/* What the host lends has no copies; what is written behind it has them again. */
static void all_workers_read_what_is_lent(void **state) {
    (void)state;
    static float lent[FED] __attribute__((aligned(64)));
    net n;
    open_net_on(&n, "cpu", WORKERS, dense, 1, SIDE);
    tw_program *program = make(&n, BATCH, false);
    const char *first = twi_program_address(program, program->value_buffer[n.x->id]);
    for (int i = 0; i < FED; i++) lent[i] = (float)(i % 911);
    for (int round = 0; round < 2; round++) {
        CHECK_OK(tw_program_lend(program, n.x, TW_F32, lent, FED));
        check_readers(&n, program, lent, 0);
        lent[round] = -1;
        CHECK_OK(tw_program_write(program, n.x, TW_F32, lent, FED));
        check_readers(&n, program, first, stride_of(&n, program));
        check_copies(&n, program, lent, __LINE__);
    }
    CHECK_OK(tw_program_lend(program, n.x, TW_F32, lent, FED));
    lent[2] = -2;
    CHECK_OK(twi_program_feed(program, n.x, lent)); /* as loaders do */
    check_readers(&n, program, first, stride_of(&n, program));
    check_copies(&n, program, lent, __LINE__);
    close_net(&n);
}

/* ---- results ---- */

static void write_batch(net *n, tw_program *program, int step) {
    static float images[FED];
    int32_t labels[BATCH];
    for (int i = 0; i < FED; i++) images[i] = (float)((i * 37 + step * 11) % 101) / 50 - 1;
    for (int i = 0; i < BATCH; i++) labels[i] = (i + step) % CLASSES;
    CHECK_OK(tw_program_write(program, n->x, TW_F32, images, FED));
    CHECK_OK(tw_program_write(program, n->labels, TW_I32, labels, BATCH));
}

static void learn(int threads, size_t memory_limit, float *weights) {
    net n;
    open_net_on(&n, "cpu", threads, dense, 1, SIDE);
    tw_program *program = program_with(&n, BATCH, TW_OPTIONS(program, .memory_limit = memory_limit), &sgd);
    assert_int_equal(stride_of(&n, program) > 0, threads > 1 && !memory_limit);
    for (int i = 0; i < STEPS; i++) {
        write_batch(&n, program, i);
        CHECK_OK(tw_program_run(program));
    }
    CHECK_OK(tw_parameter_read(n.model, "fc1.weight", weights, WEIGHTS));
    close_net(&n);
}

static void any_number_of_copies_gives_the_same_bits(void **state) {
    (void)state;
    static float first[WEIGHTS], weights[WEIGHTS];
    learn(1, 0, first);
    for (int threads = 2; threads <= MOST_THREADS; threads++) {
        learn(threads, 0, weights);
        assert_memory_equal(first, weights, sizeof first);
    }
}

/* The search looks at one copy, with a program that has no others. */
static void what_is_not_finite_is_found_in_what_was_fed(void **state) {
    (void)state;
    net n;
    open_net_on(&n, "cpu", WORKERS, dense, 1, SIDE);
    tw_program *program = make(&n, BATCH, false);
    static float images[FED];
    write_batch(&n, program, 0);
    for (int i = 0; i < FED; i++) images[i] = (float)(i % 7);
    images[FED - 5] = NAN;
    CHECK_OK(tw_program_write(program, n.x, TW_F32, images, FED));
    assert_int_equal(tw_program_run(program), TW_ERROR_NUMERIC);
    assert_non_null(strstr(tw_last_error(), "holds nan in sample 130"));
    close_net(&n);
}

/* ---- memory ---- */

/* Under a limit of memory, the program's or the context's, nothing is taken for speed alone. */
static void a_limit_of_memory_leaves_one_copy(void **state) {
    (void)state;
    static float free_weights[WEIGHTS], weights[WEIGHTS];
    const size_t plenty = (size_t)1 << 30;
    learn(WORKERS, 0, free_weights);
    learn(WORKERS, plenty, weights);
    assert_memory_equal(free_weights, weights, sizeof weights);
    for (int limited = 0; limited < 2; limited++) {
        net n;
        open_net_on(&n, "cpu", WORKERS, dense, 1, SIDE);
        if (limited) tw_context_set_memory_limit(n.context, plenty);
        const tw_program *program = make(&n, BATCH, false);
        assert_int_equal(stride_of(&n, program) > 0, !limited);
        close_net(&n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_workers_read_whole_is_copied),
        cmocka_unit_test(threads_of_the_program_have_no_copies),
        cmocka_unit_test(every_copy_is_fed),
        cmocka_unit_test(every_copy_is_gathered),
        cmocka_unit_test(copies_cut_nothing_else),
        cmocka_unit_test(every_worker_reads_its_own),
        cmocka_unit_test(all_workers_read_what_is_lent),
        cmocka_unit_test(any_number_of_copies_gives_the_same_bits),
        cmocka_unit_test(what_is_not_finite_is_found_in_what_was_fed),
        cmocka_unit_test(a_limit_of_memory_leaves_one_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
