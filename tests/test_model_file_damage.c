/* Model files that are wrong: each wrong thing is named; cut and altered at every byte, or without memory, opening ends
 * in a status and leaves nothing behind. */
#define _POSIX_C_SOURCE 200809L /* truncate, pwrite */
#include "check.h"
#include "data_files.h"
#include "small_task.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static int open_folder(void **state) { return make_folder(state) || task_open(state); }
static int close_folder(void **state) { return task_close(state) | remove_folder(state); }
#define in_context(test) cmocka_unit_test_setup_teardown(test, open_folder, close_folder)

enum { MOST = 1 << 16 };

static void put_bytes(const char *name, const void *bytes, size_t size) {
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static size_t get_bytes(const char *name, char *bytes) {
    FILE *file = fopen(path_of(name), "rb");
    assert_non_null(file);
    size_t size = fread(bytes, 1, MOST, file);
    fclose(file);
    assert_true(size < MOST);
    return size;
}

/* ---- files by hand ---- */

#define INPUT "{\"name\":\"x\",\"kind\":\"input\",\"type\":\"real\",\"shape\":[2,4,4]}"
#define WEIGHT "{\"name\":\"w\",\"kind\":\"parameter\",\"shape\":[1,2,3,3],\"trainable\":true}"
#define CONV "{\"op\":\"conv2d\",\"name\":\"y\",\"inputs\":[\"x\",\"w\"],\"attributes\":{\"pad_top\":1}}"
#define RELU "{\"op\":\"relu\",\"name\":\"z\",\"inputs\":[\"y\"]}"
static const char graph[] = "{\"values\":[" INPUT "," WEIGHT "],\"aliases\":[{\"name\":\"v\",\"of\":\"w\"}],"
                            "\"nodes\":[" CONV "," RELU "],\"outputs\":[\"z\"]}";

typedef struct by_hand {
    const char *version, *graph, *normalization, *classes; /* NULL: not in the file */
    const char *shape;                                     /* of the tensor w; NULL: as the graph says */
} by_hand;

static size_t add_text(char *at, const char *key, const char *text) {
    if (!text) return 0;
    char *start = at;
    at += sprintf(at, ",\"talweg.%s\":\"", key);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') *at++ = '\\';
        *at++ = *text;
    }
    at += sprintf(at, "\"");
    return (size_t)(at - start);
}

static void write_by_hand(const by_hand *file) {
    char *bytes = calloc(1, MOST), *at = bytes + 8;
    assert_non_null(bytes);
    at += sprintf(at, "{\"__metadata__\":{\"format\":\"pt\"");
    at += add_text(at, "version", file->version);
    at += add_text(at, "graph", file->graph);
    at += add_text(at, "normalization", file->normalization);
    at += add_text(at, "class_names", file->classes);
    at += sprintf(at, "},\"w\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[0,72]}}",
                  file->shape ? file->shape : "[1,2,3,3]");
    const size_t length = (size_t)(at - bytes) - 8;
    bytes[0] = (char)(length & 255);
    bytes[1] = (char)(length >> 8);
    put_bytes("hand.safetensors", bytes, 8 + length + 72);
    free(bytes);
}

static void assert_refused(const by_hand *file, tw_status status, const char *says) {
    tw_model *model = (tw_model *)&status;
    write_by_hand(file);
    tw_status got = tw_model_open(&model, task_context, path_of("hand.safetensors"), NULL);
    if (got != status || !strstr(tw_last_error(), says) || !strstr(tw_last_error(), "hand.safetensors"))
        fail_msg("%s for %s: \"%s\", expected \"%s\"", tw_status_name(got), file->graph, tw_last_error(), says);
    assert_null(model);
}

