/* The CPU back end's pooling loops against plain loops in double, and against recorded values: channel counts around
 * the vector widths, every kind of geometry, chunks of one sample. */
#include "impl_call.h"
#include "backend/attrs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* An image and the windows on it; rows and columns of windows follow from the rest. */
typedef struct geometry {
    int64_t height, width;
    twi_pool_attrs attrs;
} geometry;

static const geometry geometries[] = {
    {1, 1, {1, 1, 1, 1, 0, 0, 0, 0, false, false}}, {4, 6, {2, 2, 2, 2, 0, 0, 0, 0, false, false}},
    {5, 7, {2, 2, 2, 2, 0, 0, 0, 0, false, false}}, {5, 7, {2, 2, 2, 2, 0, 0, 0, 0, true, false}},
    {6, 5, {3, 3, 1, 1, 0, 0, 0, 0, false, false}}, {8, 7, {3, 3, 2, 2, 1, 1, 1, 1, false, false}},
    {8, 7, {3, 3, 2, 2, 1, 1, 1, 1, true, true}},   {5, 4, {3, 4, 1, 2, 1, 2, 0, 3, false, false}},
    {5, 4, {3, 4, 1, 2, 1, 2, 0, 3, false, true}},  {8, 9, {3, 2, 4, 5, 0, 0, 0, 0, false, false}},
    {1, 7, {1, 3, 1, 2, 0, 1, 0, 1, false, false}},
};
static const int64_t channel_counts[] = {1, 3, 6, 8, 11, 16, 17, 32, 40};

/* Positions of windows along an axis: in ceil mode also an overhanging one, if it starts before the end padding. */
static int64_t positions(int64_t size, int64_t kernel, int64_t stride, int64_t before, int64_t after, bool ceil_mode) {
    int64_t room = size + before + after - kernel;
    int64_t count = room / stride + 1;
    if (ceil_mode && room % stride && count * stride < size + before) count++;
    return count;
}

typedef struct pool_case {
    const geometry *g;
    impl_shape image, result;
    float *x, *y, *dy, *dx;
    uint8_t *index;
} pool_case;

static pool_case make(const geometry *g, int64_t samples, int64_t channels) {
    const twi_pool_attrs *a = &g->attrs;
    pool_case t = {.g = g, .image = {4, {samples, channels, g->height, g->width}, true}};
    t.result = t.image;
    t.result.dim[2] = positions(g->height, a->kernel_h, a->stride_h, a->pad_top, a->pad_bottom, a->ceil_mode);
    t.result.dim[3] = positions(g->width, a->kernel_w, a->stride_w, a->pad_left, a->pad_right, a->ceil_mode);
    t.x = impl_floats(impl_count(&t.image));
    t.dx = impl_floats(impl_count(&t.image));
    t.y = impl_floats(impl_count(&t.result));
    t.dy = impl_floats(impl_count(&t.result));
    t.index = impl_bytes(impl_count(&t.result));
    return t;
}

static void call_pool(const pool_case *t, const char *kernel, twi_isa isa) {
    bool max = strncmp(kernel, "max", 3) == 0, backward = strstr(kernel, "backward") != NULL;
    twi_call call = {.attrs = &t->g->attrs};
    int o = 0;
    impl_operand(&call, o++, TWI_REAL, backward ? &t->result : &t->image, backward ? t->dy : t->x);
    if (max && backward) impl_operand(&call, o++, TWI_U8, &t->result, t->index);
    impl_operand(&call, o++, TWI_REAL, backward ? &t->image : &t->result, backward ? t->dx : t->y);
    if (max && !backward) impl_operand(&call, o++, TWI_U8, &t->result, t->index);
    impl_run(twi_cpu_point_impls, kernel, isa, &call);
}

static void each_case(void (*test)(pool_case *t, twi_isa isa)) {
    IMPL_EACH_ISA(isa)
    for (int g = 0; g < COUNT(geometries); g++)
        for (int c = 0; c < COUNT(channel_counts); c++)
            for (int64_t samples = 1; samples <= 3; samples += 2) {
                pool_case t = make(&geometries[g], samples, channel_counts[c]);
                test(&t, (twi_isa)isa);
                impl_release();
            }
}

