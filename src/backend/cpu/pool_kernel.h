/* Pooling of images whose channels are innermost, a vector of channels at a time. Forward goes over the results and
 * gathers the pixels of each window; backward goes over the pixels and gathers the windows that cover each, so that
 * both write every element once, in ascending order.
 *
 * Channels that do not fill the last vector: of at least one vector's worth, the last vector overlaps the one before;
 * of fewer, it spills into the next pixel, which is written after, and only at the end of the chunk is it cut short. */
#include "dense.h"
#include "ops/attrs.h"
#include "sweep.h"
#include "vec_test.h"

typedef struct pool {
    const float *from; /* forward: pixels; backward: gradients of the results */
    float *to;
    uint8_t *index; /* max pooling: which pixel of its window won, row-major */
    int64_t images, channels;
    int64_t height, width; /* of the image */
    int64_t rows, columns; /* of windows */
    int64_t kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, pad_bottom, pad_right;
    bool exclude_padding;
} pool;

/* A range [y0,y1) x [x0,x1), of pixels for the window at (top, left), or of windows for the pixel at (top, left). */
typedef struct pool_range {
    int64_t top, left, y0, y1, x0, x1;
} pool_range;

/* One vector of channels, the first `lanes` of them, at offset `to` of the output; `from` is the offset of the sample's
 * same channels in the input. */
typedef void pool_gather(const pool *p, const pool_range *range, int64_t from, int64_t to, int lanes);

VEC_INLINE int64_t pool_least(int64_t a, int64_t b) { return a < b ? a : b; }
VEC_INLINE int64_t pool_most(int64_t a, int64_t b) { return a > b ? a : b; }

VEC_INLINE vec pool_load(const float *from, int lanes) {
    return lanes == VEC_WIDTH ? vec_load(from) : vec_load_part(from, lanes);
}
VEC_INLINE void pool_store(float *to, vec v, int lanes) {
    if (lanes == VEC_WIDTH)
        vec_store(to, v);
    else
        memcpy(to, &v, (size_t)lanes * sizeof(float));
}

typedef uint8_t pool_bytes __attribute__((vector_size(VEC_WIDTH)));
VEC_INLINE vec_mask pool_load_index(const uint8_t *from, int lanes) {
    pool_bytes bytes = {0};
    memcpy(&bytes, from, (size_t)lanes);
    return __builtin_convertvector(bytes, vec_mask);
}
VEC_INLINE void pool_store_index(uint8_t *to, vec_mask index, int lanes) {
    pool_bytes bytes = __builtin_convertvector(index, pool_bytes);
    memcpy(to, &bytes, (size_t)lanes);
}

/* All channels of one output pixel. Elements of a row and of all of the input; of all of the output. */
VEC_INLINE void pool_pixel(const pool *p, const pool_range *range, int64_t from, int64_t to, int64_t in_row,
                           int64_t in_count, int64_t out_count, pool_gather *gather) {
    const int64_t channels = p->channels;
    if (channels >= VEC_WIDTH) {
        for (int64_t c = 0;; c = pool_least(c + VEC_WIDTH, channels - VEC_WIDTH)) {
            gather(p, range, from + c, to + c, VEC_WIDTH);
            if (c + VEC_WIDTH == channels) return;
        }
    }
    int64_t last = from + (range->y1 - 1) * in_row + (range->x1 - 1) * channels;
    if (pool_most(last + VEC_WIDTH - in_count, to + VEC_WIDTH - out_count) <= 0)
        gather(p, range, from, to, VEC_WIDTH);
    else
        gather(p, range, from, to, (int)channels);
}

VEC_INLINE void pool_forward(const pool *p, pool_gather *gather) {
    const int64_t pixels = p->width * p->channels, image = p->height * pixels;
    const int64_t in_count = p->images * image, out_count = p->images * p->rows * p->columns * p->channels;
    int64_t to = 0;
    for (int64_t from = 0; from < in_count; from += image) {
        for (int64_t row = 0; row < p->rows; row++) {
            pool_range range = {.top = row * p->stride_h - p->pad_top, .left = -p->pad_left};
            range.y0 = pool_most(range.top, 0);
            range.y1 = pool_least(range.top + p->kernel_h, p->height);
            for (int64_t column = 0; column < p->columns; column++, to += p->channels, range.left += p->stride_w) {
                range.x0 = pool_most(range.left, 0);
                range.x1 = pool_least(range.left + p->kernel_w, p->width);
                pool_pixel(p, &range, from, to, pixels, in_count, out_count, gather);
            }
        }
    }
}

