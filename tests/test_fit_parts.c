/* Fits whose batches are run in parts to keep within memory: with batch norms that are frozen and others, and from a checkpoint on, under
 * the same limit and another. */
#define _POSIX_C_SOURCE 200809L
#include "limited_fit.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

/* ---- norms ---- */

/* Where statistics are frozen a part is not seen: no more than in a net without norms. */
static void parts_learn_what_the_batch_does_where_norms_are_frozen(void **state) {
    (void)state;
    const setting frozen = task_with(frozen_norms), moving = task_with(norms);
    tw_trainer_options off = {.recompute = TW_RECOMPUTE_OFF};
    learned whole = learn(&frozen, off, 0, NULL), parts = learn(&frozen, off, 0.4, NULL);
    assert_int_equal(whole.parts, 1);
    assert_true(parts.parts > 1);
    assert_near(&whole, &parts);
    assert_non_null(strstr(parts.log.text, "fit: batches of"));
    assert_null(strstr(parts.log.text, "statistics"));
    learned other = learn(&moving, off, 0.4, NULL);
    assert_true(other.parts > 1);
    assert_non_null(strstr(other.log.text, "statistics of each part"));
    assert_non_null(strstr(other.log.text, "tw_model_set_statistics_frozen"));
    learned moved = learn(&moving, off, 0, NULL);
    assert_true(fabs(moved.loss - other.loss) > 1e-4); /* which is what the log says */
    drop(&whole);
    drop(&parts);
    drop(&other);
    drop(&moved);
}

/* Batches that the running statistics have seen after one more fit. */
static float seen_after_fit(fit *f) {
    float batches;
    CHECK_OK(tw_trainer_fit(f->trainer, f->data, NULL));
    CHECK_OK(tw_parameter_read(f->model, "bn1.num_batches_tracked", &batches, 1));
    return batches;
}

static void a_fit_takes_up_what_was_frozen_since_the_last(void **state) {
    (void)state;
    const setting s = task_with(norms);
    const float all = (float)(epochs() * (task()->samples / task()->batch + 1));
    fit f;
    open_fit(&f, &s, (tw_trainer_options){.recompute = TW_RECOMPUTE_OFF}, 0);
    assert_true(seen_after_fit(&f) == all);
    CHECK_OK(tw_model_set_statistics_frozen(f.model, "bn", true));
    assert_true(seen_after_fit(&f) == all);
    CHECK_OK(tw_model_set_statistics_frozen(f.model, "", false));
    assert_true(seen_after_fit(&f) == 2 * all);
    close_fit(&f);
}

/* ---- going on ---- */

/* A fit under a limit that is stopped, and goes on under another or the same. */
static learned go_on(const setting *s, int stop_at, double share, double then) {
    char path[] = "/tmp/talweg-fit-memory-XXXXXX";
    const int descriptor = mkstemp(path);
    const tw_trainer_options off = {.recompute = TW_RECOMPUTE_OFF};
    fit f;
    assert_true(descriptor >= 0);
    close(descriptor);
    open_fit(&f, s, off, share);
    f.l.stop_at = stop_at;
    CHECK_FAILS(tw_trainer_fit(f.trainer, f.data, f.data), TW_STOPPED, "stopped on request");
    assert_int_equal(f.l.calls, stop_at);
    CHECK_OK(tw_trainer_save(f.trainer, path));
    close_fit(&f);
    open_fit(&f, s, off, then);
    CHECK_OK(tw_trainer_load(f.trainer, path));
    remove(path);
    return finish(&f);
}

/* Within an epoch and at its end, with running statistics that move from part to part. */
static void a_checkpoint_of_parts_goes_on_in_the_same_parts_bit_for_bit(void **state) {
    (void)state;
    const setting s = task_with(norms);
    const int steps = task()->samples / task()->batch + 1, stops[] = {2, steps, steps + 1};
    learned whole = learn(&s, (tw_trainer_options){.recompute = TW_RECOMPUTE_OFF}, 0.4, NULL);
    assert_true(whole.parts > 1);
    for (int i = 0; i < (check_device() ? 1 : 3); i++) {
        learned later = go_on(&s, stops[i], 0.4, 0.4);
        assert_int_equal(later.parts, whole.parts);
        assert_int_equal(later.calls, whole.calls - stops[i]);
        assert_true(later.exact);
        assert_null(strstr(later.log.text, "bit for bit"));
        assert_int_equal(later.count, whole.count);
        assert_memory_equal(later.parameters, whole.parameters, whole.count * sizeof(float));
        assert_true(later.loss == whole.loss);
        drop(&later);
    }
    drop(&whole);
}

static void or_says_that_it_is_not_exact(void **state) {
    (void)state;
    learned whole = learn(task(), (tw_trainer_options){.recompute = TW_RECOMPUTE_OFF}, 0, NULL);
    static const double shares[][2] = {{0.4, 0}, {0, 0.4}, {0.4, 0.85}};
    for (int i = 0; i < (check_device() ? 1 : 3); i++) {
        learned first = learn(task(), (tw_trainer_options){.recompute = TW_RECOMPUTE_OFF}, shares[i][0], NULL);
        learned later = go_on(task(), 2, shares[i][0], shares[i][1]);
        assert_int_not_equal(later.parts, first.parts);
        assert_false(later.exact);
        assert_non_null(strstr(later.log.text, "another plan"));
        assert_non_null(strstr(later.log.text, "not bit for bit"));
        later.calls = 0; /* what is learned is what the batch teaches, whatever its parts */
        drop(&first);
        first = whole;
        first.calls = 0;
        assert_near(&first, &later);
        drop(&later);
    }
    drop(&whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_learn_what_the_batch_does_where_norms_are_frozen),
        cmocka_unit_test(a_fit_takes_up_what_was_frozen_since_the_last),
        cmocka_unit_test(a_checkpoint_of_parts_goes_on_in_the_same_parts_bit_for_bit),
        cmocka_unit_test(or_says_that_it_is_not_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
