/* Where threads wait for one another: barriers of a block and operations of a warp. Threads that cannot meet, because
 * they stand at different places, have ended, or are not in the mask they gave, are reported with their places. The
 * rules are as strict as CUDA's: all lanes of a mask, and all threads of a block, at the same call. */
#include "block.h"
#include "emu.h"

namespace emu {

const char *meeting_name(Meeting meeting) {
    static const char *const name[] = {
        "__syncwarp",        "__shfl_sync",         "__ballot_sync, __any_sync or __all_sync",
        "__reduce_add_sync", "__reduce_min_sync",   "__reduce_max_sync",
        "__syncthreads",     "__syncthreads_count", "__syncthreads_and",
        "__syncthreads_or"};
    return name[static_cast<int>(meeting)];
}

static bool same_place(const Thread &a, const Thread &b) {
    return a.meeting == b.meeting && a.site.line == b.site.line && a.site.file == b.site.file;
}

/* ---- the block's barrier ---- */

static const Thread *first_at_barrier() {
    if (!block.at_barrier) return nullptr;
    for (int i = 0; i < block.count; i++)
        if (block.thread[i].state == State::at_barrier) return &block.thread[i];
    return nullptr;
}

static void release_barrier() {
    block.at_barrier = 0;
    block.barrier_phase ^= 1;
    for (int i = 0; i < block.count; i++) {
        Thread &thread = block.thread[i];
        if (thread.state != State::at_barrier) continue;
        thread.result = static_cast<uint64_t>(block.barrier_result);
        wake(thread);
    }
}

int meet_block(Meeting kind, int predicate, Site site) {
    Thread &self = this_thread();
    self.meeting = kind;
    self.site = site;
    if (const Thread *other = first_at_barrier()) {
        if (!same_place(self, *other))
            emu_misuse("divergent barrier: one thread is at %s %s:%d, thread %d waits at %s %s:%d", meeting_name(kind),
                       site.file, site.line, other->index, meeting_name(other->meeting), other->site.file,
                       other->site.line);
    } else {
        block.barrier_result = kind == Meeting::sync_threads_and;
    }
    if (block.alive < block.count)
        emu_misuse("%s at %s:%d, after %d threads of the block have ended", meeting_name(kind), site.file, site.line,
                   block.count - block.alive);
    if (kind == Meeting::sync_threads_count) block.barrier_result += predicate != 0;
    if (kind == Meeting::sync_threads_and) block.barrier_result &= predicate != 0;
    if (kind == Meeting::sync_threads_or) block.barrier_result |= predicate != 0;

    Order &order = block.order->barrier[block.barrier_phase];
    release(order);
    self.state = State::at_barrier;
    if (++block.at_barrier == block.alive) release_barrier();
    wait(self);
    acquire(order);
    return static_cast<int>(self.result);
}

/* ---- operations of a warp ---- */

struct Warp {
    Thread *lane; /* the first */
    int count;
    explicit Warp(int number) {
        lane = &block.thread[number * 32];
        count = block.count - number * 32 < 32 ? block.count - number * 32 : 32;
    }
};

static uint32_t combine(Meeting kind, uint32_t a, uint32_t b) {
    switch (kind) {
    case Meeting::reduce_add:
        return a + b;
    case Meeting::reduce_min:
        return b < a ? b : a;
    case Meeting::reduce_max:
        return b > a ? b : a;
    default: /* votes */
        return a | b;
    }
}

static uint32_t vote(Meeting kind, const Thread &thread) {
    uint32_t value = static_cast<uint32_t>(thread.value);
    return kind == Meeting::ballot ? value << (thread.index & 31) : value;
}

/* Does the operation of lanes `mask` if all of them that have not ended wait for it. */
static void try_warp(const Warp &warp, unsigned mask) {
    Thread *present[32];
    int count = 0;
    for (int i = 0; i < warp.count; i++) {
        Thread &thread = warp.lane[i];
        if (!(mask >> i & 1) || thread.state == State::done) continue;
        if (thread.state != State::at_warp || thread.mask != mask) return;
        present[count++] = &thread;
    }
    if (!count) return;
    Thread &first = *present[0];
    uint32_t result = vote(first.meeting, first);
    for (int i = 1; i < count; i++) {
        const Thread &thread = *present[i];
        if (!same_place(thread, first))
            emu_misuse("divergent warp: lane %d is at %s %s:%d, lane %d at %s %s:%d, mask %08x", thread.index & 31,
                       meeting_name(thread.meeting), thread.site.file, thread.site.line, first.index & 31,
                       meeting_name(first.meeting), first.site.file, first.site.line, mask);
        result = combine(first.meeting, result, vote(thread.meeting, thread));
    }
    if (first.meeting == Meeting::shuffle) {
        for (int i = 0; i < count; i++) {
            Thread &thread = *present[i];
            const Thread &source = warp.lane[thread.source];
            thread.undefined =
                thread.source >= warp.count || !(mask >> thread.source & 1) || source.state == State::done;
            thread.result = thread.undefined ? ~uint64_t{0} : source.value;
        }
    } else {
        for (int i = 0; i < count; i++) present[i]->result = result;
    }
    block.warp_phase[first.index / 32] ^= 1;
    for (int i = 0; i < count; i++) wake(*present[i]);
}

uint64_t meet_warp(Meeting kind, unsigned mask, uint64_t value, int source, Site site) {
    Thread &self = this_thread();
    int lane = self.index & 31, number = self.index / 32;
    if (!(mask >> lane & 1))
        emu_misuse("%s at %s:%d: lane %d is not in its own mask %08x", meeting_name(kind), site.file, site.line, lane,
                   mask);
    self.meeting = kind;
    self.site = site;
    self.mask = mask;
    self.value = value;
    self.source = source;
    self.undefined = false;
    self.state = State::at_warp;
    Order &order = block.order->warp[number][block.warp_phase[number]];
    bool orders = kind == Meeting::sync_warp; /* shuffles and votes promise nothing about memory */
    if (orders) release(order);
    try_warp(Warp(number), mask);
    if (self.state != State::runnable || !unwake_last(self)) wait(self);
    if (orders) acquire(order);
    if (self.undefined)
        emu_misuse("%s at %s:%d: lane %d reads lane %d, which is not there (mask %08x)", meeting_name(kind), site.file,
                   site.line, lane, source, mask);
    return self.result;
}

/* ---- a thread that ends may be the one that others wait for ---- */

void thread_ended(Thread &thread) {
    if (const Thread *other = first_at_barrier())
        emu_misuse("thread %d of block (%u,%u,%u) ends while others wait at %s %s:%d, a barrier that it never reached",
                   thread.index, thread.block.x, thread.block.y, thread.block.z, meeting_name(other->meeting),
                   other->site.file, other->site.line);
    Warp warp(thread.index / 32);
    for (int i = 0; i < warp.count; i++)
        if (warp.lane[i].state == State::at_warp) try_warp(warp, warp.lane[i].mask);
}

} // namespace emu
