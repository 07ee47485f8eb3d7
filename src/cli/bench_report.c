/* What `talweg bench` prints: a few lines or one JSON object, and with --explain every step beside the machine's
 * ceilings.
 *
 * The least time of a step is that of its FLOPs at the measured rate, or that of its bytes, whichever is longer. Bytes
 * in a worker's scratch pass at the rate of its cache. So do all others where the whole program fits the last cache,
 * else they pass at that of main memory. A step that finds its data in a cache all the same may come out above 100
 * %. */
#include "bench.h"
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From here on the mean of a run's time tells more of the machine than of the program. */
#define BUSY 1.2

/* Worker seconds of a run, and what they could have been. */
typedef struct account {
    tw_step_info step;
    double spent, least;
} account;

typedef struct accounts {
    account *step;
    int count;
    int constant; /* of these, steps that are not run again while the parameters stay */
    double spent, least;
    double available; /* all workers' */
    bool fits;        /* the last cache */
} accounts;

static double total_bytes(const tw_program_stats *s) {
    return (double)s->arena_bytes + (double)s->scratch_bytes + (double)s->parameter_bytes + (double)s->gradient_bytes +
           (double)s->state_bytes;
}

static double least_seconds(const twi_bench_result *r, const tw_step_info *step, bool fits) {
    const double by_flops = step->flops / r->all.flops;
    const double far = step->bytes - step->local_bytes;
    const double by_bytes =
        step->local_bytes / r->all.cache_bandwidth + far / (fits ? r->all.cache_bandwidth : r->all.memory_bandwidth);
    return r->all.threads * (by_flops > by_bytes ? by_flops : by_bytes); /* worker seconds */
}

static void account_for(const twi_bench_result *r, account *table, accounts *out) {
    *out = (accounts){.step = table,
                      .count = r->stats.steps,
                      .available = r->all.threads * r->timed.seconds / (double)r->timed.runs,
                      .fits = total_bytes(&r->stats) <= (double)r->all.last_cache_bytes};
    for (int i = 0; i < out->count; i++) {
        account *a = &table[i];
        a->step = r->step[i];
        if (a->step.constant) { /* no part of a run */
            out->constant++;
            continue;
        }
        a->spent = a->step.seconds / (double)r->timed.runs;
        a->least = least_seconds(r, &a->step, out->fits);
        out->spent += a->spent;
        out->least += a->least;
    }
}

static double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }
static double rate_of(double amount, double seconds) { return seconds > 0 ? 1e-9 * amount / seconds : 0; }

/* ---- text ---- */

/* Of steps without arithmetic there is no rate to tell. */
static const char *flops_text(double flops, double seconds, char out[16]) {
    snprintf(out, 16, flops > 0 ? "%.1f" : "-", rate_of(flops, seconds));
    return out;
}

static void tell_ceilings(const twi_bench_result *r, const accounts *a) {
    const double threads = r->all.threads;
    printf("\nceilings as measured, a thread with %d at work: %.1f GFLOP/s, cache %.1f GB/s, memory %.1f GB/s",
           r->all.threads, 1e-9 * r->all.flops / threads, 1e-9 * r->all.cache_bandwidth / threads,
           1e-9 * r->all.memory_bandwidth / threads);
    if (r->all.bf16_flops > 0) printf("; bf16 products %.1f GFLOP/s", 1e-9 * r->all.bf16_flops / threads);
    printf("\nthe program's %.1f MB %s the last cache, of %.1f MB\n", 1e-6 * total_bytes(&r->stats),
           a->fits ? "fit" : "do not fit", 1e-6 * (double)r->all.last_cache_bytes);
}

static void tell_steps(const twi_bench_result *r, const accounts *a) {
    printf("\n%4s %-26s %-34s %-18s %6s %10s %6s %8s %7s %8s\n", "step", "of", "kernel", "implementation", "calls",
           "us", "share", "GFLOP/s", "GB/s", "ceiling");
    char flops[16];
    for (int i = 0; i < a->count; i++) {
        const account *row = &a->step[i];
        if (row->step.constant) continue;
        printf("%4d %-26.26s %-34s %-18s %6.0f %10.1f %5.1f%% %8s %7.1f %7.0f%%\n", i, row->step.label,
               row->step.kernel, row->step.implementation, (double)row->step.calls / (double)r->timed.runs,
               1e6 * row->spent, percent(row->spent, a->available), flops_text(row->step.flops, row->spent, flops),
               rate_of(row->step.bytes, row->spent), percent(row->least, row->spent));
    }
    if (a->constant)
        printf("\nand %d step%s of parameters alone, run once while those stay as they are\n", a->constant,
               twi_cli_plural(a->constant));
}

