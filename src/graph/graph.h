/* The graph: values and nodes, in the order they were made, under unique names. Shapes are checked as it is built; the
 * batch axis holds 1 until a program is made. Failures are sticky: the first is kept and everything after it does
 * nothing. */
#ifndef TWI_GRAPH_GRAPH_H
#define TWI_GRAPH_GRAPH_H

#include "base/memory.h"
#include "base/text.h"
#include "ops/op.h"

enum { TWI_FAILURE_TEXT = 512, TWI_SCOPE_TEXT = 256, TWI_SCOPE_DEPTH = 16 };

typedef struct twi_graph {
    twi_memory *memory;
    const twi_registry *registry;
    tw_value **value;
    int value_count, value_capacity;
    twi_node **node;
    int node_count, node_capacity;
    char name[2 * TWI_SCOPE_TEXT];     /* the last name twi_graph_name made */
    char scope[TWI_SCOPE_TEXT];        /* "layer1.0." */
    int scope_length[TWI_SCOPE_DEPTH]; /* length of `scope` before each begin */
    int scope_depth;
    tw_status status; /* first failure */
    char failure[TWI_FAILURE_TEXT];
} twi_graph;

void twi_graph_init(twi_graph *graph, twi_memory *memory, const twi_registry *registry);
void twi_graph_free(twi_graph *graph);

/* Notes the calling thread's last error as the graph's first failure; returns NULL for use in builders. */
tw_value *twi_graph_fail(twi_graph *graph, tw_status status);
/* The first failure again, as a failure of the caller's; TW_OK if there was none. */
tw_status twi_graph_status(const twi_graph *graph);
/* Takes back what was added after the first so many values and nodes, and the failure that came of it. */
void twi_graph_cut(twi_graph *graph, int values, int nodes);

void twi_graph_scope_begin(twi_graph *graph, const char *name);
void twi_graph_scope_end(twi_graph *graph);

/* The full name (scope included) of something called `name`, or, if that is NULL, the first free one of base1, base2,
 * ...
 * Borrowed until the next call. NULL after noting a failure (duplicate). */
const char *twi_graph_name(twi_graph *graph, const char *name, const char *base);

/* New values. `name` must come from twi_graph_name. Shapes hold 1 in the batch axis of batched values. */
tw_value *twi_graph_value(twi_graph *graph, const char *name, twi_value_kind kind, twi_store_kind store, bool batched,
                          const twi_shape *shape);
/* A node of the named op; its outputs are new values, of which the first is returned. attrs is copied (NULL: the
 * table's defaults). */
tw_value *twi_graph_node(twi_graph *graph, const char *op_name, const char *node_name, int input_count,
                         tw_value *const *inputs, const void *attrs);

tw_value *twi_graph_find(const twi_graph *graph, const char *name);
/* Is this one of the graph's own values? */
bool twi_graph_owns(const twi_graph *graph, const tw_value *value);
/* Marks, by id, the value and everything it is made from; `needed` holds value_count flags. */
void twi_graph_mark_needed(const twi_graph *graph, const tw_value *value, bool *needed);
/* Fills an attribute struct with its table's defaults. */
void twi_attrs_preset(const twi_op *op, void *attrs);
/* Runs a node's shape rule with the batch axis of batched values set to `batch`. */
tw_status twi_graph_infer(const twi_node *node, int64_t batch, const twi_shape *const inputs[], twi_infer *out);
/* A line a node. */
void twi_graph_dump(const twi_graph *graph, twi_text *text);

#endif
