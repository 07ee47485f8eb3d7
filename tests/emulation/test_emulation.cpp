/* That the emulation computes what CUDA would, on kernels of the usual kinds, with streams, events and graphs; and that
 * what tests ask of it (failing calls, a small or broken device) happens. That it reports defects: planted_defects.cpp. */
#include "sample.h"

#include <cuda.h>
#include <cuda_fp16.h>
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
extern "C" {
#include <cmocka.h>
}

static void assert_near(double found, double expected, double tolerance) {
    if (!(fabs(found - expected) <= tolerance)) fail_msg("found %.9g, expected %.9g", found, expected);
}

static int nothing_is_left_alive(void **) {
    assert_int_equal(emu_count_live(), 0);
    emu_reset();
    return 0;
}

/* ---- kernels ---- */

static void bias_and_relu_in_vectors_of_four(void **) {
    const int rows = 37, columns = 52;
    Stream stream;
    std::vector<float> x = some_numbers(rows * columns, 2), bias = some_numbers(columns, 1);
    DeviceArray<float> dx(x), dbias(bias), dy(x.size());
    MUST(sample_bias_relu(dy.data, dx.data, dbias.data, rows, columns, SAMPLE_CORRECT, stream));
    stream.finish();
    std::vector<float> y = dy.read();
    for (size_t i = 0; i < y.size(); i++) assert_near(y[i], fmaxf(x[i] + bias[i % columns], 0), 0);
}

static void bias_and_relu_in_half_precision(void **) {
    const int rows = 9, columns = 34;
    Stream stream;
    std::vector<__half> x, bias;
    for (float value : some_numbers(rows * columns, 2)) x.push_back(__float2half_rn(value));
    for (float value : some_numbers(columns, 2)) bias.push_back(__float2half_rn(value));
    DeviceArray<__half> dx(x), dbias(bias), dy(x.size());
    MUST(sample_bias_relu_f16(dy.data, dx.data, dbias.data, rows, columns, stream));
    stream.finish();
    std::vector<__half> y = dy.read();
    for (size_t i = 0; i < y.size(); i++) {
        float sum = __half2float(x[i]) + __half2float(bias[i % columns]); /* exact, so rounded once below */
        assert_near(__half2float(y[i]), __half2float(__float2half_rn(fmaxf(sum, 0))), 0);
    }
}

static void check_cross_entropy(int rows, int columns, int threads) {
    Stream stream;
    size_t width = static_cast<size_t>(columns);
    std::vector<float> x = some_numbers(static_cast<size_t>(rows) * width, 4);
    std::vector<int> label;
    for (int r = 0; r < rows; r++) label.push_back(r * 7 % columns);
    DeviceArray<float> dx(x), dgradient(x.size()), dloss(label.size());
    DeviceArray<int> dlabel(label);
    MUST(sample_cross_entropy(dloss.data, dgradient.data, dx.data, dlabel.data, rows, columns, 0.5f, threads,
                              SAMPLE_CORRECT, stream));
    stream.finish();
    std::vector<float> loss = dloss.read(), gradient = dgradient.read();
    for (size_t r = 0; r < loss.size(); r++) {
        double sum = 0;
        size_t wanted = static_cast<size_t>(label[r]);
        for (size_t i = 0; i < width; i++) sum += exp(x[r * width + i]);
        assert_near(loss[r], log(sum) - x[r * width + wanted], 1e-5);
        for (size_t i = 0; i < width; i++)
            assert_near(gradient[r * width + i], 0.5 * (exp(x[r * width + i]) / sum - (i == wanted)), 1e-6);
    }
}

static void cross_entropy_over_blocks_of_several_warps(void **) {
    check_cross_entropy(5, 300, 256);
    check_cross_entropy(3, 77, 96);
}

static void moments_by_atomic_additions(void **) {
    const int samples = 5, channels = 7, pixels = 123;
    Stream stream;
    std::vector<float> x = some_numbers(samples * channels * pixels, 1);
    DeviceArray<float> dx(x), dsum(std::vector<float>(channels, 0.0f)), dsquare(std::vector<float>(channels, 0.0f));
    MUST(sample_moments(dsum.data, dsquare.data, dx.data, samples, channels, pixels, SAMPLE_CORRECT, stream));
    stream.finish();
    std::vector<float> sum = dsum.read(), square = dsquare.read();
    for (size_t c = 0; c < channels; c++) {
        double s = 0, q = 0;
        for (size_t i = 0; i < x.size(); i++)
            if (i / pixels % channels == c) {
                s += x[i];
                q += static_cast<double>(x[i]) * x[i];
            }
        assert_near(sum[c], s, 1e-4);
        assert_near(square[c], q, 1e-4);
    }
}