/* Steps of a kernel and an implementation together, those that take longest first. */
static void tell_kernels(accounts *a) {
    enum { ROWS = 12 };
    int *first = calloc((size_t)a->count + 1, sizeof *first);
    if (!first) return; /* the steps have been told */
    int kinds = 0;
    char flops[16];
    for (int i = 0; i < a->count; i++) {
        int k = 0;
        if (a->step[i].step.constant) continue;
        while (k < kinds && (strcmp(a->step[first[k]].step.kernel, a->step[i].step.kernel) != 0 ||
                             strcmp(a->step[first[k]].step.implementation, a->step[i].step.implementation) != 0))
            k++;
        if (k == kinds) {
            first[kinds++] = i;
        } else { /* added to the first of its kind, which is told already */
            account *sum = &a->step[first[k]];
            sum->spent += a->step[i].spent;
            sum->least += a->step[i].least;
            sum->step.flops += a->step[i].step.flops;
        }
    }
    printf("\n%-34s %-18s %10s %6s %8s %8s\n", "kernel", "implementation", "us", "share", "GFLOP/s", "ceiling");
    for (int row = 0; row < ROWS && row < kinds; row++) {
        int most = row;
        for (int k = row + 1; k < kinds; k++)
            if (a->step[first[k]].spent > a->step[first[most]].spent) most = k;
        const account *sum = &a->step[first[most]];
        printf("%-34s %-18s %10.1f %5.1f%% %8s %7.0f%%\n", sum->step.kernel, sum->step.implementation, 1e6 * sum->spent,
               percent(sum->spent, a->available), flops_text(sum->step.flops, sum->spent, flops),
               percent(sum->least, sum->spent));
        const int moved = first[most];
        first[most] = first[row];
        first[row] = moved;
    }
    free(first);
}

static void tell_sum(const twi_bench_result *r, const accounts *a) {
    printf("\nin the quietest %.3g s of %lld run%s steps are %.1f %% of what the %d thread%s had; the rest is waiting, "
           "copying in and the clocks, with which the best run took %.2f times as long\n",
           r->timed.seconds, (long long)r->timed.runs, twi_cli_plural(r->timed.runs), percent(a->spent, a->available),
           r->all.threads, twi_cli_plural(r->all.threads), r->timed.best / r->plain.best);
    printf("in sum %.1f %% of the measured ceiling in the steps, %.1f %% over all\n", percent(a->least, a->spent),
           percent(a->least, a->available));
}

static void tell_apart(const twi_bench_result *r, const accounts *a) {
    for (int i = 0; i < r->stats.steps; i++)
        if (a->step[i].step.apart)
            printf("%s: the weight is not updated with its gradient at once: %s\n", a->step[i].step.label,
                   a->step[i].step.apart);
}

static bool explain(const twi_bench_result *r) {
    account *table = calloc((size_t)r->stats.steps + 1, sizeof *table);
    accounts a;
    if (!table) return false;
    account_for(r, table, &a);
    tell_ceilings(r, &a);
    tell_steps(r, &a);
    tell_sum(r, &a);
    tell_apart(r, &a);
    tell_kernels(&a);
    free(table);
    return true;
}

static double rate(const twi_bench_settings *s, const twi_bench_times *t) {
    return (double)t->runs * s->batch / t->seconds;
}

static const char *name_of(const tw_device_info *device) { return *device->name ? device->name : "unknown"; }

static void tell_latency(const twi_bench_settings *s, const twi_bench_times *t) {
    if (s->infer)
        printf("%12.1f us an inference (p50; p99 %.1f, best %.1f; %lld run%s)\n", 1e6 * t->median, 1e6 * t->p99,
               1e6 * t->best, (long long)t->runs, twi_cli_plural(t->runs));
    else
        printf("%12.3f ms a run (median; best %.3f, 99 of 100 within %.3f; %lld run%s)\n", 1e3 * t->median,
               1e3 * t->best, 1e3 * t->p99, (long long)t->runs, twi_cli_plural(t->runs));
}

