/* The names of the files in one folder, in byte order, so that what is found does not depend on the file system. */
#ifndef TWI_DATA_FOLDER_H
#define TWI_DATA_FOLDER_H

#include "base/memory.h"

typedef struct twi_folder {
    twi_memory *memory;
    char *path;
    char **names; /* regular files, also through links; hidden ones (a leading dot) left out */
    size_t count, capacity;
} twi_folder;

/* Errors: FILE (not there, not a folder, not readable), OUT_OF_MEMORY. */
tw_status twi_folder_open(twi_folder **out, twi_memory *memory, const char *path);
void twi_folder_close(twi_folder *folder);

bool twi_folder_has(const twi_folder *folder, const char *name);
/* path/name as one text, freed with twi_put. */
tw_status twi_path_join(twi_memory *memory, char **out, const char *path, const char *name);

#endif
