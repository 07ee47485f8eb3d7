/* Attribute structs of the ops: what a node carries beside its inputs and every implementation of its kernels reads. Each op's table
 * describes its struct field by field. */
#ifndef TWI_BACKEND_ATTRS_H
#define TWI_BACKEND_ATTRS_H

#include <talweg/base.h>

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

typedef struct twi_batch_norm_attrs {
    float epsilon;
    float momentum; /* weight of the new statistics: running = (1 - momentum) * running + momentum * batch */
} twi_batch_norm_attrs;

typedef struct twi_dropout_attrs {
    float rate; /* probability that an element becomes 0 */
} twi_dropout_attrs;

typedef struct twi_cross_entropy_attrs {
    float label_smoothing;
} twi_cross_entropy_attrs;

typedef struct twi_reshape_attrs {
    int32_t rank;             /* of one sample, the batch axis left out */
    int64_t dims[TW_MAX_RANK];
} twi_reshape_attrs;

typedef struct twi_loss_seed_attrs {
    float weight;
} twi_loss_seed_attrs;

/* A run of the flat parameter arena that is updated alike. */
typedef struct twi_update_segment {
    int64_t begin, end; /* elements */
    float rate_scale;
    float weight_decay;
} twi_update_segment;

typedef struct twi_update_attrs {
    int32_t segment_count;
    const twi_update_segment *segment; /* ascending, not overlapping */
    float momentum;
    bool nesterov;
    float beta1, beta2, epsilon;
} twi_update_attrs;

typedef struct twi_schedule_attrs {
    int32_t kind;     /* 0 constant, 1 step, 2 cosine */
    double base;      /* peak learning rate */
    double minimum;   /* cosine: last value */
    int64_t warmup;   /* updates of linear warm-up; the first update uses base / warmup */
    int64_t total;    /* cosine: updates in all, warm-up included */
    int64_t every;    /* step: updates between drops */
    double factor;    /* step: what a drop multiplies by */
} twi_schedule_attrs;

#endif
