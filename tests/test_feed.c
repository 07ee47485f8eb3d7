/* A data set's way through a trainer's programs: the same numbers whether they gather their batches or a loader makes
 * them, from any batch on, and from one data set to another. */
#include "check.h"
#include "small_task.h"
#include "trainer/trainer.h"

enum { COUNT = 23, BATCH = 8, HEIGHT = 6, WIDTH = 5, FLOATS = COUNT * 3 * HEIGHT * WIDTH };

static uint8_t bytes[FLOATS];
static float floats[FLOATS];
static int32_t labels[COUNT];

static int fill_samples(void **state) {
    (void)state;
    for (int i = 0; i < FLOATS; i++) {
        bytes[i] = (uint8_t)(i * 31 + i / 97 * 7 + 1);
        floats[i] = (float)(i % 1013) / 509;
    }
    for (int i = 0; i < COUNT; i++) labels[i] = (i * 5 + 2) % 7;
    return 0;
}

/* One trainer goes from set to set and back, with the programs it has. */
static void test_a_trainer_changes_sets(void **state) {
    (void)state;
    tw_dataset *data[] = {task_data(task_context, 20, 1), task_data(task_context, 20, 7)};
    tw_model *model = task_model(task_context, 1);
    tw_trainer *trainer;
    tw_metrics alone[2], again;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tw_trainer_create(&trainer, model,
                                   TW_OPTIONS(trainer, .no_normalization = true, .evaluation_batch = 8, .workers = 1)));
        CHECK_OK(tw_trainer_evaluate(trainer, data[i], &alone[i]));
        tw_trainer_destroy(trainer);
    }
    assert_true(alone[0].loss != alone[1].loss);
    CHECK_OK(tw_trainer_create(&trainer, model, TW_OPTIONS(trainer, .no_normalization = true, .evaluation_batch = 8)));
    for (int i = 0; i < 5; i++) {
        CHECK_OK(tw_trainer_evaluate(trainer, data[i % 2], &again));
        assert_memory_equal(&again, &alone[i % 2], sizeof again);
    }
    twi_feed feed[2]; /* both at once, through the same programs */
    for (int i = 0; i < 2; i++) CHECK_OK(twi_feed_open(&feed[i], trainer, TWI_USE_EVALUATE, data[i]));
    assert_ptr_equal(feed[0].full, feed[1].full);
    for (int i = 0; i < 4; i++) {
        CHECK_OK(twi_trainer_measure(&feed[i % 2], false, &again));
        assert_memory_equal(&again, &alone[i % 2], sizeof again);
    }
    for (int i = 0; i < 2; i++) twi_feed_close(&feed[i]);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    for (int i = 0; i < 2; i++) tw_dataset_destroy(data[i]);
}

/* Batch norm first: its sums go over the images themselves, chunk by chunk. */
static tw_model *color_model(tw_context *context) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, context));
    tw_value *x = tw_batch_norm(model, tw_input(model, 3, HEIGHT, WIDTH), NULL);
    x = tw_relu(model, tw_conv2d(model, x, 6, 3, TW_OPTIONS(conv2d, .padding = 1)));
    CHECK_OK(tw_model_build(model, tw_dense(model, x, 7, NULL), TW_OPTIONS(model, .seed = 1)));
    return model;
}

/* Two epochs from batch `first` on, past the trainer's own loop; what is learned, to be freed. */
static float *learn(tw_dtype dtype, int threads, int workers, int64_t first, size_t *count) {
    tw_context *context;
    tw_dataset *data;
    tw_trainer *trainer;
    twi_feed feed;
    CHECK_OK(tw_context_create(&context, "cpu", TW_OPTIONS(context, .threads = threads)));
    CHECK_OK(tw_dataset_create_from(&data, context, dtype, dtype == TW_U8 ? (const void *)bytes : floats, COUNT, 3,
                                    HEIGHT, WIDTH, labels, NULL));
    tw_model *model = color_model(context);
    CHECK_OK(tw_trainer_create(&trainer, model,
                               TW_OPTIONS(trainer, .batch = BATCH, .workers = workers, .flip = true, .crop_padding = 2,
                                          .normalization = {3, {0.1f, 0.5f, 0.9f}, {0.3f, 0, 0.7f}},
                                          .optimizer = {.learning_rate = 0.1f, .schedule.total = 100})));
    CHECK_OK(twi_feed_open(&feed, trainer, TWI_USE_TRAIN, data));
    for (int epoch = 0; epoch < 2; epoch++) {
        CHECK_OK(twi_feed_start(&feed, epoch, first));
        for (int64_t done = first * BATCH;;) {
            twi_fed fed;
            CHECK_OK(twi_feed_next(&feed, &fed));
            assert_int_equal(fed.program ? fed.first : COUNT, done);
            if (!fed.program) break;
            CHECK_OK(tw_program_run(fed.program));
            done += fed.count;
        }
    }
    twi_feed_close(&feed);
    float *learned = task_parameters(model, count);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
    tw_context_destroy(context);
    return learned;
}

/* Whoever makes the batches, and wherever in an epoch it begins. */
static void test_what_is_learned_is_the_same(void **state) {
    (void)state;
    static const int threads_and_workers[][2] = {{1, 1}, {2, 4}, {2, 0}};
    float *other_beginning = NULL;
    for (int dtype = 0; dtype < 2; dtype++)
        for (int64_t first = 0; first < 3; first++) {
            const tw_dtype own = dtype ? TW_U8 : TW_F32;
            size_t count;
            float *expected = learn(own, 1, 0, first, &count);
            for (int i = 0; i < 3; i++) {
                float *found = learn(own, threads_and_workers[i][0], threads_and_workers[i][1], first, &count);
                assert_memory_equal(found, expected, count * sizeof *found);
                free(found);
            }
            assert_true(!other_beginning || memcmp(other_beginning, expected, count * sizeof *expected) != 0);
            free(other_beginning);
            other_beginning = expected;
        }
    free(other_beginning);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        with_context(test_a_trainer_changes_sets),
        cmocka_unit_test(test_what_is_learned_is_the_same),
    };
    return cmocka_run_group_tests(tests, fill_samples, NULL);
}
