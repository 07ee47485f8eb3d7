/* How much faster training is on several threads than on one. Programs of one thread and of several take turns in one
 * process, a few hundredths of a second each, so that what a machine's clock and its other users do meets both alike.
 * One thread has a turn on each of the processors, half of them before the turn of several threads and half behind it:
 * a host that has more to do gives its processors different speeds for seconds, and what several threads make is
 * measured by what one makes on their average. Several threads go where the system has them. Before that or behind it
 * as many programs of one thread run beside each other, one on each processor, which shows what the machine itself
 * gives when all of them work. Threads that meet several times a step wait for the slowest: so rounds in which all
 * were equally fast are told apart. */
#define _GNU_SOURCE
#include "cli/workload.h"
#include "meter.h"
#include <talweg/talweg.h>

#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 64, ROUNDS_MAX = 10000, STEPS_MAX = 100000, STEPS_LEAST = 3, ROUNDS_LEAST = 3, BATCHES = 8 };

/* What the threads run on, and all of it. */
typedef struct processors {
    cpu_set_t one[THREADS_MAX], all;
} processors;

typedef struct net {
    tw_context *context;
    tw_model *model;
    tw_program *program;
    tw_value *input, *labels;
    const float *images; /* BATCHES, ready in memory, read where they lie */
    const int32_t *classes;
    int64_t pixels, batch; /* pixels of a batch */
    int64_t steps;
    double seconds;             /* of a turn, at least */
    double median, best;        /* a step of the turn that was run last; of all */
    const cpu_set_t *processor; /* the caller's in a turn */
    atomic_int *running;        /* of those that run together: that have not had their turn yet */
    double *time;
} net;

/* The calling thread, and threads that it makes from now on. */
static void keep_to(const cpu_set_t *processors) {
    if (sched_setaffinity(0, sizeof *processors, processors) == 0) return;
    fprintf(stderr, "%s: the system does not let a thread keep to a processor\n", meter_program);
    exit(1);
}

/* The first `threads` that this process may use; it keeps to them, and so do threads made from now on. */
static void choose_processors(processors *out, int threads) {
    cpu_set_t may;
    int found = 0;
    CPU_ZERO(&out->all);
    if (sched_getaffinity(0, sizeof may, &may)) CPU_ZERO(&may);
    for (int cpu = 0; cpu < CPU_SETSIZE && found < threads; cpu++) {
        if (!CPU_ISSET(cpu, &may)) continue;
        CPU_ZERO(&out->one[found]);
        CPU_SET(cpu, &out->one[found++]);
        CPU_SET(cpu, &out->all);
    }
    if (found < threads) {
        fprintf(stderr, "%s: processors that it may use: %d, and --threads is %d\n", meter_program, found, threads);
        exit(1);
    }
    keep_to(&out->all);
}

static void open_net(net *n, const twi_workload *w, int64_t batch, int threads) {
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.momentum = 0.9f;
    sgd.learning_rate = 0.001;
    meter_check(tw_context_create(&n->context, "cpu", TW_OPTIONS(context, .threads = threads)), "context");
    meter_check(tw_model_create(&n->model, n->context), "model");
    n->input = tw_input(n->model, w->channels, w->side, w->side);
    tw_value *logits = w->build(n->model, n->input, w->classes);
    n->labels = tw_input_labels(n->model, "labels");
    const tw_loss loss = {tw_cross_entropy(n->model, logits, n->labels, NULL), 1};
    meter_check(tw_model_build(n->model, logits, NULL), "build");
    meter_check(
        tw_program_create(&n->program, n->model, batch,
                          TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1, .optimizer = &sgd)),
        "program");
    n->batch = batch;
    n->pixels = batch * twi_workload_pixels(w);
    n->best = 1e30;
    n->time = meter_need(calloc(STEPS_MAX, sizeof *n->time));
}

static void close_net(net *n) {
    tw_program_destroy(n->program);
    tw_model_destroy(n->model);
    tw_context_destroy(n->context);
    free(n->time);
}

static void step(net *n) {
    const int64_t b = n->steps++ % BATCHES;
    meter_check(tw_program_lend(n->program, n->input, TW_F32, n->images + b * n->pixels, n->pixels), "lend");
    meter_check(tw_program_write(n->program, n->labels, TW_I32, n->classes + b * n->batch, n->batch), "write");
    meter_check(tw_program_run(n->program), "run");
}

