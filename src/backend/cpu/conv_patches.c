/* Convolutions by patches and products: copies patches out of images and adds them back. The products are in gemm.h. */
#include "conv_patches.h"
#include "parts.h"
#include "base/memory.h"

#include <string.h>

/* How one group of a convolution is cut: a block of output positions (rows of y, counted through all samples) at a
 * time. */
typedef struct patch_plan {
    int64_t positions;   /* in all */
    int64_t block;       /* positions at a time */
    int64_t in_c, out_c; /* channels of a group */
    int64_t patch;       /* floats of a patch: kernel_h x kernel_w x in_c */
    size_t product;      /* floats that products of a block want */
    bool direct;         /* a patch is a pixel, without padding: x can be used as it stands */
} patch_plan;

static patch_plan plan_of(const twi_conv_shape *s) {
    patch_plan p = {
        .positions = s->samples * s->out_h * s->out_w, .in_c = s->in_c / s->groups, .out_c = s->out_c / s->groups};
    p.patch = s->kernel_h * s->kernel_w * p.in_c;
    /* Patches of a block stay in the second-level cache; yet enough of them to be worth reading all weights for. Where
     * those are few, all that a block needs stays near the first. */
    enum { CACHED = 32768, NEAR = 8192, FEWEST = 48, MOST = 256 };
    int64_t fit = p.patch * p.out_c <= NEAR ? NEAR / (p.patch + p.out_c + TWI_GEMM_COLUMNS) : CACHED / p.patch;
    p.block = twi_smaller(fit < FEWEST ? FEWEST : fit > MOST ? MOST : fit, p.positions);
    const size_t data = twi_gemm_outer_scratch_of(p.block, p.out_c),
                 weights = twi_gemm_outer_scratch_of(p.out_c, p.block);
    p.product = ((data > weights ? data : weights) + 15) / 16 * 16;
    p.direct = p.patch == p.in_c && s->stride_h == 1 && s->stride_w == 1 && s->in_h == s->out_h && s->in_w == s->out_w;
    return p;
}

tw_status twi_patches_scratch(const twi_conv_shape *shape, size_t *floats) {
    patch_plan p = plan_of(shape);
    TWI_TRY(twi_mul_size(floats, (size_t)p.block, p.direct ? 0 : (size_t)p.patch, "convolution patches"));
    return twi_add_size(floats, *floats, p.product, "convolution patches");
}

/* ---- between images and patches ---- */

/* The output position a patch belongs to. */
typedef struct position {
    int64_t sample, y, x;
} position;

static position position_at(const twi_conv_shape *s, int64_t index) {
    return (position){index / s->out_w / s->out_h, index / s->out_w % s->out_h, index % s->out_w};
}

static position position_after(const twi_conv_shape *s, position at) {
    if (++at.x < s->out_w) return at;
    at.x = 0;
    if (++at.y < s->out_h) return at;
    return (position){at.sample + 1, 0, 0};
}

/* A kernel row laid on an output position: its taps are `step` floats apart in the image, of which first .. end-1 are
 * inside it; `row` is where tap 0 is or would be. */
typedef struct tap_row {
    int64_t first, end, row, step;
} tap_row;

static tap_row taps_of(const twi_conv_shape *s, position at, int64_t kernel_y) {
    int64_t y = at.y * s->stride_h + kernel_y * s->dilation_h - s->top, x = at.x * s->stride_w - s->left;
    tap_row t = {0, 0, ((at.sample * s->in_h + y) * s->in_w + x) * s->in_c, s->dilation_w * s->in_c};
    if (y < 0 || y >= s->in_h) return t;
    const twi_span inside = twi_span_inside(x, s->dilation_w, s->kernel_w, s->in_w);
    t.first = inside.first, t.end = inside.end;
    return t;
}

/* Copies the patches of positions from .. from+count-1, one after the other; image begins with the group's first
 * channel. */
static void copy_patches(const twi_conv_shape *s, const patch_plan *p, int64_t from, int64_t count, const float *image,
                         float *patch) {
    int64_t c = p->in_c, rows = count * s->kernel_h;
    position at = position_at(s, from);
    for (int64_t row = 0; row < rows; row++, patch += s->kernel_w * c) {
        tap_row t = taps_of(s, at, row % s->kernel_h);
        for (int64_t i = 0; i < t.first * c; i++) patch[i] = 0;
        if (t.step == c) { /* the taps are neighbours in memory too */
            for (int64_t i = t.first * c; i < t.end * c; i++) patch[i] = image[t.row + i];
        } else {
            for (int64_t k = t.first; k < t.end; k++) {
                for (int64_t i = 0; i < c; i++) patch[k * c + i] = image[t.row + k * t.step + i];
            }
        }
        for (int64_t i = t.end * c; i < s->kernel_w * c; i++) patch[i] = 0;
        if (row % s->kernel_h == s->kernel_h - 1) at = position_after(s, at);
    }
}

