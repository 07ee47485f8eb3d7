/* Whether a normalisation and a padding will do, and the numbers that a normalisation means. Everything done for each
 * sample is in augment.h. */
#include "augment.h"

#include <math.h>

/* No processor's way to round the line leaves the margin; those of the CPU back end take the smallest floats for zero.
 * Of a zero that comes of a difference nobody knows the sign. */
static bool is_on_line(float number, double product, double shift) {
    const double at = product + shift, margin = 0x1p-50 * (fabs(product) + fabs(shift));
    return (float)(at - margin) == number && (float)(at + margin) == number && (margin == 0 || isnormal(number));
}

static twi_byte_line find_line(const float *numbers, double mean, double deviation) {
    const twi_byte_line line = {1 / (255 * deviation), -mean / deviation};
    for (int v = 0; v < 256; v++)
        if (!is_on_line(numbers[v], v * line.scale, line.shift)) return (twi_byte_line){NAN, 0};
    return line;
}

void twi_pixel_fill(float *numbers, tw_dtype dtype, int channels, const tw_normalization *given) {
    for (int c = 0; c < channels; c++, numbers += twi_pixel_numbers(dtype)) {
        const float mean = given->channels ? given->mean[c] : 0;
        const float deviation = given->channels && given->deviation[c] > 0 ? given->deviation[c] : 1;
        if (dtype == TW_U8) {
            for (int v = 0; v < 256; v++) /* in double, so that each entry is rounded once */
                numbers[v] = (float)((v / 255.0 - mean) / deviation);
            const twi_byte_line line = find_line(numbers, mean, deviation);
            memcpy(numbers + 256, &line, sizeof line);
        } else {
            numbers[0] = mean;
            numbers[1] = deviation;
        }
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

tw_status twi_augment_check(const tw_normalization *given, int crop_padding, int channels, int height, int width) {
    if (given->channels && given->channels != channels)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "normalization is given for %d channels, the data set has %d",
                        given->channels, channels);
    TWI_TRY(twi_normalization_check(given));
    const int smaller = height < width ? height : width;
    if (crop_padding < 0 || crop_padding > smaller)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "crop_padding is %d; give 0 .. %d, the smaller side of a sample",
                        crop_padding, smaller);
    return TW_OK;
}
