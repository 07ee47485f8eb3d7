/* Cards: the table, files, how the one that is here is recognised, and contexts that plan for one. Figures are NVIDIA's, from the documents
 * that the table names. */
#define _POSIX_C_SOURCE 200809L /* mkstemp, setenv */
#include "backend/cards.h"
#include "check.h"
#include <talweg/talweg.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A few of every generation, typed in once more. */
static void figures_are_those_of_the_documents(void **state) {
    (void)state;
    static const struct {
        const char *key;
        int capability, gib;
        double bandwidth, f32, tf32, bf16, f16;
    } known[] = {{"t4", 75, 16, 300e9, 8.1e12, 0, 0, 65e12},
                 {"a100", 80, 80, 2039e9, 19.5e12, 156e12, 312e12, 312e12},
                 {"rtx4090", 89, 24, 1008e9, 82.6e12, 82.6e12, 165.2e12, 165.2e12},
                 {"h100", 90, 80, 3350e9, 67e12, 495e12, 989e12, 989e12},
                 {"h200", 90, 141, 4800e9, 67e12, 495e12, 989e12, 989e12},
                 {"gh200", 90, 96, 4000e9, 67e12, 495e12, 989e12, 989e12},
                 {"gh200-144", 90, 144, 4900e9, 67e12, 495e12, 989e12, 989e12},
                 {"b200", 100, 180, 7700e9, 75e12, 1125e12, 2250e12, 2250e12},
                 {"rtx5090", 120, 32, 1792e9, 104.8e12, 104.8e12, 209.5e12, 209.5e12}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        tw_card card = TW_CARD_INIT;
        CHECK_OK(tw_card_find(&card, known[i].key));
        assert_int_equal(card.capability, known[i].capability);
        assert_int_equal(card.memory_bytes, (size_t)known[i].gib << 30);
        assert_true(card.bandwidth == known[i].bandwidth && card.f32 == known[i].f32 && card.tf32 == known[i].tf32);
        assert_true(card.bf16 == known[i].bf16 && card.f16 == known[i].f16);
    }
}

static void every_card_is_whole(void **state) {
    (void)state;
    for (int i = 0; i < tw_card_count(); i++) {
        tw_card card = TW_CARD_INIT, found = TW_CARD_INIT;
        CHECK_OK(tw_card_get(&card, i));
        CHECK_OK(tw_card_find(&found, card.key));
        assert_string_equal(found.name, card.name);
        assert_true(card.capability >= 75 && card.processors > 0 && card.clock_mhz > 0 && card.l2_bytes > 0);
        assert_true(card.bandwidth > 0 && card.f32 > 0 && card.f16 > 0);
        assert_true((card.bf16 > 0) == (card.capability >= 80) && (card.tf32 > 0) == (card.capability >= 80));
        assert_non_null(strstr(card.source, "NVIDIA"));
        assert_true(strlen(card.source) + 1 < sizeof card.source); /* not cut */
        assert_true(twi_card_recognise(&card));
    }
    tw_card none = TW_CARD_INIT;
    CHECK_FAILS(tw_card_get(&none, tw_card_count()), TW_ERROR_ARGUMENT, "is outside");
    CHECK_FAILS(tw_card_find(&none, "voodoo2"), TW_ERROR_ARGUMENT, "known are");
    none.size = 0;
    CHECK_FAILS(tw_card_find(&none, "h200"), TW_ERROR_ARGUMENT, "size field");
}

