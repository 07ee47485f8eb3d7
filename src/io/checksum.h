/* A checksum of a whole safetensors file, where its writer asked for one: CRC-32 of the header and the data, in its
 * header's metadata, with its own digits taken as zeros. */
#ifndef TWI_IO_CHECKSUM_H
#define TWI_IO_CHECKSUM_H

#include "safetensors.h"

#define TWI_CHECKSUM_KEY "talweg.crc32"
#define TWI_CHECKSUM_EMPTY "00000000" /* what to put there first */
enum { TWI_CHECKSUM_DIGITS = sizeof TWI_CHECKSUM_EMPTY - 1 };

/* Where its digits stand in a header; NULL: it has none. */
char *twi_checksum_find(char *header, size_t length);
/* Of what was there before, 0 at first, and these bytes. */
uint32_t twi_checksum_add(uint32_t sum, const void *data, size_t bytes);
/* Is the file as it was written? So is one without a checksum. Errors: FORMAT if not, FILE, OUT_OF_MEMORY. */
tw_status twi_checksum_verify(const twi_tensor_file *file);

#endif
