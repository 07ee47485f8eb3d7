/* Training and inference speed on any device: one workload a process, one line of JSON. Workloads, options and keys are
 * those of common framework benchmarks, so that other programs can be measured beside it. Runs are launched and landed as
 * the trainer does it: on a device that works beside the host, several are under way. */
#define _GNU_SOURCE
#include "cli/workload.h"
#include "meter.h"
#include "program/program.h"
#include <talweg/talweg.h>

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { WINDOWS_MAX = 100 };

typedef struct settings {
    const char *device, *model, *mode, *optimizer, *data;
    int batch, threads, windows;
    double seconds, warmup, rate;
    uint64_t seed;
    bool explain, autotune, unguarded;
    tw_precision precision;
} settings;

typedef struct bench {
    settings set;
    tw_context *context;
    tw_model *model;
    tw_program *program;
    tw_value *input, *labels, *logits;
    float *images; /* batches of the pool, one after the other */
    int32_t *classes;
    int64_t pixels; /* of a batch */
    int pool;       /* batches */
    bool lends;     /* --data lent */
    uint8_t *bytes; /* the samples of a data set, with their classes and an order */
    int32_t *order;
    int64_t samples;
    tw_dataset *dataset; /* --data u8 */
    tw_loader *loader;
    tw_resident *resident; /* --data gather */
    int64_t epoch;
    double launched_s; /* what the last step took until its run was launched */
} bench;

/* Batches lie ready, as in a benchmark of the step alone; throughput does not depend on the content. They are aligned to
 * cache lines, as PyTorch's tensors are: others could not be lent. */
static void make_batches(bench *b, const twi_workload *w) {
    b->pool = b->pixels > 1000000 ? 2 : 8;
    const size_t bytes = (size_t)b->pool * (size_t)b->pixels * sizeof *b->images;
    b->images = meter_need(aligned_alloc(64, (bytes + 63) / 64 * 64));
    b->classes = meter_need(malloc((size_t)b->pool * (size_t)b->set.batch * sizeof *b->classes));
    twi_workload_fill(w, (int64_t)b->pool * b->set.batch, b->images, b->classes);
}

static uint32_t random_word(void) {
    static uint32_t word = 12345;
    return twi_workload_draw(&word);
}

/* Random u8 images. */
static void make_samples(bench *b, int64_t pixels) {
    b->samples = pixels < 50000 ? 4096 : 512;
    if (b->samples < b->set.batch) b->samples = b->set.batch;
    b->bytes = meter_need(malloc((size_t)(b->samples * pixels)));
    b->classes = meter_need(malloc((size_t)b->samples * sizeof *b->classes));
    b->order = meter_need(malloc((size_t)b->samples * sizeof *b->order));
    for (int64_t i = 0; i < b->samples * pixels; i++) b->bytes[i] = (uint8_t)(random_word() >> 24);
    for (int64_t i = 0; i < b->samples; i++) b->classes[i] = (int32_t)(i % 10);
    for (int64_t i = 0; i < b->samples; i++) b->order[i] = (int32_t)i;
}

static tw_normalization halves(const twi_workload *w) {
    tw_normalization normalization = {.channels = w->channels};
    for (int c = 0; c < w->channels; c++) normalization.mean[c] = 0.5f;
    return normalization;
}

/* Gathered, shuffled and normalised by a loader. */
static void make_loader(bench *b, const twi_workload *w) {
    meter_check(tw_dataset_create_from(&b->dataset, b->context, TW_U8, b->bytes, b->samples, w->channels, w->side,
                                       w->side, b->classes, NULL),
                "data set");
    meter_check(
        tw_loader_create(&b->loader, b->dataset,
                         TW_OPTIONS(loader, .batch = b->set.batch, .drop_last = true, .normalization = halves(w))),
        "loader");
    meter_check(tw_loader_start(b->loader, 0, 0), "loader");
}

