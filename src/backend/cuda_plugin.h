/* Finding the CUDA back end at run time: a driver, a device, and libtalweg-cuda. The library itself is linked with none
 * of NVIDIA's libraries, so one binary serves machines with and without a GPU. */
#ifndef TWI_BACKEND_CUDA_PLUGIN_H
#define TWI_BACKEND_CUDA_PLUGIN_H

#include "backend.h"

/* What the driver says about itself, without anything of CUDA's but the driver being loaded. */
typedef struct twi_cuda_driver {
    int version; /* 13000 for CUDA 13.0 */
    int devices;
} twi_cuda_driver;

/* Asks the driver; takes about a millisecond. Errors: DEVICE, naming the missing part. */
tw_status twi_cuda_ask_driver(twi_cuda_driver *out);

/* Opens the plug-in and yields its table, for devices or for described cards, which need no driver. Errors: DEVICE,
 * naming the missing part. It stays loaded. */
tw_status twi_cuda_load(const twi_backend **out, bool described);

/* What the plug-in is given by the library that opens it: the one mutable state they share is the thread's last
 * error. */
typedef struct twi_cuda_host {
    size_t size;                    /* of this struct */
    const char *version;            /* tw_version(); the plug-in serves its own version only */
    void (*fail)(const char *text); /* sets tw_last_error() */
    const char *(*last_error)(void);
} twi_cuda_host;

/* What the plug-in exports, under the name TWI_CUDA_ENTRY: the back end for devices that are here, or for cards that
 * are only described; NULL if it is of another version. */
typedef const twi_backend *(*twi_cuda_entry_fn)(const twi_cuda_host *host, bool described);
#define TWI_CUDA_ENTRY "talweg_cuda_open"

#endif
