/* What every implementation of an op's kernels reads beside the operands: the attribute structs, which each op's table
 * describes field by field, and the layouts of buffers that have rows of different meaning. */
#ifndef TWI_BACKEND_ATTRS_H
#define TWI_BACKEND_ATTRS_H

#include "base/augment.h"
#include "guard.h"
#include <talweg/base.h>

/* Features that are summed up apart from others, where a dense layer goes by ranges of them. */
enum { TWI_FEATURE_BLOCK = 16 };
/* Ranges of rows of the gradient of a dense layer's weights begin at multiples of this. */
enum { TWI_DENSE_GRAIN = 8 };

typedef struct twi_conv2d_attrs {
    int32_t stride_h, stride_w;
    int32_t pad_top, pad_left, pad_bottom, pad_right;
    int32_t dilation_h, dilation_w;
    int32_t groups;
} twi_conv2d_attrs;

typedef struct twi_pool_attrs {
    int32_t kernel_h, kernel_w;
    int32_t stride_h, stride_w;
    int32_t pad_top, pad_left, pad_bottom, pad_right;
    bool ceil_mode;
    bool exclude_padding; /* average pooling: divide by the elements inside the image only */
} twi_pool_attrs;

/* Of a convolution and the pooling of its result, fused. */
typedef struct twi_conv2d_pool_attrs {
    twi_conv2d_attrs conv;
    twi_pool_attrs pool;
} twi_conv2d_pool_attrs;

/* Rows and columns of a convolution's result, which is an operand of none of these kernels. */
static inline int64_t twi_conv2d_rows(const twi_conv2d_attrs *a, int64_t height, int64_t kernel_h) {
    return (height + a->pad_top + a->pad_bottom - a->dilation_h * (kernel_h - 1) - 1) / a->stride_h + 1;
}
static inline int64_t twi_conv2d_columns(const twi_conv2d_attrs *a, int64_t width, int64_t kernel_w) {
    return (width + a->pad_left + a->pad_right - a->dilation_w * (kernel_w - 1) - 1) / a->stride_w + 1;
}

/* A part of a convolution's weights: some filters at one row and column of the kernel, with all channels. */
typedef struct twi_conv2d_part {
    int64_t first, filters, row, column;
} twi_conv2d_part;

/* Weights of those dimensions are cut into parts of so many filters. */
enum { TWI_CONV2D_PART_FILTERS = 64 };
static inline int64_t twi_conv2d_parts(const int64_t *w_dim) {
    return (w_dim[0] + TWI_CONV2D_PART_FILTERS - 1) / TWI_CONV2D_PART_FILTERS * w_dim[2] * w_dim[3];
}
static inline twi_conv2d_part twi_conv2d_part_at(const int64_t *w_dim, int64_t part) {
    const int64_t taps = w_dim[2] * w_dim[3], first = part / taps * TWI_CONV2D_PART_FILTERS;
    const int64_t left = w_dim[0] - first;
    const int64_t filters = left < TWI_CONV2D_PART_FILTERS ? left : (int64_t)TWI_CONV2D_PART_FILTERS;
    const twi_conv2d_part at = {first, filters, part % taps / w_dim[3], part % w_dim[3]};
    return at;
}

typedef struct twi_batch_norm_attrs {
    float epsilon;
    float momentum; /* weight of the new statistics: running = (1 - momentum) * running + momentum * batch */
    bool frozen;    /* the running statistics are used in training too, and stay as they are */
} twi_batch_norm_attrs;

/* Rows of batch norm's per-channel buffers [rows, C]. */
enum { TWI_NORM_MEAN, TWI_NORM_INVERSE, TWI_NORM_SCALE, TWI_NORM_OFFSET, TWI_NORM_COEFFICIENTS };
enum { TWI_NORM_CENTER, TWI_NORM_FAR, TWI_NORM_CENTERS }; /* batch mean, not yet exact; 1: sum again around it */
enum { TWI_NORM_SUM, TWI_NORM_PRODUCT, TWI_NORM_COUNT, TWI_NORM_SUMS };
enum { TWI_NORM_A, TWI_NORM_B, TWI_NORM_K, TWI_NORM_GRADIENTS }; /* dx = A*dy + B*x + K */

typedef struct twi_dropout_attrs {
    float rate; /* probability that an element becomes 0 */
} twi_dropout_attrs;

typedef struct twi_gelu_attrs {
    bool tanh; /* the tanh form in place of the erf form */
} twi_gelu_attrs;

typedef struct twi_cross_entropy_attrs {
    float label_smoothing;
} twi_cross_entropy_attrs;

typedef struct twi_reshape_attrs {
    int32_t rank; /* of one sample, the batch axis left out */
    int64_t dims[TW_MAX_RANK];
} twi_reshape_attrs;

typedef struct twi_loss_seed_attrs {
    float weight;
    bool scaled; /* by the guard's loss scale */
} twi_loss_seed_attrs;

typedef struct twi_gather_attrs {
    twi_augment augment;
    int32_t channels, height, width; /* of a sample, which the input may take in another shape */
} twi_gather_attrs;

/* A run of the flat parameter arena that is updated alike. */
typedef struct twi_update_segment {
    int64_t begin, end; /* elements */
    float weight_decay;
    bool half;   /* its gradient is in the array of gradients in half precision */
    int64_t row; /* the step that makes its gradient measures it too, in blocks of so many; 0: guard.measure does */
} twi_update_segment;

