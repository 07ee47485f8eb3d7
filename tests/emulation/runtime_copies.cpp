/* Kernel launches, copies and fills: checking what is asked, and queueing it. */
#include "block.h"
#include "runtime.h"

#include <map>
#include <string.h>

namespace emu {

static const size_t shared_default = 48 << 10;
static std::map<const void *, size_t> shared_opt_in; /* by kernel: cudaFuncAttributeMaxDynamicSharedMemorySize */

size_t shared_most() {
    int capability = emu_get_capability();
    return (capability == 80 ? 163 : capability < 90 || capability >= 120 ? 99 : 227) * size_t{1024};
}

static size_t dynamic_limit(const void *function) {
    auto found = shared_opt_in.find(function);
    return found == shared_opt_in.end() ? shared_default : found->second;
}

cudaError_t launch(const Grid &grid, cudaStream_t handle) {
    Call call("cudaLaunchKernel", cudaErrorLaunchOutOfResources);
    CUstream_st *stream = stream_of(handle);
    if (call.error) return call.end(call.error);
    const dim3 &g = grid.grid, &b = grid.block;
    if (!g.x || !g.y || !g.z || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535 || !b.x || !b.y || !b.z || b.x > 1024 ||
        b.y > 1024 || b.z > 64 || size_t{b.x} * b.y * b.z > 1024)
        return call.end(cudaErrorInvalidConfiguration);
    size_t limit = dynamic_limit(grid.function);
    if (grid.shared_bytes > limit) return call.end(cudaErrorInvalidValue);
    auto bytes = std::make_shared<std::vector<uint64_t>>((grid.closure_bytes + 7) / 8);
    memcpy(bytes->data(), grid.closure, grid.closure_bytes);
    auto run = [grid, bytes = std::move(bytes), limit] {
        Grid own = grid;
        own.closure = bytes->data();
        run_grid(own, limit);
    };
    return call.end(queue_work(stream, {grid.kernel, std::move(run), {}, {}, false}));
}

static bool kind_matches(cudaMemcpyKind kind, bool from_device, bool to_device) {
    switch (kind) {
    case cudaMemcpyHostToHost:
        return !from_device && !to_device;
    case cudaMemcpyHostToDevice:
        return !from_device && to_device;
    case cudaMemcpyDeviceToHost:
        return from_device && !to_device;
    case cudaMemcpyDeviceToDevice:
        return from_device && to_device;
    default:
        return true;
    }
}

/* Pageable memory is read when the call is made, and written before it returns; pinned memory when the copy runs. */
static cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, CUstream_st *stream, bool wait) {
    Where source = where(from), target = where(to);
    if (!kind_matches(kind, source == Where::device, target == Where::device)) return cudaErrorInvalidValue;
    if (!bytes) return cudaSuccess;
    if (stream->capture && (wait || source == Where::pageable || target == Where::pageable)) {
        spoil(*stream->capture);
        return cudaErrorStreamCaptureUnsupported;
    }
    check_range("source of a copy", from, bytes);
    check_range("destination of a copy", to, bytes);
    std::shared_ptr<std::vector<char>> staged;
    std::vector<emu_range> reads;
    if (source == Where::pageable) {
        tell_read(from, bytes);
        const char *first = static_cast<const char *>(from);
        staged = std::make_shared<std::vector<char>>(first, first + bytes);
    } else {
        reads = {{from, bytes}};
    }
    auto run = [to, from, bytes, staged = std::move(staged)] { memmove(to, staged ? staged->data() : from, bytes); };
    cudaError_t error = queue_work(stream, {"copy", std::move(run), reads, {{to, bytes}}, false});
    if (!error && (wait || target == Where::pageable)) finish_stream(stream);
    return error;
}

static cudaError_t fill(void *to, int value, size_t bytes, CUstream_st *stream) {
    if (where(to) != Where::device) return cudaErrorInvalidValue;
    if (!bytes) return cudaSuccess;
    return queue_work(stream, {"fill", [to, value, bytes] { memset(to, value, bytes); }, {}, {{to, bytes}}, false});
}

} // namespace emu

using namespace emu;

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t handle) {
    Call call("cudaMemcpyAsync");
    if (call.error) return call.end(call.error);
    return call.end(copy(to, from, bytes, kind, stream_of(handle), false));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    Call call("cudaMemcpy");
    if (!call.error) call.error = refuse_in_capture();
    if (!call.error) call.error = copy(to, from, bytes, kind, stream_of(nullptr), true);
    return call.end(call.error ? call.error : device.broken);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t handle) {
    Call call("cudaMemsetAsync");
    if (call.error) return call.end(call.error);
    return call.end(fill(to, value, bytes, stream_of(handle)));
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    Call call("cudaMemset");
    if (!call.error) call.error = refuse_in_capture();
    return call.end(call.error ? call.error : fill(to, value, bytes, stream_of(nullptr)));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *argument) {
    Call call("cudaLaunchHostFunc");
    CUstream_st *stream = stream_of(handle);
    if (call.error) return call.end(call.error);
    return call.end(queue_work(stream, {"host function", [=] { function(argument); }, {}, {}, true}));
}

/* Every kernel was built for every device here. */
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *function) {
    Call call("cudaFuncGetAttributes", cudaErrorNoKernelImageForDevice);
    if (call.error) return call.end(call.error);
    if (!attributes || !function) return call.end(cudaErrorInvalidValue);
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(dynamic_limit(function));
    return call.end(cudaSuccess);
}

cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute attribute, int value) {
    Call call("cudaFuncSetAttribute");
    if (call.error) return call.end(call.error);
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || static_cast<size_t>(value) > shared_most()) return call.end(cudaErrorInvalidValue);
        shared_opt_in[function] = static_cast<size_t>(value);
    }
    return call.end(cudaSuccess);
}

/* By threads and shared memory alone: the emulation knows nothing of registers. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block_size,
                                                          size_t shared_bytes) {
    Call call("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    *blocks = 0;
    if (call.error) return call.end(call.error);
    if (block_size < 1 || block_size > 1024 || shared_bytes > dynamic_limit(function))
        return call.end(cudaErrorInvalidValue);
    size_t by_threads = 2048 / static_cast<size_t>(block_size), by_shared = shared_most() / (shared_bytes + 1024);
    *blocks = static_cast<int>(by_threads < by_shared ? by_threads : by_shared);
    return call.end(cudaSuccess);
}