VEC_INLINE void pool_backward(const pool *p, pool_gather *gather) {
    const int64_t windows = p->columns * p->channels, image = p->rows * windows;
    const int64_t in_count = p->images * image, out_count = p->images * p->height * p->width * p->channels;
    int64_t to = 0;
    for (int64_t from = 0; from < in_count; from += image) {
        pool_range range = {.y0 = 0, .y1 = 0};
        for (int64_t y = 0; y < p->height; y++) {
            range.top = y + p->pad_top;
            while (range.y1 < p->rows && range.y1 * p->stride_h <= range.top) range.y1++;
            while (range.y0 < range.y1 && range.y0 * p->stride_h + p->kernel_h <= range.top) range.y0++;
            range.x0 = range.x1 = 0;
            for (int64_t x = 0; x < p->width; x++, to += p->channels) {
                range.left = x + p->pad_left;
                while (range.x1 < p->columns && range.x1 * p->stride_w <= range.left) range.x1++;
                while (range.x0 < range.x1 && range.x0 * p->stride_w + p->kernel_w <= range.left) range.x0++;
                pool_pixel(p, &range, from, to, windows, in_count, out_count, gather);
            }
        }
    }
}

static pool pool_of(const twi_pool_attrs *attrs, const twi_operand *image, const twi_operand *result) {
    return (pool){.images = image->shape.dim[0],
                  .channels = image->shape.dim[1],
                  .height = image->shape.dim[2],
                  .width = image->shape.dim[3],
                  .rows = result->shape.dim[2],
                  .columns = result->shape.dim[3],
                  .kernel_h = attrs->kernel_h,
                  .kernel_w = attrs->kernel_w,
                  .stride_h = attrs->stride_h,
                  .stride_w = attrs->stride_w,
                  .pad_top = attrs->pad_top,
                  .pad_left = attrs->pad_left,
                  .pad_bottom = attrs->pad_bottom,
                  .pad_right = attrs->pad_right,
                  .exclude_padding = attrs->exclude_padding};
}

/* ---- max: x, y, index; dy, index, dx ---- */

/* The largest of rows x columns pixels, whose numbers in the window start at `number`. */
VEC_INLINE void max_of(const pool *p, const float *x, int64_t rows, int64_t columns, int32_t number, int64_t to,
                       int lanes) {
    vec largest = pool_load(x, lanes);
    vec_mask winner = vec_splat_int(number);
    for (int64_t h = 0; h < rows; h++) {
        for (int64_t w = 0; w < columns; w++) {
            vec value = pool_load(x + (h * p->width + w) * p->channels, lanes);
            vec_test better = vec_beats(value, largest);
            largest = vec_choose(better, value, largest);
            winner = vec_choose_int(better, vec_splat_int(number + (int32_t)(h * p->kernel_w + w)), winner);
        }
    }
    pool_store(p->to + to, largest, lanes);
    pool_store_index(p->index + to, winner, lanes);
}
VEC_INLINE void max_gather(const pool *p, const pool_range *range, int64_t from, int64_t to, int lanes) {
    int64_t rows = range->y1 - range->y0, columns = range->x1 - range->x0;
    int32_t number = (int32_t)((range->y0 - range->top) * p->kernel_w + range->x0 - range->left);
    const float *x = p->from + from + (range->y0 * p->width + range->x0) * p->channels;
    if (rows == 2 && columns == 2)
        max_of(p, x, 2, 2, number, to, lanes);
    else
        max_of(p, x, rows, columns, number, to, lanes);
}
static void max_pool_forward(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    pool p = pool_of(call->attrs, &call->operand[0], &call->operand[1]);
    p.from = call->operand[0].data;
    p.to = call->operand[1].data;
    p.index = call->operand[2].data;
    pool_forward(&p, max_gather);
}

