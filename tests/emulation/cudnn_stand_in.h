/* What stands for cuDNN in the emulation: the calls of its graph interface that the library uses, with the signatures
 * of NVIDIA's header, for convolutions followed by a bias and a relu. Descriptors are checked as the real ones are, and
 * more strictly: an attribute that is not known, or a descriptor used after it was destroyed, ends the process.
 *
 * Its engines are made to be told apart. The first proposals must be refused by who keeps the library's rules, and give
 * results that are far off if they are taken:
 *
 *   0  says that it is not deterministic
 *   1  tensor cores; f32 is rounded to 11 bits as TF32
 *   2  wants 1 GiB of workspace
 *   3  is proposed, and cannot be built
 *   4  sums in f32; wants workspace, on which it writes, larger with its setting
 *   5  the same without workspace, proposed only by the fallback mode */
#ifndef TALWEG_CUDNN_STAND_IN_H
#define TALWEG_CUDNN_STAND_IN_H

#include <cudnn_graph.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Handles and descriptors made and not given back. */
size_t cudnn_stand_in_count_live(void);
/* From now on engines with smaller numbers are not there: their finalization fails. 0: all are. */
void cudnn_stand_in_retire(int engines);
/* What cudnnGetVersion answers; 0: the version of the header. */
void cudnn_stand_in_set_version(size_t version);

#ifdef __cplusplus
}

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

/* ---- between the two files of the stand-in ---- */

namespace stand_in {

struct Attribute {
    cudnnBackendAttributeType_t type;
    int64_t count;
    std::vector<unsigned char> bytes;
};

struct Descriptor {
    cudnnBackendDescriptorType_t kind;
    bool finalized = false;
    std::map<int, Attribute> attribute;

    bool has(int name) const { return attribute.count(name) != 0; }
    template <class T> std::vector<T> all(int name) const {
        std::vector<T> values(static_cast<size_t>(attribute.at(name).count));
        memcpy(values.data(), attribute.at(name).bytes.data(), values.size() * sizeof(T));
        return values;
    }
    template <class T, size_t N> std::array<T, N> some(int name) const { /* N is what the attribute's rule asks for */
        std::array<T, N> values;
        memcpy(values.data(), attribute.at(name).bytes.data(), sizeof values);
        return values;
    }
    template <class T> T one(int name) const { return some<T, 1>(name)[0]; }
    /* A descriptor that is an attribute; it must be alive and finalized. */
    const Descriptor &part(int name) const;
};

struct Tensor {
    int64_t uid, alignment;
    cudnnDataType_t type;
    std::array<int64_t, 4> dim, stride;
    bool inner;
    size_t bytes() const; /* from the first element to behind the last */
};

/* A finalized operation graph, understood. */
struct Graph {
    int direction; /* 0 forward, 1 backward data, 2 backward weights */
    Tensor x, w, y, b, out;
    std::array<int64_t, 2> before, after, stride, dilation;
    bool bias = false, relu = false, relu_keeps_nan = false;
    std::vector<const Tensor *> in_memory() const;
};

struct Failure {
    cudnnStatus_t status;
    std::string text;
};
[[noreturn]] void fail(cudnnStatus_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

Descriptor &alive(const void *descriptor);
Tensor tensor_of(const Descriptor &d);
/* Throws Failure for what cuDNN refuses. */
Graph graph_of(const Descriptor &d);
void check_operation(const Descriptor &d);

enum { ENGINES = 6 };
int64_t engine_workspace(int64_t engine, int64_t tile);
uint32_t engine_notes(int64_t engine, const Graph &g);

void run(const Graph &g, int64_t engine, int64_t workspace_bytes, const std::map<int64_t, void *> &data,
         void *workspace, cudaStream_t stream);

} // namespace stand_in
#endif
#endif
