/* Mean and standard deviation of every channel of a data set. Bytes are counted, so that their sums are exact; floats
 * are summed twice over in double, in the order of the samples. */
#include "dataset.h"

#include <math.h>

typedef struct moments {
    double mean, deviation;
} moments;

static tw_status measure_u8(const tw_dataset *dataset, int channel, moments *out) {
    size_t plane = (size_t)dataset->height * (size_t)dataset->width, sample = twi_dataset_sample_size(dataset);
    const uint8_t *first = (const uint8_t *)dataset->images + (size_t)channel * plane;
    /* Two counts each: equal neighbours, as in the black margins of digits, would otherwise wait for each other. */
    uint64_t even[256] = {0}, odd[256] = {0};
    for (int64_t i = 0; i < dataset->count; i++) {
        const uint8_t *pixel = first + (size_t)i * sample;
        for (size_t j = 0; j + 1 < plane; j += 2) {
            even[pixel[j]]++;
            odd[pixel[j + 1]]++;
        }
        if (plane % 2) even[pixel[plane - 1]]++;
    }
    double count = (double)dataset->count * (double)plane, sum = 0, squares = 0;
    for (int v = 0; v < 256; v++) sum += (double)(even[v] + odd[v]) * v;
    double mean = sum / count;
    for (int v = 0; v < 256; v++) squares += (double)(even[v] + odd[v]) * (v - mean) * (v - mean);
    out->mean = mean / 255;
    out->deviation = sqrt(squares / count) / 255;
    return TW_OK;
}

static tw_status measure_f32(const tw_dataset *dataset, int channel, moments *out) {
    size_t plane = (size_t)dataset->height * (size_t)dataset->width, sample = twi_dataset_sample_size(dataset);
    const float *first = (const float *)dataset->images + (size_t)channel * plane;
    double count = (double)dataset->count * (double)plane, sum = 0, squares = 0;
    for (int64_t i = 0; i < dataset->count; i++) {
        const float *pixel = first + (size_t)i * sample;
        double part = 0;
        for (size_t j = 0; j < plane; j++) part += pixel[j];
        if (!isfinite(part))
            return TWI_FAIL(TW_ERROR_NUMERIC,
                            "tw_dataset_measure: channel %d of sample %lld holds a value that is not finite", channel,
                            (long long)i);
        sum += part;
    }
    double mean = sum / count;
    for (int64_t i = 0; i < dataset->count; i++) {
        const float *pixel = first + (size_t)i * sample;
        double part = 0;
        for (size_t j = 0; j < plane; j++) part += (pixel[j] - mean) * (pixel[j] - mean);
        squares += part;
    }
    out->mean = mean;
    out->deviation = sqrt(squares / count);
    return TW_OK;
}

tw_status tw_dataset_measure(const tw_dataset *dataset, float *mean, float *deviation) {
    if (!dataset || !mean || !deviation)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_dataset_measure: %s is NULL",
                        !dataset ? "dataset"
                        : !mean  ? "mean"
                                 : "deviation");
    for (int c = 0; c < dataset->channels; c++) {
        moments found;
        TWI_TRY((dataset->dtype == TW_U8 ? measure_u8 : measure_f32)(dataset, c, &found));
        mean[c] = (float)found.mean;
        deviation[c] = (float)found.deviation;
    }
    return TW_OK;
}