static void operations_of_warps_and_blocks(void **) {
    Stream stream;
    DeviceArray<int> dout(9);
    MUST(sample_meetings(dout.data, stream));
    stream.finish();
    /* Thread 37 is lane 5 of warp 1, whose values are 32..63; its group of 8 lanes ends at lane 7. */
    const int expected[] = {37, 34, 37, 0x49249249, 2, 32 * 32 + 31 * 32 / 2, 13, 2, 63 * 256 + 33};
    std::vector<int> out = dout.read();
    for (size_t i = 0; i < 9; i++) assert_int_equal(out[i], expected[i]);
}

/* ---- streams and events ---- */

static void what_an_event_orders_is_ordered(void **) {
    const size_t count = 1024, bytes = count * sizeof(float);
    for (int round = 0; round < 40; round++) {
        Stream first, second;
        cudaEvent_t event;
        float *host;
        DeviceArray<float> x(count), y(count);
        MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        MUST(cudaMallocHost(reinterpret_cast<void **>(&host), bytes));
        for (size_t i = 0; i < count; i++) host[i] = static_cast<float>(i);
        MUST(cudaMemcpyAsync(x.data, host, bytes, cudaMemcpyHostToDevice, first));
        MUST(cudaEventRecord(event, first));
        MUST(cudaStreamWaitEvent(second, event, 0));
        MUST(sample_reverse(y.data, x.data, count, SAMPLE_CORRECT, second));
        MUST(cudaMemcpyAsync(host, y.data, bytes, cudaMemcpyDeviceToHost, second));
        second.finish();
        for (size_t i = 0; i < count; i++) assert_near(host[i], static_cast<double>(i ^ 31), 0);
        MUST(cudaEventQuery(event));
        MUST(cudaFreeHost(host));
        MUST(cudaEventDestroy(event));
    }
}

static void pageable_memory_may_be_reused_at_once(void **) {
    Stream stream;
    std::vector<int> values(100, 5);
    DeviceArray<int> x(100);
    MUST(cudaMemcpyAsync(x.data, values.data(), 400, cudaMemcpyHostToDevice, stream));
    values.assign(100, 6);
    MUST(cudaMemcpyAsync(values.data(), x.data, 400, cudaMemcpyDeviceToHost, stream));
    for (int value : values) assert_int_equal(value, 5);
    MUST(cudaMemsetAsync(x.data, 1, 200, stream));
    stream.finish();
    values = x.read();
    assert_int_equal(values[49], 0x01010101);
    assert_int_equal(values[50], 5);
}

static void host_functions_run_in_order(void **) {
    Stream stream;
    DeviceArray<int> x(std::vector<int>(1, 3));
    int *host;
    int seen = 0;
    MUST(cudaMallocHost(reinterpret_cast<void **>(&host), sizeof *host));
    MUST(cudaMemcpyAsync(host, x.data, sizeof *host, cudaMemcpyDeviceToHost, stream));
    struct Both {
        int *from, *to;
    } both = {host, &seen};
    auto move = [](void *argument) {
        Both *b = static_cast<Both *>(argument);
        *b->to = *b->from;
    };
    MUST(cudaLaunchHostFunc(stream, move, &both));
    stream.finish();
    assert_int_equal(seen, 3);
    MUST(cudaFreeHost(host));
}

/* ---- graphs ---- */

/* x is doubled on one branch into a, tripled on the other into b; then a + b into x: work of a stand-in. */
static void add_branches(int *x, int *a, int *b, cudaStream_t first, cudaStream_t second, cudaEvent_t fork,
                         cudaEvent_t join) {
    const size_t size = sizeof *x;
    MUST(cudaEventRecord(fork, first));
    MUST(cudaStreamWaitEvent(second, fork, 0));
    MUST(emu_enqueue(first, "double", [=] { *a = *x * 2; }, {{x, size}}, {{a, size}}));
    MUST(emu_enqueue(second, "triple", [=] { *b = *x * 3; }, {{x, size}}, {{b, size}}));
    MUST(cudaEventRecord(join, second));
    MUST(cudaStreamWaitEvent(first, join, 0));
    MUST(emu_enqueue(first, "add", [=] { *x = *a + *b; }, {{a, size}, {b, size}}, {{x, size}}));
}

