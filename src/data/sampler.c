/* Normalising, mirroring and cropping one sample while it is copied out of the data set. Order and batches are left to
 * loader.c. */
#include "sampler.h"
#include "base/philox.h"

#include <math.h>

/* A run of pixels of one channel on its way into the network. */
typedef struct pixel_run {
    const void *source;  /* the channel's plane */
    size_t first;        /* index of the run's first pixel in the plane */
    ptrdiff_t from_step; /* 1, or -1 where the sample is mirrored */
    float *to;
    size_t to_step; /* 1, or the number of channels where they come last */
    size_t count;
    int channel;
} pixel_run;

static void copy_u8(const twi_sampler *sampler, const pixel_run *run) {
    const float *table = sampler->table[run->channel];
    const uint8_t *from = (const uint8_t *)run->source + run->first;
    float *to = run->to;
    if (run->from_step == 1 && run->to_step == 1) /* most common, and what compilers do best */
        for (size_t i = 0; i < run->count; i++) to[i] = table[from[i]];
    else
        for (size_t i = 0; i < run->count; i++) to[i * run->to_step] = table[from[(ptrdiff_t)i * run->from_step]];
}

static void copy_f32(const twi_sampler *sampler, const pixel_run *run) {
    const float mean = sampler->mean[run->channel], deviation = sampler->deviation[run->channel];
    const float *from = (const float *)run->source + run->first;
    float *to = run->to;
    if (run->from_step == 1 && run->to_step == 1)
        for (size_t i = 0; i < run->count; i++) to[i] = (from[i] - mean) / deviation;
    else
        for (size_t i = 0; i < run->count; i++)
            to[i * run->to_step] = (from[(ptrdiff_t)i * run->from_step] - mean) / deviation;
}

static void copy(const twi_sampler *sampler, const pixel_run *run) {
    (sampler->dataset->dtype == TW_U8 ? copy_u8 : copy_f32)(sampler, run);
}

static void clear(float *to, size_t step, size_t count) {
    for (size_t i = 0; i < count; i++) to[i * step] = 0;
}

/* What chance does to one sample: mirrored first, then looked at through a window shifted by (down, right). */
typedef struct change {
    bool flip;
    int down, right;
} change;

static change draw_change(const twi_sampler *sampler, uint64_t epoch, int64_t index) {
    change drawn = {false, 0, 0};
    if (!sampler->flip && !sampler->crop_padding) return drawn;
    uint32_t words[4], places = 2 * (uint32_t)sampler->crop_padding + 1;
    twi_draw(sampler->seed, TWI_PURPOSE_AUGMENT, epoch, (uint64_t)index, words);
    drawn.flip = sampler->flip && words[0] >> 31;
    drawn.down = (int)twi_below(words[1], places) - sampler->crop_padding;
    drawn.right = (int)twi_below(words[2], places) - sampler->crop_padding;
    return drawn;
}

/* One channel, row by row. Outside the sample there are zeros: the mean after normalisation. */
static void make_changed(const twi_sampler *sampler, const change *drawn, pixel_run run) {
    const int height = sampler->dataset->height, width = sampler->dataset->width;
    const int left = drawn->right < 0 ? -drawn->right : 0;             /* zeros before the row's pixels */
    const int right = drawn->right > 0 ? drawn->right : 0;             /* zeros after them */
    const int count = left + right < width ? width - left - right : 0; /* pixels */
    const int column = drawn->flip ? width - 1 - right : right;        /* the first of them in the source */
    float *to = run.to;
    run.from_step = drawn->flip ? -1 : 1;
    run.count = (size_t)count;
    for (int y = 0; y < height; y++, to += (size_t)width * run.to_step) {
        int row = y + drawn->down;
        if (row < 0 || row >= height || !count) {
            clear(to, run.to_step, (size_t)width);
            continue;
        }
        clear(to, run.to_step, (size_t)left);
        run.first = (size_t)row * (size_t)width + (size_t)column;
        run.to = to + (size_t)left * run.to_step;
        copy(sampler, &run);
        clear(run.to + run.count * run.to_step, run.to_step, (size_t)right);
    }
}

