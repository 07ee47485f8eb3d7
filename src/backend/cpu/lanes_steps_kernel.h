/* Light steps on blocks of samples in lanes, beside the convolutions: gradients of bias and relu, and the order of
 * rows. */
#ifndef TWI_CPU_LANES_STEPS_KERNEL_H
#define TWI_CPU_LANES_STEPS_KERNEL_H

#include "lanes_turn_kernel.h"

static int64_t bias_relu_scratch(int64_t channels) { return channels * VEC_WIDTH; }

static void bias_relu(int64_t samples, int64_t pixels, int64_t channels, const float *dy, const float *y, float *g,
                      bool add, float *db, float *scratch) {
    const int64_t channel_floats = channels * VEC_WIDTH, block = pixels * channel_floats;
    memset(scratch, 0, (size_t)channel_floats * sizeof(float));
    for (int64_t n = 0, at = 0; n < samples; n += VEC_WIDTH) {
        const vec_test live = live_lanes((int)twi_smaller(VEC_WIDTH, samples - n));
        for (int64_t end = at + block; at < end;) {
            for (int64_t c = 0; c < channel_floats; c += VEC_WIDTH, at += VEC_WIDTH) {
                vec v = vec_keep(live, vec_load(dy + at));
                if (y) {
                    v = vec_keep(vec_positive(vec_load(y + at)), v);
                    vec_store(g + at, v);
                }
                vec_store(scratch + c, vec_load(scratch + c) + v);
            }
        }
    }
    sum_lanes(scratch, channels, add, db);
}

/* Four pixels of a channel at a time, which are neighbours in the rows; the last four may overlap those before. */
static void image_to_rows(int64_t samples, int64_t pixels, int64_t channels, const float *image, float *rows) {
    const int64_t sample = pixels * channels, step = channels * VEC_WIDTH;
    for (int64_t n = 0; n < samples; n += VEC_WIDTH, image += sample * VEC_WIDTH, rows += sample * VEC_WIDTH) {
        int live = (int)twi_smaller(VEC_WIDTH, samples - n);
        for (int64_t c = 0; c < channels; c++) {
            for (int64_t p = 0; live == VEC_WIDTH && pixels >= 4 && p < pixels; p += 4) {
                const int64_t at = twi_smaller(p, pixels - 4);
                vec v[4];
                VEC_UNROLL
                for (int r = 0; r < 4; r++) v[r] = vec_load(image + (at + r) * step + c * VEC_WIDTH);
                vec_store_columns(rows + c * pixels + at, sample, v);
            }
            for (int64_t p = 0; (live < VEC_WIDTH || pixels < 4) && p < pixels; p++) {
                for (int lane = 0; lane < live; lane++)
                    rows[lane * sample + c * pixels + p] = image[p * step + c * VEC_WIDTH + lane];
            }
        }
    }
}

/* And back; lanes without a sample become 0. */
static void rows_to_image(int64_t samples, int64_t pixels, int64_t channels, const float *rows, float *image) {
    const int64_t sample = pixels * channels, step = channels * VEC_WIDTH;
    for (int64_t n = 0; n < samples; n += VEC_WIDTH, image += sample * VEC_WIDTH, rows += sample * VEC_WIDTH) {
        int live = (int)twi_smaller(VEC_WIDTH, samples - n);
        for (int64_t c = 0; c < channels; c++) {
            for (int64_t p = 0; live == VEC_WIDTH && pixels >= 4 && p < pixels; p += 4) {
                const int64_t at = twi_smaller(p, pixels - 4);
                vec v[4];
                VEC_UNROLL
                for (int r = 0; r < 4; r++) {
                    const float *from[QUADS];
                    VEC_UNROLL
                    for (int q = 0; q < QUADS; q++) from[q] = rows + (4 * q + r) * sample + c * pixels + at;
                    v[r] = vec_from_quads(from);
                }
                vec_transpose4(v);
                VEC_UNROLL
                for (int r = 0; r < 4; r++) vec_store(image + (at + r) * step + c * VEC_WIDTH, v[r]);
            }
            for (int64_t p = 0; (live < VEC_WIDTH || pixels < 4) && p < pixels; p++) {
                for (int lane = 0; lane < VEC_WIDTH; lane++)
                    image[p * step + c * VEC_WIDTH + lane] = lane < live ? rows[lane * sample + c * pixels + p] : 0;
            }
        }
    }
}

#endif