/* The reverse: adds the patches to where they came from. */
static void add_patches(const twi_conv_shape *s, const patch_plan *p, int64_t from, int64_t count, const float *patch,
                        float *image) {
    int64_t c = p->in_c, rows = count * s->kernel_h;
    position at = position_at(s, from);
    for (int64_t row = 0; row < rows; row++, patch += s->kernel_w * c) {
        tap_row t = taps_of(s, at, row % s->kernel_h);
        for (int64_t k = t.first; k < t.end; k++) {
            for (int64_t i = 0; i < c; i++) image[t.row + k * t.step + i] += patch[k * c + i];
        }
        if (row % s->kernel_h == s->kernel_h - 1) at = position_after(s, at);
    }
}

/* ---- the three products ---- */

/* Rows of patches of a block and how far apart they are: copied to scratch, or the image's own pixels. */
static const float *patches_of(const twi_conv_shape *s, const patch_plan *p, int64_t from, int64_t count,
                               const float *image, float *scratch, int64_t *row) {
    *row = p->direct ? s->in_c : p->patch;
    if (p->direct) return image + from * s->in_c;
    copy_patches(s, p, from, count, image, scratch);
    return scratch;
}

void twi_patches_forward(const twi_gemm *gemm, const twi_conv_shape *s, const float *x, const float *w,
                         const float *bias, bool relu, float *y, float *scratch) {
    patch_plan p = plan_of(s);
    for (int64_t from = 0; from < p.positions; from += p.block) {
        int64_t count = twi_smaller(p.block, p.positions - from), row;
        for (int64_t g = 0; g < s->groups; g++) {
            const float *patches = patches_of(s, &p, from, count, x + g * p.in_c, scratch, &row);
            gemm->dot(count, p.out_c, p.patch, patches, row, w + g * p.out_c * p.patch, p.patch,
                      bias ? bias + g * p.out_c : NULL, false, relu, y + from * s->out_c + g * p.out_c, s->out_c);
        }
    }
}

void twi_patches_backward_data(const twi_gemm *gemm, const twi_conv_shape *s, const float *dy, const float *w,
                               float *dx, float *scratch) {
    patch_plan p = plan_of(s);
    float *patches = scratch + p.product;
    if (!p.direct) memset(dx, 0, (size_t)(s->samples * s->in_h * s->in_w * s->in_c) * sizeof(float));
    for (int64_t from = 0; from < p.positions; from += p.block) {
        int64_t count = twi_smaller(p.block, p.positions - from);
        for (int64_t g = 0; g < s->groups; g++) {
            float *image = dx + g * p.in_c;
            gemm->outer(count, p.patch, p.out_c, dy + from * s->out_c + g * p.out_c, s->out_c, 1,
                        w + g * p.out_c * p.patch, p.patch, false, p.direct ? image + from * s->in_c : patches,
                        p.direct ? s->in_c : p.patch, scratch);
            if (!p.direct) add_patches(s, &p, from, count, patches, image);
        }
    }
}

void twi_patches_backward_weights(const twi_gemm *gemm, const twi_conv_shape *s, const float *x, const float *dy,
                                  bool add, float *dw, float *scratch) {
    patch_plan p = plan_of(s);
    float *copies = scratch + p.product;
    for (int64_t from = 0; from < p.positions; from += p.block) {
        int64_t count = twi_smaller(p.block, p.positions - from), row;
        for (int64_t g = 0; g < s->groups; g++) {
            const float *patches = patches_of(s, &p, from, count, x + g * p.in_c, copies, &row);
            gemm->outer(p.out_c, p.patch, count, dy + from * s->out_c + g * p.out_c, 1, s->out_c, patches, row,
                        add || from > 0, dw + g * p.out_c * p.patch, p.patch, scratch);
        }
    }
}

/* ---- the weights of some filters at one tap, from the whole batch ---- */

