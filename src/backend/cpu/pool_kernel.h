/* Pooling of images whose channels are innermost, a vector of channels at a time, window by window: forward gathers a
 * window's pixels, backward hands a result's gradient out to them.
 *
 * Channels that do not fill the last vector: of at least one vector's worth, the last vector begins earlier and
 * overlaps the one before; of fewer, it reaches into the next pixel. Forward, the overlap is written twice, the second
 * time right; backward, where gradients add up, elements that are not the vector's own get 0 added. Only at the end of
 * the chunk is a vector cut short. */
#include "dense.h"
#include "backend/attrs.h"
#include "sweep.h"
#include "vec_test.h"

typedef struct pool {
    float *image, *result; /* forward: x and y; backward: dx and dy */
    uint8_t *index;        /* max pooling: which pixel of its window won, row-major */
    int64_t images, channels, height, width;
    int64_t rows, columns; /* of windows */
    int64_t image_row;     /* elements of a row of pixels */
    const twi_pool_attrs *attrs;
} pool;

/* One window: it starts at (top, left), maybe in the padding; rows x columns of its pixels are in the image, and the
 * first of them has this number in the window. */
typedef struct pool_window {
    int64_t top, left, rows, columns;
    int32_t number;
} pool_window;

/* A vector of channels: `lanes` elements exist, and of them those are new that `own` says. */
typedef struct pool_part {
    int lanes;
    vec_mask own;
} pool_part;

/* Does one part of a window whose first pixel is at `image` and whose result is at `result`, offsets of elements. */
typedef void pool_step(const pool *p, const pool_window *window, int64_t image, int64_t result, pool_part part);

VEC_INLINE int64_t pool_least(int64_t a, int64_t b) { return a < b ? a : b; }
VEC_INLINE int64_t pool_most(int64_t a, int64_t b) { return a > b ? a : b; }

VEC_INLINE vec pool_own(vec v, pool_part part) { return (vec)((vec_mask)v & part.own); }

typedef uint8_t pool_bytes __attribute__((vector_size(VEC_WIDTH)));
VEC_INLINE vec_mask pool_load_index(const uint8_t *from, pool_part part) {
    pool_bytes bytes = {0};
    memcpy(&bytes, from, (size_t)part.lanes);
    return __builtin_convertvector(bytes, vec_mask);
}
VEC_INLINE void pool_store_index(uint8_t *to, vec_mask index, pool_part part) {
    pool_bytes bytes = __builtin_convertvector(index, pool_bytes);
    memcpy(to, &bytes, (size_t)part.lanes);
}

/* Elements from .. to-1 of a vector. */
VEC_INLINE vec_mask pool_lanes(int64_t from, int64_t to) {
    vec_mask own = {0};
    for (int64_t lane = from; lane < to; lane++) own[lane] = -1;
    return own;
}

/* clear: the pixels' gradients start from 0, since windows may overlap, and need not cover all of them. */
VEC_INLINE void pool_walk(const pool *p, bool clear, pool_step *step) {
    const twi_pool_attrs *attrs = p->attrs;
    const int64_t channels = p->channels, image_size = p->height * p->image_row;
    const int64_t image_end = p->images * image_size, result_end = p->images * p->rows * p->columns * channels;
    const pool_part full = {VEC_WIDTH, pool_lanes(0, VEC_WIDTH)},
                    first = {VEC_WIDTH, pool_lanes(0, channels % VEC_WIDTH)};
    const pool_part last = {VEC_WIDTH, pool_lanes(VEC_WIDTH - channels % VEC_WIDTH, VEC_WIDTH)};
    const pool_part cut = {(int)(channels % VEC_WIDTH), first.own};
    int64_t result = 0;
    for (int64_t start = 0; start < image_end; start += image_size) {
        if (clear) memset(p->image + start, 0, (size_t)image_size * sizeof(float));
        for (int64_t row = 0; row < p->rows; row++) {
            pool_window window = {.top = row * attrs->stride_h - attrs->pad_top, .left = -attrs->pad_left};
            int64_t y = pool_most(window.top, 0);
            window.rows = pool_least(window.top + attrs->kernel_h, p->height) - y;
            for (int64_t column = 0; column < p->columns;
                 column++, window.left += attrs->stride_w, result += channels) {
                int64_t x = pool_most(window.left, 0), c = 0;
                int64_t image = start + y * p->image_row + x * channels;
                window.columns = pool_least(window.left + attrs->kernel_w, p->width) - x;
                window.number = (int32_t)((y - window.top) * attrs->kernel_w + x - window.left);
                for (; c + VEC_WIDTH <= channels; c += VEC_WIDTH) step(p, &window, image + c, result + c, full);
                if (c == channels) continue;
                if (c > 0) {
                    step(p, &window, image + channels - VEC_WIDTH, result + channels - VEC_WIDTH, last);
                    continue;
                }
                int64_t last_pixel = image + (window.rows - 1) * p->image_row + (window.columns - 1) * channels;
                if (last_pixel + VEC_WIDTH <= image_end && result + VEC_WIDTH <= result_end)
                    step(p, &window, image, result, first);
                else
                    step(p, &window, image, result, cut);
            }
        }
    }
}

