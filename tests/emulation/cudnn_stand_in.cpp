/* cuDNN's calls: handles, descriptors and their attributes. What graphs mean and compute: cudnn_stand_in_run.cpp. */
#include "cudnn_stand_in.h"

#include "emu.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>

struct cudnnContext {
    cudaStream_t stream = nullptr;
};

namespace stand_in {

static std::recursive_mutex mutex;
static std::set<const void *> handles, descriptors;
static std::string last_error;
static int retired;
static size_t version;

void fail(cudnnStatus_t status, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    throw Failure{status, text};
}

/* Every call: counted, made to fail if that is asked for, and with its failure as a status. */
template <class F> static cudnnStatus_t call(const char *name, F body) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    last_error.clear();
    if (emu_call(name)) {
        last_error = std::string(name) + " was made to fail";
        return static_cast<cudnnStatus_t>(emu_failing_status(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED));
    }
    try {
        body();
        return CUDNN_STATUS_SUCCESS;
    } catch (const Failure &failure) {
        last_error = failure.text;
        return failure.status;
    }
}

Descriptor &alive(const void *descriptor) {
    if (!descriptors.count(descriptor)) emu_misuse("cuDNN: %p is no descriptor, or was destroyed", descriptor);
    return *static_cast<Descriptor *>(const_cast<void *>(descriptor));
}

static cudnnContext &alive_handle(cudnnHandle_t handle) {
    if (!handles.count(handle)) emu_misuse("cuDNN: %p is no handle, or was destroyed", static_cast<void *>(handle));
    return *handle;
}

const Descriptor &Descriptor::part(int name) const {
    const Descriptor &d = alive(one<void *>(name));
    if (!d.finalized) fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "attribute %d is not finalized", name);
    return d;
}

/* ---- what each descriptor takes ---- */

struct Rule {
    cudnnBackendDescriptorType_t kind;
    int name;
    cudnnBackendAttributeType_t type;
    int64_t least, most; /* elements; least 0: may be left out */
};

#define CONVOLUTION_RULES(kind, prefix, x, w, y)                                                     \
    {kind, prefix##_ALPHA, CUDNN_TYPE_DOUBLE, 1, 1}, {kind, prefix##_BETA, CUDNN_TYPE_DOUBLE, 1, 1}, \
        {kind, prefix##_CONV_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},                             \
        {kind, prefix##_##x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},                                   \
        {kind, prefix##_##w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1}, {                                 \
        kind, prefix##_##y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1                                      \
    }

static const Rule rules[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, 4},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, 4},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 0, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, 2},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, 2},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, 2},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, 2},
    CONVOLUTION_RULES(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD,
                      X, W, Y),
    CONVOLUTION_RULES(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA, DX, W, DY),
    CONVOLUTION_RULES(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER, X, DW, DY),
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, 1},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, 1},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, 0, 1},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     0, 1},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 0, 1},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 3},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, 1},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, 1},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, 1},
    {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, 1},
    {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, 1},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 0, 1},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
     1},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0,
     1},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1, 8},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 1, 8},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, 1},
    {CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 1, 1 << 16},
};

static const Rule &rule_of(const Descriptor &d, int name) {
    for (const Rule &rule : rules)
        if (rule.kind == d.kind && rule.name == name) return rule;
    emu_misuse("cuDNN: a descriptor of kind %d has no attribute %d here", d.kind, name);
}

static size_t size_of(cudnnBackendAttributeType_t type) {
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_CHAR:
        return 1;
    case CUDNN_TYPE_INT64:
        return sizeof(int64_t);
    case CUDNN_TYPE_DOUBLE:
        return sizeof(double);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return sizeof(void *);
    default:
        return sizeof(int); /* enumerations */
    }
}

