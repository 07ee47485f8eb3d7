/* The cards that can be planned for without having one: what NVIDIA's documents say of each. How a card is described to
 * cuDNN is in cuda/card_text.c. */
#include "cards.h"
#include "base/options.h"

#include <stdio.h>
#include <string.h>

/* Documents by NVIDIA, named once. Which figures were compared with what is in docs/choosing-a-gpu.md. */
#define TURING "NVIDIA Turing GPU Architecture, white paper"
#define GA102 "NVIDIA Ampere GA102 GPU Architecture, white paper V2.0"
#define ADA "NVIDIA Ada GPU Architecture, white paper V2.01"
#define BLACKWELL "NVIDIA RTX Blackwell GPU Architecture, white paper"
#define SHEET(card) "NVIDIA " card " data sheet"
#define HALF_OF_SPARSE "; rates of tensor cores are half of those with sparsity"

enum { MIB = 1 << 20 };
#define GIB ((size_t)1 << 30)

/* Bandwidth in 10^9 bytes a second; rates in 10^12 FLOPs a second, halves summed in f32. 0: the card does not multiply
 * that type. */
typedef struct row {
    const char *key, *name;
    int capability, processors, memory_gib, l2_kib, clock_mhz, bandwidth;
    double f32, tf32, bf16, f16;
    const char *source;
    const char *told; /* how its driver calls it, or how that begins; NULL: by its name alone */
} row;

/* clang-format off */
static const row rows[] = {
    {"rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", 75,  68,  11,   5632, 1545,  616, 13.4,    0,    0,  53.8, TURING, NULL},
    {"t4",        "NVIDIA T4",                  75,  40,  16,   4096, 1590,  300,  8.1,    0,    0,    65, SHEET("T4"), "Tesla T4"},
    {"a100-40",   "NVIDIA A100 40GB",           80, 108,  40,  40960, 1410, 1555, 19.5,  156,  312,   312, SHEET("A100"), "NVIDIA A100"},
    {"a100",      "NVIDIA A100 80GB",           80, 108,  80,  40960, 1410, 2039, 19.5,  156,  312,   312, SHEET("A100 80GB SXM"), "NVIDIA A100"},
    {"a30",       "NVIDIA A30",                 80,  56,  24,  24576, 1440,  933, 10.3,   82,  165,   165, SHEET("A30"), NULL},
    {"rtx3090",   "NVIDIA GeForce RTX 3090",    86,  82,  24,   6144, 1695,  936, 35.6, 35.6,   71,    71, GA102, NULL},
    {"a10",       "NVIDIA A10",                 86,  72,  24,   6144, 1695,  600, 31.2, 62.5,  125,   125, SHEET("A10"), NULL},
    {"a40",       "NVIDIA A40",                 86,  84,  48,   6144, 1740,  696, 37.4, 74.8,149.7, 149.7, SHEET("A40"), NULL},
    {"rtx4080",   "NVIDIA GeForce RTX 4080",    89,  76,  16,  65536, 2505,  717, 48.7, 48.7, 97.5,  97.5, ADA, NULL},
    {"rtx4090",   "NVIDIA GeForce RTX 4090",    89, 128,  24,  73728, 2520, 1008, 82.6, 82.6,165.2, 165.2, ADA, NULL},
    {"l4",        "NVIDIA L4",                  89,  58,  24,  49152, 2040,  300, 30.3,   60,  121,   121, SHEET("L4") HALF_OF_SPARSE, NULL},
    {"rtx6000ada","NVIDIA RTX 6000 Ada Generation", 89, 142, 48, 98304, 2505, 960, 91.1, 182.1, 364.2, 364.2, SHEET("RTX 6000 Ada") "; tensor cores: a quarter of its FP8 rate with sparsity", NULL},
    {"l40s",      "NVIDIA L40S",                89, 142,  48,  98304, 2520,  864, 91.6,  183,  362,   362, SHEET("L40S"), NULL},
    {"h100-pcie", "NVIDIA H100 PCIe",           90, 114,  80,  51200, 1755, 2000,   51,  378,  756,   756, SHEET("H100") HALF_OF_SPARSE, NULL},
    {"h100",      "NVIDIA H100",                90, 132,  80,  51200, 1980, 3350,   67,  495,  989,   989, SHEET("H100 SXM") HALF_OF_SPARSE, NULL},
    {"h200",      "NVIDIA H200",                90, 132, 141,  61440, 1980, 4800,   67,  495,  989,   989, SHEET("H200 SXM") HALF_OF_SPARSE, NULL},
    {"gh200",     "NVIDIA GH200 96GB",          90, 132,  96,  61440, 1980, 4000,   67,  495,  989,   989, SHEET("GH200 Grace Hopper") HALF_OF_SPARSE, "NVIDIA GH200"},
    {"gh200-144", "NVIDIA GH200 144GB",         90, 132, 144,  61440, 1980, 4900,   67,  495,  989,   989, SHEET("GH200 Grace Hopper") HALF_OF_SPARSE, "NVIDIA GH200"},
    {"b200",      "NVIDIA B200",               100, 148, 180, 129024, 1965, 7700,   75, 1125, 2250,  2250, "NVIDIA GB200 NVL72 and HGX B200 technical specifications, one GPU" HALF_OF_SPARSE, NULL},
    {"rtx5080",   "NVIDIA GeForce RTX 5080",   120,  84,  16,  65536, 2617,  960, 56.3, 56.3,112.6, 112.6, BLACKWELL, NULL},
    {"rtx5090",   "NVIDIA GeForce RTX 5090",   120, 170,  32,  98304, 2407, 1792,104.8,104.8,209.5, 209.5, BLACKWELL, NULL},
};
/* clang-format on */
enum { ROWS = sizeof rows / sizeof *rows };

