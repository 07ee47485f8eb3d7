/* The bytes of a data file from front to back, gunzipped where the file is gzip (told by its first bytes, not by its
 * name). What the bytes mean is left to the formats (idx.c, cifar.c). All failures name the file. */
#ifndef TWI_DATA_BYTE_STREAM_H
#define TWI_DATA_BYTE_STREAM_H

#include "base/memory.h"

typedef struct twi_stream twi_stream;

/* Opens a regular file. Errors: FILE (not there, not readable, not a regular file), OUT_OF_MEMORY. */
tw_status twi_stream_open(twi_stream **out, twi_memory *memory, const char *path);
void twi_stream_close(twi_stream *stream);

const char *twi_stream_path(const twi_stream *stream);
bool twi_stream_is_gzip(const twi_stream *stream);
/* Bytes of the file on disk (compressed ones where it is gzip). */
uint64_t twi_stream_file_size(const twi_stream *stream);

/* Reads up to `size` bytes; *got is less than `size` only at the end of the data.
 * Errors: FILE (cannot be read), FORMAT (broken or truncated gzip data). */
tw_status twi_stream_read(twi_stream *stream, void *destination, size_t size, size_t *got);

/* Reads up to `size` bytes into a new block *out (a pointer to a pointer) that grows with the bytes that really come,
 * so that a size taken from a lying header costs nothing. *got < size: the data ended early. *out is NULL
 * on failure. */
tw_status twi_stream_read_block(twi_stream *stream, void *out, size_t size, size_t *got, const char *what);

/* Room for the text of twi_show_bytes. */
#define TWI_SHOWN_BYTES 24
/* The first bytes of a file for a message: "'<!DO'" where they can be printed, else "03 08 00 00"; "nothing" for
 * count 0. */
const char *twi_show_bytes(char text[TWI_SHOWN_BYTES], const unsigned char *bytes, size_t count);

#endif
