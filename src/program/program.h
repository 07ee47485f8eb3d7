/* A program under construction and finished. Passes in order, one file each: lower, precision, layout, fold, fuse,
 * ranges, features, merge, measure, sums, copies, constants, schedule, lanes, choose, memory_plan, prepare; then run. schedule to
 * memory_plan are made to keep a limit of memory by budget.c. Buffers are in single-assignment form: each is written by
 * one step. */
#ifndef TWI_PROGRAM_PROGRAM_H
#define TWI_PROGRAM_PROGRAM_H

#include "model.h"
#include "backend/attrs.h"

/* Where a buffer's memory comes from. */
typedef enum twi_source {
    TWI_SOURCE_ARENA,         /* planned */
    TWI_SOURCE_VALUES,        /* a parameter's or kept buffer's values */
    TWI_SOURCE_GRADIENT,      /* a parameter's gradient */
    TWI_SOURCE_SUM,           /* the sum of a parameter's gradients over a window */
    TWI_SOURCE_SHADOW,        /* what a kept buffer becomes if the run commits */
    TWI_SOURCE_HALF_VALUES,   /* a parameter's values in half precision */
    TWI_SOURCE_HALF_GRADIENT, /* a parameter's gradient, where it is kept in half precision */
    TWI_SOURCE_MOMENT,        /* a parameter's part of the moments that `flat` names */
    TWI_SOURCE_FLAT           /* a whole flat array of the store: `flat` */
} twi_source;

typedef struct twi_buffer {
    const char *name; /* borrowed: a value's name or a constant */
    twi_shape shape;
    uint8_t store;  /* twi_store_kind */
    uint8_t dtype;  /* of real ones: tw_dtype, halves where store is TWI_REAL alone; or TWI_DTYPE_DOUBLE */
    uint8_t source; /* twi_source */
    bool batched;
    size_t bytes, sample_bytes;
    bool row_major;    /* whatever its shape and use */
    bool input;        /* holds an input of the graph, fed or gathered */
    bool pinned;       /* fed or read from outside, or to be in nobody's way: lives through the whole run */
    bool constant;     /* constants pass: written by a constant step, for more than one run */
    bool changed;      /* constants pass: a step changes the parameter or statistic that it holds */
    int parameter;     /* VALUES, GRADIENT, SHADOW and their halves, SUM, MOMENT */
    bool measured;     /* measure pass: a gradient that is measured by the step that makes it */
    int twin;          /* precision pass: the same values in the other type; -1: none yet */
    void *const *flat; /* FLAT, MOMENT: the store's field */
    int alias;         /* layout pass: the buffer whose memory this is a view of; -1: its own */
    /* layout pass */
    int64_t stride[TW_MAX_RANK];
    uint8_t lanes; /* lanes pass: samples side by side, as twi_operand.lanes */
    bool unturned; /* lanes pass: its samples stay one after the other */
    bool copied;   /* copies pass: an input of which every worker has a copy */
    bool by_features; /* features pass: lies feature by feature, the samples of each side by side */
    bool joined;   /* features pass: sums of blocks of features, of which another value is made */
    const void *lent; /* where the host has an input that it lends (lend.c); NULL: it is fed to the arena */
    /* memory plan */
    int first, last; /* segments of first and last use; last -1: never used */
    int first_step, last_step;
    bool local;      /* lives within one chunk, in the worker's scratch */
    size_t offset;
    int over; /* shares the memory of this buffer, in place; -1: none */
} twi_buffer;

/* The parts of a run. */
typedef enum twi_part { TWI_PART_FORWARD, TWI_PART_BACKWARD, TWI_PART_COMMIT, TWI_PART_UPDATE } twi_part;

