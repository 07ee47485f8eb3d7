/* Finds driver and plug-in. Driver first: it answers in a millisecond, while the plug-in brings libraries that take
 * more than a second to load, so a machine without a GPU never pays for them. */
#define _GNU_SOURCE /* dladdr */
#include "cuda_plugin.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The oldest driver that can run what the plug-in was compiled with: minor versions of CUDA are compatible. */
#ifndef TWI_CUDA_DRIVER_MIN
#define TWI_CUDA_DRIVER_MIN 12000
#endif

#define PLUGIN_NAME "libtalweg-cuda.so"

enum { CU_NO_DEVICE = 100, PATH_TEXT = 4096 };

/* What some of the driver's statuses mean to the one who sees them. */
static const struct {
    int status;
    const char *meaning;
} answers[] = {
    {34, "this is the stub that programs are linked with, no driver; have the driver's own folder searched first"},
    {CU_NO_DEVICE, "it sees no device; look at nvidia-smi, and at CUDA_VISIBLE_DEVICES"},
    {802, "the devices are not ready yet; start NVIDIA's fabric manager, or wait for it"},
    {803, "the parts of the driver in the kernel and in the library differ; restart the machine"},
};

/* The driver's entry points in use, as its documentation declares them; a status of 0 is success. */
typedef int (*init_fn)(unsigned flags);
typedef int (*number_fn)(int *out);

/* POSIX promises that a symbol's address can be a function's; C has no conversion for it. */
static void symbol_into(void *function, void *library, const char *name) {
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
}

static tw_status driver_failed(const char *call, int status) {
    const char *meaning = "it does not start; look at nvidia-smi";
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (answers[i].status == status) meaning = answers[i].meaning;
    return TWI_FAIL(TW_ERROR_DEVICE, "cuda: the NVIDIA driver's %s answers %d: %s", call, status, meaning);
}

static tw_status ask(void *library, const char *path, twi_cuda_driver *out) {
    init_fn init;
    number_fn count, version;
    symbol_into(&init, library, "cuInit");
    symbol_into(&count, library, "cuDeviceGetCount");
    symbol_into(&version, library, "cuDriverGetVersion");
    if (!init || !count || !version)
        return TWI_FAIL(TW_ERROR_DEVICE,
                        "cuda: %s is no NVIDIA driver: it lacks %s; install the driver, or correct TALWEG_CUDA_DRIVER",
                        path,
                        !init    ? "cuInit"
                        : !count ? "cuDeviceGetCount"
                                 : "cuDriverGetVersion");
    int status = version(&out->version);
    if (status) return driver_failed("cuDriverGetVersion", status);
    status = init(0);
    if (status) return driver_failed("cuInit", status);
    status = count(&out->devices);
    if (status) return driver_failed("cuDeviceGetCount", status);
    if (out->devices < 1) return driver_failed("cuDeviceGetCount", CU_NO_DEVICE);
    if (out->version < TWI_CUDA_DRIVER_MIN)
        return TWI_FAIL(TW_ERROR_DEVICE,
                        "cuda: the NVIDIA driver is too old: it serves CUDA %d.%d, this build needs %d.%d or newer; "
                        "update the driver",
                        out->version / 1000, out->version % 1000 / 10, TWI_CUDA_DRIVER_MIN / 1000,
                        TWI_CUDA_DRIVER_MIN % 1000 / 10);
    return TW_OK;
}

tw_status twi_cuda_ask_driver(twi_cuda_driver *out) {
    *out = (twi_cuda_driver){0, 0};
    const char *named = getenv("TALWEG_CUDA_DRIVER"), *path = named ? named : "libcuda.so.1";
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        return TWI_FAIL(TW_ERROR_DEVICE, "cuda: no NVIDIA driver here: %s; install the driver, or use the CPU",
                        dlerror()); /* glibc's text begins with the file */
    return ask(library, path, out); /* a driver stays loaded */
}

/* ---- the plug-in ---- */

/* The folder that holds this very code: the library's, or that of a program it is linked into. */
static void own_folder(char path[PATH_TEXT]) {
    Dl_info info;
    static const char here;
    path[0] = '\0';
    if (!dladdr(&here, &info) || !info.dli_fname) return;
    const char *slash = strrchr(info.dli_fname, '/');
    if (slash) snprintf(path, PATH_TEXT, "%.*s", (int)(slash - info.dli_fname + 1), info.dli_fname);
}

/* Beside the library; where the library is part of a program, also in the lib folder beside the program's; then where
 * the system looks. A path that TALWEG_CUDA_PLUGIN names is the only one tried. */
static void *open_plugin(void) {
    static const char *const beside[] = {"", "../lib/"};
    const char *named = getenv("TALWEG_CUDA_PLUGIN");
    if (named) return dlopen(named, RTLD_NOW | RTLD_LOCAL);
    char folder[PATH_TEXT], path[PATH_TEXT + 64];
    own_folder(folder);
    for (size_t i = 0; folder[0] && i < sizeof beside / sizeof *beside; i++) {
        snprintf(path, sizeof path, "%s%s" PLUGIN_NAME, folder, beside[i]);
        FILE *there =
            fopen(path, "rb"); /* so that what its own libraries lack is told, and not that other places have none */
        if (!there) continue;
        fclose(there);
        return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return dlopen(PLUGIN_NAME, RTLD_NOW | RTLD_LOCAL);
}

tw_status twi_cuda_load(const twi_backend **out, bool described) {
    *out = NULL;
    void *library = open_plugin();
    if (!library)
        return TWI_FAIL(TW_ERROR_DEVICE,
                        "cuda: the plug-in cannot be opened: %s; build with TALWEG_CUDA=ON, and have the CUDA "
                        "libraries where the system finds them",
                        dlerror());
    struct link_map *loaded;
    const char *path = dlinfo(library, RTLD_DI_LINKMAP, &loaded) ? PLUGIN_NAME : loaded->l_name;
    twi_cuda_entry_fn entry;
    symbol_into(&entry, library, TWI_CUDA_ENTRY);
    const twi_cuda_host host = {sizeof host, tw_version(), twi_set_error, tw_last_error};
    *out = entry ? entry(&host, described) : NULL;
    if (*out) return TW_OK;
    tw_status status =
        entry
            ? TWI_FAIL(TW_ERROR_DEVICE,
                       "cuda: the plug-in %s is of another version than this library, %s; install both from one build",
                       path, tw_version())
            : TWI_FAIL(TW_ERROR_DEVICE,
                       "cuda: %s is no plug-in of this library: it lacks %s; correct TALWEG_CUDA_PLUGIN", path,
                       TWI_CUDA_ENTRY);
    dlclose(library);
    return status;
}
