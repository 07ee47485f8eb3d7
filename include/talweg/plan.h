/* Talweg: what a training run needs, before anything of it is allocated, on any machine: memory to the byte, bytes
 * moved, FLOPs, and the time that a card's data sheet allows for them.
 *
 *     tw_context_create(&context, "plan:h200", NULL);      -- or "plan:cpu", or "plan:cuda:0" for the card that is here
 *     ... the model, as ever: no memory is taken for it ...
 *     tw_plan_create(&plan, model, TW_OPTIONS(plan, .samples = 50000, .trainer = TW_OPTIONS(trainer, .batch = 256)));
 *     tw_plan_get_memory(plan, &memory); */
#ifndef TALWEG_PLAN_H
#define TALWEG_PLAN_H

#include <talweg/trainer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- cards ---- */

/** A device as its maker describes it. Rates are of dense products, summed in f32, at the highest clock; 0: unknown, or
 *  not there. */
typedef struct tw_card {
    size_t size;         /**< set by the caller: tw_card card = TW_CARD_INIT */
    char key[32];        /**< "h200" */
    char name[64];       /**< "NVIDIA H200" */
    int capability;      /**< 90 for CUDA's compute capability 9.0; 0: no GPU */
    int processors;      /**< multiprocessors */
    int clock_mhz;       /**< highest */
    size_t memory_bytes;
    size_t l2_bytes;     /**< second-level cache */
    double bandwidth;    /**< of memory, bytes a second */
    double f32, tf32, bf16, f16; /**< FLOPs a second, a multiply-add counted as 2 */
    char source[160];    /**< the document that says so */
} tw_card;
#define TW_CARD_INIT {sizeof(tw_card), "", "", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ""}

/** How many cards are known. */
TW_API int tw_card_count(void);
/** The card of that index, by their age. Errors: ARGUMENT. */
TW_API TW_WARN_UNUSED tw_status tw_card_get(tw_card *out, int index);
/** The card of a key such as "h200". Errors: ARGUMENT, listing the keys. */
TW_API TW_WARN_UNUSED tw_status tw_card_find(tw_card *out, const char *key);
/** Reads a card from a JSON file: an object with "name", "capability", "processors", "memory_gib", and, if they are
 *  known, "key", "clock_mhz", "l2_mib", "bandwidth_gbs" (10^9 bytes a second), "f32_tflops", "tf32_tflops",
 *  "bf16_tflops", "f16_tflops" and "source". Errors: FILE, FORMAT, ARGUMENT. */
TW_API TW_WARN_UNUSED tw_status tw_card_load(tw_card *out, const char *path);
/** Opens a context that plans for a card, which need not be one of those known: what tw_context_create does for
 *  "plan:h200". Errors: ARGUMENT, OUT_OF_MEMORY. */
TW_API TW_WARN_UNUSED tw_status tw_context_create_for_card(tw_context **out, const tw_card *card, const tw_context_options *options);
/** The card that a context plans for or runs on, as far as it is known: a GPU that is here is looked up by its name,
 *  and is otherwise without rates; of a CPU only the name and the memory are told (its rates: tw_context_measure).
 *  Errors: ARGUMENT, DEVICE. */
TW_API TW_WARN_UNUSED tw_status tw_card_of_context(tw_card *out, const tw_context *context);

/* ---- plans ---- */

typedef struct tw_plan tw_plan;

typedef struct tw_plan_options {
    size_t size;
    const tw_trainer_options *trainer; /**< what would be given to tw_trainer_create; NULL: the defaults. workers says
                                            whether the data are streamed */
    int64_t samples;      /**< of the training set, resident unless workers or too little memory have them streamed; 0:
                               unknown, then they are streamed */
    int64_t test_samples; /**< of the test set; 0: there is none */
    bool floats;          /**< samples are f32, not u8 */
    const tw_card *card;  /**< whose figures times are made of; NULL: the context's. Copied */
} tw_plan_options;
#define TW_PLAN_OPTIONS_INIT {sizeof(tw_plan_options), NULL, 0, 0, false, NULL}

/** Plans tw_trainer_fit: goes through all that it does before its first step, its programs for full and shorter batches
 *  and for the evaluation included, but takes no memory of the device. The model must be built, in a context that only
 *  plans; nothing is added to it but the trainer's own values. Errors: as tw_trainer_create and tw_trainer_fit; STATE
 *  for a context that runs; OUT_OF_MEMORY where options' memory_limit or the context's device_memory_limit is too
 *  small. */
TW_API TW_WARN_UNUSED tw_status tw_plan_create(tw_plan **out, tw_model *model, const tw_plan_options *options);
/** Frees a plan, before its model. NULL is fine. */
TW_API void tw_plan_destroy(tw_plan *plan);

/** Memory of the device at the moment when most is held, in bytes. The parts add up to peak_bytes, which is what
 *  tw_context_get_device_memory will tell as the peak of the same fit. Without a memory_limit that is a fit on a device
 *  with room enough: on one without, fit changes its plan. */
