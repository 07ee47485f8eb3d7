/* ResNet-20 on CIFAR-10 (or CIFAR-100): a whole network from the zoo, augmentation, a warm-up.
 * About 79 % right after 10 epochs over the first two of CIFAR-10's five training files. */
#define _POSIX_C_SOURCE 200809L
#define PROGRAM "cifar_resnet"
#include "example.h"

#include <getopt.h>
#include <unistd.h>

typedef struct arguments {
    const char *data, *save, *checkpoint, *device;
    int epochs, threads, workers;
    uint64_t seed;
    bool resume;
} arguments;

static const char usage[] =
    "usage: cifar_resnet DIR [--epochs N] [--save FILE] [--checkpoint FILE [--resume]]\n"
    "                    [--device NAME] [--threads N] [--workers N] [--seed N] [--help]\n"
    "\n"
    "  DIR          the data set's folder: CIFAR-10's binary files (data_batch_*.bin, test_batch.bin) or\n"
    "               CIFAR-100's (train.bin, test.bin); examples/get_data.sh cifar10, or cifar100, downloads\n"
    "               them into build/data/cifar10, or build/data/cifar100\n"
    "  --epochs N   times through the training set, at least 1 (default: 10)\n"
    "  --save FILE  save the weights as safetensors (default: they are not saved)\n"
    "  --checkpoint FILE  write there after every epoch what going on needs, should the program be ended\n"
    "  --resume     go on from the checkpoint\n"
    "  --device NAME  cpu, cuda:0, ... (default: auto, the best there is)\n"
    "  --threads N  threads to work with (default: all processors)\n"
    "  --workers N  threads that prepare batches beside them (default: 1)\n"
    "  --seed N     of weights, order and augmentation (default: 1)\n";

static arguments parse(int argc, char **argv) {
    static const struct option options[] = {{"epochs", 1, NULL, 'e'},  {"save", 1, NULL, 'o'},
                                            {"threads", 1, NULL, 't'}, {"workers", 1, NULL, 'w'},
                                            {"seed", 1, NULL, 's'},    {"checkpoint", 1, NULL, 'c'},
                                            {"device", 1, NULL, 'v'},  {"resume", 0, NULL, 'r'},
                                            {"help", 0, NULL, 'h'},    {NULL, 0, NULL, 0}};
    arguments a = {.device = "auto", .epochs = 10, .workers = 1, .seed = 1};
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) switch (option) {
        case 'e':
            a.epochs = (int)number("epochs", optarg, 1, 100000);
            break;
        case 'o':
            a.save = optarg;
            break;
        case 'v':
            a.device = optarg;
            break;
        case 't':
            a.threads = (int)number("threads", optarg, 0, 1024);
            break;
        case 'w':
            a.workers = (int)number("workers", optarg, 0, 64);
            break;
        case 's':
            a.seed = number("seed", optarg, 0, UINT64_MAX);
            break;
        case 'c':
            a.checkpoint = optarg;
            break;
        case 'r':
            a.resume = true;
            break;
        case 'h':
            fputs(usage, stdout);
            exit(0);
        default:
            fputs(usage, stderr);
            exit(2);
        }
    if (optind == argc) {
        fputs(usage, stderr);
        exit(2);
    }
    if (optind < argc - 1) refuse_argument(argv[optind + 1]);
    need_checkpoint(a.resume, a.checkpoint);
    a.data = argv[optind];
    return a;
}

/* One line, rewritten a few times a second; only where somebody watches. */
static bool show_step(void *user, const tw_progress *p) {
    double *shown = user;
    bool last = p->step == p->steps;
    if (!isatty(STDERR_FILENO) || (p->seconds - *shown < 0.2 && !last)) return false;
    *shown = p->seconds;
    fprintf(stderr, "\repoch %d/%d, step %lld/%lld: loss %.4f, %.0f images/s, %.0f s left   ", p->epoch + 1, p->epochs,
            (long long)p->step, (long long)p->steps, p->train.loss, p->images_per_second, p->seconds_left);
    if (last) fprintf(stderr, "\r%79s\r", "");
    fflush(stderr);
    return false;
}