static void start_epoch(bench *b) {
    for (int64_t i = b->samples - 1; i > 0; i--) {
        int64_t other = random_word() % (i + 1);
        int32_t index = b->order[i];
        b->order[i] = b->order[other];
        b->order[other] = index;
    }
    meter_check(tw_resident_set_order(b->resident, b->epoch++, b->order, b->samples), "order");
}

static void start(bench *b) {
    const twi_workload *w = twi_workload_find(b->set.model);
    bool train = strcmp(b->set.mode, "train") == 0;
    tw_optimizer_options optimizer = TW_OPTIMIZER_OPTIONS_INIT;
    optimizer.kind = strcmp(b->set.optimizer, "adamw") == 0 ? TW_ADAMW : TW_SGD;
    optimizer.momentum = optimizer.kind == TW_SGD ? 0.9f : 0;
    optimizer.learning_rate = b->set.rate;
    meter_check(tw_context_create(&b->context, b->set.device,
                                  TW_OPTIONS(context, .threads = b->set.threads, .autotune = b->set.autotune)),
                "context");
    meter_check(tw_model_create(&b->model, b->context), "model");
    b->input = tw_input(b->model, w->channels, w->side, w->side);
    b->logits = w->build(b->model, b->input, w->classes);
    b->labels = tw_input_labels(b->model, "labels");
    tw_loss loss = {tw_cross_entropy(b->model, b->logits, b->labels, NULL), 1};
    meter_check(tw_model_build(b->model, b->logits, TW_OPTIONS(model, .seed = b->set.seed)), "build");
    tw_program_options options = TW_PROGRAM_OPTIONS_INIT;
    options.train = train;
    options.precision = b->set.precision;
    options.on_non_finite = b->set.unguarded ? TW_NON_FINITE_IGNORE : TW_NON_FINITE_STOP;
    options.losses = &loss;
    options.loss_count = train;
    options.outputs = &b->logits;
    options.output_count = !train;
    options.optimizer = train ? &optimizer : NULL;
    b->lends = strcmp(b->set.data, "lent") == 0;
    const bool ready = b->lends || strcmp(b->set.data, "memory") == 0, gathered = strcmp(b->set.data, "gather") == 0;
    if (!ready) make_samples(b, twi_workload_pixels(w));
    if (gathered)
        meter_check(tw_resident_create(&b->resident, b->context, TW_U8, b->bytes, b->samples, w->channels, w->side,
                                       w->side, b->classes),
                    "resident set");
    options.source = gathered ? TW_OPTIONS(source, .resident = b->resident, .images = b->input,
                                           .labels = train ? b->labels : NULL, .normalization = halves(w))
                              : NULL;
    meter_check(tw_program_create(&b->program, b->model, b->set.batch, &options), "program");
    b->pixels = b->set.batch * twi_workload_pixels(w);
    if (ready) make_batches(b, w);
    if (gathered) start_epoch(b);
    if (!ready && !gathered) make_loader(b, w);
    if (b->set.explain) printf("%s", tw_program_dump(b->program, TW_PASS_MEMORY));
}

static void feed(bench *b, int64_t i) {
    const float *images = b->loader ? NULL : b->images + i % b->pool * b->pixels;
    const int32_t *classes = b->loader ? NULL : b->classes + i % b->pool * b->set.batch;
    if (b->loader) {
        tw_batch batch;
        meter_check(tw_loader_next(b->loader, &batch), "next batch");
        if (batch.count == 0) {
            meter_check(tw_loader_start(b->loader, ++b->epoch, 0), "epoch");
            meter_check(tw_loader_next(b->loader, &batch), "next batch");
        }
        images = batch.images;
        classes = batch.labels;
    }
    meter_check((b->lends ? tw_program_lend : tw_program_write)(b->program, b->input, TW_F32, images, b->pixels),
                "feed");
    if (strcmp(b->set.mode, "train") == 0)
        meter_check(tw_program_write(b->program, b->labels, TW_I32, classes, b->set.batch), "write");
}

