/* What a refused memory limit says is enough is enough, to the byte: fits of LeNet-5 and of small nets with dropout and with batch norm, single
 * programs, evaluations. ResNet-20 is in full_fit_floor. */
#include "fit_floor.h"

static void lenet5_trains_with_the_floor(void **state) {
    (void)state;
    static const int batches[] = {6, 64};
    check_floors("LeNet-5", lenet, 1, 28, batches, check_device() ? 1 : 2);
}

static void a_net_with_dropout_trains_with_the_floor(void **state) {
    (void)state;
    static const int batch = 7;
    check_floors("convolutions", convolutions, 1, 12, &batch, 1);
}

static void nets_with_batch_norm_train_with_the_floor(void **state) {
    (void)state;
    static const int batch = 6;
    check_floors("norms", norms, 1, 12, &batch, 1);
    if (!check_device()) check_floors("frozen norms", frozen_norms, 1, 12, &batch, 1);
}

/* ---- without a fit ---- */

static tw_status make_program(tw_model *model, tw_value *loss, int64_t batch, tw_recompute recompute, size_t limit) {
    tw_program *program;
    tw_loss losses[] = {{loss, 1}};
    tw_status status =
        tw_program_create(&program, model, batch,
                          TW_OPTIONS(program, .train = true, .losses = losses, .loss_count = 1, .recompute = recompute,
                                     .optimizer = TW_OPTIONS(optimizer, .momentum = 0.9f), .memory_limit = limit));
    tw_program_destroy(program);
    return status;
}

static void programs_are_made_with_the_floor(void **state) {
    (void)state;
    static const setting nets[] = {{"LeNet-5", lenet, 1, 28, 0, 0}, {"norms", norms, 1, 12, 0, 0}};
    static const int64_t batches[] = {1, 7, 40};
    for (int i = 0; i < 2 * 3 * 2; i++) {
        const setting *s = &nets[i / 6];
        const int64_t batch = batches[i / 2 % 3];
        const tw_recompute recompute = i % 2 ? TW_RECOMPUTE_OFF : TW_RECOMPUTE_AUTO;
        tw_model *model;
        CHECK_OK(tw_model_create(&model, task_context));
        tw_value *logits = s->build(model, tw_input(model, s->channels, s->side, s->side)),
                 *loss = tw_cross_entropy(model, logits, tw_input_labels(model, "labels"), NULL);
        CHECK_OK(tw_model_build(model, logits, NULL));
        CHECK_FAILS(make_program(model, loss, batch, recompute, 1), TW_ERROR_OUT_OF_MEMORY, "cannot be kept");
        const size_t floor = floor_named(tw_last_error());
        CHECK_FAILS(make_program(model, loss, batch, recompute, floor - 1), TW_ERROR_OUT_OF_MEMORY, "cannot be kept");
        assert_int_equal(floor_named(tw_last_error()), floor);
        CHECK_OK(make_program(model, loss, batch, recompute, floor));
        tw_model_destroy(model);
    }
}

static void evaluations_are_made_with_the_floor(void **state) {
    (void)state;
    const setting s = {"LeNet-5", lenet, 1, 28, 16, 37};
    tw_model *model = open_model(task_context, &s);
    tw_dataset *data = open_data(task_context, &s);
    size_t limit = 1000;
    for (int i = 0; i < 3; i++) { /* too little, a byte less than enough, enough */
        tw_trainer *trainer;
        tw_metrics metrics;
        CHECK_OK(
            tw_trainer_create(&trainer, model, TW_OPTIONS(trainer, .memory_limit = limit, .no_normalization = true)));
        tw_status status = tw_trainer_evaluate(trainer, data, &metrics);
        if (i < 2) {
            CHECK_FAILS(status, TW_ERROR_OUT_OF_MEMORY, "cannot be kept: the least that batch 1 was planned with");
            if (i) assert_int_equal(floor_named(tw_last_error()), limit + 1);
            limit = i ? limit + 1 : floor_named(tw_last_error()) - 1;
        } else {
            CHECK_OK(status);
            assert_int_equal(metrics.samples, s.samples);
        }
        tw_trainer_destroy(trainer);
    }
    tw_dataset_destroy(data);
    tw_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lenet5_trains_with_the_floor),
        cmocka_unit_test(a_net_with_dropout_trains_with_the_floor),
        cmocka_unit_test(nets_with_batch_norm_train_with_the_floor),
        with_context(programs_are_made_with_the_floor),
        with_context(evaluations_are_made_with_the_floor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
