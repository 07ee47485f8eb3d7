/* Makes one sample of a data set: walks over its rows and writes them where they belong. What normalising, mirroring
 * and cropping mean is in base/augment.h; order and batches are left to loader.c. */
#include "sampler.h"

/* A run of pixels of one channel on its way into the network. */
typedef struct pixel_run {
    const void *source; /* the channel's plane */
    const float *numbers;
    float *to;
    int64_t to_step; /* 1, or the number of channels where they come last */
} pixel_run;

static void copy_u8(const pixel_run *run, int64_t first, int64_t step, int64_t count) {
    const uint8_t *from = (const uint8_t *)run->source + first;
    if (step == 1 && run->to_step == 1) /* most common, and what compilers do best */
        for (int64_t i = 0; i < count; i++) run->to[i] = twi_pixel_of_u8(from[i], run->numbers);
    else
        for (int64_t i = 0; i < count; i++) run->to[i * run->to_step] = twi_pixel_of_u8(from[i * step], run->numbers);
}

static void copy_f32(const pixel_run *run, int64_t first, int64_t step, int64_t count) {
    const float *from = (const float *)run->source + first;
    if (step == 1 && run->to_step == 1)
        for (int64_t i = 0; i < count; i++) run->to[i] = twi_pixel_of_f32(from[i], run->numbers);
    else
        for (int64_t i = 0; i < count; i++) run->to[i * run->to_step] = twi_pixel_of_f32(from[i * step], run->numbers);
}

static void copy(const twi_sampler *sampler, const pixel_run *run, int64_t first, int64_t step, int64_t count) {
    (sampler->dataset->dtype == TW_U8 ? copy_u8 : copy_f32)(run, first, step, count);
}

static void clear(pixel_run *run, int64_t count) {
    for (int64_t i = 0; i < count; i++, run->to += run->to_step) *run->to = 0;
}

/* One channel, row by row. */
static void make_changed(const twi_sampler *sampler, twi_change change, pixel_run run) {
    const int height = sampler->dataset->height, width = sampler->dataset->width;
    for (int y = 0; y < height; y++) {
        const twi_changed_row row = twi_change_row(change, height, width, y);
        clear(&run, row.left);
        copy(sampler, &run, row.first, row.step, row.count);
        run.to += row.count * run.to_step;
        clear(&run, row.right);
    }
}

void twi_sampler_make(const twi_sampler *sampler, uint64_t epoch, int64_t index, float *out) {
    const tw_dataset *dataset = sampler->dataset;
    const int64_t plane = (int64_t)dataset->height * dataset->width, channels = dataset->channels;
    const size_t size = tw_dtype_size(dataset->dtype);
    const char *source = (const char *)dataset->images + (size_t)index * twi_dataset_sample_size(dataset) * size;
    const twi_change change = twi_augment_draw(&sampler->augment, epoch, (uint64_t)index);
    for (int64_t c = 0; c < channels; c++) {
        const pixel_run run = {
            .source = source + (size_t)(c * plane) * size,
            .numbers = sampler->numbers + c * twi_pixel_numbers(dataset->dtype),
            .to = sampler->channels_last ? out + c : out + c * plane,
            .to_step = sampler->channels_last ? channels : 1,
        };
        if (twi_change_is_none(change))
            copy(sampler, &run, 0, 1, plane);
        else
            make_changed(sampler, change, run);
    }
}

tw_status twi_sampler_init(twi_sampler *sampler, const tw_dataset *dataset, const tw_loader_options *options) {
    *sampler = (twi_sampler){
        .dataset = dataset,
        .augment = {options->seed, options->flip, options->crop_padding},
        .channels_last = options->channels_last,
    };
    tw_status status = twi_augment_check(&options->normalization, options->crop_padding, dataset->channels,
                                         dataset->height, dataset->width);
    if (status) return twi_fail_within(status, "tw_loader_create");
    TWI_TRY(twi_get(dataset->context->memory, &sampler->numbers, (size_t)dataset->channels,
                    (size_t)twi_pixel_numbers(dataset->dtype) * sizeof(float), "normalisation"));
    twi_pixel_fill(sampler->numbers, dataset->dtype, dataset->channels, &options->normalization);
    return TW_OK;
}

void twi_sampler_free(twi_sampler *sampler) {
    if (sampler->dataset) twi_put(sampler->dataset->context->memory, sampler->numbers);
}