static void test_a_file_written_by_hand_opens(void **state) {
    (void)state;
    tw_model *model;
    write_by_hand(
        &(by_hand){"1", graph, "{\"scale\":\"u8/255\",\"mean\":[1,2.5e-1],\"deviation\":[1,1]}", "[\"a\"]", NULL});
    CHECK_OK(tw_model_open(&model, task_context, path_of("hand.safetensors"), NULL));
    assert_ptr_equal(tw_model_find(model, "v"), tw_model_find(model, "w"));
    assert_string_equal(tw_value_get_name(tw_model_get_output(model)), "z");
    assert_true(tw_model_get_normalization(model).mean[1] == 0.25f);
    assert_string_equal(tw_model_get_class_name(model, 0), "a");
    tw_model_destroy(model);
}

/* A part of the graph, what stands there instead, and what is said to it. */
static const struct replaced {
    const char *part, *instead;
    tw_status status;
    const char *says;
} replaced[] = {
    /* ops and attributes */
    {"\"conv2d\"", "\"conv9d\"", TW_ERROR_UNSUPPORTED, "there is no op 'conv9d' in this context"},
    {"\"conv2d\"", "\"sgd.update\"", TW_ERROR_UNSUPPORTED, "no op 'sgd.update'"},
    {"\"conv2d\"", "\"sgd\"", TW_ERROR_UNSUPPORTED, "no op 'sgd'"},
    {"pad_top", "pad_tip", TW_ERROR_FORMAT, "'y': the op 'conv2d' has no attribute 'pad_tip'"},
    {"{\"pad_top\":1}", "{\"pad_top\":true}", TW_ERROR_FORMAT, "attribute 'pad_top'"},
    {"{\"pad_top\":1}", "{\"pad_top\":1.5}", TW_ERROR_FORMAT, "a whole number, found '1.5"},
    {"{\"pad_top\":1}", "{\"pad_top\":2147483648}", TW_ERROR_FORMAT, "32 bits"},
    {"{\"pad_top\":1}", "{\"pad_top\":- 1}", TW_ERROR_FORMAT, "digits after '-'"},
    {"{\"pad_top\":1}", "{\"pad_top\":1,\"pad_top\":1}", TW_ERROR_FORMAT, "key 'pad_top' is repeated"},
    {"{\"pad_top\":1}", "{\"pad_top\":-1}", TW_ERROR_ARGUMENT, "conv2d 'y': pad_top is -1"},
    {"{\"pad_top\":1}", "{\"groups\":0}", TW_ERROR_ARGUMENT, "conv2d 'y': groups is 0"},
    {"{\"pad_top\":1}", "[1]", TW_ERROR_FORMAT, "expected '{'"},
    {"{\"op\":\"conv2d\",", "{\"attributes\":{},\"op\":\"conv2d\",", TW_ERROR_FORMAT, "'op' to stand before"},
    /* shapes */
    {"\"shape\":[1,2,3,3]", "\"shape\":[1,3,3,2]", TW_ERROR_SHAPE, "conv2d 'y': input [1, 2, 4, 4]"},
    {"\"shape\":[2,4,4]", "\"shape\":[2,4]", TW_ERROR_SHAPE, "expected 4 axes"},
    {"\"shape\":[2,4,4]", "\"shape\":[2,0,4]", TW_ERROR_FORMAT, "each at least 1"},
    {"\"shape\":[2,4,4]", "\"shape\":[2,4,4,4,4,4]", TW_ERROR_FORMAT, "'x' has more axes"},
    {"\"shape\":[2,4,4]", "\"shape\":[2,4,4,4,4,4,4]", TW_ERROR_FORMAT, "at most 6 sizes"},
    {"\"shape\":[2,4,4]", "\"shape\":[2,4294967296,4294967296]", TW_ERROR_OVERFLOW, "x"},
    {"\"shape\":[1,2,3,3]", "\"shape\":[4294967296,2,1,1]", TW_ERROR_MISMATCH, "mismatched 'w' (file F32 [1, 2, 3, 3]"},
    {"\"shape\":[1,2,3,3]", "\"shape\":[1,2,1,3]", TW_ERROR_MISMATCH, "model [1, 2, 1, 3]"},
    /* references and names */
    {"[\"x\",\"w\"]", "[\"x\",\"u\"]", TW_ERROR_FORMAT, "'u' is used, but nothing before it"},
    {"[\"x\",\"w\"]", "[\"z\",\"w\"]", TW_ERROR_FORMAT, "'z' is used, but nothing before it"},
    {"[\"x\",\"w\"]", "[\"y\",\"w\"]", TW_ERROR_FORMAT, "'y' is used, but nothing before it"},
    {"[\"x\",\"w\"]", "[\"x\"]", TW_ERROR_ARGUMENT, "takes 2 to 2 inputs, got 1"},
    {"[\"x\",\"w\"]", "[\"w\",\"w\"]", TW_ERROR_ARGUMENT, "has no batch axis"},
    {"[\"x\",\"w\"]", "[\"x\",\"x\",\"x\",\"x\",\"x\",\"x\",\"x\",\"x\",\"x\"]", TW_ERROR_FORMAT, "at most 8 inputs"},
    {"\"name\":\"z\"", "\"name\":\"y\"", TW_ERROR_FORMAT, "'y' is there twice"},
    {"\"name\":\"w\"", "\"name\":\"x\"", TW_ERROR_FORMAT, "'x' is there twice"},
    {"\"name\":\"v\"", "\"name\":\"w\"", TW_ERROR_FORMAT, "'w' is there twice"},
    {"\"name\":\"z\"", "\"name\":\"v\"", TW_ERROR_FORMAT, "'v' is there twice"},
    {"\"name\":\"z\"", "\"name\":\"\"", TW_ERROR_FORMAT, "not empty"},
    {"\"of\":\"w\"", "\"of\":\"u\"", TW_ERROR_FORMAT, "'u' is used"},
    {"\"of\":\"w\"", "\"of\":\"x\"", TW_ERROR_FORMAT, "'x' has an alias, but is no parameter"},
    {"[\"z\"]", "[\"q\"]", TW_ERROR_FORMAT, "'q' is used"},
    {"[\"z\"]", "[]", TW_ERROR_FORMAT, "an output"},
    {"[\"z\"]", "[\"z\",\"y\"]", TW_ERROR_FORMAT, "'y' is a second output"},
    /* values */
    {"\"input\"", "\"output\"", TW_ERROR_FORMAT, "'x': 'output' is none of 'input' and 'buffer'"},
    {"\"type\":\"real\"", "\"type\":\"text\"", TW_ERROR_FORMAT, "'text' is none of"},
    {"\"trainable\":true", "\"trainable\":1", TW_ERROR_FORMAT, "true or false"},
    {"\"trainable\":true", "\"counter\":true", TW_ERROR_FORMAT, "'w' is a counter"},
    /* whose sizes multiply to 1 where 64 bits run over */
    {WEIGHT, WEIGHT ",{\"name\":\"w2\",\"kind\":\"buffer\",\"shape\":[7,7905747460161236407],\"counter\":true}",
     TW_ERROR_FORMAT, "'w2' is a counter"},
    {"," WEIGHT, "", TW_ERROR_FORMAT, "'w' is used, but nothing before it"},
    {WEIGHT, WEIGHT ",{\"name\":\"w2\",\"kind\":\"buffer\",\"shape\":[1]}", TW_ERROR_MISMATCH, "missing 'w2'"},
    {"\"kind\":\"input\"", "\"kind\":\"input\",\"kind\":\"input\"", TW_ERROR_FORMAT,
     "key 'kind' is unknown or repeated"},
    {"\"kind\":\"input\",", "", TW_ERROR_FORMAT, "'x': key 'kind' is missing"},
    {"\"kind\":\"input\"", "\"kind\":\"input\",\"colour\":1", TW_ERROR_FORMAT, "key 'colour' is unknown"},
    /* the whole */
    {"\"outputs\"", "\"outlets\"", TW_ERROR_FORMAT, "key 'outlets' is unknown"},
    {",\"outputs\":[\"z\"]", "", TW_ERROR_FORMAT, "key 'outputs' is missing"},
    {"[\"z\"]}", "[\"z\"]}}", TW_ERROR_FORMAT, "expected the end"},
    {"[\"z\"]", "[[[[[[[[[[\"z\"]]]]]]]]]]", TW_ERROR_FORMAT, "expected '\"', found '["},
};

