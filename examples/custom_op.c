/* An op of your own: PReLU, a relu whose slope below zero is learned for every channel, defined here and trained on the
 * bundled digits (He et al., "Delving deep into rectifiers", 2015). */
#define PROGRAM "custom_op"
#include "example.h"

#include <getopt.h>

#ifndef DIGITS_DIR
#define DIGITS_DIR "examples/data/digits"
#endif

static const char usage[] = "usage: custom_op [--data DIR] [--epochs N] [--threads N] [--seed N] [--help]\n"
                            "\n"
                            "  --data DIR   8x8 digits as IDX files (default: " DIGITS_DIR ")\n"
                            "  --epochs N   times through the training set, at least 1 (default: 10)\n"
                            "  --threads N  threads to work with (default: all processors)\n"
                            "  --seed N     of weights and order (default: 1)\n";

static int64_t count(const tw_op_tensor *t) {
    int64_t elements = 1;
    for (int axis = 0; axis < t->rank; axis++) elements *= t->dims[axis];
    return elements;
}

/* The channel of element i in memory, whether channels lie innermost or not. */
static int64_t channel(const tw_op_tensor *t, int64_t i) { return i / t->strides[1] % t->dims[1]; }

/* y = x < 0 ? a[c] x : x */
static void forward(const tw_op_call *call) {
    const float *x = call->inputs[0].data, *a = call->inputs[1].data;
    float *y = call->output->data;
    for (int64_t i = 0; i < count(call->output); i++) y[i] = x[i] < 0 ? a[channel(call->output, i)] * x[i] : x[i];
}

/* dx = x < 0 ? a[c] dy : dy;  da[c] = sum of x dy where x < 0. Only what is asked for, and sums are added to. */
static void backward(const tw_op_call *call) {
    const float *x = call->inputs[0].data, *a = call->inputs[1].data, *dy = call->output_gradient->data;
    float *dx = call->input_gradients[0].data, *da = call->input_gradients[1].data;
    for (int64_t i = 0; i < count(&call->inputs[0]); i++) {
        int64_t c = channel(&call->inputs[0], i);
        if (dx) dx[i] = x[i] < 0 ? a[c] * dy[i] : dy[i];
        if (da && x[i] < 0) da[c] += x[i] * dy[i];
    }
}

static tw_value *prelu(tw_model *model, tw_value *x) {
    int64_t channels = tw_value_get_dim(x, 1);
    tw_value *a = tw_weight(model, NULL, 1, &channels, TW_OPTIONS(weight, .init = {TW_INIT_CONSTANT, 0.25f}));
    return tw_apply(model, "prelu", (tw_value *[]){x, a}, 2, NULL);
}

int main(int argc, char **argv) {
    static const struct option names[] = {{"data", 1, NULL, 'd'}, {"epochs", 1, NULL, 'e'}, {"threads", 1, NULL, 't'},
                                          {"seed", 1, NULL, 's'}, {"help", 0, NULL, 'h'},   {NULL, 0, NULL, 0}};
    const char *folder = DIGITS_DIR;
    uint64_t epochs = 10, threads = 0, seed = 1;
    for (int option; (option = getopt_long(argc, argv, "h", names, NULL)) != -1;) {
        if (option == 'd') folder = optarg;
        if (option == 'e') epochs = number("epochs", optarg, 1, 100000);
        if (option == 't') threads = number("threads", optarg, 0, 1024);
        if (option == 's') seed = number("seed", optarg, 0, UINT64_MAX);
        if (option == 'h') return fputs(usage, stdout) < 0;
        if (option == '?') return fputs(usage, stderr), 2;
    }
    if (optind < argc) refuse_argument(argv[optind]);
    tw_context *context;
    tw_dataset *train, *test;
    tw_model *model;
    tw_trainer *trainer;
    tw_metrics result;
    check(tw_context_create(&context, "auto", TW_OPTIONS(context, .threads = (int)threads)));
    check(tw_op_register(context, "prelu",
                         TW_OPTIONS(op, .formula = "y[n,c,...] = x < 0 ? a[c] x : x", .parameters = 1,
                                    .layout = TW_OP_ANY_LAYOUT, .backward_ignores = TW_OP_OUTPUT,
                                    .forward_cpu = forward, .backward_cpu = backward)));
    check(tw_dataset_open(&train, context, folder, TW_TRAIN, NULL));
    check(tw_dataset_open(&test, context, folder, TW_TEST, NULL));
    check(tw_model_create(&model, context));
    tw_value *x = tw_conv2d(model, tw_input(model, 1, 8, 8), 16, 3, TW_OPTIONS(conv2d, .padding = 1));
    x = tw_max_pool(model, prelu(model, x), 2, NULL);
    x = tw_dense(model, prelu(model, tw_dense(model, x, 64, NULL)), 10, NULL);
    check(tw_model_build(model, x, TW_OPTIONS(model, .seed = seed)));
    tw_optimizer_options adamw = {.kind = TW_ADAMW, .learning_rate = 3e-3, .schedule = {.kind = TW_SCHEDULE_COSINE}};
    check(tw_trainer_create(&trainer, model,
                            TW_OPTIONS(trainer, .epochs = (int)epochs, .batch = 32, .optimizer = adamw)));
    check(tw_trainer_fit(trainer, train, test));
    float slopes[16];
    check(tw_parameter_read(model, "weight1", slopes, 16));
    for (int c = 0; c < 16; c++) printf("%s%.2f", c ? " " : "slopes of the convolution's channels: ", slopes[c]);
    check(tw_trainer_evaluate(trainer, test, &result));
    printf("\ntest accuracy %.2f %%\n", 100 * result.top1);
    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(test);
    tw_dataset_destroy(train);
    tw_context_destroy(context);
    return finish();
}
