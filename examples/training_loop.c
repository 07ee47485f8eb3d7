/* Training by hand: what a trainer does for you, written out over loaders and programs, on the bundled digits. Begin
 * here if you want to change the loop itself. */
#define PROGRAM "training_loop"
#include "example.h"

#include <getopt.h>

#ifndef DIGITS_DIR
#define DIGITS_DIR "examples/data/digits"
#endif

enum { BATCH = 32, SIDE = 8, PIXELS = SIDE * SIDE, CLASSES = 10 };

static const char usage[] = "usage: training_loop [--data DIR] [--epochs N] [--threads N] [--seed N] [--help]\n"
                            "\n"
                            "  --data DIR   8x8 digits as IDX files (default: " DIGITS_DIR ")\n"
                            "  --epochs N   times through the training set, at least 1 (default: 10)\n"
                            "  --threads N  threads to work with (default: all processors)\n"
                            "  --seed N     of weights and order (default: 1)\n";

/* A loader gives batches of BATCH samples and, at the end, a shorter one. A program's shapes are fixed: so there are
 * two. */
typedef struct programs {
    tw_program *full, *rest;
} programs;

static tw_program *program_for(const programs *p, const tw_batch *batch) {
    return batch->count == BATCH ? p->full : p->rest;
}

static programs make_programs(tw_model *model, const tw_dataset *data, const tw_program_options *options) {
    programs p = {NULL, NULL};
    int rest = (int)(tw_dataset_count(data) % BATCH);
    if (tw_dataset_count(data) >= BATCH) check(tw_program_create(&p.full, model, BATCH, options));
    if (rest) check(tw_program_create(&p.rest, model, rest, options));
    return p;
}

static void destroy_programs(programs *p) {
    tw_program_destroy(p->full);
    tw_program_destroy(p->rest);
}

/* One time through a data set: runs the programs on every batch and returns how many samples were classified right. A
 * training program's run is all of a step: forward, loss, backward, update. */
static int64_t run_epoch(tw_loader *loader, int64_t epoch, const programs *p, const tw_value *images,
                         const tw_value *labels, const tw_value *guess, double *mean_loss) {
    int64_t samples = 0, right = 0;
    double loss = 0;
    check(tw_loader_start(loader, epoch, 0));
    for (;;) {
        tw_batch batch;
        check(tw_loader_next(loader, &batch));
        if (!batch.count) break;
        tw_program *program = program_for(p, &batch);
        /* The loader keeps a batch until it is asked for the next: so the run may read it there. */
        check(tw_program_lend(program, images, TW_F32, batch.images, (int64_t)batch.count * PIXELS));
        check(tw_program_lend(program, labels, TW_I32, batch.labels, batch.count));
        check(tw_program_run(program));

        int32_t guesses[BATCH];
        check(tw_program_read(program, guess, guesses, batch.count));
        for (int i = 0; i < batch.count; i++) right += guesses[i] == batch.labels[i];
        loss += tw_program_get_loss(program) * batch.count; /* a mean over the batch: weigh it by samples */
        samples += batch.count;
    }
    *mean_loss = loss / (double)samples;
    return right;
}

