/* usage: planted_defects NAME | correct
 * Runs a small program with the named defect planted, which a sanitizer or the emulation must report; or, as "correct",
 * the same programs without any, of which nothing may be reported. CMakeLists.txt says in which build and by which words
 * each defect is caught. */
#include "sample.h"

#include <math.h>
#include <string.h>

/* ---- in kernels ---- */

static void run_kernels(sample_defect defect) {
    const int rows = 4, columns = 64, threads = 96;
    const size_t count = rows * columns;
    Stream stream;
    DeviceArray<float> x(some_numbers(count, 2)), y(count), loss(rows), sum(std::vector<float>(columns, 0.0f)),
        square(std::vector<float>(columns, 0.0f));
    DeviceArray<int> label(std::vector<int>(rows, 3));
    /* On its own: with a misaligned pointer it reads past the end as well. */
    MUST(sample_bias_relu(y.data, x.data, x.data, rows, columns, defect, stream));
    MUST(sample_cross_entropy(loss.data, y.data, x.data, label.data, rows, columns, 1, threads, defect, stream));
    MUST(sample_moments(sum.data, square.data, x.data, 1, rows, columns, defect, stream));
    MUST(sample_reverse(y.data, x.data, count, defect, stream));
    stream.finish();
    for (float value : loss.read())
        if (isnan(value)) {
            fprintf(stderr, "a result is not a number\n");
            exit(1);
        }
}

/* ---- in host code: each program is correct without its defect ---- */

static const size_t count = 256, bytes = count * sizeof(float);

class Pinned {
  public:
    Pinned() {
        MUST(cudaMallocHost(reinterpret_cast<void **>(&data), bytes));
        for (size_t i = 0; i < count; i++) data[i] = static_cast<float>(i);
    }
    ~Pinned() { MUST(cudaFreeHost(data)); }
    Pinned(const Pinned &) = delete;
    Pinned &operator=(const Pinned &) = delete;
    float *data;
};

class Event {
  public:
    Event() { MUST(cudaEventCreateWithFlags(&handle, cudaEventDisableTiming)); }
    ~Event() { MUST(cudaEventDestroy(handle)); }
    Event(const Event &) = delete;
    Event &operator=(const Event &) = delete;
    operator cudaEvent_t() const { return handle; }

  private:
    cudaEvent_t handle;
};

static void missing_wait(bool planted) {
    Stream first, second;
    Event event;
    Pinned host;
    DeviceArray<float> x(count), y(count);
    MUST(cudaMemcpyAsync(x.data, host.data, bytes, cudaMemcpyHostToDevice, first));
    MUST(cudaEventRecord(event, first));
    if (!planted) MUST(cudaStreamWaitEvent(second, event, 0));
    MUST(sample_reverse(y.data, x.data, count, SAMPLE_CORRECT, second));
    first.finish();
    second.finish();
}

static void pinned_reused_early(bool planted) {
    Stream stream;
    Pinned host;
    DeviceArray<float> x(count);
    MUST(cudaMemcpyAsync(x.data, host.data, bytes, cudaMemcpyHostToDevice, stream));
    if (!planted) stream.finish();
    host.data[3] = 1;
    stream.finish();
}

static void result_read_early(bool planted) {
    Stream stream;
    Pinned host;
    DeviceArray<float> x(some_numbers(count, 1));
    MUST(cudaMemcpyAsync(host.data, x.data, bytes, cudaMemcpyDeviceToHost, stream));
    if (!planted) stream.finish();
    fprintf(stderr, "%g\n", static_cast<double>(host.data[3]));
    stream.finish();
}

static void missing_edge_in_graph(bool planted) {
    Stream first, second;
    Event fork, middle, join;
    DeviceArray<float> x(some_numbers(count, 1)), y(count);
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    MUST(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    MUST(cudaEventRecord(fork, first));
    MUST(cudaStreamWaitEvent(second, fork, 0));
    MUST(cudaMemsetAsync(x.data, 0, bytes, first));
    MUST(cudaEventRecord(middle, first));
    if (!planted) MUST(cudaStreamWaitEvent(second, middle, 0));
    MUST(sample_reverse(y.data, x.data, count, SAMPLE_CORRECT, second));
    MUST(cudaEventRecord(join, second));
    MUST(cudaStreamWaitEvent(first, join, 0));
    MUST(cudaStreamEndCapture(first, &graph));
    MUST(cudaGraphInstantiate(&executable, graph, 0));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaGraphLaunch(executable, first));
    MUST(cudaGraphLaunch(executable, first));
    first.finish();
    MUST(cudaGraphExecDestroy(executable));
}

static void host_reads_device(bool planted) {
    DeviceArray<float> x(some_numbers(count, 1));
    float value = planted ? x.data[3] : x.read()[3];
    fprintf(stderr, "%g\n", static_cast<double>(value));
}