/* Visits results (n, c, row, column), whose window starts at (top, left). */
#define EACH_RESULT(t, n, c, row, column, top, left)                                                             \
    for (int64_t n = 0; n < (t)->result.dim[0]; n++)                                                             \
        for (int64_t c = 0; c < (t)->result.dim[1]; c++)                                                         \
            for (int64_t row = 0, top;                                                                           \
                 row < (t)->result.dim[2] && (top = row * (t)->g->attrs.stride_h - (t)->g->attrs.pad_top, true); \
                 row++)                                                                                          \
                for (int64_t column = 0, left;                                                                   \
                     column < (t)->result.dim[3] &&                                                              \
                     (left = column * (t)->g->attrs.stride_w - (t)->g->attrs.pad_left, true);                    \
                     column++)
/* Visits the pixels (h, w) of the window that lie in the image. */
#define EACH_PIXEL(t, top, left, h, w)                                                               \
    for (int64_t h = top < 0 ? 0 : top; h < top + (t)->g->attrs.kernel_h && h < (t)->g->height; h++) \
        for (int64_t w = left < 0 ? 0 : left; w < left + (t)->g->attrs.kernel_w && w < (t)->g->width; w++)

/* ---- max ---- */

static void check_max(pool_case *t, twi_isa isa) {
    /* Few values, so that many are equal; some are not numbers. */
    for (int64_t i = 0; i < impl_count(&t->image); i++) t->x[i] = t->x[i] > 0.9f ? NAN : floorf(t->x[i] * 3);
    call_pool(t, "max_pool.forward", isa);
    call_pool(t, "max_pool.backward", isa);
    double want[3 * 40 * 9 * 9] = {0};
    EACH_RESULT(t, n, c, row, column, top, left) {
        float largest = -INFINITY;
        int64_t winner = -1, winner_at = 0;
        EACH_PIXEL(t, top, left, h, w) {
            int64_t at = impl_at(&t->image, n, c, h, w);
            bool first_nan = isnan(t->x[at]) && !isnan(largest);
            if (winner >= 0 && !(t->x[at] > largest) && !first_nan) continue;
            largest = t->x[at];
            winner = (h - top) * t->g->attrs.kernel_w + w - left;
            winner_at = at;
        }
        int64_t i = impl_at(&t->result, n, c, row, column);
        impl_close(largest, t->y[i], 0, "max_pool.forward", i);
        assert_int_equal(t->index[i], winner);
        want[winner_at] += t->dy[i];
    }
    for (int64_t i = 0; i < impl_count(&t->image); i++) impl_close(want[i], t->dx[i], 1e-6, "max_pool.backward", i);
}
static void max_pool(void **state) { (void)state, each_case(check_max); }

/* Minus infinity everywhere still has a winner inside the image, and padding never wins. */
static void padding_never_wins(void **state) {
    (void)state;
    static const geometry padded = {2, 2, {3, 3, 1, 1, 1, 1, 1, 1, false, false}};
    IMPL_EACH_ISA(isa) {
        pool_case t = make(&padded, 1, 5);
        for (int64_t i = 0; i < impl_count(&t.image); i++) t.x[i] = -INFINITY;
        call_pool(&t, "max_pool.forward", (twi_isa)isa);
        static const uint8_t first_inside[2][2] = {{4, 3}, {1, 0}};
        EACH_RESULT(&t, n, c, row, column, top, left) {
            (void)top, (void)left;
            int64_t i = impl_at(&t.result, n, c, row, column);
            assert_true(t.y[i] == -INFINITY);
            assert_int_equal(t.index[i], first_inside[row][column]);
        }
        impl_release();
    }
}

/* ---- average ---- */

static double divisor(const pool_case *t, int64_t top, int64_t left) {
    const twi_pool_attrs *a = &t->g->attrs;
    int64_t inside = 0, padded = 0;
    for (int64_t h = top; h < top + a->kernel_h; h++)
        for (int64_t w = left; w < left + a->kernel_w; w++) {
            inside += h >= 0 && w >= 0 && h < t->g->height && w < t->g->width;
            padded += h < t->g->height + a->pad_bottom && w < t->g->width + a->pad_right;
        }
    return (double)(a->exclude_padding ? inside : padded);
}

