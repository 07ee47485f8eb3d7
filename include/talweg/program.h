/* Talweg: programs. A program is a model's graph compiled for a batch size and a purpose: a flat list of steps over
 * planned memory. Training loops by hand are written over programs; tw_trainer does it for you. */
#ifndef TALWEG_PROGRAM_H
#define TALWEG_PROGRAM_H

#include <talweg/data.h>
#include <talweg/model.h>
#include <talweg/optim.h>
#include <talweg/precision.h>
#include <talweg/resident.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_program tw_program;

/** A loss value (a batch sum, e.g. of tw_cross_entropy) and its weight in the total; weight 0 counts as 1. */
typedef struct tw_loss {
    tw_value *value;
    float weight;
} tw_loss;

/** Inputs that a program gathers itself, each run the next `batch` samples of a resident set's order, instead of being
 *  fed them. */
typedef struct tw_source_options {
    size_t size;
    tw_resident *resident;          /**< borrowed: must outlive the program's last run */
    const tw_value *images;         /**< the input that takes the samples; NULL: none does */
    const tw_value *labels;         /**< the input that takes the labels; NULL: none does */
    bool flip;                      /**< as tw_loader_options */
    int crop_padding;
    uint64_t seed;                  /**< governs flips and crops */
    tw_normalization normalization; /**< channels 0: none */
} tw_source_options;
#define TW_SOURCE_OPTIONS_INIT {sizeof(tw_source_options), NULL, NULL, NULL, false, 0, 0, {0, {0}, {0}}}

/** What a training program computes again in its backward instead of keeping it. Not a bit of what it learns depends on
 *  it: steps that are done again are the same steps, and running statistics move once. */
typedef enum tw_recompute {
    TW_RECOMPUTE_AUTO = 0,  /**< as little as keeps the memory limit; nothing where there is none */
    TW_RECOMPUTE_OFF = 1,   /**< nothing, whatever the limit */
    TW_RECOMPUTE_BLOCKS = 2 /**< keeps the borders of blocks only: the least memory */
} tw_recompute;

typedef struct tw_program_options {
    size_t size;
    bool train;                            /**< training behaviour of dropout and batch norm, and gradients of the
                                                losses */
    const tw_loss *losses;                 /**< what is minimised (train) or only reported */
    int loss_count;
    tw_value *const *outputs;              /**< values readable after a run, beside losses */
    int output_count;
    tw_value *const *gradients;            /**< values whose gradient stays readable (train) */
    int gradient_count;
    const tw_optimizer_options *optimizer; /**< train: the update that ends a run; NULL: gradients only */
    bool no_fusion;                        /**< leave the pattern table out: for comparing */
    bool record_passes;                    /**< keep what every pass made, for tw_program_dump */
    bool accumulate;                       /**< gradients may be summed over several batches: see tw_window_open; needs
                                                an optimizer */
    const tw_source_options *source;       /**< inputs gathered from a resident set; NULL: all are fed */
    tw_precision precision;
    const tw_precision_rule *precision_rules; /**< layers that differ; the last one that names a layer holds */
    int precision_rule_count;
    const tw_loss_scaling *loss_scaling;   /**< NULL: the defaults where the precision is F16, none elsewhere; given: in
                                                every precision */
    tw_non_finite on_non_finite;           /**< STOP, SKIP or IGNORE */
    tw_recompute recompute;
    size_t memory_limit;                   /**< bytes of the device that the model may take with this program and its
                                                others: parameters, gradients or their sums, optimizer, snapshots,
                                                activations, workspaces, slots. Kept by smaller workspaces, then by
                                                recomputation. Not counted: resident sets, and trials of implementations
                                                (autotune); 0: no limit */
    bool plan_only;                        /**< takes no memory of the device: for tw_program_get_stats and
                                                tw_program_dump; it cannot run */
} tw_program_options;
#define TW_PROGRAM_OPTIONS_INIT \
    {sizeof(tw_program_options), false, NULL, 0, NULL, 0, NULL, 0, NULL, false, false, false, NULL, \
     TW_PRECISION_F32, NULL, 0, NULL, TW_NON_FINITE_STOP, TW_RECOMPUTE_AUTO, 0, false}