static pool pool_of(const twi_pool_attrs *attrs, const twi_operand *image, const twi_operand *result) {
    return (pool){.image = image->data,
                  .result = result->data,
                  .images = image->shape.dim[0],
                  .channels = image->shape.dim[1],
                  .height = image->shape.dim[2],
                  .width = image->shape.dim[3],
                  .rows = result->shape.dim[2],
                  .columns = result->shape.dim[3],
                  .image_row = image->shape.dim[3] * image->shape.dim[1],
                  .attrs = attrs};
}

/* ---- max: x, y, index; dy, index, dx ---- */

VEC_INLINE void max_of(const pool *p, int64_t rows, int64_t columns, int32_t number, int64_t image, int64_t result,
                       pool_part part) {
    vec largest = vec_load_some(p->image + image, part.lanes);
    vec_mask winner = vec_splat_int(number);
    for (int64_t h = 0; h < rows; h++) {
        for (int64_t w = 0; w < columns; w++) {
            if (h == 0 && w == 0) continue;
            vec value = vec_load_some(p->image + image + h * p->image_row + w * p->channels, part.lanes);
            vec_test better = vec_beats(value, largest);
            largest = vec_choose(better, value, largest);
            winner = vec_choose_int(better, vec_splat_int(number + (int32_t)(h * p->attrs->kernel_w + w)), winner);
        }
    }
    vec_store_some(p->result + result, largest, part.lanes);
    pool_store_index(p->index + result, winner, part);
}
VEC_INLINE void step_max(const pool *p, const pool_window *window, int64_t image, int64_t result, pool_part part) {
    if (window->rows == 2 && window->columns == 2) /* known sizes are unrolled */
        max_of(p, 2, 2, window->number, image, result, part);
    else
        max_of(p, window->rows, window->columns, window->number, image, result, part);
}
static void max_pool_forward(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    pool p = pool_of(call->attrs, &call->operand[0], &call->operand[1]);
    p.index = call->operand[2].data;
    pool_walk(&p, false, step_max);
}

VEC_INLINE void max_to(const pool *p, int64_t rows, int64_t columns, int32_t number, int64_t image, int64_t result,
                       pool_part part) {
    vec dy = pool_own(vec_load_some(p->result + result, part.lanes), part);
    vec_mask winner = pool_load_index(p->index + result, part);
    for (int64_t h = 0; h < rows; h++) {
        for (int64_t w = 0; w < columns; w++) {
            vec_test won = vec_same(winner, vec_splat_int(number + (int32_t)(h * p->attrs->kernel_w + w)));
            float *dx = p->image + image + h * p->image_row + w * p->channels;
            vec_store_some(dx, vec_load_some(dx, part.lanes) + vec_keep(won, dy), part.lanes);
        }
    }
}
VEC_INLINE void step_max_backward(const pool *p, const pool_window *window, int64_t image, int64_t result,
                                  pool_part part) {
    if (window->rows == 2 && window->columns == 2)
        max_to(p, 2, 2, window->number, image, result, part);
    else
        max_to(p, window->rows, window->columns, window->number, image, result, part);
}

