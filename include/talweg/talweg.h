/* Talweg: trains neural networks, image classifiers first, inside the program that links it.
 *
 *     tw_context *context;  tw_dataset *train, *test;  tw_model *model;  tw_trainer *trainer;  tw_metrics result;
 *
 *     tw_context_create(&context, "auto", NULL);
 *     tw_dataset_open(&train, context, "mnist", TW_TRAIN, NULL);
 *     tw_dataset_open(&test, context, "mnist", TW_TEST, NULL);
 *
 *     tw_model_create(&model, context);
 *     tw_value *x = tw_input(model, 1, 28, 28);
 *     x = tw_relu(model, tw_conv2d(model, x, 32, 3, TW_OPTIONS(conv2d, .padding = 1)));
 *     x = tw_max_pool(model, x, 2, NULL);
 *     x = tw_relu(model, tw_conv2d(model, x, 64, 3, TW_OPTIONS(conv2d, .padding = 1)));
 *     x = tw_max_pool(model, x, 2, NULL);
 *     x = tw_dropout(model, tw_relu(model, tw_dense(model, x, 128, NULL)), 0.5f);
 *     tw_model_build(model, tw_dense(model, x, 10, NULL), TW_OPTIONS(model, .seed = 1));
 *
 *     tw_optimizer_options adamw = {.kind = TW_ADAMW, .schedule = {.kind = TW_SCHEDULE_COSINE}};
 *     tw_trainer_create(&trainer, model, TW_OPTIONS(trainer, .epochs = 5, .optimizer = adamw));
 *     tw_trainer_fit(trainer, train, test);
 *     tw_trainer_evaluate(trainer, test, &result);
 *     printf("test accuracy %.2f %%\n", 100 * result.top1);
 *     tw_model_save_whole(model, "mnist.safetensors");
 *
 *     tw_trainer_destroy(trainer);
 *     tw_model_destroy(model);
 *     tw_dataset_destroy(test);
 *     tw_dataset_destroy(train);
 *     tw_context_destroy(context);
 *
 * Every function above that begins something returns a tw_status: check it; tw_last_error() says what went wrong and
 * what to do. Functions that add to a model return a value and need no check: tw_model_build reports their first
 * failure.
 *
 * Ownership: what comes out through `**out`, the first argument, belongs to the caller, who gives it back with the
 * matching destroy. A returned pointer is borrowed. destroy(NULL) is fine. On failure *out is NULL and inputs are
 * untouched. What was made from an object must be gone before the object, all of it before its context.
 *
 * Threads: a context and all that was made from it belong to one thread at a time. Contexts are independent.
 *
 * The headers in reading order: */
#ifndef TALWEG_TALWEG_H
#define TALWEG_TALWEG_H

#include <talweg/base.h>
#include <talweg/context.h>
#include <talweg/device.h>
#include <talweg/tensor.h>
#include <talweg/model.h>
#include <talweg/zoo.h>
#include <talweg/optim.h>
#include <talweg/precision.h>
#include <talweg/data.h>
#include <talweg/resident.h>
#include <talweg/program.h>
#include <talweg/trainer.h>
#include <talweg/plan.h>
#include <talweg/op.h>
#include <talweg/io.h>

#endif
