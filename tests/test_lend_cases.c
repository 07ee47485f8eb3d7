/* How lending and writing an input follow on each other, what sees a lent one beside the runs, and where it is copied after
 * all or refused. */
#include "lend_net.h"

#include <math.h>

/* ---- how one follows on the other ---- */

static void lending_and_writing_follow_on_each_other(void **state) {
    (void)state;
    static const feeding order[] = {LENT, WRITTEN, WRITTEN, LENT, LENT, WRITTEN, LENT};
    enum { FEEDINGS = sizeof order / sizeof *order };
    const tw_program_options plain = TW_PROGRAM_OPTIONS_INIT;
    for (int i = 0; i < NETWORKS; i += lends() ? 1 : 2) /* devices may be emulated */
        for (int threads = 1; threads <= (lends() ? MOST_THREADS : 1); threads += 2) {
            double loss[2][FEEDINGS];
            for (int mixed = 0; mixed < 2; mixed++) {
                net n;
                open_on_threads(&n, &networks[i], threads);
                tw_program *program = program_with(&n, BATCH, &plain, &sgd);
                for (int s = 0; s < FEEDINGS; s++)
                    loss[mixed][s] = step(&n, program, s, mixed ? order[s] : WRITTEN, NULL);
                close_net(&n);
            }
            assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
        }
}

/* As what was written does. */
static void what_is_lent_stays_for_all_runs(void **state) {
    (void)state;
    const tw_program_options plain = TW_PROGRAM_OPTIONS_INIT;
    double loss[2][STEPS];
    for (int lent = 0; lent < 2; lent++) {
        net n;
        float *kept = NULL;
        open_on_threads(&n, &networks[0], 2);
        tw_program *program = program_with(&n, BATCH, &plain, &sgd);
        loss[lent][0] = step(&n, program, 0, lent ? KEPT : WRITTEN, &kept);
        for (int s = 1; s < STEPS; s++) {
            write_labels(&n, program, s);
            CHECK_OK(tw_program_run(program));
            loss[lent][s] = tw_program_get_loss(program);
        }
        close_net(&n);
        if (kept) page_end_put(kept, FED * sizeof *kept);
    }
    assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
}

static void another_program_discards_what_is_lent(void **state) {
    (void)state;
    static float images[FED] __attribute__((aligned(64)));
    const tw_program_options plain = TW_PROGRAM_OPTIONS_INIT;
    double loss[2];
    for (int between = 0; between < 2; between++) {
        net n;
        tw_program *other;
        open_on_threads(&n, &networks[0], 2);
        tw_program *program = program_with(&n, BATCH, &plain, &sgd);
        CHECK_OK(
            tw_program_create(&other, n.model, BATCH, TW_OPTIONS(program, .outputs = &n.logits, .output_count = 1)));
        fill(images, FED, 0);
        lend(&n, program, images);
        write_labels(&n, program, 0);
        if (between) {
            lend(&n, other, images);
            CHECK_OK(tw_program_run(other));
            CHECK_FAILS(tw_program_run(program), TW_ERROR_STATE, "feed them again");
            lend(&n, program, images);
            write_labels(&n, program, 0);
        }
        CHECK_OK(tw_program_run(program));
        loss[between] = tw_program_get_loss(program);
        close_net(&n);
    }
    assert_memory_equal(&loss[0], &loss[1], sizeof loss[0]);
}

/* A larger program moves the arena; times are kept by binding the plan anew. */
static void what_is_bound_anew_reads_what_is_lent(void **state) {
    (void)state;
    const tw_program_options plain = TW_PROGRAM_OPTIONS_INIT;
    float *kept = NULL;
    net n;
    open_on_threads(&n, &networks[0], 2);
    tw_program *program = program_with(&n, BATCH, &plain, &sgd);
    (void)step(&n, program, 0, KEPT, &kept);
    (void)program_with(&n, 5 * BATCH, &plain, &sgd);
    CHECK_FAILS(tw_program_run(program), TW_ERROR_STATE, "feed them again");
    page_end_put(kept, FED * sizeof *kept);
    (void)step(&n, program, 1, LENT, NULL);
    close_net(&n);

    double loss[2];
    for (int timed = 0; timed < 2 && lends(); timed++) {
        open_on_threads(&n, &networks[0], 2);
        program = program_with(&n, BATCH, &plain, &sgd);
        (void)step(&n, program, 0, KEPT, &kept);
        if (timed) CHECK_OK(tw_program_set_timing(program, true));
        assert_ptr_equal(lent_to(&n, program), kept);
        CHECK_OK(tw_program_write(program, n.x, TW_F32, kept, FED));
        lend(&n, program, kept);
        fill(kept, FED, 7); /* if the program had a copy, it would not see that */
        if (timed) CHECK_OK(tw_program_set_timing(program, false));
        CHECK_OK(tw_program_run(program));
        loss[timed] = tw_program_get_loss(program);
        close_net(&n);
        page_end_put(kept, FED * sizeof *kept);
    }
    if (lends()) assert_memory_equal(&loss[0], &loss[1], sizeof loss[0]);
}

