/* Streams and events. A call only queues; what is queued runs later, one operation at a time, in an order that streams
 * and events allow and that chance picks: a few steps at each call, the rest when the host waits for it
 * (TALWEG_EMU_STREAMS: lazy runs what the host waits for and nothing else, eager everything at once). For ThreadSanitizer every stream is a
 * context of its own: what only luck has ordered is a data race. */
#include "runtime.h"
#include "report.h"

#include <algorithm>

namespace emu {

static std::vector<CUstream_st *> streams;
static CUstream_st default_stream;
static unsigned pace; /* most steps at a call; chance picks another whenever the host has waited, 0 among them */

CUstream_st *stream_of(cudaStream_t stream) {
    if (!stream || stream == cudaStreamLegacy) return &default_stream;
    if (std::find(streams.begin(), streams.end(), stream) == streams.end())
        emu_misuse("%p is no stream that is alive", static_cast<void *>(stream));
    return stream;
}

static bool can_step(const CUstream_st *stream) {
    if (stream->queue.empty()) return false;
    const Operation &head = stream->queue.front();
    return head.kind != Operation::wait || head.signal->done;
}

void run_work(const Work &work) {
    if (device.broken) return; /* nothing runs on a broken device */
    for (const auto *ranges : {&work.reads, &work.writes})
        for (const emu_range &range : *ranges) check_range(work.what, range.start, range.bytes);
    for (const emu_range &range : work.reads) tell_read(range.start, range.bytes);
    if (work.host) {
        CloseDevice close;
        work.run();
    } else {
        work.run();
    }
    for (const emu_range &range : work.writes) tell_write(range.start, range.bytes);
    operation_ran();
}

/* Runs the first operation of the queue, of a graph one node. */
static void step(CUstream_st *stream) {
    Operation &head = stream->queue.front();
    As context(stream->tsan);
    acquire(*head.queued);
    bool finished = true;
    switch (head.kind) {
    case Operation::work:
        run_work(*head.task);
        break;
    case Operation::record:
        release(head.signal->order);
        head.signal->done = true;
        break;
    case Operation::wait:
        acquire(head.signal->order);
        break;
    case Operation::graph:
        finished = launch_step(*head.launch);
        break;
    }
    if (finished) stream->queue.pop_front(); /* here, so that its memory is given back in the stream's context */
    release(stream->done);
}

static CUstream_st *any_that_can_step() {
    std::vector<CUstream_st *> ready;
    for (CUstream_st *stream : streams)
        if (can_step(stream)) ready.push_back(stream);
    if (can_step(&default_stream)) ready.push_back(&default_stream);
    return ready.empty() ? nullptr : ready[chance(static_cast<unsigned>(ready.size()))];
}

static void step_any() {
    CUstream_st *stream = any_that_can_step();
    if (!stream) return;
    OpenDevice open;
    step(stream);
}

/* The stream on which an event is still to be recorded; NULL: on none. */
static CUstream_st *recorder_of(const Signal *signal) {
    for (CUstream_st *stream : streams)
        for (const Operation &operation : stream->queue)
            if (operation.kind == Operation::record && operation.signal.get() == signal) return stream;
    return nullptr;
}

/* Where the first operation that holds this stream up can run; NULL: nowhere. */
static CUstream_st *what_holds_up(CUstream_st *stream) {
    for (size_t hops = 0; stream && hops <= streams.size(); hops++) {
        if (stream->queue.empty()) return nullptr;
        if (can_step(stream)) return stream;
        stream = recorder_of(stream->queue.front().signal.get());
    }
    return nullptr;
}

/* Runs until what the host waits for on the stream is there. */
template <class Condition> static void run_until(CUstream_st *waited_for, Condition done) {
    if (done()) return;
    OpenDevice open;
    while (!done()) {
        const bool lazy = settings().stream_order == StreamOrder::lazy;
        CUstream_st *stream = lazy ? what_holds_up(waited_for) : any_that_can_step();
        if (!stream) emu_misuse("streams wait for one another, or for an event that was never recorded");
        step(stream);
    }
    pace = chance(4);
}

void finish_stream(CUstream_st *stream) {
    run_until(stream, [stream] { return stream->queue.empty(); });
    acquire(stream->done);
}

void finish_all() {
    for (CUstream_st *stream : streams) finish_stream(stream);
    finish_stream(&default_stream);
}

/* The default stream follows all work of blocking streams, and goes before what is queued on them later. */
static void finish_blocking() {
    for (CUstream_st *stream : streams)
        if (stream->blocking) finish_stream(stream);
}

/* CUDA refuses some of this and lets some happen; it is never meant. */
static void check_current(const CUstream_st *stream, const char *what) {
    if (stream != &default_stream && stream->owner != current_device)
        emu_misuse("%s is queued for device %d by a thread whose current device is %d", what, stream->owner,
                   current_device);
}

cudaError_t queue_operation(CUstream_st *stream, Operation operation) {
    check_current(stream, operation.task ? operation.task->what : "an event or graph");
    operation.queued = std::make_shared<Order>();
    if (stream == &default_stream) {
        finish_blocking();
        if (tsan && !stream->tsan) stream->tsan = tsan_create();
    }
    release(*operation.queued);
    stream->queue.push_back(std::move(operation));
    if (stream == &default_stream || settings().stream_order == StreamOrder::eager) {
        run_until(stream, [stream] { return stream->queue.empty(); });
        if (stream == &default_stream) acquire(stream->done);
    } else if (settings().stream_order == StreamOrder::random) {
        for (unsigned steps = chance(pace + 1); steps; steps--) step_any();
    }
    return cudaSuccess;
}

cudaError_t queue_work(CUstream_st *stream, Work work) {
    for (const auto *ranges : {&work.reads, &work.writes})
        for (const emu_range &range : *ranges) {
            check_range(work.what, range.start, range.bytes);
            if (stream != &default_stream) check_owner(work.what, range.start, stream->owner);
        }
    check_current(stream, work.what);
    auto task = std::make_shared<const Work>(std::move(work));
    if (stream->capture) return capture_work(stream, std::move(task));
    if (cudaError_t error = check_outside_capture(stream, task->what)) return error;
    return queue_operation(stream, {Operation::work, std::move(task), nullptr, nullptr, nullptr});
}

} // namespace emu

