/* Stream capture and graphs. What is queued on a captured stream becomes a node; an event recorded there and waited for
 * by another stream brings that stream into the capture. A launch runs the nodes in any order that their edges allow. */
#include "runtime.h"
#include "report.h"

#include <algorithm>
#include <thread>

namespace emu {

struct Node {
    std::shared_ptr<const Work> work;
    std::vector<int> after;
    int lane; /* the stream it was captured on */
};

struct Capture {
    std::vector<Node> nodes;
    std::vector<CUstream_st *> members; /* by lane; the first began it */
    cudaStreamCaptureMode mode;
    std::thread::id thread = std::this_thread::get_id(); /* which began it */
    bool spoiled = false;
    bool is_own() const { return thread == std::this_thread::get_id(); }
};

/* One run of a graph. */
struct Launch {
    std::shared_ptr<CUgraphExec_st> executable; /* holds the nodes, whatever becomes of the handle */
    std::vector<int> waits_for;                 /* for each node, how many must still run; -1: has run */
    int left;
    Order begun;
    std::vector<Order> done; /* by node */
};

} // namespace emu

struct CUgraph_st {
    std::vector<emu::Node> nodes;
};

/* What an executable graph's handle points to; `self` keeps it for launches under way. */
struct CUgraphExec_st {
    std::vector<emu::Node> nodes;
    int lanes = 0;
    std::vector<void *> tsan;          /* a context for each lane */
    std::shared_ptr<emu::Signal> last; /* launches of one executable graph follow one another */
    emu::Order done;
    std::shared_ptr<CUgraphExec_st> self;
    ~CUgraphExec_st() {
        for (void *context : tsan) emu::tsan_destroy(context);
    }
};

namespace emu {

static std::vector<Capture *> captures; /* under way */

void spoil(Capture &capture) { capture.spoiled = true; }

cudaError_t refuse_in_capture() {
    cudaError_t error = cudaSuccess;
    for (Capture *capture : captures) {
        if (capture->mode == cudaStreamCaptureModeRelaxed) continue;
        if (capture->mode == cudaStreamCaptureModeThreadLocal && !capture->is_own()) continue;
        spoil(*capture);
        error = cudaErrorStreamCaptureUnsupported;
    }
    return error;
}

cudaError_t check_outside_capture(const CUstream_st *stream, const char *what) {
    if (captures.empty()) return cudaSuccess;
    if (stream != stream_of(nullptr)) { /* what other threads do meanwhile is theirs */
        if (std::any_of(captures.begin(), captures.end(), [](const Capture *capture) { return capture->is_own(); }))
            emu_misuse("%s is queued on a stream that is not captured while another stream is: the graph will lack it",
                       what);
        return cudaSuccess;
    }
    for (Capture *capture : captures) spoil(*capture);
    return cudaErrorStreamCaptureImplicit;
}

cudaError_t capture_work(CUstream_st *stream, std::shared_ptr<const Work> work) {
    Capture &capture = *stream->capture;
    if (capture.spoiled) return cudaErrorStreamCaptureInvalidated;
    capture.nodes.push_back({std::move(work), stream->frontier, stream->lane});
    stream->frontier.assign(1, static_cast<int>(capture.nodes.size()) - 1);
    return cudaSuccess;
}

cudaError_t capture_record(CUstream_st *stream, CUevent_st *event) {
    if (stream->capture->spoiled) return cudaErrorStreamCaptureInvalidated;
    event->signal = nullptr;
    event->capture = stream->capture;
    event->frontier = stream->frontier;
    return cudaSuccess;
}

static void join(CUstream_st *stream, std::shared_ptr<Capture> capture) {
    stream->lane = static_cast<int>(capture->members.size());
    capture->members.push_back(stream);
    stream->frontier.clear();
    stream->capture = std::move(capture);
}

cudaError_t capture_wait(CUstream_st *stream, CUevent_st *event) {
    if (!event->capture) { /* recorded outside: nothing that a graph could wait for */
        spoil(*stream->capture);
        return cudaErrorStreamCaptureIsolation;
    }
    bool under_way = std::find(captures.begin(), captures.end(), event->capture.get()) != captures.end();
    if (!under_way) return cudaErrorInvalidValue;
    if (stream->capture && stream->capture != event->capture) {
        spoil(*stream->capture);
        spoil(*event->capture);
        return cudaErrorStreamCaptureMerge;
    }
    if (event->capture->spoiled) return cudaErrorStreamCaptureInvalidated;
    if (!stream->capture) join(stream, event->capture);
    for (int node : event->frontier)
        if (std::find(stream->frontier.begin(), stream->frontier.end(), node) == stream->frontier.end())
            stream->frontier.push_back(node);
    return cudaSuccess;
}

/* Does every node come before the end of the stream that began the capture? */
static bool joined(const Capture &capture) {
    std::vector<char> reached(capture.nodes.size());
    for (int node : capture.members[0]->frontier) reached[static_cast<size_t>(node)] = 1;
    bool all = true;
    for (size_t i = capture.nodes.size(); i-- > 0;) {
        all &= reached[i] != 0;
        for (int node : capture.nodes[i].after) reached[static_cast<size_t>(node)] |= reached[i];
    }
    return all;
}

bool launch_step(Launch &launch) {
    const std::vector<Node> &nodes = launch.executable->nodes;
    if (launch.left == static_cast<int>(nodes.size())) release(launch.begun);
    std::vector<size_t> ready;
    for (size_t i = 0; i < nodes.size(); i++)
        if (launch.waits_for[i] == 0) ready.push_back(i);
    if (!ready.empty()) {
        size_t chosen = ready[chance(static_cast<unsigned>(ready.size()))];
        const Node &node = nodes[chosen];
        As context(launch.executable->tsan[static_cast<size_t>(node.lane)]);
        acquire(launch.begun);
        for (int before : node.after) acquire(launch.done[static_cast<size_t>(before)]);
        run_work(*node.work);
        release(launch.done[chosen]);
        launch.waits_for[chosen] = -1;
        launch.left--;
        for (size_t i = 0; i < nodes.size(); i++)
            launch.waits_for[i] -=
                static_cast<int>(std::count(nodes[i].after.begin(), nodes[i].after.end(), static_cast<int>(chosen)));
    }
    if (launch.left) return false;
    for (Order &order : launch.done) acquire(order);
    release(launch.executable->done);
    return true;
}

} // namespace emu

