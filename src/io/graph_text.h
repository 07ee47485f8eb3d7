/* A model's graph as JSON, as a model file holds it:
 *
 *   {"values":[{"name":"input1","kind":"input","type":"real","shape":[1,28,28]},
 *              {"name":"conv1.weight","kind":"parameter","shape":[6,1,5,5],"trainable":true,"decayed":true}, ...],
 *    "aliases":[{"name":"conv2.weight","of":"conv1.weight"}, ...],
 *    "nodes":[{"op":"conv2d","name":"conv1.product","inputs":["input1","conv1.weight"],"attributes":{"pad_top":2}},
 *    ...],
 *    "outputs":["fc3"]}
 *
 * Values are what no node makes: inputs (their shape without the batch), parameters and buffers. A node stands after
 * those that make its inputs. What is left out has its default. */
#ifndef TWI_IO_GRAPH_TEXT_H
#define TWI_IO_GRAPH_TEXT_H

#include "json_reader.h"
#include "program/model.h"

/* Adds the part of the graph that the model's output is made from; needed: a flag a value, from
 * twi_graph_mark_needed. */
tw_status twi_graph_write(twi_text *text, const tw_model *model, const bool *needed);
/* Fills an empty model; *output becomes its output. Nothing is believed. Errors: FORMAT, SHAPE, ARGUMENT naming value
 * or node. */
tw_status twi_graph_read(twi_json *json, tw_model *model, tw_value **output);

#endif
