/* Nodes of ops that a user registered, and the parameters they learn. The ops themselves are in src/ops/user_op.c. */
#include "layer.h"
#include "ops/user_op.h"

tw_value *tw_apply(tw_model *model, const char *op, tw_value *const *inputs, int input_count,
                   const tw_apply_options *given) {
    tw_apply_options o;
    if (!model || model->graph.status) return NULL;
    twi_graph *graph = &model->graph;
    tw_status status = twi_options_read(&o, sizeof o, given, "tw_apply");
    if (status) return twi_graph_fail(graph, status);
    if (!op || !inputs) return twi_graph_fail(graph, TWI_FAIL(TW_ERROR_ARGUMENT, "tw_apply: op or inputs is NULL"));
    if (!twi_user_op_of(twi_registry_find(graph->registry, op)))
        return twi_graph_fail(
            graph, TWI_FAIL(TW_ERROR_ARGUMENT,
                            "tw_apply: no op '%.50s' was registered in this context; call tw_op_register first", op));
    return twi_layer_node(model, op, o.name, op, input_count, inputs, o.attrs);
}

tw_value *tw_weight(tw_model *model, const char *name, int rank, const int64_t *dims, const tw_weight_options *given) {
    tw_weight_options o;
    if (!model || model->graph.status) return NULL;
    twi_graph *graph = &model->graph;
    tw_status status = twi_options_read(&o, sizeof o, given, "tw_weight");
    if (status) return twi_graph_fail(graph, status);
    if (rank < 1 || rank > TW_MAX_RANK || !dims)
        return twi_graph_fail(graph, TWI_FAIL(TW_ERROR_ARGUMENT, "tw_weight '%s': %d axes; 1 to %d are possible",
                                              name ? name : "", rank, TW_MAX_RANK));
    twi_parameter weight = {
        .learned = true, .trainable = true, .decayed = o.decayed, .init = o.init, .shape = {.rank = rank}};
    for (int i = 0; i < rank; i++) {
        if (dims[i] < 1)
            return twi_graph_fail(graph, TWI_FAIL(TW_ERROR_ARGUMENT, "tw_weight '%s': size %lld of axis %d is below 1",
                                                  name ? name : "", (long long)dims[i], i));
        weight.shape.dim[i] = dims[i];
    }
    status = twi_shape_check(&weight.shape, "tw_weight"); /* the fans below must not overflow */
    if (status) return twi_graph_fail(graph, status);
    int64_t field = twi_shape_count_from(&weight.shape, rank < 2 ? rank : 2);
    weight.fan_out = dims[0] * field;
    weight.fan_in = (rank < 2 ? dims[0] : dims[1]) * field;
    return twi_model_parameter(model, twi_graph_name(graph, name, "weight"), NULL, &weight);
}