/* Names as drivers tell them. */
static void a_card_is_recognised_by_its_name(void **state) {
    (void)state;
    static const struct {
        const char *told;
        int gib;
        const char *key; /* NULL: none */
    } names[] = {{"Tesla T4", 15, "t4"},
                 {"NVIDIA A100-SXM4-80GB", 79, "a100"},
                 {"NVIDIA A100-SXM4-40GB", 39, "a100-40"},
                 {"NVIDIA A10", 22, "a10"},
                 {"NVIDIA H100 80GB HBM3", 79, "h100"},
                 {"NVIDIA H100 PCIe", 79, "h100-pcie"},
                 {"NVIDIA H200", 139, "h200"},
                 {"NVIDIA GH200 480GB", 95, "gh200"},
                 {"NVIDIA GH200 144G HBM3e", 140, "gh200-144"},
                 {"NVIDIA B200", 178, "b200"},
                 {"NVIDIA L4", 22, "l4"},
                 {"NVIDIA L40S", 44, "l40s"},
                 {"NVIDIA L40", 44, NULL},
                 {"NVIDIA GeForce RTX 4090", 24, "rtx4090"},
                 {"NVIDIA GeForce RTX 4090 Laptop GPU", 16, NULL},
                 {"NVIDIA GeForce RTX 4080 SUPER", 16, NULL},
                 {"NVIDIA GeForce RTX 3090 Ti", 24, NULL},
                 {"NVIDIA H100 NVL", 94, NULL},
                 {"something else", 16, NULL}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        tw_card card = TW_CARD_INIT;
        snprintf(card.name, sizeof card.name, "%s", names[i].told);
        card.memory_bytes = (size_t)names[i].gib << 30;
        if (twi_card_recognise(&card) != (names[i].key != NULL)) fail_msg("%s", names[i].told);
        if (!names[i].key) continue;
        assert_string_equal(card.key, names[i].key);
        assert_string_equal(card.name, names[i].told);
        assert_int_equal(card.memory_bytes, (size_t)names[i].gib << 30);
        assert_true(card.bandwidth > 0);
    }
}

/* ---- files ---- */

static char path[] = "/tmp/talweg_card_XXXXXX";

static tw_status load(tw_card *card, const char *text) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    *card = (tw_card)TW_CARD_INIT;
    return tw_card_load(card, path);
}

#define NEEDED "\"name\": \"A card\", \"capability\": 90, \"processors\": 132, \"memory_gib\": 141"

static void a_file_is_a_card(void **state) {
    (void)state;
    tw_card card;
    CHECK_OK(load(&card, "{" NEEDED "}\n"));
    assert_string_equal(card.name, "A card");
    assert_string_equal(card.key, "card");
    assert_int_equal(card.memory_bytes, (size_t)141 << 30);
    assert_true(card.bandwidth == 0 && card.f32 == 0);
    CHECK_OK(load(&card,
                  "{\"key\": \"mine\", " NEEDED ", \"clock_mhz\": 1980, \"l2_mib\": 5.5, \"bandwidth_gbs\": 4800, "
                  "\"f32_tflops\": 67, \"tf32_tflops\": 495, \"bf16_tflops\": 989, \"f16_tflops\": 989.5, "
                  "\"source\": \"a guess\"}"));
    assert_string_equal(card.key, "mine");
    assert_string_equal(card.source, "a guess");
    assert_int_equal(card.l2_bytes, 5632 << 10);
    assert_true(card.bandwidth == 4800e9 && card.f32 == 67e12 && card.tf32 == 495e12 && card.f16 == 989.5e12);
    tw_context *context;
    tw_card of = TW_CARD_INIT;
    CHECK_OK(tw_context_create_for_card(&context, &card, NULL));
    assert_string_equal(tw_context_get_device(context), "plan:mine");
    CHECK_OK(tw_card_of_context(&of, context));
    assert_memory_equal(&of, &card, sizeof card);
    tw_context_destroy(context);
}

static void what_is_wrong_in_a_file_is_told(void **state) {
    (void)state;
    tw_card card;
    static const struct {
        const char *text, *says;
    } broken[] = {{"", "expected"},
                  {"[]", "expected"},
                  {"{\"name\": \"x\"}", "capability"},
                  {"{" NEEDED ", \"price\": 3}", "price"},
                  {"{" NEEDED ", \"name\": \"twice\"}", "name"},
                  {"{" NEEDED ", \"f32_tflops\": -1}", "f32_tflops"},
                  {"{" NEEDED ", \"f32_tflops\": 1e9}", "f32_tflops"},
                  {"{" NEEDED ", \"bandwidth_gbs\": \"fast\"}", "bandwidth_gbs"},
                  {"{" NEEDED ", \"key\": \"a key that is by far too long to be one\"}", "key"},
                  {"{\"name\": \"x\", \"capability\": 9.0, \"processors\": 1, \"memory_gib\": 1}", "capability"},
                  {"{" NEEDED "} {", "the end"}};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        CHECK_FAILS(load(&card, broken[i].text), TW_ERROR_FORMAT, broken[i].says);
        if (!strstr(tw_last_error(), path)) fail_msg("\"%s\" names no file", tw_last_error());
    }
    static char endless[20000];
    memset(endless, ' ', sizeof endless - 1);
    CHECK_FAILS(load(&card, endless), TW_ERROR_FORMAT, "longer than");
    CHECK_FAILS(tw_card_load(&card, "/nowhere/card.json"), TW_ERROR_FILE, "/nowhere/card.json: cannot be opened");
    CHECK_FAILS(tw_card_load(&card, "/tmp"), TW_ERROR_FILE, "/tmp: cannot be read");
}

