/* `talweg plan`: what a training run needs, before anything is allocated. This file reads the command line; plan_job.c
 * makes plans of it, plan_search.c many of them, plan_print.c and plan_json.c write them down. */
#include "plan_job.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: talweg plan --model NAME|FILE [OPTIONS]\n"
    "       talweg plan --list-devices\n"
    "\n"
    "Tells what a training run needs, before anything of it is allocated: memory of the device to the byte, bytes\n"
    "moved, arithmetic, and the time that the device's figures allow for them. Needs no GPU.\n"
    "\n"
    "  --model NAME|FILE    mlp, lenet, resnet20, resnet18, resnet50, or a model file\n"
    "  --input CxHxW        size of the images; the model's own (28x28, 32x32, 224x224)\n"
    "  --classes N          the model's own (10, or 1000)\n"
    "  --batch N            64\n"
    "  --precision NAME     f32, tf32, bf16, f16 or auto; f32\n"
    "  --optimizer NAME     sgd (momentum 0.9) or adamw; sgd\n"
    "  --accumulate N       batches an update; 1\n"
    "  --recompute NAME     auto (as little as keeps the limit), off or blocks; auto\n"
    "  --memory-limit SIZE  what the run may take of the device; SIZE as 900MB or 24GiB\n"
    "  --samples N          of the training set, kept on the device if it fits; without, its batches are streamed\n"
    "  --test-samples N     of a test set, evaluated after every epoch, by batches of 256 or as in training\n"
    "  --stream             stream the batches of --samples from the host\n"
    "  --floats             samples are f32, not bytes\n"
    "  --device NAME|FILE   auto, cpu, cuda:0, a card of --list-devices, or its JSON file; auto\n"
    "  --threads N          of the CPU; all\n"
    "\n"
    "  --gpus               the batch on every card that is known: whether it fits, and the time at best\n"
    "  --vram SIZE          the largest batch that fits into so much memory, with driver and libraries\n"
    "  --dump               the program too, step by step\n"
    "  --json               all of it as JSON\n"
    "  --help               this text\n"
    "\n"
    "Times are planned by a roofline, not measured. The figures of a CPU are measured first, which takes a second.\n"
    "\n"
    "Exit status: 0, also for a plan that does not fit; 1 if there can be no plan; 2 if the command line is wrong.\n";

typedef struct request {
    twi_job job;
    bool gpus, dump, json, list;
    size_t vram; /* 0: not asked for */
} request;

/* ---- values ---- */

static bool read_int(const char *text, int *out) {
    int64_t value;
    if (!twi_cli_read_whole(text, 1, INT_MAX, &value)) return false;
    *out = (int)value;
    return true;
}

#define SIZE_UNITS "(B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)"
static bool read_size(const char *text, size_t *out) {
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"B", 1},         {"kB", 1e3},         {"MB", 1e6},
                 {"GB", 1e9},      {"TB", 1e12},        {"KiB", 1024},
                 {"MiB", 1048576}, {"GiB", 1073741824}, {"TiB", 1099511627776.0}};
    char *end;
    if (*text < '0' || *text > '9') return false;
    const double value = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].name) != 0) continue;
        *out = (size_t)(value * units[i].bytes);
        return value > 0 && value * units[i].bytes < 1e18 && *out > 0;
    }
    return false;
}

static bool read_input(const char *text, twi_job *job) {
    int *const sides[] = {&job->channels, &job->height, &job->width};
    for (int i = 0; i < 3; i++) {
        char *end;
        errno = 0;
        const long value = strtol(text, &end, 10);
        if (*text < '0' || *text > '9' || errno || value < 1 || value > 1 << 20 || *end != (i < 2 ? 'x' : '\0'))
            return false;
        *sides[i] = (int)value;
        text = end + 1;
    }
    return true;
}

static bool read_recompute(const char *text, tw_recompute *out) {
    static const char *const names[] = {
        [TW_RECOMPUTE_OFF] = "off", [TW_RECOMPUTE_BLOCKS] = "blocks", [TW_RECOMPUTE_AUTO] = "auto"};
    for (int i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) return *out = (tw_recompute)i, true;
    return false;
}

static bool read_optimizer(const char *text, twi_job *job) {
    const bool sgd = strcmp(text, "sgd") == 0;
    job->optimizer = sgd ? "sgd with momentum" : "adamw";
    job->trainer.optimizer.kind = sgd ? TW_SGD : TW_ADAMW;
    job->trainer.optimizer.momentum = sgd ? 0.9f : 0;
    return sgd || strcmp(text, "adamw") == 0;
}

/* ---- the command line ---- */

