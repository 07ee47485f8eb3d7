/* A run that writes checkpoints under a cap of the context: it is refused before its first step, or its checkpoints are
 * written. It is never ended by one. */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */
#include "small_task.h"

#include <stdio.h>
#include <unistd.h>

enum { SAMPLES = 192, BATCH = 64, EPOCHS = 2 };

/* One fully connected layer that is large beside all else, so that its copy on the way to the file counts. */
static tw_status fit_under(size_t cap, const char *path, int64_t *updates) {
    tw_context *context;
    tw_model *model;
    tw_trainer *trainer;
    CHECK_OK(tw_context_create(&context, "cpu", TW_OPTIONS(context, .threads = 1, .memory_limit = cap)));
    tw_dataset *data = task_data(context, SAMPLES, 7);
    CHECK_OK(tw_model_create(&model, context));
    tw_value *x = tw_flatten(model, tw_input(model, 1, TASK_SIDE, TASK_SIDE));
    x = tw_relu(model, tw_dense(model, x, 256, NULL));
    tw_status status = tw_model_build(model, tw_dense(model, x, TASK_CLASSES, NULL), NULL);
    *updates = 0;
    if (status == TW_OK) {
        CHECK_OK(tw_trainer_create(&trainer, model,
                                   TW_OPTIONS(trainer, .batch = BATCH, .epochs = EPOCHS, .checkpoint = path)));
        status = tw_trainer_fit(trainer, data, NULL);
        *updates = tw_model_get_updates(model);
        tw_trainer_destroy(trainer);
    }
    tw_model_destroy(model);
    tw_dataset_destroy(data);
    tw_context_destroy(context);
    return status;
}

static void test_no_run_is_ended_by_its_checkpoint(void **state) {
    (void)state;
    char folder[] = "/tmp/talweg-fit-saving-XXXXXX", path[64];
    int refused = 0, done = 0;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/run", folder);
    for (size_t cap = 900000; cap <= 2100000; cap += 40000) {
        int64_t updates;
        const tw_status status = fit_under(cap, path, &updates);
        if (status == TW_OK) {
            done++;
            assert_int_equal(updates, EPOCHS * SAMPLES / BATCH);
            assert_int_equal(unlink(path), 0);
        } else {
            refused++;
            assert_int_equal(status, TW_ERROR_OUT_OF_MEMORY);
            assert_int_equal(updates, 0);
            assert_int_equal(done, 0); /* what is enough stays enough */
        }
    }
    assert_true(refused > 0 && done > 10);
    assert_int_equal(rmdir(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_run_is_ended_by_its_checkpoint)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
