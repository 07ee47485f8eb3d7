/* What lies between cuDNN's handle and a step: descriptors, the graph of a convolution, candidates for running it, the
 * plan that one of them becomes, and the choices that are remembered. Needs cuDNN's headers. */
#ifndef TWI_CUDA_CUDNN_PLAN_H
#define TWI_CUDA_CUDNN_PLAN_H

#include "backend/attrs.h"
#include "base/choices.h"
#include "cudnn.h"

#include <cudnn_graph.h>

/* ---- cudnn.c: the device, and statuses ---- */

enum { TWI_DNN_KNOBS = CUDNN_KNOB_TYPE_COUNTS };

/* One way of running a graph: an engine by its number, and the settings that differ from its defaults. */
typedef struct twi_dnn_choice {
    int64_t engine;
    int knob_count;
    struct {
        int64_t type, value;
    } knob[TWI_DNN_KNOBS];
} twi_dnn_choice;

struct twi_cuda_dnn {
    twi_cuda_device *device;
    twi_memory *memory;
    cudnnHandle_t handle;                /* NULL: the device is described */
    cudnnBackendDescriptor_t properties; /* of a described device; else NULL */
    size_t workspace_limit;
    bool trial;
    twi_choices cache; /* choices by problem, as texts */
};

/* TW_OK, or the status that fits, with cuDNN's own words. */
tw_status twi_cudnn_check(twi_cuda_device *device, cudnnStatus_t status, const char *call);
#define TWI_CUDNN(device, call) TWI_TRY(twi_cudnn_check(device, (call), #call))

/* ---- cudnn_graph.c: descriptors ---- */

enum { TWI_DNN_DESCRIPTORS = 64 };

/* Descriptors that live and die together; whatever fails, twi_dnn_free gives back what was made. */
typedef struct twi_dnn_set {
    const twi_cuda_dnn *dnn;
    int count;
    cudnnBackendDescriptor_t made[TWI_DNN_DESCRIPTORS];
} twi_dnn_set;

void twi_dnn_free(twi_dnn_set *set);

typedef struct twi_dnn_tensor {
    int64_t uid;
    cudnnDataType_t type;
    int64_t dim[4], stride[4]; /* N,C,H,W; strides in elements */
    bool inner;                /* between two operations of the graph, not in memory ("virtual") */
} twi_dnn_tensor;

typedef enum twi_dnn_direction { TWI_DNN_FORWARD, TWI_DNN_BACKWARD_DATA, TWI_DNN_BACKWARD_WEIGHTS } twi_dnn_direction;

/* Everything that a plan depends on, beside device and libraries: a cross-correlation of x and w to y; dx, dw and dy
 * stand at the places of x, w and y. Forward, a bias of the channels and a relu may follow. Sums are f32. */
typedef struct twi_dnn_problem {
    twi_dnn_direction direction;
    twi_conv2d_attrs attrs;
    twi_dnn_tensor x, w, b, y;
    bool bias, relu;
    bool tf32; /* f32 may be multiplied as TF32 */
    size_t workspace_limit; /* lower than the device's; 0: that holds */
} twi_dnn_problem;

enum { TWI_DNN_UID_X = 1, TWI_DNN_UID_W, TWI_DNN_UID_B, TWI_DNN_UID_Y };

/* A plan, ready to run. */
typedef struct twi_dnn_plan {
    twi_dnn_set set; /* graph, engine, settings and plan */
    int graph_parts; /* of the set, the first so many are the graph */
    cudnnBackendDescriptor_t graph, plan;
    twi_dnn_choice choice;
    int64_t workspace_bytes;
    uint32_t notes; /* 1 << cudnnBackendNumericalNote_t of the engine */
} twi_dnn_plan;

/* A plan to be, of which only the operation graph is made. */
tw_status twi_dnn_make_graph(twi_dnn_plan *plan, const twi_cuda_dnn *dnn, const twi_dnn_problem *problem);
/* Back to that. */
void twi_dnn_drop_plan(twi_dnn_plan *plan);
enum { TWI_DNN_CANDIDATES = 32 };

/* What cuDNN's heuristics propose in one of their modes, best first. */
tw_status twi_dnn_propose(const twi_cuda_dnn *dnn, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
                          twi_dnn_choice choice[TWI_DNN_CANDIDATES], int *count);

/* Fills choice, plan, workspace_bytes and notes; the graph is there already, a plan made before is given back.
 * `refused`: numerical notes of engines that are not wanted (UNSUPPORTED). */
tw_status twi_dnn_make_plan(twi_dnn_plan *plan, const twi_dnn_choice *choice, uint32_t refused);

/* Enqueues a run on the stream, which may be capturing. `count` tensors by uid and address. */
tw_status twi_dnn_execute(const twi_dnn_plan *plan, int count, const int64_t *uid, void *const *data, void *workspace,
                          cudaStream_t stream);

/* ---- cudnn_choice.c ---- */

/* The plan of a problem: the remembered choice, or the first that the heuristics propose and that keeps to f32, gives
 * the same bits every time, fits the workspace limit and can be built. Errors: UNSUPPORTED if there is none. */
tw_status twi_dnn_choose(twi_cuda_dnn *dnn, twi_dnn_plan *plan, const twi_dnn_problem *problem);

/* ---- cudnn_trial.c ---- */

/* Seconds that one run of the plan takes on the device, on memory of its own. */
tw_status twi_dnn_time(const twi_dnn_plan *plan, const twi_dnn_problem *problem, double *seconds);

/* ---- cudnn_cache.c ---- */

/* What is remembered: in `folder` (as in base/choices.h) for this device and these libraries, from this process or an
 * earlier one. */
tw_status twi_dnn_cache_open(twi_cuda_dnn *dnn, const char *folder);
/* false: nothing is remembered under the key, or nothing that could be a choice. */
bool twi_dnn_cache_find(const twi_cuda_dnn *dnn, const char *key, twi_dnn_choice *out);
/* Replaces what was remembered under the key. */
tw_status twi_dnn_cache_put(twi_cuda_dnn *dnn, const char *key, const twi_dnn_choice *choice);

#endif