static void set(Descriptor &d, int name, cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    const Rule &rule = rule_of(d, name);
    if (d.finalized) fail(CUDNN_STATUS_NOT_INITIALIZED, "attribute %d set after finalizing", name);
    if (!values) fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "attribute %d is NULL", name);
    if (type != rule.type) fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "attribute %d has type %d", name, type);
    if (count < (rule.least ? rule.least : 1) || count > rule.most)
        fail(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "attribute %d has %lld elements", name, (long long)count);
    const unsigned char *bytes = static_cast<const unsigned char *>(values);
    Attribute a{type, count, std::vector<unsigned char>(bytes, bytes + static_cast<size_t>(count) * size_of(type))};
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < count; i++)
            if (!alive(static_cast<void *const *>(values)[i]).finalized)
                fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "attribute %d is not finalized", name);
    if (type == CUDNN_TYPE_HANDLE) alive_handle(*static_cast<const cudnnHandle_t *>(values));
    d.attribute[name] = a;
}

/* ---- finalizing ---- */

static const Descriptor &graph_part(const Descriptor &engine) { return engine.part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH); }

/* A plan, its engine and the heuristics learn of their device from the graph's handle or from a description. */
static void check_device(const Descriptor &graph, const Descriptor &d, int description) {
    if (graph.has(CUDNN_ATTR_OPERATIONGRAPH_HANDLE) == d.has(description))
        fail(CUDNN_STATUS_BAD_PARAM, "neither or both of a handle and a device's description");
}

static void check_engine(const Descriptor &d) {
    const Descriptor &graph = graph_part(d);
    check_device(graph, d, CUDNN_ATTR_ENGINE_DEVICEPROP);
    const int64_t engine = d.one<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
    if (engine < retired || engine >= ENGINES) fail(CUDNN_STATUS_NOT_SUPPORTED, "no engine %lld", (long long)engine);
}

static void check_plan(const Descriptor &d) {
    const Descriptor &engine = d.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).part(CUDNN_ATTR_ENGINECFG_ENGINE);
    const Descriptor &graph = graph_part(engine);
    check_device(graph, d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
    if (graph.has(CUDNN_ATTR_OPERATIONGRAPH_HANDLE) &&
        (!d.has(CUDNN_ATTR_EXECUTION_PLAN_HANDLE) ||
         graph.one<void *>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE) != d.one<void *>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE)))
        fail(CUDNN_STATUS_BAD_PARAM, "the plan's handle is not the graph's");
    if (engine.one<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX) == 3)
        fail(CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED, "engine 3 does not compile");
}

static void check_pack(const Descriptor &d) {
    if (d.attribute.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).count !=
        d.attribute.at(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).count)
        fail(CUDNN_STATUS_BAD_PARAM, "as many identifiers as pointers are wanted");
}

