/* Gradients of a convolution's input by winners, of windows that are two rows high and lie side by side. All winners of
 * a column of the convolution's result add whole rows of the kernel to sums in registers, from window to window down
 * the column: the kernel lies between a row of zeros above and one below, so that a window's upper and lower row take
 * the same sums. Then what the columns made is added up, each at its place. */
#ifndef TWI_CPU_WINNERS_DATA_KERNEL_H
#define TWI_CPU_WINNERS_DATA_KERNEL_H

#include "winners_list_kernel.h"

enum { WINDOW_ROWS = 2 };

/* ---- a column of windows ---- */

/* Winners of `windows` windows, one below the other, each as many as its entry in counts. */
typedef struct winners_column {
    int64_t windows;
    const int32_t *counts, *places;
    const float *gradients, *packed;
    int64_t packed_row;
    float *to; /* the first row of what is made */
    int64_t to_row;
} winners_column;

VEC_INLINE void column_tile(const int kernel_rows, const int vectors, const winners_column *column) {
    enum { MOST = TWI_WINNERS_KERNEL_ROWS + WINDOW_ROWS - 1 };
    const int rows = kernel_rows + WINDOW_ROWS - 1;
    const int64_t packed_row = column->packed_row, to_row = column->to_row;
    const float *gradients = column->gradients;
    const int32_t *places = column->places;
    float *to = column->to;
    vec s[MOST][WINNERS_VECTORS];
    VEC_UNROLL
    for (int r = 0; r < rows; r++) {
        VEC_UNROLL
        for (int v = 0; v < vectors; v++) s[r][v] = vec_splat(0);
    }
    for (int64_t p = 0; p < column->windows; p++) {
        for (int32_t left = column->counts[p]; left > 0; left--) {
            const float *at = column->packed + *places++;
            vec gradient = vec_splat(*gradients++);
            VEC_HELD(gradient);
            VEC_UNROLL
            for (int r = 0; r < rows; r++, at += packed_row) {
                VEC_UNROLL
                for (int v = 0; v < vectors; v++) s[r][v] = vec_fma(gradient, vec_load(at + v * VEC_WIDTH), s[r][v]);
            }
        }
        VEC_UNROLL
        for (int r = 0; r < WINDOW_ROWS; r++, to += to_row) {
            VEC_UNROLL
            for (int v = 0; v < vectors; v++) vec_store(to + v * VEC_WIDTH, s[r][v]);
        }
        VEC_UNROLL
        for (int r = 0; r < rows; r++) {
            VEC_UNROLL
            for (int v = 0; v < vectors; v++) s[r][v] = r + WINDOW_ROWS < rows ? s[r + WINDOW_ROWS][v] : vec_splat(0);
        }
    }
    VEC_UNROLL
    for (int r = 0; r < kernel_rows - 1; r++, to += to_row) {
        VEC_UNROLL
        for (int v = 0; v < vectors; v++) vec_store(to + v * VEC_WIDTH, s[r][v]);
    }
}

#define EACH_COLUMN_ROWS(make, vectors) \
    make(1, vectors) make(2, vectors) make(3, vectors) make(4, vectors) \
        make(5, vectors) make(6, vectors) make(7, vectors)
#define EACH_COLUMN_TILE(make) \
    EACH_COLUMN_ROWS(make, 1)  \
    EACH_COLUMN_ROWS(make, 2)  \
    EACH_COLUMN_ROWS(make, 3)  \
    EACH_COLUMN_ROWS(make, 4)
#define COLUMN_TILE(rows, vectors) \
    static void column_tile_##rows##_##vectors(const winners_column *column) { column_tile(rows, vectors, column); }
EACH_COLUMN_TILE(COLUMN_TILE)
#define COLUMN_TILE_ENTRY(rows, vectors) [rows][vectors] = column_tile_##rows##_##vectors,
static void (*const column_tiles[TWI_WINNERS_KERNEL_ROWS + 1][WINNERS_VECTORS + 1])(const winners_column *) = {
    EACH_COLUMN_TILE(COLUMN_TILE_ENTRY)};

/* ---- the kernel between zeros ---- */

static int64_t packed_channel(const twi_conv_shape *s) {
    return (s->kernel_h + 2 * (WINDOW_ROWS - 1)) * kernel_row_floats(s);
}
static int64_t winners_packed(const twi_conv_shape *s) { return s->out_c * packed_channel(s); }