static tw_card card_of(const row *r) {
    tw_card card = TW_CARD_INIT;
    snprintf(card.key, sizeof card.key, "%s", r->key);
    snprintf(card.name, sizeof card.name, "%s", r->name);
    snprintf(card.source, sizeof card.source, "%s", r->source);
    card.capability = r->capability;
    card.processors = r->processors;
    card.clock_mhz = r->clock_mhz;
    card.memory_bytes = (size_t)r->memory_gib * GIB;
    card.l2_bytes = (size_t)r->l2_kib * 1024;
    card.bandwidth = 1e9 * r->bandwidth;
    card.f32 = 1e12 * r->f32;
    card.tf32 = 1e12 * r->tf32;
    card.bf16 = 1e12 * r->bf16;
    card.f16 = 1e12 * r->f16;
    return card;
}

int tw_card_count(void) { return ROWS; }

tw_status tw_card_get(tw_card *out, int index) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_card_get: out is NULL");
    if (index < 0 || index >= ROWS)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_card_get: index %d is outside 0 .. %d", index, ROWS - 1);
    const tw_card card = card_of(&rows[index]);
    return twi_options_write(out, &card, sizeof card, "tw_card_get");
}

static tw_status unknown(const char *key) {
    char known[ROWS * 16] = "";
    for (int i = 0; i < ROWS; i++) {
        if (i) strncat(known, ", ", sizeof known - 1 - strlen(known));
        strncat(known, rows[i].key, sizeof known - 1 - strlen(known));
    }
    return TWI_FAIL(TW_ERROR_ARGUMENT, "no card '%.60s' is known; known are %s", key, known);
}

tw_status tw_card_find(tw_card *out, const char *key) {
    if (!out || !key) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_card_find: %s is NULL", out ? "key" : "out");
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].key, key) == 0) return tw_card_get(out, i);
    return unknown(key);
}

/* Does a name that a driver tells mean the card? What follows may say how it is mounted, or its memory ("-SXM4-80GB",
 * " 80GB HBM3"), and not that it is another one ("RTX 4080 SUPER", "L40"). */
static bool is_called(const char *told, const char *name) {
    const size_t length = strlen(name);
    if (strncmp(told, name, length) != 0) return false;
    const char *rest = told + length;
    return !*rest || *rest == '-' || (*rest == ' ' && rest[1] >= '0' && rest[1] <= '9');
}

static bool is_about(size_t memory, size_t stated) {
    return memory <= stated + stated / 16 && memory >= stated - stated / 8;
}

static const row *find_named(const tw_card *card) {
    for (int i = 0; i < ROWS; i++) {
        const bool called =
            is_called(card->name, rows[i].name) || (rows[i].told && is_called(card->name, rows[i].told));
        if (called && is_about(card->memory_bytes, (size_t)rows[i].memory_gib * GIB)) return &rows[i];
    }
    return NULL;
}

bool twi_card_recognise(tw_card *card) {
    const row *found = find_named(card);
    if (!found) return false;
    const size_t memory = card->memory_bytes;
    char name[sizeof card->name];
    memcpy(name, card->name, sizeof name);
    *card = card_of(found);
    memcpy(card->name, name, sizeof name);
    card->memory_bytes = memory;
    return true;
}