using namespace emu;

cudaError_t emu_enqueue(cudaStream_t stream, const char *what, std::function<void()> work, std::vector<emu_range> reads,
                        std::vector<emu_range> writes) {
    std::lock_guard<std::recursive_mutex> lock(emu::mutex);
    if (device.broken) return device.broken;
    return queue_work(stream_of(stream), {what, std::move(work), std::move(reads), std::move(writes), false});
}

bool emu_is_capturing(cudaStream_t stream) {
    std::lock_guard<std::recursive_mutex> lock(emu::mutex);
    return stream_of(stream)->capture != nullptr;
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    Call call("cudaStreamCreateWithPriority");
    *stream = nullptr;
    if (call.error) return call.end(call.error);
    *stream = new CUstream_st;
    (*stream)->tsan = tsan_create();
    (*stream)->owner = current_device;
    (*stream)->blocking = !(flags & cudaStreamNonBlocking);
    streams.push_back(*stream);
    live_handles++;
    return call.end(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    Call call("cudaStreamDestroy");
    CUstream_st *stream = stream_of(handle);
    if (stream == &default_stream) return call.end(cudaErrorInvalidResourceHandle);
    if (stream->capture) spoil(*stream->capture);
    finish_stream(stream);
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    tsan_destroy(stream->tsan);
    delete stream;
    live_handles--;
    return call.end(call.error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    Call call("cudaStreamSynchronize");
    CUstream_st *stream = stream_of(handle);
    if (stream->capture) {
        spoil(*stream->capture);
        return call.end(cudaErrorStreamCaptureUnsupported);
    }
    if (call.error) return call.end(call.error);
    if (stream == &default_stream) finish_blocking();
    finish_stream(stream);
    return call.end(device.broken);
}

cudaError_t cudaDeviceSynchronize(void) {
    Call call("cudaDeviceSynchronize");
    if (!call.error) call.error = refuse_in_capture();
    if (call.error) return call.end(call.error);
    finish_all();
    return call.end(device.broken);
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    Call call("cudaEventCreateWithFlags");
    *event = nullptr;
    if (call.error) return call.end(call.error);
    *event = new CUevent_st;
    (*event)->timing = !(flags & cudaEventDisableTiming);
    live_handles++;
    return call.end(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    Call call("cudaEventDestroy");
    delete event;
    live_handles--;
    return call.end(call.error);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
    Call call("cudaEventRecord");
    CUstream_st *stream = stream_of(handle);
    if (call.error) return call.end(call.error);
    if (stream->capture) return call.end(capture_record(stream, event));
    event->capture = nullptr;
    event->signal = std::make_shared<Signal>();
    return call.end(queue_operation(stream, {Operation::record, nullptr, event->signal, nullptr, nullptr}));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
    Call call("cudaStreamWaitEvent");
    CUstream_st *stream = stream_of(handle);
    if (call.error) return call.end(call.error);
    if (stream->capture || event->capture) return call.end(capture_wait(stream, event));
    if (!event->signal) return call.end(cudaSuccess); /* never recorded: nothing to wait for */
    return call.end(queue_operation(stream, {Operation::wait, nullptr, event->signal, nullptr, nullptr}));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    Call call("cudaEventSynchronize");
    if (event->capture) {
        spoil(*event->capture);
        return call.end(cudaErrorCapturedEvent);
    }
    if (call.error || !event->signal) return call.end(call.error);
    std::shared_ptr<Signal> signal = event->signal;
    run_until(recorder_of(signal.get()), [&signal] { return signal->done; });
    acquire(signal->order);
    return call.end(device.broken);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    Call call("cudaEventQuery");
    if (event->capture) {
        spoil(*event->capture);
        return call.end(cudaErrorCapturedEvent);
    }
    if (call.error || !event->signal) return call.end(call.error);
    if (!event->signal->done) {
        step_any();
        return cudaErrorNotReady;
    }
    acquire(event->signal->order);
    return call.end(device.broken);
}

/* Emulated time means nothing; it is positive, so that what divides by it goes on. */
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    Call call("cudaEventElapsedTime");
    *milliseconds = 0.0f;
    if (call.error) return call.end(call.error);
    if (!begin->timing || !end->timing || !begin->signal || !end->signal)
        return call.end(cudaErrorInvalidResourceHandle);
    if (!begin->signal->done || !end->signal->done) return call.end(cudaErrorNotReady);
    *milliseconds = 0.001f;
    return call.end(device.broken);
}