static void use_after_free(bool planted) {
    Stream stream;
    DeviceArray<float> y(count);
    void *x;
    MUST(cudaMalloc(&x, bytes));
    MUST(cudaMemsetAsync(x, 0, bytes, stream));
    if (planted) MUST(cudaFree(x));
    MUST(sample_reverse(y.data, static_cast<float *>(x), count, SAMPLE_CORRECT, stream));
    stream.finish();
    if (!planted) MUST(cudaFree(x));
}

static void freed_twice(bool planted) {
    void *x;
    MUST(cudaMalloc(&x, bytes));
    MUST(cudaFree(x));
    if (planted) MUST(cudaFree(x));
}

static void copy_past_end(bool planted) {
    std::vector<float> host(count + 1);
    DeviceArray<float> x(count);
    MUST(cudaMemcpy(x.data, host.data(), planted ? bytes + 1 : bytes, cudaMemcpyHostToDevice));
}

static void work_beside_capture(bool planted) {
    Stream first, second;
    DeviceArray<float> x(count), y(count);
    cudaGraph_t graph;
    MUST(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    MUST(cudaMemsetAsync(x.data, 0, bytes, first));
    MUST(cudaMemsetAsync(y.data, 0, bytes, planted ? second : first));
    MUST(cudaStreamEndCapture(first, &graph));
    MUST(cudaGraphDestroy(graph));
}

static void another_device(bool planted) {
    emu_set_device_count(2);
    {
        Stream stream;
        DeviceArray<float> x(count);
        if (planted) MUST(cudaSetDevice(1));
        MUST(cudaMemsetAsync(x.data, 0, bytes, stream));
        stream.finish();
    }
    emu_set_device_count(1);
}

static void memory_of_another_device(bool planted) {
    emu_set_device_count(2);
    {
        DeviceArray<float> x(count);
        MUST(cudaSetDevice(1));
        Stream stream;
        DeviceArray<float> y(count);
        MUST(cudaMemsetAsync(planted ? x.data : y.data, 0, bytes, stream));
        stream.finish();
        MUST(cudaSetDevice(0));
    }
    emu_set_device_count(1);
}

static void freed_with_graph(bool planted) {
    Stream stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    void *x;
    MUST(cudaMalloc(&x, bytes));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    MUST(cudaMemsetAsync(x, 0, bytes, stream));
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&executable, graph, 0));
    MUST(cudaGraphDestroy(graph));
    if (planted) MUST(cudaFree(x));
    MUST(cudaGraphLaunch(executable, stream));
    stream.finish();
    if (!planted) MUST(cudaFree(x));
    MUST(cudaGraphExecDestroy(executable));
}

static const struct {
    const char *name;
    sample_defect defect;
} kernel_defects[] = {
    {"past_global", SAMPLE_PAST_GLOBAL},
    {"past_static_shared", SAMPLE_PAST_STATIC_SHARED},
    {"past_dynamic_shared", SAMPLE_PAST_DYNAMIC_SHARED},
    {"no_barrier", SAMPLE_NO_BARRIER},
    {"no_warp_sync", SAMPLE_NO_WARP_SYNC},
    {"no_atomic", SAMPLE_NO_ATOMIC},
    {"unwritten_shared", SAMPLE_UNWRITTEN_SHARED},
    {"misaligned", SAMPLE_MISALIGNED},
    {"divergent_barrier", SAMPLE_DIVERGENT_BARRIER},
    {"divergent_shuffle", SAMPLE_DIVERGENT_SHUFFLE},
    {"early_exit", SAMPLE_EARLY_EXIT},
};

static const struct {
    const char *name;
    void (*run)(bool planted);
} host_defects[] = {
    {"missing_wait", missing_wait},
    {"pinned_reused_early", pinned_reused_early},
    {"result_read_early", result_read_early},
    {"missing_edge_in_graph", missing_edge_in_graph},
    {"host_reads_device", host_reads_device},
    {"use_after_free", use_after_free},
    {"freed_twice", freed_twice},
    {"copy_past_end", copy_past_end},
    {"work_beside_capture", work_beside_capture},
    {"freed_with_graph", freed_with_graph},
    {"another_device", another_device},
    {"memory_of_another_device", memory_of_another_device},
};

int main(int argc, char **argv) {
    const char *wanted = argc > 1 ? argv[1] : "";
    if (!strcmp(wanted, "correct")) {
        run_kernels(SAMPLE_CORRECT);
        for (const auto &row : host_defects) row.run(false);
        return 0;
    }
    for (const auto &row : kernel_defects)
        if (!strcmp(wanted, row.name)) run_kernels(row.defect);
    for (const auto &row : host_defects)
        if (!strcmp(wanted, row.name)) row.run(true);
    fprintf(stderr, "nothing was reported of '%s'\n", wanted);
    return 0;
}
