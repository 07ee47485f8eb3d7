/* The plug-in's one exported function. The plug-in carries its own copy of what it uses of src/base, all of it without
 * state but for the thread's last error, which is the library's. */
#include "backend/cuda_plugin.h"
#include "cuda.h"

#include <stdatomic.h>
#include <string.h>

/* Set by the library that opened the plug-in, to the same values every time. */
static void (*_Atomic host_fail)(const char *text);
static const char *(*_Atomic host_last_error)(void);

TW_API const twi_backend *talweg_cuda_open(const twi_cuda_host *host, bool described);
const twi_backend *talweg_cuda_open(const twi_cuda_host *host, bool described) {
    if (host->size != sizeof *host || strcmp(host->version, tw_version()) != 0) return NULL;
    atomic_store(&host_fail, host->fail);
    atomic_store(&host_last_error, host->last_error);
    return described ? &twi_backend_cuda_described : &twi_backend_cuda;
}

const char *tw_last_error(void) { return atomic_load(&host_last_error)(); }

void twi_set_error(const char *text) { atomic_load (&host_fail)(text); }
