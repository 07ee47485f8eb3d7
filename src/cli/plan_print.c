/* A plan as text for people. */
#include "plan_job.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 5 };

/* ---- amounts ---- */

/* Three digits, but whole numbers of the unit itself as they are. */
static int decimals_of(double value, bool unscaled) {
    if (unscaled && value == (double)(long long)value) return 0;
    return value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
}

static const char *const byte_units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};

const char *twi_amount_bytes(double bytes, char out[TWI_AMOUNT_TEXT]) {
    int unit = 0;
    while (unit < 5 && bytes >= 999.5) bytes /= 1024, unit++;
    snprintf(out, TWI_AMOUNT_TEXT, "%.*f %s", decimals_of(bytes, unit == 0), bytes, byte_units[unit]);
    return out;
}

void twi_amounts_apart(size_t room, size_t fits, size_t beyond, char out[3][TWI_AMOUNT_TEXT]) {
    int unit = 0, decimals = 2;
    double size = 1;
    while (unit < 5 && (double)room / size >= 999.5) size *= 1024, unit++;
    do {
        const size_t bytes[3] = {room, fits, beyond};
        for (int i = 0; i < 3; i++)
            snprintf(out[i], TWI_AMOUNT_TEXT, "%.*f %s", unit ? decimals : 0, (double)bytes[i] / size,
                     byte_units[unit]);
    } while (unit && decimals++ < 12 && beyond > room && strcmp(out[2], out[0]) == 0);
}

const char *twi_amount(double value, const char *unit, char out[TWI_AMOUNT_TEXT]) {
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
    int prefix = 0;
    if (isnan(value)) return "unknown";
    while (prefix < 6 && value >= 999.5) value /= 1000, prefix++;
    snprintf(out, TWI_AMOUNT_TEXT, "%.*f %s%.8s", decimals_of(value, prefix == 0), value, prefixes[prefix], unit);
    return out;
}

const char *twi_amount_seconds(double seconds, char out[TWI_AMOUNT_TEXT]) {
    static const struct {
        double from, unit;
        const char *name;
    } units[] = {{7200, 3600, "h"}, {120, 60, "min"}, {1, 1, "s"}, {1e-3, 1e-3, "ms"}, {0, 1e-6, "us"}};
    int i = 0;
    if (isnan(seconds)) return "unknown";
    while (seconds < units[i].from) i++;
    const double value = seconds / units[i].unit;
    snprintf(out, TWI_AMOUNT_TEXT, "%.*f %s", decimals_of(value, false), value, units[i].name);
    return out;
}

double twi_amount_rounded(double value) {
    double unit = 1;
    while (value / unit >= 1000) unit *= 10;
    return isnan(value) ? value : unit * (double)(long long)(value / unit + 0.5);
}

const char *twi_bound_by(const tw_plan_time *time) {
    if (isnan(time->byte_share)) return "unknown";
    return time->byte_share > 2.0 / 3 ? "bytes" : time->byte_share < 1.0 / 3 ? "arithmetic" : "both";
}

/* ---- parts of the text ---- */

static void memory_line(const char *name, size_t bytes, const char *remark) {
    char amount[TWI_AMOUNT_TEXT];
    printf("  %-28s %10s%s%s\n", name, twi_amount_bytes((double)bytes, amount), *remark ? "  " : "", remark);
}

static void optional_line(const char *name, size_t bytes, const char *remark) {
    if (bytes) memory_line(name, bytes, remark);
}

static void print_memory(const twi_planned *p) {
    const tw_plan_memory *m = &p->memory;
    char room[TWI_AMOUNT_TEXT];
    puts("memory of the device, when most is held");
    memory_line("parameters", m->parameter_bytes, "with running statistics");
    optional_line("copies in half precision", m->copy_bytes, "");
    memory_line("gradients", m->gradient_bytes, "");
    memory_line("optimizer", m->optimizer_bytes, "");
    memory_line("activations", m->activation_bytes, "");
    memory_line("gradients of activations", m->activation_gradient_bytes, "");
    memory_line("workspace", m->workspace_bytes,
                m->workspace_estimated ? "the most that the libraries may take: they are not here to be asked" : "");
    memory_line("data", m->data_bytes, "");
    optional_line("unused", m->unused_bytes, "between blocks");
    memory_line("other", m->other_bytes, "");
    memory_line("peak", m->peak_bytes, "");
    if (m->overhead_bytes) memory_line("driver and libraries", m->overhead_bytes, "an estimate");
    if (p->room)
        printf("  fits in %s, as asked\n", twi_amount_bytes((double)p->room, room));
    else if (p->card.memory_bytes)
        printf("  %s in %s, of which 15/16 are counted on\n", m->fits ? "fits" : "does not fit",
               twi_amount_bytes((double)p->card.memory_bytes, room));
}

static void work_line(const tw_plan_work *w, const char *name, bool memory) {
    char held[TWI_AMOUNT_TEXT], bytes[TWI_AMOUNT_TEXT], flops[TWI_AMOUNT_TEXT], seconds[TWI_AMOUNT_TEXT], steps[16];
    snprintf(steps, sizeof steps, "%d", w->steps);
    printf("  %-28.40s %10s %11s %12s %10s\n", name, memory ? twi_amount_bytes((double)w->memory_bytes, held) : steps,
           twi_amount(w->bytes, "B", bytes), w->flops > 0 ? twi_amount(w->flops, "FLOP", flops) : "-",
           twi_amount_seconds(w->seconds, seconds));
}

