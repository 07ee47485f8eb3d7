/* The safetensors format: headers that lie, odd keys, damaged files. Models and their files: test_weights_file.c. */
#define _GNU_SOURCE /* pwrite */
#include "check.h"
#include "data_files.h"
#include "golden/weights_from_torch.h"
#include "io/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file of this header and so many bytes of data. */
static void put_file(const char *header, size_t length, size_t data_bytes) {
    static const unsigned char zeros[4096];
    FILE *file = fopen(path_of("x.safetensors"), "wb");
    assert_non_null(file);
    for (int i = 0; i < 8; i++) fputc((int)(length >> 8 * i & 255), file);
    assert_int_equal(fwrite(header, 1, length, file), length);
    assert_int_equal(fwrite(zeros, 1, data_bytes, file), data_bytes);
    assert_int_equal(fclose(file), 0);
}

static tw_status open_file(twi_tensor_file *file) {
    return twi_tensor_file_open(file, context->memory, path_of("x.safetensors"));
}

static void put_bytes(const unsigned char *bytes, size_t size) {
    remove(path_of("x.safetensors")); /* cutting a file and writing it again makes some file systems flush */
    FILE *file = fopen(path_of("x.safetensors"), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* The name of the only tensor of a good file. */
static void assert_name(const char *header, const char *name) {
    twi_tensor_file file;
    put_file(header, strlen(header), 4);
    CHECK_OK(open_file(&file));
    assert_int_equal(file.count, 1);
    assert_string_equal(file.entry[0].name, name);
    twi_tensor_file_close(&file);
}

/* clang-format off */
#define W(dtype, shape, offsets) "\"w\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define A(shape, offsets) ",\"a\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define ONE W("F32", "[1]", "[0,4]")

static const struct refused {
    const char *header;
    size_t data_bytes;
    const char *says[2];
} refused[] = {
    /* ranges */
    {"{" W("F32", "[2,3]", "[24,0]") "}", 24, {"'w'", "ends before it begins"}},
    {"{" W("F32", "[2,3]", "[0,24]") "}", 20, {"'w'", "beyond the end"}},
    {"{" W("F32", "[2,3]", "[0,24]") A("[2]", "[16,24]") "}", 24, {"'a'", "overlap"}},
    {"{" W("F32", "[2,3]", "[0,24]") A("[6]", "[0,24]") "}", 24, {"begins at 0 where 24 is due", "overlap"}},
    {"{" W("F32", "[2,3]", "[0,24]") A("[2]", "[28,36]") "}", 36, {"'a'", "hole"}},
    {"{" W("F32", "[2,3]", "[8,32]") "}", 32, {"'w'", "hole"}},
    {"{" W("F32", "[2,3]", "[0,24]") "}", 40, {"16 bytes", "behind the last tensor"}},
    {"{}", 1, {"1 byte lies behind the last tensor", ""}},
    /* shapes */
    {"{" W("F32", "[2,3]", "[0,20]") "}", 20, {"'w'", "20 bytes, its shape and type need 24"}},
    {"{" W("F16", "[2,3]", "[0,24]") "}", 24, {"'w'", "24 bytes, its shape and type need 12"}},
    {"{" W("F32", "[8589934592,8589934592]", "[0,0]") "}", 0, {"'w'", "overflow"}},
    {"{" W("F32", "[4611686018427387904]", "[0,0]") "}", 0, {"'w'", "overflow"}},
    {"{" W("F32", "[0,4611686018427387904,4611686018427387904]", "[0,0]") "}", 0, {"'w'", "more elements"}},
    {"{" W("F32", "[1,1,1,1,1,1,1]", "[0,4]") "}", 4, {"'w'", "more than 6 axes"}},
    /* numbers */
    {"{" W("F32", "[-2,3]", "[0,24]") "}", 24, {"'w'", "whole number, found '-2,3"}},
    {"{" W("F32", "[2.0,3]", "[0,24]") "}", 24, {"'w'", "whole number, found '2.0"}},
    {"{" W("F32", "[2e0,3]", "[0,24]") "}", 24, {"'w'", "whole number, found '2e0"}},
    {"{" W("F32", "[02,3]", "[0,24]") "}", 24, {"'w'", "whole number, found '02"}},
    {"{" W("F32", "[2,3]", "[-0,24]") "}", 24, {"'w'", "whole number, found '-0"}},
    {"{" W("F32", "[2,3]", "[18446744073709551616,24]") "}", 24, {"'w'", "below 2^63"}},
    {"{" W("F32", "[18446744073709551617]", "[0,4]") "}", 4, {"'w'", "below 2^63"}},
    {"{" W("F32", "[2,3]", "[0]") "}", 24, {"'w'", "','"}},
    {"{" W("F32", "[2,3]", "[0,24,24]") "}", 24, {"'w'", "']'"}},
    {"{" W("F32", "6", "[0,24]") "}", 24, {"'w'", "'['"}},
    /* types and keys */
    {"{" W("F33", "[2,3]", "[0,24]") "}", 24, {"'w'", "type F33 is not known"}},
    {"{" W("f32", "[2,3]", "[0,24]") "}", 24, {"'w'", "type f32 is not known"}},
    {"{" W("a type with a very long name", "[2,3]", "[0,24]") "}", 24, {"'w'", "shorter string"}},
    {"{\"w\":{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, {"'w'", "'\"'"}},
    {"{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, {"'w'", "'dtype' is missing"}},
    {"{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, {"'w'", "'shape' is missing"}},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, {"'w'", "'data_offsets' is missing"}},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     {"'w'", "'shape' is unknown or repeated"}},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, {"'w'", "'x' is unknown"}},
    {"{\"w\":{}}", 0, {"'w'", "'dtype' is missing"}},
    {"{\"w\":7}", 0, {"'w'", "'{'"}},
    /* names */
    {"{" ONE ",\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, {"duplicate tensor 'w'", ""}},
    {"{" ONE ",\"\\u0077\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, {"duplicate tensor 'w'", ""}},
    {"{" ONE ",\"w\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 4, {"duplicate tensor 'w'", ""}},
    {"{\"a\\u0000b\":1}", 0, {"other than NUL", ""}},
    {"{\"\\ud800x\":1}", 0, {"surrogate", ""}},
    {"{\"\\ud800\\u0041\":1}", 0, {"surrogate", ""}},
    {"{\"\\udc00\":1}", 0, {"surrogate", ""}},
    {"{\"\\u00g0\":1}", 0, {"hexadecimal", ""}},
    {"{\"\\q\":1}", 0, {"known escape", ""}},
    {"{\"a\nb\":1}", 0, {"control character", ""}},
    {"{\"a", 0, {"'\"'", "the end"}},
    {"{\"a\\", 0, {"known escape", "the end"}},
    /* metadata */
    {"{\"__metadata__\":{\"a\":1}," ONE "}", 4, {"'__metadata__'", "'\"'"}},
    {"{\"__metadata__\":{\"a\":{\"b\":\"c\"}}," ONE "}", 4, {"'__metadata__'", "'\"'"}},
    {"{\"__metadata__\":[]," ONE "}", 4, {"'__metadata__'", "'{'"}},
    {"{\"__metadata__\":{},\"__metadata__\":{}," ONE "}", 4, {"__metadata__", "repeated"}},
    /* the text as a whole */
    {"", 0, {"header", "'{'"}},
    {"[]", 0, {"header", "'{'"}},
    {"{" ONE, 4, {"header", "'}'"}},
    {"{" ONE ",}", 4, {"header", "'\"'"}},
    {"{" ONE "}x", 4, {"header", "the end of the header, found 'x'"}},
    {"{" ONE "}{}", 4, {"header", "the end of the header"}},
};
/* clang-format on */

static void test_headers_that_lie_are_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        twi_tensor_file file;
        put_file(refused[i].header, strlen(refused[i].header), refused[i].data_bytes);
        tw_status status = open_file(&file);
        const char *text = tw_last_error();
        if (status != TW_ERROR_FORMAT) fail_msg("%s: %s", refused[i].header, tw_status_name(status));
        for (int k = 0; k < 2; k++)
            if (!strstr(text, refused[i].says[k]))
                fail_msg("%s: \"%s\" does not say \"%s\"", refused[i].header, text, refused[i].says[k]);
        if (!strstr(text, path_of(""))) fail_msg("%s: \"%s\" does not name the file", refused[i].header, text);
    }
}

static void test_good_headers_are_read(void **state) {
    (void)state;
    static const char *const good[] = {
        "{" ONE "}",
        "{" ONE "}   \n\t ",
        " { \"w\" : { \"shape\" : [ 1 ] , \"data_offsets\" : [ 0 , 4 ] , \"dtype\" : \"F32\" } } ",
        "{\"__metadata__\":{\"format\":\"pt\",\"n\":\"1\"}," ONE "}",
        "{" ONE ",\"__metadata__\":{}}",
        "{" W("F32", "[]", "[0,4]") "}",
        "{" W("U8", "[2,2]", "[0,4]") "}",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_name(good[i], "w");
    /* not in the order of the data, and an empty tensor in between */
    const char *unordered = "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[4,8]},"
                            "\"e\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[4,4]}," ONE "}";
    twi_tensor_file file;
    put_file(unordered, strlen(unordered), 8);
    CHECK_OK(open_file(&file));
    assert_int_equal(file.count, 3);
    assert_int_equal(file.entry[0].dtype, TW_BF16);
    assert_int_equal(file.entry[1].shape.rank, 2);
    assert_int_equal(file.entry[2].begin, 0);
    twi_tensor_file_close(&file);
    put_file("{}", 2, 0);
    CHECK_OK(open_file(&file));
    assert_int_equal(file.count, 0);
    twi_tensor_file_close(&file);
}

static void test_odd_names_are_kept(void **state) {
    (void)state;
#define NAMED(name) "{\"" name "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"
    assert_name(NAMED(""), "");
    assert_name(NAMED("\\u0077"), "w");
    assert_name(NAMED("\\\"\\\\\\/\\b\\f\\n\\r\\t"), "\"\\/\b\f\n\r\t");
    assert_name(NAMED("\\u00e9\\u20AC"), "\xC3\xA9\xE2\x82\xAC");
    assert_name(NAMED("\xC3\xA9"), "\xC3\xA9");
    assert_name(NAMED("\\ud83d\\ude00"), "\xF0\x9F\x98\x80");
    enum { LONG = 10240, METADATA = 200000 };
    char *header = malloc(METADATA + 256), *name = malloc(LONG + 1);
    assert_true(header && name);
    memset(name, 'n', LONG);
    name[LONG] = 0;
    sprintf(header, NAMED("%s"), name);
    assert_name(header, name);
    /* a long text among the metadata is nobody's fault */
    sprintf(header, "{\"__metadata__\":{\"k\":\"%0*d\"}," ONE "}", METADATA, 0);
    assert_name(header, "w");
    free(name);
    free(header);
}

static void test_metadata_are_kept(void **state) {
    (void)state;
    twi_tensor_file file;
    const char *header = "{" ONE ",\"__metadata__\":{\"a\":\"b\",\"\":\"e\",\"k\\n\":\"\\\"\\u00e9\",\"b\":\"\"}}";
    put_file(header, strlen(header), 4);
    CHECK_OK(open_file(&file));
    assert_string_equal(twi_tensor_file_find(&file, "a"), "b");
    assert_string_equal(twi_tensor_file_find(&file, ""), "e");
    assert_string_equal(twi_tensor_file_find(&file, "k\n"), "\"\xC3\xA9");
    assert_string_equal(twi_tensor_file_find(&file, "b"), ""); /* the key, not the text of "a" */
    assert_null(twi_tensor_file_find(&file, "e"));
    twi_tensor_file_close(&file);
    put_file("{}", 2, 0);
    CHECK_OK(open_file(&file));
    assert_null(twi_tensor_file_find(&file, "a"));
    twi_tensor_file_close(&file);
}

static void test_lengths_that_lie_are_refused(void **state) {
    (void)state;
    static const unsigned char longer[] = {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'},
                               huge[] = {0, 0, 0, 0, 0, 0, 0, 128, '{', '}'},
                               wrapping[] = {248, 255, 255, 255, 255, 255, 255, 255, '{', '}'},
                               none[] = {0, 0, 0, 0, 0, 0, 0, 0};
    twi_tensor_file file;
    tw_context_set_memory_limit(context,
                                tw_context_get_memory(context).bytes + 4096); /* nothing is taken on their word */
    put_bytes(longer, sizeof longer);
    CHECK_FAILS(open_file(&file), TW_ERROR_FORMAT, "ends inside its header: it has 10 bytes, of at least 11");
    put_bytes((const unsigned char *)"hello\0\0\0, world", 15);
    CHECK_FAILS(open_file(&file), TW_ERROR_FORMAT, "is no safetensors file");
    put_bytes(huge, sizeof huge);
    CHECK_FAILS(open_file(&file), TW_ERROR_FORMAT, "a header of 9223372036854775808 bytes");
    put_bytes(wrapping, sizeof wrapping);
    CHECK_FAILS(open_file(&file), TW_ERROR_FORMAT, "a header of 18446744073709551608 bytes");
    put_bytes(none, sizeof none);
    CHECK_FAILS(open_file(&file), TW_ERROR_FORMAT, "expected '{'");
    put_bytes(none, 7);
    CHECK_FAILS(open_file(&file), TW_ERROR_FORMAT, "ends after 7 bytes");
    put_bytes(none, 0);
    CHECK_FAILS(open_file(&file), TW_ERROR_FORMAT, "is empty");
    tw_context_set_memory_limit(context, 0);
}

static void test_what_is_no_file_is_refused(void **state) {
    (void)state;
    twi_tensor_file file;
    CHECK_FAILS(twi_tensor_file_open(&file, context->memory, path_of("absent")), TW_ERROR_FILE, "No such file");
    CHECK_FAILS(twi_tensor_file_open(&file, context->memory, path_of("")), TW_ERROR_FILE, "not a regular file");
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    CHECK_FAILS(twi_tensor_file_open(&file, context->memory, path_of("pipe")), TW_ERROR_FILE, "not a regular file");
}

/* Offsets beyond 4 GiB: a file with a hole, and three numbers behind it. */
static void test_a_file_beyond_four_gigabytes(void **state) {
    (void)state;
    static const float last[3] = {1, 2, 3};
    const char *header = "{\"hole\":{\"dtype\":\"U8\",\"shape\":[4400000000],\"data_offsets\":[0,4400000000]},"
                         "\"last\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[4400000000,4400000012]}}";
    twi_tensor_file file;
    float values[3];
    put_file(header, strlen(header), 0);
    int descriptor = open(path_of("x.safetensors"), O_WRONLY);
    assert_true(descriptor >= 0);
    off_t at = (off_t)(8 + strlen(header)) + (off_t)4400000000;
    if (pwrite(descriptor, last, sizeof last, at) != sizeof last) {
        print_message("skipped: no files of more than 4 GiB here: %s\n", strerror(errno));
        close(descriptor);
        return;
    }
    close(descriptor);
    CHECK_OK(open_file(&file));
    CHECK_OK(twi_tensor_file_read(&file, &file.entry[1], values));
    assert_memory_equal(values, last, sizeof last);
    twi_tensor_file_close(&file);
}

/* Whatever is accepted is consistent: the entries fill the data exactly, each by its shape and type. */
static bool opens_consistent(size_t size) {
    twi_tensor_file file;
    tw_status status = open_file(&file);
    if (status) {
        assert_int_equal(status, TW_ERROR_FORMAT);
        return false;
    }
    uint64_t total = 0;
    for (int i = 0; i < file.count; i++) {
        const twi_tensor_entry *entry = &file.entry[i];
        assert_true(entry->begin <= entry->end && file.data_offset + entry->end <= size);
        assert_int_equal(entry->end - entry->begin,
                         (uint64_t)twi_shape_count(&entry->shape) * tw_dtype_size(entry->dtype));
        total += entry->end - entry->begin;
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(entry->name, file.entry[k].name);
            assert_true(entry->end <= file.entry[k].begin || file.entry[k].end <= entry->begin);
        }
        void *data = malloc(entry->end - entry->begin + 1);
        assert_non_null(data);
        CHECK_OK(twi_tensor_file_read(&file, entry, data));
        free(data);
    }
    assert_int_equal(file.data_offset + total, size);
    twi_tensor_file_close(&file);
    return true;
}

static void test_flipped_bits(void **state) {
    (void)state;
    enum { FLIPS = 10000 };
    unsigned char bytes[sizeof torch_f16];
    uint32_t random = 1;
    int accepted = 0;
    for (int flip = 0; flip < FLIPS; flip++) {
        memcpy(bytes, torch_f16, sizeof bytes);
        for (int k = 0; k < 1 + flip % 3; k++) {
            random = random * 1664525u + 1013904223u; /* Numerical Recipes' generator: the same flips everywhere */
            bytes[(random >> 8) % sizeof bytes] ^= (unsigned char)(1u << (random >> 5 & 7));
        }
        put_bytes(bytes, sizeof bytes);
        accepted += opens_consistent(sizeof bytes);
    }
    assert_true(accepted > FLIPS / 20 &&
                accepted < FLIPS * 9 / 10); /* flips in data and in names pass, others do not */
}

static void test_cut_anywhere(void **state) {
    (void)state;
    for (size_t size = 0; size < sizeof torch_f16; size++) {
        put_bytes(torch_f16, size);
        assert_false(opens_consistent(size));
        if (!strstr(tw_last_error(), "cut off: get the file again"))
            fail_msg("%zu bytes: \"%s\" does not say what to do", size, tw_last_error());
    }
    put_bytes(torch_f16, sizeof torch_f16);
    assert_true(opens_consistent(sizeof torch_f16));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        in_folder(test_headers_that_lie_are_refused),
        in_folder(test_good_headers_are_read),
        in_folder(test_odd_names_are_kept),
        in_folder(test_metadata_are_kept),
        in_folder(test_lengths_that_lie_are_refused),
        in_folder(test_a_file_beyond_four_gigabytes),
        in_folder(test_what_is_no_file_is_refused),
        in_folder(test_flipped_bits),
        in_folder(test_cut_anywhere),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
