/* A case of an op as a model of a context of its own, ready to be compiled: what build_case makes, and behind it a loss, the
 * dot product of the output with fixed weights, unless the output is a loss itself. */
#ifndef TALWEG_CASE_GRAPH_H
#define TALWEG_CASE_GRAPH_H

#include "ops/op.h"
#include <talweg/program.h>

/* How a case is run. */
typedef struct case_setting {
    const char *name;
    const twi_registry *registry; /* of float or of double specification loops */
    const char *isa;              /* what TALWEG_CPU says */
    int threads;
    bool fuse;
    const char *device; /* NULL: "cpu" */
    tw_precision precision;
} case_setting;

enum { CASE_OPERANDS = 16 };

/* A value that is given: fed, or kept in the parameter store. */
typedef struct case_operand {
    tw_value *value;
    int64_t count;   /* elements, the whole batch */
    int64_t classes; /* labels: 0 .. classes-1; else 0 */
    bool constant;   /* every element is `fill` */
    double fill;
    bool differentiated; /* its gradient is checked */
} case_operand;

typedef struct case_graph {
    const case_setting *setting;
    twi_builder builder;
    tw_context *context;
    tw_model *model;
    int64_t batch;
    case_operand operand[CASE_OPERANDS];
    int operand_count;
    tw_value *output;
    tw_value *loss; /* NULL: the output is not real, there is nothing to differentiate */
} case_graph;

/* Ends the running test if the case cannot be built. */
void case_graph_open(case_graph *graph, const case_setting *setting, const twi_op *op, const twi_case *c);
void case_graph_close(case_graph *graph);

/* The case's program; training also computes all gradients. watched: further values to keep readable. */
tw_program *case_graph_compile(const case_graph *graph, bool train, tw_value *const *watched, int watched_count);

/* Those of these instruction sets that this processor has; where checks are sampled one of them, another with every call. */
int case_choose_isas(const char *const *names, int count, const char **chosen);

/* Ends the running test, with the library's words, on a failure. */
#define CASE_DO(call) case_expect_ok((call), #call)
void case_expect_ok(tw_status status, const char *what);

#endif
