/* Device memory: one reserved range of addresses, of which no address is ever given out twice, so that a use after free
 * is always seen. The host cannot touch it (no access rights) except while the emulated device works. Allocations are
 * filled with bytes that are not-a-number, aligned to 512 bytes and no more, as cudaMalloc's are at least to 256, and
 * what lies between them is poisoned for AddressSanitizer. Pinned memory is ordinary host memory in a table. */
#include "runtime.h"
#include "report.h"

#include <map>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace emu {

static const size_t reserved = size_t{64} << 30, page = 4096, offset_in_page = 512;
static char *space;
static size_t given; /* bytes of the space that were given out */
static std::map<uintptr_t, size_t> allocations, pinned;
static std::map<uintptr_t, int> owners; /* of allocations: the device they lie on */
static size_t capacity, used, peak;
static int open_depth;

/* From the first allocation that is alive: what was freed before it stays closed, and costs nothing. */
static void rights(bool open) {
    if (allocations.empty()) return;
    char *first = reinterpret_cast<char *>(allocations.begin()->first) - offset_in_page;
    size_t bytes = static_cast<size_t>(space + given - first);
    if (mprotect(first, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE)) emu_misuse("mprotect failed");
}
OpenDevice::OpenDevice() {
    if (!open_depth++) rights(true);
}
OpenDevice::~OpenDevice() {
    if (!--open_depth) rights(false);
}
CloseDevice::CloseDevice() {
    if (open_depth) rights(false);
}
CloseDevice::~CloseDevice() {
    if (open_depth) rights(true);
}

size_t memory_capacity() {
    if (!capacity) capacity = settings().memory;
    return capacity;
}

static void reserve() {
    if (space) return;
    /* Past the sanitizers' own mmap, which would clear shadow memory for all of it. */
    long mapped = syscall(SYS_mmap, 0, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == -1) emu_misuse("cannot reserve %zu bytes of addresses for device memory", reserved);
    space = reinterpret_cast<char *>(mapped);
}

/* The allocation that begins at or before an address, if it reaches beyond it. */
static std::map<uintptr_t, size_t>::iterator find(std::map<uintptr_t, size_t> &table, const void *start) {
    uintptr_t address = reinterpret_cast<uintptr_t>(start);
    auto found = table.upper_bound(address);
    if (found == table.begin()) return table.end();
    --found;
    return address < found->first + found->second ? found : table.end();
}

static bool inside(std::map<uintptr_t, size_t> &table, const void *start, size_t bytes) {
    auto found = find(table, start);
    return found != table.end() && bytes <= found->first + found->second - reinterpret_cast<uintptr_t>(start);
}

static bool in_space(const void *start) {
    const char *address = static_cast<const char *>(start);
    return space && address >= space && address < space + reserved;
}

Where where(const void *start) {
    if (in_space(start)) return Where::device;
    return find(pinned, start) != pinned.end() ? Where::pinned : Where::pageable;
}

void check_range(const char *what, const void *start, size_t bytes) {
    Where at = where(start);
    if (at == Where::pageable || !bytes) return;
    if (!inside(at == Where::device ? allocations : pinned, start, bytes))
        emu_misuse("%s: %p and the %zu bytes from there do not lie inside one live %s allocation", what, start, bytes,
                   at == Where::device ? "device" : "pinned");
}

void check_owner(const char *what, const void *start, int owner) {
    auto found = find(allocations, start);
    if (found != allocations.end() && owners[found->first] != owner)
        emu_misuse("%s: %p lies on device %d, its stream on device %d", what, start, owners[found->first], owner);
}

size_t memory_live() { return allocations.size() + pinned.size(); }

void memory_reset() {
    capacity = settings().memory;
    peak = used;
}

} // namespace emu

using namespace emu;

bool emu_is_device(const void *start, size_t bytes) {
    std::lock_guard<std::recursive_mutex> lock(emu::mutex);
    return in_space(start) && inside(allocations, start, bytes);
}

void emu_set_memory(size_t bytes) { capacity = bytes; }

size_t emu_peak_memory(void) { return peak; }

cudaError_t cudaMalloc(void **memory, size_t bytes) {
    Call call("cudaMalloc", cudaErrorMemoryAllocation);
    *memory = nullptr;
    reserve();
    if (!call.error) call.error = refuse_in_capture();
    if (call.error || !bytes) return call.end(call.error);
    if (bytes > memory_capacity() || used > memory_capacity() - bytes) return call.end(cudaErrorMemoryAllocation);
    size_t room = (offset_in_page + bytes + page - 1) / page * page + page; /* a page behind it that is nobody's */
    if (room > reserved - given) emu_misuse("this process has used up all %zu bytes of device addresses", reserved);
    char *body = space + given + offset_in_page;
    given += room;
    used += bytes;
    if (used > peak) peak = used;
    allocations[reinterpret_cast<uintptr_t>(body)] = bytes;
    owners[reinterpret_cast<uintptr_t>(body)] = current_device;
    poison(body - offset_in_page, room);
    unpoison(body, bytes);
    OpenDevice open;
    if (open_depth > 1) rights(true);
    memset(body, 0xff, bytes);
    *memory = body;
    return call.end(cudaSuccess);
}

cudaError_t cudaFree(void *memory) {
    Call call("cudaFree");
    if (!memory) return call.end(call.error);
    auto found = allocations.find(reinterpret_cast<uintptr_t>(memory));
    if (found == allocations.end()) emu_misuse("cudaFree of %p, which is no live device allocation", memory);
    cudaError_t captured = refuse_in_capture();
    if (captured) return call.end(captured);
    finish_all();
    size_t bytes = found->second;
    poison(memory, bytes);
    char *first_page = static_cast<char *>(memory) - offset_in_page;
    madvise(first_page, (offset_in_page + bytes + page - 1) / page * page, MADV_DONTNEED);
    used -= bytes;
    owners.erase(found->first);
    allocations.erase(found);
    return call.end(call.error);
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned) {
    Call call("cudaHostAlloc", cudaErrorMemoryAllocation);
    *memory = nullptr;
    if (!call.error) call.error = refuse_in_capture();
    if (call.error || !bytes) return call.end(call.error);
    *memory = aligned_alloc(page, (bytes + page - 1) / page * page);
    if (!*memory) return call.end(cudaErrorMemoryAllocation);
    memset(*memory, 0xff, bytes);
    poison(static_cast<char *>(*memory) + bytes, (bytes + page - 1) / page * page - bytes);
    pinned[reinterpret_cast<uintptr_t>(*memory)] = bytes;
    return call.end(cudaSuccess);
}

cudaError_t cudaMallocHost(void **memory, size_t bytes) { return cudaHostAlloc(memory, bytes, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void *memory) {
    Call call("cudaFreeHost");
    if (!memory) return call.end(call.error);
    auto found = pinned.find(reinterpret_cast<uintptr_t>(memory));
    if (found == pinned.end()) emu_misuse("cudaFreeHost of %p, which is no live pinned allocation", memory);
    cudaError_t captured = refuse_in_capture();
    if (captured) return call.end(captured);
    pinned.erase(found); /* CUDA may wait here for what is queued, but does not promise it */
    free(memory);
    return call.end(call.error);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    Call call("cudaMemGetInfo");
    *total = memory_capacity();
    *free_bytes = *total > used ? *total - used : 0;
    return call.end(call.error);
}