typedef struct twi_step {
    const twi_kernel *kernel; /* NULL: taken out by a pass */
    const void *attrs;
    const twi_node *node; /* NULL for steps of no node */
    const char *label;
    uint8_t part;  /* twi_part */
    uint8_t dtype; /* what its TWI_REAL operands are stored in: tw_dtype */
    bool tf32;     /* its products may read f32 as TF32 */
    twi_ref operand[TWI_MAX_OPERANDS];
    bool ranged;       /* ranges pass: goes by ranges, where records of its kind go by samples */
    int64_t features;  /* features pass: goes by ranges of so many, with others that do; 0: it does not */
    const char *apart; /* makes a weight's gradient: why it does not update the weight too; NULL: it is not asked */
    bool again;        /* does once more what a forward step did: recompute.c */
    bool constant;     /* constants pass: runs only where parameters or statistics have changed since */
    int order;         /* constants pass: its place among the steps */
    int64_t chunk;     /* schedule pass: of its segment, as are the groups; 0: not cut yet */
    int groups;
    int segment;
    twi_choice choice;
    size_t shared_offset, partial_offset[TWI_MAX_OPERANDS];
} twi_step;

#define TWI_NO_LIMIT SIZE_MAX

/* What a plan does once more to save memory. */
typedef struct twi_recomputed {
    int steps;
    double flops, bytes, work; /* work: its share of what the plan without it does */
} twi_recomputed;

/* What the samples of a resident set are like. */
typedef struct twi_sample_kind {
    tw_dtype dtype;
    int channels, height, width;
} twi_sample_kind;

typedef struct twi_row_entry {
    int buffer;
    size_t offset; /* in a row of results */
} twi_row_entry;

/* Device memory of a streamed input; NULL for all other values. */
enum { TWI_SLOTS = 2 };
typedef struct twi_slots {
    void *memory[TWI_SLOTS];
} twi_slots;

/* Which elements of the flat arrays a step of commit or update goes over: how its segments were chosen, so that the
 * precision pass can have them made again. */
typedef struct twi_flat_list {
    struct twi_flat_list *next;
    twi_update_attrs *attrs;
    float weight_decay;
    bool decay_all;
} twi_flat_list;

/* An entry of the list of steps that use a buffer. */
typedef struct twi_buffer_use {
    int step, next; /* next: an entry; -1: none */
} twi_buffer_use;

/* The lists, while a pass has them open: uses.c. */
typedef struct twi_uses {
    int *head; /* per buffer that owns memory or is planned to: an entry; -1: none */
    int heads;
    twi_buffer_use *use;
    int count, capacity;
} twi_uses;

enum { TWI_PASSES = TW_PASS_MEMORY + 1 };