bool twi_bench_report(const twi_bench_settings *s, const twi_bench_result *r) {
    const twi_bench_times *t = &r->plain;
    printf("%s, %d x %d x %d, batch %d, %s, %s\n", s->workload->name, s->workload->channels, s->workload->side,
           s->workload->side, s->batch, s->infer ? "inference" : "training with momentum SGD",
           tw_precision_name(s->precision));
    printf("%s: %s, %d %s%s, %s\n\n", r->device.backend, name_of(&r->device), r->device.processors,
           r->device.capability_major ? "multiprocessor" : "thread", twi_cli_plural(r->device.processors), r->device.code);
    printf("%12.1f images/s, over all of %.1f s\n", rate(s, t), t->seconds);
    tell_latency(s, t);
    const double held_up = t->seconds / (double)t->runs / t->median;
    if (held_up > BUSY) printf("%12s the machine was busy: a run took %.1f times its median on average\n", "", held_up);
    printf("%12.1f GFLOP/s (%.4f GFLOP and %.2f MB a run, %d steps)\n", rate_of(r->stats.flops, t->median),
           1e-9 * r->stats.flops, 1e-6 * r->stats.bytes, r->stats.steps);
    printf("%12.1f MB planned: activations %.1f, scratch %.1f, parameters with gradients and state %.1f\n",
           1e-6 * total_bytes(&r->stats), 1e-6 * (double)r->stats.arena_bytes, 1e-6 * (double)r->stats.scratch_bytes,
           1e-6 * (double)(r->stats.parameter_bytes + r->stats.gradient_bytes + r->stats.state_bytes));
    printf("%12.3f s until it could run, and %.3f ms for the first run\n", r->ready, 1e3 * t->first);
    return !s->explain || explain(r);
}

/* ---- JSON ---- */

static void text_json(const char *key, const char *value) {
    printf("\"%s\": ", key);
    twi_cli_print_json(value);
    fputs(", ", stdout);
}

static void steps_json(const twi_bench_result *r, const accounts *a) {
    printf(", \"ceilings\": {\"threads\": %d, \"flops\": %.6g, \"bf16_flops\": %.6g, \"cache_bandwidth\": %.6g, "
           "\"memory_bandwidth\": %.6g, \"last_cache_bytes\": %zu}, \"timed_run_s\": %.6g, \"worker_s\": %.6g, "
           "\"steps_s\": %.6g, \"least_s\": %.6g, \"step\": [",
           r->all.threads, r->all.flops, r->all.bf16_flops, r->all.cache_bandwidth, r->all.memory_bandwidth,
           r->all.last_cache_bytes, r->timed.median, a->available, a->spent, a->least);
    for (int i = 0; i < a->count; i++) {
        const account *row = &a->step[i];
        fputs(i ? ", {" : "{", stdout);
        text_json("label", row->step.label);
        text_json("kernel", row->step.kernel);
        text_json("implementation", row->step.implementation);
        printf("\"constant\": %s, \"calls\": %.6g, \"seconds\": %.6g, \"least_s\": %.6g, \"flops\": %.6g, \"bytes\": "
               "%.6g, "
               "\"local_bytes\": %.6g}",
               row->step.constant ? "true" : "false", (double)row->step.calls / (double)r->timed.runs, row->spent,
               row->least, row->step.flops, row->step.bytes, row->step.local_bytes);
    }
    putchar(']');
}

bool twi_bench_report_json(const twi_bench_settings *s, const twi_bench_result *r) {
    const twi_bench_times *t = &r->plain;
    account *table = calloc((size_t)r->stats.steps + 1, sizeof *table);
    accounts a;
    if (!table) return false;
    if (s->explain) account_for(r, table, &a);
    putchar('{');
    text_json("version", tw_version());
    text_json("device", r->device.backend);
    text_json("device_name", name_of(&r->device));
    text_json("code", r->device.code);
    text_json("model", s->workload->name);
    text_json("mode", s->infer ? "infer" : "train");
    text_json("precision", tw_precision_name(s->precision));
    printf("\"batch\": %d, \"threads\": %d, \"images_per_s\": %.6g, \"runs\": %lld, \"median_s\": %.6g, "
           "\"best_s\": %.6g, \"p99_s\": %.6g, \"first_s\": %.6g, \"ready_s\": %.6g, \"weights\": %lld, "
           "\"flops\": %.6g, \"bytes\": %.6g, \"planned_bytes\": %.0f",
           s->batch, r->device.processors, rate(s, t), (long long)t->runs, t->median, t->best, t->p99, t->first,
           r->ready, (long long)r->weights, r->stats.flops, r->stats.bytes, total_bytes(&r->stats));
    if (s->explain) steps_json(r, &a);
    puts("}");
    free(table);
    return true;
}
