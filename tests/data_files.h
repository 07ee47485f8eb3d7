/* Small data files made on the spot, for the tests of what reads them: IDX and CIFAR, packed, put into a folder of
 * their own, damaged. Every test gets an empty folder; afterwards it is gone and no block of memory may be left. */
#ifndef TALWEG_TESTS_DATA_FILES_H
#define TALWEG_TESTS_DATA_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/context.h"
#include <talweg/data.h>

#define assert_ok(call)                                 \
    do {                                                \
        tw_status got_ = (call);                        \
        if (got_) print_error("%s\n", tw_last_error()); \
        assert_int_equal(got_, TW_OK);                  \
    } while (0)

enum { IMAGES = 3, SIDE = 4, CIFAR10 = 3073, CIFAR100 = 3074 };

extern tw_context *context;

/* Contents of a file while a test puts it together. */
typedef struct contents {
    unsigned char bytes[3 * CIFAR100 + 8192];
    size_t size;
} contents;

void add(contents *file, const void *bytes, size_t size);
contents gzipped(const contents *file);

/* SIDE x SIDE images and the labels 0, 1, 2, 0, ... for them. */
contents idx_images(uint32_t count);
contents idx_labels(uint32_t count);
/* Records with one or two label bytes, r + 1 and r + 11, then pixels that tell record and place. */
contents cifar(int records, int label_bytes);

/* Fixtures: of the group, of one test. */
int open_context(void **state);
int close_context(void **state);
int make_folder(void **state);
int remove_folder(void **state);
#define in_folder(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

/* A name inside the test's folder; valid until the next call. */
const char *path_of(const char *name);
void put(const char *name, const contents *file);

tw_dataset *opened(tw_split split, const tw_dataset_options *options);
/* Opening the folder fails; the message holds `text` and names the folder. */
void assert_open_fails(tw_split split, const tw_dataset_options *options, tw_status status, const char *text);

/* Cuts the file, and flips each bit of it, at every step-th byte, and opens the folder each time under a small cap:
 * whatever comes of it, it is a status. */
void open_damaged(const char *name, const contents *whole, size_t step);
/* Fails each allocation of an opening in turn. */
void open_without_memory(void);

#endif