struct tw_program {
    tw_model *model;
    tw_program *next; /* the model's other programs */
    int64_t batch;
    bool train, fuse, record;
    bool accumulate;        /* sums gradients over a window of runs */
    bool plan_only;         /* takes no memory of the device, and cannot run */
    bool counted;           /* its memory is counted all the same, in plans of others */
    tw_precision precision; /* never AUTO */
    tw_dtype half;          /* F16 or BF16, where anything is stored so; else F32 */
    bool half_weights;      /* steps read weights in it */
    bool half_gradients;    /* steps write weights' gradients in it */
    twi_flat_list *flat_lists;
    twi_moments moments;             /* of its optimizer */
    twi_guard_attrs guard;           /* of its updates, or, without them, of its gradients */
    bool unguarded;                  /* nobody looks at gradients */
    bool merged;                     /* weights are updated by the steps that make their gradients */
    bool measured;                   /* gradients are measured by the steps that make them */
    const twi_update_attrs *guarded; /* the gradients that are looked at; NULL: none */
    int guard_blocks;                /* buffer of a number a block of them */
    twi_buffer *buffer;
    int buffer_count, buffer_capacity;
    twi_step *step;
    int step_count, step_capacity;
    twi_uses uses;
    twi_segment *segment;
    int segment_count;
    int update_segment;    /* the first segment of TWI_PART_UPDATE; segment_count: none */
    int constant_segments; /* the first ones, of constant steps */
    uint64_t constants;    /* twi_control.constants for which those last ran; 0: never */
    int value_count;       /* of the graph when the program was made */
    int *value_buffer;     /* per graph value: its buffer, or -1 */
    int *gradient_buffer;  /* per graph value: buffer of its whole gradient, or -1 */
    tw_loss *loss;
    int loss_count;
    tw_source_options source; /* what is gathered; resident NULL: nothing */
    twi_sample_kind samples;  /* of its set */
    void *pixel_numbers;      /* device memory: what its normalisation means, by twi_pixel_fill */
    void *blocks;             /* attribute structs made by lowering: see twi_program_block */
    double fused_bytes;       /* saved by fusion */
    size_t memory_limit;      /* of its options; 0: none */
    size_t aside, placed;     /* of that, what is kept for others than the model: a trainer's resident sets; and what
                                 was taken of it before the program */
    size_t workspace_limit;   /* bytes that an implementation's workspace should not exceed; TWI_NO_LIMIT */
    twi_recomputed recomputed;
    size_t arena_bytes, worker_bytes, scratch_offset;
    twi_plan plan;
    void *prepared;
    void *arena, *scratch; /* of its own; NULL: the model's */
    void *staging;      /* where the host converts what goes to or comes from a device's own memory; NULL: it does so in
                    place */
    twi_row_entry *row; /* what is fetched behind a run: the losses in their order, then outputs of integers */
    int row_count;
    bool *fed;            /* per graph value: an input that is there for the next run */
    twi_slots *slots;     /* per graph value; NULL: nothing is streamed, inputs are fed to the arena */
    int turn;             /* the slots that the next run takes its inputs from */
    bool ran;             /* since the arena is this program's */
    twi_step_time *times; /* of its steps, a row a worker; NULL: they are not timed */
    double loss_value;
    char *dump[TWI_PASSES];
};

/* ---- shared by the passes ---- */

static inline tw_context *twi_program_context(const tw_program *program) { return program->model->context; }
/* Can it not run, because it or its context is only to plan? In such a context a program asks for its memory as ever:
 * it is counted. */
static inline bool twi_program_only_plans(const tw_program *program) {
    return program->plan_only || program->model->context->plans_only;
}
/* Is there a limit to the memory that it may take, its own or its context's? Then nothing is taken for speed alone. */
bool twi_program_is_limited(const tw_program *program);
/* A plan made under a limit of workspace also gives shared workspaces up as soon as it can. */
static inline bool twi_program_saves_workspace(const tw_program *program) {
    return program->workspace_limit != TWI_NO_LIMIT;
}
tw_status twi_program_add_buffer(tw_program *program, const twi_buffer *buffer, int *index);
/* Appends a step; operands as many as the kernel has. */
tw_status twi_program_add_step(tw_program *program, const twi_kernel *kernel, const void *attrs, const twi_node *node,
                               const char *label, twi_part part, const int *operands);