static void test_what_is_wrong_in_a_graph_is_named(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++) {
        const struct replaced *r = &replaced[i];
        char text[4096];
        const char *at = strstr(graph, r->part);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - graph), graph, r->instead, at + strlen(r->part));
        assert_refused(&(by_hand){"1", text, NULL, NULL, NULL}, r->status, r->says);
    }
}

static void test_what_is_wrong_in_the_rest_is_named(void **state) {
    (void)state;
    static const char good[] = "{\"scale\":\"u8/255\",\"mean\":[0,0],\"deviation\":[1,1]}";
    static const struct {
        by_hand file;
        tw_status status;
        const char *says;
    } rest[] = {
        {{NULL, NULL, NULL, NULL, NULL}, TW_ERROR_FORMAT, "tw_model_load"},
        {{"2", graph, NULL, NULL, NULL}, TW_ERROR_UNSUPPORTED, "version 2; this library reads version 1"},
        {{"0", graph, NULL, NULL, NULL}, TW_ERROR_UNSUPPORTED, "version 0"},
        {{"1x", graph, NULL, NULL, NULL}, TW_ERROR_FORMAT, "the end"},
        {{"", graph, NULL, NULL, NULL}, TW_ERROR_FORMAT, "talweg.version"},
        {{"1", NULL, NULL, NULL, NULL}, TW_ERROR_FORMAT, "'talweg.graph' is missing"},
        {{"1", "", NULL, NULL, NULL}, TW_ERROR_FORMAT, "talweg.graph"},
        {{"1", graph, NULL, NULL, "[2,1,3,3]"}, TW_ERROR_MISMATCH, "mismatched 'w'"},
        {{"1", graph, "{}", NULL, NULL}, TW_ERROR_FORMAT, "talweg.normalization: key 'scale' is missing"},
        {{"1", graph, "{\"scale\":\"u8\",\"mean\":[0,0],\"deviation\":[1,1]}", NULL, NULL}, TW_ERROR_FORMAT, "u8/255"},
        {{"1", graph, "{\"scale\":\"u8/255\",\"mean\":[0,0],\"deviation\":[1]}", NULL, NULL},
         TW_ERROR_FORMAT,
         "as many deviations"},
        {{"1", graph, "{\"scale\":\"u8/255\",\"mean\":[],\"deviation\":[]}", NULL, NULL}, TW_ERROR_FORMAT, "one"},
        {{"1", graph, "{\"scale\":\"u8/255\",\"mean\":[0],\"deviation\":[1]}", NULL, NULL},
         TW_ERROR_MISMATCH,
         "1 channels, the model's input 'x' has 2"},
        {{"1", graph, "{\"scale\":\"u8/255\",\"mean\":[0,0],\"deviation\":[1,-1]}", NULL, NULL},
         TW_ERROR_ARGUMENT,
         "deviation -1"},
        {{"1", graph, "{\"scale\":\"u8/255\",\"mean\":[0,1e39],\"deviation\":[1,1]}", NULL, NULL},
         TW_ERROR_FORMAT,
         "a float can hold, found '1e39"},
        {{"1", graph, "{\"scale\":\"u8/255\",\"mean\":[0,.5],\"deviation\":[1,1]}", NULL, NULL},
         TW_ERROR_FORMAT,
         "a number"},
        {{"1", graph, "{\"scale\":\"u8/255\",\"mean\":[0,00],\"deviation\":[1,1]}", NULL, NULL},
         TW_ERROR_FORMAT,
         "a number"},
        {{"1", graph, "{\"scale\":\"u8/255\",\"mean\":[0,nan],\"deviation\":[1,1]}", NULL, NULL},
         TW_ERROR_FORMAT,
         "a number"},
        {{"1", graph, "{\"scale\":\"u8/255\",\"mean\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],\"deviation\":[]}", NULL,
          NULL},
         TW_ERROR_FORMAT,
         "at most 16 channels"},
        {{"1", graph, good, "{}", NULL}, TW_ERROR_FORMAT, "talweg.class_names"},
        {{"1", graph, good, "[\"a\",]", NULL}, TW_ERROR_FORMAT, "talweg.class_names"},
        {{"1", graph, good, "[\"a\"]]", NULL}, TW_ERROR_FORMAT, "the end"},
    };
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) assert_refused(&rest[i].file, rest[i].status, rest[i].says);
}

