/* Learns to read handwritten digits: 8x8 images, bundled with the library. Saves the model, its history and a picture
 * of the learning curve. Shows layers, the trainer with its callbacks, checkpoints, and stopping on Ctrl-C. predict.c
 * uses the model, from its file alone. */
#define _POSIX_C_SOURCE 200809L
#define PROGRAM "digits"
#include "example.h"

#include <getopt.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef DIGITS_DIR
#define DIGITS_DIR "examples/data/digits"
#endif

typedef struct arguments {
    const char *data, *out, *checkpoint, *device;
    int epochs, threads;
    uint64_t seed;
    bool resume;
} arguments;

static const char usage[] =
    "usage: digits [--data DIR] [--out DIR] [--epochs N] [--checkpoint FILE [--resume]]\n"
    "              [--device NAME] [--threads N] [--seed N] [--help]\n"
    "\n"
    "  --data DIR   the digits as IDX files (default: " DIGITS_DIR ")\n"
    "  --out DIR    where model, history and picture go; made if it is not there (default: .)\n"
    "  --epochs N   times through the training set, at least 1 (default: 20)\n"
    "  --checkpoint FILE  write there after every epoch, and when stopped, what going on needs\n"
    "  --resume     go on from the checkpoint\n"
    "  --device NAME  cpu, cuda:0, ... (default: auto, the best there is)\n"
    "  --threads N  threads to work with (default: all processors)\n"
    "  --seed N     of weights, order and dropout (default: 1)\n";

static arguments parse(int argc, char **argv) {
    static const struct option options[] = {{"data", 1, NULL, 'd'},   {"out", 1, NULL, 'o'},
                                            {"epochs", 1, NULL, 'e'}, {"threads", 1, NULL, 't'},
                                            {"seed", 1, NULL, 's'},   {"checkpoint", 1, NULL, 'c'},
                                            {"device", 1, NULL, 'v'}, {"resume", 0, NULL, 'r'},
                                            {"help", 0, NULL, 'h'},   {NULL, 0, NULL, 0}};
    arguments a = {.data = DIGITS_DIR, .out = ".", .device = "auto", .epochs = 20, .seed = 1};
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) switch (option) {
        case 'd':
            a.data = optarg;
            break;
        case 'o':
            a.out = optarg;
            break;
        case 'e':
            a.epochs = (int)number("epochs", optarg, 1, 100000);
            break;
        case 'v':
            a.device = optarg;
            break;
        case 't':
            a.threads = (int)number("threads", optarg, 0, 1024);
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
    if (optind < argc) refuse_argument(argv[optind]);
    need_checkpoint(a.resume, a.checkpoint);
    return a;
}

/* ---- what one sees while it trains ---- */

/* One line, rewritten a few times a second; only where somebody watches. */
static void clear_line(void) {
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%79s\r", "");
}

static bool show_step(void *user, const tw_progress *p) {
    double *shown = user;
    if (p->step == p->steps) clear_line();
    if (!isatty(STDERR_FILENO) || p->seconds - *shown < 0.1 || p->step == p->steps) return false;
    *shown = p->seconds;
    fprintf(stderr, "\repoch %d/%d, step %lld/%lld: loss %.4f, %.0f images/s, %.0f s left   ", p->epoch + 1, p->epochs,
            (long long)p->step, (long long)p->steps, p->train.loss, p->images_per_second, p->seconds_left);
    fflush(stderr);
    return false;
}

static bool show_epoch(void *user, const tw_progress *p) {
    (void)user;
    printf("epoch %2d/%d: train loss %.4f, accuracy %6.2f %%; test loss %.4f, accuracy %6.2f %%; %.0f images/s\n",
           p->epoch + 1, p->epochs, p->train.loss, 100 * p->train.top1, p->test.loss, 100 * p->test.top1,
           p->images_per_second);
    return false;
}

/* The first Ctrl-C, or SIGTERM, ends training after the step under way, and what was learned is saved; a second ends
 * the program. */
static tw_trainer *volatile running;
static volatile sig_atomic_t caught;

static void on_signal(int number) {
    caught = number;
    tw_trainer_stop(running);
}

/* A signal that was ignored when the program was started, as under nohup, stays so. */
static void stop_on(int number) {
    struct sigaction action;
    if (sigaction(number, NULL, &action) || action.sa_handler == SIG_IGN) return;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = (int)SA_RESETHAND;
    sigaction(number, &action, NULL);
}