/* Zeroed memory that lives as long as the program. */
tw_status twi_program_block(tw_program *program, void *out, size_t bytes, const char *what);
void twi_program_free_blocks(tw_program *program);
/* A kernel of the context's registry by name; an error naming it if it is missing. */
tw_status twi_program_kernel(const tw_program *program, const char *name, const twi_kernel **out);
/* Root of a chain of aliases. */
int twi_program_root(const tw_program *program, int buffer);
size_t twi_program_store_size(const tw_program *program, uint8_t store);
/* Gives a buffer another shape, before the layout. */
tw_status twi_program_set_shape(tw_program *program, int buffer, const twi_shape *shape);
/* Stores a real buffer in another type. */
tw_status twi_program_set_dtype(tw_program *program, int buffer, tw_dtype dtype);
static inline bool twi_is_half(uint8_t dtype) { return dtype == TW_F16 || dtype == TW_BF16; }
/* The call a step makes on the whole batch, without data; samples > 0 cuts batched operands to that many. */
void twi_program_call(const tw_program *program, const twi_step *step, int64_t samples, twi_call *call);
/* Has the back end an implementation of the step? */
bool twi_program_is_taken(const tw_program *program, const twi_step *step);
/* Samples (axis 0) of a step that runs by sample; 0 if no operand is batched. */
int64_t twi_program_step_samples(const tw_program *program, const twi_step *step);
/* The buffer whose memory it has, through views and steps in place. */
int twi_program_owner(const tw_program *program, int buffer);
/* Samples there must be room for: those side by side come in whole blocks. */
static inline size_t twi_whole_blocks(const twi_buffer *buffer, int64_t samples) {
    int64_t lanes = buffer->lanes ? buffer->lanes : 1;
    return (size_t)((samples + lanes - 1) / lanes * lanes);
}
/* Bytes that a planned buffer takes, with the copies that workers have of it. */
tw_status twi_program_extent(const tw_program *program, const twi_buffer *buffer, size_t *out);
/* The other way round. */
void twi_reverse_steps(twi_step *step, int count);
/* Drops steps whose kernel is NULL. */
void twi_program_compact(tw_program *program);
/* Does a step write the buffer, or read it? */
bool twi_program_uses(const tw_program *program, int buffer, bool written);
/* Bytes a step reads and writes. */
double twi_program_step_bytes(const tw_program *program, const twi_step *step);
/* Its arithmetic; 0 where only bytes count. */
double twi_program_step_flops(const tw_program *program, const twi_step *step);
/* Does the step write an input, as those that gather or take what is streamed? */
bool twi_brings_input(const tw_program *program, const twi_step *step);

/* ---- uses.c: which steps use a buffer ---- */

/* Made anew of the steps as they are; closed where that fails. A pass closes it before steps move; one that fails
 * leaves that to tw_program_destroy. */
tw_status twi_uses_open(tw_program *program);
void twi_uses_close(tw_program *program);
/* The first entry of the list of a buffer and its views: the steps that use one of them, in their order. Once some were
 * replaced the list has no order, may name a step twice, and keeps those that no longer use it. */
int twi_uses_first(const tw_program *program, int buffer);
#define TWI_FOR_USES(program, buffer, entry)                                                                           \
    for (int entry = twi_uses_first(program, buffer); entry >= 0; entry = (program)->uses.use[entry].next)
/* While it is open a step gets other operands by this alone. */
tw_status twi_uses_replace(tw_program *program, int index, const twi_step *step);

/* ---- passes ---- */

tw_status twi_pass_lower(tw_program *program, const tw_program_options *options);
/* Will that precision and these rules do for a model? *out is what AUTO becomes. Errors: ARGUMENT, to be put within the
 * caller's name. */
tw_status twi_precision_check(const tw_model *model, tw_precision precision, const tw_precision_rule *rules, int count,
                              tw_precision *out);
/* Which precision a program has that was asked for one; logs what is not as it was asked for. Errors: ARGUMENT. */
tw_status twi_precision_resolve(tw_program *program, const tw_program_options *options);
/* Gives steps and buffers their types; puts casts between. */
tw_status twi_pass_precision(tw_program *program, const tw_program_options *options);
tw_status twi_pass_layout(tw_program *program);
tw_status twi_pass_fuse(tw_program *program);
/* fold.c: of programs without training. Scales behind products go into their weights. */
tw_status twi_pass_fold(tw_program *program);
/* constants.c: of programs without training. Marks the steps that depend on parameters and statistics alone. */
void twi_pass_constants(tw_program *program);
/* Those first, if their results may stay in the arena from run to run; else in their places. */
void twi_constants_order(tw_program *program);
/* Does it hold parameters, statistics, or what constant steps made of them? */
bool twi_is_constant(const tw_program *program, int buffer);
/* fuse_swap.c: what is better done in another order, before groups of steps become one. */
tw_status twi_swap_steps(tw_program *program);
/* fuse.c: would that step become part of a larger one that the back end was asked about? */
tw_status twi_fuse_probe(tw_program *program, int step, bool *out);
/* sums.c: of programs that accumulate. A gradient's memory is free once it is in the sum over the window. */
tw_status twi_pass_sums(tw_program *program);
/* copies.c: inputs of which every worker has a copy. */
void twi_pass_copies(tw_program *program);
/* Is it a step that every worker does for its own copy? */
bool twi_makes_copies(const tw_program *program, const twi_step *step);
/* How many there are of a copied input. */
int twi_program_copies(const tw_program *program);
/* Bytes from one to the next; 0: there is one. */
size_t twi_copy_stride(const twi_buffer *buffer);
/* Once there are segments: each sum behind the one that makes its gradient; then segments anew. */
tw_status twi_place_sums(tw_program *program);
/* ranges.c: of training programs. Products that go by parts of their weights, or of their gradients, instead of by
 * samples. */