static void work_head(const char *title, const char *second) {
    printf("\n%-30s %10s %11s %12s %10s\n", title, second, "moved", "arithmetic", "time");
}

static void print_layers(const twi_planned *p) {
    work_head("largest layers", "memory");
    for (int i = 0; i < LAYERS && i < tw_plan_count_layers(p->plan); i++) {
        tw_plan_work work = TW_PLAN_WORK_INIT;
        if (tw_plan_get_layer(p->plan, i, &work) == TW_OK) work_line(&work, work.name, true);
    }
}

static void add_work(tw_plan_work *sum, const tw_plan_work *work) {
    sum->steps += work->steps;
    sum->bytes += work->bytes;
    sum->flops += work->flops;
    sum->seconds += work->seconds;
}

/* What moves less than a thousandth of all bytes goes together. */
static void print_kinds(const twi_planned *p) {
    tw_plan_work all = TW_PLAN_WORK_INIT, small = TW_PLAN_WORK_INIT;
    work_head("work of an update", "steps");
    for (int i = 0; i < tw_plan_count_kinds(p->plan); i++) {
        tw_plan_work work = TW_PLAN_WORK_INIT;
        if (tw_plan_get_kind(p->plan, i, &work)) continue;
        add_work(&all, &work);
        if (work.bytes < p->time.bytes / 1000)
            add_work(&small, &work);
        else
            work_line(&work, work.name, false);
    }
    if (small.steps) work_line(&small, "others", false);
    work_line(&all, "all", false);
}

/* Of what is multiplied in another type than f32; 0: nothing is, or at the rate of f32. */
static double rate_in(const tw_card *card, tw_precision precision) {
    return precision == TW_PRECISION_TF32   ? card->tf32
           : precision == TW_PRECISION_BF16 ? card->bf16
           : precision == TW_PRECISION_F16  ? card->f16
                                            : 0;
}

static void print_figures(const twi_planned *p, tw_precision precision) {
    char bandwidth[TWI_AMOUNT_TEXT], rate[TWI_AMOUNT_TEXT];
    const double other = rate_in(&p->card, precision);
    printf("  of %s and %s in f32", twi_amount(p->card.bandwidth, "B/s", bandwidth),
           twi_amount(p->card.f32, "FLOP/s", rate));
    if (other > 0) printf(", %s in %s", twi_amount(other, "FLOP/s", rate), tw_precision_name(precision));
    printf(" (%s)\n", p->measured ? "measured on this machine now" : p->card.source);
}

static void print_time(const twi_planned *p, const twi_job *job) {
    char update[TWI_AMOUNT_TEXT], epoch[TWI_AMOUNT_TEXT];
    puts("\ntime at best, by the roofline: planned, not measured");
    if (isnan(p->time.update_seconds)) {
        puts("  unknown: the device's bandwidth and rates are not known");
        return;
    }
    printf("  update %s, %.0f images a second; %.0f %% of it waits for bytes, %.0f %% for arithmetic\n",
           twi_amount_seconds(p->time.update_seconds, update), twi_amount_rounded(p->time.images_per_second),
           100 * p->time.byte_share, 100 - 100 * p->time.byte_share);
    if (job->samples)
        printf("  epoch of %lld sample%s %s, without its evaluation\n", (long long)job->samples,
               twi_cli_plural(job->samples), twi_amount_seconds(p->time.epoch_seconds, epoch));
    if (!p->card.capability)
        puts("  on a CPU values stay in the cache from step to step where they can, so that fewer bytes may come from "
             "memory");
    print_figures(p, p->time.precision);
}

void twi_planned_print(const twi_planned *p, const twi_job *job) {
    char weights[TWI_AMOUNT_TEXT], input[64];
    if (p->channels)
        snprintf(input, sizeof input, "%lld x %lld x %lld", (long long)p->channels, (long long)p->height,
                 (long long)p->width);
    else
        snprintf(input, sizeof input, "%lld number%s", (long long)p->width, twi_cli_plural(p->width));
    printf("%s: %s, %lld %s, %sweights\n", p->model, input, (long long)p->classes,
           p->classes == 1 ? "class" : "classes", twi_amount((double)p->weights, " ", weights));
    printf("batch %lld, %s%s, %s, %s", (long long)p->batch, tw_precision_name(p->time.precision),
           job->trainer.precision == TW_PRECISION_AUTO ? " (auto)" : "", job->optimizer,
           p->memory.streamed ? "data streamed" : "data on the device");
    if (p->time.batches > 1) printf(", %lld batches an update", (long long)p->time.batches);
    if (p->time.parts > 1)
        printf("\nto keep the limit each batch is run in %lld parts, whose gradients are summed; norms see a part at a time",
               (long long)p->time.parts);
    printf("\nfor %s (%s)\n\n", *p->card.name ? p->card.name : "this machine", tw_context_get_device(p->context));
    print_memory(p);
    print_layers(p);
    print_kinds(p);
    print_time(p, job);
}