static void winners_pack(const twi_conv_shape *s, const float *w, float *packed) {
    const int64_t weights = s->kernel_w * s->in_c;
    memset(packed, 0, (size_t)winners_packed(s) * sizeof(float));
    for (int64_t o = 0; o < s->out_c; o++, packed += packed_channel(s)) {
        for (int64_t r = 0; r < s->kernel_h; r++, w += weights)
            memcpy(packed + (r + WINDOW_ROWS - 1) * kernel_row_floats(s), w, (size_t)weights * sizeof(float));
    }
}

/* A winner's place is where its kernel begins, times TWI_WINNERS_WINDOW, and its column in the window. */
static winner_places packed_places(const twi_conv_shape *s, const twi_lanes_pool *pool) {
    const int32_t width = pool->attrs->kernel_w;
    winner_places places = {.channel = (int32_t)packed_channel(s) * TWI_WINNERS_WINDOW};
    for (int i = 0; i < WINDOW_ROWS * width; i++)
        places.of_index[i] =
            (WINDOW_ROWS - 1 - i / width) * (int32_t)kernel_row_floats(s) * TWI_WINNERS_WINDOW + i % width;
    return places;
}

/* ---- lists of an image ---- */

/* For every column of the convolution's result, down its windows. */
typedef struct winners_lists {
    float *gradients;
    int32_t *places, *counts;
} winners_lists;

static void list_winners(const twi_lanes_pool *pool, int64_t channels, const float *gradients, const int32_t *places,
                         const winners_lists *lists) {
    int64_t listed = 0, count = 0;
    for (int64_t q = 0; q < pool->columns; q++) {
        for (int32_t x = 0; x < pool->attrs->kernel_w; x++) {
            for (int64_t p = 0; p < pool->rows; p++) {
                const int64_t window = (p * pool->columns + q) * channels, before = listed;
                for (int64_t c = 0; c < channels; c += VEC_WIDTH) {
                    const vec g = vec_load_some(gradients + window + c, (int)twi_smaller(channels - c, VEC_WIDTH));
                    const vec_mask place = load_places(places + window + c, channels - c);
                    const vec_test here = vec_same(place & (TWI_WINNERS_WINDOW - 1), vec_splat_int(x));
                    listed = vec_append_pairs((vec_test)(here & vec_nonzero(g)), g, place >> TWI_WINNERS_WINDOW_BITS,
                                              lists->gradients, lists->places, listed);
                }
                lists->counts[count++] = (int32_t)(listed - before);
            }
        }
    }
}

/* ---- what the columns made, added up ---- */

/* An image of which every place has room that a column reaches or the input has. */
static int64_t sum_rows(const twi_conv_shape *s, const twi_lanes_pool *pool) {
    return twi_larger(pool->rows * WINDOW_ROWS + s->kernel_h - 1, s->top + s->in_h);
}
static int64_t sum_row(const twi_conv_shape *s, const twi_lanes_pool *pool) {
    return twi_larger(pool->columns * pool->attrs->kernel_w + s->kernel_w - 1, s->left + s->in_w) * s->in_c;
}
static int64_t sum_floats(const twi_conv_shape *s, const twi_lanes_pool *pool) {
    return sum_rows(s, pool) * sum_row(s, pool);
}

/* One column; the last vector of a row has `tail` floats. */
VEC_INLINE void add_column(const int64_t vectors, int64_t rows, const float *from, int64_t from_row, float *to,
                           int64_t to_row, int tail) {
    for (int64_t y = 0; y < rows; y++, from += from_row, to += to_row) {
        const int64_t last = (vectors - 1) * VEC_WIDTH;
        for (int64_t i = 0; i < last; i += VEC_WIDTH) vec_store(to + i, vec_load(to + i) + vec_load(from + i));
        vec_store_some(to + last, vec_load_some(to + last, tail) + vec_load(from + last), tail);
    }
}

/* Rows innermost, since what was just written would be read at once otherwise, across two stores. */
static void add_columns(const twi_conv_shape *s, const twi_lanes_pool *pool, const float *made, float *sums) {
    const int64_t columns = pool->columns * pool->attrs->kernel_w, rows = pool->rows * WINDOW_ROWS + s->kernel_h - 1;
    const int64_t vectors = kernel_vectors(s), row = sum_row(s, pool), made_row = columns * kernel_row_floats(s);
    const int tail = (int)(s->kernel_w * s->in_c - (vectors - 1) * VEC_WIDTH);
    memset(sums, 0, (size_t)sum_floats(s, pool) * sizeof(float));
    for (int64_t x = 0; x < columns; x++, made += kernel_row_floats(s), sums += s->in_c) {
        if (vectors == 2) /* known sizes are unrolled */
            add_column(2, rows, made, made_row, sums, row, tail);
        else
            add_column(vectors, rows, made, made_row, sums, row, tail);
    }
}

