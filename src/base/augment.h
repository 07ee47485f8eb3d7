/* What becomes of a sample on its way from a data set into a network: normalised, perhaps mirrored and shifted. The
 * arithmetic alone, shared by all who make samples (a loader's workers, programs that gather their own batches), so
 * that they make the same floats, bit for bit. */
#ifndef TWI_BASE_AUGMENT_H
#define TWI_BASE_AUGMENT_H

#include "philox.h"
#include "status.h"
#include <talweg/data.h>

#include <string.h>

/* What may happen to samples. */
typedef struct twi_augment {
    uint64_t seed;
    bool flip;
    int32_t crop_padding;
} twi_augment;

/* What chance does to one sample: mirrored first, then looked at through a window shifted by (down, right). Outside the
 * sample there are zeros: the mean after normalisation. */
typedef struct twi_change {
    bool flip;
    int32_t down, right;
} twi_change;

/* Depends on seed, epoch and sample alone. */
TWI_HOST_DEVICE static inline twi_change twi_augment_draw(const twi_augment *augment, uint64_t epoch, uint64_t sample) {
    twi_change drawn = {false, 0, 0};
    if (!augment->flip && !augment->crop_padding) return drawn;
    uint32_t words[4], places = 2 * (uint32_t)augment->crop_padding + 1;
    twi_draw(augment->seed, TWI_PURPOSE_AUGMENT, epoch, sample, words);
    drawn.flip = augment->flip && words[0] >> 31;
    drawn.down = (int32_t)twi_below(words[1], places) - augment->crop_padding;
    drawn.right = (int32_t)twi_below(words[2], places) - augment->crop_padding;
    return drawn;
}

static inline bool twi_change_is_none(twi_change change) { return !change.flip && !change.down && !change.right; }

/* A row of a changed sample: `left` zeros, `count` pixels of a plane from index `first` on by `step`, `right` zeros. */
typedef struct twi_changed_row {
    int64_t left, count, right;
    int64_t first, step;
} twi_changed_row;

static inline twi_changed_row twi_change_row(twi_change change, int64_t height, int64_t width, int64_t y) {
    const int64_t row = y + change.down;
    const int64_t left = change.right < 0 ? -change.right : 0, right = change.right > 0 ? change.right : 0;
    twi_changed_row changed = {width, 0, 0, 0, 1};
    if (row < 0 || row >= height || left + right >= width) return changed;
    changed.left = left;
    changed.count = width - left - right;
    changed.right = right;
    changed.first = row * width + (change.flip ? width - 1 - right : right);
    changed.step = change.flip ? -1 : 1;
    return changed;
}

/* Bytes on a line: `(float)(x * scale + shift)`, in double, is the float of byte x to the bit, whether the product is
 * rounded by itself or not. If that does not hold for all of them, scale is not a number. */
typedef struct twi_byte_line {
    double scale, shift;
} twi_byte_line;

/* Of each channel the numbers that make floats of stored pixels: of u8 the float of each byte and then the line, of f32
 * mean and deviation. */
static inline int64_t twi_pixel_numbers(tw_dtype dtype) {
    return dtype == TW_U8 ? 256 + (int64_t)(sizeof(twi_byte_line) / sizeof(float)) : 2;
}
/* numbers: channels x twi_pixel_numbers(dtype). */
void twi_pixel_fill(float *numbers, tw_dtype dtype, int channels, const tw_normalization *given);
TWI_HOST_DEVICE static inline float twi_pixel_of_u8(uint8_t x, const float *numbers) { return numbers[x]; }
static inline twi_byte_line twi_pixel_line(const float *numbers) {
    twi_byte_line line;
    memcpy(&line, numbers + 256, sizeof line);
    return line;
}
TWI_HOST_DEVICE static inline float twi_pixel_of_f32(float x, const float *numbers) { return (x - numbers[0]) / numbers[1]; }

/* Is this a normalisation that any data set could have? Errors: ARGUMENT. */
tw_status twi_normalization_check(const tw_normalization *normalization);
/* Do normalisation and padding go with samples of this size? Errors: ARGUMENT. */
tw_status twi_augment_check(const tw_normalization *normalization, int crop_padding, int channels, int height,
                            int width);

#endif
