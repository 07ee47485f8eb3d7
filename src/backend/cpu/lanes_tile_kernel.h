/* Tiles of output channels x positions of a convolution in lanes, whose sums stay in registers over all taps of the kernel. */
#ifndef TWI_CPU_LANES_TILE_KERNEL_H
#define TWI_CPU_LANES_TILE_KERNEL_H

#include "lanes_pool_kernel.h"
#include "lanes_tiling_kernel.h"

/* A window of 2 x 2 positions as a tile. */
enum { WINDOW = 4, WINDOW_OUTS = TILE_SUMS / WINDOW };
#if VEC_WIDTH == 16
#define EACH_WINDOW_TILE(make) make(1) make(2) make(3) make(4) make(5) make(6)
#else
#define EACH_WINDOW_TILE(make) make(1) make(2) make(3)
#endif

/* What a tile of output channels x positions runs over: kernel rows, in them runs of taps that are neighbours in the
 * image and in the kernel, in them single floats (vectors, in the image). Steps are in floats. */
typedef struct forward_walk {
    int64_t rows, image_row, weight_row;
    int64_t runs, image_run, run;
    const float *image, *weight, *bias;
    int64_t image_pixel, weight_out;
    bool relu;
    float *to;
    int64_t to_pixel;
    /* of tiles of windows */
    int64_t window_row;
    uint8_t *index;
} forward_walk;

/* Where cell c of a tile lies in the image: beside the one before it, or, of the four of a window, two by two. */
VEC_INLINE int64_t cell_at(const bool window, int c, int64_t pixel, int64_t row) {
    return window ? c % 2 * pixel + c / 2 * row : c * pixel;
}

/* What one float of the kernel, for every output channel, adds to the sums. */
VEC_INLINE void forward_step(const int outs, const int cells, const bool window, const float *w, int64_t out,
                             const float *x, int64_t pixel, int64_t row, vec s[TILE_OUTS][TILE_MOST]) {
    if (outs <= cells) { /* the shorter side stays in registers */
        vec weight[TILE_OUTS];
        VEC_UNROLL
        for (int o = 0; o < outs; o++) weight[o] = vec_splat(w[o * out]);
        VEC_UNROLL
        for (int c = 0; c < cells; c++) {
            vec at = vec_load(x + cell_at(window, c, pixel, row));
            VEC_HELD(at);
            VEC_UNROLL
            for (int o = 0; o < outs; o++) s[o][c] = vec_fma(weight[o], at, s[o][c]);
        }
    } else {
        vec at[TILE_MOST];
        VEC_UNROLL
        for (int c = 0; c < cells; c++) at[c] = vec_load(x + cell_at(window, c, pixel, row));
        VEC_UNROLL
        for (int o = 0; o < outs; o++) {
            vec weight = vec_splat(w[o * out]);
            VEC_UNROLL
            for (int c = 0; c < cells; c++) s[o][c] = vec_fma(weight, at[c], s[o][c]);
        }
    }
    VEC_STEP_END();
}

VEC_INLINE void forward_sums(const int outs, const int cells, const bool window, const forward_walk *walk,
                             vec s[TILE_OUTS][TILE_MOST]) {
    const int64_t pixel = walk->image_pixel, row = walk->window_row, out = walk->weight_out;
    const int64_t image_row = walk->image_row, weight_row = walk->weight_row;
    const int64_t image_run = walk->image_run, run = walk->run, runs = walk->runs;
    const float *weights = walk->weight, *image = walk->image;
    VEC_UNROLL
    for (int o = 0; o < outs; o++) {
        VEC_UNROLL
        for (int c = 0; c < cells; c++) s[o][c] = vec_splat(walk->bias[o]);
    }
    for (int64_t rows = walk->rows; rows > 0; rows--, weights += weight_row, image += image_row) {
        const float *w = weights, *from = image;
        for (int64_t r = runs; r > 0; r--, from += image_run) {
            const float *x = from;
            for (int64_t t = run; t > 0; t--, w++, x += VEC_WIDTH)
                forward_step(outs, cells, window, w, out, x, pixel, row, s);
        }
    }
}

VEC_INLINE void forward_tile(const int outs, const int cells, const forward_walk *walk) {
    vec s[TILE_OUTS][TILE_MOST];
    forward_sums(outs, cells, false, walk, s);
    if (walk->relu) {
        VEC_UNROLL
        for (int o = 0; o < outs; o++) {
            VEC_UNROLL
            for (int c = 0; c < cells; c++) s[o][c] = vec_relu(s[o][c]);
        }
    }
    const int64_t to_pixel = walk->to_pixel;
    float *to = walk->to;
    VEC_UNROLL
    for (int c = 0; c < cells; c++, to += to_pixel) {
        VEC_UNROLL
        for (int o = 0; o < outs; o++) vec_store(to + o * VEC_WIDTH, s[o][c]);
    }
}

#define FORWARD_TILE(outs, cells) \
    static void forward_tile_##outs##_##cells(const forward_walk *walk) { forward_tile(outs, cells, walk); }
EACH_TILE(FORWARD_TILE)
#define FORWARD_ENTRY(outs, cells) [outs][cells] = forward_tile_##outs##_##cells,
static void (*const forward_tiles[TILE_OUTS + 1][TILE_MOST + 1])(const forward_walk *) = {EACH_TILE(FORWARD_ENTRY)};

/* The largest of the 2 x 2 positions of a window, and its number. */
VEC_INLINE void window_store(const vec window[WINDOW], bool relu, float *to, uint8_t *index) {
    vec largest = window[0];
    vec_mask winner = vec_splat_int(0);
    VEC_UNROLL
    for (int c = 1; c < WINDOW; c++) {
        const vec_test better = vec_beats(window[c], largest);
        largest = vec_choose(better, window[c], largest);
        winner = vec_choose_int(better, vec_splat_int(c), winner);
    }
    vec_store(to, relu ? vec_relu(largest) : largest);
    store_bytes(index, winner);
}

/* A window of 2 x 2 positions, which are not stored. */
VEC_INLINE void window_tile(const int outs, const forward_walk *walk) {
    vec s[TILE_OUTS][TILE_MOST];
    forward_sums(outs, WINDOW, true, walk, s);
    VEC_UNROLL
    for (int o = 0; o < outs; o++) window_store(s[o], walk->relu, walk->to + o * VEC_WIDTH, walk->index + o * VEC_WIDTH);
}

#define WINDOW_TILE(outs) \
    static void window_tile_##outs(const forward_walk *walk) { window_tile(outs, walk); }
EACH_WINDOW_TILE(WINDOW_TILE)
#define WINDOW_ENTRY(outs) [outs] = window_tile_##outs,
static void (*const window_tiles[WINDOW_OUTS + 1])(const forward_walk *) = {EACH_WINDOW_TILE(WINDOW_ENTRY)};

#endif
