/* Products whose first matrix may have many zeros, as a gradient behind a relu has. Of rows that have many, those
 * elements that are not zero are listed, and each is multiplied with a row of b: as many products as there are of them,
 * in the order of `outer`, whose bits they so have, but for the sign of a zero that a sum has become by underflow. All other
 * rows go by `outer`. Included by gemm_kernel.h. */
#ifndef TWI_CPU_GEMM_SPARSE_KERNEL_H
#define TWI_CPU_GEMM_SPARSE_KERNEL_H

#include "vec_list.h"

enum { SPARSE_PANEL = TWI_SPARSE_VECTORS * VEC_WIDTH };
/* Of elements not zero, the most at which lists are faster, and where rows of b are such that panels are copied. */
#define SPARSE_SHARE 0.6
#define SPARSE_SHARE_COPIED 0.33

/* ---- lists ---- */

typedef struct sparse_lists {
    float *panel;  /* a copy of b's */
    float *sums;   /* of every row a panel's, between two parts of its terms */
    float *turned; /* rows of a that do not run along k: as if they did */
    float *value;  /* what is not zero of row r, from r * room on */
    int32_t *term; /* and where along k it stands, counted from its part of TWI_SPARSE_DEPTH */
    int64_t room;
    int64_t end[TWI_SPARSE_ROWS][TWI_GEMM_DEPTH / TWI_SPARSE_DEPTH]; /* of a row's parts, in its list */
} sparse_lists;

static sparse_lists sparse_lists_in(int64_t rows, int64_t depth, float *scratch) {
    enum { LINE = 16 };
    sparse_lists lists = {.room = depth + VEC_WIDTH};
    lists.panel = scratch + (LINE - (uintptr_t)scratch / sizeof *scratch % LINE) % LINE;
    lists.sums = lists.panel + TWI_SPARSE_DEPTH * SPARSE_PANEL;
    lists.turned = lists.sums + rows * SPARSE_PANEL;
    lists.value = lists.turned + TWI_SPARSE_GROUP * depth;
    lists.term = (int32_t *)(lists.value + rows * lists.room);
    return lists;
}

static void list_row(int64_t k, const float *row, int r, sparse_lists *lists) {
    float *value = lists->value + r * lists->room;
    int32_t *term = lists->term + r * lists->room;
    vec_mask first = {0};
    for (int i = 0; i < VEC_WIDTH; i++) first[i] = i;
    int64_t count = 0;
    for (int64_t part = 0, t = 0; t < k; part++) {
        const int64_t begin = t, stop = twi_smaller(k, t + TWI_SPARSE_DEPTH);
        for (; t < stop; t += VEC_WIDTH) {
            const vec v = vec_load_some(row + t, (int)twi_smaller(VEC_WIDTH, k - t));
            count =
                vec_append_pairs(vec_nonzero(v), v, first + vec_splat_int((int32_t)(t - begin)), value, term, count);
        }
        lists->end[r][part] = count;
    }
}

/* Lists a group's rows as those from `at` on. */
static void list_group(int64_t rows, int64_t k, const float *a, int64_t a_row, int64_t a_step, int64_t at,
                       sparse_lists *lists) {
    if (a_step != 1) {
        transpose(k, rows, a, a_step, lists->turned, k);
        a = lists->turned, a_row = k;
    }
    for (int64_t r = 0; r < rows; r++) list_row(k, a + r * a_row, (int)(at + r), lists);
}

/* Elements that are not zero, of lines of so many one after the other. */
static int64_t count_nonzeros(int64_t lines, int64_t length, const float *line, int64_t apart) {
    int64_t count = 0;
    for (int64_t i = 0; i < lines; i++, line += apart)
        for (int64_t t = 0; t < length; t += VEC_WIDTH)
            count += vec_test_count(vec_nonzero(vec_load_some(line + t, (int)twi_smaller(VEC_WIDTH, length - t))));
    return count;
}

/* ---- sums of a row: vectors of it, in registers ---- */

typedef struct sparse_walk {
    int64_t count;
    const float *value;
    const int32_t *term;
    const float *b;
    int64_t b_row;
    bool first, last; /* of the parts of a sum, which lies in `sums` between them */
    float *sums;
    const outer_end *end; /* what becomes of it behind the last */
    int64_t row;
    float *c;
    int lanes; /* of the last vector */
} sparse_walk;