/* Waits for the oldest runs until so many are under way. */
static double land(bench *b, int left) {
    twi_landed landed = {0};
    while (b->model->flights.count > left) meter_check(twi_program_land(b->model, &landed), "run");
    return landed.loss;
}

static double step(bench *b, int64_t i) {
    double begin = meter_now(CLOCK_MONOTONIC);
    if (!b->resident)
        feed(b, i);
    else if (b->samples - tw_resident_get_position(b->resident) < b->set.batch)
        start_epoch(b);
    meter_check(twi_program_launch(b->program), "run");
    b->launched_s = meter_now(CLOCK_MONOTONIC) - begin;
    return land(b, b->context->backend->in_flight - 1);
}

/* Seconds since the process was started. */
static double process_age(void) {
    char line[2048];
    unsigned long long ticks = 0;
    double up = 0;
    FILE *stat = fopen("/proc/self/stat", "r"), *uptime = fopen("/proc/uptime", "r");
    if (stat && uptime && fgets(line, sizeof line, stat) && fscanf(uptime, "%lf", &up) == 1) {
        char *field = strrchr(line, ')');
        for (int i = 0; field && i < 20; i++) field = strchr(field + 1, ' ');
        if (field) ticks = strtoull(field, NULL, 10);
    }
    if (stat) fclose(stat);
    if (uptime) fclose(uptime);
    return up - (double)ticks / 100.0;
}

