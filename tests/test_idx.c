/* Data sets in IDX files: whole, packed, malformed in every way we know of, damaged at random. With TALWEG_TEST_DATA
 * naming a folder that holds mnist/, the real MNIST files are read as well. */
#include "data_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH = 256 };

static void assert_idx(const tw_dataset *dataset, int count) {
    const contents images = idx_images((uint32_t)count);
    assert_int_equal(tw_dataset_count(dataset), count);
    assert_int_equal(tw_dataset_get_channels(dataset), 1);
    assert_int_equal(tw_dataset_get_height(dataset), SIDE);
    assert_int_equal(tw_dataset_get_width(dataset), SIDE);
    assert_int_equal(tw_dataset_get_classes(dataset), count < 3 ? count : 3);
    assert_memory_equal(tw_dataset_get_images(dataset), images.bytes + 16, (size_t)count * SIDE * SIDE);
    for (int i = 0; i < count; i++) assert_int_equal(tw_dataset_get_labels(dataset)[i], i % 3);
}

static void idx_plain_and_gzip(void **state) {
    (void)state;
    const contents images = idx_images(IMAGES), labels = idx_labels(IMAGES), packed = gzipped(&images);
    const contents test_images = idx_images(2), test_labels = idx_labels(2);
    put("train-images-idx3-ubyte", &images);
    put("train-labels-idx1-ubyte", &labels);
    put("t10k-images-idx3-ubyte", &test_images);
    put("t10k-labels-idx1-ubyte", &test_labels);
    tw_dataset *dataset = opened(TW_TRAIN, NULL);
    assert_idx(dataset, IMAGES);
    tw_dataset_destroy(dataset);
    dataset = opened(TW_TEST, NULL);
    assert_idx(dataset, 2);
    tw_dataset_destroy(dataset);

    put("train-images-idx3-ubyte", &packed); /* gzip without .gz in its name */
    dataset = opened(TW_TRAIN, NULL);
    assert_idx(dataset, IMAGES);
    tw_dataset_destroy(dataset);

    put("train-images-idx3-ubyte", &images);
    put("train-images-idx3-ubyte.gz", &labels); /* of a plain file and its packed twin the plain one is read */
    put(".train-images-idx3-ubyte.part", &labels);
    dataset = opened(TW_TRAIN, NULL);
    assert_idx(dataset, IMAGES);
    tw_dataset_destroy(dataset);
    put("more-train-images", &images);
    assert_open_fails(TW_TRAIN, NULL, TW_ERROR_FILE, "both more-train-images and train-images-idx3-ubyte");
}

static void idx_opened_as_a_pair(void **state) {
    (void)state;
    char images_path[PATH], labels_path[PATH];
    const contents images = idx_images(IMAGES), labels = idx_labels(IMAGES), half_a = gzipped(&images);
    snprintf(images_path, PATH, "%s", path_of("x"));
    snprintf(labels_path, PATH, "%s", path_of("y"));
    put("x", &half_a);
    put("y", &labels);
    tw_dataset *dataset;
    assert_ok(tw_dataset_open_idx(&dataset, context, images_path, labels_path, TW_OPTIONS(dataset, .classes = 3)));
    assert_idx(dataset, IMAGES);
    tw_dataset_destroy(dataset);
    assert_int_equal(tw_dataset_open_idx(&dataset, context, images_path, "/nowhere/y", NULL), TW_ERROR_FILE);
    assert_non_null(strstr(tw_last_error(), "/nowhere/y: cannot be opened: No such file"));
    assert_null(dataset);
    assert_int_equal(tw_dataset_open_idx(&dataset, context, path_of("."), labels_path, NULL), TW_ERROR_FILE);
    assert_non_null(strstr(tw_last_error(), "is a folder where a file is expected"));
    assert_int_equal(tw_dataset_open_idx(&dataset, context, NULL, labels_path, NULL), TW_ERROR_ARGUMENT);

    /* Two gzip members one after the other are one stream. */
    contents first = images, second = {.size = 0};
    first.size = 20;
    add(&second, images.bytes + 20, images.size - 20);
    contents both = gzipped(&first);
    second = gzipped(&second);
    add(&both, second.bytes, second.size);
    put("x", &both);
    assert_ok(tw_dataset_open_idx(&dataset, context, images_path, labels_path, NULL));
    assert_idx(dataset, IMAGES);
    tw_dataset_destroy(dataset);
}

/* One malformed file beside a good one. */
typedef struct malformed {
    const char *what;    /* for the reader of a failure */
    const char *bytes;   /* put over the front of the good file; NULL: none */
    int front, size;     /* number of them; size of the file, -1: as it was */
    bool labels, pack;   /* it is the labels file; it is gzipped afterwards */
    int cut;             /* bytes taken off the end, after gzipping; negative: added */
    const char *message; /* what the failure must say */
} malformed;

