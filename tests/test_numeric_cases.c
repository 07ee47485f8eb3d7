/* The specification of losses, metrics and dropout on small recorded numbers: conventions where implementations differ.
 * Values marked PyTorch come from version 1.13.1, the others from the formulas by hand. */
#include "spec_call.h"
#include "backend/attrs.h"

#include <stdlib.h>

/* ---- losses ---- */

typedef struct loss_result {
    float loss, gradient[16];
} loss_result;

/* Cross-entropy through its three kernels, or through the fused one in place of the logits. */
static loss_result cross_entropy(twi_control *control, bool fused, int64_t rows, int64_t classes, const float *x,
                                 const int32_t *labels, float seed, float smoothing, int64_t sample) {
    loss_result result = {0};
    float logp[16];
    const twi_cross_entropy_attrs attrs = {smoothing};
    const twi_call empty = {.attrs = &attrs, .control = control, .node = 5, .sample = sample};
    if (fused) {
        twi_call both = empty;
        memcpy(result.gradient, x, (size_t)(rows * classes) * sizeof *x);
        OPERAND(&both, result.gradient, rows, classes);
        OPERAND(&both, labels, rows);
        OPERAND(&both, &seed, 1);
        OPERAND(&both, &result.loss, 1);
        OPERAND(&both, result.gradient, rows, classes);
        spec_run("softmax_cross_entropy.both", &both);
        return result;
    }
    twi_call log_softmax = empty, loss = empty, backward = empty;
    OPERAND(&log_softmax, x, rows, classes);
    OPERAND(&log_softmax, logp, rows, classes);
    spec_run("cross_entropy.log_softmax", &log_softmax);
    OPERAND(&loss, logp, rows, classes);
    OPERAND(&loss, labels, rows);
    OPERAND(&loss, &result.loss, 1);
    spec_run("cross_entropy.loss", &loss);
    OPERAND(&backward, logp, rows, classes);
    OPERAND(&backward, labels, rows);
    OPERAND(&backward, &seed, 1);
    OPERAND(&backward, result.gradient, rows, classes);
    spec_run("cross_entropy.backward", &backward);
    return result;
}

/* Mean 0.5337137 over three samples, 0.7337137 with smoothing 0.2; a seed of a third gives the gradient of the mean. */
static void label_smoothing_convention(void **state) {
    (void)state;
    const float x[] = {2, 1, 0, 0, 0, 3, 0.5f, 0.5f, 0.5f};
    const int32_t labels[] = {0, 2, 1};
    for (int fused = 0; fused < 2; fused++) {
        twi_control control = {0};
        loss_result plain = cross_entropy(&control, fused, 3, 3, x, labels, 1.0f / 3, 0, 0);
        CHECK(&plain.loss, 1e-6, 3 * 0.5337137);
        CHECK(plain.gradient, 1e-6, -0.1115863, 0.0815762, 0.0300102);
        loss_result smoothed = cross_entropy(&control, fused, 3, 3, x, labels, 1.0f / 3, 0.2f, 0);
        CHECK(&smoothed.loss, 1e-6, 3 * 0.7337137);
        /* Targets 0.8 + 0.2/3 and 0.2/3. */
        CHECK(smoothed.gradient, 1e-6, -0.1115863 + 0.4 / 9, 0.0815762 - 0.2 / 9, 0.0300102 - 0.2 / 9);
        assert_int_equal(control.fault.code, TW_OK);
    }
}

static void huge_logits_have_their_true_loss(void **state) {
    (void)state;
    static const struct {
        float x[3];
        int64_t classes;
        int32_t label;
        double loss, gradient[3];
    } rows[] = {
        {{1000, 0}, 2, 1, 1000, {1, -1}},
        {{1000, 0}, 2, 0, 0, {0, 0}},
        {{1e8f, 1e8f}, 2, 0, 0.6931472, {-0.5, 0.5}},
        {{60000, -60000, 0}, 3, 1, 120000, {1, -1, 0}},
        {{60000, -60000, 0}, 3, 2, 60000, {1, 0, -1}},
    };
    for (int64_t i = 0; i < COUNT(rows); i++)
        for (int fused = 0; fused < 2; fused++) {
            twi_control control = {0};
            loss_result found = cross_entropy(&control, fused, 1, rows[i].classes, rows[i].x, &rows[i].label, 1, 0, 0);
            spec_check(__LINE__, &found.loss, 1, &rows[i].loss, 1e-6);
            spec_check(__LINE__, found.gradient, rows[i].classes, rows[i].gradient, 1e-6);
        }
}

