/* Reading a data file from front to back, gunzipped where it is gzip. zlib works in memory of the context, and no
 * block is larger than what the file has really delivered calls for. */
#define _POSIX_C_SOURCE 200809L /* open flags */
#include "byte_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { INPUT_BYTES = 1 << 16, FIRST_BLOCK_BYTES = 1 << 20, MOST_AT_ONCE = 1 << 30 };

struct twi_stream {
    twi_memory *memory;
    char *path;
    int file;
    uint64_t file_size;
    unsigned char *input; /* bytes of the file not yet handed on: input[at .. length-1] */
    size_t at, length;
    bool gzip;
    bool inside;    /* within a gzip member: the file may not end here */
    bool inflating; /* `z` is set up */
    z_stream z;
    tw_status allocation; /* why zlib got no memory */
};

static voidpf zlib_get(voidpf opaque, uInt count, uInt size) {
    twi_stream *stream = opaque;
    void *block = NULL;
    stream->allocation = twi_get(stream->memory, &block, count, size, "gzip reader");
    return block;
}

static void zlib_put(voidpf opaque, voidpf block) {
    twi_stream *stream = opaque;
    twi_put(stream->memory, block);
}

/* Reads from the file itself; *got 0 is its end. */
static tw_status read_file(twi_stream *stream, void *destination, size_t size, size_t *got) {
    ssize_t n;
    do n = read(stream->file, destination, size < MOST_AT_ONCE ? size : MOST_AT_ONCE);
    while (n < 0 && errno == EINTR);
    if (n < 0) return TWI_FAIL(TW_ERROR_FILE, "%s: cannot be read: %s", stream->path, strerror(errno));
    *got = (size_t)n;
    return TW_OK;
}

static tw_status refill(twi_stream *stream) {
    stream->at = 0;
    stream->length = 0;
    return read_file(stream, stream->input, INPUT_BYTES, &stream->length);
}

static tw_status start_inflating(twi_stream *stream) {
    stream->z.zalloc = zlib_get;
    stream->z.zfree = zlib_put;
    stream->z.opaque = stream;
    if (inflateInit2(&stream->z, 16 + MAX_WBITS) != Z_OK)
        return stream->allocation ? stream->allocation
                                  : TWI_FAIL(TW_ERROR_INTERNAL, "%s: zlib refuses to start", stream->path);
    stream->inflating = true;
    return TW_OK;
}

