/* How the sums of a convolution in lanes are cut into tiles that registers hold: output channels x positions, or taps. */
#ifndef TWI_CPU_LANES_TILING_KERNEL_H
#define TWI_CPU_LANES_TILING_KERNEL_H

#include "conv_lanes.h"
#include "parts.h"
#include "vec.h"

enum {
    TILE_OUTS = 6,                         /* output channels of a tile */
    TILE_MOST = 6,                         /* positions, or taps, of a tile */
    TILE_SUMS = VEC_WIDTH == 16 ? 24 : 12, /* of 32 and of 16 registers */
};

/* A length cut into parts as even as can be; the larger ones lie in the middle, since at the ends of a row there may be
 * less to do. */
typedef struct cut {
    int64_t parts, size, larger; /* `larger` of them have one more than `size` */
} cut;

static cut cut_of(int64_t length, int64_t parts) { return (cut){parts, length / parts, length % parts}; }
static int64_t part_of(const cut *c, int64_t p) {
    const int64_t before = (c->parts - c->larger) / 2;
    return c->size + (p >= before && p < before + c->larger);
}

/* How a plane of outs x cells sums is cut into tiles. */
typedef struct tile_cuts {
    cut outs, cells;
} tile_cuts;

/* The taps of positions x .. x+cells-1 that touch more than zeros at the sides: first .. end-1 of kernel_w. */
static void column_taps(const twi_conv_shape *s, int64_t x, int64_t cells, int64_t *first, int64_t *end) {
    int64_t last_pixel = s->left + (s->in_w - 1) * s->spread_w;
    *first = 0, *end = s->kernel_w;
    while (*first < *end && (x + cells - 1) * s->stride_w + *first * s->dilation_w < s->left) ++*first;
    while (*first < *end && x * s->stride_w + (*end - 1) * s->dilation_w > last_pixel) --*end;
}

/* Half cycles of a step of a tile: two products, or two loads, a cycle; a sum can be added to every fourth. And of what a
 * tile takes beside its steps, found by trial: tilings are compared by it, and nothing else depends on it. */
static int64_t step_time(int64_t outs, int64_t cells) {
    return twi_larger(twi_larger(outs * cells, outs + cells), 8) + 1;
}
enum { TILE_TIME = 60 };

/* Of all tiles of a plane of outs x cells sums. steps: of a tile, where it does not depend on the columns; else for each
 * column of the kernel, of the shape `s`. */
static int64_t tiling_time(const twi_conv_shape *s, cut outs, cut cells, int64_t steps) {
    int64_t time = 0, x = 0;
    for (int64_t cp = 0; cp < cells.parts; x += part_of(&cells, cp++)) {
        int64_t first = 0, end = 1, size = part_of(&cells, cp);
        if (s) column_taps(s, x, size, &first, &end);
        time += outs.parts * TILE_TIME + steps * (end - first) *
                                             ((outs.parts - outs.larger) * step_time(outs.size, size) +
                                              outs.larger * step_time(outs.size + 1, size));
    }
    return time;
}

static twi_lanes_tiling best_tiling(const twi_conv_shape *s, int64_t outs, int64_t cells, int64_t steps) {
    twi_lanes_tiling best = {1, 1};
    int64_t best_time = INT64_MAX;
    for (int64_t o = 1; o <= TILE_OUTS; o++) {
        for (int64_t c = 1; c <= TILE_MOST && o * c <= TILE_SUMS; c++) {
            twi_lanes_tiling t = {twi_part_count(outs, o), twi_part_count(cells, c)};
            int64_t time = tiling_time(s, cut_of(outs, t.out_parts), cut_of(cells, t.cell_parts), steps);
            if (time < best_time) best_time = time, best = t;
        }
    }
    return best;
}

/* For every size of tile. */
#define EACH_TILE_NARROW(make, outs) make(outs, 1) make(outs, 2) make(outs, 3) make(outs, 4)
#define EACH_TILE_WIDE(make, outs) EACH_TILE_NARROW(make, outs) make(outs, 5) make(outs, 6)
#define EACH_TILE(make)     \
    EACH_TILE_WIDE(make, 1) \
    EACH_TILE_WIDE(make, 2) \
    EACH_TILE_WIDE(make, 3) EACH_TILE_WIDE(make, 4) EACH_TILE_NARROW(make, 5) EACH_TILE_NARROW(make, 6)

#endif
