/* See data_files.h. */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */
#include "data_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { PATH = 64 };

tw_context *context;
static char root[] = "/tmp/talweg-data-XXXXXX", folder[PATH];
static uint64_t blocks_at_start;

void add(contents *file, const void *bytes, size_t size) {
    memcpy(file->bytes + file->size, bytes, size);
    file->size += size;
}

static void add_be32(contents *file, uint32_t value) {
    const unsigned char bytes[4] = {value >> 24, value >> 16 & 255, value >> 8 & 255, value & 255};
    add(file, bytes, 4);
}

contents idx_images(uint32_t count) {
    contents file = {.size = 0};
    add_be32(&file, 0x803);
    add_be32(&file, count);
    add_be32(&file, SIDE);
    add_be32(&file, SIDE);
    for (uint32_t i = 0; i < count * SIDE * SIDE; i++) file.bytes[file.size++] = (unsigned char)(i * 7);
    return file;
}

contents idx_labels(uint32_t count) {
    contents file = {.size = 0};
    add_be32(&file, 0x801);
    add_be32(&file, count);
    for (uint32_t i = 0; i < count; i++) file.bytes[file.size++] = (unsigned char)(i % 3);
    return file;
}

contents cifar(int records, int label_bytes) {
    contents file = {.size = 0};
    for (int r = 0; r < records; r++) {
        for (int k = 0; k < label_bytes; k++) file.bytes[file.size++] = (unsigned char)(r + 1 + 10 * k);
        for (int i = 0; i < 3072; i++) file.bytes[file.size++] = (unsigned char)(r * 50 + i);
    }
    return file;
}

const char *path_of(const char *name) {
    static char path[2 * PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

void put(const char *name, const contents *file) {
    FILE *stream = fopen(path_of(name), "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(file->bytes, 1, file->size, stream), file->size);
    assert_int_equal(fclose(stream), 0);
}

contents gzipped(const contents *file) {
    contents out = {.size = 0};
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)file->bytes;
    z.avail_in = (uInt)file->size;
    z.next_out = out.bytes;
    z.avail_out = sizeof out.bytes;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    out.size = z.total_out;
    deflateEnd(&z);
    return out;
}

int open_context(void **state) {
    (void)state;
    tw_context_options options = TW_CONTEXT_OPTIONS_INIT;
    options.threads = 1;
    if (twi_context_open(&context, &options) || !mkdtemp(root)) return -1;
    snprintf(folder, sizeof folder, "%s/data", root);
    blocks_at_start = twi_memory_get_stats(context->memory).blocks;
    return 0;
}

int close_context(void **state) {
    (void)state;
    twi_context_close(context);
    return rmdir(root);
}

int make_folder(void **state) {
    (void)state;
    return mkdir(folder, 0700);
}

int remove_folder(void **state) {
    (void)state;
    char command[PATH + 16];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    if (system(command)) return -1;
    return twi_memory_get_stats(context->memory).blocks == blocks_at_start ? 0 : -1; /* nothing leaks */
}

tw_dataset *opened(tw_split split, const tw_dataset_options *options) {
    tw_dataset *dataset;
    assert_ok(tw_dataset_open(&dataset, context, folder, split, options));
    return dataset;
}

void assert_open_fails(tw_split split, const tw_dataset_options *options, tw_status status, const char *text) {
    tw_dataset *dataset = (void *)1;
    tw_status got = tw_dataset_open(&dataset, context, folder, split, options);
    if (got != status) print_error("%s where '%s' is expected\n", got ? tw_last_error() : "success", text);
    assert_int_equal(got, status);
    if (!strstr(tw_last_error(), text)) fail_msg("'%s' lacks '%s'", tw_last_error(), text);
    if (!strstr(tw_last_error(), folder)) fail_msg("'%s' does not name the file", tw_last_error());
    assert_null(dataset);
}

/* Opens whatever is there; the only requirement is a status, and no memory worth mentioning. */
static void open_anyhow(void) {
    tw_dataset *dataset;
    tw_status status = tw_dataset_open(&dataset, context, folder, TW_TRAIN, NULL);
    assert_true(status == TW_OK ? dataset != NULL : dataset == NULL && tw_last_error()[0]);
    tw_dataset_destroy(dataset);
}

void open_damaged(const char *name, const contents *whole, size_t step) {
    twi_memory_set_limit(context->memory, twi_memory_get_stats(context->memory).bytes + (4 << 20));
    for (size_t i = 0; i < whole->size; i += step) {
        contents file = *whole;
        file.size = i;
        put(name, &file);
        open_anyhow();
        for (int bit = 0; bit < 8; bit++) {
            file = *whole;
            file.bytes[i] ^= (unsigned char)(1 << bit);
            put(name, &file);
            open_anyhow();
        }
    }
    twi_memory_set_limit(context->memory, 0);
}

static bool fail_one(void *user, uint64_t index, size_t size) {
    (void)size;
    return index == *(const uint64_t *)user;
}

void open_without_memory(void) {
    tw_status status = TW_ERROR_OUT_OF_MEMORY;
    uint64_t failing = 0;
    for (; status; failing++) {
        tw_dataset *dataset;
        assert_true(failing < 200);
        twi_memory_set_hook(context->memory, fail_one, &failing);
        status = tw_dataset_open(&dataset, context, folder, TW_TRAIN, NULL);
        twi_memory_set_hook(context->memory, NULL, NULL);
        assert_true(status == TW_OK || (status == TW_ERROR_OUT_OF_MEMORY && !dataset));
        tw_dataset_destroy(dataset);
        assert_int_equal(twi_memory_get_stats(context->memory).blocks, blocks_at_start);
    }
    assert_true(failing > 10);
}