static void check_description(const Descriptor &d) {
    const std::vector<char> json = d.all<char>(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
    if (!strstr(std::string(json.begin(), json.end()).c_str(), "\"deviceVer\":"))
        fail(CUDNN_STATUS_BAD_PARAM, "the description has no deviceVer");
}

static void finalize(Descriptor &d) {
    if (d.finalized) fail(CUDNN_STATUS_BAD_PARAM, "finalized twice");
    for (const Rule &rule : rules)
        if (rule.kind == d.kind && rule.least && !d.has(rule.name))
            fail(CUDNN_STATUS_BAD_PARAM, "attribute %d is missing", rule.name);
    if (d.kind == CUDNN_BACKEND_TENSOR_DESCRIPTOR) (void)tensor_of(d);
    if (d.kind == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) (void)graph_of(d);
    if (d.kind == CUDNN_BACKEND_ENGINE_DESCRIPTOR) check_engine(d);
    if (d.kind == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) check_plan(d);
    if (d.kind == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) check_pack(d);
    if (d.kind == CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR) check_description(d);
    if (d.kind == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)
        check_device(d.part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH), d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
    check_operation(d);
    d.finalized = true;
}

/* ---- reading ---- */

template <class T> static void give(const std::vector<T> &values, int64_t room, int64_t *count, void *out) {
    *count = static_cast<int64_t>(values.size());
    if (out) std::copy_n(values.begin(), std::min(*count, room), static_cast<T *>(out));
}

static Descriptor &filled(const void *descriptor, cudnnBackendDescriptorType_t kind) {
    Descriptor &d = alive(descriptor);
    if (d.kind != kind || d.finalized)
        fail(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "not a new descriptor of that kind");
    d.finalized = true;
    return d;
}

template <class T> static void put(Descriptor &d, int name, cudnnBackendAttributeType_t type, T value) {
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(&value);
    d.attribute[name] = Attribute{type, 1, std::vector<unsigned char>(bytes, bytes + sizeof value)};
}

/* Proposals are engine configurations whose engine and setting are numbers until they are asked for. */
enum { PROPOSED_ENGINE = -1, PROPOSED_TILE = -2 };

static void give_proposals(const Descriptor &d, int64_t room, int64_t *count, void **out) {
    const Graph g = graph_of(d.part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
    const bool fallback = d.one<int>(CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_FALLBACK;
    const int64_t first = fallback ? 5 : 0, behind = fallback ? 6 : 5;
    const bool none = g.direction == 2 && g.w.type != g.x.type; /* the real one has no such code built in */
    *count = none ? 0 : behind - first;
    for (int64_t i = 0; i < *count && i < room; i++) {
        Descriptor &config = filled(out[i], CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        put<int64_t>(config, PROPOSED_ENGINE, CUDNN_TYPE_INT64, first + i);
        put<int64_t>(config, PROPOSED_TILE, CUDNN_TYPE_INT64, first + i == 4 ? 7 : 0);
    }
}

static void get(const Descriptor &d, int name, cudnnBackendAttributeType_t type, int64_t room, int64_t *count,
                void *out) {
    void **parts = static_cast<void **>(out);
    const bool proposed = d.has(PROPOSED_ENGINE);
    if (!d.finalized) fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "read before it was finalized");
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        give_proposals(d, room, count, parts);
    } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE && type == CUDNN_TYPE_BACKEND_DESCRIPTOR && proposed) {
        *count = 1;
        put(filled(parts[0], CUDNN_BACKEND_ENGINE_DESCRIPTOR), CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64,
            d.one<int64_t>(PROPOSED_ENGINE));
    } else if (name == CUDNN_ATTR_ENGINECFG_KNOB_CHOICES && type == CUDNN_TYPE_BACKEND_DESCRIPTOR && proposed) {
        *count =
            d.one<int64_t>(PROPOSED_TILE) && room ? 1 : 0; /* asked for the number alone it says 0, as the real one */
        if (!*count) return;
        Descriptor &knob = filled(parts[0], CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
        put(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, CUDNN_KNOB_TYPE_TILE_SIZE);
        put(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, d.one<int64_t>(PROPOSED_TILE));
    } else if (name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX && type == CUDNN_TYPE_INT64) {
        give(d.all<int64_t>(name), room, count, out);
    } else if (name == CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE && type == CUDNN_TYPE_KNOB_TYPE) {
        give(d.all<int>(name), room, count, out);
    } else if (name == CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE && type == CUDNN_TYPE_INT64) {
        give(d.all<int64_t>(name), room, count, out);
    } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN_TYPE_NUMERICAL_NOTE) {
        const uint32_t notes = engine_notes(d.one<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX), graph_of(graph_part(d)));
        std::vector<int> list;
        for (int note = 0; note < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; note++)
            if (notes >> note & 1) list.push_back(note);
        give(list, room, count, out);
    } else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64) {
        const Descriptor &config = d.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        int64_t tile = 0;
        if (config.has(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES))
            tile = config.part(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES).one<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
        const int64_t engine = config.part(CUDNN_ATTR_ENGINECFG_ENGINE).one<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
        give(std::vector<int64_t>{engine_workspace(engine, tile)}, room, count, out);
    } else {
        emu_misuse("cuDNN: attribute %d of kind %d cannot be read here as type %d", name, d.kind, type);
    }
}

/* ---- running ---- */