tw_status twi_pass_ranges(tw_program *program);
/* features.c: values behind such products that lie feature by feature, and steps that go by their ranges too. */
tw_status twi_pass_features(tw_program *program);
/* merge.c: of training programs. Gradients that go into their weights as they are made. */
tw_status twi_pass_merge(tw_program *program, const tw_program_options *options);
/* The learned parameter whose whole gradient the step writes, as that operand: its value in the graph; -1: there is
 * none. */
int twi_program_learned_by(const tw_program *program, const twi_step *step, int operand);
/* measure.c: gradients that the guard need not look at, since the steps that make them do. */
tw_status twi_pass_measure(tw_program *program, const tw_program_options *options);
tw_status twi_pass_schedule(tw_program *program);
/* Joins steps to segments anew. Those that have their chunks and groups keep them, so that not a bit of their results
 * changes. */
tw_status twi_schedule_segments(tw_program *program);
/* Once implementations are chosen: fewer groups where what they sum in takes more than the sums. */
void twi_schedule_groups(tw_program *program);
void twi_pass_lanes(tw_program *program);
tw_status twi_pass_choose(tw_program *program);
tw_status twi_choose_step(tw_program *program, twi_step *step);
tw_status twi_pass_memory_plan(tw_program *program);
/* budget.c: the passes from schedule to memory_plan, more than once where a limit of memory asks for it. Errors:
 * OUT_OF_MEMORY, which names the least that it can be planned with. */
tw_status twi_program_plan(tw_program *program, const tw_program_options *options);
/* Fails, naming a limit and the least that would do, and what that consists of. The batch named is the program's. */
tw_status twi_program_refuse(const tw_program *program, size_t limit, size_t floor, tw_recompute recompute);
/* Fills program->plan with addresses and binds it on the back end; again after the arena moved. */
tw_status twi_pass_prepare(tw_program *program);
void twi_program_unprepare(tw_program *program);
/* share.c: makes the model's arena and scratch as large as its programs need, and binds this one. Where old and new
 * would together break its memory_limit, the old go first: if there is then no memory, programs have none until one of
 * them is fed or run. */
tw_status twi_program_share_arena(tw_program *program);
/* Gives back, before more is taken for a planned program, what of an earlier, larger one would break its
 * memory_limit. */
void twi_program_make_room(const tw_program *program);
/* Gives arena and scratch back where they are larger than what the programs that are left need: who comes next asks for
 * them again. */
void twi_model_trim(tw_model *model);

/* source.c: what a program gathers itself. Errors: ARGUMENT, MISMATCH. */
tw_status twi_source_open(tw_program *program, const tw_source_options *source);
void twi_source_close(tw_program *program);
/* What its normalisation means, in device memory, once the program is planned; and the bytes of that. */
tw_status twi_source_take_numbers(tw_program *program);
size_t twi_source_bytes(const tw_program *program);
static inline bool twi_program_gathers(const tw_program *program, const tw_value *value) {
    return program->source.resident && (value == program->source.images || value == program->source.labels);
}
/* The steps that write the gathered inputs, given their buffers; TWI_NO_REF for one that is not. */
tw_status twi_lower_gather(tw_program *program, int images, int labels);
/* Are there samples for a run? Errors: STATE. */
tw_status twi_source_check(const tw_program *program, const char *function);
/* Where the run's samples are, and the position moves on. What advances in device memory with steps captured once is
 * this. */