/* A turn, after a step that is not timed; beside others, until all have had theirs. */
static void *run_turn(void *argument) {
    net *n = argument;
    int steps = 0;
    bool had = false;
    keep_to(n->processor);
    step(n);
    for (double begin = meter_now(CLOCK_MONOTONIC), at = begin; steps < STEPS_MAX && !(had && !atomic_load(n->running));
         steps++) {
        step(n);
        const double before = at;
        at = meter_now(CLOCK_MONOTONIC);
        n->time[steps] = at - before;
        if (had || steps + 1 < STEPS_LEAST || at - begin < n->seconds) continue;
        had = true;
        atomic_fetch_sub(n->running, 1);
    }
    n->median = meter_median(n->time, steps);
    if (n->time[0] < n->best) n->best = n->time[0];
    return NULL;
}

/* Seconds of a step. */
static double run_alone(net *n, const cpu_set_t *processor) {
    atomic_int running = 1;
    n->running = &running;
    n->processor = processor;
    run_turn(n);
    return n->median;
}

typedef struct span {
    double least, most;
} span;

static void widen(span *s, double value) {
    if (value < s->least) s->least = value;
    if (value > s->most) s->most = value;
}

/* Steps a second of all, each on a processor of its own; their times widen the span. */
static double run_together(net *nets, int count, const processors *where, span *times) {
    pthread_t thread[THREADS_MAX];
    atomic_int running = count;
    double rate = 0;
    for (int i = 0; i < count; i++) {
        nets[i].running = &running;
        nets[i].processor = &where->one[i];
    }
    for (int i = 1; i < count; i++)
        if (pthread_create(&thread[i], NULL, run_turn, &nets[i])) {
            fprintf(stderr, "%s: the system refused a thread\n", meter_program);
            exit(1);
        }
    run_turn(&nets[0]);
    for (int i = 1; i < count; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < count; i++) {
        widen(times, nets[i].median);
        rate += 1 / nets[i].median;
    }
    return rate;
}

typedef struct row {
    double value[ROUNDS_MAX];
    int count;
} row;

static void add(row *r, double value) { r->value[r->count++] = value; }

static void print_row(row *r, const char *format) {
    const double median = r->count ? meter_median(r->value, r->count) : 0;
    if (r->count)
        printf(format, median, meter_quantile(r->value, r->count, 0.25), meter_quantile(r->value, r->count, 0.75));
    else
        printf("- | ");
}

/* What a round gave. */
typedef struct round {
    double one, many, together; /* steps a second: of one thread on the average, of several, of programs together */
    bool even; /* all turns of one thread, alone and beside others, took the same time, within a twentieth */
} round;

/* Programs of one thread come before or behind by turns, and so does the odd turn of one thread. */
static round run_round(net *nets, int threads, const processors *where, bool odd) {
    round r = {0};
    span times = {1e30, 0};
    if (odd) r.together = run_together(nets, threads, where, &times);
    for (int i = 0; i < threads; i++) {
        if (i == (threads + odd) / 2) r.many = 1 / run_alone(&nets[threads], &where->all);
        const double time = run_alone(&nets[0], &where->one[i]);
        widen(&times, time);
        r.one += 1 / time / threads;
    }
    if (!odd) r.together = run_together(nets, threads, where, &times);
    r.even = times.most < 1.05 * times.least;
    return r;
}

static void measure(const char *name, const twi_workload *w, int64_t batch, int threads, double seconds, double turn,
                    const processors *where) {
    static row one, many, ratio, together, share, even;
    one.count = many.count = ratio.count = together.count = share.count = even.count = 0;
    net nets[THREADS_MAX + 1] = {{0}};
    const int64_t pixels = batch * twi_workload_pixels(w);
    float *images = meter_need(aligned_alloc(64, ((size_t)(BATCHES * pixels) * sizeof *images + 63) / 64 * 64));
    int32_t *classes = meter_need(malloc((size_t)(BATCHES * batch) * sizeof *classes));
    twi_workload_fill(w, BATCHES * batch, images, classes);
    keep_to(&where->all);
    for (int i = 0; i <= threads; i++) {
        open_net(&nets[i], w, batch, i < threads ? 1 : threads);
        nets[i].images = images;
        nets[i].classes = classes;
        nets[i].seconds = turn;
        run_alone(&nets[i], &where->all);
    }
    const double end = meter_now(CLOCK_MONOTONIC) + seconds;
    while (one.count < ROUNDS_MAX && (one.count < ROUNDS_LEAST || meter_now(CLOCK_MONOTONIC) < end)) {
        const round r = run_round(nets, threads, where, one.count % 2);
        add(&one, 1e6 / r.one);
        add(&many, 1e6 / r.many);
        add(&ratio, r.many / r.one);
        add(&together, r.together / r.one);
        add(&share, 100 * r.many / r.together);
        if (r.even) add(&even, r.many / r.one);
    }
    printf("| %s | ", name);
    print_row(&one, "%.1f [%.1f, %.1f] | ");
    print_row(&many, "%.1f [%.1f, %.1f] | ");
    print_row(&ratio, "%.2f [%.2f, %.2f] | ");
    print_row(&together, "%.2f [%.2f, %.2f] | ");
    print_row(&share, "%.0f [%.0f, %.0f] | ");
    print_row(&even, "%.2f [%.2f, %.2f] | ");
    printf("%d of %d | %.1f, %.1f |\n", even.count, one.count, 1e6 * nets[0].best, 1e6 * nets[threads].best);
    fflush(stdout);
    for (int i = 0; i <= threads; i++) close_net(&nets[i]);
    free(images);
    free(classes);
}