/* More names than the output has classes. */
static void test_too_many_class_names(void **state) {
    (void)state;
    tw_model *model = task_plain_model(task_context, 1), *other;
    char bytes[MOST];
    CHECK_OK(tw_model_set_class_names(model, (const char *[]){"a", "bcdef", "g"}, 3));
    CHECK_OK(tw_model_save_whole(model, path_of("a.safetensors")));
    size_t size = get_bytes("a.safetensors", bytes);
    bytes[size] = 0;
    for (size_t i = 0; i + 5 < size; i++)
        if (memcmp(&bytes[i], "bcdef", 5) == 0) memcpy(&bytes[i], "\\\",\\\"", 5);
    put_bytes("a.safetensors", bytes, size);
    CHECK_FAILS(tw_model_open(&other, task_context, path_of("a.safetensors"), NULL), TW_ERROR_ARGUMENT,
                "4 names for a model of at most 3 classes");
    tw_model_destroy(model);
}

/* ---- every byte ---- */

/* A small model with everything that a file can hold. */
static void save_small(void) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_batch_norm(model, tw_input(model, 1, 4, 4), NULL);
    x = tw_max_pool(model, tw_conv2d(model, x, 1, 3, TW_OPTIONS(conv2d, .padding = 1)), 2, NULL);
    x = tw_conv2d(model, x, 1, 3, TW_OPTIONS(conv2d, .padding = 1, .tied_to = "conv1"));
    x = tw_dense(model, tw_dropout(model, tw_reshape(model, x, 1, (int64_t[]){4}), 0.25f), 2, NULL);
    CHECK_OK(tw_model_build(model, x, TW_OPTIONS(model, .seed = 1)));
    CHECK_OK(tw_model_set_class_names(model, (const char *[]){"a", "b"}, 2));
    CHECK_OK(tw_model_set_normalization(model, &(tw_normalization){1, {0.5f}, {0.25f}}));
    CHECK_OK(tw_model_save_whole(model, path_of("small.safetensors")));
    tw_model_destroy(model);
}