static const malformed idx_cases[] = {
    {"web page", "<!DOCTYPE html><p>404", 21, 21, false, false, 0, "not IDX: starts with '<!DO', expected 00 00 08 03"},
    {"packed web page", "<!DOCTYPE html><p>404", 21, 21, false, true, 0, "not IDX: starts with '<!DO'"},
    {"little-endian", "\x03\x08\x00\x00", 4, -1, false, false, 0, "wrong byte order: starts with 03 08 00 00"},
    {"little-endian labels", "\x01\x08\x00\x00", 4, -1, true, false, 0, "wrong byte order"},
    {"empty", NULL, 0, 0, false, false, 0, "not IDX: starts with nothing"},
    {"three bytes", NULL, 0, 3, false, false, 0, "not IDX: starts with 00 00 08"},
    {"half a header", NULL, 0, 10, false, false, 0, "truncated: 10 bytes, an IDX header of images has 16"},
    {"float", "\x00\x00\x0D\x03", 4, -1, false, false, 0, "element type 0x0D (float), expected 0x08 (unsigned byte)"},
    {"int labels", "\x00\x00\x0C\x01", 4, -1, true, false, 0, "element type 0x0C (32-bit integer)"},
    {"swapped", "\x00\x00\x08\x01", 4, -1, false, false, 0, "holds labels (magic number 00 00 08 01) where images"},
    {"swapped labels", "\x00\x00\x08\x03", 4, -1, true, false, 0,
     "holds images (magic number 00 00 08 03) where labels"},
    {"four axes", "\x00\x00\x08\x04", 4, -1, false, false, 0, "IDX data of 4 axes, expected 3"},
    {"unknown type", "\x00\x00\x07\x03", 4, -1, false, false, 0, "not IDX: starts with 00 00 07 03"},
    {"truncated", NULL, 0, -1, false, false, 1,
     "announces 3 x 4 x 4 images, a file of 64 bytes; it has 63: it is truncated"},
    {"trailing", NULL, 0, -1, false, false, -2, "it has 66: bytes follow"},
    {"trailing labels", NULL, 0, -1, true, false, -1, "announces 3 labels, a file of 11 bytes; it has 12"},
    {"lying count", "\0\0\x08\x03\x7F\xFF\xFF\xFF", 8, -1, false, false, 0, "announces 2147483647 x 4 x 4 images"},
    {"overflow", "\0\0\x08\x03\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 16, -1, false, false, 0,
     "4294967295 x 4294967295 x 4294967295 images, more than any file holds"},
    {"overflow to nothing", "\0\0\x08\x03\x40\0\0\0\x40\0\0\0\x40\0\0\0", 16, -1, false, false, 0,
     "more than any file holds"},
    {"no images", "\0\0\x08\x03\0\0\0\0", 8, 16, false, false, 0, "announces no images (0 x 4 x 4)"},
    {"zero height", "\0\0\x08\x03\0\0\0\3\0\0\0\0", 12, 16, false, false, 0, "announces no images (3 x 0 x 4)"},
    {"gzip too short", NULL, 0, 60, false, true, 0, "announces 3 x 4 x 4 images, 48 bytes; 44 are there"},
    {"gzip too long", NULL, 0, 65, false, true, 0, "bytes follow the 3 x 4 x 4 images that the header announces"},
    {"gzip lying", "\0\0\x08\x03\0\0\0\3\x7F\xFF\xFF\xFF", 12, -1, false, true, 0, "25769803764 bytes; 48 are there"},
    {"gzip without checksum", NULL, 0, -1, false, true, 8, "truncated gzip data"},
    {"gzip cut", NULL, 0, -1, false, true, 30, "truncated gzip data"},
    {"gzip with a tail", NULL, 0, -1, false, true, -3, "bytes that are not gzip data follow"},
};

static void idx_malformed(void **state) {
    (void)state;
    enum { LITTLE = 1 << 20 };
    for (size_t i = 0; i < sizeof idx_cases / sizeof *idx_cases; i++) {
        const malformed *c = &idx_cases[i];
        contents images = idx_images(IMAGES), labels = idx_labels(IMAGES), *file = c->labels ? &labels : &images;
        if (c->bytes) memcpy(file->bytes, c->bytes, (size_t)c->front);
        if (c->size >= 0) file->size = (size_t)c->size;
        if (c->pack) *file = gzipped(file);
        file->size -= (size_t)c->cut;
        put("train-images-idx3-ubyte.gz", &images);
        put("train-labels-idx1-ubyte", &labels);
        /* A lying header must not buy memory: all this works under a small cap. */
        twi_memory_set_limit(context->memory, twi_memory_get_stats(context->memory).bytes + 2 * LITTLE);
        assert_open_fails(TW_TRAIN, NULL, TW_ERROR_FORMAT, c->message);
        twi_memory_set_limit(context->memory, 0);
        if (!strstr(tw_last_error(), c->labels ? "train-labels-idx1-ubyte" : "train-images-idx3-ubyte.gz"))
            fail_msg("%s: '%s' does not name the file", c->what, tw_last_error());
    }
}