const char
    meter_program[] = "bench_threads",
    meter_usage[] =
        "usage: bench_threads [--threads N] [--seconds S] [--turn MS] [MODEL:BATCH ...]\n"
        "\n"
        "  --threads N   beside one thread, 2 to 64, on as many processors (default: 2)\n"
        "  --seconds S   for a workload (default: 10)\n"
        "  --turn MS     for a turn, but at least 3 steps (default: 20)\n"
        "  MODEL:BATCH   mlp, lenet, resnet20, resnet18 or resnet50, and images a step\n"
        "                (default: mlp:64 mlp:256 lenet:64 lenet:256 resnet20:64)\n"
        "\n"
        "Prints a table: the step of one thread, on the average of the processors, and of N; how many times as much as "
        "one\n"
        "thread N made, and N programs of one thread beside each other; the first in percent of the second; and how "
        "many\n"
        "times as much N threads made in even rounds, in which all turns of one thread, alone and beside each other, "
        "took\n"
        "the same time, within a twentieth: none on processors that are not alike or share a core, or where memory is "
        "the\n"
        "limit. Medians over the rounds, quartiles in brackets; then the shortest step of one thread and of N. The\n"
        "processors are the first N that the process may use; others are chosen with taskset.\n";

/* MODEL:BATCH */
static void measure_case(const char *name, int threads, double seconds, double turn, const processors *where) {
    char model[32] = "";
    const char *colon = strchr(name, ':');
    if (colon && colon - name < (int)sizeof model) memcpy(model, name, (size_t)(colon - name));
    const twi_workload *w = twi_workload_find(model);
    if (!w) meter_refuse("a workload is not MODEL:BATCH, with MODEL one of " TWI_WORKLOAD_NAMES, name);
    const int batch = meter_whole(colon + 1, 1, 1 << 20, "a batch is not a whole number from 1 to 1048576");
    measure(name, w, batch, threads, seconds, turn, where);
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"threads", 1, NULL, 't'}, {"seconds", 1, NULL, 's'}, {"turn", 1, NULL, 'u'}, {"help", 0, NULL, 'h'}, {0}};
    static const char *const usual[] = {"mlp:64", "mlp:256", "lenet:64", "lenet:256", "resnet20:64"};
    static processors where;
    int threads = 2;
    double seconds = 10, turn = 20;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 't')
            threads = meter_whole(optarg, 2, THREADS_MAX, "--threads is not a whole number from 2 to 64");
        else if (c == 's')
            seconds = meter_number(optarg, 0.001, 86400, "--seconds is not a number from 0.001 to 86400");
        else if (c == 'u')
            turn = meter_number(optarg, 0.001, 10000, "--turn is not a number from 0.001 to 10000");
        else {
            fputs(meter_usage, c == 'h' ? stdout : stderr);
            return c == 'h' ? 0 : 2;
        }
    }
    choose_processors(&where, threads);
    printf(
        "Steps in us, medians of rounds, quartiles in brackets.\n\n"
        "| workload | one thread | %d threads | one to %d | %d programs of one | of those, %% | one to %d, even rounds "
        "| even rounds | shortest |\n|---|---|---|---|---|---|---|---|---|\n",
        threads, threads, threads, threads);
    for (int i = optind; i < argc; i++) measure_case(argv[i], threads, seconds, turn * 1e-3, &where);
    for (size_t i = 0; optind == argc && i < sizeof usual / sizeof *usual; i++)
        measure_case(usual[i], threads, seconds, turn * 1e-3, &where);
    return 0;
}
