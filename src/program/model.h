/* A model: its graph, its parameter store, and the arena its programs share. */
#ifndef TWI_PROGRAM_MODEL_H
#define TWI_PROGRAM_MODEL_H

#include "culprit.h"
#include "flight.h"
#include "graph/graph.h"
#include "store.h"
#include <talweg/data.h>
#include <talweg/program.h>

/* The batches whose gradients one update sums. */
typedef struct twi_window {
    int64_t samples;  /* all it will hold; 0: none is open */
    int64_t done;     /* those that have run */
    uint64_t micro;   /* batches that have run */
    uint64_t attempt; /* one for all of them */
    double loss;      /* summed over the samples that have run */
    bool spoilt;      /* a run failed: there will be no update */
} twi_window;

struct tw_model {
    tw_context *context;
    twi_graph graph;
    twi_store store;
    tw_value *output;
    bool built;
    uint64_t seed;
    /* One arena and one scratch for all programs: the largest need of any. */
    void *arena, *scratch;
    size_t arena_bytes, scratch_bytes;
    size_t least_refused; /* bytes: the lowest floor of programs that a limit did not allow, since that was reset;
                             SIZE_MAX: none */
    const tw_program *arena_user;   /* whose inputs and outputs the arena holds */
    const tw_program *gradients_by; /* whose run the parameters' gradients are from */
    uint64_t arena_turns;           /* how often that changed */
    uint64_t plans_refused;         /* how many plans there were that no change made keep their limit */
    tw_program *programs;           /* linked through tw_program.next; rebound when the arena grows */
    bool update_due;                /* the gradients wait for an update */
    twi_flights flights;            /* runs that were launched and have not landed */
    twi_window window;              /* under way, or the last one */
    twi_culprit culprit;            /* of the last run that failed for it */
    twi_control gradients_run;      /* what the last one that made gradients was given */
    char *dump;
    /* What evaluating its input and reading its output takes: set and read by src/io/recipe.c. */
    tw_normalization normalization; /* channels 0: not known */
    char **class_name;              /* in one block with the names */
    int class_count;
};

/* tw_model_build without initial values: all parameters are to be written next. */
tw_status twi_model_build_to_fill(tw_model *model, tw_value *output, const tw_model_options *options);

/* In a context that only plans: gives back what programs, all of them gone, had the model and its store hold. */
tw_status twi_model_forget_programs(tw_model *model);

/* ARGUMENT: there is no parameter of that name; told are those whose names begin so. */
tw_status twi_model_refuse_name(const tw_model *model, const char *name, const char *function);

/* Do training runs of the model take statistics over the batch, so that batches in parts would learn something else? */
bool twi_model_has_batch_statistics(const tw_model *model);

/* A learned parameter or kept buffer as a graph value: record->name is the layer's and the suffix ("conv1" + "weight"),
 * or the layer's alone where that is NULL. */
tw_value *twi_model_parameter(tw_model *model, const char *layer, const char *suffix, const twi_parameter *record);
/* The same parameter of another layer, by its full name: "layer.suffix" becomes an alias. It must be what the record
 * would have made; owner NULL makes the layer's own. */
tw_value *twi_model_tie(tw_model *model, const char *layer, const char *owner, const char *suffix,
                        const twi_parameter *record);

#endif