static tw_status open_file(twi_stream *stream) {
    struct stat info;
    /* Non-blocking, so that opening a pipe returns and is refused below; for a regular file it changes nothing. */
    stream->file = open(stream->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (stream->file < 0 || fstat(stream->file, &info))
        return TWI_FAIL(TW_ERROR_FILE, "%s: cannot be opened: %s", *stream->path ? stream->path : "''",
                        strerror(errno));
    if (!S_ISREG(info.st_mode))
        return TWI_FAIL(TW_ERROR_FILE, "%s: is %s where a file is expected", stream->path,
                        S_ISDIR(info.st_mode) ? "a folder" : "neither a file nor a folder");
    stream->file_size = (uint64_t)info.st_size;
    TWI_TRY(twi_get(stream->memory, &stream->input, INPUT_BYTES, 1, "file buffer"));
    TWI_TRY(refill(stream));
    stream->gzip = stream->length >= 2 && stream->input[0] == 0x1F && stream->input[1] == 0x8B;
    return stream->gzip ? start_inflating(stream) : TW_OK;
}

tw_status twi_stream_open(twi_stream **out, twi_memory *memory, const char *path) {
    twi_stream *stream;
    *out = NULL;
    TWI_TRY(twi_get(memory, &stream, 1, sizeof *stream, "data file"));
    stream->memory = memory;
    stream->file = -1;
    tw_status status = twi_get_text(memory, &stream->path, path);
    if (!status) status = open_file(stream);
    if (status)
        twi_stream_close(stream);
    else
        *out = stream;
    return status;
}

void twi_stream_close(twi_stream *stream) {
    if (!stream) return;
    twi_memory *memory = stream->memory;
    if (stream->inflating) inflateEnd(&stream->z);
    if (stream->file >= 0) close(stream->file);
    twi_put(memory, stream->input);
    twi_put(memory, stream->path);
    twi_put(memory, stream);
}

const char *twi_stream_path(const twi_stream *stream) { return stream->path; }

bool twi_stream_is_gzip(const twi_stream *stream) { return stream->gzip; }

uint64_t twi_stream_file_size(const twi_stream *stream) { return stream->file_size; }

static tw_status read_plain(twi_stream *stream, unsigned char *destination, size_t size, size_t *got) {
    while (*got < size) {
        size_t n = stream->length - stream->at;
        if (n) {
            n = n < size - *got ? n : size - *got;
            memcpy(destination + *got, stream->input + stream->at, n);
            stream->at += n;
        } else if (size - *got >= INPUT_BYTES) { /* large pieces go past the buffer */
            TWI_TRY(read_file(stream, destination + *got, size - *got, &n));
            if (!n) break;
        } else {
            TWI_TRY(refill(stream));
            if (!stream->length) break;
        }
        *got += n;
    }
    return TW_OK;
}

/* After the end of a gzip member: another member may follow, anything else does not belong there. */
static tw_status next_member(twi_stream *stream) {
    if (stream->input[stream->at] != 0x1F)
        return TWI_FAIL(TW_ERROR_FORMAT,
                        "%s: bytes that are not gzip data follow the end of the gzip data: get the file again",
                        stream->path);
    inflateReset(&stream->z);
    return TW_OK;
}

static tw_status inflate_some(twi_stream *stream, unsigned char *destination, size_t size, size_t *got) {
    size_t room = size - *got < MOST_AT_ONCE ? size - *got : MOST_AT_ONCE;
    stream->z.next_in = stream->input + stream->at;
    stream->z.avail_in = (uInt)(stream->length - stream->at);
    stream->z.next_out = destination + *got;
    stream->z.avail_out = (uInt)room;
    int result = inflate(&stream->z, Z_NO_FLUSH);
    stream->at = stream->length - stream->z.avail_in;
    *got += room - stream->z.avail_out;
    stream->inside = result != Z_STREAM_END;
    if (result == Z_MEM_ERROR) return stream->allocation;
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
        return TWI_FAIL(TW_ERROR_FORMAT, "%s: broken gzip data (%s): get the file again", stream->path,
                        stream->z.msg ? stream->z.msg : "unexpected content");
    return TW_OK;
}

static tw_status read_gzip(twi_stream *stream, unsigned char *destination, size_t size, size_t *got) {
    while (*got < size) {
        if (stream->at == stream->length) {
            TWI_TRY(refill(stream));
            if (!stream->length && !stream->inside) break;
            if (!stream->length)
                return TWI_FAIL(TW_ERROR_FORMAT,
                                "%s: truncated gzip data: the file of %llu bytes ends inside it: get the file again",
                                stream->path, (unsigned long long)stream->file_size);
        }
        if (!stream->inside && stream->z.total_in) TWI_TRY(next_member(stream));
        TWI_TRY(inflate_some(stream, destination, size, got));
    }
    return TW_OK;
}

tw_status twi_stream_read(twi_stream *stream, void *destination, size_t size, size_t *got) {
    *got = 0;
    return stream->gzip ? read_gzip(stream, destination, size, got) : read_plain(stream, destination, size, got);
}

tw_status twi_stream_read_block(twi_stream *stream, void *out, size_t size, size_t *got, const char *what) {
    /* A plain file cannot deliver more than its size; what a gzip file delivers only shows as it comes. */
    size_t limit = stream->gzip ? FIRST_BLOCK_BYTES : (size_t)stream->file_size + 1;
    size_t capacity = size < limit ? size : limit;
    unsigned char *block;
    *got = 0;
    memcpy(out, &(void *){NULL}, sizeof(void *));
    TWI_TRY(twi_get(stream->memory, &block, capacity, 1, what));
    for (;;) {
        size_t n;
        tw_status status = twi_stream_read(stream, block + *got, capacity - *got, &n);
        *got += n;
        if (!status && *got == capacity && capacity < size) {
            capacity = capacity < size / 2 ? capacity * 2 : size;
            status = twi_grow(stream->memory, &block, capacity, 1, what);
        } else if (!status) {
            break;
        }
        if (status) {
            twi_put(stream->memory, block);
            return status;
        }
    }
    memcpy(out, &block, sizeof block);
    return TW_OK;
}

const char *twi_show_bytes(char text[TWI_SHOWN_BYTES], const unsigned char *bytes, size_t count) {
    bool printable = true;
    count = count < 4 ? count : 4;
    for (size_t i = 0; i < count; i++) printable = printable && bytes[i] >= 0x20 && bytes[i] < 0x7F;
    if (!count) {
        snprintf(text, TWI_SHOWN_BYTES, "nothing");
    } else if (printable) {
        snprintf(text, TWI_SHOWN_BYTES, "'%.*s'", (int)count, (const char *)bytes);
    } else {
        text[0] = 0;
        for (size_t i = 0; i < count; i++) snprintf(text + strlen(text), 4, i ? " %02X" : "%02X", bytes[i]);
    }
    return text;
}