void twi_source_take(tw_program *program, twi_control *control);
/* The next run takes its samples from that position of the order on. */
void twi_source_resume(const tw_program *program, uint64_t position);

/* slots.c: inputs that are streamed. open: if the back end can. */
tw_status twi_slots_open(tw_program *program);
void twi_slots_close(tw_program *program);
/* The step that takes an input, which has its buffer, from its slots; and their memory, once the program is planned. */
tw_status twi_lower_take(tw_program *program, const tw_value *value);
tw_status twi_slots_take_memory(tw_program *program);
size_t twi_slots_bytes(const tw_program *program);
/* After a run: the next one takes the other slots, which have to be filled for it. */
void twi_slots_advance(tw_program *program);

/* timing.c: entries of a row of program->times. */
size_t twi_program_times_row(const tw_program *program);

/* Keeps what a pass made as text, where the program's options ask for that. */
tw_status twi_program_record(tw_program *program, tw_pass pass);
/* lower_update.c: steps that sum gradients over a window and have the guard look at them, and those of the update. */
tw_status twi_lower_gradients(tw_program *program);
tw_status twi_lower_update(tw_program *program, const tw_optimizer_options *optimizer);
/* Makes the segments of all flat steps again, since gradients have moved to the array in half precision. */
tw_status twi_lower_segments_again(tw_program *program);

/* ---- memory_plan.c: sizes of what lies in the arena ---- */

enum { TWI_ARENA_ALIGNMENT = 64 };
static inline size_t twi_arena_aligned(size_t bytes) {
    return (bytes + TWI_ARENA_ALIGNMENT - 1) / TWI_ARENA_ALIGNMENT * TWI_ARENA_ALIGNMENT;
}
/* The sums of an operand that a step's groups make apart, side by side; 0: there are none. Errors: OVERFLOW. */
tw_status twi_program_partial_bytes(const tw_program *program, const twi_step *step, int operand, size_t *out);

/* ---- need.c: bytes of the device ---- */

/* Of a planned program, with the store, the arena and the scratch of its model as they will be. */
size_t twi_program_bytes(const tw_program *program);
/* Slots of what it is fed, and what its normalisation means. */
size_t twi_program_input_bytes(const tw_program *program);
/* Of all workers. */
size_t twi_program_scratch_bytes(const tw_program *program);
typedef struct twi_store_need {
    /* Bytes; buffers and their shadows count as parameters, sums as gradients, a snapshot as state. */
    size_t parameters, gradients, state, control;
} twi_store_need;
twi_store_need twi_program_store_need(const tw_program *program);
/* What a model and its programs hold now. */
size_t twi_model_bytes(const tw_model *model);
/* Is there memory for it, or would there be? */
static inline bool twi_program_counts(const tw_program *program) { return !program->plan_only || program->counted; }
/* The arena and the scratch that the model's programs share, as the largest of them and one more (NULL: none) need
 * them. */
void twi_model_shared_need(const tw_model *model, const tw_program *also, size_t *arena, size_t *scratch);
/* Puts what the planned program needs before a failure that says there is not as much; returns the status. */
tw_status twi_program_tell_need(const tw_program *program, tw_status status);

/* ---- guard.c ---- */

/* Options with defaults filled in. Errors: ARGUMENT naming the field. */
tw_status twi_loss_scaling_fill(tw_loss_scaling *out, const tw_loss_scaling *options);
/* How the program's updates are guarded; sets the model's loss scale if none is set yet. Errors: ARGUMENT. */
tw_status twi_guard_open(tw_program *program, const tw_program_options *options);
/* The parameter whose gradient is at a place of twi_guard. */
const char *twi_guard_name(const tw_program *program, int64_t place);
/* culprit.c: after a run failed, with its message: if it did so for a loss or gradient that is not finite, repeats it,
 * and finds the first such value, model->culprit. Fails once more, with that behind the message; what the program was
 * fed must be there still. Where it is not, there is no memory, or nothing was found, the message stays, and
 * culprit.kind is NULL. */
