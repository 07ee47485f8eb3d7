/* A small net in a context of its own, for tests that look into programs. */
#ifndef PROGRAM_NET_H
#define PROGRAM_NET_H

#include "check.h"
#include "program/program.h"
#include <talweg/talweg.h>

typedef struct net {
    tw_context *context;
    tw_model *model;
    tw_value *x, *labels, *logits;
    tw_loss loss;
} net;

static inline void open_net_on(net *n, const char *device, int threads, tw_value *(*build)(tw_model *, tw_value *),
                               int channels, int side) {
    CHECK_OK(tw_context_create(&n->context, device, TW_OPTIONS(context, .threads = threads)));
    CHECK_OK(tw_model_create(&n->model, n->context));
    n->x = tw_input(n->model, channels, side, side);
    n->labels = tw_input_labels(n->model, NULL);
    n->logits = build(n->model, n->x);
    n->loss = (tw_loss){tw_cross_entropy(n->model, n->logits, n->labels, NULL), 1};
    CHECK_OK(tw_model_build(n->model, n->logits, TW_OPTIONS(model, .seed = 1)));
}

static inline void open_net(net *n, tw_value *(*build)(tw_model *, tw_value *), int channels, int side) {
    open_net_on(n, check_device_or_cpu(), 2, build, channels, side);
}

/* With the programs that are left. */
static inline void close_net(net *n) {
    while (n->model->programs) tw_program_destroy(n->model->programs);
    tw_model_destroy(n->model);
    tw_context_destroy(n->context);
}

static inline tw_program *make(net *n, int64_t batch, bool no_fusion) {
    tw_program *program;
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.momentum = 0.9f;
    CHECK_OK(tw_program_create(&program, n->model, batch,
                               TW_OPTIONS(program, .train = true, .losses = &n->loss, .loss_count = 1,
                                          .outputs = &n->logits, .output_count = 1, .optimizer = &sgd,
                                          .no_fusion = no_fusion, .record_passes = true)));
    return program;
}

/* A program that trains, with options otherwise as given. */
static inline tw_program *program_with(net *n, int64_t batch, const tw_program_options *given,
                                       const tw_optimizer_options *optimizer) {
    tw_program_options options = *given;
    tw_program *program;
    options.train = true;
    options.losses = &n->loss;
    options.loss_count = 1;
    options.optimizer = optimizer;
    CHECK_OK(tw_program_create(&program, n->model, batch, &options));
    return program;
}

static inline tw_value *resnet20(tw_model *model, tw_value *x) { return tw_zoo_resnet20(model, x, 10, NULL); }

#endif