static bool show_epoch(void *user, const tw_progress *p) {
    (void)user;
    printf(
        "epoch %d/%d: rate %.4f, train loss %.4f, accuracy %.2f %%; test loss %.4f, accuracy %.2f %%; %.0f images/s\n",
        p->epoch + 1, p->epochs, p->learning_rate, p->train.loss, 100 * p->train.top1, p->test.loss, 100 * p->test.top1,
        p->images_per_second);
    return false;
}

/* Which classes are told apart worst. */
static void show_classes(tw_trainer *trainer, const tw_dataset *test) {
    int classes = tw_dataset_get_classes(test);
    int64_t *matrix = calloc((size_t)classes * (size_t)classes, sizeof *matrix);
    if (!matrix) return;
    check(tw_trainer_confusion(trainer, test, matrix));
    for (int actual = 0; actual < classes; actual++) {
        const int64_t *row = matrix + (size_t)actual * (size_t)classes;
        int64_t count = 0;
        int rival = actual ? 0 : 1;
        for (int c = 0; c < classes; c++) {
            count += row[c];
            if (c != actual && row[c] > row[rival]) rival = c;
        }
        if (count && classes > 1)
            printf("%-12s %6.2f %% right; taken for %s: %.2f %%\n", tw_dataset_get_class_name(test, actual),
                   100.0 * (double)row[actual] / (double)count, tw_dataset_get_class_name(test, rival),
                   100.0 * (double)row[rival] / (double)count);
    }
    free(matrix);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* every line at once, into pipes and files too */
    arguments a = parse(argc, argv);
    tw_context *context;
    tw_dataset *train, *test;
    tw_model *model;
    tw_trainer *trainer;
    check(tw_context_create(&context, a.device, TW_OPTIONS(context, .threads = a.threads)));
    check_data(tw_dataset_open(&train, context, a.data, TW_TRAIN, NULL), "cifar10 (or cifar100)");
    check_data(tw_dataset_open(&test, context, a.data, TW_TEST, NULL), "cifar10 (or cifar100)");
    check(tw_model_create(&model, context));
    tw_value *logits = tw_zoo_resnet20(model, tw_input(model, 3, 32, 32), tw_dataset_get_classes(train), NULL);
    check(tw_model_build(model, logits, TW_OPTIONS(model, .seed = a.seed)));
    printf("%lld images to learn from, %lld to be tested on; %lld weights, seed %llu\n",
           (long long)tw_dataset_count(train), (long long)tw_dataset_count(test),
           (long long)tw_model_count_weights(model), (unsigned long long)a.seed);

    double shown = -1;
    tw_optimizer_options sgd = {.kind = TW_SGD,
                                .learning_rate = 0.1,
                                .momentum = 0.9f,
                                .nesterov = true,
                                .weight_decay = 5e-4f,
                                .schedule = {.kind = TW_SCHEDULE_COSINE}};
    check(tw_trainer_create(&trainer, model,
                            TW_OPTIONS(trainer, .epochs = a.epochs, .batch = 128, .optimizer = sgd, .warmup_epochs = 1,
                                       .flip = true, .crop_padding = 4, .workers = a.workers, .on_step = show_step,
                                       .run_ahead = true, .on_epoch = show_epoch, .user = &shown,
                                       .checkpoint = a.checkpoint)));
    if (a.resume) check(tw_trainer_load(trainer, a.checkpoint));
    check(tw_trainer_fit(trainer, train, test));
    if (a.save) check(tw_model_save(model, a.save));
    show_classes(trainer, test);
    tw_metrics result;
    check(tw_trainer_evaluate(trainer, test, &result));
    printf("test accuracy %.2f %%\n", 100 * result.top1);

    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(test);
    tw_dataset_destroy(train);
    tw_context_destroy(context);
    return finish();
}
