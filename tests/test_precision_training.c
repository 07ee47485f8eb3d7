/* Trainers in mixed precision: going on from a checkpoint bit for bit, inputs gathered, fed and streamed, rules that are
 * kept. What programs are made of is looked at in test_precision.c. TALWEG_TEST_DEVICE names another device than the CPU. */
#define _POSIX_C_SOURCE 200809L /* mkstemp */
#include "small_task.h"

#include "program/program.h"
#include "trainer/trainer.h"

#include <stdio.h>
#include <unistd.h>

static bool stop_after_first(void *user, const tw_progress *progress) {
    (void)user;
    return progress->epoch == 0;
}

static tw_trainer *trainer_in(tw_model *model, tw_precision precision, tw_progress_fn on_epoch, int64_t accumulate) {
    tw_trainer *trainer;
    tw_optimizer_options adamw = TW_OPTIMIZER_OPTIONS_INIT;
    adamw.kind = TW_ADAMW;
    adamw.learning_rate = 0.01;
    CHECK_OK(
        tw_trainer_create(&trainer, model,
                          TW_OPTIONS(trainer, .epochs = 2, .batch = 10, .optimizer = adamw, .flip = true,
                                     .on_epoch = on_epoch, .precision = precision, .accumulate = (int)accumulate)));
    return trainer;
}

static void training_goes_on_bit_for_bit(void **state) {
    (void)state;
    static const tw_precision precisions[] = {TW_PRECISION_BF16, TW_PRECISION_F16};
    for (int i = 0; i < 4; i++) {
        const tw_precision precision = precisions[i % 2];
        const int batches = 1 + i / 2; /* an update */
        char path[] = "/tmp/talweg_precision_XXXXXX";
        size_t count;
        int file = mkstemp(path);
        assert_true(file >= 0);
        close(file);
        tw_dataset *data = task_data(task_context, 45, 3);
        tw_model *whole = task_model(task_context, 7), *broken = task_model(task_context, 7),
                 *resumed = task_model(task_context, 99);
        tw_trainer *a = trainer_in(whole, precision, NULL, batches),
                   *b = trainer_in(broken, precision, stop_after_first, batches);
        CHECK_OK(tw_trainer_fit(a, data, NULL));
        assert_int_equal(tw_trainer_fit(b, data, NULL), TW_STOPPED);
        CHECK_OK(tw_trainer_save(b, path));
        tw_model_destroy(resumed);
        resumed = task_model(task_context, 7);
        tw_trainer *c = trainer_in(resumed, precision, NULL, batches);
        CHECK_OK(tw_trainer_load(c, path));
        CHECK_OK(tw_trainer_fit(c, data, NULL));
        assert_true(tw_trainer_is_exact(c));
        float *learned = task_parameters(whole, &count);
        if (!task_unchanged(resumed, learned))
            fail_msg("%s, %d batches an update", tw_precision_name(precision), batches);
        free(learned);
        tw_trainer *f32 = trainer_in(resumed, TW_PRECISION_F32, NULL, batches);
        CHECK_FAILS(tw_trainer_load(f32, path), TW_ERROR_MISMATCH, "precision (f32 here, ");
        tw_trainer_destroy(f32);
        tw_trainer_destroy(c);
        tw_trainer_destroy(b);
        tw_trainer_destroy(a);
        tw_model_destroy(resumed);
        tw_model_destroy(broken);
        tw_model_destroy(whole);
        tw_dataset_destroy(data);
        unlink(path);
    }
}

/* Without a loader the program gathers its batches; with one they are fed, or streamed through slots. The sums of one
 * chunk are the same. */
static void gathered_and_fed_batches_are_rounded_alike(void **state) {
    (void)state;
    float *learned = NULL;
    for (int workers = 0; workers < 2; workers++) {
        size_t count;
        tw_trainer *trainer;
        tw_dataset *data = task_data(task_context, 45, 3);
        tw_model *model = task_model(task_context, 7);
        CHECK_OK(tw_trainer_create(
            &trainer, model,
            TW_OPTIONS(trainer, .epochs = 2, .batch = 8, .precision = TW_PRECISION_BF16, .workers = workers)));
        CHECK_OK(tw_trainer_fit(trainer, data, NULL));
        if (workers)
            assert_true(task_unchanged(model, learned));
        else
            learned = task_parameters(model, &count);
        tw_trainer_destroy(trainer);
        tw_model_destroy(model);
        tw_dataset_destroy(data);
    }
    free(learned);
}

static void a_trainer_keeps_its_rules(void **state) {
    (void)state;
    char layer[16] = "conv1";
    tw_precision_rule rule = {layer, TW_PRECISION_F32};
    tw_trainer *trainer;
    tw_dataset *data = task_data(task_context, 20, 3);
    tw_model *model = task_model(task_context, 7);
    CHECK_OK(tw_trainer_create(&trainer, model,
                               TW_OPTIONS(trainer, .batch = 10, .precision = TW_PRECISION_BF16,
                                          .precision_rules = &rule, .precision_rule_count = 1)));
    strcpy(layer, "nobody"); /* borrowed for the call alone */
    tw_trainer *other;
    CHECK_FAILS(tw_trainer_create(&other, model,
                                  TW_OPTIONS(trainer, .precision = TW_PRECISION_BF16, .precision_rules = &rule,
                                             .precision_rule_count = 1)),
                TW_ERROR_ARGUMENT, "tw_trainer_create: precision_rules[0]: the model has no layer 'nobody'");
    assert_null(other);
    CHECK_OK(tw_trainer_fit(trainer, data, NULL));
    const tw_program *program = trainer->cached[0].program;
    int f32 = 0;
    for (int s = 0; s < program->step_count; s++)
        f32 += strncmp(program->step[s].label, "conv1", 5) == 0 && program->step[s].kernel->flops &&
               program->step[s].dtype == TW_F32;
    assert_true(f32 > 0);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

/* By which the next plan knows what is left: the copies in half precision are counted with the rest. */
static void a_model_holds_what_its_program_was_planned_with(void **state) {
    (void)state;
    static const tw_precision precisions[] = {TW_PRECISION_F32, TW_PRECISION_BF16, TW_PRECISION_F16};
    for (int i = 0; i < 3; i++) {
        tw_dataset *data = task_data(task_context, 20, 3);
        tw_model *model = task_model(task_context, 7);
        tw_trainer *trainer = trainer_in(model, precisions[i], NULL, 1);
        CHECK_OK(tw_trainer_fit(trainer, data, NULL));
        assert_int_equal(twi_model_bytes(model), twi_program_bytes(trainer->cached[0].program));
        tw_trainer_destroy(trainer);
        tw_model_destroy(model);
        tw_dataset_destroy(data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        with_context(training_goes_on_bit_for_bit),
        with_context(gathered_and_fed_batches_are_rounded_alike),
        with_context(a_trainer_keeps_its_rules),
        with_context(a_model_holds_what_its_program_was_planned_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