static void idx_that_does_not_fit_together(void **state) {
    (void)state;
    contents images = idx_images(IMAGES), labels = idx_labels(IMAGES + 1);
    put("train-images", &images);
    put("train-labels", &labels);
    assert_open_fails(TW_TRAIN, NULL, TW_ERROR_FORMAT, "images and labels disagree: 3 images in ");
    labels = idx_labels(IMAGES);
    put("train-labels", &labels);
    assert_open_fails(TW_TRAIN, TW_OPTIONS(dataset, .classes = 2), TW_ERROR_LABEL,
                      "train-labels: record 2 has label 2, outside 0 .. 1 of 2 classes");
    put("test-labels", &labels);
    assert_open_fails(TW_TEST, NULL, TW_ERROR_FILE, "test-labels is there, but no file of images");
}

static void idx_damaged(void **state) {
    (void)state;
    const contents images = idx_images(IMAGES), labels = idx_labels(IMAGES), packed = gzipped(&images);
    put("train-labels", &labels);
    open_damaged("train-images", &images, 1);
    open_damaged("train-images", &packed, 1);
    put("train-images", &images);
    open_damaged("train-labels", &labels, 1);
}

static void idx_without_memory(void **state) {
    (void)state;
    const contents images = idx_images(IMAGES), labels = idx_labels(IMAGES), packed = gzipped(&images);
    put("train-images.gz", &packed);
    put("train-labels", &labels);
    open_without_memory();
}

/* 1,797 digits of 8 x 8 pixels, every third of each class kept for testing. */
static void bundled_digits(void **state) {
    (void)state;
    const char *source = getenv("TALWEG_SOURCE_DIR");
    if (!source) {
        print_message("TALWEG_SOURCE_DIR is not set: the bundled digits are not read\n");
        skip();
    }
    char path[PATH];
    tw_dataset *train, *test;
    snprintf(path, sizeof path, "%s/examples/data/digits", source);
    assert_ok(tw_dataset_open(&train, context, path, TW_TRAIN, NULL));
    assert_ok(tw_dataset_open(&test, context, path, TW_TEST, NULL));
    assert_int_equal(tw_dataset_count(train) + tw_dataset_count(test), 1797);
    assert_in_range(tw_dataset_count(test), 1797 / 3 - 10, 1797 / 3);
    assert_int_equal(tw_dataset_get_classes(test), 10);
    assert_int_equal(tw_dataset_get_height(test) * tw_dataset_get_width(test), 64);
    tw_dataset_destroy(train);
    tw_dataset_destroy(test);
}

/* Labels and counts as published; mean and deviation as everybody normalises with. */
static void real_mnist(void **state) {
    (void)state;
    const char *data = getenv("TALWEG_TEST_DATA");
    if (!data) {
        print_message("TALWEG_TEST_DATA is not set: the real MNIST files are not read\n");
        skip();
    }
    static const int32_t train_labels[] = {5, 0, 4, 1, 9}, test_labels[] = {7, 2, 1, 0, 4};
    char path[PATH];
    float mean, deviation;
    tw_dataset *dataset;
    snprintf(path, sizeof path, "%s/mnist", data);
    assert_ok(tw_dataset_open(&dataset, context, path, TW_TRAIN, NULL));
    assert_int_equal(tw_dataset_count(dataset), 60000);
    assert_int_equal(tw_dataset_get_classes(dataset), 10);
    assert_memory_equal(tw_dataset_get_labels(dataset), train_labels, sizeof train_labels);
    assert_ok(tw_dataset_measure(dataset, &mean, &deviation));
    assert_float_equal(mean, 0.1307f, 5e-5f);
    assert_float_equal(deviation, 0.3081f, 5e-5f);
    tw_dataset_destroy(dataset);
    assert_ok(tw_dataset_open(&dataset, context, path, TW_TEST, NULL));
    assert_int_equal(tw_dataset_count(dataset), 10000);
    assert_memory_equal(tw_dataset_get_labels(dataset), test_labels, sizeof test_labels);
    tw_dataset_destroy(dataset);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        in_folder(idx_plain_and_gzip),    in_folder(idx_opened_as_a_pair),
        in_folder(idx_malformed),         in_folder(idx_that_does_not_fit_together),
        in_folder(idx_damaged),           in_folder(idx_without_memory),
        cmocka_unit_test(bundled_digits), cmocka_unit_test(real_mnist),
    };
    return cmocka_run_group_tests_name("idx", tests, open_context, close_context);
}
