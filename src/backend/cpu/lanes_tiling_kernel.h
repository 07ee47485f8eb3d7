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

/* A length cut into parts: some at the ends, and between them parts as even as can be, of which the larger ones lie in the middle. */
typedef struct cut {
    int64_t parts, left, right, edge; /* those at the ends are `edge` long */
    int64_t size, larger;             /* `larger` of the others have one more than `size` */
} cut;

static cut cut_of(int64_t length, int64_t parts) { return (cut){parts, 0, parts, 0, length / parts, length % parts}; }
static cut cells_of(int64_t length, const twi_lanes_tiling *t) {
    const int64_t rest = length - (t->left + t->right) * t->edge;
    return (cut){t->left + t->middle + t->right, t->left, t->left + t->middle, t->edge, rest / t->middle, rest % t->middle};
}
static int64_t part_of(const cut *c, int64_t p) {
    const int64_t before = c->left + (c->right - c->left - c->larger) / 2;
    return p < c->left || p >= c->right ? c->edge : c->size + (p >= before && p < before + c->larger);
}

/* How a plane of outs x cells sums is cut into tiles. */
typedef struct tile_cuts {
    cut outs, cells;
} tile_cuts;

static tile_cuts tile_cuts_of(const twi_lanes_tiling *t, int64_t outs, int64_t cells) {
    return (tile_cuts){cut_of(outs, t->outs), cells_of(cells, t)};
}

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

/* Of all tiles of a plane of sums. steps: of a tile, where it does not depend on the columns; else for each column of the kernel,
 * of the shape `s`. */
static int64_t tiling_time(const twi_conv_shape *s, const tile_cuts *t, int64_t steps) {
    int64_t time = 0, x = 0;
    for (int64_t cp = 0; cp < t->cells.parts; x += part_of(&t->cells, cp++)) {
        int64_t first = 0, end = 1, size = part_of(&t->cells, cp);
        if (s) column_taps(s, x, size, &first, &end);
        time += t->outs.parts * TILE_TIME + steps * (end - first) *
                                                ((t->outs.parts - t->outs.larger) * step_time(t->outs.size, size) +
                                                 t->outs.larger * step_time(t->outs.size + 1, size));
    }
    return time;
}

typedef struct best_tiles {
    twi_lanes_tiling tiling;
    int64_t time;
} best_tiles;

static void consider_tiling(const twi_conv_shape *s, int64_t outs, int64_t cells, int64_t steps,
                            const twi_lanes_tiling *t, best_tiles *best) {
    const tile_cuts tiles = tile_cuts_of(t, outs, cells);
    const int64_t time = tiling_time(s, &tiles, steps);
    if (time < best->time) *best = (best_tiles){*t, time};
}

/* Where a few columns at the sides lie on fewer taps than the rest, tiles of their own do less that is in vain. */
enum { EDGE_PARTS = 3, EDGE_MOST = 3 };

static twi_lanes_tiling best_tiling(const twi_conv_shape *s, int64_t outs, int64_t cells, int64_t steps) {
    best_tiles best = {{1, 1, 0, 0, 0}, INT64_MAX};
    const int64_t edge_parts = s && s->kernel_w > 1 ? EDGE_PARTS : 0;
    for (int64_t o = 1; o <= TILE_OUTS; o++)
        for (int64_t c = 1; c <= TILE_MOST && o * c <= TILE_SUMS; c++)
            for (int64_t edge = 1; edge <= (edge_parts ? twi_smaller(c, EDGE_MOST) : 1); edge++)
                for (int64_t left = 0; left <= edge_parts; left++)
                    for (int64_t right = 0; right <= edge_parts && (left + right) * edge < cells; right++) {
                        const int64_t middle = twi_part_count(cells - (left + right) * edge, c);
                        consider_tiling(s, outs, cells, steps,
                                        &(twi_lanes_tiling){twi_part_count(outs, o), middle, left, right, edge}, &best);
                    }
    return best.tiling;
}

/* For every size of tile. */
#define EACH_TILE_NARROW(make, outs) make(outs, 1) make(outs, 2) make(outs, 3) make(outs, 4)
#define EACH_TILE_WIDE(make, outs) EACH_TILE_NARROW(make, outs) make(outs, 5) make(outs, 6)
#define EACH_TILE(make)     \
    EACH_TILE_WIDE(make, 1) \
    EACH_TILE_WIDE(make, 2) \
    EACH_TILE_WIDE(make, 3) EACH_TILE_WIDE(make, 4) EACH_TILE_NARROW(make, 5) EACH_TILE_NARROW(make, 6)

#endif
