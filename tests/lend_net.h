/* Networks whose input is lent or written, batch by batch; where the device reads the host's memory, a lent one is found to
 * be read there. */
#ifndef TALWEG_TESTS_LEND_NET_H
#define TALWEG_TESTS_LEND_NET_H

#include "program_net.h"
#include "page_end.h"

#include <string.h>

enum { BATCH = 48, SIDE = 28, CLASSES = 10, STEPS = 3, MOST_THREADS = 3 };
enum { PIXELS = SIDE * SIDE, FED = BATCH * PIXELS };

/* ---- networks ---- */

static inline tw_value *mlp(tw_model *model, tw_value *x) { return tw_zoo_mlp(model, x, 2, (const int64_t[]){128, CLASSES}); }
static inline tw_value *lenet(tw_model *model, tw_value *x) { return tw_zoo_lenet5(model, x, CLASSES); }
/* First comes a convolution that oneDNN does. */
static inline tw_value *residual(tw_model *model, tw_value *x) {
    x = tw_relu(model, tw_batch_norm(model, tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1)), NULL));
    x = tw_residual(model, x, 16, NULL);
    return tw_dense(model, tw_global_avg_pool(model, x), CLASSES, NULL);
}
/* The input is read by a convolution that pools, and by what is no product. */
static inline tw_value *many_readers(tw_model *model, tw_value *x) {
    tw_value *y = tw_relu(model, tw_conv2d(model, x, 32, 5, TW_OPTIONS(conv2d, .stride = 2)));
    y = tw_dense(model, tw_max_pool(model, y, 2, NULL), CLASSES, NULL);
    y = tw_add(model, y, tw_dense(model, tw_avg_pool(model, x, 4, NULL), CLASSES, NULL));
    y = tw_add(model, y, tw_dense(model, tw_batch_norm(model, x, NULL), CLASSES, NULL));
    y = tw_add(model, y, tw_dense(model, tw_dropout(model, x, 0.25f), CLASSES, NULL));
    return tw_add(model, y, tw_dense(model, tw_gelu(model, tw_add(model, x, tw_relu(model, x)), NULL), CLASSES, NULL));
}
static inline tw_value *pooled_first(tw_model *model, tw_value *x) {
    return tw_dense(model, tw_relu(model, tw_max_pool(model, x, 2, NULL)), CLASSES, NULL);
}
/* Read by a product whose weights are read twice, so that it goes by samples. */
static inline tw_value *tied(tw_model *model, tw_value *x) {
    tw_value *flat = tw_flatten(model, x), *hidden = tw_dense(model, flat, 100, NULL);
    hidden = tw_add(model, hidden, tw_dense(model, flat, 100, TW_OPTIONS(dense, .tied_to = "fc1")));
    return tw_dense(model, tw_relu(model, hidden), CLASSES, NULL);
}

typedef tw_value *(*network)(tw_model *model, tw_value *x);
typedef struct named {
    const char *name;
    network build;
    int side; /* where 0, SIDE */
} named;
static const named networks[] = {
    {"mlp", mlp, 0},           {"mlp of 13 x 13", mlp, 13},       {"lenet", lenet, 0},
    {"residual", residual, 0}, {"many readers", many_readers, 0}, {"pooled first", pooled_first, 0},
    {"tied", tied, 0},         {"tied, of 13 x 13", tied, 13},
};
enum { NETWORKS = sizeof networks / sizeof *networks };

static const tw_optimizer_options sgd = {.size = sizeof sgd, .learning_rate = 0.05f, .momentum = 0.9f};

/* Does the device read the host's memory? */
static inline bool lends(void) { return strcmp(check_device_or_cpu(), "cpu") == 0; }

static inline void open_on_threads(net *n, const named *network, int threads) {
    open_net_on(n, check_device_or_cpu(), threads, network->build, 1, network->side ? network->side : SIDE);
}

/* ---- data ---- */

static inline int64_t fed_by(const net *n) { return BATCH * tw_value_get_dim(n->x, 2) * tw_value_get_dim(n->x, 3); }

static inline void fill(float *images, int64_t count, int step) {
    for (int64_t i = 0; i < count; i++) images[i] = (float)((i * 37 + step * 11) % 101) / 50 - 1;
}
static inline void write_labels(net *n, tw_program *program, int step) {
    int32_t labels[BATCH];
    for (int i = 0; i < BATCH; i++) labels[i] = (i + step) % CLASSES;
    CHECK_OK(tw_program_write(program, n->labels, TW_I32, labels, BATCH));
}

/* Where the program reads the input, if it was lent and not copied. */
static inline const void *lent_to(const net *n, const tw_program *program) {
    return program->buffer[twi_program_root(program, program->value_buffer[n->x->id])].lent;
}
static inline void lend(net *n, tw_program *program, const float *images) {
    CHECK_OK(tw_program_lend(program, n->x, TW_F32, images, fed_by(n)));
    assert_ptr_equal(lent_to(n, program), lends() ? images : NULL);
}
static inline void feed_copied(net *n, tw_program *program, const float *images) {
    CHECK_OK(tw_program_write(program, n->x, TW_F32, images, fed_by(n)));
    assert_null(lent_to(n, program));
}

/* One step, whose batch is gone when it is over, unless it is to be kept. */
typedef enum feeding { WRITTEN, LENT, KEPT } feeding;

static inline double step(net *n, tw_program *program, int number, feeding how, float **kept) {
    const size_t bytes = (size_t)fed_by(n) * sizeof(float);
    float *images = page_end_get(bytes);
    fill(images, fed_by(n), number);
    (how == WRITTEN ? feed_copied : lend)(n, program, images);
    write_labels(n, program, number);
    if (how == WRITTEN) page_end_put(images, bytes);
    CHECK_OK(tw_program_run(program));
    if (how == LENT) page_end_put(images, bytes);
    if (how == KEPT) *kept = images;
    return tw_program_get_loss(program);
}

#endif
