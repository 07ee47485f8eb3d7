/* The safetensors format (an 8-byte little-endian header length, a JSON header, the tensors' bytes): reading it
 * without believing its header, and the names of its types. Writing is in model_tensors.c. Says nothing of models. */
#ifndef TWI_IO_SAFETENSORS_H
#define TWI_IO_SAFETENSORS_H

#include "base/memory.h"
#include "base/shape.h"

typedef struct twi_tensor_entry {
    char *name;
    tw_dtype dtype;
    twi_shape shape;
    uint64_t begin, end; /* bytes, from the start of the data */
} twi_tensor_entry;

typedef struct twi_tensor_file {
    twi_memory *memory;
    char *path;
    int descriptor;
    uint64_t data_offset;    /* of the data in the file */
    twi_tensor_entry *entry; /* in the header's order */
    int count, capacity;
    char *metadata; /* key, 0, text, 0, key, ... of the header's __metadata__; NULL: it has none */
    size_t metadata_bytes;
} twi_tensor_file;

/* Opens a file and checks its whole header: every tensor's type, shape and range, no overlap, no hole, nothing behind
 * the last.
 * Errors: FILE; FORMAT naming the tensor. */
tw_status twi_tensor_file_open(twi_tensor_file *file, twi_memory *memory, const char *path);
void twi_tensor_file_close(twi_tensor_file *file);
/* Reads bytes of the file; an entry's bytes. */
tw_status twi_tensor_file_read_at(const twi_tensor_file *file, uint64_t offset, void *data, uint64_t bytes);
tw_status twi_tensor_file_read(const twi_tensor_file *file, const twi_tensor_entry *entry, void *data);

/* The text of a key of __metadata__; NULL: it is not there. Borrowed from the file. */
const char *twi_tensor_file_find(const twi_tensor_file *file, const char *key);

/* Parses a JSON header of `length` bytes for a file whose data part has data_bytes bytes. */
tw_status twi_tensor_header_parse(twi_tensor_file *file, const char *json, size_t length, uint64_t data_bytes);
/* The type's name in the header ("F32") and back. */
const char *twi_tensor_type_name(tw_dtype dtype);

#endif