enum {
    MODEL = 1,
    INPUT,
    CLASSES,
    BATCH,
    PRECISION,
    OPTIMIZER,
    ACCUMULATE,
    RECOMPUTE,
    MEMORY_LIMIT,
    SAMPLES,
    TEST_SAMPLES,
    STREAM,
    FLOATS,
    DEVICE,
    THREADS,
    GPUS,
    VRAM,
    DUMP,
    JSON,
    LIST,
    HELP
};

static const struct option options[] = {
    {"model", 1, NULL, MODEL},
    {"input", 1, NULL, INPUT},
    {"classes", 1, NULL, CLASSES},
    {"batch", 1, NULL, BATCH},
    {"precision", 1, NULL, PRECISION},
    {"optimizer", 1, NULL, OPTIMIZER},
    {"accumulate", 1, NULL, ACCUMULATE},
    {"recompute", 1, NULL, RECOMPUTE},
    {"memory-limit", 1, NULL, MEMORY_LIMIT},
    {"samples", 1, NULL, SAMPLES},
    {"test-samples", 1, NULL, TEST_SAMPLES},
    {"stream", 0, NULL, STREAM},
    {"floats", 0, NULL, FLOATS},
    {"device", 1, NULL, DEVICE},
    {"threads", 1, NULL, THREADS},
    {"gpus", 0, NULL, GPUS},
    {"vram", 1, NULL, VRAM},
    {"dump", 0, NULL, DUMP},
    {"json", 0, NULL, JSON},
    {"list-devices", 0, NULL, LIST},
    {"help", 0, NULL, HELP},
    {NULL, 0, NULL, 0},
};

/* Takes one option; what a value should have been, or NULL if it is. */
static const char *take(request *r, int option, const char *value) {
    twi_job *job = &r->job;
    switch (option) {
    case MODEL:
        return job->model = value, NULL;
    case DEVICE:
        return job->device = value, NULL;
    case INPUT:
        return read_input(value, job) ? NULL : "--input wants channels x height x width, such as 3x224x224, got";
    case CLASSES:
        return read_int(value, &job->classes) ? NULL : "--classes wants a whole number from 1 to 2147483647, got";
    case BATCH:
        return read_int(value, &job->trainer.batch) ? NULL : "--batch wants a whole number from 1 to 2147483647, got";
    case ACCUMULATE:
        return read_int(value, &job->trainer.accumulate)
                   ? NULL
                   : "--accumulate wants a whole number from 1 to 2147483647, got";
    case THREADS:
        return read_int(value, &job->threads) ? NULL : "--threads wants a whole number from 1 to 2147483647, got";
    case SAMPLES:
        return twi_cli_read_whole(value, 1, INT_MAX - 1, &job->samples)
                   ? NULL
                   : "--samples wants a whole number from 1 to 2147483646, got";
    case TEST_SAMPLES:
        return twi_cli_read_whole(value, 1, INT_MAX - 1, &job->test_samples)
                   ? NULL
                   : "--test-samples wants a whole number from 1 to 2147483646, got";
    case PRECISION:
        return twi_cli_read_precision(value, &job->trainer.precision)
                   ? NULL
                   : "--precision wants f32, tf32, bf16, f16 or auto, got";
    case OPTIMIZER:
        return read_optimizer(value, job) ? NULL : "--optimizer wants sgd or adamw, got";
    case RECOMPUTE:
        return read_recompute(value, &job->trainer.recompute) ? NULL : "--recompute wants off, blocks or auto, got";
    case MEMORY_LIMIT:
        return read_size(value, &job->trainer.memory_limit) ? NULL : "--memory-limit wants a size such as 24GiB " SIZE_UNITS ", got";
    case VRAM:
        return read_size(value, &r->vram) ? NULL : "--vram wants a size such as 24GiB " SIZE_UNITS ", got";
    case STREAM:
        return job->streamed = true, NULL;
    case FLOATS:
        return job->floats = true, NULL;
    case GPUS:
        return r->gpus = true, NULL;
    case DUMP:
        return r->dump = true, NULL;
    case JSON:
        return r->json = true, NULL;
    default:
        return r->list = true, NULL;
    }
}

/* What does not go together. */
static const char *contradiction(const request *r) {
    if (r->list) return NULL;
    if (!r->job.model) return "what shall be planned? Give --model";
    if (r->gpus && r->vram) return "--gpus and --vram are two questions: ask one at a time";
    if (r->gpus && r->dump) return "--dump is of one device: leave --gpus out";
    if (r->gpus && r->job.device) return "--gpus takes every card: leave --device out";
    if (r->vram && r->job.trainer.batch) return "--vram finds the batch: leave --batch out";
    if (r->vram && r->job.trainer.memory_limit) return "--vram and --memory-limit are two limits: give one of them";
    if ((r->job.channels || r->job.classes) && !twi_job_is_named(&r->job))
        return "--input and --classes are for networks by name: a model file has its own";
    if (r->json && r->dump) return "--dump is text: leave --json out";
    return NULL;
}