static void measure(bench *b) {
    enum { LATENCIES = 1 << 20 };
    static double rates[WINDOWS_MAX], cpu_rates[WINDOWS_MAX], latencies[LATENCIES], launches[LATENCIES];
    bool train = strcmp(b->set.mode, "train") == 0;
    int64_t steps = 0, timed = 0;
    int windows = b->set.windows, done = 0;
    const double ready = process_age();
    double first_loss = step(b, steps++);
    if (b->model->flights.count) first_loss = land(b, 0);
    double first_step = process_age();
    for (double end = meter_now(CLOCK_MONOTONIC) + b->set.warmup; meter_now(CLOCK_MONOTONIC) < end;) step(b, steps++);
    double all = meter_now(CLOCK_MONOTONIC);
    for (; done < windows; done++) {
        if (done >= 2 && meter_now(CLOCK_MONOTONIC) - all > 1.3 * b->set.seconds) break;
        double begin = meter_now(CLOCK_MONOTONIC), cpu = meter_now(CLOCK_PROCESS_CPUTIME_ID), at = begin;
        int64_t count = 0;
        while (at - begin < b->set.seconds / windows) {
            step(b, steps++);
            double before = at;
            at = meter_now(CLOCK_MONOTONIC);
            launches[timed % LATENCIES] = b->launched_s;
            latencies[timed++ % LATENCIES] = at - before;
            count++;
        }
        rates[done] = (double)(count * b->set.batch) / (at - begin);
        cpu_rates[done] = (double)(count * b->set.batch) / (meter_now(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    }
    land(b, 0);
    int kept = timed < LATENCIES ? (int)timed : LATENCIES;
    double rate = meter_median(rates, done), p50 = meter_median(latencies, kept),
           cpu_rate = meter_median(cpu_rates, done);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    tw_program_stats stats = tw_program_get_stats(b->program);
    tw_device_info device = TW_DEVICE_INFO_INIT;
    meter_check(tw_context_get_device_info(b->context, &device), "device");
    printf(
        "{\"peer\": \"talweg-%s\", \"device\": \"%s\", \"device_name\": \"%s\", \"model\": \"%s\", \"mode\": \"%s\", "
        "\"batch\": %d, \"threads\": %d, \"opt\": \"%s\", \"data\": \"%s\", \"rate\": %.1f, \"rate_best\": %.1f, "
        "\"rate_per_cpu_s\": %.1f, \"unit\": \"images/s\", \"ms_per_step\": %.4f, \"lat_us_p50\": %.1f, "
        "\"lat_us_p99\": %.1f, \"lat_us_best\": %.1f, \"host_us\": %.1f, \"params\": %lld, \"ready_s\": %.2f, "
        "\"first_step_s\": %.2f, "
        "\"peak_rss_mb\": %.1f, "
        "\"device_mb\": %.1f, \"gflops\": %.1f, \"gflop_per_step\": %.4f, \"mb_per_step\": %.3f, \"arena_mb\": %.1f, "
        "\"loss_first\": %.6f, \"loss_last\": %.6f}\n",
        tw_version(), tw_context_get_device(b->context), device.name, b->set.model, b->set.mode, b->set.batch,
        tw_context_get_threads(b->context), train ? b->set.optimizer : "none", b->set.data, rate, rates[done - 1],
        cpu_rate, 1e3 * b->set.batch / rate, 1e6 * p50, 1e6 * latencies[(int)(0.99 * kept)], 1e6 * latencies[0],
        1e6 * meter_median(launches, kept), (long long)tw_model_count_weights(b->model), ready, first_step,
        (double)usage.ru_maxrss / 1024, (double)tw_context_get_device_memory(b->context).peak / 1e6,
        stats.flops / b->set.batch * rate / 1e9, stats.flops / 1e9, stats.bytes / 1e6, (double)stats.arena_bytes / 1e6,
        first_loss, train ? tw_program_get_loss(b->program) : 0.0);
}

const char
    meter_program[] = "bench_train",
    meter_usage[] =
        "usage: bench_train [options]\n"
        "\n"
        "  --device NAME     cpu, cuda:0, ... (default: cpu)\n"
        "  --model NAME      mlp, lenet, resnet20, resnet18 or resnet50 (default: lenet)\n"
        "  --mode MODE       train or infer (default: train)\n"
        "  --batch N         images a step (default: 64)\n"
        "  --threads N       threads to work with, 0 for all processors (default: 1)\n"
        "  --seconds S       how long to measure (default: 5)\n"
        "  --warmup S        how long to run before (default: 1)\n"
        "  --windows N       parts of that time, 1 to 100 (default: 10)\n"
        "  --opt OPTIMIZER   sgd (momentum 0.9) or adamw (default: sgd)\n"
        "  --lr RATE         the learning rate (default: 0.01)\n"
        "  --precision NAME  f32, tf32, bf16, f16 or auto (default: f32)\n"
        "  --seed N          of the initial weights (default: 1)\n"
        "  --data KIND       lent: ready batches in host memory, read there where the program can, as PyTorch reads "
        "tensors;\n"
        "                    memory: the same, but always copied; u8: random bytes, gathered and normalised by a "
        "loader;\n"
        "                    gather: the same bytes in the device's memory, gathered by the program (default: lent)\n"
        "  --unguarded       nobody looks at gradients, so that they may go into weights as they are made\n"
        "  --autotune        time the ways to do a step, and take the fastest\n"
        "  --explain         print the planned steps first\n"
        "  --help            this text\n"
        "\n"
        "Prints one line of JSON: rate (median over the windows, images a second), rate_best, rate_per_cpu_s,\n"
        "ms_per_step, latencies, host_us (until a step's run is launched; on the CPU that is all of it), ready_s and\n"
        "first_step_s (from the start of the process until the first step begins and ends, in hundredths),\n"
        "peak_rss_mb, device_mb (most memory of the device ever held), gflop_per_step, mb_per_step (what the planned\n"
        "steps read and write).\n";

static const char *choice(const char *text, const char *const *choices, const char *reason) {
    for (; *choices; choices++)
        if (strcmp(text, *choices) == 0) return text;
    meter_refuse(reason, text);
}

static tw_precision precision(const char *text) {
    for (int p = TW_PRECISION_F32; p <= TW_PRECISION_AUTO; p++)
        if (strcmp(text, tw_precision_name((tw_precision)p)) == 0) return (tw_precision)p;
    meter_refuse("--precision is none of f32, tf32, bf16, f16 and auto", text);
}

static settings parse(int argc, char **argv) {
    static const struct option options[] = {
        {"device", 1, NULL, 'v'},    {"model", 1, NULL, 'm'},    {"mode", 1, NULL, 'o'},      {"batch", 1, NULL, 'b'},
        {"threads", 1, NULL, 't'},   {"seconds", 1, NULL, 's'},  {"warmup", 1, NULL, 'w'},    {"windows", 1, NULL, 'n'},
        {"opt", 1, NULL, 'p'},       {"seed", 1, NULL, 'r'},     {"lr", 1, NULL, 'l'},        {"data", 1, NULL, 'd'},
        {"explain", 0, NULL, 'e'},   {"autotune", 0, NULL, 'a'}, {"unguarded", 0, NULL, 'u'}, {"help", 0, NULL, 'h'},
        {"precision", 1, NULL, 'c'}, {NULL, 0, NULL, 0}};
    static const char *const modes[] = {"train", "infer", NULL}, *const optimizers[] = {"sgd", "adamw", NULL},
                             *const kinds[] = {"lent", "memory", "u8", "gather", NULL};
    settings set = {"cpu", "lenet", "train", "sgd", "lent", 64,    1,     10,
                    5,     1,       0.01,    1,     false,  false, false, TW_PRECISION_F32};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'v')
            set.device = optarg;
        else if (c == 'm')
            set.model = optarg;
        else if (c == 'o')
            set.mode = choice(optarg, modes, "--mode is neither train nor infer");
        else if (c == 'b')
            set.batch = meter_whole(optarg, 1, 1 << 20, "--batch is not a whole number from 1 to 1048576");
        else if (c == 't')
            set.threads = meter_whole(optarg, 0, 1024, "--threads is not a whole number from 0 to 1024");
        else if (c == 's')
            set.seconds = meter_number(optarg, 0.001, 86400, "--seconds is not a number from 0.001 to 86400");
        else if (c == 'w')
            set.warmup = meter_number(optarg, 0, 86400, "--warmup is not a number from 0 to 86400");
        else if (c == 'n')
            set.windows = meter_whole(optarg, 1, WINDOWS_MAX, "--windows is not a whole number from 1 to 100");
        else if (c == 'p')
            set.optimizer = choice(optarg, optimizers, "--opt is neither sgd nor adamw");
        else if (c == 'c')
            set.precision = precision(optarg);
        else if (c == 'd')
            set.data = choice(optarg, kinds, "--data is none of lent, memory, u8 and gather");
        else if (c == 'l')
            set.rate = meter_number(optarg, 1e-30, 1e30, "--lr is not a number above 0");
        else if (c == 'r')
            set.seed = (uint64_t)meter_whole(optarg, 0, INT32_MAX, "--seed is not a whole number from 0 to 2147483647");
        else if (c == 'a')
            set.autotune = true;
        else if (c == 'u')
            set.unguarded = true;
        else if (c == 'e')
            set.explain = true;
        else {
            fputs(meter_usage, c == 'h' ? stdout : stderr);
            exit(c == 'h' ? 0 : 2);
        }
    }
    if (optind < argc) meter_refuse("unexpected argument", argv[optind]);
    if (!twi_workload_find(set.model)) meter_refuse("--model is none of the workloads", set.model);
    return set;
}

int main(int argc, char **argv) {
    bench b = {.set = parse(argc, argv)};
    start(&b);
    measure(&b);
    tw_loader_destroy(b.loader);
    tw_dataset_destroy(b.dataset);
    tw_program_destroy(b.program);
    tw_resident_destroy(b.resident);
    tw_model_destroy(b.model);
    tw_context_destroy(b.context);
    free(b.images);
    free(b.classes);
    free(b.bytes);
    free(b.order);
    return 0;
}
