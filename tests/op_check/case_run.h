/* Feeds a case's program numbers and takes the results out, all as double and in logical order, past the public interface,
 * which would round them to float. */
#ifndef TALWEG_CASE_RUN_H
#define TALWEG_CASE_RUN_H

#include "case_graph.h"

/* Everything a case is given; the same for every setting. Floats, so that nothing is rounded on the way in. */
typedef struct case_data {
    int count;
    double *values[CASE_OPERANDS];
} case_data;

/* Values -1 .. 1, no two of an operand alike, none near 0; another seed, other values. */
void case_data_draw(case_data *data, const case_graph *graph, uint64_t seed);
void case_data_free(case_data *data);

typedef struct case_result {
    char what[64]; /* "gradient of w" */
    int64_t count;
    double *values;
} case_result;

typedef struct case_results {
    int count;
    case_result result[1 + CASE_OPERANDS];
} case_results;

/* Sets every given value, and all other memory to not-a-number. */
void case_load(const case_graph *graph, tw_program *program, const case_data *data);
/* Sets one element of an operand. */
void case_set(const case_graph *graph, tw_program *program, int operand, int64_t index, double value);
/* Runs what is loaded, always with the same random masks, and returns the loss (0 for an inference program). */
double case_run(const case_graph *graph, tw_program *program);
/* Output; in training also gradients, and what kept buffers have become. */
void case_collect(const case_graph *graph, tw_program *program, case_results *results);
void case_results_free(case_results *results);
/* Distance from 0 of the element of a value that is nearest to it. */
double case_least(const tw_program *program, const tw_value *value);
/* How far the element is moved that rounding to a half moves most. */
double case_rounding(const tw_program *program, const tw_value *value, tw_dtype half);

#endif