/* An infinite or missing number must be seen in the loss, whichever class it stands at. */
static void infinite_logits_are_not_silent(void **state) {
    (void)state;
    const float bad[] = {INFINITY, NAN};
    for (int64_t b = 0; b < COUNT(bad); b++)
        for (int place = 0; place < 3; place++)
            for (int fused = 0; fused < 2; fused++) {
                twi_control control = {0};
                float x[] = {1, 2, 3};
                const int32_t label = 1;
                x[place] = bad[b];
                loss_result found = cross_entropy(&control, fused, 1, 3, x, &label, 1, 0, 0);
                assert_false(isfinite(found.loss));
            }
    /* A class ruled out is no trouble unless it is the label. */
    const float ruled_out[] = {-INFINITY, 0, 0};
    const int32_t label[] = {1, 0};
    for (int fused = 0; fused < 2; fused++) {
        twi_control control = {0};
        loss_result found = cross_entropy(&control, fused, 1, 3, ruled_out, &label[0], 1, 0, 0);
        CHECK(&found.loss, 1e-6, 0.6931472);
        CHECK(found.gradient, 1e-6, 0, -0.5, 0.5);
        assert_true(isinf(cross_entropy(&control, fused, 1, 3, ruled_out, &label[1], 1, 0, 0).loss));
    }
}

/* Labels 3 and -1 of 3 classes: a fault with place and value, no gradient from it; then a good batch passes. */
static void labels_outside_raise_a_fault(void **state) {
    (void)state;
    const float x[] = {2, 1, 0, 0, 0, 3, 0.5f, 0.5f, 0.5f};
    const int32_t labels[3][3] = {{0, 1, 3}, {-1, 0, 1}, {0, 2, 1}};
    const int row[] = {2, 0};
    for (int fused = 0; fused < 2; fused++) {
        for (int b = 0; b < 2; b++) {
            twi_control control = {0};
            loss_result found = cross_entropy(&control, fused, 3, 3, x, labels[b], 1, 0.1f, 64);
            assert_int_equal(control.fault.code, TW_ERROR_LABEL);
            assert_int_equal(control.fault.node, 5);
            assert_int_equal(control.fault.sample, 64 + row[b]);
            assert_true(control.fault.value == labels[b][row[b]]);
            assert_int_equal(control.fault.lock, 0);
            assert_true(isfinite(found.loss));
            for (int c = 0; c < 3; c++) {
                assert_true(found.gradient[row[b] * 3 + c] == 0);
                assert_true(found.gradient[3 + c] != 0);
            }
        }
        twi_control control = {0};
        loss_result found = cross_entropy(&control, fused, 3, 3, x, labels[2], 1, 0, 0);
        CHECK(&found.loss, 1e-6, 3 * 0.5337137);
        assert_int_equal(control.fault.code, TW_OK);
    }
}

/* Of several faults the one with the smallest sample stays, in whatever order they come. */
static void the_first_sample_s_fault_stays(void **state) {
    (void)state;
    const int64_t samples[] = {7, 3, 9, 4};
    twi_control control = {0};
    for (int i = 0; i < 4; i++) {
        twi_fault_raise(&control, TW_ERROR_LABEL, 2, samples[i], (double)samples[i]);
        assert_true(twi_fault_raised(&control));
        assert_int_equal(control.fault.sample, i == 0 ? 7 : 3);
    }
    twi_fault_raise(&control, TW_ERROR_NUMERIC, 1, 3, 30);
    assert_int_equal(control.fault.code, TW_ERROR_NUMERIC);
    assert_true(control.fault.node == 1 && control.fault.value == 30);
}