static void execute(cudnnContext &handle, const Descriptor &plan, const Descriptor &pack) {
    if (!plan.finalized || !pack.finalized) fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "plan or pack is not finalized");
    if (!plan.has(CUDNN_ATTR_EXECUTION_PLAN_HANDLE)) fail(CUDNN_STATUS_BAD_PARAM, "a plan for a described device");
    if (plan.one<void *>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE) != &handle) fail(CUDNN_STATUS_BAD_PARAM, "another handle");
    const Descriptor &engine = plan.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).part(CUDNN_ATTR_ENGINECFG_ENGINE);
    const Graph g = graph_of(graph_part(engine));
    const std::vector<int64_t> uid = pack.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const std::vector<void *> pointer = pack.all<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    std::map<int64_t, void *> data;
    for (size_t i = 0; i < uid.size(); i++) data[uid[i]] = pointer[i];
    const std::vector<const Tensor *> tensors = g.in_memory();
    if (data.size() != uid.size() || data.size() != tensors.size())
        fail(CUDNN_STATUS_BAD_PARAM, "%zu tensors in the pack, %zu in the plan", uid.size(), tensors.size());
    for (const Tensor *t : tensors) {
        if (!data.count(t->uid)) fail(CUDNN_STATUS_BAD_PARAM, "tensor %lld is not in the pack", (long long)t->uid);
        void *start = data[t->uid];
        if (reinterpret_cast<uintptr_t>(start) % static_cast<uintptr_t>(t->alignment))
            fail(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "tensor %lld is not aligned", (long long)t->uid);
        if (!emu_is_device(start, t->bytes()))
            emu_misuse("cuDNN: tensor %lld (%zu bytes at %p) is no device memory", (long long)t->uid, t->bytes(),
                       start);
    }
    int64_t bytes, count;
    get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes);
    void *workspace = pack.one<void *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    if (bytes && !workspace) fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the workspace is NULL");
    if (bytes && !emu_is_device(workspace, static_cast<size_t>(bytes)))
        emu_misuse("cuDNN: the workspace is smaller than %lld bytes of device memory", (long long)bytes);
    run(g, engine.one<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX), bytes, data, workspace, handle.stream);
}

} // namespace stand_in

using namespace stand_in;

size_t cudnn_stand_in_count_live(void) { return handles.size() + descriptors.size(); }
void cudnn_stand_in_retire(int engines) { retired = engines; }
void cudnn_stand_in_set_version(size_t answer) { version = answer; }

/* ---- the calls ---- */

size_t cudnnGetVersion(void) { return version ? version : CUDNN_VERSION; }

const char *cudnnGetErrorString(cudnnStatus_t status) {
    return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_STAND_IN_FAILED";
}

void cudnnGetLastErrorString(char *message, size_t room) {
    std::lock_guard<std::recursive_mutex> lock(stand_in::mutex);
    snprintf(message, room, "%s", last_error.c_str());
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    return call("cudnnCreate", [&] { handles.insert(*handle = new cudnnContext); });
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    cudnnStatus_t status = call("cudnnDestroy", [] {});
    alive_handle(handle);
    handles.erase(handle);
    delete handle;
    return status;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    return call("cudnnSetStream", [&] { alive_handle(handle).stream = stream; });
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind, cudnnBackendDescriptor_t *out) {
    return call("cudnnBackendCreateDescriptor", [&] {
        Descriptor *d = new Descriptor;
        d->kind = kind;
        descriptors.insert(*out = d);
    });
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    std::lock_guard<std::recursive_mutex> lock(mutex); /* it goes even where the call is made to fail */
    cudnnStatus_t status = call("cudnnBackendDestroyDescriptor", [] {});
    Descriptor &d = alive(descriptor);
    descriptors.erase(descriptor);
    delete &d;
    return status;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    return call("cudnnBackendFinalize", [&] { finalize(alive(descriptor)); });
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    return call("cudnnBackendSetAttribute", [&] { set(alive(descriptor), name, type, count, values); });
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *out) {
    return call("cudnnBackendGetAttribute", [&] { get(alive(descriptor), name, type, room, count, out); });
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
    return call("cudnnBackendExecute", [&] { execute(alive_handle(handle), alive(plan), alive(pack)); });
}
