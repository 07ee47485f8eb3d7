/* `talweg bench`: how fast a network trains or answers on this machine, and, asked to explain, where the time goes.
 * What is printed is in bench_report.c. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "bench.h"
#include "cli.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] =
    "usage: talweg bench [OPTIONS]\n"
    "\n"
    "Measures a training step, or with --infer inference, of a network on noise: images a second and times.\n"
    "\n"
    "  --model NAME      mlp, lenet, resnet20, resnet18 (64 x 64 pixels) or resnet50 (224 x 224); default lenet\n"
    "  --batch N         images a run; default 64, with --infer 1\n"
    "  --infer           inference: from writing the images to reading the logits\n"
    "  --threads N       threads to work with; default 0, all processors\n"
    "  --seconds S       how long to measure; default 2\n"
    "  --precision NAME  f32, tf32, bf16, f16 or auto; default f32\n"
    "  --device NAME     cpu, cuda:0, ...; default cpu\n"
    "  --autotune        let the library time the ways to do a step, and take the fastest\n"
    "  --explain         also every step: its time in the quietest part of as long again, its speed, and what this\n"
    "                    machine could do at most, which is measured for about two seconds; on the CPU only\n"
    "  --json            one JSON object instead of text\n"
    "  --help            this text\n"
    "\n"
    "Exit status: 0 if it was measured, 1 if not, 2 if the command line is wrong.\n";

typedef struct bench {
    const twi_bench_settings *set;
    tw_context *context;
    tw_model *model;
    tw_program *program;
    tw_value *input, *labels, *logits;
    float *images, *answer;
    int32_t *classes;
    double *seconds;    /* of the latest runs */
    tw_step_info *step; /* --explain: room for all steps, three times */
} bench;