static void check_average(pool_case *t, twi_isa isa) {
    call_pool(t, "avg_pool.forward", isa);
    call_pool(t, "avg_pool.backward", isa);
    double want[3 * 40 * 9 * 9] = {0};
    EACH_RESULT(t, n, c, row, column, top, left) {
        int64_t i = impl_at(&t->result, n, c, row, column);
        double sum = 0, count = divisor(t, top, left);
        EACH_PIXEL(t, top, left, h, w) {
            int64_t at = impl_at(&t->image, n, c, h, w);
            sum += t->x[at];
            want[at] += t->dy[i] / count;
        }
        impl_close(sum / count, t->y[i], 1e-6, "avg_pool.forward", i);
    }
    for (int64_t i = 0; i < impl_count(&t->image); i++) impl_close(want[i], t->dx[i], 1e-6, "avg_pool.backward", i);
}
static void avg_pool(void **state) { (void)state, each_case(check_average); }

static void check_global(pool_case *t, twi_isa isa) {
    t->result.dim[2] = t->result.dim[3] = 1;
    call_pool(t, "global_avg_pool.forward", isa);
    call_pool(t, "global_avg_pool.backward", isa);
    for (int64_t n = 0; n < t->image.dim[0]; n++)
        for (int64_t c = 0; c < t->image.dim[1]; c++) {
            int64_t i = impl_at(&t->result, n, c, 0, 0), height = t->image.dim[2], width = t->image.dim[3];
            double sum = 0;
            for (int64_t p = 0; p < height * width; p++) {
                int64_t at = impl_at(&t->image, n, c, p / width, p % width);
                sum += t->x[at];
                impl_close((double)t->dy[i] / (double)(height * width), t->dx[at], 1e-6, "global_avg_pool.backward",
                           at);
            }
            impl_close(sum / (double)(height * width), t->y[i], 1e-6, "global_avg_pool.forward", i);
        }
}
static void global_avg_pool(void **state) { (void)state, each_case(check_global); }

/* PyTorch 1.13.1, kernel 3, stride 2, padding 1: rounding up adds windows whose overhang does not count. */
static void recorded_averages(void **state) {
    (void)state;
    static const float x[16] = {2, 4, 6, 8, 1, 3, 5, 7, 0, 2, 4, 6, 9, 7, 5, 3};
    static const struct {
        bool ceil_mode, exclude_padding;
        int side;
        double y[9];
    } rows[] = {
        {false, false, 2, {1.111111, 3.666667, 2.444444, 4.666667}},
        {false, true, 2, {2.5, 5.5, 3.666667, 4.666667}},
        {true, false, 3, {1.111111, 3.666667, 2.5, 2.444444, 4.666667, 2.666667, 2.666667, 2.5, 0.75}},
        {true, true, 3, {2.5, 5.5, 7.5, 3.666667, 4.666667, 5.333333, 8, 5, 3}},
    };
    IMPL_EACH_ISA(isa)
    for (int r = 0; r < COUNT(rows); r++) {
        const geometry g = {4, 4, {3, 3, 2, 2, 1, 1, 1, 1, rows[r].ceil_mode, rows[r].exclude_padding}};
        pool_case t = make(&g, 1, 1);
        memcpy(t.x, x, sizeof x);
        call_pool(&t, "avg_pool.forward", (twi_isa)isa);
        assert_int_equal(t.result.dim[2], rows[r].side);
        for (int i = 0; i < rows[r].side * rows[r].side; i++) impl_close(rows[r].y[i], t.y[i], 1e-6, "average", i);
        impl_release();
    }
}

static void row_major_images_are_refused(void **state) {
    (void)state;
    const impl_shape image = {4, {2, 3, 4, 4}, false};
    impl_shape result = {4, {2, 3, 2, 2}, true};
    twi_call call = {.attrs = &geometries[1].attrs};
    impl_operand(&call, 0, TWI_REAL, &image, NULL);
    impl_operand(&call, 1, TWI_REAL, &result, NULL);
    assert_non_null(impl_refusal(twi_cpu_point_impls, "avg_pool.forward", &call));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(max_pool),          cmocka_unit_test(padding_never_wins),
        cmocka_unit_test(avg_pool),          cmocka_unit_test(global_avg_pool),
        cmocka_unit_test(recorded_averages), cmocka_unit_test(row_major_images_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