/** Compiles the model's graph for `batch` samples. The model must be built and outlive the program. All memory is taken
 *  here: a run allocates nothing. Programs of a model share parameters, the state of optimizers of a kind, and one
 *  arena: feeding or running one discards the inputs and outputs of another, which must be fed again before it runs.
 *  Where memory runs out under a memory_limit, the arena may be gone: the next program that is fed or run asks for it
 *  again. Errors: ARGUMENT, STATE, OUT_OF_MEMORY, UNSUPPORTED. */
TW_API TW_WARN_UNUSED tw_status tw_program_create(tw_program **out, tw_model *model, int64_t batch, const tw_program_options *options);
/** Frees a program, before its model. NULL is fine. */
TW_API void tw_program_destroy(tw_program *program);
/** The batch size it was compiled for. */
TW_API int64_t tw_program_get_batch(const tw_program *program);

/** A fingerprint of the realised plan: kernels, implementations, their order, chunks and groups. Equal hashes on the
 *  same kind of machine and with the same library versions mean the same bits from the same seed. 0 for NULL, and
 *  where a user's op states that it is not deterministic. */
TW_API uint64_t tw_program_get_plan_hash(const tw_program *program);

/** Feeds an input value: the whole batch, row-major in logical N,C,H,W order. Inputs take f32, f16, bf16 or u8; labels
 *  i32, i64 or u8.
 *  Values are taken as they are: u8 as 0 .. 255, neither divided nor normalised, which a trainer does with the sets it
 *  is given (tw_model_get_normalization tells how). count is the number of elements. Errors: ARGUMENT naming the
 *  value, what it wants and what was given; LABEL for an i64 beyond i32. */
TW_API TW_WARN_UNUSED tw_status tw_program_write(tw_program *program, const tw_value *value, tw_dtype dtype, const void *data, int64_t count);
/** Feeds an input value as tw_program_write does, with the same results and errors, but runs may read the data where they
 *  are instead of a copy. The input stays lent, as it would stay written: every run, and tw_program_read of the input,
 *  reads the data until the input is written or lent anew, another program of the model discards it, or the program is
 *  destroyed. So they must be alive and unchanged whenever such a run or read is under way: a batch may go as soon as the
 *  last run that is to read it has returned. Data that change between two runs must be lent anew. An update does not read
 *  them: one that fails by itself (tw_program_run_update) does not tell which value was not finite first.
 *  They are read in place on the CPU if they are f32, aligned to 64 bytes (aligned_alloc; batches of a tw_loader are), and
 *  ordered as the program keeps them: images of one channel, or inputs without height and width, where the program keeps
 *  the input in f32. Others are copied, and on a GPU all are; what is asked of the data is the same. */
TW_API TW_WARN_UNUSED tw_status tw_program_lend(tw_program *program, const tw_value *value, tw_dtype dtype, const void *data, int64_t count);
/** Runs everything: forward, losses, and in training backward and update. With a source it takes the next `batch`
 *  samples of its order.
 *  Errors: STATE (not fed, or another program of the model was fed or run since; no order set, or fewer samples left in
 *  it); LABEL, NUMERIC (a loss or gradient is not finite, as on_non_finite and loss scaling have it), DEVICE: then
 *  parameters, state and running statistics are as before the run. */
TW_API TW_WARN_UNUSED tw_status tw_program_run(tw_program *program);
/** Runs forward, losses and backward, without the update. Errors: as tw_program_run. */
TW_API TW_WARN_UNUSED tw_status tw_program_run_gradients(tw_program *program);
/** Runs the update on the gradients of the last tw_program_run_gradients, or, where a window is open, on the sums over
 *  the window, which ends with it. Errors: STATE if there are none, or the window is not complete. */
TW_API TW_WARN_UNUSED tw_status tw_program_run_update(tw_program *program);