/* What of a segment lies in begin..end-1; nothing does where the result ends before it begins. */
static inline twi_update_segment twi_update_part(twi_update_segment segment, int64_t begin, int64_t end) {
    if (segment.begin < begin) segment.begin = begin;
    if (segment.end > end) segment.end = end;
    return segment;
}

/* Updates go by shares, a part of every segment each: a worker then updates about the rows of a weight whose gradient
 * it made, which are in its cache. Of many elements there are 64, which can be handed out in the same parts as rows; of
 * fewer only so many that each is worth handing out. They end at multiples of a cache line of their segment. */
enum { TWI_UPDATE_SHARES = 64, TWI_UPDATE_MANY = 65536, TWI_UPDATE_WORTH = 4096, TWI_UPDATE_LINE = 16 };
static inline int64_t twi_update_shares(int64_t elements) {
    if (elements >= TWI_UPDATE_MANY) return TWI_UPDATE_SHARES;
    return elements >= TWI_UPDATE_WORTH ? elements / TWI_UPDATE_WORTH : 1;
}
static inline int64_t twi_update_cut(const twi_update_segment *segment, int64_t share, int64_t shares) {
    const int64_t length = segment->end - segment->begin, each = length / shares, rest = length % shares;
    if (share == shares) return segment->end;
    return segment->begin + (each * share + rest * share / shares) / TWI_UPDATE_LINE * TWI_UPDATE_LINE;
}
/* Of shares begin .. end-1 of so many. */
static inline twi_update_segment twi_update_share(const twi_update_segment *segment, int64_t begin, int64_t end,
                                                  int64_t shares) {
    return twi_update_part(*segment, twi_update_cut(segment, begin, shares), twi_update_cut(segment, end, shares));
}

/* Segments are looked at in blocks: of each segment from a multiple of 4 on, the first and the last may be shorter; or
 * in rows of a weight. */
static inline int64_t twi_segment_base(const twi_update_segment *segment) {
    return segment->row ? segment->begin : segment->begin / 4 * 4;
}
static inline int64_t twi_segment_block(const twi_update_segment *segment) {
    const int64_t block = TWI_UPDATE_BLOCK;
    return segment->row ? segment->row : block;
}
static inline int64_t twi_segment_blocks(const twi_update_segment *segment) {
    const int64_t block = twi_segment_block(segment);
    if (segment->end <= segment->begin) return 0;
    return (segment->end - twi_segment_base(segment) + block - 1) / block;
}

typedef struct twi_update_attrs {
    int32_t segment_count;
    const twi_update_segment *segment; /* ascending, not overlapping */
    float momentum;
    bool nesterov;
    float beta1, beta2, epsilon;
} twi_update_attrs;

static inline int64_t twi_update_blocks(const twi_update_attrs *attrs) {
    int64_t blocks = 0;
    for (int32_t s = 0; s < attrs->segment_count; s++) blocks += twi_segment_blocks(&attrs->segment[s]);
    return blocks;
}
/* What lies in a block, by its number; *base is the element that its places are counted from. */
static inline twi_update_segment twi_update_block(const twi_update_attrs *attrs, int64_t block, int64_t *base) {
    int32_t s = 0;
    while (block >= twi_segment_blocks(&attrs->segment[s])) block -= twi_segment_blocks(&attrs->segment[s++]);
    const int64_t length = twi_segment_block(&attrs->segment[s]);
    *base = twi_segment_base(&attrs->segment[s]) + block * length;
    return twi_update_part(attrs->segment[s], *base, *base + length);
}

/* Blocks that are left to guard.measure, and the number among all of one of them. */
static inline int64_t twi_update_blocks_left(const twi_update_attrs *attrs) {
    int64_t blocks = 0;
    for (int32_t s = 0; s < attrs->segment_count; s++)
        if (!attrs->segment[s].row) blocks += twi_segment_blocks(&attrs->segment[s]);
    return blocks;
}
static inline int64_t twi_update_block_left(const twi_update_attrs *attrs, int64_t left) {
    int64_t block = left;
    for (int32_t s = 0; attrs->segment[s].row || left >= twi_segment_blocks(&attrs->segment[s]); s++) {
        const int64_t blocks = twi_segment_blocks(&attrs->segment[s]);
        if (attrs->segment[s].row)
            block += blocks;
        else
            left -= blocks;
    }
    return block;
}

/* A step that makes a weight's gradient and measures it, row by row. */
typedef struct twi_measure_attrs {
    const twi_update_attrs *guarded; /* what the guard looks at; the weight is a segment of its own there */
    int64_t begin;                   /* and begins at this element */
    uint8_t dtype;                   /* what the gradient is stored in: tw_dtype */
} twi_measure_attrs;

static inline int64_t twi_measure_first_block(const twi_measure_attrs *attrs) {
    int64_t blocks = 0;
    for (int32_t s = 0; attrs->guarded->segment[s].begin != attrs->begin; s++)
        blocks += twi_segment_blocks(&attrs->guarded->segment[s]);
    return blocks;
}

typedef struct twi_schedule_attrs {
    int32_t kind;   /* 0 constant, 1 step, 2 cosine */
    double base;    /* peak learning rate */
    double minimum; /* cosine: last value */
    int64_t warmup; /* updates of linear warm-up; the first update uses base / warmup */
    int64_t total;  /* cosine: updates in all, warm-up included */
    int64_t every;  /* step: updates between drops */
    double factor;  /* step: what a drop multiplies by */
} twi_schedule_attrs;

#endif
