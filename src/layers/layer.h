/* What the layer files share. */
#ifndef TWI_LAYERS_LAYER_H
#define TWI_LAYERS_LAYER_H

#include "base/options.h"
#include "backend/attrs.h"
#include "program/model.h"

/* Reads a layer's options; a failure is noted in the model. False: give up and return NULL. */
bool twi_layer_begin(tw_model *model, const tw_value *x, void *options, size_t size, const void *given,
                     const char *what);
/* A node without parameters: name or first free base1, base2, ... */
tw_value *twi_layer_node(tw_model *model, const char *op, const char *name, const char *base, int input_count,
                         tw_value *const *inputs, const void *attrs);
/* op(x, weight) + bias under the layer's name. */
tw_value *twi_layer_biased(tw_model *model, const char *op, const char *layer, tw_value *const inputs[2],
                           tw_value *bias, const void *attrs);

#endif
