#define _GNU_SOURCE
#include "checksum.h"

#include <stdio.h>
#include <string.h>
#include <zlib.h>

enum { PART_BYTES = 1 << 16 };

char *twi_checksum_find(char *header, size_t length) {
    static const char before[] = "\"" TWI_CHECKSUM_KEY "\":\"";
    const size_t before_length = sizeof before - 1;
    char *at = memmem(header, length, before, before_length);
    if (!at || (size_t)(header + length - at) < before_length + TWI_CHECKSUM_DIGITS) return NULL;
    return at + before_length;
}

uint32_t twi_checksum_add(uint32_t sum, const void *data, size_t bytes) {
    return (uint32_t)crc32_z(sum, data, bytes);
}

static tw_status sum_header(const twi_tensor_file *file, char *header, uint32_t *sum, char digits[]) {
    const size_t length = (size_t)file->data_offset;
    TWI_TRY(twi_tensor_file_read_at(file, 0, header, length));
    char *at = twi_checksum_find(header, length);
    if (!at) return TW_OK;
    memcpy(digits, at, TWI_CHECKSUM_DIGITS);
    memcpy(at, TWI_CHECKSUM_EMPTY, TWI_CHECKSUM_DIGITS);
    *sum = twi_checksum_add(0, header, length);
    return TW_OK;
}

static tw_status sum_data(const twi_tensor_file *file, uint32_t *sum) {
    unsigned char part[PART_BYTES];
    uint64_t bytes = 0;
    for (int e = 0; e < file->count; e++)
        if (file->entry[e].end > bytes) bytes = file->entry[e].end;
    for (uint64_t at = 0; at < bytes; at += PART_BYTES) {
        const size_t some = bytes - at < PART_BYTES ? (size_t)(bytes - at) : PART_BYTES;
        TWI_TRY(twi_tensor_file_read_at(file, file->data_offset + at, part, some));
        *sum = twi_checksum_add(*sum, part, some);
    }
    return TW_OK;
}

tw_status twi_checksum_verify(const twi_tensor_file *file) {
    char *header, written[TWI_CHECKSUM_DIGITS + 1] = "", found[TWI_CHECKSUM_DIGITS + 1];
    uint32_t sum = 0;
    TWI_TRY(twi_get(file->memory, &header, (size_t)file->data_offset, 1, "safetensors header"));
    tw_status status = sum_header(file, header, &sum, written);
    twi_put(file->memory, header);
    TWI_TRY(status);
    if (!*written) return TW_OK;
    TWI_TRY(sum_data(file, &sum));
    snprintf(found, sizeof found, "%08x", (unsigned)sum);
    if (strcmp(written, found) == 0) return TW_OK;
    return TWI_FAIL(TW_ERROR_FORMAT, "%s: is damaged: its bytes have the checksum %s, it was written with %s; take another copy",
                    file->path, found, written);
}