/* PyTorch. */
static void softmax_agrees_with_pytorch(void **state) {
    (void)state;
    const float x[] = {0.5f, -1, 2, 0, 3, 3, -2, 1}, dy[] = {1, 0.5f, -1, 2, 0, 1, 3, -2};
    float y[8], dx[8];
    twi_call forward = {0}, backward = {0};
    OPERAND(&forward, x, 2, 4);
    OPERAND(&forward, y, 2, 4);
    spec_run("softmax.forward", &forward);
    CHECK(y, 1e-6, 0.1584447, 0.0353538, 0.7100999, 0.0961016, 0.4668375, 0.4668375, 0.0031455, 0.0631796);
    OPERAND(&backward, dy, 2, 4);
    OPERAND(&backward, y, 2, 4);
    OPERAND(&backward, dx, 2, 4);
    spec_run("softmax.backward", &backward);
    CHECK(dx, 1e-6, 0.2125972, 0.0297599, -0.4674053, 0.2250483, -0.1633534, 0.3034841, 0.0083359, -0.1484666);
}

/* A sum over chunks adds up: the runner clears before the first. */
static void dot_adds_to_its_sum(void **state) {
    (void)state;
    const float x[] = {1, 2, 3, 4, 5, 6}, v[] = {1, -1, 2, 0.5f, 3, 1}, seed = 2;
    float out = 100, dx[6];
    twi_call forward = {0}, backward = {0};
    OPERAND(&forward, x, 2, 3);
    OPERAND(&forward, v, 2, 3);
    OPERAND(&forward, &out, 1);
    spec_run("dot.forward", &forward);
    CHECK(&out, 0, 100 + 1 - 2 + 6 + 2 + 15 + 6);
    OPERAND(&backward, v, 2, 3);
    OPERAND(&backward, &seed, 1);
    OPERAND(&backward, dx, 2, 3);
    spec_run("dot.backward", &backward);
    CHECK(dx, 0, 2, -2, 4, 1, 6, 2);
}

/* ---- metrics ---- */

static void ranks_and_the_largest_logit(void **state) {
    (void)state;
    const float x[] = {1, 5, 3, 2, 2, 2, NAN, 9, 0, 1, 2, NAN, 1, 2, 3, 1, 2, 3};
    const int32_t labels[] = {2, 2, 1, 0, 3, -1};
    int32_t best[6], rank[6];
    twi_call argmax = {0}, ranks = {0};
    OPERAND(&argmax, x, 6, 3);
    OPERAND(&argmax, best, 6);
    spec_run("argmax.forward", &argmax);
    OPERAND(&ranks, x, 6, 3);
    OPERAND(&ranks, labels, 6);
    OPERAND(&ranks, rank, 6);
    spec_run("class_rank.forward", &ranks);
    const int32_t expected_best[] = {1, 0, -1, -1, 2, 2}, expected_rank[] = {1, 2, 3, 3, 3, 3};
    assert_memory_equal(best, expected_best, sizeof best);
    assert_memory_equal(rank, expected_rank, sizeof rank);
}

/* ---- dropout ---- */

static void dropout(twi_control *control, float rate, uint64_t stream, int64_t sample, const twi_operand *x,
                    const twi_operand *y) {
    const twi_dropout_attrs attrs = {rate};
    twi_call call = {.attrs = &attrs,
                     .control = control,
                     .stream = stream,
                     .sample = sample,
                     .operand = {*x, *y},
                     .operand_count = 2};
    spec_run("dropout.apply", &call);
}