VEC_INLINE void sparse_tile(const int vectors, const sparse_walk *walk) {
    vec s[TWI_SPARSE_VECTORS];
    VEC_UNROLL
    for (int v = 0; v < vectors; v++) s[v] = walk->first ? (vec){0} : vec_load(walk->sums + v * VEC_WIDTH);
    const float *const b = walk->b;
    const int64_t b_row = walk->b_row, count = walk->count;
    for (int64_t e = 0; e < count; e++) {
        const float *row = b + walk->term[e] * b_row;
        vec value = vec_splat(walk->value[e]);
        VEC_HELD(value);
        VEC_UNROLL
        for (int v = 0; v < vectors; v++) s[v] = vec_fma(value, vec_load(row + v * VEC_WIDTH), s[v]);
    }
    if (!walk->last) {
        VEC_UNROLL
        for (int v = 0; v < vectors; v++) vec_store(walk->sums + v * VEC_WIDTH, s[v]);
        return;
    }
    outer_row(vectors, s, walk->lanes, walk->end, walk->row, walk->c);
}

#define SPARSE_TILE(vectors) \
    static void sparse_tile_##vectors(const sparse_walk *walk) { sparse_tile(vectors, walk); }
SPARSE_TILE(1)
SPARSE_TILE(2)
SPARSE_TILE(3)
SPARSE_TILE(4)
SPARSE_TILE(5)
SPARSE_TILE(6)
SPARSE_TILE(7)
static void (*const sparse_tiles[TWI_SPARSE_VECTORS + 1])(const sparse_walk *) = {
    NULL, sparse_tile_1, sparse_tile_2, sparse_tile_3, sparse_tile_4, sparse_tile_5, sparse_tile_6, sparse_tile_7,
};

/* ---- products ---- */

/* Panels of b are copied where its rows are so far apart that they lie across lines of the cache or meet in few places
 * of it; also where they begin within a line, or a panel ends within a vector. */
enum { SPARSE_LINE = 16 };
static bool wants_copies(int64_t b_row) {
    enum { APART = 8 };
    return b_row % SPARSE_LINE != 0 || b_row / SPARSE_LINE % APART == 0;
}

static void sparse_pack(int64_t k, int64_t columns, const float *b, int64_t b_row, float *to) {
    const int64_t vectors = twi_part_count(columns, VEC_WIDTH);
    for (int64_t t = 0; t < k; t++, b += b_row, to += SPARSE_PANEL)
        for (int64_t v = 0; v < vectors; v++)
            vec_store(to + v * VEC_WIDTH,
                      vec_load_some(b + v * VEC_WIDTH, (int)twi_smaller(VEC_WIDTH, columns - v * VEC_WIDTH)));
}

/* So many columns of the listed rows. */
static void sparse_panel(int64_t rows, int64_t columns, int64_t k, const float *b, int64_t b_row, bool copied,
                         const outer_end *end, float *c, int64_t c_row, const sparse_lists *lists) {
    const int64_t vectors = twi_part_count(columns, VEC_WIDTH), parts = twi_part_count(k, TWI_SPARSE_DEPTH);
    sparse_walk walk = {.end = end, .lanes = (int)(columns - (vectors - 1) * VEC_WIDTH)};
    for (int64_t part = 0; part < parts; part++, b += TWI_SPARSE_DEPTH * b_row) {
        walk.b = b, walk.b_row = b_row;
        if (copied) {
            sparse_pack(twi_smaller(TWI_SPARSE_DEPTH, k - part * TWI_SPARSE_DEPTH), columns, b, b_row, lists->panel);
            walk.b = lists->panel, walk.b_row = SPARSE_PANEL;
        }
        walk.first = part == 0, walk.last = part == parts - 1;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t from = part ? lists->end[r][part - 1] : 0;
            walk.count = lists->end[r][part] - from;
            walk.value = lists->value + r * lists->room + from;
            walk.term = lists->term + r * lists->room + from;
            walk.sums = lists->sums + r * SPARSE_PANEL;
            walk.row = r, walk.c = c + r * c_row;
            sparse_tiles[vectors](&walk);
        }
    }
}

