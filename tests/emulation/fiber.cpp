/* See fiber.h. On x86-64 a switch saves six registers; elsewhere it is swapcontext's. */
#include "fiber.h"
#include "emu.h"
#include "sanitizers.h"

#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>

namespace emu {

static const size_t stack_bytes = 128 << 10, guard_bytes = 4096;
static Fiber *current;

Fiber &fiber_current() { return *current; }

#ifdef __x86_64__
extern "C" void emu_switch_stack(void **save, void *to);
asm(".text\n"
    ".globl emu_switch_stack\n"
    ".type emu_switch_stack, @function\n"
    "emu_switch_stack:\n"
    "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
    "    mov %rsp, (%rdi)\n"
    "    mov %rsi, %rsp\n"
    "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
    "    ret\n"
    ".size emu_switch_stack, . - emu_switch_stack\n");

static void prepare(Fiber &fiber, void (*entry)()) {
    void **top = reinterpret_cast<void **>(fiber.stack + fiber.size);
    *--top = nullptr; /* keeps the stack aligned as after a call */
    *--top = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber.stack_pointer = top;
}

static void change_stack(Fiber &from, Fiber &to) { emu_switch_stack(&from.stack_pointer, to.stack_pointer); }
#else
static void prepare(Fiber &fiber, void (*entry)()) {
    ucontext_t *context = new ucontext_t;
    getcontext(context);
    context->uc_stack.ss_sp = fiber.stack;
    context->uc_stack.ss_size = fiber.size;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    fiber.stack_pointer = context;
}

static void change_stack(Fiber &from, Fiber &to) {
    if (!from.stack_pointer) from.stack_pointer = new ucontext_t;
    swapcontext(static_cast<ucontext_t *>(from.stack_pointer), static_cast<ucontext_t *>(to.stack_pointer));
}
#endif

void fiber_create(Fiber &fiber, void (*entry)()) {
    void *memory = mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) emu_misuse("no memory for the stack of an emulated thread");
    mprotect(memory, guard_bytes, PROT_NONE);
    fiber.stack = static_cast<char *>(memory) + guard_bytes;
    fiber.size = stack_bytes;
    fiber.tsan = tsan_create();
    prepare(fiber, entry);
}

void fiber_adopt(Fiber &fiber) {
    static thread_local void *stack;
    static thread_local size_t size;
    if (!stack) {
        pthread_attr_t attributes;
        pthread_getattr_np(pthread_self(), &attributes);
        pthread_attr_getstack(&attributes, &stack, &size);
        pthread_attr_destroy(&attributes);
    }
    fiber.stack = static_cast<char *>(stack);
    fiber.size = size;
    fiber.tsan = tsan_context();
    current = &fiber;
}

void fiber_arrived() {
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(current->fake_stack, nullptr, nullptr);
#endif
}

void fiber_switch(Fiber &to) {
    Fiber &from = *current;
    if (&from == &to) return;
    current = &to;
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.size);
#endif
    tsan_switch(to.tsan);
    change_stack(from, to);
    fiber_arrived();
}

} // namespace emu
