/* See plan_survey.h. */
#define _GNU_SOURCE
#include "plan_survey.h"

#include "backend/cuda/cudnn.h"
#include "check.h"

#include <cudnn_graph.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const survey_op[SURVEY_OPS] = {"conv2d.forward", "conv2d.forward_bias", "conv2d.forward_bias_relu",
                                           "conv2d.backward_data", "conv2d.backward_weights"};
const char *const survey_type[SURVEY_TYPES] = {
    [TW_F32] = "f32", [TW_F16] = "f16", [TW_BF16] = "bf16", [SURVEY_TF32] = "tf32"};

/* Limits and sizes are NVIDIA's published ones; clocks are about right and only steer the heuristics. */
#define DEVICE(name, capability, processors, shared, threads, blocks, memory, cache)                                \
    {                                                                                                               \
        name, capability,                                                                                           \
            "{\"deviceVer\":" #capability "0,\"multiProcessorCount\":" #processors ",\"warpSize\":32,"              \
            "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":" #shared ","                       \
            "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":" #blocks ","       \
            "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":" #threads ",\"regsPerBlock\":65536,"                  \
            "\"totalGlobalMem\":" #memory "000000000,\"smClockRateKHz\":1800000,\"l2CacheSize\":" #cache ","        \
            "\"maxBlockSize\":[1024,1024,64],\"memClockRateKHz\":2600000,\"maxGridSize\":[2147483647,65535,65535]," \
            "\"supportCoopLaunch\":1,\"pciDeviceId\":0,\"isTccDriver\":0,\"cudaDeviceId\":0,\"driverVer\":13000,"   \
            "\"deviceName\":\"" name "\"}"                                                                          \
    }

const survey_device survey_devices[SURVEY_DEVICES] = {
    DEVICE("NVIDIA A100", 80, 108, 166912, 2048, 32, 80, 41943040),
    DEVICE("NVIDIA H200", 90, 132, 232448, 2048, 32, 141, 52428800),
    DEVICE("NVIDIA B200", 100, 148, 232448, 2048, 32, 180, 132120576),
    DEVICE("NVIDIA RTX 5090", 120, 170, 101376, 1536, 24, 32, 100663296),
};

/* ---- in the child ---- */

static void make_plan(twi_cuda_device *device, const network_conv *conv, int op, int type, survey_result *out) {
    static float anything; /* a call without data still says whether it has a bias */
    twi_call call;
    conv_check_call(&call, &conv->c, survey_op[op], NULL, NULL, op == 1 || op == 2 ? &anything : NULL, NULL);
    for (int o = 0; o < call.operand_count; o++)
        if (call.operand[o].store == TWI_REAL) call.operand[o].dtype = (uint8_t)(type == SURVEY_TF32 ? TW_F32 : type);
    call.tf32 = type == SURVEY_TF32;
    const twi_kernel kernel = {.name = survey_op[op]};
    twi_cuda_site site = {.family = &twi_cuda_cudnn, .kernel = &kernel, .device = device};
    if (twi_cuda_cudnn.prepare(&site, &call)) {
        snprintf(out->failure, sizeof out->failure, "%s", tw_last_error());
        return;
    }
    snprintf(out->plan, sizeof out->plan, "%s", site.name);
    out->workspace_bytes = site.workspace_bytes;
    twi_cuda_cudnn.release(&site);
}

/* Makes plans first .. and writes each to the pipe as it is done. */
static void work(const network_conv *convs, int count, int first, int which, int type, const char *driver, int pipe) {
    if (!dlopen(driver, RTLD_NOW | RTLD_GLOBAL)) fail_msg("%s", dlerror());
    tw_context *context;
    CHECK_OK(twi_context_open(&context, NULL));
    const survey_device *described = &survey_devices[which];
    twi_cuda_device device = {
        .context = context, .ordinal = -1, .capability = described->capability, .total_bytes = (size_t)32 << 30};
    snprintf(device.name, sizeof device.name, "%s", described->name);
    CHECK_OK(twi_cuda_dnn_open_described(&device.dnn, &device, described->json, NULL));
    for (int i = first; i < count * SURVEY_OPS; i++) {
        survey_result result = {0};
        make_plan(&device, &convs[i / SURVEY_OPS], i % SURVEY_OPS, type, &result);
        if (write(pipe, &result, sizeof result) != sizeof result) _exit(1);
    }
    twi_cuda_dnn_close(device.dnn);
    twi_context_close(context);
}

/* ---- in the parent ---- */

static bool read_result(int pipe, survey_result *out) {
    size_t got = 0;
    while (got < sizeof *out) {
        ssize_t bytes = read(pipe, (char *)out + got, sizeof *out - got);
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes <= 0) return false;
        got += (size_t)bytes;
    }
    return true;
}

void survey(const network_conv *convs, int count, int device, int type, const char *driver, survey_result *result) {
    int done = 0;
    while (done < count * SURVEY_OPS) {
        int pipes[2], status;
        assert_int_equal(pipe(pipes), 0);
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            close(pipes[0]);
            work(convs, count, done, device, type, driver, pipes[1]);
            _exit(0);
        }
        close(pipes[1]);
        while (done < count * SURVEY_OPS && read_result(pipes[0], &result[done])) done++;
        close(pipes[0]);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (done == count * SURVEY_OPS) break;
        result[done] = (survey_result){0};
        snprintf(result[done++].failure, sizeof result->failure, "cuDNN ended the process: %s",
                 WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "by itself");
    }
}

void survey_versions(char text[64]) {
    int runtime = 0;
    cudaRuntimeGetVersion(&runtime);
    snprintf(text, 64, "cuDNN %d.%d.%d, CUDA %d.%d", (int)(cudnnGetVersion() / 10000),
             (int)(cudnnGetVersion() / 100 % 100), (int)(cudnnGetVersion() % 100), runtime / 1000, runtime % 1000 / 10);
}