/* ---- reading, searching, memory ---- */

static void a_lent_input_is_read_as_it_is(void **state) {
    (void)state;
    static float images[FED] __attribute__((aligned(64))), answer[FED];
    for (int named_output = 0; named_output < 2; named_output++) {
        net n;
        tw_program *program;
        open_on_threads(&n, &networks[0], 2);
        tw_value *const outputs[] = {n.logits, n.x};
        CHECK_OK(tw_program_create(&program, n.model, BATCH,
                                   TW_OPTIONS(program, .outputs = outputs, .output_count = 1 + named_output)));
        fill(images, FED, 3);
        lend(&n, program, images);
        CHECK_OK(tw_program_run(program));
        CHECK_OK(tw_program_read(program, n.x, answer, FED));
        assert_memory_equal(answer, images, sizeof answer);
        close_net(&n);
    }
}

static void what_is_not_finite_is_found_in_what_is_lent(void **state) {
    (void)state;
    static float images[FED] __attribute__((aligned(64)));
    const tw_program_options plain = TW_PROGRAM_OPTIONS_INIT;
    for (int i = 0; i < 2; i++) {
        net n;
        open_on_threads(&n, &networks[i ? 2 : 0], 2);
        tw_program *program = program_with(&n, BATCH, &plain, &sgd);
        fill(images, FED, 0);
        feed_copied(&n, program, images); /* in the arena all is well */
        images[FED - 5] = NAN;
        lend(&n, program, images);
        write_labels(&n, program, 0);
        CHECK_FAILS(tw_program_run(program), TW_ERROR_NUMERIC, "input 'input1' holds nan in sample 47");
        (void)step(&n, program, 1, LENT, NULL);
        close_net(&n);
    }
}

/* An update that fails does not look into a batch that the run before it was the last to read. */
static void an_update_reads_nothing_that_is_lent(void **state) {
    (void)state;
    const tw_loss_scaling scaling = {.patience = 1};
    net n;
    open_net_on(&n, check_device_or_cpu(), 2, mlp, 1, SIDE);
    tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
    options.loss_scaling = &scaling;
    options.on_non_finite = TW_NON_FINITE_SKIP;
    tw_program *program = program_with(&n, BATCH, &options, &sgd);
    float *images = page_end_get(FED * sizeof(float));
    images[20 * PIXELS] = INFINITY;
    lend(&n, program, images);
    write_labels(&n, program, 0);
    CHECK_OK(tw_program_run_gradients(program));
    page_end_put(images, FED * sizeof(float));
    CHECK_FAILS(tw_program_run_update(program), TW_ERROR_NUMERIC, "1 times in a row");
    close_net(&n);
}

static void lending_takes_no_memory(void **state) {
    (void)state;
    static float images[FED] __attribute__((aligned(64)));
    const tw_program_options plain = TW_PROGRAM_OPTIONS_INIT;
    net n;
    open_on_threads(&n, &networks[0], 3);
    tw_program *program = program_with(&n, BATCH, &plain, &sgd);
    const tw_program_stats before = tw_program_get_stats(program);
    fill(images, FED, 0);
    feed_copied(&n, program, images);
    const tw_memory_stats held = tw_context_get_memory(n.context);
    lend(&n, program, images);
    feed_copied(&n, program, images);
    lend(&n, program, images);
    const tw_memory_stats now = tw_context_get_memory(n.context);
    const tw_program_stats after = tw_program_get_stats(program);
    assert_int_equal(now.allocations, held.allocations);
    assert_int_equal(after.arena_bytes, before.arena_bytes);
    assert_int_equal(after.input_bytes, before.input_bytes);
    close_net(&n);
}

/* ---- copies after all ---- */

/* The data may be changed at once: nobody looks at them again. */
static void check_copied(net *n, tw_program *program, tw_dtype dtype, void *data, int64_t count) {
    double loss[2];
    assert_false(program->train && program->merged);
    for (int lent = 0; lent < 2; lent++) {
        CHECK_OK((lent ? tw_program_lend : tw_program_write)(program, n->x, dtype, data, count));
        assert_null(lent_to(n, program));
        if (lent) memset(data, 0, (size_t)count * tw_dtype_size(dtype));
        write_labels(n, program, 0);
        CHECK_OK(tw_program_run_gradients(program));
        loss[lent] = tw_program_get_loss(program);
    }
    assert_memory_equal(&loss[0], &loss[1], sizeof loss[0]);
}