void twi_sampler_make(const twi_sampler *sampler, uint64_t epoch, int64_t index, float *out) {
    const tw_dataset *dataset = sampler->dataset;
    const size_t plane = (size_t)dataset->height * (size_t)dataset->width, size = tw_dtype_size(dataset->dtype);
    const char *source = (const char *)dataset->images + (size_t)index * twi_dataset_sample_size(dataset) * size;
    const change drawn = draw_change(sampler, epoch, index);
    const bool changed = drawn.flip || drawn.down || drawn.right;
    for (int c = 0; c < dataset->channels; c++) {
        pixel_run run = {
            .source = source + (size_t)c * plane * size,
            .from_step = 1,
            .to = sampler->channels_last ? out + c : out + (size_t)c * plane,
            .to_step = sampler->channels_last ? (size_t)dataset->channels : 1,
            .count = plane,
            .channel = c,
        };
        if (changed)
            make_changed(sampler, &drawn, run);
        else
            copy(sampler, &run);
    }
}

tw_status twi_normalization_check(const tw_normalization *given) {
    if (given->channels < 0 || given->channels > TW_MAX_CHANNELS)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "normalization of %d channels; at most %d can be normalised: leave it out "
                        "and give the data set normalised samples",
                        given->channels, TW_MAX_CHANNELS);
    for (int c = 0; c < given->channels; c++)
        if (!isfinite(given->mean[c]) || !isfinite(given->deviation[c]) || given->deviation[c] < 0)
            return TWI_FAIL(TW_ERROR_ARGUMENT,
                            "normalization of channel %d: mean %g and deviation %g; both must be "
                            "finite, the deviation not negative",
                            c, (double)given->mean[c], (double)given->deviation[c]);
    return TW_OK;
}

static tw_status check_options(const tw_dataset *dataset, const tw_loader_options *options) {
    const tw_normalization *given = &options->normalization;
    if (given->channels && given->channels != dataset->channels)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_loader_create: normalization is given for %d channels, the data set has %d",
                        given->channels, dataset->channels);
    tw_status status = twi_normalization_check(given);
    if (status) return twi_fail_within(status, "tw_loader_create");
    int smaller = dataset->height < dataset->width ? dataset->height : dataset->width;
    if (options->crop_padding < 0 || options->crop_padding > smaller)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_loader_create: crop_padding is %d; give 0 .. %d, the smaller side of a sample",
                        options->crop_padding, smaller);
    return TW_OK;
}

tw_status twi_sampler_init(twi_sampler *sampler, const tw_dataset *dataset, const tw_loader_options *options) {
    const tw_normalization *given = &options->normalization;
    const size_t channels = (size_t)dataset->channels;
    twi_memory *memory = dataset->context->memory;
    *sampler = (twi_sampler){
        .dataset = dataset,
        .seed = options->seed,
        .flip = options->flip,
        .channels_last = options->channels_last,
        .crop_padding = options->crop_padding,
    };
    TWI_TRY(check_options(dataset, options));
    TWI_TRY(twi_get(memory, &sampler->mean, channels, sizeof(float), "normalisation"));
    TWI_TRY(twi_get(memory, &sampler->deviation, channels, sizeof(float), "normalisation"));
    for (int c = 0; c < dataset->channels; c++) {
        sampler->mean[c] = given->channels ? given->mean[c] : 0;
        sampler->deviation[c] = given->channels && given->deviation[c] > 0 ? given->deviation[c] : 1;
    }
    if (dataset->dtype != TW_U8) return TW_OK;
    TWI_TRY(twi_get(memory, &sampler->table, channels, sizeof *sampler->table, "normalisation"));
    for (int c = 0; c < dataset->channels; c++) /* in double, so that each entry is rounded once */
        for (int v = 0; v < 256; v++)
            sampler->table[c][v] = (float)((v / 255.0 - sampler->mean[c]) / sampler->deviation[c]);
    return TW_OK;
}

void twi_sampler_free(twi_sampler *sampler) {
    if (!sampler->dataset) return;
    twi_memory *memory = sampler->dataset->context->memory;
    twi_put(memory, sampler->mean);
    twi_put(memory, sampler->deviation);
    twi_put(memory, sampler->table);
}
