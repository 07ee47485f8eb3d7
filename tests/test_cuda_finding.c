/* Looking for a GPU: whatever is missing is named, "auto" then takes the CPU and says why, and nothing of CUDA's is loaded
 * for it. The driver and the plug-in are stand-ins (finding/). */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include "backend/cuda_plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <talweg/context.h>
#include <time.h>

typedef struct missing {
    const char *driver, *plugin;          /* NULL: the stand-ins */
    const char *init, *devices, *version; /* what the driver answers; NULL: all is well, one device */
    const char *device;                   /* NULL: "cuda:0" */
    const char *says;
} missing;

static const missing cases[] = {
    {.driver = "/nowhere/libcuda.so.1", .says = "no NVIDIA driver here: /nowhere/libcuda.so.1: "},
    {.driver = STAND_IN_PLUGIN, .says = STAND_IN_PLUGIN " is no NVIDIA driver: it lacks cuInit"},
    {.init = "100", .says = "cuInit answers 100: it sees no device; look at nvidia-smi"},
    {.init = "34", .says = "cuInit answers 34: this is the stub"},
    {.init = "803", .says = "cuInit answers 803: the parts of the driver in the kernel and in the library differ"},
    {.init = "999", .says = "cuInit answers 999: it does not start"},
    {.devices = "0", .says = "cuDeviceGetCount answers 100: it sees no device"},
    {.version = "11080", .says = "too old: it serves CUDA 11.8, this build needs "},
    {.plugin = "/nowhere/plugin.so", .says = "the plug-in cannot be opened: /nowhere/plugin.so: "},
    {.plugin = STAND_IN_PLUGIN, .says = STAND_IN_PLUGIN " is of another version than this library"},
    {.plugin = STAND_IN_DRIVER, .says = STAND_IN_DRIVER " is no plug-in of this library: it lacks talweg_cuda_open"},
    {.device = "cuda:7", .says = "there is no device 7: the driver shows 1, numbered from 0"},
    {.device = "cuda:7", .devices = "7", .says = "there is no device 7: the driver shows 7, numbered from 0"},
};
enum { CASES = sizeof cases / sizeof *cases };

static void set(const char *name, const char *value) {
    if (value)
        assert_int_equal(setenv(name, value, 1), 0);
    else
        assert_int_equal(unsetenv(name), 0);
}

static void arrange(const missing *m) {
    set("TALWEG_CUDA_DRIVER", m->driver ? m->driver : STAND_IN_DRIVER);
    set("TALWEG_CUDA_PLUGIN", m->plugin ? m->plugin : STAND_IN_PLUGIN);
    set("STAND_IN_INIT", m->init);
    set("STAND_IN_DEVICES", m->devices);
    set("STAND_IN_VERSION", m->version);
}

static void test_what_is_missing_is_named(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        tw_context *context;
        arrange(&cases[i]);
        CHECK_FAILS(tw_context_create(&context, cases[i].device ? cases[i].device : "cuda:0", NULL), TW_ERROR_DEVICE,
                    cases[i].says);
        assert_null(context);
    }
}

static void test_the_first_device_needs_no_number(void **state) {
    (void)state;
    tw_context *context;
    arrange(&(missing){.plugin = "/nowhere/plugin.so"});
    CHECK_FAILS(tw_context_create(&context, "cuda", NULL), TW_ERROR_DEVICE, "/nowhere/plugin.so");
}

static void test_malformed_names_are_no_devices(void **state) {
    (void)state;
    static const char *const names[] = {"cuda:",   "cuda:x",  "cuda:-1",  "cuda:+1", "cuda: 1",
                                        "cuda:0x", "cuda:0 ", "cuda:1.5", "cuda0",   "cuda:99999999999999999999",
                                        "CUDA:0",  "plan"};
    arrange(&cases[0]); /* nobody asks for a driver on their account */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        tw_context *context;
        char says[64];
        snprintf(says, sizeof says, "there is no device '%s'; write ", names[i]);
        CHECK_FAILS(tw_context_create(&context, names[i], NULL), TW_ERROR_DEVICE, says);
    }
}

/* The plug-in that the environment names, if it does: the emulated one, or a build's. */
static const char *real_plugin;

static void test_a_plug_in_serves_its_own_version_only(void **state) {
    (void)state;
    if (!real_plugin) skip();
    void *library = dlopen(real_plugin, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail_msg("%s", dlerror());
    void *symbol = dlsym(library, TWI_CUDA_ENTRY);
    assert_non_null(symbol);
    twi_cuda_entry_fn entry;
    memcpy(&entry, &symbol, sizeof entry);
    const twi_cuda_host own = {sizeof own, tw_version(), twi_set_error, tw_last_error};
    twi_cuda_host other = own;
    assert_non_null(entry(&own, false));
    other.version = "0.0.1";
    assert_null(entry(&other, false));
    other = own;
    other.size -= sizeof(void *);
    assert_null(entry(&other, false));
}

/* ---- "auto" ---- */

static void keep(void *user, tw_log_level level, const char *line) {
    if (level == TW_LOG_INFO && strstr(line, "device: ")) snprintf(user, 1024, "%s", line);
}

static void test_auto_takes_the_cpu_and_says_why(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        if (cases[i].device) continue;
        tw_context *context;
        char log[1024] = "", why[1024];
        arrange(&cases[i]);
        tw_clear_error();
        CHECK_OK(tw_context_create(&context, "auto",
                                   TW_OPTIONS(context, .log = keep, .log_user = log, .log_level = TW_LOG_INFO)));
        assert_string_equal(tw_context_get_device(context), "cpu");
        assert_string_equal(tw_last_error(), "");
        snprintf(why, sizeof why, "device: cpu, because cuda: ");
        assert_memory_equal(log, why, strlen(why));
        if (!strstr(log, cases[i].says)) fail_msg("\"%s\" does not say \"%s\"", log, cases[i].says);
        tw_context_destroy(context);
    }
}

static bool is_mapped(const char *library) {
    char line[4352];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (!found && fgets(line, sizeof line, maps)) found = strstr(line, library) != NULL;
    fclose(maps);
    return found;
}

static double seconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void test_no_gpu_costs_nothing(void **state) {
    (void)state;
    tw_context *context;
    arrange(&(missing){.init = "100", .plugin = "/nowhere/plugin.so"});
    double begin = seconds();
    CHECK_OK(tw_context_create(&context, "auto", NULL));
    double taken = seconds() - begin;
    printf("\"auto\" without a GPU: %.2f ms\n", 1e3 * taken);
    assert_true(taken < 1);
    tw_context_destroy(context);
    assert_true(is_mapped("libfinding_driver")); /* the search finds what is there */
    static const char *const libraries[] = {"libcublas", "libcudart", "libcudnn", "libnvrtc", "libtalweg-cuda"};
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++)
        if (is_mapped(libraries[i])) fail_msg("%s is loaded", libraries[i]);
}

int main(void) {
    real_plugin = getenv("TALWEG_CUDA_PLUGIN");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_missing_is_named),
        cmocka_unit_test(test_the_first_device_needs_no_number),
        cmocka_unit_test(test_malformed_names_are_no_devices),
        cmocka_unit_test(test_auto_takes_the_cpu_and_says_why),
        cmocka_unit_test(test_no_gpu_costs_nothing),
        cmocka_unit_test(test_a_plug_in_serves_its_own_version_only), /* the last: it loads what CUDA brings */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
