/* Stacks that take turns on one operating system thread: the context switch, and telling it to the sanitizers. Which
 * stack runs when is decided in scheduler.cpp. */
#ifndef EMU_FIBER_H
#define EMU_FIBER_H

#include <stddef.h>

namespace emu {

struct Fiber {
    void *stack_pointer = nullptr; /* where it goes on; ucontext_t * where there is no switch of our own */
    char *stack = nullptr;
    size_t size = 0;
    void *fake_stack = nullptr; /* AddressSanitizer's */
    void *tsan = nullptr;       /* ThreadSanitizer's context */
};

/* Maps a stack with a guard page below it. `entry` begins with fiber_arrived() and never returns. */
void fiber_create(Fiber &fiber, void (*entry)());
/* Makes `fiber` stand for the calling thread's own stack. */
void fiber_adopt(Fiber &fiber);
Fiber &fiber_current();
void fiber_switch(Fiber &to);
void fiber_arrived();

} // namespace emu

#endif