VEC_INLINE void max_gather_backward(const pool *p, const pool_range *range, int64_t from, int64_t to, int lanes) {
    vec sum = {0};
    for (int64_t row = range->y0; row < range->y1; row++) {
        for (int64_t column = range->x0; column < range->x1; column++) {
            int64_t at = from + (row * p->columns + column) * p->channels;
            int64_t number = (range->top - row * p->stride_h) * p->kernel_w + range->left - column * p->stride_w;
            vec_test won = vec_same(pool_load_index(p->index + at, lanes), vec_splat_int((int32_t)number));
            sum += vec_keep(won, pool_load(p->from + at, lanes));
        }
    }
    pool_store(p->to + to, sum, lanes);
}
static void max_pool_backward(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    pool p = pool_of(call->attrs, &call->operand[2], &call->operand[0]);
    p.from = call->operand[0].data;
    p.index = call->operand[1].data;
    p.to = call->operand[2].data;
    pool_backward(&p, max_gather_backward);
}

/* ---- average: x, y; dy, dx ---- */

/* Pixels along one axis of the window at `start` that count: an overhang past the padding never does. */
VEC_INLINE int64_t pool_counted(int64_t start, int64_t kernel, int64_t size, int64_t pad_after, bool exclude_padding) {
    int64_t end = pool_least(start + kernel, exclude_padding ? size : size + pad_after);
    return end - (exclude_padding ? pool_most(start, 0) : start);
}
VEC_INLINE float pool_share(const pool *p, int64_t top, int64_t left) {
    return 1.0f / (float)(pool_counted(top, p->kernel_h, p->height, p->pad_bottom, p->exclude_padding) *
                          pool_counted(left, p->kernel_w, p->width, p->pad_right, p->exclude_padding));
}

VEC_INLINE void avg_gather(const pool *p, const pool_range *range, int64_t from, int64_t to, int lanes) {
    vec sum = {0};
    for (int64_t y = range->y0; y < range->y1; y++) {
        vec row = {0}; /* a sum of sums keeps more digits of a large window, such as the whole image */
        for (int64_t x = range->x0; x < range->x1; x++)
            row += pool_load(p->from + from + (y * p->width + x) * p->channels, lanes);
        sum += row;
    }
    pool_store(p->to + to, sum * vec_splat(pool_share(p, range->top, range->left)), lanes);
}
VEC_INLINE void avg_gather_backward(const pool *p, const pool_range *range, int64_t from, int64_t to, int lanes) {
    vec sum = {0};
    for (int64_t row = range->y0; row < range->y1; row++) {
        for (int64_t column = range->x0; column < range->x1; column++) {
            vec dy = pool_load(p->from + from + (row * p->columns + column) * p->channels, lanes);
            sum += dy * vec_splat(pool_share(p, row * p->stride_h - p->pad_top, column * p->stride_w - p->pad_left));
        }
    }
    pool_store(p->to + to, sum, lanes);
}

static void any_avg_forward(const twi_pool_attrs *attrs, const twi_call *call) {
    pool p = pool_of(attrs, &call->operand[0], &call->operand[1]);
    p.from = call->operand[0].data;
    p.to = call->operand[1].data;
    pool_forward(&p, avg_gather);
}
static void any_avg_backward(const twi_pool_attrs *attrs, const twi_call *call) {
    pool p = pool_of(attrs, &call->operand[1], &call->operand[0]);
    p.from = call->operand[0].data;
    p.to = call->operand[1].data;
    pool_backward(&p, avg_gather_backward);
}
static void avg_pool_forward(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    any_avg_forward(call->attrs, call);
}
static void avg_pool_backward(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    any_avg_backward(call->attrs, call);
}

/* A window as large as the image. */
static twi_pool_attrs global_window(const twi_operand *image) {
    return (twi_pool_attrs){.kernel_h = (int32_t)image->shape.dim[2],
                            .kernel_w = (int32_t)image->shape.dim[3],
                            .stride_h = 1,
                            .stride_w = 1};
}
static void global_avg_pool_forward(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    twi_pool_attrs window = global_window(&call->operand[0]);
    any_avg_forward(&window, call);
}
static void global_avg_pool_backward(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    twi_pool_attrs window = global_window(&call->operand[1]);
    any_avg_backward(&window, call);
}