typedef struct tw_plan_memory {
    size_t size;                      /**< set by the caller: tw_plan_memory memory = TW_PLAN_MEMORY_INIT */
    size_t peak_bytes;
    size_t parameter_bytes;           /**< weights in f32, running statistics and their shadows */
    size_t copy_bytes;                /**< copies of weights in half precision */
    size_t gradient_bytes;            /**< of the weights, or their sums where batches are accumulated */
    size_t optimizer_bytes;           /**< moments, and the snapshot of a trainer that rolls back */
    size_t activation_bytes;          /**< kept by the forward, inputs left out */
    size_t activation_gradient_bytes;
    size_t workspace_bytes;           /**< of implementations and of workers, partial sums */
    size_t data_bytes;                /**< resident sets, their order, slots, and the batch itself */
    size_t other_bytes;               /**< control block, tables */
    size_t unused_bytes;              /**< between blocks of the arena, and of an arena that is about to be replaced by
                                           a larger one */
    size_t overhead_bytes;            /**< not in the peak: what driver and libraries take of a GPU, an estimate */
    bool workspace_estimated;         /**< the libraries that choose convolutions and products are not here: workspaces
                                           are the most they may take */
    bool streamed;                    /**< batches of the training set come from the host: it is not resident, by choice
                                           or because it does not fit */
    bool fits;                        /**< peak and overhead in 15/16 of the device's memory; true where that is
                                           unknown */
} tw_plan_memory;
#define TW_PLAN_MEMORY_INIT {sizeof(tw_plan_memory), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, false, false, false}

/** What is held at the peak. Errors: ARGUMENT. */
TW_API TW_WARN_UNUSED tw_status tw_plan_get_memory(const tw_plan *plan, tw_plan_memory *out);

/** Work of a kind of step, or of a layer: of one update. */
typedef struct tw_plan_work {
    size_t size;           /**< set by the caller: tw_plan_work work = TW_PLAN_WORK_INIT */
    const char *name;      /**< "conv2d"; borrowed from the plan */
    int steps;
    double bytes;          /**< read and written */
    double flops;
    double seconds;        /**< sum over its steps of max(bytes / bandwidth, flops / rate); NaN where the card's figures
                                are unknown */
    size_t memory_bytes;   /**< of a layer: activations and their gradients at the peak, and all that is kept for its
                                parameters */
} tw_plan_work;
#define TW_PLAN_WORK_INIT {sizeof(tw_plan_work), NULL, 0, 0, 0, 0, 0}

/** How many kinds of steps an update has. */
TW_API int tw_plan_count_kinds(const tw_plan *plan);
/** A kind of step, the one that moves most bytes first. Errors: ARGUMENT. */
TW_API TW_WARN_UNUSED tw_status tw_plan_get_kind(const tw_plan *plan, int index, tw_plan_work *out);
/** How many layers the model has. */
TW_API int tw_plan_count_layers(const tw_plan *plan);
/** A layer, the one that holds most memory at the peak first. Errors: ARGUMENT. */
TW_API TW_WARN_UNUSED tw_status tw_plan_get_layer(const tw_plan *plan, int index, tw_plan_work *out);

/** What the roofline allows (Williams, Waterman and Patterson 2009): a step takes as long as its bytes at the card's
 *  bandwidth or its FLOPs at the card's rate, whichever is longer. Not measured; launches, latencies and the host are
 *  left out. */
typedef struct tw_plan_time {
    size_t size;           /**< set by the caller: tw_plan_time time = TW_PLAN_TIME_INIT */
    int64_t batches;       /**< an update */
    double bytes, flops;   /**< of an update */
    double update_seconds; /**< NaN where the card's figures are unknown */
    double byte_share;     /**< share of the update's seconds in steps that wait for bytes, 0 .. 1 */
    double epoch_seconds;  /**< of training, without its evaluation; NaN where the samples are unknown */
    double images_per_second;
    tw_precision precision; /**< of the program: what TW_PRECISION_AUTO has become */
    int64_t parts;          /**< that each batch is run in, to keep a memory limit; 1: batches are run whole */
} tw_plan_time;
#define TW_PLAN_TIME_INIT {sizeof(tw_plan_time), 0, 0, 0, 0, 0, 0, 0, TW_PRECISION_F32, 1}

/** The time of an update on a card; NULL: the one of the plan's options. A type that the card does not multiply itself
 *  is computed at its f32 rate. Errors: ARGUMENT. */
TW_API TW_WARN_UNUSED tw_status tw_plan_get_time(const tw_plan *plan, const tw_card *card, tw_plan_time *out);
/** The trainer's program for a full batch, for tw_program_dump and tw_program_get_stats; borrowed from the plan. */
TW_API tw_program *tw_plan_get_program(const tw_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