static void dropout_keeps_the_rate_and_the_mean(void **state) {
    (void)state;
    enum { ELEMENTS = 1000000 };
    static const struct {
        float rate;
        double kept, within;
    } rows[] = {{0.25f, 0.75, 0.0022}, {0.001f, 0.999, 0.0002}, {0, 1, 0}, {1, 0, 0}};
    float *x = malloc(ELEMENTS * sizeof *x), *y = malloc(ELEMENTS * sizeof *y);
    assert_true(x && y);
    for (int64_t i = 0; i < ELEMENTS; i++) x[i] = 1;
    twi_call shapes = {0};
    twi_operand *xo = OPERAND(&shapes, x, 1000, 1000), *yo = OPERAND(&shapes, y, 1000, 1000);
    for (int64_t r = 0; r < COUNT(rows); r++) {
        twi_control control = {.seed = 1};
        int64_t kept = 0;
        double sum = 0;
        dropout(&control, rows[r].rate, 17, 0, xo, yo);
        for (int64_t i = 0; i < ELEMENTS; i++) {
            assert_true(y[i] == 0 || fabs(y[i] - 1 / (1 - (double)rows[r].rate)) < 1e-6);
            kept += y[i] != 0;
            sum += y[i];
        }
        assert_true(fabs((double)kept / ELEMENTS - rows[r].kept) <= rows[r].within);
        if (rows[r].rate < 1) assert_true(fabs(sum / ELEMENTS - 1) <= 0.003);
    }
    free(x);
    free(y);
}

/* One draw, one mask: whatever the layout and however the batch is cut. Another seed, node or attempt: another mask. */
static void dropout_masks_are_named(void **state) {
    (void)state;
    enum { BATCH = 5, SAMPLE = 3 * 3 * 5, ELEMENTS = BATCH * SAMPLE };
    float x[ELEMENTS], whole[ELEMENTS], other[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) x[i] = 1;
    twi_control control = {.seed = 7, .attempt = 12};
    twi_call shapes = {0};
    twi_operand *xo = OPERAND(&shapes, x, BATCH, 3, 3, 5), *yo = OPERAND(&shapes, whole, BATCH, 3, 3, 5);
    twi_operand *oo = OPERAND(&shapes, other, BATCH, 3, 3, 5);
    dropout(&control, 0.5f, 17, 0, xo, yo);

    /* Neighbours are independent. Of 224 fair coins 7.5 around half is one deviation. */
    int alike = 0;
    for (int i = 1; i < ELEMENTS; i++) alike += whole[i] == whole[i - 1];
    assert_in_range(alike, 112 - 38, 112 + 38);

    spec_channels_last(oo);
    dropout(&control, 0.5f, 17, 0, xo, oo);
    for (int64_t n = 0; n < BATCH; n++)
        for (int64_t c = 0; c < 3; c++)
            for (int64_t h = 0; h < 3; h++)
                for (int64_t w = 0; w < 5; w++)
                    assert_true(whole[twi_at4(yo, n, c, h, w)] == other[twi_at4(oo, n, c, h, w)]);

    for (int64_t n = 0; n < BATCH; n += 2) {
        int64_t count = n + 2 < BATCH ? 2 : 1;
        twi_call part = {0};
        twi_operand *po = OPERAND(&part, x, count, 3, 3, 5), *qo = OPERAND(&part, other + n * SAMPLE, count, 3, 3, 5);
        dropout(&control, 0.5f, 17, n, po, qo);
    }
    assert_memory_equal(whole, other, sizeof whole);

    const struct {
        twi_control control;
        uint64_t stream;
    } rows[] = {{{.seed = 8, .attempt = 12}, 17}, {{.seed = 7, .attempt = 13}, 17}, {{.seed = 7, .attempt = 12}, 18}};
    for (int64_t r = 0; r < COUNT(rows); r++) {
        twi_control changed = rows[r].control;
        int same = 0;
        dropout(&changed, 0.5f, rows[r].stream, 0, xo, OPERAND(&shapes, other, BATCH, 3, 3, 5));
        for (int i = 0; i < ELEMENTS; i++) same += whole[i] == other[i];
        assert_in_range(same, 113 - 38, 113 + 38);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(label_smoothing_convention),
        cmocka_unit_test(huge_logits_have_their_true_loss),
        cmocka_unit_test(infinite_logits_are_not_silent),
        cmocka_unit_test(labels_outside_raise_a_fault),
        cmocka_unit_test(the_first_sample_s_fault_stays),
        cmocka_unit_test(softmax_agrees_with_pytorch),
        cmocka_unit_test(dot_adds_to_its_sum),
        cmocka_unit_test(ranks_and_the_largest_logit),
        cmocka_unit_test(dropout_keeps_the_rate_and_the_mean),
        cmocka_unit_test(dropout_masks_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