/* The inside of such images to the input's gradient. */
static void store_sums(const twi_conv_shape *s, const twi_lanes_pool *pool, const float *sums, int64_t n, int live,
                       twi_lanes_tensor dx) {
    const int64_t row = s->in_w * s->in_c, image = sum_floats(s, pool);
    for (int64_t y = 0; y < s->in_h; y++) {
        const float *from = sums + (y + s->top) * sum_row(s, pool) + s->left * s->in_c;
        if (dx.turned) {
            to_lanes(from, image, live, row, (float *)dx.data + n * s->in_h * row + y * row * VEC_WIDTH);
            continue;
        }
        for (int sample = 0; sample < live; sample++)
            memcpy((float *)dx.data + ((n + sample) * s->in_h + y) * row, from + sample * image,
                   (size_t)row * sizeof(float));
    }
}

/* ---- all of it ---- */

static int64_t made_floats(const twi_conv_shape *s, const twi_lanes_pool *pool) {
    return (pool->rows * WINDOW_ROWS + s->kernel_h - 1) * pool->columns * pool->attrs->kernel_w * kernel_row_floats(s);
}
static int64_t counts_of(const twi_lanes_pool *pool) { return pool->rows * pool->columns * pool->attrs->kernel_w; }

static int64_t winners_data_scratch(const twi_conv_shape *s, const twi_lanes_pool *pool) {
    return made_floats(s, pool) + VEC_WIDTH * sum_floats(s, pool) +
           2 * whole_vectors(winners_count(pool, s->out_c) + VEC_WIDTH) + whole_vectors(counts_of(pool)) +
           winners_block_floats(pool, s->out_c);
}

/* The columns of an image. */
static void make_columns(const twi_conv_shape *s, const twi_lanes_pool *pool, const winners_lists *lists,
                         const float *packed, float *made) {
    const int64_t vectors = kernel_vectors(s), columns = pool->columns * pool->attrs->kernel_w;
    const int64_t most = twi_smaller(WINNERS_VECTORS, WINNERS_REGISTERS / (s->kernel_h + WINDOW_ROWS - 1));
    const int64_t parts = twi_part_count(vectors, most);
    const int64_t row = kernel_row_floats(s);
    winners_column column = {.windows = pool->rows, .packed_row = row, .to_row = columns * row};
    for (int64_t part = 0; part < parts; part++) {
        const int64_t first = twi_part_begin(vectors, parts, part), end = twi_part_begin(vectors, parts, part + 1);
        column.counts = lists->counts, column.gradients = lists->gradients, column.places = lists->places;
        column.packed = packed + first * VEC_WIDTH;
        for (int64_t x = 0; x < columns; x++) {
            column.to = made + x * row + first * VEC_WIDTH;
            column_tiles[s->kernel_h][end - first](&column);
            for (int64_t p = 0; p < pool->rows; p++) {
                const int32_t count = *column.counts++;
                column.gradients += count, column.places += count;
            }
        }
    }
}

static void winners_data(const twi_conv_shape *s, twi_lanes_tensor dy, const twi_lanes_pool *pool, const float *packed,
                         twi_lanes_tensor dx, float *scratch) {
    const int64_t count = winners_count(pool, s->out_c), list = whole_vectors(count + VEC_WIDTH);
    float *made = scratch, *sums = made + made_floats(s, pool);
    winners_lists lists = {.gradients = sums + VEC_WIDTH * sum_floats(s, pool)};
    lists.places = (int32_t *)(lists.gradients + list);
    lists.counts = lists.places + list;
    float *rest = (float *)(lists.counts + whole_vectors(counts_of(pool)));
    const winner_places places = packed_places(s, pool);
    for (int64_t n = 0; n < s->samples; n += VEC_WIDTH) {
        const int live = (int)twi_smaller(VEC_WIDTH, s->samples - n);
        const winners_block block = winners_of_block(pool, dy, s->out_c, n, live, &places, false, rest);
        for (int sample = 0; sample < live; sample++) {
            list_winners(pool, s->out_c, block.gradients + sample * count, block.places + sample * count, &lists);
            make_columns(s, pool, &lists, packed, made);
            add_columns(s, pool, made, sums + sample * sum_floats(s, pool));
        }
        store_sums(s, pool, sums, n, live, dx);
    }
}

#endif