/* ---- answers ---- */

static int failed(void) {
    fprintf(stderr, "talweg plan: %s\n", tw_last_error());
    return TWI_CLI_FAILED;
}

static int list_cards(void) {
    printf("%-11s %-32s %9s %11s %13s %13s %13s  %s\n", "card", "name", "memory", "bandwidth", "f32", "tf32",
           "bf16, f16", "source");
    for (int i = 0; i < tw_card_count(); i++) {
        tw_card card = TW_CARD_INIT;
        char memory[TWI_AMOUNT_TEXT], bandwidth[TWI_AMOUNT_TEXT], f32[TWI_AMOUNT_TEXT], tf32[TWI_AMOUNT_TEXT],
            half[TWI_AMOUNT_TEXT];
        if (tw_card_get(&card, i)) return failed();
        printf("%-11s %-32s %9s %11s %13s %13s %13s  %s%s\n", card.key, card.name,
               twi_amount_bytes((double)card.memory_bytes, memory), twi_amount(card.bandwidth, "B/s", bandwidth),
               twi_amount(card.f32, "FLOP/s", f32), card.tf32 > 0 ? twi_amount(card.tf32, "FLOP/s", tf32) : "-",
               twi_amount(card.f16, "FLOP/s", half), card.source, card.bf16 > 0 ? "" : "; no bf16");
    }
    return TWI_CLI_DONE;
}

static int print_one(twi_planned *planned, const request *r) {
    if (twi_planned_measure(planned, &r->job)) return failed();
    if (r->json)
        twi_planned_print_json(planned, &r->job);
    else
        twi_planned_print(planned, &r->job);
    if (!r->dump) return TWI_CLI_DONE;
    const char *dump = tw_program_dump(tw_plan_get_program(planned->plan), TW_PASS_MEMORY);
    if (!dump) return failed();
    printf("\n%s", dump);
    return TWI_CLI_DONE;
}

static int print_largest(const request *r) {
    twi_planned best;
    size_t next;
    char amount[3][TWI_AMOUNT_TEXT]; /* of the room, the batch, and what is too much */
    if (twi_job_search(&best, &next, &r->job, r->vram)) {
        twi_planned_drop(&best);
        return failed();
    }
    twi_amounts_apart(r->vram, best.plan ? twi_planned_needs(&best) : 0, next, amount);
    if (!best.plan) {
        fprintf(stderr, "talweg plan: not even a batch of 1 fits into %s: it needs %s\n", amount[0], amount[2]);
        return TWI_CLI_FAILED;
    }
    if (!best.card.capability && strcmp(r->job.device, "auto") == 0) {
        fprintf(stderr, "talweg plan: --vram is of a GPU, and there is none here; name a card by --device "
                        "(talweg plan --list-devices), or cpu for memory of the host\n");
        twi_planned_drop(&best);
        return TWI_CLI_FAILED;
    }
    if (!r->json) {
        printf("largest batch in %s: %lld, which needs %s; ", amount[0], (long long)best.batch, amount[1]);
        if (next)
            printf("%lld would need %s\n\n", (long long)best.batch + 1, amount[2]);
        else
            printf("larger ones are not looked at\n\n");
    }
    const int status = print_one(&best, r);
    twi_planned_drop(&best);
    return status;
}

static int answer(const request *r) {
    twi_planned planned;
    if (r->list) return list_cards();
    if (r->gpus) return twi_job_print_cards(&r->job, r->json) ? failed() : TWI_CLI_DONE;
    if (r->vram) return print_largest(r);
    if (twi_job_plan(&planned, &r->job, NULL, r->job.trainer.batch)) return failed();
    const int status = print_one(&planned, r);
    twi_planned_drop(&planned);
    return status;
}

static int run(int argc, char **argv) {
    request r = {.job = {.trainer = TW_TRAINER_OPTIONS_INIT}};
    (void)read_optimizer("sgd", &r.job);
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (option == HELP || option == 'h') {
            fputs(usage, stdout);
            return TWI_CLI_DONE;
        }
        if (option == '?') return twi_cli_refuse(&twi_cli_plan, NULL, NULL);
        const char *problem = take(&r, option, optarg);
        if (problem) return twi_cli_refuse(&twi_cli_plan, problem, optarg);
    }
    if (optind < argc) return twi_cli_refuse(&twi_cli_plan, "unexpected argument", argv[optind]);
    const char *problem = contradiction(&r);
    if (problem) return twi_cli_refuse(&twi_cli_plan, "the command line is wrong", problem);
    if (!r.job.device) r.job.device = "auto";
    if (!r.job.trainer.batch) r.job.trainer.batch = 64;
    return answer(&r);
}

const twi_cli_command twi_cli_plan = {
    .name = "plan",
    .summary = "what a training run needs, before anything is allocated",
    .usage = usage,
    .run = run,
};
