/* Runs grids: a fiber for every CUDA thread of a block, on one operating system thread, one block after another. Which
 * thread and which block come next is chance, or a fixed order (TALWEG_EMU_THREADS). Threads change places only where
 * they meet (meetings.cpp); what lies between is run in one go.
 *
 * For ThreadSanitizer every CUDA thread is a context of its own, and nothing is ordered that CUDA does not order:
 * neither the threads of a block nor, in a grid of at most max_fibers threads, the blocks. */
#include "block.h"
#include "emu.h"
#include "report.h"

#include <stdio.h>
#include <string.h>

namespace emu {

ThreadView *running;
dim3 block_size, grid_size;
Block block;

static const int max_fibers = tsan ? 2048 : Block::max_threads;
static Fiber host, pool[max_fibers];
static int pooled, spare[max_fibers], spares; /* fibers made; those that no thread of the block needs */
static Thread *queue[Block::max_threads];     /* runnable threads */
static int queued;
static int unstarted[Block::max_threads], unstarted_count;
static const Grid *grid;
static int first_context; /* TSan: context of the running block's thread 0 */
static Thread *starting;  /* what a fiber that was just switched to is to begin */
static Order began, ended, fences;

const char *who_runs(char *buffer, size_t size) {
    buffer[0] = 0;
    if (running)
        snprintf(buffer, size, "\n==EMULATION== kernel %s, block (%u,%u,%u), thread (%u,%u,%u)", grid->kernel,
                 running->block.x, running->block.y, running->block.z, running->thread.x, running->thread.y,
                 running->thread.z);
    return buffer;
}

void fence() {
    release(fences);
    acquire(fences);
}

void misaligned_atomic(const void *address, size_t bytes) {
    emu_misuse("misaligned atomic operation of %zu bytes at %p", bytes, address);
}

/* ---- who is next ---- */

void wake(Thread &thread) {
    thread.state = State::runnable;
    queue[queued++] = &thread;
}

/* In a fixed order the thread that completes a meeting goes straight on, as a warp does. */
bool unwake_last(Thread &thread) {
    if (settings().thread_order == ThreadOrder::random) return false;
    for (int i = queued - 1; i >= 0; i--) {
        if (queue[i] != &thread) continue;
        memmove(queue + i, queue + i + 1, static_cast<size_t>(queued - i - 1) * sizeof *queue);
        queued--;
        return true;
    }
    return false;
}

/* Takes an element out: by chance, the last, or the first. */
template <class T> static T take(T *list, int &count) {
    ThreadOrder order = settings().thread_order;
    int at = order == ThreadOrder::random    ? static_cast<int>(chance(static_cast<unsigned>(count)))
             : order == ThreadOrder::reverse ? count - 1
                                             : 0;
    T taken = list[at];
    count--;
    if (order == ThreadOrder::forward)
        memmove(list, list + 1, static_cast<size_t>(count) * sizeof *list);
    else
        list[at] = list[count];
    return taken;
}

static Thread *next_thread() {
    bool begin = unstarted_count &&
                 (settings().thread_order != ThreadOrder::random || !queued ||
                  chance(static_cast<unsigned>(unstarted_count + queued)) < static_cast<unsigned>(unstarted_count));
    if (begin) return &block.thread[take(unstarted, unstarted_count)];
    return queued ? take(queue, queued) : nullptr;
}

/* ---- fibers ---- */

static void fiber_main();

static Fiber *fiber_for(const Thread &thread) {
    if (tsan) return &pool[first_context + thread.index];
    if (spares) return &pool[spare[--spares]];
    fiber_create(pool[pooled], fiber_main);
    return &pool[pooled++];
}

/* Leaves the fiber for whatever runs next; with nobody left, for the host. */
static void dispatch() {
    Thread *thread = next_thread();
    if (!thread) {
        fiber_switch(host);
        return;
    }
    if (thread->state == State::unstarted) {
        thread->fiber = fiber_for(*thread);
        starting = thread;
    }
    running = thread;
    fiber_switch(*thread->fiber);
}

void wait(Thread &thread) {
    dispatch();
    running = &thread;
}

static void run_thread(Thread &thread) {
    thread.state = State::runnable;
    thread.fiber = &fiber_current();
    running = &thread;
    acquire(began);
    grid->body(grid->closure);
    release(ended);
    thread.state = State::done;
    block.alive--;
    running = nullptr;
    thread_ended(thread);
}

static void fiber_main() {
    fiber_arrived();
    for (;;) {
        Thread *thread = starting;
        run_thread(*thread);
        if (!tsan) { /* the same stack serves the next threads that have not begun: most kernels never switch at all */
            while (unstarted_count && (!queued || chance(2)))
                run_thread(block.thread[take(unstarted, unstarted_count)]);
            spare[spares++] = static_cast<int>(&fiber_current() - pool);
        }
        dispatch();
    }
}

/* ---- grids ---- */

static void report_deadlock() {
    const Thread *last = nullptr;
    for (int i = 0; i < block.count; i++) {
        const Thread &thread = block.thread[i];
        if (thread.state == State::done) continue;
        if (last && last->state == thread.state && last->site.line == thread.site.line && last->mask == thread.mask)
            continue;
        last = &thread;
        fprintf(stderr, "==EMULATION== thread %d and those after it wait at %s %s:%d", i, meeting_name(thread.meeting),
                thread.site.file, thread.site.line);
        fprintf(stderr, thread.state == State::at_warp ? " with mask %08x\n" : "\n", thread.mask);
    }
    emu_misuse("deadlock: %d of %d threads of a block of kernel %s can never go on", block.alive, block.count,
               grid->kernel);
}

static void run_block(uint3 place, size_t shared_limit) {
    dim3 size = block_size;
    block.count = block.alive = static_cast<int>(size.x * size.y * size.z);
    block.at_barrier = 0;
    queued = 0;
    unstarted_count = block.count;
    for (int i = 0; i < block.count; i++) {
        unsigned index = static_cast<unsigned>(i);
        Thread &thread = block.thread[i];
        thread.thread = {index % size.x, index / size.x % size.y, index / size.x / size.y};
        thread.block = place;
        thread.index = i;
        thread.state = State::unstarted;
        unstarted[i] = i;
    }
    shared_begin(grid->shared_bytes, shared_limit);
    if (tsan) block.order = static_cast<BlockOrder *>(shared_allocate(sizeof(BlockOrder)));
    dispatch();
    running = nullptr;
    if (block.alive) report_deadlock();
    shared_end();
}

/* Blocks are visited as start, start + stride, ... modulo their number, to which the stride has no common divisor. */
static void scramble(size_t count, size_t *start, size_t *stride) {
    *start = 0;
    *stride = 1;
    if (settings().thread_order == ThreadOrder::reverse) {
        *start = *stride = count - 1;
    } else if (settings().thread_order == ThreadOrder::random && count > 2) {
        *start = chance(static_cast<unsigned>(count));
        for (*stride = 1 + chance(static_cast<unsigned>(count));; ++*stride) {
            size_t a = *stride, b = count;
            while (b) {
                size_t rest = a % b;
                a = b;
                b = rest;
            }
            if (a == 1) return;
        }
    }
}

void run_grid(const Grid &wanted, size_t shared_limit) {
    static BlockOrder unseen;
    grid = &wanted;
    block_size = wanted.block;
    grid_size = wanted.grid;
    block.order = &unseen;
    fiber_adopt(host);
    size_t threads = size_t{block_size.x} * block_size.y * block_size.z, start, stride;
    size_t blocks = size_t{grid_size.x} * grid_size.y * grid_size.z;
    bool together = blocks * threads <= static_cast<size_t>(max_fibers); /* every thread has a context of its own */
    if (tsan) { /* all before any thread begins: what makes a context is ordered before it */
        size_t needed = together ? blocks * threads : threads;
        for (; static_cast<size_t>(pooled) < needed; pooled++) fiber_create(pool[pooled], fiber_main);
    }
    scramble(blocks, &start, &stride);
    release(began);
    for (size_t i = 0; i < blocks; i++) {
        size_t at = (start + i * stride) % blocks;
        first_context = together ? static_cast<int>(i * threads) : 0;
        run_block({static_cast<unsigned>(at % grid_size.x), static_cast<unsigned>(at / grid_size.x % grid_size.y),
                   static_cast<unsigned>(at / grid_size.x / grid_size.y)},
                  shared_limit);
        if (!together) {
            acquire(ended);
            release(began);
        }
    }
    acquire(ended);
}

} // namespace emu