tw_status twi_culprit_find(tw_program *program, const twi_control *failed, tw_status status);
/* Takes over what a run's guard found. */
void twi_guard_settle(const tw_program *program, const twi_control *control);

/* ---- window.c: what an update sums gradients over ---- */

/* May the program run, if a window is open? whole: with the update at once. Errors: STATE. */
tw_status twi_window_admit(const tw_program *program, bool whole, const char *function);
/* May the program update now? Errors: STATE. */
tw_status twi_window_admit_update(const tw_program *program);
/* The window that a run of the program belongs to: its batch alone if none is open. */
twi_window twi_window_of(const tw_program *program);
/* Counts what a run of the program added to the open window, if one is. */
void twi_window_count(const tw_program *program, tw_status status);

/* ---- runs: run.c, flight.c, fault_text.c ---- */

/* The arena now holds this program's values, and no longer another's. Errors: OUT_OF_MEMORY where it has to be asked
 * for again. */
tw_status twi_program_take_arena(tw_program *program);
/* Errors: STATE on a context that only plans. */
tw_status twi_program_check_runs(const tw_program *program, const char *function);
/* Errors: STATE while runs are in flight, whose memory and results whoever asks would take. */
tw_status twi_program_check_idle(const tw_model *model);
/* What a row of the program's results holds; makes rows long enough. */
tw_status twi_program_plan_row(tw_program *program, const tw_program_options *options);
/* A whole run, as tw_program_run, that is not waited for: at most backend->in_flight are, and no window is open. */
tw_status twi_program_launch(tw_program *program);
/* Waits for the oldest run in flight; its failure is that of the run, and those behind it are dropped, having changed
 * nothing. */
tw_status twi_program_land(tw_model *model, twi_landed *out);
/* Waits for all runs in flight, which land in their turn: counters and memory are then as they left them. */
tw_status twi_program_settle_all(tw_model *model);
/* What run `index` of those in flight found (0: the next to land); false: it is not over, or it or one before it
 * failed. */
bool twi_program_look(tw_model *model, int index, twi_landed *out);
/* Waits for all runs in flight, whose results nobody wants any more. */
void twi_program_land_all(tw_model *model);
/* A loss or an output of integers, in the program's own order. */
tw_status twi_landed_read(const twi_landed *landed, const tw_value *value, void *values);
/* The failure that a fault word stands for. */
tw_status twi_program_explain_fault(const tw_program *program, const twi_control *control);

/* What a program is made among. */
typedef struct twi_surroundings {
    bool streamed;  /* its inputs will be fed anew before every run, beside those under way where the back end can */
    bool rehearsed; /* it is only planned, but counts for the next ones as if it were there */
    size_t aside, placed; /* of its limit, what is not the model's; and what is taken of that */
} twi_surroundings;
/* tw_program_create. */
tw_status twi_program_create(tw_program **out, tw_model *model, int64_t batch, const tw_program_options *options,
                             const twi_surroundings *around);
/* Bytes of an input as it is fed: as its buffer is stored, but in slots, which hold f32. */
size_t twi_program_fed_bytes(const tw_program *program, int buffer);
/* Feeds an input with data that lies in the program's own order already: images N,H,W,C f32, labels i32. */
tw_status twi_program_feed(tw_program *program, const tw_value *value, const void *data);
/* lend.c. May runs find what is in the buffer elsewhere in the host's memory? */
bool twi_is_lendable(const tw_program *program, int buffer);
/* Has runs to come read an input at `data`, if they can; returns whether they do. */
bool twi_program_lend(tw_program *program, int buffer, const float *data);
/* Is an input lent? */
bool twi_program_lends(const tw_program *program);
/* They read it in the arena, where it is to be fed. */
void twi_program_take_back(tw_program *program, int buffer);
/* What is lent, once more: the plan was bound anew. */
void twi_program_lend_again(tw_program *program);
/* Where a value's buffer (place fixed or arena) is: what is lent, at the host. */
void *twi_program_address(const tw_program *program, int buffer);

#endif
