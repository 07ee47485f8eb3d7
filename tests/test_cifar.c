/* Data sets in CIFAR-10 and CIFAR-100 files: whole, malformed, damaged at random; and folders without a data set. */
#include "data_files.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static void cifar10_batches(void **state) {
    (void)state;
    const contents one = cifar(1, 1), two = cifar(2, 1), three = cifar(3, 1);
    put("data_batch_1.bin", &two);
    put("data_batch_4.bin", &three);
    put("test_batch.bin", &one);
    tw_dataset *dataset = opened(TW_TRAIN, NULL);
    assert_int_equal(tw_dataset_count(dataset), 5);
    assert_int_equal(tw_dataset_get_channels(dataset), 3);
    assert_int_equal(tw_dataset_get_height(dataset), 32);
    assert_int_equal(tw_dataset_get_classes(dataset), 10);
    assert_string_equal(tw_dataset_get_class_name(dataset, 0), "airplane");
    assert_string_equal(tw_dataset_get_class_name(dataset, 9), "truck");
    static const int32_t labels[] = {1, 2, 1, 2, 3};
    assert_memory_equal(tw_dataset_get_labels(dataset), labels, sizeof labels);
    assert_memory_equal((const char *)tw_dataset_get_images(dataset) + 1 * 3072, two.bytes + CIFAR10 + 1, 3072);
    assert_memory_equal((const char *)tw_dataset_get_images(dataset) + 4 * 3072, three.bytes + 2 * CIFAR10 + 1, 3072);
    tw_dataset_destroy(dataset);
    dataset = opened(TW_TEST, NULL);
    assert_int_equal(tw_dataset_count(dataset), 1);
    tw_dataset_destroy(dataset);

    contents names = {.size = 0};
    add(&names, "a\nb \r\n\nc\nd\ne\nf\ng\nh\ni\nj\n\n", 24);
    put("batches.meta.txt", &names);
    dataset = opened(TW_TEST, NULL);
    assert_string_equal(tw_dataset_get_class_name(dataset, 1), "b");
    assert_string_equal(tw_dataset_get_class_name(dataset, 9), "j");
    tw_dataset_destroy(dataset);
    names.size -= 3;
    put("batches.meta.txt", &names);
    assert_open_fails(TW_TEST, NULL, TW_ERROR_FORMAT, "batches.meta.txt: 9 lines, expected the names of 10 classes");
}

static void cifar100_in_its_folder(void **state) {
    (void)state;
    const contents train = cifar(3, 2);
    contents names = {.size = 0};
    for (int i = 0; i < 20; i++) add(&names, "x?\n", 3);
    assert_int_equal(mkdir(path_of("cifar-100-binary"), 0700), 0);
    put("cifar-100-binary/train.bin", &train);
    put("cifar-100-binary/coarse_label_names.txt", &names);
    tw_dataset *dataset = opened(TW_TRAIN, NULL);
    assert_int_equal(tw_dataset_get_classes(dataset), 100);
    assert_int_equal(tw_dataset_get_labels(dataset)[2], 13);
    assert_string_equal(tw_dataset_get_class_name(dataset, 13), "13");
    assert_memory_equal((const char *)tw_dataset_get_images(dataset) + 2 * 3072, train.bytes + 2 * CIFAR100 + 2, 3072);
    tw_dataset_destroy(dataset);
    dataset = opened(TW_TRAIN, TW_OPTIONS(dataset, .coarse_labels = true));
    assert_int_equal(tw_dataset_get_classes(dataset), 20);
    assert_int_equal(tw_dataset_get_labels(dataset)[2], 3);
    assert_string_equal(tw_dataset_get_class_name(dataset, 0), "x?");
    tw_dataset_destroy(dataset);
}

