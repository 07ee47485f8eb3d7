/* `talweg doctor`: which devices can be used on this machine, and what is missing for the others. */
#include "cli.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>

static const char usage[] =
    "usage: talweg doctor [--device NAME] [--help]\n"
    "\n"
    "Tells which device \"auto\" is on this machine, describes it, and names what is missing where a GPU cannot\n"
    "be used.\n"
    "\n"
    "  --device NAME  look at this device only: cpu, cuda:0, cuda:1, ...\n"
    "  --help         this text\n"
    "\n"
    "Exit status: 0 if a device can be used, 1 if none can, 2 if the command line is wrong.\n"
    "\n"
    "Environment:\n"
    "  TALWEG_CUDA_DRIVER  the NVIDIA driver's library, instead of libcuda.so.1\n"
    "  TALWEG_CUDA_PLUGIN  Talweg's CUDA back end, instead of libtalweg-cuda.so beside the library\n"
    "  TALWEG_CPU          lowers the instruction set in use: specification, baseline, avx2, avx512 or avx512_bf16\n";

static void line(const char *label, const char *format, ...) TW_PRINTF(2, 3);
static void line(const char *label, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("  %-17s", label);
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
}

static void library_line(const char *label, int version) {
    if (version)
        line(label, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    else
        line(label, "not in this build");
}

static void describe_gpu(const tw_device_info *info) {
    line("capability", "%d.%d", info->capability_major, info->capability_minor);
    line("multiprocessors", "%d", info->processors);
    if (info->driver_version)
        line("driver", "serves CUDA %d.%d", info->driver_version / 1000, info->driver_version % 1000 / 10);
    line("CUDA runtime", "%d.%d", info->runtime_version / 1000, info->runtime_version % 1000 / 10);
    library_line("cuBLASLt", info->cublaslt_version);
    library_line("cuDNN", info->cudnn_version);
}

static void describe_cpu(const tw_device_info *info) { line("threads", "%d", info->processors); }

static void describe(const tw_device_info *info) {
    line("name", "%s", *info->name ? info->name : "unknown");
    if (info->capability_major)
        describe_gpu(info);
    else
        describe_cpu(info);
    line("code", "%s", info->code);
    line("memory", "%.1f GB, %.1f GB of it free", 1e-9 * (double)info->memory_bytes, 1e-9 * (double)info->free_bytes);
}

/* Opens a device and tells of it; if it cannot be used, why, in the library's words. */
static bool examine(const char *device) {
    tw_context *context;
    tw_device_info info = TW_DEVICE_INFO_INIT;
    bool usable =
        tw_context_create(&context, device, NULL) == TW_OK && tw_context_get_device_info(context, &info) == TW_OK;
    printf("%s: %s\n", context ? tw_context_get_device(context) : device, usable ? "can be used" : "cannot be used");
    if (usable)
        describe(&info);
    else
        printf("  %s\n", tw_last_error());
    tw_context_destroy(context);
    return usable;
}

/* Every kind of device, the better one first: as "auto" chooses. */
static int examine_all(void) {
    static const char *const devices[] = {"cuda:0", "cpu"};
    const char *best = NULL;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        if (examine(devices[i]) && !best) best = devices[i];
        putchar('\n');
    }
    if (best) printf("\"auto\" is %s, the first of these that can be used\n", best);
    return best ? TWI_CLI_DONE : TWI_CLI_FAILED;
}

static int run(int argc, char **argv) {
    static const struct option options[] = {{"device", 1, NULL, 'd'}, {"help", 0, NULL, 'h'}, {NULL, 0, NULL, 0}};
    const char *device = NULL;
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) switch (option) {
        case 'd':
            device = optarg;
            break;
        case 'h':
            fputs(usage, stdout);
            return TWI_CLI_DONE;
        default:
            return twi_cli_refuse(&twi_cli_doctor, NULL, NULL);
        }
    if (optind < argc) return twi_cli_refuse(&twi_cli_doctor, "unexpected argument", argv[optind]);
    if (!device) return examine_all();
    return examine(device) ? TWI_CLI_DONE : TWI_CLI_FAILED;
}

const twi_cli_command twi_cli_doctor = {
    .name = "doctor",
    .summary = "which devices can be used here, and what is missing for the others",
    .usage = usage,
    .run = run,
};