/** Opens a window: one update for the gradients of several batches, whose samples, `samples` in all, count alike. Open
 *  it, write and tw_program_run_gradients batch by batch, then tw_program_run_update. The programs must have been
 *  created with `accumulate`; those of different batch sizes (a shorter last batch) may share a window, and programs
 *  that do not train may run in between. Gradients, losses and dropout's masks are those of one batch of `samples`
 *  samples, whose positions are counted through the window. Batch norm takes the statistics of each batch, and every
 *  batch moves the running ones, once. Parameters, optimizer state, running statistics and counters change with the
 *  update only. A run that fails ends the hope of an update: all is as it was before the window; open another.
 *  A window left open is dropped by the next. Without one, a run is a window of one batch. Allocates nothing. Errors:
 *  ARGUMENT; STATE before tw_model_build. While a window is open, STATE from other training runs, from more samples
 *  than announced and from an update before all. */
TW_API TW_WARN_UNUSED tw_status tw_window_open(tw_model *model, int64_t samples);
/** Drops the open window with all it has summed; nothing happens where none is open. */
TW_API void tw_window_close(tw_model *model);
/** Total loss of the open window or, if none is, of the last that was opened: sum over losses of weight times mean over
 *  the samples that have run; NaN if none have. */
TW_API double tw_window_get_loss(const tw_model *model);

/** The last run's total loss: sum over losses of weight times mean over the batch. */
TW_API double tw_program_get_loss(const tw_program *program);
/** Copies an output or loss out, in logical order: f32, or i32 for labels, ranks and indices. Errors: ARGUMENT if it
 *  was not asked for; STATE as tw_program_run. */
TW_API TW_WARN_UNUSED tw_status tw_program_read(tw_program *program, const tw_value *value, void *values, int64_t count);
/** Copies the gradient of a value asked for in `gradients` out, f32, logical order. Errors: ARGUMENT, STATE as
 *  tw_program_read. */
TW_API TW_WARN_UNUSED tw_status tw_program_read_gradient(tw_program *program, const tw_value *value, float *values, int64_t count);
/** Copies the gradient of a parameter out, f32, logical order; valid after a training run; in a window the sum over the
 *  batches that have run.
 *  Under TW_NON_FINITE_IGNORE a weight's may be gone into it already: name the parameter among the program's
 *  `gradients` to keep it.
 *  Errors: ARGUMENT; STATE if it gets none. */
TW_API TW_WARN_UNUSED tw_status tw_program_read_parameter_gradient(tw_program *program, const char *name, float *values, int64_t count);

typedef enum tw_pass {
    TW_PASS_LOWER = 0,   /**< steps of forward, losses, backward and update */
    TW_PASS_LAYOUT = 1,  /**< a layout for every value; copies that move nothing are gone */
    TW_PASS_FUSE = 2,    /**< after the pattern table, with the bytes it saved */
    TW_PASS_SCHEDULE = 3,/**< segments, chunks and groups */
    TW_PASS_CHOOSE = 4,  /**< the implementation of every step */
    TW_PASS_MEMORY = 5   /**< offsets and the exact peak: what will run */
} tw_pass;

/** What a pass made, step by step with bytes and FLOPs. Only TW_PASS_MEMORY unless record_passes was set. Borrowed
 *  until the next call; NULL after a failure. */
TW_API const char *tw_program_dump(tw_program *program, tw_pass pass);

typedef struct tw_program_stats {
    size_t arena_bytes;      /**< this program's share of the model's arena: activations, workspaces, partial sums */
    size_t scratch_bytes;    /**< of all workers together */
    size_t parameter_bytes;  /**< parameters and buffers */
    size_t gradient_bytes;
    size_t state_bytes;      /**< optimizer */
    int steps, segments;
    double flops;            /**< a run */
    double bytes;            /**< read and written by a run */
    int64_t recomputed_steps; /**< of the steps, those that do once more what a step of the forward did */
    double recomputed_flops, recomputed_bytes; /**< of a run's, theirs */
    double recomputed_work;  /**< estimated time they add, as a share of the plan without them */
    size_t workspace_limit;  /**< that the memory limit set to single workspaces; 0: none */
    /* What lies in the arena when most of it is in use; the parts add up to arena_bytes. */
    size_t input_bytes;      /**< the batch, with the copies that threads have of it */
    size_t activation_bytes; /**< made by the forward */
    size_t activation_gradient_bytes;
    size_t workspace_bytes;  /**< of implementations for the whole run, and partial sums; what they need for a step is
                                  scratch */
    size_t unused_bytes;     /**< between blocks */
} tw_program_stats;

