/* How much faster training is on several threads than on one. Programs of one thread and of several take turns in one
 * process, a few hundredths of a second each, so that what a machine's clock and its other users do meets both alike;
 * and as many programs of one thread as there are threads run beside each other in turn with them, which shows what
 * the machine itself gives when all those processors work. Where it gives some of them less than others, as a host
 * does that has more to do, threads that meet several times a step wait for the slowest: so turns in which all were
 * equally fast are told apart. */
#define _GNU_SOURCE
#include "cli/workload.h"
#include <talweg/talweg.h>

#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS_MAX = 64, ROUNDS_MAX = 10000, STEPS_MAX = 100000, STEPS_LEAST = 3, ROUNDS_LEAST = 3, BATCHES = 8 };

typedef struct net {
    tw_context *context;
    tw_model *model;
    tw_program *program;
    tw_value *input, *labels;
    const float *images; /* BATCHES, ready in memory, read where they lie */
    const int32_t *classes;
    int64_t pixels, batch; /* pixels of a batch */
    int64_t steps;
    double seconds;      /* of a turn, at least */
    double median, best; /* a step of the turn that was run last; of all */
    atomic_int *running; /* of those that run together: that have not had their turn yet */
    double *time;
} net;

static void check(tw_status status, const char *what) {
    if (!status) return;
    fprintf(stderr, "bench_threads: %s: %s\n", what, tw_last_error());
    exit(1);
}

static void *need(void *memory) {
    if (memory) return memory;
    fputs("bench_threads: no memory\n", stderr);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* Of values in order. */
static double quantile(const double *values, int count, double q) {
    const double at = q * (count - 1);
    const int below = (int)at, above = below + 1 < count ? below + 1 : below;
    return values[below] + (at - below) * (values[above] - values[below]);
}

static void open_net(net *n, const twi_workload *w, int64_t batch, int threads) {
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.momentum = 0.9f;
    sgd.learning_rate = 0.001;
    check(tw_context_create(&n->context, "cpu", TW_OPTIONS(context, .threads = threads)), "context");
    check(tw_model_create(&n->model, n->context), "model");
    n->input = tw_input(n->model, w->channels, w->side, w->side);
    tw_value *logits = w->build(n->model, n->input, w->classes);
    n->labels = tw_input_labels(n->model, "labels");
    const tw_loss loss = {tw_cross_entropy(n->model, logits, n->labels, NULL), 1};
    check(tw_model_build(n->model, logits, NULL), "build");
    check(tw_program_create(&n->program, n->model, batch,
                            TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1, .optimizer = &sgd)),
          "program");
    n->batch = batch;
    n->pixels = batch * twi_workload_pixels(w);
    n->best = 1e30;
    n->time = need(calloc(STEPS_MAX, sizeof *n->time));
}

static void close_net(net *n) {
    tw_program_destroy(n->program);
    tw_model_destroy(n->model);
    tw_context_destroy(n->context);
    free(n->time);
}

static void step(net *n) {
    const int64_t b = n->steps++ % BATCHES;
    check(tw_program_lend(n->program, n->input, TW_F32, n->images + b * n->pixels, n->pixels), "lend");
    check(tw_program_write(n->program, n->labels, TW_I32, n->classes + b * n->batch, n->batch), "write");
    check(tw_program_run(n->program), "run");
}

/* A turn, after a step that is not timed; beside others, until all have had theirs. */
static void *run_turn(void *argument) {
    net *n = argument;
    int steps = 0;
    bool had = false;
    step(n);
    for (double begin = now(), at = begin; steps < STEPS_MAX && !(had && !atomic_load(n->running)); steps++) {
        step(n);
        const double before = at;
        at = now();
        n->time[steps] = at - before;
        if (had || steps + 1 < STEPS_LEAST || at - begin < n->seconds) continue;
        had = true;
        atomic_fetch_sub(n->running, 1);
    }
    qsort(n->time, (size_t)steps, sizeof *n->time, by_value);
    n->median = quantile(n->time, steps, 0.5);
    if (n->time[0] < n->best) n->best = n->time[0];
    return NULL;
}

static void run_alone(net *n) {
    atomic_int running = 1;
    n->running = &running;
    run_turn(n);
}

/* Steps a second of all. */
static double run_together(net *nets, int count) {
    pthread_t thread[THREADS_MAX];
    atomic_int running = count;
    double rate = 0;
    for (int i = 0; i < count; i++) nets[i].running = &running;
    for (int i = 1; i < count; i++)
        if (pthread_create(&thread[i], NULL, run_turn, &nets[i])) {
            fputs("bench_threads: the system refused a thread\n", stderr);
            exit(1);
        }
    run_turn(&nets[0]);
    for (int i = 1; i < count; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < count; i++) rate += 1 / nets[i].median;
    return rate;
}

/* Have all that ran together taken the same time, within a twentieth, and as long as one alone? */
static bool is_even(const net *nets, int count, double alone) {
    double least = alone, most = alone;
    for (int i = 0; i < count; i++) {
        if (nets[i].median < least) least = nets[i].median;
        if (nets[i].median > most) most = nets[i].median;
    }
    return most < 1.05 * least;
}

typedef struct row {
    double value[ROUNDS_MAX];
    int count;
} row;

static void add(row *r, double value) { r->value[r->count++] = value; }

static void print_row(row *r, const char *format) {
    if (!r->count) {
        printf("- | ");
        return;
    }
    qsort(r->value, (size_t)r->count, sizeof r->value[0], by_value);
    printf(format, quantile(r->value, r->count, 0.5), quantile(r->value, r->count, 0.25),
           quantile(r->value, r->count, 0.75));
}