static void cifar_malformed(void **state) {
    (void)state;
    contents file = cifar(2, 1);
    file.size--;
    put("data_batch_1.bin", &file);
    assert_open_fails(TW_TRAIN, NULL, TW_ERROR_FORMAT,
                      "6145 bytes starting with 01 00 01 02 are not a whole number of CIFAR-10");
    file = cifar(2, 2);
    put("data_batch_1.bin", &file);
    assert_open_fails(TW_TRAIN, NULL, TW_ERROR_FORMAT, "6148 bytes are records of CIFAR-100 (3074 bytes each)");
    file = cifar(2, 1);
    put("data_batch_1.bin", &file);
    put("test.bin", &file);
    assert_open_fails(TW_TEST, NULL, TW_ERROR_FORMAT, "6146 bytes are records of CIFAR-10 (3073 bytes each)");
    contents packed = gzipped(&file);
    put("data_batch_2.bin", &packed);
    assert_open_fails(TW_TRAIN, NULL, TW_ERROR_FORMAT, "data_batch_2.bin: gzip data, expected plain CIFAR-10 records");
    packed.size = 0;
    put("data_batch_2.bin", &packed);
    assert_open_fails(TW_TRAIN, NULL, TW_ERROR_FORMAT, "data_batch_2.bin: is empty");
    file.bytes[CIFAR10] = 10;
    put("data_batch_2.bin", &file);
    assert_open_fails(TW_TRAIN, NULL, TW_ERROR_LABEL,
                      "data_batch_2.bin: record 1 has label 10, outside 0 .. 9 of CIFAR-10");
    file.bytes[CIFAR10] = 5;
    put("data_batch_2.bin", &file);
    assert_open_fails(TW_TRAIN, TW_OPTIONS(dataset, .classes = 5), TW_ERROR_LABEL,
                      "data_batch_2.bin: record 1 has label 5, outside 0 .. 4 of 5 classes");
    file = cifar(2, 2);
    file.bytes[CIFAR100] = 20;
    put("test.bin", &file);
    assert_open_fails(TW_TEST, NULL, TW_ERROR_LABEL, "test.bin: record 1 has coarse label 20, outside 0 .. 19");
}

static void nothing_known_in_the_folder(void **state) {
    (void)state;
    assert_open_fails(TW_TRAIN, NULL, TW_ERROR_FILE, "the folder holds no files");
    const contents file = cifar(1, 1);
    char name[32];
    for (int i = 0; i < 12; i++) {
        snprintf(name, sizeof name, "file%02d", i);
        put(name, &file);
    }
    assert_open_fails(TW_TRAIN, NULL, TW_ERROR_FILE, "the folder holds file00, file01,");
    assert_open_fails(TW_TEST, NULL, TW_ERROR_FILE, "file09 and 2 more");
    tw_dataset *dataset = (void *)1;
    assert_int_equal(tw_dataset_open(&dataset, context, path_of("."), (tw_split)2, NULL), TW_ERROR_ARGUMENT);
    assert_null(dataset);
}

static void no_such_folder(void **state) {
    (void)state;
    tw_dataset *dataset;
    const contents file = cifar(1, 1);
    put("train.bin", &file);
    assert_int_equal(tw_dataset_open(&dataset, context, "/nowhere/data", TW_TRAIN, NULL), TW_ERROR_FILE);
    assert_non_null(strstr(tw_last_error(), "/nowhere/data: the folder cannot be opened: No such file"));
    assert_int_equal(tw_dataset_open(&dataset, context, path_of("train.bin"), TW_TRAIN, NULL), TW_ERROR_FILE);
    assert_non_null(strstr(tw_last_error(), "is a file; give the folder that holds it"));
    assert_int_equal(tw_dataset_open(&dataset, context, NULL, TW_TRAIN, NULL), TW_ERROR_ARGUMENT);
}

static void cifar_damaged(void **state) {
    (void)state;
    const contents records = cifar(2, 1);
    open_damaged("data_batch_3.bin", &records, 61);
}

static void cifar_without_memory(void **state) {
    (void)state;
    const contents records = cifar(2, 1);
    contents names = {.size = 0};
    add(&names, "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n", 20);
    put("data_batch_1.bin", &records);
    put("batches.meta.txt", &names);
    open_without_memory();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        in_folder(cifar10_batches),      in_folder(cifar100_in_its_folder),
        in_folder(cifar_malformed),      in_folder(nothing_known_in_the_folder),
        in_folder(no_such_folder),       in_folder(cifar_damaged),
        in_folder(cifar_without_memory),
    };
    return cmocka_run_group_tests_name("cifar", tests, open_context, close_context);
}