/* What still opens can be used: it predicts, or says why not. */
static void use(tw_model *model) {
    tw_program *program;
    tw_value *output = tw_model_get_output(model), *input = tw_model_get_input(model);
    float x[16] = {0.5f};
    if (tw_program_create(&program, model, 1, TW_OPTIONS(program, .outputs = &output, .output_count = 1))) return;
    if (input && tw_program_write(program, input, TW_F32, x, 16) == TW_OK && tw_program_run(program) == TW_OK)
        assert_true(tw_program_get_batch(program) == 1);
    tw_program_destroy(program);
}

/* Opens the file as it is now. */
static bool opens(void) {
    tw_model *model;
    tw_status status = tw_model_open(&model, task_context, path_of("small.safetensors"), NULL);
    assert_true(status ? !model && *tw_last_error() : model != NULL);
    if (status) return false;
    use(model);
    tw_model_destroy(model);
    return true;
}

static void test_every_truncation_is_refused(void **state) {
    (void)state;
    char bytes[MOST];
    save_small();
    size_t size = get_bytes("small.safetensors", bytes);
    assert_true(opens());
    while (size-- > 0) {
        assert_int_equal(truncate(path_of("small.safetensors"), (off_t)size), 0);
        assert_false(opens());
        if (!strstr(tw_last_error(), "cut off: get the file again"))
            fail_msg("%zu bytes: \"%s\" does not say what to do", size, tw_last_error());
    }
}