static void measure(const char *name, const twi_workload *w, int64_t batch, int threads, double seconds, double turn) {
    static row one, many, ratio, even, together;
    one.count = many.count = ratio.count = even.count = together.count = 0;
    net nets[THREADS_MAX + 1] = {{0}};
    const int64_t pixels = batch * twi_workload_pixels(w);
    float *images = need(aligned_alloc(64, ((size_t)(BATCHES * pixels) * sizeof *images + 63) / 64 * 64));
    int32_t *classes = need(malloc((size_t)(BATCHES * batch) * sizeof *classes));
    twi_workload_fill(w, BATCHES * batch, images, classes);
    for (int i = 0; i <= threads; i++) {
        open_net(&nets[i], w, batch, i < threads ? 1 : threads);
        nets[i].images = images;
        nets[i].classes = classes;
        nets[i].seconds = turn;
        run_alone(&nets[i]);
    }
    net *all = &nets[threads];
    for (const double end = now() + seconds; one.count < ROUNDS_MAX && (one.count < ROUNDS_LEAST || now() < end);) {
        run_alone(&nets[0]);
        run_alone(all);
        const double alone = nets[0].median;
        add(&one, 1e6 * alone);
        add(&many, 1e6 * all->median);
        add(&ratio, alone / all->median);
        add(&together, alone * run_together(nets, threads));
        if (is_even(nets, threads, alone)) add(&even, alone / all->median);
    }
    printf("| %s | ", name);
    print_row(&one, "%.1f [%.1f, %.1f] | ");
    print_row(&many, "%.1f [%.1f, %.1f] | ");
    print_row(&ratio, "%.2f [%.2f, %.2f] | ");
    print_row(&together, "%.2f [%.2f, %.2f] | ");
    print_row(&even, "%.2f [%.2f, %.2f] | ");
    printf("%d of %d | %.1f, %.1f |\n", even.count, one.count, 1e6 * nets[0].best, 1e6 * all->best);
    fflush(stdout);
    for (int i = 0; i <= threads; i++) close_net(&nets[i]);
    free(images);
    free(classes);
}

static const char usage[] =
    "usage: bench_threads [--threads N] [--seconds S] [--turn MS] [MODEL:BATCH ...]\n"
    "\n"
    "  --threads N   beside one thread, 2 to 64 (default: 2)\n"
    "  --seconds S   for a workload (default: 10)\n"
    "  --turn MS     for a turn, but at least 3 steps (default: 20)\n"
    "  MODEL:BATCH   mlp, lenet, resnet20, resnet18 or resnet50, and images a step\n"
    "                (default: mlp:64 mlp:256 lenet:64 lenet:256 resnet20:64)\n"
    "\n"
    "Prints a table: the median step of one thread and of N, the ratio of the two in a turn, how many times as much "
    "as\n"
    "one N programs of one thread do beside each other (more than N where the one before had the slowest processor), "
    "and\n"
    "the ratio in even turns, in which all of those took the same time, within a twentieth. Medians over the turns,\n"
    "quartiles in brackets; then the shortest step of one thread and of N.\n";

static void refuse(const char *reason, const char *text) {
    fprintf(stderr, "bench_threads: %s: '%s'\n%s", reason, text, usage);
    exit(2);
}

static double number(const char *text, double least, double most, const char *reason) {
    char *end;
    const double value = strtod(text, &end);
    if (end == text || *end || !(value >= least && value <= most)) refuse(reason, text);
    return value;
}

static int whole(const char *text, int least, int most, const char *reason) {
    const double value = number(text, least, most, reason);
    if (value != (int)value) refuse(reason, text);
    return (int)value;
}

/* MODEL:BATCH */
static void measure_case(const char *name, int threads, double seconds, double turn) {
    char model[32] = "";
    const char *colon = strchr(name, ':');
    if (colon && colon - name < (int)sizeof model) memcpy(model, name, (size_t)(colon - name));
    const twi_workload *w = twi_workload_find(model);
    if (!w) refuse("a workload is not MODEL:BATCH, with MODEL one of " TWI_WORKLOAD_NAMES, name);
    const int batch = whole(colon + 1, 1, 1 << 20, "a batch is not a whole number from 1 to 1048576");
    measure(name, w, batch, threads, seconds, turn);
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"threads", 1, NULL, 't'}, {"seconds", 1, NULL, 's'}, {"turn", 1, NULL, 'u'}, {"help", 0, NULL, 'h'}, {0}};
    static const char *const usual[] = {"mlp:64", "mlp:256", "lenet:64", "lenet:256", "resnet20:64"};
    int threads = 2;
    double seconds = 10, turn = 20;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 't')
            threads = whole(optarg, 2, THREADS_MAX, "--threads is not a whole number from 2 to 64");
        else if (c == 's')
            seconds = number(optarg, 0.001, 86400, "--seconds is not a number from 0.001 to 86400");
        else if (c == 'u')
            turn = number(optarg, 0.001, 10000, "--turn is not a number from 0.001 to 10000");
        else {
            fputs(usage, c == 'h' ? stdout : stderr);
            return c == 'h' ? 0 : 2;
        }
    }
    printf("Steps in us, medians of turns, quartiles in brackets.\n\n"
           "| workload | one thread | %d threads | one to %d | %d programs beside each other | one to %d, even turns | "
           "even turns | shortest |\n|---|---|---|---|---|---|---|---|\n",
           threads, threads, threads, threads);
    for (int i = optind; i < argc; i++) measure_case(argv[i], threads, seconds, turn * 1e-3);
    for (size_t i = 0; optind == argc && i < sizeof usual / sizeof *usual; i++)
        measure_case(usual[i], threads, seconds, turn * 1e-3);
    return 0;
}