enum {
    KEPT = 1 << 18, /* runs whose times are looked at */
    PARTS = 32      /* of the time in which steps are timed */
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the program ---- */

static tw_status make_program(bench *b) {
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.learning_rate = 0.001;
    sgd.momentum = 0.9f;
    b->labels = b->set->infer ? NULL : tw_input_labels(b->model, "labels");
    const tw_loss loss = {b->labels ? tw_cross_entropy(b->model, b->logits, b->labels, NULL) : NULL, 1};
    tw_status status = tw_model_build(b->model, b->logits, TW_OPTIONS(model, .seed = 1));
    if (status) return status;
    tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
    options.precision = b->set->precision;
    options.train = !b->set->infer;
    options.losses = &loss;
    options.loss_count = !b->set->infer;
    options.outputs = &b->logits;
    options.output_count = b->set->infer;
    options.optimizer = b->set->infer ? NULL : &sgd;
    return tw_program_create(&b->program, b->model, b->set->batch, &options);
}

static tw_status start(bench *b) {
    const twi_workload *w = b->set->workload;
    tw_status status = tw_context_create(&b->context, b->set->device,
                                         TW_OPTIONS(context, .threads = b->set->threads, .autotune = b->set->autotune));
    if (status == TW_OK) status = tw_model_create(&b->model, b->context);
    if (status) return status;
    b->input = tw_input(b->model, w->channels, w->side, w->side);
    b->logits = w->build(b->model, b->input, w->classes);
    return make_program(b);
}

/* What is fed; false: there is no memory for it. */
static bool make_batch(bench *b) {
    const size_t batch = (size_t)b->set->batch;
    b->images = malloc(batch * (size_t)twi_workload_pixels(b->set->workload) * sizeof *b->images);
    b->classes = malloc(batch * sizeof *b->classes);
    b->answer = malloc(batch * (size_t)tw_value_get_dim(b->logits, 1) * sizeof *b->answer);
    b->seconds = malloc(KEPT * sizeof *b->seconds);
    b->step = calloc(3 * (size_t)tw_program_get_stats(b->program).steps + 1, sizeof *b->step);
    if (!b->images || !b->classes || !b->answer || !b->seconds || !b->step) return false;
    twi_workload_fill(b->set->workload, b->set->batch, b->images, b->classes);
    return true;
}

static void stop(bench *b) {
    tw_program_destroy(b->program);
    tw_model_destroy(b->model);
    tw_context_destroy(b->context);
    free(b->images);
    free(b->classes);
    free(b->answer);
    free(b->seconds);
    free(b->step);
}

/* ---- measuring ---- */

static tw_status run_once(bench *b) {
    const int64_t pixels = b->set->batch * twi_workload_pixels(b->set->workload);
    tw_status status = tw_program_write(b->program, b->input, TW_F32, b->images, pixels);
    if (status == TW_OK && b->labels)
        status = tw_program_write(b->program, b->labels, TW_I32, b->classes, b->set->batch);
    if (status == TW_OK) status = tw_program_run(b->program);
    if (status || b->labels) return status;
    return tw_program_read(b->program, b->logits, b->answer, b->set->batch * tw_value_get_dim(b->logits, 1));
}

static int by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* Of more runs than are kept, the latest count. */
static tw_status measure(bench *b, double seconds, twi_bench_times *out) {
    const double began = now();
    *out = (twi_bench_times){0};
    for (double at = began, before = began; at - began < seconds || out->runs == 0; before = at) {
        tw_status status = run_once(b);
        if (status) return status;
        at = now();
        if (!out->runs) out->first = at - before;
        b->seconds[out->runs++ % KEPT] = at - before;
        out->seconds = at - began;
    }
    const size_t kept = out->runs < KEPT ? (size_t)out->runs : KEPT;
    qsort(b->seconds, kept, sizeof *b->seconds, by_value);
    out->best = b->seconds[0];
    out->median = b->seconds[kept / 2];
    out->p99 = b->seconds[(kept - 1) * 99 / 100];
    return TW_OK;
}

/* All steps, with their times until now. */
static tw_status read_steps(bench *b, tw_step_info *step) {
    tw_status status = TW_OK;
    for (int i = 0; status == TW_OK && i < tw_program_get_stats(b->program).steps; i++) {
        step[i] = (tw_step_info)TW_STEP_INFO_INIT;
        status = tw_program_get_step(b->program, i, &step[i]);
    }
    return status;
}

/* What a run's steps took since `before`, all workers together. */
static double seconds_since(const tw_step_info *before, const tw_step_info *now, int count, int64_t runs) {
    double seconds = 0;
    for (int i = 0; i < count; i++) seconds += now[i].constant ? 0 : now[i].seconds - before[i].seconds;
    return seconds / (double)runs;
}

static void keep_since(tw_step_info *kept, const tw_step_info *before, const tw_step_info *now, int count) {
    for (int i = 0; i < count; i++) {
        kept[i] = now[i];
        kept[i].seconds -= before[i].seconds;
        kept[i].calls -= before[i].calls;
    }
}

/* Whatever else the machine does slows steps down, and the ceilings are the best of some tries: so of many parts of the
 * time the one is told in which steps took least. */
static tw_status explain(bench *b, twi_bench_result *result) {
    const int count = tw_program_get_stats(b->program).steps;
    tw_step_info *before = b->step, *after = before + count, *kept = after + count;
    double least = 0, passed = 0;
    result->all = (tw_ceilings)TW_CEILINGS_INIT;
    result->step = kept;
    tw_status status = tw_program_set_timing(b->program, true);
    if (status == TW_OK) status = read_steps(b, before);
    for (int part = 0; status == TW_OK && part < PARTS && passed < b->set->seconds; part++) {
        twi_bench_times times;
        status = measure(b, b->set->seconds / PARTS, &times);
        if (status == TW_OK) status = read_steps(b, after);
        if (status) break;
        const double spent = seconds_since(before, after, count, times.runs);
        passed += times.seconds;
        if (part == 0 || spent < least) {
            least = spent;
            result->timed = times;
            keep_since(kept, before, after, count);
        }
        tw_step_info *last = before;
        before = after;
        after = last;
    }
    return status ? status : tw_context_measure(b->context, 0, &result->all);
}

static tw_status measure_all(bench *b, double began, twi_bench_result *result) {
    twi_bench_times warming;
    result->ready = now() - began;
    result->device = (tw_device_info)TW_DEVICE_INFO_INIT;
    tw_status status = tw_context_get_device_info(b->context, &result->device);
    if (status == TW_OK) status = measure(b, b->set->seconds / 4, &warming);
    if (status == TW_OK) status = measure(b, b->set->seconds, &result->plain);
    if (status == TW_OK && b->set->explain) status = explain(b, result);
    result->plain.first = warming.first;
    result->stats = tw_program_get_stats(b->program);
    result->weights = tw_model_count_weights(b->model);
    return status;
}

static int bench_now(const twi_bench_settings *settings) {
    const double began = now();
    bench b = {.set = settings};
    twi_bench_result result = {0};
    bool memory = false;
    tw_status status = start(&b);
    if (status == TW_OK) {
        memory = make_batch(&b);
        if (memory) status = measure_all(&b, began, &result);
    }
    if (status == TW_OK && memory)
        memory = (settings->json ? twi_bench_report_json : twi_bench_report)(settings, &result);
    if (status || !memory)
        fprintf(stderr, "talweg bench: %s\n", status ? tw_last_error() : "the system refused memory");
    stop(&b);
    return status || !memory ? TWI_CLI_FAILED : TWI_CLI_DONE;
}

/* ---- the command line ---- */

static bool read_seconds(const char *text, double *out) {
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && *out >= 0.001 && *out <= 86400;
}

/* One option; what is wrong with it, or NULL. */
static const char *take(int option, const char *value, twi_bench_settings *set) {
    int64_t number = 0;
    switch (option) {
    case 'm':
        set->workload = twi_workload_find(value);
        return set->workload ? NULL : "--model is none of " TWI_WORKLOAD_NAMES;
    case 'b':
        if (!twi_cli_read_whole(value, 1, 1 << 20, &number)) return "--batch is not a whole number from 1 to 1048576";
        set->batch = (int)number;
        return NULL;
    case 't':
        if (!twi_cli_read_whole(value, 0, 1024, &number)) return "--threads is not a whole number from 0 to 1024";
        set->threads = (int)number;
        return NULL;
    case 's':
        return read_seconds(value, &set->seconds) ? NULL : "--seconds is not a number from 0.001 to 86400";
    case 'p':
        return twi_cli_read_precision(value, &set->precision) ? NULL
                                                              : "--precision is none of f32, tf32, bf16, f16 and auto";
    case 'd':
        set->device = value;
        return strncmp(value, "plan:", 5)
                   ? NULL
                   : "--device wants one that is here, such as cpu or cuda:0, since a card that is "
                     "only planned for cannot be measured (talweg plan has its times)";
    case 'i':
        set->infer = true;
        return NULL;
    case 'a':
        set->autotune = true;
        return NULL;
    case 'e':
        set->explain = true;
        return NULL;
    default:
        set->json = true;
        return NULL;
    }
}

static int run(int argc, char **argv) {
    static const struct option options[] = {
        {"model", 1, NULL, 'm'},   {"batch", 1, NULL, 'b'},     {"threads", 1, NULL, 't'}, {"seconds", 1, NULL, 's'},
        {"device", 1, NULL, 'd'},  {"precision", 1, NULL, 'p'}, {"infer", 0, NULL, 'i'},   {"autotune", 0, NULL, 'a'},
        {"explain", 0, NULL, 'e'}, {"json", 0, NULL, 'j'},      {"help", 0, NULL, 'h'},    {NULL, 0, NULL, 0}};
    twi_bench_settings set = {.device = "cpu", .workload = twi_workload_find("lenet"), .seconds = 2};
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (option == 'h') {
            fputs(usage, stdout);
            return TWI_CLI_DONE;
        }
        if (option == '?') return twi_cli_refuse(&twi_cli_bench, NULL, NULL);
        const char *problem = take(option, optarg, &set);
        if (problem) return twi_cli_refuse(&twi_cli_bench, problem, optarg);
    }
    if (optind < argc) return twi_cli_refuse(&twi_cli_bench, "unexpected argument", argv[optind]);
    if (!set.batch) set.batch = set.infer ? 1 : 64;
    return bench_now(&set);
}

const twi_cli_command twi_cli_bench = {
    .name = "bench",
    .summary = "how fast a network trains or answers here, and where the time goes",
    .usage = usage,
    .run = run,
};