static void train(const char *folder, int epochs, int threads, uint64_t seed) {
    /* Everything is made from a context, and given back before it. */
    tw_context *context;
    check(tw_context_create(&context, "auto", TW_OPTIONS(context, .threads = threads)));

    /* Data: samples in memory, and loaders that make normalised batches of them. The test set is normalised as the
     * training set is. */
    tw_dataset *train_set, *test_set;
    check(tw_dataset_open(&train_set, context, folder, TW_TRAIN, NULL));
    check(tw_dataset_open(&test_set, context, folder, TW_TEST, NULL));
    tw_normalization normalization = {.channels = 1};
    check(tw_dataset_measure(train_set, normalization.mean, normalization.deviation));
    tw_loader *train_loader, *test_loader;
    check(tw_loader_create(&train_loader, train_set,
                           TW_OPTIONS(loader, .batch = BATCH, .seed = seed, .normalization = normalization)));
    check(tw_loader_create(&test_loader, test_set,
                           TW_OPTIONS(loader, .batch = BATCH, .no_shuffle = true, .normalization = normalization)));

    /* The graph: from images to logits, with the labels to the loss. What is to be measured is part of it too. */
    tw_model *model;
    check(tw_model_create(&model, context));
    tw_value *images = tw_input(model, 1, SIDE, SIDE), *labels = tw_input_labels(model, "labels");
    tw_value *x = tw_relu(model, tw_conv2d(model, images, 16, 3, TW_OPTIONS(conv2d, .padding = 1)));
    x = tw_max_pool(model, x, 2, NULL);
    x = tw_relu(model, tw_dense(model, x, 64, NULL));
    tw_value *logits = tw_dense(model, x, CLASSES, NULL);
    tw_loss loss = {tw_cross_entropy(model, logits, labels, NULL), 1};
    tw_value *guess = tw_argmax(model, logits);
    check(tw_model_build(model, logits, TW_OPTIONS(model, .seed = seed)));

    /* Programs: the graph compiled for a batch size. With train and an optimizer, a run ends with an update. */
    tw_optimizer_options optimizer = TW_OPTIMIZER_OPTIONS_INIT;
    optimizer.kind = TW_ADAMW;
    optimizer.learning_rate = 3e-3;
    optimizer.schedule.kind = TW_SCHEDULE_COSINE;
    optimizer.schedule.total = epochs * tw_loader_count(train_loader);
    tw_program_options options = {sizeof options, .losses = &loss, .loss_count = 1, .outputs = &guess,
                                  .output_count = 1};
    programs test_programs = make_programs(model, test_set, &options);
    options.train = true;
    options.optimizer = &optimizer;
    programs train_programs = make_programs(model, train_set, &options);

    int64_t right = 0;
    for (int epoch = 0; epoch < epochs; epoch++) {
        double train_loss, test_loss;
        run_epoch(train_loader, epoch, &train_programs, images, labels, guess, &train_loss);
        right = run_epoch(test_loader, 0, &test_programs, images, labels, guess, &test_loss);
        printf("epoch %2d/%d: rate %.6f, train loss %.4f, test loss %.4f\n", epoch + 1, epochs,
               tw_model_get_learning_rate(model), train_loss, test_loss);
    }
    printf("test accuracy %.2f %%\n", 100.0 * (double)right / (double)tw_dataset_count(test_set));

    /* In reverse. */
    destroy_programs(&train_programs);
    destroy_programs(&test_programs);
    tw_model_destroy(model);
    tw_loader_destroy(test_loader);
    tw_loader_destroy(train_loader);
    tw_dataset_destroy(test_set);
    tw_dataset_destroy(train_set);
    tw_context_destroy(context);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* every line at once, into pipes and files too */
    static const struct option names[] = {{"data", 1, NULL, 'd'}, {"epochs", 1, NULL, 'e'}, {"threads", 1, NULL, 't'},
                                          {"seed", 1, NULL, 's'}, {"help", 0, NULL, 'h'},   {NULL, 0, NULL, 0}};
    const char *folder = DIGITS_DIR;
    int epochs = 10, threads = 0;
    uint64_t seed = 1;
    for (int option; (option = getopt_long(argc, argv, "h", names, NULL)) != -1;) switch (option) {
        case 'd':
            folder = optarg;
            break;
        case 'e':
            epochs = (int)number("epochs", optarg, 1, 100000);
            break;
        case 't':
            threads = (int)number("threads", optarg, 0, 1024);
            break;
        case 's':
            seed = number("seed", optarg, 0, UINT64_MAX);
            break;
        case 'h':
            fputs(usage, stdout);
            return 0;
        default:
            fputs(usage, stderr);
            return 2;
        }
    if (optind < argc) refuse_argument(argv[optind]);
    train(folder, epochs, threads, seed);
    return finish();
}