static void a_graph_of_two_streams_is_replayed(void **) {
    Stream first, second;
    DeviceArray<int> x(std::vector<int>(1, 1)), a(1), b(1);
    cudaEvent_t fork, join;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    size_t nodes;
    MUST(cudaEventCreate(&fork));
    MUST(cudaEventCreate(&join));
    MUST(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    assert_true(emu_is_capturing(first));
    assert_false(emu_is_capturing(second));
    add_branches(x.data, a.data, b.data, first, second, fork, join);
    assert_true(emu_is_capturing(second));
    MUST(cudaStreamEndCapture(first, &graph));
    assert_false(emu_is_capturing(second));
    MUST(cudaGraphGetNodes(graph, nullptr, &nodes));
    assert_int_equal(nodes, 3);
    MUST(cudaGraphInstantiate(&executable, graph, 0));
    MUST(cudaGraphDestroy(graph));
    assert_int_equal(x.read()[0], 1); /* captured, not run */
    int expected = 1;
    for (int run = 0; run < 5; run++) {
        MUST(cudaGraphLaunch(executable, first));
        expected *= 5;
    }
    MUST(cudaGraphExecDestroy(executable)); /* launches under way still end */
    first.finish();
    assert_int_equal(x.read()[0], expected);
    MUST(cudaEventDestroy(fork));
    MUST(cudaEventDestroy(join));
}

static void a_capture_refuses_what_cannot_be_in_a_graph(void **) {
    Stream stream, other;
    DeviceArray<int> x(4);
    cudaGraph_t graph;
    cudaEvent_t event;
    void *memory;
    std::vector<int> pageable(4, 1);
    MUST(cudaEventCreate(&event));
    for (int what = 0; what < 7; what++) {
        MUST(cudaEventRecord(event, other));
        MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        MUST(cudaMemsetAsync(x.data, 0, 16, stream));
        cudaError_t expected = cudaErrorStreamCaptureUnsupported, error = cudaSuccess;
        switch (what) {
        case 0:
            error = cudaMalloc(&memory, 16);
            break;
        case 1:
            error = cudaStreamSynchronize(stream);
            break;
        case 2:
            error = cudaDeviceSynchronize();
            break;
        case 3:
            error = cudaMemcpyAsync(x.data, pageable.data(), 16, cudaMemcpyHostToDevice, stream);
            break;
        case 4:
            error = cudaFree(x.data);
            break;
        case 5:
            expected = cudaErrorStreamCaptureIsolation;
            error = cudaStreamWaitEvent(stream, event, 0);
            break;
        case 6:
            expected = cudaErrorStreamCaptureImplicit;
            error = cudaMemsetAsync(x.data, 0, 16, nullptr);
            break;
        }
        assert_int_equal(error, expected);
        assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
    }
    MUST(cudaEventRecord(event, stream));
    stream.finish();
    MUST(cudaEventDestroy(event));
}

static void a_branch_that_does_not_come_back_is_refused(void **) {
    Stream first, second;
    DeviceArray<int> x(4);
    cudaGraph_t graph;
    cudaEvent_t event;
    MUST(cudaEventCreate(&event));
    MUST(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    MUST(cudaEventRecord(event, first));
    MUST(cudaStreamWaitEvent(second, event, 0));
    assert_int_equal(cudaEventSynchronize(event), cudaErrorCapturedEvent);
    assert_int_equal(cudaStreamEndCapture(first, &graph), cudaErrorStreamCaptureInvalidated);

    MUST(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    MUST(cudaEventRecord(event, first));
    MUST(cudaStreamWaitEvent(second, event, 0));
    MUST(cudaMemsetAsync(x.data, 0, 16, second));
    assert_int_equal(cudaStreamEndCapture(first, &graph), cudaErrorStreamCaptureUnjoined);

    MUST(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    MUST(cudaEventRecord(event, first));
    MUST(cudaStreamWaitEvent(second, event, 0));
    assert_int_equal(cudaStreamEndCapture(second, &graph), cudaErrorStreamCaptureUnmatched);
    assert_int_equal(cudaStreamEndCapture(first, &graph), cudaErrorStreamCaptureInvalidated);
    MUST(cudaEventDestroy(event));
}

/* ---- the device ---- */

static void memory_ends_where_it_is_said_to(void **) {
    void *first, *second;
    size_t free_bytes, total;
    emu_set_memory(1 << 20);
    MUST(cudaMalloc(&first, 600 << 10));
    assert_int_equal(cudaMalloc(&second, 600 << 10), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    MUST(cudaMemGetInfo(&free_bytes, &total));
    assert_int_equal(free_bytes, (1 << 20) - (600 << 10));
    assert_int_equal(total, 1 << 20);
    MUST(cudaFree(first));
    assert_int_equal(emu_peak_memory(), 600 << 10);
}

static void a_device_pointer_is_known(void **) {
    char on_host[8];
    DeviceArray<char> x(100);
    assert_true(emu_is_device(x.data, 100));
    assert_true(emu_is_device(x.data + 99, 1));
    assert_false(emu_is_device(x.data + 1, 100));
    assert_false(emu_is_device(on_host, 1));
    assert_int_equal(reinterpret_cast<uintptr_t>(x.data) % 512, 0);
}

static void the_device_is_what_a_test_makes_it(void **) {
    int value, count;
    cudaDeviceProp properties;
    emu_set_capability(8, 0);
    MUST(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
    assert_int_equal(value, 8);
    MUST(cudaGetDeviceProperties(&properties, 0));
    assert_int_equal(properties.major * 10 + properties.minor, 80);
    assert_int_equal(properties.sharedMemPerBlockOptin, 163 << 10);
    assert_int_equal(emu_get_capability(), 80);
    emu_set_device_count(0);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    assert_int_equal(cudaSetDevice(0), cudaErrorInvalidDevice);
}

static void launches_that_a_device_cannot_do_are_refused(void **) {
    Stream stream;
    DeviceArray<float> x(16), loss(1);
    DeviceArray<int> label(std::vector<int>(1, 0));
    cudaError_t error =
        sample_cross_entropy(loss.data, x.data, x.data, label.data, 1, 16, 1, 1056, SAMPLE_CORRECT, stream);
    assert_int_equal(error, cudaErrorInvalidConfiguration);
    error = sample_cross_entropy(loss.data, x.data, x.data, label.data, 1, 13000, 1, 32, SAMPLE_CORRECT, stream);
    assert_int_equal(error, cudaErrorInvalidValue); /* more than 48 KiB was not asked for */
}

static void a_kernel_may_ask_for_more_shared_memory(void **) {
    const int columns = 13000;
    Stream stream;
    DeviceArray<float> x(some_numbers(columns, 1)), dx(columns), loss(1);
    DeviceArray<int> label(std::vector<int>(1, 0));
    assert_int_equal(sample_cross_entropy_shared(228 << 10), cudaErrorInvalidValue);
    MUST(sample_cross_entropy_shared(64 << 10));
    MUST(sample_cross_entropy(loss.data, dx.data, x.data, label.data, 1, columns, 1, 32, SAMPLE_CORRECT, stream));
    stream.finish();
    MUST(sample_cross_entropy_shared(48 << 10));
}

static void the_driver_is_what_the_environment_says(void **) {
    void *driver = dlopen(EMU_DRIVER, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(driver);
    auto init = reinterpret_cast<decltype(&cuInit)>(dlsym(driver, "cuInit"));
    auto version = reinterpret_cast<decltype(&cuDriverGetVersion)>(dlsym(driver, "cuDriverGetVersion"));
    auto count = reinterpret_cast<decltype(&cuDeviceGetCount)>(dlsym(driver, "cuDeviceGetCount"));
    int found;
    assert_int_equal(init(0), CUDA_SUCCESS);
    assert_int_equal(version(&found), CUDA_SUCCESS);
    assert_int_equal(found, CUDA_VERSION);
    assert_int_equal(count(&found), CUDA_SUCCESS);
    assert_int_equal(found, 1);
    setenv("TALWEG_EMU_DRIVER", "11080", 1);
    setenv("TALWEG_EMU_DEVICES", "0", 1);
    assert_int_equal(version(&found), CUDA_SUCCESS);
    assert_int_equal(found, 11080);
    assert_int_equal(init(0), CUDA_ERROR_NO_DEVICE);
    unsetenv("TALWEG_EMU_DRIVER");
    unsetenv("TALWEG_EMU_DEVICES");
    dlclose(driver);
}

/* A small run with everything in it; every error is passed on and everything given back. */
static cudaError_t small_run(void) {
    void *device = nullptr, *host = nullptr;
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cudaError_t error = cudaMalloc(&device, 1024);
    if (!error) error = cudaMallocHost(&host, 1024);
    if (!error) error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (!error) error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (!error) error = cudaMemcpyAsync(device, host, 1024, cudaMemcpyHostToDevice, stream);
    if (!error) error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (!error) {
        float *values = static_cast<float *>(device);
        error = sample_reverse(values, values, 256, SAMPLE_CORRECT, stream);
        cudaError_t ended = cudaStreamEndCapture(stream, &graph);
        if (!error) error = ended;
    }
    if (!error) error = cudaGraphInstantiate(&executable, graph, 0);
    if (!error) error = cudaGraphLaunch(executable, stream);
    if (!error) error = cudaEventRecord(event, stream);
    if (!error) error = cudaEventSynchronize(event);
    if (!error) error = cudaStreamSynchronize(stream);
    cudaError_t freed[] = {executable ? cudaGraphExecDestroy(executable) : cudaSuccess,
                           graph ? cudaGraphDestroy(graph) : cudaSuccess,
                           event ? cudaEventDestroy(event) : cudaSuccess,
                           stream ? cudaStreamDestroy(stream) : cudaSuccess,
                           cudaFreeHost(host),
                           cudaFree(device)};
    for (cudaError_t each : freed)
        if (!error) error = each;
    return error;
}

static void any_call_can_be_made_to_fail(void **) {
    assert_int_equal(small_run(), cudaSuccess);
    uint64_t calls = emu_count_calls(nullptr);
    assert_int_equal(calls, 19);
    assert_int_equal(emu_count_calls("cudaLaunchKernel"), 1);
    for (uint64_t k = 1; k <= calls; k++) {
        emu_fail_call(k, nullptr);
        assert_int_not_equal(small_run(), cudaSuccess);
        assert_non_null(emu_failed_call());
        assert_int_equal(emu_count_live(), 0);
    }
    emu_fail_call(1, "cudaEventRecord");
    assert_int_not_equal(small_run(), cudaSuccess);
    assert_string_equal(emu_failed_call(), "cudaEventRecord");
    assert_int_equal(small_run(), cudaSuccess);
}

static void a_broken_device_stays_broken(void **) {
    Stream stream;
    void *memory;
    DeviceArray<float> x(256);
    emu_break_device_after(2, cudaErrorIllegalAddress);
    MUST(cudaMemsetAsync(x.data, 0, 1024, stream));
    MUST(cudaStreamSynchronize(stream));
    MUST(sample_reverse(x.data, x.data, 256, SAMPLE_CORRECT, stream));
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
    assert_int_equal(cudaMalloc(&memory, 16), cudaErrorIllegalAddress);
    assert_int_equal(cudaMemsetAsync(x.data, 0, 16, stream), cudaErrorIllegalAddress);
    assert_int_equal(emu_enqueue(stream, "work", [] {}, {}, {}), cudaErrorIllegalAddress);
    emu_break_device(cudaSuccess);
    MUST(cudaMemsetAsync(x.data, 0, 16, stream));
}

#define EMU_TEST(name) cmocka_unit_test_teardown(name, nothing_is_left_alive)

int main(void) {
    const struct CMUnitTest tests[] = {
        EMU_TEST(bias_and_relu_in_vectors_of_four),
        EMU_TEST(bias_and_relu_in_half_precision),
        EMU_TEST(cross_entropy_over_blocks_of_several_warps),
        EMU_TEST(moments_by_atomic_additions),
        EMU_TEST(operations_of_warps_and_blocks),
        EMU_TEST(what_an_event_orders_is_ordered),
        EMU_TEST(pageable_memory_may_be_reused_at_once),
        EMU_TEST(host_functions_run_in_order),
        EMU_TEST(a_graph_of_two_streams_is_replayed),
        EMU_TEST(a_capture_refuses_what_cannot_be_in_a_graph),
        EMU_TEST(a_branch_that_does_not_come_back_is_refused),
        EMU_TEST(memory_ends_where_it_is_said_to),
        EMU_TEST(a_device_pointer_is_known),
        EMU_TEST(the_device_is_what_a_test_makes_it),
        EMU_TEST(launches_that_a_device_cannot_do_are_refused),
        EMU_TEST(a_kernel_may_ask_for_more_shared_memory),
        EMU_TEST(the_driver_is_what_the_environment_says),
        EMU_TEST(any_call_can_be_made_to_fail),
        EMU_TEST(a_broken_device_stays_broken),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
