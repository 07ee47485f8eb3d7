/* See fit_floor.h. */
#include "fit_floor.h"

#include <stdio.h>
#include <string.h>

size_t floor_named(const char *message) {
    static const char words[] = "planned with is ";
    const char *at = strstr(message, words);
    unsigned long long bytes = 0;
    if (!at || sscanf(at + sizeof words - 1, "%*[^(](%llu bytes)", &bytes) != 1)
        fail_msg("no floor is named: %s", message);
    return (size_t)bytes;
}

/* A fit under a limit in a context of its own: the floor, or 0 if it finishes. */
static size_t refused(const setting *s, int tested, tw_trainer_options options, size_t limit) {
    const setting test = {s->name, s->build, s->channels, s->side, s->batch, tested};
    tw_context *context;
    tw_trainer *trainer;
    CHECK_OK(tw_context_create(&context, check_device_or_cpu(), TW_OPTIONS(context, .threads = 2)));
    tw_model *model = open_model(context, s);
    tw_dataset *data = open_data(context, s), *test_data = tested ? open_data(context, &test) : NULL;
    const size_t before = tw_context_get_device_memory(context).bytes;
    options.size = sizeof options;
    options.batch = s->batch;
    options.epochs = 1;
    options.no_normalization = true;
    options.memory_limit = limit;
    CHECK_OK(tw_trainer_create(&trainer, model, &options));
    tw_status status = tw_trainer_fit(trainer, data, test_data);
    if (status) CHECK_FAILS(status, TW_ERROR_OUT_OF_MEMORY, "cannot be kept: the least that batch");
    const size_t floor = status ? floor_named(tw_last_error()) : 0, peak = tw_context_get_device_memory(context).peak;
    if (peak > (limit > before ? limit : before))
        fail_msg("%s, batch %d: %zu bytes of %zu were taken", s->name, s->batch, peak, limit);
    tw_trainer_destroy(trainer);
    tw_dataset_destroy(test_data);
    tw_dataset_destroy(data);
    tw_model_destroy(model);
    tw_context_destroy(context);
    return floor;
}

void check_floor(const setting *s, int tested, const tw_trainer_options *options) {
    const size_t floor = refused(s, tested, *options, 1000), again = refused(s, tested, *options, floor);
    if (again)
        fail_msg("%s, batch %d, %d samples, %d tested: %zu bytes are named, and then %zu", s->name, s->batch,
                 s->samples, tested, floor, again);
    const size_t less = refused(s, tested, *options, floor - 1);
    if (!less)
        fail_msg("%s, batch %d, %d samples, %d tested: %zu bytes are named, and fewer are enough", s->name, s->batch,
                 s->samples, tested, floor);
    assert_int_equal(less, floor);
}

void check_floors(const char *name, tw_value *(*build)(tw_model *, tw_value *), int channels, int side,
                  const int *batches, int count) {
    for (int i = 0; i < count; i++) {
        const int batch = batches[i], more = 2 * batch + batch / 2 + 1, fewer = (batch + 2) / 3;
        const setting whole = {name, build, channels, side, batch, batch},
                      rest = {name, build, channels, side, batch, more},
                      few = {name, build, channels, side, batch, fewer};
        check_floor(&whole, 0, &(tw_trainer_options){.optimizer = {.momentum = 0.9f}});
        check_floor(&rest, 17, &(tw_trainer_options){.optimizer = {.momentum = 0.9f}});
        check_floor(&few, 2 * batch, &(tw_trainer_options){.optimizer = {.kind = TW_ADAMW}});
        check_floor(&whole, 33, &(tw_trainer_options){.workers = 1});
        check_floor(&rest, 0, &(tw_trainer_options){.accumulate = 2, .recompute = TW_RECOMPUTE_OFF});
        check_floor(&rest, 90,
                    &(tw_trainer_options){.on_non_finite = TW_NON_FINITE_ROLL_BACK, .optimizer = {.momentum = 0.9f}});
        check_floor(&rest, 5, &(tw_trainer_options){.precision = TW_PRECISION_BF16, .recompute = TW_RECOMPUTE_BLOCKS});
    }
}
