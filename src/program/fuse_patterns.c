/* The rows of the fusion table. A new fusion is a kernel with its specification in src/ops and a row here. */
#include "patterns.h"

#include <stddef.h>

const twi_pattern twi_patterns[] = {
    {.name = "conv2d+bias+relu", .members = 3,
     .member = {{"conv2d.forward", 0, 0, 0}, {"bias.forward", 0, 2, 0}, {"relu.forward", 1, 2, 0}},
     .replacement = "conv2d.forward_bias_relu", .operand = {{0, 0}, {0, 1}, {1, 1}, {2, 1}}},
    {.name = "conv2d+bias", .members = 2,
     .member = {{"conv2d.forward", 0, 0, 0}, {"bias.forward", 0, 2, 0}},
     .replacement = "conv2d.forward_bias", .operand = {{0, 0}, {0, 1}, {1, 1}, {1, 2}}},
    {.name = "dense+bias+relu", .members = 3,
     .member = {{"dense.forward", 0, 0, 0}, {"bias.forward", 0, 2, 0}, {"relu.forward", 1, 2, 0}},
     .replacement = "dense.forward_bias_relu", .operand = {{0, 0}, {0, 1}, {1, 1}, {2, 1}}},
    {.name = "dense+bias", .members = 2,
     .member = {{"dense.forward", 0, 0, 0}, {"bias.forward", 0, 2, 0}},
     .replacement = "dense.forward_bias", .operand = {{0, 0}, {0, 1}, {1, 1}, {1, 2}}},
    {.name = "batch_norm+add+relu", .members = 3,
     .member = {{"batch_norm.apply", 0, 0, 0}, {"add.forward", 0, 2, 0}, {"relu.forward", 1, 2, 0}},
     .replacement = "batch_norm.apply_add_relu", .operand = {{0, 0}, {0, 1}, {1, 1}, {2, 1}, {TWI_MASK, 3}},
     .sign_reader = "relu.backward", .mask_reader = "relu.backward_masked", .sign_operand = 1},
    {.name = "add+batch_norm+relu", .members = 3, /* the normalised branch as the second operand of the sum */
     .member = {{"batch_norm.apply", 0, 0, 0}, {"add.forward", 0, 2, 1}, {"relu.forward", 1, 2, 0}},
     .replacement = "batch_norm.apply_add_relu", .operand = {{0, 0}, {0, 1}, {1, 0}, {2, 1}, {TWI_MASK, 3}},
     .sign_reader = "relu.backward", .mask_reader = "relu.backward_masked", .sign_operand = 1},
    {.name = "batch_norm+relu", .members = 2,
     .member = {{"batch_norm.apply", 0, 0, 0}, {"relu.forward", 0, 2, 0}},
     .replacement = "batch_norm.apply_relu", .operand = {{0, 0}, {0, 1}, {1, 1}, {TWI_MASK, 2}},
     .sign_reader = "relu.backward", .mask_reader = "relu.backward_masked", .sign_operand = 1},
    {.name = "bias+relu backward", .members = 2,
     .member = {{"relu.backward", 0, 0, 0}, {"bias.backward", 0, 2, 0}},
     .replacement = "bias_relu.backward", .operand = {{0, 0}, {0, 1}, {0, 2}, {1, 1}}},
    {.name = "softmax+cross_entropy", .members = 3,
     .member = {{"cross_entropy.log_softmax", 0, 0, 0}, {"cross_entropy.loss", 0, 1, 0}, {"cross_entropy.backward", 0, 1, 0}},
     .replacement = "softmax_cross_entropy.both", .operand = {{0, 0}, {1, 1}, {2, 2}, {1, 2}, {2, 3}}},
    {.name = NULL},
};

const twi_absorb twi_absorbs[] = {
    {"relu.backward_masked", "batch_norm.backward_sums", 0, "batch_norm.backward_sums_masked", {TWI_ABSORB_VALUE, TWI_ABSORB_MASK, 1, 2, 3}},
    {"relu.backward_masked", "batch_norm.backward_apply", 0, "batch_norm.backward_apply_masked", {TWI_ABSORB_VALUE, TWI_ABSORB_MASK, 1, 2, 3}},
    {"relu.backward_masked", "add.forward", 0, "add.masked", {TWI_ABSORB_VALUE, TWI_ABSORB_MASK, 1, 2}},
    {"relu.backward_masked", "add.forward", 1, "add.masked", {TWI_ABSORB_VALUE, TWI_ABSORB_MASK, 0, 2}},
    {.producer = NULL},
};