using namespace emu;

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    Call call("cudaStreamBeginCapture");
    CUstream_st *stream = stream_of(handle);
    if (call.error) return call.end(call.error);
    if (stream == stream_of(nullptr)) return call.end(cudaErrorStreamCaptureUnsupported);
    if (stream->capture) return call.end(cudaErrorIllegalState);
    auto capture = std::make_shared<Capture>();
    capture->mode = mode;
    captures.push_back(capture.get());
    join(stream, capture);
    return call.end(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
    Call call("cudaStreamEndCapture");
    *graph = nullptr;
    CUstream_st *stream = stream_of(handle);
    if (!stream->capture) return call.end(cudaErrorIllegalState);
    std::shared_ptr<Capture> capture = stream->capture;
    if (capture->members[0] != stream) {
        spoil(*capture);
        return call.end(cudaErrorStreamCaptureUnmatched);
    }
    bool is_joined = joined(*capture);
    for (CUstream_st *member : capture->members) {
        member->capture = nullptr;
        member->frontier.clear();
    }
    captures.erase(std::find(captures.begin(), captures.end(), capture.get()));
    if (capture->spoiled) return call.end(cudaErrorStreamCaptureInvalidated);
    if (!is_joined) return call.end(cudaErrorStreamCaptureUnjoined);
    if (call.error) return call.end(call.error);
    *graph = new CUgraph_st{std::move(capture->nodes)};
    live_handles++;
    return call.end(cudaSuccess);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *status) {
    Call call("cudaStreamIsCapturing");
    const Capture *capture = stream_of(handle)->capture.get();
    *status = !capture           ? cudaStreamCaptureStatusNone
              : capture->spoiled ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
    return call.end(call.error);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long) {
    Call call("cudaGraphInstantiate");
    *executable = nullptr;
    if (call.error) return call.end(call.error);
    auto made = std::make_shared<CUgraphExec_st>();
    made->nodes = graph->nodes;
    int lanes = 0;
    for (const Node &node : made->nodes) lanes = std::max(lanes, node.lane + 1);
    while (lanes--) made->tsan.push_back(tsan_create());
    made->self = made;
    *executable = made.get();
    live_handles++;
    return call.end(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
    Call call("cudaGraphLaunch");
    CUstream_st *stream = stream_of(handle);
    if (call.error) return call.end(call.error);
    if (stream->capture) { /* a graph within a graph: nothing here needs it */
        spoil(*stream->capture);
        return call.end(cudaErrorStreamCaptureUnsupported);
    }
    auto launch = std::make_shared<Launch>();
    launch->executable = executable->self;
    for (const Node &node : executable->nodes) launch->waits_for.push_back(static_cast<int>(node.after.size()));
    launch->left = static_cast<int>(executable->nodes.size());
    launch->done.resize(executable->nodes.size());
    if (executable->last) queue_operation(stream, {Operation::wait, nullptr, executable->last, nullptr, nullptr});
    executable->last = std::make_shared<Signal>();
    queue_operation(stream, {Operation::graph, nullptr, nullptr, std::move(launch), nullptr});
    return call.end(queue_operation(stream, {Operation::record, nullptr, executable->last, nullptr, nullptr}));
}

/* What a real device would do now for the first launch; here there is nothing to do. */
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    Call call("cudaGraphDestroy");
    delete graph;
    live_handles--;
    return call.end(call.error);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    Call call("cudaGraphExecDestroy");
    acquire(executable->done);
    std::shared_ptr<CUgraphExec_st> last = std::move(executable->self);
    live_handles--;
    return call.end(call.error);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    Call call("cudaGraphGetNodes");
    if (call.error) return call.end(call.error);
    if (nodes) emu_misuse("cudaGraphGetNodes: the emulation only counts nodes");
    *count = graph->nodes.size();
    return call.end(cudaSuccess);
}