static void sparse_rows(int64_t rows, int64_t n, int64_t k, const float *b, int64_t b_row, const outer_end *end,
                        float *c, int64_t c_row, const sparse_lists *lists) {
    const int64_t vectors = twi_part_count(n, VEC_WIDTH), panels = twi_part_count(vectors, TWI_SPARSE_VECTORS);
    const bool copied = wants_copies(b_row) || (uintptr_t)b % (SPARSE_LINE * sizeof *b) != 0;
    for (int64_t p = 0; p < panels; p++) {
        const int64_t j = twi_part_begin(vectors, panels, p) * VEC_WIDTH,
                      stop = twi_smaller(n, twi_part_begin(vectors, panels, p + 1) * VEC_WIDTH);
        sparse_panel(rows, stop - j, k, b + j, b_row, copied || (stop - j) % VEC_WIDTH, end, c + j, c_row, lists);
    }
}

/* One block of k. */
typedef struct sparse_block {
    int64_t m, n, k;
    const float *a, *b;
    int64_t a_row, a_step, b_row;
    const outer_end *end;
    float *c;
    int64_t c_row;
    float *scratch; /* of one kind of rows after the other */
} sparse_block;

static bool group_is_sparse(const sparse_block *p, int64_t i) {
    const int64_t rows = twi_smaller(TWI_SPARSE_GROUP, p->m - i);
    const float *a = p->a + i * p->a_row;
    const int64_t count =
        p->a_step == 1 ? count_nonzeros(rows, p->k, a, p->a_row) : count_nonzeros(p->k, rows, a, p->a_step);
    return (double)count <= (wants_copies(p->b_row) ? SPARSE_SHARE_COPIED : SPARSE_SHARE) * (double)(rows * p->k);
}

/* Where a run of groups of one kind ends that begins at row i: of listed ones, as many as there is room for. */
static int64_t run_end(const sparse_block *p, int64_t i, bool listed) {
    const int64_t most = listed ? twi_smaller(p->m, i + TWI_SPARSE_ROWS) : p->m;
    int64_t stop = twi_smaller(most, i + TWI_SPARSE_GROUP);
    while (stop < most && group_is_sparse(p, stop) == listed) stop = twi_smaller(most, stop + TWI_SPARSE_GROUP);
    return stop;
}

static void run_listed(const sparse_block *p, int64_t i, int64_t stop, const outer_end *end, float *c) {
    sparse_lists lists = sparse_lists_in(twi_smaller(p->m, TWI_SPARSE_ROWS), p->k, p->scratch);
    for (int64_t row = i; row < stop; row += TWI_SPARSE_GROUP)
        list_group(twi_smaller(TWI_SPARSE_GROUP, stop - row), p->k, p->a + row * p->a_row, p->a_row, p->a_step, row - i,
                   &lists);
    sparse_rows(stop - i, p->n, p->k, p->b, p->b_row, end, c, p->c_row, &lists);
}

static void sparse_block_run(const sparse_block *p) {
    for (int64_t i = 0, stop; i < p->m; i = stop) {
        const bool listed = group_is_sparse(p, i);
        outer_end end = *p->end;
        float *c = p->c + i * p->c_row;
        if (end.squares) end.squares += i * VEC_WIDTH;
        stop = run_end(p, i, listed);
        if (listed)
            run_listed(p, i, stop, &end, c);
        else
            outer_of(stop - i, p->n, p->k, p->a + i * p->a_row, p->a_row, p->a_step, p->b, p->b_row, &end, c, p->c_row,
                     p->scratch, TW_F32);
    }
}

/* a runs along k or along i. */
static void outer_sparse_of(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_step,
                            const float *b, int64_t b_row, const outer_end *end, float *c, int64_t c_row,
                            float *scratch) {
    if (k < TWI_SPARSE_TERMS || n < TWI_SPARSE_COLUMNS) {
        outer_of(m, n, k, a, a_row, a_step, b, b_row, end, c, c_row, scratch, TW_F32);
        return;
    }
    const int64_t depths = twi_part_count(k, TWI_GEMM_DEPTH);
    for (int64_t q = 0; q < depths; q++) {
        const int64_t t = twi_part_begin(k, depths, q);
        const outer_end own = {end->add || q > 0, end->update, end->base, q == depths - 1 ? end->squares : NULL};
        const sparse_block block = {.m = m,
                                    .n = n,
                                    .k = twi_part_begin(k, depths, q + 1) - t,
                                    .a = a + t * a_step,
                                    .b = b + t * b_row,
                                    .a_row = a_row,
                                    .a_step = a_step,
                                    .b_row = b_row,
                                    .end = &own,
                                    .c = c,
                                    .c_row = c_row,
                                    .scratch = scratch};
        sparse_block_run(&block);
    }
}

#endif
