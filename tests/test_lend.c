/* Inputs that the host lends: runs read them where they lie, to their last byte and not behind it, with the bits of those
 * that were written. */
#define _GNU_SOURCE /* setenv */
#include "lend_net.h"

/* ---- all that is learned, in one array ---- */

typedef struct learned {
    float *value;
    int64_t count;
    double loss[STEPS];
} learned;

static void read_learned(const net *n, learned *out) {
    for (int pass = 0; pass < 2; pass++) {
        out->count = 0;
        for (int i = 0; i < tw_model_count_parameters(n->model); i++) {
            tw_parameter parameter;
            CHECK_OK(tw_model_get_parameter(n->model, i, &parameter));
            int64_t count = 1;
            for (int axis = 0; axis < parameter.rank; axis++) count *= parameter.dims[axis];
            if (pass) CHECK_OK(tw_parameter_read(n->model, parameter.name, out->value + out->count, count));
            out->count += count;
        }
        if (!pass) out->value = test_malloc((size_t)out->count * sizeof *out->value);
    }
}

static void assert_same(const learned *written, learned *lent, const char *what, int threads) {
    if (memcmp(written->loss, lent->loss, sizeof lent->loss) != 0)
        fail_msg("%s, %d threads: losses are other ones than of what was written", what, threads);
    if (memcmp(written->value, lent->value, (size_t)lent->count * sizeof *lent->value) != 0)
        fail_msg("%s, %d threads: weights are other ones than of what was written", what, threads);
    test_free(lent->value);
}

static learned learn(const named *network, int threads, const tw_program_options *options, feeding how) {
    net n;
    learned out;
    open_on_threads(&n, network, threads);
    tw_program *program = program_with(&n, BATCH, options, &sgd);
    for (int i = 0; i < STEPS; i++) out.loss[i] = step(&n, program, i, how, NULL);
    read_learned(&n, &out);
    close_net(&n);
    return out;
}

/* ---- bits ---- */

static void what_is_lent_gives_the_bits_of_what_is_written(void **state) {
    (void)state;
    const tw_program_options plain = TW_PROGRAM_OPTIONS_INIT;
    for (int i = 0; i < NETWORKS; i++) {
        learned written = learn(&networks[i], 1, &plain, WRITTEN);
        for (int threads = 1; threads <= (lends() ? MOST_THREADS : 1); threads++) {
            learned lent = learn(&networks[i], threads, &plain, LENT);
            assert_same(&written, &lent, networks[i].name, threads);
        }
        test_free(written.value);
    }
}

static void so_it_is_whatever_the_program_is_made_for(void **state) {
    (void)state;
    tw_program_options options[5];
    for (int i = 0; i < 5; i++) options[i] = (tw_program_options)TW_PROGRAM_OPTIONS_INIT;
    options[0].no_fusion = true;
    options[1].recompute = TW_RECOMPUTE_BLOCKS;
    options[2].on_non_finite = TW_NON_FINITE_IGNORE;
    options[3].memory_limit = (size_t)1 << 30;
    options[4].accumulate = true;
    for (int i = 0; i < NETWORKS && lends(); i++)
        for (int k = 0; k < 5; k++) {
            if (check_sampled() && (i + k) % 3) continue;
            learned written = learn(&networks[i], 2, &options[k], WRITTEN);
            learned lent = learn(&networks[i], 2, &options[k], LENT);
            assert_same(&written, &lent, networks[i].name, 2);
            test_free(written.value);
        }
}

/* By no implementation but the specification, and by the narrower ones. */
static void so_it_is_with_other_implementations(void **state) {
    (void)state;
    static const char *const kinds[] = {"specification", "baseline", "avx2"};
    const tw_program_options plain = TW_PROGRAM_OPTIONS_INIT;
    const char *given = getenv("TALWEG_CPU");
    for (int k = 0; k < 3 && lends() && !given; k++)
        for (int i = 0; i < NETWORKS; i++) {
            if (k == 0 && !networks[i].side) continue; /* slow */
            if (check_sampled() && (i + k) % 3) continue;
            setenv("TALWEG_CPU", kinds[k], 1);
            learned written = learn(&networks[i], 2, &plain, WRITTEN);
            learned lent = learn(&networks[i], 2, &plain, LENT);
            assert_same(&written, &lent, kinds[k], 2);
            test_free(written.value);
        }
    if (!given) unsetenv("TALWEG_CPU");
}

static void one_by_one(void *user, int count, tw_parallel_task task, void *task_data) {
    (void)user;
    while (count-- > 0) task(task_data, count);
}

static void so_it_is_on_threads_of_the_program(void **state) {
    (void)state;
    const tw_program_options plain = TW_PROGRAM_OPTIONS_INIT;
    for (int i = 0; i < NETWORKS && lends(); i++) {
        learned written = learn(&networks[i], 1, &plain, WRITTEN), lent;
        net n = {0};
        const int side = networks[i].side ? networks[i].side : SIDE;
        CHECK_OK(tw_context_create(&n.context, "cpu", TW_OPTIONS(context, .threads = 3, .parallel = one_by_one)));
        CHECK_OK(tw_model_create(&n.model, n.context));
        n.x = tw_input(n.model, 1, side, side);
        n.labels = tw_input_labels(n.model, NULL);
        n.logits = networks[i].build(n.model, n.x);
        n.loss = (tw_loss){tw_cross_entropy(n.model, n.logits, n.labels, NULL), 1};
        CHECK_OK(tw_model_build(n.model, n.logits, TW_OPTIONS(model, .seed = 1)));
        tw_program *program = program_with(&n, BATCH, &plain, &sgd);
        for (int s = 0; s < STEPS; s++) lent.loss[s] = step(&n, program, s, LENT, NULL);
        read_learned(&n, &lent);
        assert_same(&written, &lent, networks[i].name, 3);
        close_net(&n);
        test_free(written.value);
    }
}

/* Without training, where what depends on weights alone stays from run to run. */
static void answers_are_those_of_what_is_written(void **state) {
    (void)state;
    static float images[2][FED] __attribute__((aligned(64)));
    static float answer[2][BATCH * CLASSES];
    for (int i = 0; i < NETWORKS; i++) {
        net n;
        tw_program *program;
        open_on_threads(&n, &networks[i], 2);
        CHECK_OK(
            tw_program_create(&program, n.model, BATCH, TW_OPTIONS(program, .outputs = &n.logits, .output_count = 1)));
        for (int s = 0; s < STEPS; s++) {
            for (int lent = 0; lent < 2; lent++) {
                fill(images[lent], FED, s);
                (lent ? lend : feed_copied)(&n, program, images[lent]);
                CHECK_OK(tw_program_run(program));
                CHECK_OK(tw_program_read(program, n.logits, answer[lent], BATCH * CLASSES));
            }
            assert_memory_equal(answer[0], answer[1], sizeof answer[0]);
        }
        close_net(&n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_lent_gives_the_bits_of_what_is_written),
        cmocka_unit_test(so_it_is_whatever_the_program_is_made_for),
        cmocka_unit_test(so_it_is_with_other_implementations),
        cmocka_unit_test(so_it_is_on_threads_of_the_program),
        cmocka_unit_test(answers_are_those_of_what_is_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
