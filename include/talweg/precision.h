/* Talweg: in which types a program stores and computes, and what guards it against numbers that are not finite. */
#ifndef TALWEG_PRECISION_H
#define TALWEG_PRECISION_H

#include <talweg/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What activations, their gradients and the weights that layers read are stored in. Master weights, optimizer state,
 *  statistics of norms, losses and sums are f32 in all of them. */
typedef enum tw_precision {
    TW_PRECISION_F32 = 0,  /**< f32 everywhere; never TF32 */
    TW_PRECISION_TF32 = 1, /**< stored as f32; operands of convolutions and dense layers are rounded to 10 bits of
                                mantissa where the device has TF32, and nowhere else */
    TW_PRECISION_BF16 = 2, /**< 8 bits of mantissa, the range of f32: needs no loss scaling */
    TW_PRECISION_F16 = 3,  /**< 11 bits of mantissa, up to 65504: with dynamic loss scaling */
    TW_PRECISION_AUTO = 4  /**< BF16 where the device computes in it, else F32 */
} tw_precision;

/** "f32", "tf32", "bf16", "f16", "auto"; "?" for an unknown one. */
TW_API const char *tw_precision_name(tw_precision precision);

/** A layer that is computed in another type than its program. */
typedef struct tw_precision_rule {
    const char *layer;      /**< a node's name, or what stands before a dot in names: "layer1" means all of
                                 "layer1.0.conv1" ... */
    tw_precision precision; /**< TW_PRECISION_F32, _TF32 or the program's own */
} tw_precision_rule;

/** Dynamic loss scaling, for f16 (Micikevicius et al., "Mixed Precision Training", ICLR 2018): gradients are computed
 *  times a scale, and divided by it before they are used, clipped and read. An update whose gradients or loss are not
 *  finite is skipped, changes nothing, and lowers the scale. The scale belongs to the model, as optimizer state does:
 *  the first program that scales sets it to `initial`. */
typedef struct tw_loss_scaling {
    double initial;          /**< 0: 65536 */
    double growth;           /**< factor after `growth_interval` updates in a row; 0: 2 */
    double backoff;          /**< factor after a skipped update; 0: 0.5 */
    int64_t growth_interval; /**< 0: 2000 */
    double minimum, maximum; /**< 0: 1 and 2^24; within 2^-126 .. 2^126 */
    int64_t patience;        /**< so many skipped updates in a row are NUMERIC; 0: 50 */
} tw_loss_scaling;

/** What happens when a loss or a gradient is not finite. With loss scaling the update is skipped and the scale lowered
 *  under each of them, until `patience` ends; what follows says what happens then, and without it. */
typedef enum tw_non_finite {
    TW_NON_FINITE_STOP = 0,     /**< NUMERIC; the run changed nothing */
    TW_NON_FINITE_SKIP = 1,     /**< the update is left out, and counted; NUMERIC after `patience` of them in a row,
                                     without loss scaling 50 */
    TW_NON_FINITE_ROLL_BACK = 2, /**< of trainers: the model goes back to its last snapshot, and training on from there
                                      with the data that follow; NUMERIC if it fails again before there was an update */
    TW_NON_FINITE_IGNORE = 3     /**< of programs: nobody looks at gradients, which may go into the weights as they are
                                      made, and what is not finite goes there too; a loss that is not finite is NUMERIC
                                      still. gradient_norm is 0. Not with clip_norm or loss scaling, which need somebody
                                      to look */
} tw_non_finite;

#ifdef __cplusplus
}
#endif
#endif