static void test_altered_bytes_end_in_a_status(void **state) {
    (void)state;
    enum { ROUNDS = 6000, CHANGES = 3 };
    static const char marks[] = "0123456789-.eE,:[]{}\"\\ntf x\xff";
    char bytes[MOST];
    int opened = 0;
    save_small();
    const size_t size = get_bytes("small.safetensors", bytes);
    const int file = open(path_of("small.safetensors"), O_WRONLY);
    assert_true(file >= 0);
    tw_context_set_memory_limit(task_context, (size_t)64 << 20);
    for (uint32_t round = 0; round < ROUNDS;
         round++) { /* every byte in turn, by a bit or a mark; further ones at times */
        size_t at[CHANGES];
        for (uint32_t k = 0; k <= round % CHANGES; k++) {
            const uint32_t draw = (round * 4 + k) * 2654435761u;
            at[k] = k ? (draw >> 4) % size : round % size;
            const bool digit = bytes[at[k]] >= '0' && bytes[at[k]] <= '9'; /* another number is still a number */
            const char mark = marks[(draw >> 8) % (digit ? 10 : sizeof marks - 1)];
            const char flipped = (char)(bytes[at[k]] ^ 1 << draw % 8);
            assert_int_equal(pwrite(file, k || round / size % 2 ? &mark : &flipped, 1, (off_t)at[k]), 1);
        }
        opened += opens();
        for (uint32_t k = 0; k <= round % CHANGES; k++)
            assert_int_equal(pwrite(file, &bytes[at[k]], 1, (off_t)at[k]), 1);
    }
    close(file);
    tw_context_set_memory_limit(task_context, 0);
    assert_true(opens());
    assert_in_range(opened, ROUNDS / 50, ROUNDS / 2); /* weights, names, flags: some changes are harmless */
}

/* ---- without memory ---- */

static bool fail_at(void *user, uint64_t index, size_t bytes) {
    (void)bytes;
    return index == *(const uint64_t *)user;
}

static void test_each_allocation_of_an_opening_may_fail(void **state) {
    (void)state;
    enum { ALLOCATIONS = 1000 };
    tw_status status = TW_ERROR_OUT_OF_MEMORY;
    save_small();
    const uint64_t blocks = tw_context_get_memory(task_context).blocks;
    for (uint64_t at = 0; status && at < ALLOCATIONS; at++) {
        tw_model *model;
        tw_context_set_memory_hook(task_context, fail_at, &at);
        status = tw_model_open(&model, task_context, path_of("small.safetensors"), NULL);
        tw_context_set_memory_hook(task_context, NULL, NULL);
        assert_true(status == TW_OK || status == TW_ERROR_OUT_OF_MEMORY);
        assert_true(at > 10 || status);
        tw_model_destroy(model);
        assert_int_equal(tw_context_get_memory(task_context).blocks, blocks);
    }
    assert_int_equal(status, TW_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        in_context(test_a_file_written_by_hand_opens),
        in_context(test_what_is_wrong_in_a_graph_is_named),
        in_context(test_what_is_wrong_in_the_rest_is_named),
        in_context(test_too_many_class_names),
        in_context(test_every_truncation_is_refused),
        in_context(test_altered_bytes_end_in_a_status),
        in_context(test_each_allocation_of_an_opening_may_fail),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