static void a_card_that_cannot_be_planned_for_is_refused(void **state) {
    (void)state;
    tw_context *context;
    tw_card card;
    CHECK_OK(load(&card, "{\"name\": \"Tesla V100\", \"capability\": 70, \"processors\": 80, \"memory_gib\": 16}"));
    CHECK_FAILS(tw_context_create_for_card(&context, &card, NULL), TW_ERROR_ARGUMENT, "'Tesla V100' has capability 70");
    assert_null(context);
    CHECK_OK(load(&card, "{\"name\": \"x\", \"capability\": 90, \"processors\": 0, \"memory_gib\": 16}"));
    CHECK_FAILS(tw_context_create_for_card(&context, &card, NULL), TW_ERROR_ARGUMENT, "has no processors");
    CHECK_OK(load(&card, "{\"name\": \"x\", \"capability\": 90, \"processors\": 1, \"memory_gib\": 0}"));
    CHECK_FAILS(tw_context_create_for_card(&context, &card, NULL), TW_ERROR_ARGUMENT, "has no memory");
    CHECK_FAILS(tw_context_create_for_card(&context, NULL, NULL), TW_ERROR_ARGUMENT, "card is NULL");
}

/* ---- without the CUDA back end ---- */

static size_t planned_peak(const char *device, tw_plan_memory *memory) {
    tw_context *context;
    tw_model *model;
    tw_plan *plan;
    CHECK_OK(tw_context_create(&context, device, NULL));
    CHECK_OK(tw_model_create(&model, context));
    CHECK_OK(tw_model_build(model, tw_zoo_resnet20(model, tw_input(model, 3, 32, 32), 10, NULL), NULL));
    CHECK_OK(tw_plan_create(&plan, model, TW_OPTIONS(plan, .trainer = TW_OPTIONS(trainer, .batch = 128))));
    *memory = (tw_plan_memory)TW_PLAN_MEMORY_INIT;
    CHECK_OK(tw_plan_get_memory(plan, memory));
    const char *dump = tw_program_dump(tw_plan_get_program(plan), TW_PASS_MEMORY);
    assert_true((strstr(dump, " estimated ") != NULL) == memory->workspace_estimated);
    tw_plan_destroy(plan);
    tw_model_destroy(model);
    tw_context_destroy(context);
    return memory->peak_bytes;
}

/* Then the workspaces are the most that the libraries may take: no plan with them needs more. */
static void a_card_is_planned_without_the_plug_in(void **state) {
    (void)state;
    tw_plan_memory with, without;
    const size_t known = planned_peak("plan:h200", &with);
    char kept[4096] = "";
    const char *plugin = getenv("TALWEG_CUDA_PLUGIN");
    if (plugin) snprintf(kept, sizeof kept, "%s", plugin);
    assert_int_equal(setenv("TALWEG_CUDA_PLUGIN", "/nowhere/libtalweg-cuda.so", 1), 0);
    const size_t estimated = planned_peak("plan:h200", &without);
    if (plugin)
        setenv("TALWEG_CUDA_PLUGIN", kept, 1);
    else
        unsetenv("TALWEG_CUDA_PLUGIN");
    assert_true(without.workspace_estimated);
    assert_true(without.workspace_bytes >= (size_t)256 << 20);
    assert_true(estimated >= known);
    assert_int_equal(without.activation_bytes, with.activation_bytes);
    assert_int_equal(without.parameter_bytes, with.parameter_bytes);
    assert_true(without.overhead_bytes > 0 && without.fits);
}

int main(void) {
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_are_those_of_the_documents),
        cmocka_unit_test(every_card_is_whole),
        cmocka_unit_test(a_card_is_recognised_by_its_name),
        cmocka_unit_test(a_file_is_a_card),
        cmocka_unit_test(what_is_wrong_in_a_file_is_told),
        cmocka_unit_test(a_card_that_cannot_be_planned_for_is_refused),
        cmocka_unit_test(a_card_is_planned_without_the_plug_in),
    };
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failures;
}
