/* Talweg: optimizers and learning-rate schedules, as options of programs and trainers. */
#ifndef TALWEG_OPTIM_H
#define TALWEG_OPTIM_H

#include <talweg/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tw_optimizer_kind {
    TW_SGD = 0,  /**< g += wd w; v = momentum v + g; w -= lr v (Nesterov: w -= lr (g + momentum v)), as in PyTorch */
    TW_ADAMW = 1 /**< Adam with decoupled decay (Loshchilov & Hutter 2019): w -= lr wd w; m, v; w -= lr m^ / (sqrt(v^) +
                      eps); m^ and v^ are corrected for all updates of the model */
} tw_optimizer_kind;

typedef enum tw_schedule_kind {
    TW_SCHEDULE_CONSTANT = 0,
    TW_SCHEDULE_STEP = 1,  /**< times `factor` every `every` updates */
    TW_SCHEDULE_COSINE = 2 /**< half a cosine from the peak to `minimum` over the updates after the warm-up */
} tw_schedule_kind;

/** Counted in updates (one optimizer step each). Update u < warmup runs at rate (u+1)/warmup of the peak. */
typedef struct tw_schedule {
    tw_schedule_kind kind;
    int64_t warmup;  /**< updates of linear warm-up */
    int64_t total;   /**< updates in all; trainers fill it in when 0 */
    int64_t every;   /**< TW_SCHEDULE_STEP */
    double factor;   /**< TW_SCHEDULE_STEP; 0: 0.1 */
    double minimum;  /**< TW_SCHEDULE_COSINE: the last rate */
} tw_schedule;

/** What another kind than the chosen one takes, of optimizers as of schedules, has to be left out: it is refused, since it
 *  would have no effect. */
typedef struct tw_optimizer_options {
    size_t size; /**< as in every options struct, which TW_OPTIONS and _INIT see to: tw_program_create and
                      tw_schedule_rate need it. Within tw_trainer_options it may stay 0 */
    tw_optimizer_kind kind;
    double learning_rate; /**< the peak; 0: 0.01 for SGD, 0.001 for AdamW */
    float momentum;       /**< SGD; 0: none */
    bool nesterov;        /**< SGD with momentum */
    float beta1, beta2;   /**< AdamW; 0: 0.9 and 0.999 */
    float epsilon;        /**< AdamW; 0: 1e-8 */
    float weight_decay;   /**< of weights; biases and norm parameters are left out unless decay_all; 0: none */
    bool decay_all;       /**< decay every learned parameter */
    tw_schedule schedule;
    float clip_norm;      /**< gradients are scaled down to this L2 norm, over all that are updated, where theirs is
                               larger; 0: not */
} tw_optimizer_options;
#define TW_OPTIMIZER_OPTIONS_INIT {sizeof(tw_optimizer_options), TW_SGD, 0, 0, false, 0, 0, 0, 0, false, {TW_SCHEDULE_CONSTANT, 0, 0, 0, 0, 0}, 0}

/** The learning rate of update `update` (0 is the first) under these options; for plots and tests. Errors: ARGUMENT. */
TW_API TW_WARN_UNUSED tw_status tw_schedule_rate(const tw_optimizer_options *options, int64_t update, double *out);

#ifdef __cplusplus
}
#endif
#endif
