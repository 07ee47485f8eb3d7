/* See small_task.h. */
#include "small_task.h"
#include "check_device.h"

tw_context *task_context;
static uint64_t blocks_at_start;

static uint32_t hashed(uint32_t x) {
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return x ^ x >> 16;
}

tw_dataset *task_data_labelled(tw_context *context, int64_t count, uint32_t seed, const int32_t *labels, int classes) {
    uint8_t *images = malloc((size_t)count * TASK_PIXELS);
    int32_t *own = malloc((size_t)count * sizeof *own);
    assert_true(images && own);
    for (int64_t i = 0; i < count; i++) {
        own[i] = labels ? labels[i] : (int32_t)(i % TASK_CLASSES);
        for (int p = 0; p < TASK_PIXELS; p++) {
            uint32_t noise = hashed(seed + (uint32_t)i * TASK_PIXELS + (uint32_t)p) % 120;
            images[i * TASK_PIXELS + p] =
                (uint8_t)(noise + (p / (TASK_PIXELS / TASK_CLASSES) == (int)(i % TASK_CLASSES) ? 130 : 0));
        }
    }
    tw_dataset *data;
    CHECK_OK(tw_dataset_create_from(&data, context, TW_U8, images, count, 1, TASK_SIDE, TASK_SIDE, own,
                                    TW_OPTIONS(dataset, .classes = classes)));
    free(images);
    free(own);
    return data;
}

tw_dataset *task_data(tw_context *context, int64_t count, uint32_t seed) {
    return task_data_labelled(context, count, seed, NULL, TASK_CLASSES);
}

tw_model *task_model(tw_context *context, uint64_t seed) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, context));
    tw_value *x = tw_input(model, 1, TASK_SIDE, TASK_SIDE);
    x = tw_batch_norm(model, tw_conv2d(model, x, TASK_CHANNELS, 3, TW_OPTIONS(conv2d, .padding = 1)), NULL);
    x = tw_max_pool(model, tw_relu(model, x), 2, NULL);
    x = tw_dense(model, tw_dropout(model, x, 0.3f), TASK_CLASSES, NULL);
    CHECK_OK(tw_model_build(model, x, TW_OPTIONS(model, .seed = seed)));
    return model;
}

tw_model *task_plain_model(tw_context *context, uint64_t seed) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, context));
    tw_value *x = tw_dense(model, tw_input(model, 1, TASK_SIDE, TASK_SIDE), TASK_CLASSES, NULL);
    CHECK_OK(tw_model_build(model, x, TW_OPTIONS(model, .seed = seed)));
    return model;
}

float *task_parameters(const tw_model *model, size_t *count) {
    float *values = NULL;
    *count = 0;
    for (int i = 0; i < tw_model_count_parameters(model); i++) {
        tw_parameter parameter;
        size_t size = 1;
        CHECK_OK(tw_model_get_parameter(model, i, &parameter));
        for (int k = 0; k < parameter.rank; k++) size *= (size_t)parameter.dims[k];
        values = realloc(values, (*count + size) * sizeof *values);
        assert_non_null(values);
        CHECK_OK(tw_parameter_read(model, parameter.name, values + *count, (int64_t)size));
        *count += size;
    }
    return values;
}

int task_unchanged(const tw_model *model, const float *before) {
    size_t count;
    float *now = task_parameters(model, &count);
    int same = memcmp(now, before, count * sizeof *now) == 0;
    free(now);
    return same;
}

int task_open(void **state) {
    (void)state;
    if (tw_context_create(&task_context, check_device_or_cpu(), TW_OPTIONS(context, .threads = 1))) return -1;
    blocks_at_start = tw_context_get_memory(task_context).blocks;
    return 0;
}

int task_close(void **state) {
    (void)state;
    int left = (int)(tw_context_get_memory(task_context).blocks - blocks_at_start);
    tw_context_destroy(task_context);
    if (check_device()) left = 0; /* a device remembers choices until its context goes */
    if (left) print_error("%d blocks of memory are left\n", left);
    return left;
}