/** Planned memory and work of a run. */
TW_API tw_program_stats tw_program_get_stats(const tw_program *program);

typedef enum tw_step_part {
    TW_STEP_FORWARD = 0,
    TW_STEP_BACKWARD = 1,
    TW_STEP_COMMIT = 2, /**< checks, and what lasts and is no parameter */
    TW_STEP_UPDATE = 3
} tw_step_part;

/** One step of a program, as it was planned, and what timed runs say of it. Texts live as long as the program. */
typedef struct tw_step_info {
    size_t size;                /**< set by the caller, e.g. tw_step_info step = TW_STEP_INFO_INIT */
    const char *kernel;         /**< "conv2d.forward" */
    const char *label;          /**< of the layer or value it belongs to: "conv1.product" */
    const char *implementation; /**< "onednn" */
    tw_step_part part;
    int segment;                /**< steps of a segment run chunk by chunk without waiting for each other */
    double flops, bytes;        /**< of a run: arithmetic, and what is read and written */
    double local_bytes;         /**< of these, what lies in a worker's scratch, a chunk at a time, and is meant to stay
                                     in its cache */
    uint64_t calls;             /**< of the implementation, one a chunk or part, in all timed runs */
    double seconds;             /**< of all workers together, in all timed runs */
    bool constant;              /**< of programs without training: depends on parameters and statistics alone, and is
                                     run only where those have changed, so not in every run */
    const char *apart;          /**< of a step that makes a weight's gradient and could have updated the weight with it:
                                     why it does not; else NULL */
} tw_step_info;
#define TW_STEP_INFO_INIT {sizeof(tw_step_info), NULL, NULL, NULL, TW_STEP_FORWARD, 0, 0, 0, 0, 0, 0, false, NULL}

/** Times the steps of the runs to come, from zero, or ends that; a run allocates nothing either way, and its results
 *  are the same. Costs a look at the clock for every call. Errors: ARGUMENT; STATE of a program that only plans;
 *  UNSUPPORTED by the device: on a GPU use its profilers; OUT_OF_MEMORY. */
TW_API TW_WARN_UNUSED tw_status tw_program_set_timing(tw_program *program, bool on);
/** Describes step `index`, 0 .. tw_program_get_stats().steps - 1, in the order of the dump. Fields beyond out->size are
 *  left out; calls and seconds are 0 where nothing was timed. Errors: ARGUMENT. */
TW_API TW_WARN_UNUSED tw_status tw_program_get_step(const tw_program *program, int index, tw_step_info *out);

/** What guards a model's updates, as the last run left it. It lasts with the model, whichever program runs. */
typedef struct tw_guard_stats {
    double loss_scale;        /**< of the next run; 1 until a program scales its loss */
    int64_t good;             /**< updates in a row since the scale last changed */
    int64_t skipped;          /**< updates left out in all */
    int64_t skipped_in_a_row; /**< and since the last that was made */
    int64_t rolled_back;      /**< how often a trainer took the model back to a snapshot */
    double gradient_norm;     /**< L2 norm of the last gradients, over all that are updated, in a window of their sums:
                                   without the loss scale, before clipping; infinite where they are not finite */
    const char *culprit;      /**< what was last found not finite: the loss, or the parameter nearest to it whose
                                   gradient was not; borrowed from the model; NULL: nothing yet */
} tw_guard_stats;

/** Loss scale, updates left out, gradient norm. Runs under way (run_ahead) are not looked at. */
TW_API tw_guard_stats tw_model_get_guard(const tw_model *model);

#ifdef __cplusplus
}
#endif
#endif
