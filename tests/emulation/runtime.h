/* What the parts of the emulated CUDA runtime know of each other: device_memory.cpp, streams.cpp, graphs.cpp and the
 * calls in runtime_calls.cpp, runtime_copies.cpp and calls.cpp. */
#ifndef EMU_RUNTIME_H
#define EMU_RUNTIME_H

#include "emu.h"
#include "sanitizers.h"

#include <deque>
#include <memory>
#include <mutex>

namespace emu {

/* ---- calls.cpp ---- */

/* Stands at the start of every runtime call: holds the lock, counts the call, and says whether it is to fail. */
class Call {
  public:
    explicit Call(const char *name, cudaError_t injected = cudaErrorUnknown);
    /* cudaSuccess, the error of a broken device, or the injected one. */
    cudaError_t error;
    /* What the call returns: remembers it for cudaGetLastError. */
    cudaError_t end(cudaError_t result);

  private:
    std::lock_guard<std::recursive_mutex> lock;
};
extern std::recursive_mutex mutex;
extern cudaError_t last_error;
struct Device {
    int count = 1, major = 9, minor = 0;
    cudaError_t broken = cudaSuccess;
    uint64_t operations = 0, break_at = 0; /* break_at 0: never */
    cudaError_t break_with = cudaSuccess;
};
extern Device device;
/* The current one of several, as cudaSetDevice has set it on this thread. */
extern thread_local int current_device;
/* An operation has run: counts it, and breaks the device if it is to break now. */
void operation_ran();
/* Handles alive. */
extern size_t live_handles;

/* ---- device_memory.cpp ---- */

/* Opens device memory to this process while it lives. The host must not touch it otherwise. */
class OpenDevice {
  public:
    OpenDevice();
    ~OpenDevice();
};
/* Closes it again for a host function. */
class CloseDevice {
  public:
    CloseDevice();
    ~CloseDevice();
};
size_t memory_live();
size_t memory_capacity();
void memory_reset();
enum class Where { device, pinned, pageable };
Where where(const void *start);
/* Reports a range that begins on the device, or in pinned memory, and does not lie inside one live allocation. */
void check_range(const char *what, const void *start, size_t bytes);
/* Reports a range on another device than this. */
void check_owner(const char *what, const void *start, int owner);

/* ---- runtime_copies.cpp ---- */

/* The most shared memory a block can ask for, in bytes. */
size_t shared_most();

/* ---- streams.cpp ---- */

/* One recording of an event. */
struct Signal {
    bool done = false;
    Order order;
};

/* Work of a stream or of a node. It is moved from hand to hand and dies where it ran: for ThreadSanitizer the host does
 * not know that it has run, and giving back its memory would be a race. */
struct Work {
    const char *what;
    std::function<void()> run;
    std::vector<emu_range> reads, writes;
    bool host; /* a host function: device memory stays closed */
};
void run_work(const Work &work);

struct Launch; /* of a graph: graphs.cpp */
struct Capture;

struct Operation {
    enum Kind { work, record, wait, graph } kind;
    std::shared_ptr<const Work> task;
    std::shared_ptr<Signal> signal;
    std::shared_ptr<Launch> launch;
    std::shared_ptr<Order> queued; /* what the host did before it queued this */
};

} // namespace emu

struct CUstream_st {
    std::deque<emu::Operation> queue;
    bool blocking = false; /* ordered with the default stream */
    int owner = 0;         /* the device it was made on */
    void *tsan = nullptr;
    emu::Order done;
    std::shared_ptr<emu::Capture> capture;
    std::vector<int> frontier; /* while captured: the nodes that the next one follows */
    int lane = 0;              /* while captured: number of the stream in the capture */
};

struct CUevent_st {
    std::shared_ptr<emu::Signal> signal;   /* of the last record */
    std::shared_ptr<emu::Capture> capture; /* recorded in this capture, after these nodes */
    std::vector<int> frontier;
    bool timing = true;
};

namespace emu {

/* The stream behind a handle, NULL and cudaStreamLegacy included. An unknown handle is reported. */
CUstream_st *stream_of(cudaStream_t stream);
/* Queues, or captures, an operation. */
cudaError_t queue_operation(CUstream_st *stream, Operation operation);
cudaError_t queue_work(CUstream_st *stream, Work work);
/* Runs until the stream is empty, and orders the host after it. */
void finish_stream(CUstream_st *stream);
void finish_all();

/* ---- graphs.cpp ---- */

/* The error of a call that a capture forbids, which also spoils the capture; cudaSuccess outside captures. */
cudaError_t refuse_in_capture();
/* Work queued on a stream that is not captured while another is: it would be missing from the graph. Reported; on the
 * default stream an error, as in CUDA. */
cudaError_t check_outside_capture(const CUstream_st *stream, const char *what);
cudaError_t capture_work(CUstream_st *stream, std::shared_ptr<const Work> work);
cudaError_t capture_record(CUstream_st *stream, CUevent_st *event);
cudaError_t capture_wait(CUstream_st *stream, CUevent_st *event);
void spoil(Capture &capture);
/* Runs one node of a launch that may run now; true: that was the last. */
bool launch_step(Launch &launch);

} // namespace emu

#endif
