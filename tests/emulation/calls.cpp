/* Counting calls and making them fail; the state of the emulated device that is no memory, stream or graph. */
#include "runtime.h"
#include "report.h"

#include <map>
#include <string>
#include <string.h>

namespace emu {

std::recursive_mutex mutex;
cudaError_t last_error;
Device device;
thread_local int current_device;
size_t live_handles;

static std::map<std::string, uint64_t> counts;
static uint64_t count;
static uint64_t fail_in; /* calls until the one that fails; 0: none does */
static int fail_status;
static const char *fail_name, *failed_name;

Call::Call(const char *name, cudaError_t injected) : error(cudaSuccess), lock(mutex) {
    if (emu_call(name)) error = static_cast<cudaError_t>(emu_failing_status(injected));
    if (device.broken) error = device.broken;
}

cudaError_t Call::end(cudaError_t result) {
    if (result) last_error = result;
    return result;
}

void operation_ran() {
    device.operations++;
    if (device.operations == device.break_at) emu_break_device(device.break_with);
}

} // namespace emu

using emu::device;

bool emu_call(const char *name) {
    std::lock_guard<std::recursive_mutex> lock(emu::mutex);
    emu::count++;
    emu::counts[name]++;
    if (!emu::fail_in || (emu::fail_name && strcmp(name, emu::fail_name))) return false;
    if (--emu::fail_in) return false;
    emu::failed_name = name;
    return true;
}

uint64_t emu_count_calls(const char *name) {
    std::lock_guard<std::recursive_mutex> lock(emu::mutex);
    return name ? emu::counts[name] : emu::count;
}

void emu_fail_call(uint64_t k, const char *name) { emu_fail_call_with(k, name, 0); }

int emu_failing_status(int otherwise) { return emu::fail_status ? emu::fail_status : otherwise; }

void emu_fail_call_with(uint64_t k, const char *name, int status) {
    std::lock_guard<std::recursive_mutex> lock(emu::mutex);
    emu::fail_in = k;
    emu::fail_status = status;
    emu::fail_name = name;
    emu::failed_name = nullptr;
}

const char *emu_failed_call(void) { return emu::failed_name; }

void emu_set_capability(int major, int minor) {
    device.major = major;
    device.minor = minor;
}

int emu_get_capability(void) { return device.major * 10 + device.minor; }

void emu_set_device_count(int count) { device.count = count; }

void emu_break_device(cudaError_t error) { device.broken = error; }

void emu_break_device_after(uint64_t operations, cudaError_t error) {
    device.break_at = operations ? device.operations + operations : 0;
    device.break_with = error;
}

uint64_t emu_count_operations(void) { return device.operations; }

size_t emu_count_live(void) { return emu::live_handles + emu::memory_live(); }

void emu_reset(void) {
    if (emu_count_live())
        emu_misuse("emu_reset while %zu allocations, streams, events or graphs are alive", emu_count_live());
    device = emu::Device();
    emu::counts.clear();
    emu::count = 0;
    emu::last_error = cudaSuccess;
    emu_fail_call(0, nullptr);
    emu::memory_reset();
}
