/* The parameter store: parameters, gradients, optimizer moments and buffers, each kind in one flat array with stable
 * addresses and one canonical layout on every device: row-major, convolution weights O,H,W,I. Programs read and write
 * them in place and keep reordered copies of their own; `version` tells when those are stale. */
#ifndef TWI_PROGRAM_STORE_H
#define TWI_PROGRAM_STORE_H

#include "backend/backend.h"
#include "base/text.h"
#include <talweg/model.h>

/* What optimizers keep of every learned parameter. No two kinds share one: the same numbers would mean different
 * things. */
enum { TWI_MOMENTS = 3 };

/* Room for arrays by dtype, of which F16 and BF16 are used. */
enum { TWI_HALVES = TW_BF16 + 1 };

/* Some of them, in a row. */
typedef struct twi_moments {
    int first, count;
} twi_moments;

typedef struct twi_parameter {
    const char *name; /* borrowed from the graph value */
    twi_shape shape;  /* logical */
    bool learned;     /* false: a buffer such as running statistics */
    bool trainable;
    bool decayed;
    bool counter; /* a whole number, a scalar in files */
    tw_init init;
    double init_value; /* buffers: what they start from */
    int64_t fan_in, fan_out;
    int64_t offset; /* elements, in the flat array of its kind */
} twi_parameter;

/* A further name of a parameter that several layers share. */
typedef struct twi_alias {
    char *name;
    int parameter;
} twi_alias;

/* The counters of a snapshot. */
typedef struct twi_snapshot_mark {
    bool taken;
    bool returned; /* the model went back to it, and has not been updated since */
    uint64_t updates;
    double learning_rate, scale;
    int64_t good;
} twi_snapshot_mark;

/* What a model can go back to: snapshot.h. */
typedef struct twi_snapshot {
    void *weights, *buffers, *moment[TWI_MOMENTS];
    bool wanted;         /* there will be one, of these moments too: plans count it before it is there */
    twi_moments moments;
    twi_snapshot_mark at;
} twi_snapshot;

typedef struct twi_store {
    tw_context *context;
    size_t real_size; /* 4; 8 in the double checks */
    twi_parameter *parameter;
    int count, capacity;
    twi_alias *alias;
    int alias_count, alias_capacity;
    int64_t learned_count, buffer_count;             /* elements, padding included */
    void *weights, *gradients, *moment[TWI_MOMENTS]; /* learned; gradients and moments only once a program asks */
    void *gradient_sums; /* over a window of batches; only once an accumulating program asks */
    /* The same elements in f16 and in bf16, by dtype, once a program asks: weights rounded from `weights`, stale where
     * those were changed since without them; and gradients that are written so, which are not in `gradients`. */
    void *half_weights[TWI_HALVES], *half_gradients[TWI_HALVES];
    bool half_stale[TWI_HALVES];
    void *buffers, *shadows;
    twi_control *control; /* device memory */
    uint64_t version;     /* changes with every write and update */
    uint64_t moved;       /* changes with every training run, which may move statistics without an update */
    uint64_t attempts, updates;
    double learning_rate; /* of the last update */
    twi_guard guard;      /* as the last run left it */
    bool stopped;         /* the last run failed for a loss or gradient that is not finite */
    twi_snapshot snapshot;
    int64_t rolled_back; /* how often the model went back to it */
    const char *culprit;  /* what was last found not finite: a node's or a parameter's name; NULL: nothing yet */
} twi_store;

void twi_store_init(twi_store *store, tw_context *context, size_t real_size);
void twi_store_free(twi_store *store);
/* Gives the flat arrays back and keeps the records. */
void twi_store_drop(twi_store *store);
/* Which arrays there are; and back to that, when what asked for more since will not use it. */
enum { TWI_STORE_ARRAYS = 18 };
typedef struct twi_store_mark {
    bool there[TWI_STORE_ARRAYS];
} twi_store_mark;
twi_store_mark twi_store_note(twi_store *store);
void twi_store_return(twi_store *store, const twi_store_mark *mark);
/* Adds a record, before twi_store_build; *index is its place. */
tw_status twi_store_add(twi_store *store, const twi_parameter *parameter, int *index);
/* Gives a parameter a further name. */
tw_status twi_store_add_alias(twi_store *store, const char *name, int index);
/* Allocates the flat arrays; all parameters are to be written before anything is read. */
tw_status twi_store_build(twi_store *store);
/* Gives all parameters their initial values; large ones are drawn by all workers of the library's own. */
tw_status twi_store_initialize(twi_store *store, uint64_t seed);
/* Bytes of the device that a flat array of so many elements takes. */
static inline size_t twi_store_array_bytes(const twi_store *store, int64_t count) {
    return count ? (size_t)count * store->real_size : 1; /* an empty one is there, too */
}
tw_status twi_store_need_gradients(twi_store *store);
tw_status twi_store_need_gradient_sums(twi_store *store);
tw_status twi_store_need_half_weights(twi_store *store, tw_dtype half);
tw_status twi_store_need_half_gradients(twi_store *store, tw_dtype half);
/* Notes that weights were written: `version`, and that their copies are stale. */
void twi_store_written(twi_store *store);
/* Notes that an update was asked for, which writes the copy in `half` too (F32: none). */
void twi_store_updated(twi_store *store, tw_dtype half);
/* Rounds the weights to `half` again if they were changed without. */
tw_status twi_store_refresh(twi_store *store, tw_dtype half);
tw_status twi_store_need_moments(twi_store *store, twi_moments moments);
/* The parameter of that name, which may be an alias; -1 if there is none. */
int twi_store_find(const twi_store *store, const char *name);
/* Strides of the canonical layout, in elements. */
void twi_store_strides(const twi_shape *shape, int64_t stride[TW_MAX_RANK]);
/* The learned parameter that owns an element of the flat arrays. */
const char *twi_store_name_at(const twi_store *store, int64_t element);
/* Address of a parameter's part of `array` (weights, gradients, moments for learned ones; buffers, shadows for the
 * others). */
void *twi_store_at(const twi_store *store, void *array, int index);
/* The same in an array of halves. */
void *twi_store_half_at(const twi_store *store, void *array, int index);
/* f32 in logical order <-> a parameter's part of an array. */
tw_status twi_store_read(const twi_store *store, const void *array, int index, float *values);
tw_status twi_store_write(twi_store *store, void *array, int index, const float *values);
/* The same through scratch of the caller's, count * real_size bytes: takes no memory. */
tw_status twi_store_write_through(twi_store *store, void *array, int index, const float *values, void *scratch);
/* The array of its kind that holds a parameter's values. */
void *twi_store_values(const twi_store *store, int index);

#endif