/* ---- the network ---- */

static tw_value *network(tw_model *model) {
    tw_value *x = tw_input(model, 1, 8, 8);
    x = tw_relu(model, tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1)));
    x = tw_relu(model, tw_conv2d(model, x, 32, 3, TW_OPTIONS(conv2d, .padding = 1)));
    x = tw_max_pool(model, x, 2, NULL);
    x = tw_relu(model, tw_dense(model, x, 64, NULL));
    x = tw_dropout(model, x, 0.5f);
    return tw_dense(model, x, 10, NULL);
}

/* ---- what it leaves ---- */

static const char *path_in(const char *folder, const char *name) {
    static char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path) return path;
    fprintf(stderr, "digits: the path is too long: %s\n", folder);
    exit(2);
}

/* Before training, which would be for nothing if there were no place for the result. */
static void prepare_folder(const char *folder) {
    if ((mkdir(folder, 0777) && errno != EEXIST) || access(path_in(folder, "."), W_OK | X_OK)) {
        fprintf(stderr, "digits: --out: '%s': files cannot be written there: %s\n", folder, strerror(errno));
        exit(1);
    }
}

static void save(const arguments *a, const tw_model *model, const tw_trainer *trainer) {
    check(tw_model_save_whole(model, path_in(a->out, "digits.safetensors")));
    printf("model    %s\n", path_in(a->out, "digits.safetensors"));
    if (!tw_trainer_count_history(trainer)) return;
    check(tw_trainer_save_history(trainer, path_in(a->out, "history.csv")));
    printf("history  %s\n", path_in(a->out, "history.csv"));
    check(tw_trainer_save_curve(trainer, path_in(a->out, "digits-curve.svg")));
    printf("picture  %s\n", path_in(a->out, "digits-curve.svg"));
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* every line at once, into pipes and files too */
    arguments a = parse(argc, argv);
    tw_context *context;
    tw_dataset *train, *test;
    tw_model *model;
    tw_trainer *trainer;
    prepare_folder(a.out);
    check(tw_context_create(&context, a.device, TW_OPTIONS(context, .threads = a.threads)));
    check(tw_dataset_open(&train, context, a.data, TW_TRAIN, NULL));
    check(tw_dataset_open(&test, context, a.data, TW_TEST, NULL));
    check(tw_model_create(&model, context));
    check(tw_model_build(model, network(model), TW_OPTIONS(model, .seed = a.seed)));
    printf("%lld digits to learn from, %lld to be tested on; %lld weights, seed %llu, device %s, %d threads\n",
           (long long)tw_dataset_count(train), (long long)tw_dataset_count(test),
           (long long)tw_model_count_weights(model), (unsigned long long)a.seed, tw_context_get_device(context),
           tw_context_get_threads(context));

    double shown = -1;
    tw_optimizer_options optimizer = {
        .kind = TW_ADAMW, .learning_rate = 3e-3, .weight_decay = 0.01f, .schedule = {.kind = TW_SCHEDULE_COSINE}};
    check(tw_trainer_create(&trainer, model,
                            TW_OPTIONS(trainer, .epochs = a.epochs, .batch = 32, .optimizer = optimizer,
                                       .on_step = show_step, .run_ahead = true, .on_epoch = show_epoch, .user = &shown,
                                       .checkpoint = a.checkpoint)));
    if (a.resume) check(tw_trainer_load(trainer, a.checkpoint));
    running = trainer;
    stop_on(SIGINT);
    stop_on(SIGTERM);
    tw_status status = tw_trainer_fit(trainer, train, test);
    clear_line();
    running = NULL;
    if (status != TW_STOPPED) check(status);
    if (status == TW_STOPPED) fprintf(stderr, "digits: %s\n", tw_last_error());

    save(&a, model, trainer);
    tw_metrics result;
    check(tw_trainer_evaluate(trainer, test, &result));
    printf("test accuracy %.2f %%\n", 100 * result.top1);

    tw_trainer_destroy(trainer);
    tw_model_destroy(model);
    tw_dataset_destroy(test);
    tw_dataset_destroy(train);
    tw_context_destroy(context);
    return status == TW_STOPPED ? 128 + caught : finish();
}
