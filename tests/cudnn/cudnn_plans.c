#define _GNU_SOURCE
/* Plans of the real cuDNN for devices that are not here: every convolution of the zoo's networks, in every type, on
 * four devices. A child process makes those of one device and type (plan_survey.c).
 *
 *   cudnn_plans --quick DRIVER            two networks on one device; fails if any plan is missing
 *   cudnn_plans --write FILE DRIVER       all, as a table (docs/cudnn-plans.md); fails if any plan is missing
 *   cudnn_plans --compare FILE DRIVER     the same, and says how many lines differ from the file's */
#include "plan_survey.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static network_conv convs[NETWORK_CONVS_MOST];
static survey_result results[SURVEY_DEVICES][SURVEY_TYPES][NETWORK_CONVS_MOST * SURVEY_OPS];
static int conv_count;

static const survey_result *result_of(int device, int type, int conv, int op) {
    return &results[device][type][conv * SURVEY_OPS + op];
}

/* Makes all plans of some devices; returns how many are missing. */
static int survey_all(int first_device, int last_device, const char *driver) {
    int missing = 0;
    for (int device = first_device; device <= last_device; device++)
        for (int type = 0; type < SURVEY_TYPES; type++) {
            survey(convs, conv_count, device, type, driver, results[device][type]);
            for (int i = 0; i < conv_count * SURVEY_OPS; i++) {
                const survey_result *r = &results[device][type][i];
                if (*r->plan) continue;
                missing++;
                fprintf(stderr, "%s, %s, %s %s, %s: no plan: %s\n", survey_devices[device].name, survey_type[type],
                        convs[i / SURVEY_OPS].network, convs[i / SURVEY_OPS].layer, survey_op[i % SURVEY_OPS],
                        r->failure);
            }
        }
    return missing;
}

/* ---- the table ---- */

/* "41", or "41 +19.3 MB" with workspace. */
static void print_cell(char out[48], const survey_result *r) {
    char quantity[TWI_QUANTITY_TEXT];
    const int engine = *r->plan ? atoi(r->plan + strlen("cudnn:")) : -1;
    if (engine < 0)
        snprintf(out, 48, "none");
    else if (r->workspace_bytes < 1024)
        snprintf(out, 48, "%d", engine);
    else
        snprintf(out, 48, "%d +%s", engine, twi_quantity((double)r->workspace_bytes, "B", quantity));
}

static void print_row(char out[512], int device, int type, int conv) {
    size_t length = 0;
    for (int op = 0; op < SURVEY_OPS; op++) {
        char cell[48];
        print_cell(cell, result_of(device, type, conv, op));
        length += (size_t)snprintf(out + length, 512 - length, " %s |", cell);
    }
}

static void print_conv(FILE *file, int conv) {
    const network_conv *n = &convs[conv];
    const conv_check_case *c = &n->c;
    fprintf(file, "| %d | %s %s | %lld x %lld x %lld x %lld | %lld of %lld x %lld | %d | %d |\n", conv + 1, n->network,
            n->layer, (long long)c->n, (long long)c->c, (long long)c->h, (long long)c->w, (long long)c->o,
            (long long)c->kernel_h, (long long)c->kernel_w, c->attrs.stride_h, c->attrs.pad_top);
}

/* Rows of one device: types that are alike share a row, and so do convolutions that follow each other. */
static void print_device(FILE *file, int device) {
    fprintf(file,
            "\n## %s, sm_%d\n\n| convolution | type | forward | + bias | + bias, relu | data | weights |\n"
            "|---|---|---|---|---|---|---|\n",
            survey_devices[device].name, survey_devices[device].capability);
    for (int conv = 0; conv < conv_count; conv++) {
        char row[SURVEY_TYPES][512];
        for (int type = 0; type < SURVEY_TYPES; type++) print_row(row[type], device, type, conv);
        const bool alike = strcmp(row[TW_F16], row[TW_BF16]) == 0, tf32 = strcmp(row[TW_F32], row[SURVEY_TF32]) != 0;
        fprintf(file, "| %d | %s |%s\n", conv + 1, tf32 ? "f32" : "f32, tf32", row[TW_F32]);
        if (tf32) fprintf(file, "| | tf32 |%s\n", row[SURVEY_TF32]);
        fprintf(file, "| | %s |%s\n", alike ? "f16, bf16" : "f16", row[TW_F16]);
        if (!alike) fprintf(file, "| | bf16 |%s\n", row[TW_BF16]);
    }
}

static void print_all(FILE *file) {
    char versions[64];
    survey_versions(versions);
    fprintf(
        file,
        "# Plans that cuDNN makes for the convolutions of the zoo\n\n"
        "Written by `cudnn_plans --write`, with %s, on a machine without a device: cuDNN was given a description of\n"
        "each. So this is what it builds, not what was run or timed.\n\n"
        "A cell is the number of the engine that is taken, the first of the heuristics' proposals that sums in f32 "
        "(and\n"
        "for f32 without TF32; tf32 is f32 whose products may take it), gives the same bits every time and fits 256 "
        "MiB of workspace; and the workspace, from\n"
        "1 kB on. Weight gradients of half precision include their copy before it is widened. Every convolution of "
        "the\n"
        "four networks has a plan for every device, type and direction.\n\n"
        "| | first met in | input | filters | stride | padding |\n|---|---|---|---|---|---|\n",
        versions);
    for (int conv = 0; conv < conv_count; conv++) print_conv(file, conv);
    for (int device = 0; device < SURVEY_DEVICES; device++) print_device(file, device);
}

/* Says where the table differs from a file; nothing of that is a failure. */
static void compare_with(const char *path) {
    char *text = NULL, line[512];
    size_t length = 0;
    FILE *now = open_memstream(&text, &length), *file = fopen(path, "r");
    if (!now || !file) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(1);
    }
    print_all(now);
    fclose(now);
    int differing = 0;
    while (fgets(line, sizeof line, file)) differing += strstr(text, line) == NULL;
    fclose(file);
    free(text);
    printf("%d lines of %s differ\n", differing, path);
}

int main(int argc, char **argv) {
    const bool quick = argc == 3 && strcmp(argv[1], "--quick") == 0;
    const bool write = argc == 4 && strcmp(argv[1], "--write") == 0;
    if (!quick && !write && !(argc == 4 && strcmp(argv[1], "--compare") == 0)) {
        fprintf(stderr, "usage: cudnn_plans --quick DRIVER | --write FILE DRIVER | --compare FILE DRIVER\n");
        return 2;
    }
    enum { H200 = 1, SMALL_NETWORKS = 9 };
    conv_count = network_convs(convs);
    if (quick && conv_count > SMALL_NETWORKS) conv_count = SMALL_NETWORKS;
    const int missing = survey_all(quick ? H200 : 0, quick ? H200 : SURVEY_DEVICES - 1, argv[argc - 1]);
    printf("%d convolutions, %d plans missing\n", conv_count, missing);
    if (write) {
        FILE *file = fopen(argv[2], "w");
        if (!file) {
            perror(argv[2]);
            return 1;
        }
        print_all(file);
        if (fclose(file)) return 1;
    } else if (!quick) {
        compare_with(argv[2]);
    }
    return missing ? 1 : 0;
}