static void what_cannot_be_read_there_is_copied(void **state) {
    (void)state;
    static float images[FED + 16] __attribute__((aligned(64)));
    static uint16_t halves[FED];
    static uint8_t bytes[FED];
    static float coloured[3 * FED] __attribute__((aligned(64)));
    tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
    net n;
    open_on_threads(&n, &networks[0], 2);
    tw_program *program = program_with(&n, BATCH, &options, &sgd);
    for (int offset = 1; offset < 16; offset += 3) { /* aligned to 4 and 16 bytes */
        fill(images, FED, 0);
        lend(&n, program, images); /* what is lent is given up for it */
        fill(images + offset, FED, 0);
        check_copied(&n, program, TW_F32, images + offset, FED);
    }
    fill(images, FED, 0);
    float *const odd = (float *)(void *)((char *)images + 1);
    memmove(odd, images, FED * sizeof *images);
    check_copied(&n, program, TW_F32, odd, FED);
    for (int i = 0; i < FED; i++) bytes[i] = (uint8_t)(i * 31 + i / 97), halves[i] = (uint16_t)(0x3000 + i % 997);
    check_copied(&n, program, TW_U8, bytes, FED);
    check_copied(&n, program, TW_F16, halves, FED);
    close_net(&n);

    options.precision = TW_PRECISION_BF16;
    open_on_threads(&n, &networks[0], 2);
    program = program_with(&n, BATCH, &options, &sgd);
    fill(images, FED, 0);
    check_copied(&n, program, TW_F32, images, FED);
    close_net(&n);

    options.precision = TW_PRECISION_F32;
    open_net_on(&n, check_device_or_cpu(), 2, lenet, 3, SIDE); /* N,H,W,C in the program */
    program = program_with(&n, BATCH, &options, &sgd);
    fill(coloured, 3 * FED, 0);
    check_copied(&n, program, TW_F32, coloured, 3 * FED);
    close_net(&n);
}

/* ---- several inputs ---- */

/* Each is lent by itself, and may be lent what another has. */
static void inputs_are_lent_one_by_one(void **state) {
    (void)state;
    enum { WIDE = 100 };
    static float data[2][BATCH * WIDE] __attribute__((aligned(64)));
    static const struct {
        bool lent[2];
        int from[2];
    } ways[] = {{{false, false}, {0, 1}}, {{true, false}, {0, 1}},  {{false, true}, {0, 1}},
                {{true, true}, {0, 1}},   {{false, false}, {1, 1}}, {{true, true}, {1, 1}}};
    double loss[6];
    net n = {0};
    tw_value *x[2];
    CHECK_OK(tw_context_create(&n.context, check_device_or_cpu(), TW_OPTIONS(context, .threads = 2)));
    CHECK_OK(tw_model_create(&n.model, n.context));
    x[0] = tw_input_shaped(n.model, "left", 1, (const int64_t[]){WIDE});
    x[1] = tw_input_shaped(n.model, "right", 1, (const int64_t[]){WIDE});
    n.labels = tw_input_labels(n.model, NULL);
    n.logits = tw_add(n.model, tw_dense(n.model, x[0], CLASSES, NULL), tw_dense(n.model, x[1], CLASSES, NULL));
    n.loss = (tw_loss){tw_cross_entropy(n.model, n.logits, n.labels, NULL), 1};
    CHECK_OK(tw_model_build(n.model, n.logits, TW_OPTIONS(model, .seed = 1)));
    tw_program *program = program_with(&n, BATCH, TW_OPTIONS(program, .no_fusion = true), &sgd);
    for (int i = 0; i < 6; i++) {
        for (int k = 0; k < 2; k++) {
            fill(data[k], BATCH * WIDE, k);
            CHECK_OK((ways[i].lent[k] ? tw_program_lend : tw_program_write)(program, x[k], TW_F32,
                                                                            data[ways[i].from[k]], BATCH * WIDE));
        }
        write_labels(&n, program, 0);
        CHECK_OK(tw_program_run_gradients(program));
        loss[i] = tw_program_get_loss(program);
    }
    for (int i = 1; i < 4; i++) assert_memory_equal(&loss[i], &loss[0], sizeof loss[0]);
    assert_memory_equal(&loss[5], &loss[4], sizeof loss[4]);
    assert_memory_not_equal(&loss[4], &loss[0], sizeof loss[0]);
    close_net(&n);
}

/* ---- errors ---- */

