/* Shared memory: every block gets every variable anew, with room around it that AddressSanitizer watches, filled with
 * bytes that are not-a-number in every floating-point type. */
#include "block.h"
#include "emu.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace emu {

static const int max_variables = 64;
static const size_t static_limit = 48 << 10;
static void *variable[max_variables];
static int variables;
static uint64_t block_number;
static void *dynamic;
static size_t used, used_static, limit;

#ifdef EMU_TSAN
/* Addresses come round only after a gibibyte, so that blocks that ran together in a grid do not share any: what
 * ThreadSanitizer remembers of an address must be of one block. */
static void *take(size_t bytes) {
    static const size_t size = size_t{1} << 30;
    static char *memory, *next;
    if (!memory)
        memory = next = reinterpret_cast<char *>(
            syscall(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    size_t rounded = (bytes + 15) / 16 * 16 + 64;
    if (next + rounded > memory + size) next = memory;
    char *taken = next;
    next += rounded;
    return taken;
}
static void give_back(void *) {}
#else
static void *take(size_t bytes) {
    void *taken = nullptr;
    if (posix_memalign(&taken, 16, bytes)) emu_misuse("no memory for shared memory");
    return taken;
}
static void give_back(void *memory) { free(memory); }
#endif

void *shared_allocate(size_t bytes) {
    if (variables == max_variables) emu_misuse("more than %d shared variables in a kernel", max_variables);
    void *memory = take(bytes);
    /* Not by memset, which ThreadSanitizer would take for a write of the program's. */
    for (size_t i = 0; i < bytes; i++) static_cast<volatile unsigned char *>(memory)[i] = 0xff;
    return variable[variables++] = memory;
}

void shared_begin(size_t dynamic_bytes, size_t shared_limit) {
    block_number++;
    variables = 0;
    used_static = 0;
    used = dynamic_bytes;
    limit = shared_limit;
    dynamic = dynamic_bytes ? shared_allocate(dynamic_bytes) : nullptr;
}

void shared_end() {
    while (variables) give_back(variable[--variables]);
}

void *shared_memory(SharedSlot &slot, size_t bytes) {
    if (slot.block == block_number) return slot.memory;
    used += bytes;
    used_static += bytes;
    if (used_static > static_limit || used > limit)
        emu_misuse("shared memory of a block: %zu bytes static, %zu in all, of %zu and %zu", used_static, used,
                   static_limit, limit);
    slot.block = block_number;
    return slot.memory = shared_allocate(bytes);
}

void *dynamic_shared_memory() {
    if (!dynamic) emu_misuse("dynamic shared memory is used, but the launch gave 0 bytes");
    return dynamic;
}

} // namespace emu