/* Input channels that are worked on at a time: of all positions they stay in the second-level cache. */
static int64_t part_channels(const patch_plan *p) {
    enum { CACHED = 131072, FEWEST = 32 };
    return twi_smaller(twi_larger(CACHED / twi_larger(p->positions, 1) / FEWEST, 1) * FEWEST, p->in_c);
}

tw_status twi_patches_part_scratch(const twi_conv_shape *s, size_t *floats) {
    const patch_plan p = plan_of(s);
    const int64_t channels = TWI_CONV2D_PART_FILTERS + (p.direct ? 0 : part_channels(&p));
    TWI_TRY(twi_mul_size(floats, (size_t)p.positions, (size_t)channels, "convolution patches"));
    return twi_add_size(floats, *floats, twi_gemm_outer_scratch_of(TWI_CONV2D_PART_FILTERS, p.positions),
                        "convolution patches");
}

/* Rows and columns of the output at which a tap lies inside the image, at y * stride + down and x * stride + across: at the
 * others it would multiply padding. */
typedef struct tap_places {
    twi_span rows, columns;
    int64_t down, across;
} tap_places;

static tap_places places_of(const twi_conv_shape *s, const twi_conv2d_part *part) {
    const int64_t down = part->row * s->dilation_h - s->top, across = part->column * s->dilation_w - s->left;
    return (tap_places){.rows = twi_span_inside(down, s->stride_h, s->out_h, s->in_h),
                        .columns = twi_span_inside(across, s->stride_w, s->out_w, s->in_w),
                        .down = down,
                        .across = across};
}

/* Of every such place `count` channels, beside each other; and of the input pixels under the tap. */
static void copy_gradients(const twi_conv_shape *s, const tap_places *tap, int64_t count, const float *dy, float *to) {
    for (int64_t n = 0; n < s->samples; n++)
        for (int64_t y = tap->rows.first; y < tap->rows.end; y++)
            for (int64_t x = tap->columns.first; x < tap->columns.end; x++, to += count)
                memcpy(to, dy + ((n * s->out_h + y) * s->out_w + x) * s->out_c, (size_t)count * sizeof *to);
}
static void copy_pixels(const twi_conv_shape *s, const tap_places *tap, int64_t count, const float *image, float *to) {
    for (int64_t n = 0; n < s->samples; n++)
        for (int64_t y = tap->rows.first; y < tap->rows.end; y++) {
            const float *row = image + (n * s->in_h + y * s->stride_h + tap->down) * s->in_w * s->in_c;
            for (int64_t x = tap->columns.first; x < tap->columns.end; x++, to += count)
                memcpy(to, row + (x * s->stride_w + tap->across) * s->in_c, (size_t)count * sizeof *to);
        }
}

void twi_patches_backward_weights_part(const twi_gemm *gemm, const twi_conv_shape *s, const twi_conv2d_part *part,
                                       const float *x, const float *dy, float *dw, float *scratch) {
    const patch_plan p = plan_of(s);
    const tap_places tap = places_of(s, part);
    const int64_t positions = s->samples * (tap.rows.end - tap.rows.first) * (tap.columns.end - tap.columns.first);
    const int64_t most = part_channels(&p), end = part->first + part->filters;
    float *gradients = scratch + twi_gemm_outer_scratch_of(TWI_CONV2D_PART_FILTERS, p.positions),
          *copies = gradients + p.positions * TWI_CONV2D_PART_FILTERS;
    dw += (part->row * s->kernel_w + part->column) * p.in_c;
    for (int64_t o = part->first, filters; o < end; o += filters) { /* those of one group of channels */
        const int64_t group = o / p.out_c;
        filters = twi_smaller(end, (group + 1) * p.out_c) - o;
        if (positions == 0) {
            for (int64_t f = o; f < o + filters; f++) memset(dw + f * p.patch, 0, (size_t)p.in_c * sizeof *dw);
            continue;
        }
        copy_gradients(s, &tap, filters, dy + o, gradients);
        for (int64_t c = 0, count; c < p.in_c; c += count) {
            const float *image = x + group * p.in_c + c;
            count = twi_smaller(most, p.in_c - c);
            if (!p.direct) copy_pixels(s, &tap, count, image, copies);
            gemm->outer(filters, count, positions, gradients, 1, filters, p.direct ? image : copies,
                        p.direct ? s->in_c : count, false, dw + o * p.patch + c, p.patch, scratch);
        }
    }
}