static void errors_are_those_of_writing(void **state) {
    (void)state;
    static float images[FED] __attribute__((aligned(64)));
    static int64_t labels[BATCH];
    const tw_program_options plain = TW_PROGRAM_OPTIONS_INIT;
    net n, other;
    open_on_threads(&n, &networks[0], 2);
    open_on_threads(&other, &networks[0], 1);
    tw_program *program = program_with(&n, BATCH, &plain, &sgd);
    CHECK_FAILS(tw_program_lend(NULL, n.x, TW_F32, images, FED), TW_ERROR_ARGUMENT, "tw_program_lend: ");
    CHECK_FAILS(tw_program_lend(program, NULL, TW_F32, images, FED), TW_ERROR_ARGUMENT, "NULL");
    CHECK_FAILS(tw_program_lend(program, n.x, TW_F32, NULL, FED), TW_ERROR_ARGUMENT, "NULL");
    CHECK_FAILS(tw_program_lend(program, n.x, TW_F32, images, FED - 1), TW_ERROR_ARGUMENT, "elements, got");
    CHECK_FAILS(tw_program_lend(program, n.x, TW_I32, images, FED), TW_ERROR_ARGUMENT,
                "tw_program_lend: 'input1' takes f32");
    CHECK_FAILS(tw_program_lend(program, n.labels, TW_F32, images, BATCH), TW_ERROR_ARGUMENT, "takes i32");
    CHECK_FAILS(tw_program_lend(program, n.logits, TW_F32, images, BATCH * CLASSES), TW_ERROR_ARGUMENT,
                "is computed, not fed");
    CHECK_FAILS(tw_program_lend(program, other.x, TW_F32, images, FED), TW_ERROR_ARGUMENT, "another model");
    labels[1] = INT64_MAX;
    CHECK_FAILS(tw_program_lend(program, n.labels, TW_I64, labels, BATCH), TW_ERROR_LABEL, "tw_program_lend: ");
    /* What fails changes nothing. */
    labels[1] = 3;
    fill(images, FED, 0);
    lend(&n, program, images);
    CHECK_OK(tw_program_lend(program, n.labels, TW_I64, labels, BATCH)); /* are copied */
    CHECK_FAILS(tw_program_lend(program, n.x, TW_F32, images, 1), TW_ERROR_ARGUMENT, "elements, got");
    assert_ptr_equal(lent_to(&n, program), lends() ? images : NULL);
    CHECK_OK(tw_program_run(program));
    close_net(&other);
    close_net(&n);
}

static void what_is_gathered_is_not_lent(void **state) {
    (void)state;
    static uint8_t bytes[FED];
    static float images[FED] __attribute__((aligned(64)));
    int32_t labels[BATCH] = {0};
    net n;
    tw_resident *resident;
    open_on_threads(&n, &networks[0], 2);
    CHECK_OK(tw_resident_create(&resident, n.context, TW_U8, bytes, BATCH, 1, SIDE, SIDE, labels));
    tw_value *const outputs[] = {n.x}; /* kept, but written in every run */
    tw_program *program =
        program_with(&n, BATCH,
                     TW_OPTIONS(program, .outputs = outputs, .output_count = 1,
                                .source = TW_OPTIONS(source, .resident = resident, .images = n.x, .labels = n.labels)),
                     &sgd);
    CHECK_FAILS(tw_program_lend(program, n.x, TW_F32, images, FED), TW_ERROR_ARGUMENT, "is gathered");
    assert_int_equal(program->plan.buffer[program->value_buffer[n.x->id]].lendable, 0);
    tw_program_destroy(program);
    tw_resident_destroy(resident);
    close_net(&n);
}

static void nothing_is_lent_where_nothing_runs(void **state) {
    (void)state;
    static float images[FED] __attribute__((aligned(64)));
    net n;
    open_on_threads(&n, &networks[0], 2);
    tw_program *program = program_with(&n, BATCH, TW_OPTIONS(program, .plan_only = true), &sgd);
    CHECK_FAILS(tw_program_lend(program, n.x, TW_F32, images, FED), TW_ERROR_STATE, "tw_program_lend");
    close_net(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lending_and_writing_follow_on_each_other),
        cmocka_unit_test(what_is_lent_stays_for_all_runs),
        cmocka_unit_test(another_program_discards_what_is_lent),
        cmocka_unit_test(what_is_bound_anew_reads_what_is_lent),
        cmocka_unit_test(a_lent_input_is_read_as_it_is),
        cmocka_unit_test(what_is_not_finite_is_found_in_what_is_lent),
        cmocka_unit_test(an_update_reads_nothing_that_is_lent),
        cmocka_unit_test(lending_takes_no_memory),
        cmocka_unit_test(what_cannot_be_read_there_is_copied),
        cmocka_unit_test(inputs_are_lent_one_by_one),
        cmocka_unit_test(errors_are_those_of_writing),
        cmocka_unit_test(what_is_gathered_is_not_lent),
        cmocka_unit_test(nothing_is_lent_where_nothing_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
