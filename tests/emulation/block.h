/* The block of CUDA threads that is running: shared between the scheduler (who runs next) and meetings.cpp (who waits
 * for whom). Blocks of a grid run one after another, in any order; only one grid runs at a time. */
#ifndef EMU_BLOCK_H
#define EMU_BLOCK_H

#include "cuda_language.h"
#include "fiber.h"
#include "sanitizers.h"

namespace emu {

enum class State { unstarted, runnable, at_barrier, at_warp, done };

struct Thread : ThreadView {
    State state;
    Fiber *fiber;
    Meeting meeting; /* where it waits, or waited last */
    Site site;
    unsigned mask;
    uint64_t value, result;
    int source;
    bool undefined; /* the value that it was to read does not exist */
};

/* What meetings of one block order. Two of each, used in turn: a thread may enter the next meeting before another has
 * left the last. */
struct BlockOrder {
    Order barrier[2], warp[32][2];
};

struct Block {
    enum { max_threads = 1024 };
    Thread thread[max_threads];
    int count, alive;
    int at_barrier; /* how many wait there */
    int barrier_result;
    int barrier_phase, warp_phase[32];
    BlockOrder *order;
};
extern Block block;

inline Thread &this_thread() { return *static_cast<Thread *>(running); }

/* scheduler.cpp */
void wake(Thread &thread);
bool unwake_last(Thread &thread); /* takes the thread back from the queue */
void wait(Thread &thread);        /* lets others run until the thread is woken */
/* meetings.cpp */
void thread_ended(Thread &thread);
const char *meeting_name(Meeting meeting);
/* shared_memory.cpp */
void shared_begin(size_t dynamic_bytes, size_t limit);
void shared_end();
void *shared_allocate(size_t bytes);

/* Runs a grid to its end; device memory is open meanwhile. `shared_limit` is the most its blocks may use. */
void run_grid(const Grid &grid, size_t shared_limit);

} // namespace emu

#endif