/* The same for few channels, one by one: vectors that reach into the next pixel would wait for each other. */
static void max_scatter(const pool *p) {
    int64_t offset[UINT8_MAX + 1], result = 0;
    for (int32_t number = 0; number < p->attrs->kernel_h * p->attrs->kernel_w; number++)
        offset[number] = number / p->attrs->kernel_w * p->image_row + number % p->attrs->kernel_w * p->channels;
    memset(p->image, 0, (size_t)(p->images * p->height * p->image_row) * sizeof(float));
    for (int64_t n = 0; n < p->images; n++) {
        for (int64_t row = 0; row < p->rows; row++) {
            int64_t y = n * p->height + row * p->attrs->stride_h - p->attrs->pad_top;
            for (int64_t column = 0; column < p->columns; column++) {
                int64_t image = y * p->image_row + (column * p->attrs->stride_w - p->attrs->pad_left) * p->channels;
                for (int64_t c = 0; c < p->channels; c++, result++)
                    p->image[image + offset[p->index[result]] + c] += p->result[result];
            }
        }
    }
}

static void max_pool_backward(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    pool p = pool_of(call->attrs, &call->operand[2], &call->operand[0]);
    p.index = call->operand[1].data;
    if (p.channels < VEC_WIDTH)
        max_scatter(&p);
    else
        pool_walk(&p, true, step_max_backward);
}

/* ---- average: x, y; dy, dx ---- */

/* Pixels along one axis of the window at `start` that count: an overhang past the padding never does. */
VEC_INLINE int64_t avg_counted(int64_t start, int64_t kernel, int64_t size, int64_t pad_after, bool exclude_padding) {
    int64_t end = pool_least(start + kernel, exclude_padding ? size : size + pad_after);
    return end - (exclude_padding ? pool_most(start, 0) : start);
}
VEC_INLINE vec avg_share(const pool *p, const pool_window *window) {
    const twi_pool_attrs *a = p->attrs;
    return vec_splat(1.0f /
                     (float)(avg_counted(window->top, a->kernel_h, p->height, a->pad_bottom, a->exclude_padding) *
                             avg_counted(window->left, a->kernel_w, p->width, a->pad_right, a->exclude_padding)));
}

VEC_INLINE void step_avg(const pool *p, const pool_window *window, int64_t image, int64_t result, pool_part part) {
    vec sum = {0};
    for (int64_t h = 0; h < window->rows; h++) {
        vec row = {0}; /* a sum of sums keeps more digits of a large window, such as the whole image */
        for (int64_t w = 0; w < window->columns; w++)
            row += vec_load_some(p->image + image + h * p->image_row + w * p->channels, part.lanes);
        sum += row;
    }
    vec_store_some(p->result + result, sum * avg_share(p, window), part.lanes);
}
VEC_INLINE void step_avg_backward(const pool *p, const pool_window *window, int64_t image, int64_t result,
                                  pool_part part) {
    vec dy = pool_own(vec_load_some(p->result + result, part.lanes), part) * avg_share(p, window);
    for (int64_t h = 0; h < window->rows; h++) {
        for (int64_t w = 0; w < window->columns; w++) {
            float *dx = p->image + image + h * p->image_row + w * p->channels;
            vec_store_some(dx, vec_load_some(dx, part.lanes) + dy, part.lanes);
        }
    }
}

static void avg_forward(const twi_pool_attrs *attrs, const twi_call *call) {
    pool p = pool_of(attrs, &call->operand[0], &call->operand[1]);
    pool_walk(&p, false, step_avg);
}
static void avg_backward(const twi_pool_attrs *attrs, const twi_call *call) {
    pool p = pool_of(attrs, &call->operand[1], &call->operand[0]);
    pool_walk(&p, true, step_avg_backward);
}
static void avg_pool_forward(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    avg_forward(call->attrs, call);
}
static void avg_pool_backward(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    avg_backward(call->attrs, call);
}

/* A window as large as the image. */
static twi_pool_attrs whole_window(const twi_operand *image) {
    return (twi_pool_attrs){.kernel_h = (int32_t)image->shape.dim[2],
                            .kernel_w = (int32_t)image->shape.dim[3],
                            .stride_h = 1,
                            .stride_w = 1};
}
static void global_avg_pool_forward(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    twi_pool_attrs window = whole_window(&call->operand[0]);
    avg_forward(&window, call);
}
static void global_avg_pool_backward(const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)workspace;
    twi_pool_attrs window = whole_window(&call->operand[1]);
    avg_backward(&window, call);
}
