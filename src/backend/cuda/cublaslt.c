/* The family of matrix products, by cuBLASLt, with bias, relu, gelu and gradients of a bias as its epilogues. Where it
 * has no algorithm for one, it does the product alone, and a kernel of our own what is behind it.
 *
 * cuBLASLt counts in columns: a row-major matrix [rows, columns] is its matrix of `columns` rows, leading dimension the
 * row stride. So each product is stated transposed: y = x w' becomes y' = w x'. f32 is computed in f32, and in TF32
 * only for steps of that type; halves are summed in f32. Algorithms that add parts in whatever order they finish are
 * left out.
 * Source: NVIDIA, cuBLAS documentation, "Using the cuBLASLt API". */
#include "cublaslt.h"
#include "backend/cards.h"
#include "cuda_memory.h"
#include "kernel_table.h"

#include <cublasLt.h>
#include <stdio.h>
#include <string.h>

/* What cuBLASLt may assume of every address; planned memory is aligned better. */
#define ALIGNMENT_BYTES 16u

struct twi_cuda_blas {
    cublasLtHandle_t handle;
};

static tw_status check(twi_cuda_device *device, cublasStatus_t status, const char *call) {
    if (status == CUBLAS_STATUS_SUCCESS) return twi_cuda_usable(device);
    if (status == CUBLAS_STATUS_ALLOC_FAILED) return twi_cuda_out_of_memory(device, 0, call);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH)
        return TWI_FAIL(TW_ERROR_UNSUPPORTED, "%s: %s", call, cublasLtGetStatusName(status));
    if (status == CUBLAS_STATUS_EXECUTION_FAILED) TWI_TRY(twi_cuda_check(device, cudaGetLastError(), call));
    const bool may_be_memory = status == CUBLAS_STATUS_NOT_INITIALIZED || status == CUBLAS_STATUS_INTERNAL_ERROR ||
                               status == CUBLAS_STATUS_EXECUTION_FAILED;
    if (may_be_memory && twi_cuda_is_full()) {
        char text[256];
        snprintf(text, sizeof text, "%s: %s", call, cublasLtGetStatusName(status));
        return twi_cuda_out_of_memory(device, 0, text);
    }
    return TWI_FAIL(TW_ERROR_DEVICE, "cuda: %s: %s", call, cublasLtGetStatusName(status));
}
#define LT(device, call) TWI_TRY(check(device, (call), #call))

tw_status twi_cuda_blas_open(twi_cuda_device *device) {
    TWI_TRY(twi_get(device->context->memory, &device->blas, 1, sizeof *device->blas, "cublaslt"));
    LT(device, cublasLtCreate(&device->blas->handle));
    return TW_OK;
}

void twi_cuda_blas_close(twi_cuda_device *device) {
    if (!device->blas) return;
    if (device->blas->handle) (void)cublasLtDestroy(device->blas->handle);
    twi_put(device->context->memory, device->blas);
    device->blas = NULL;
}

/* ---- which product a kernel is ---- */

enum { NONE = -1, BEHIND_OPERANDS = 4 };

/* One way to do a kernel. Operands are numbered as the kernel's. */
typedef struct product {
    const char *kernel;
    int8_t left, right, result; /* in cuBLASLt's own order */
    bool left_transposed, right_transposed;
    cublasLtEpilogue_t epilogue;
    int8_t bias, aux; /* the vector that the epilogue adds or, of a gradient, writes; its second matrix */
    int8_t without;   /* the operand that must be absent; NONE: no matter */
    /* A kernel of ours that takes it from there, and what it is given. */
    const char *behind;
    int8_t operands, operand[BEHIND_OPERANDS];
} product;

#define FORWARD .left = 1, .right = 0, .left_transposed = true
#define PLAIN .epilogue = CUBLASLT_EPILOGUE_DEFAULT, .bias = NONE, .aux = NONE, .without = NONE

/* Of a kernel's rows the first that can be done is taken. A gelu keeps its input, operand 4, or does not. */
static const product products[] = {
    {"dense.forward", FORWARD, .result = 2, PLAIN},
    {"dense.forward_bias", FORWARD, .result = 3, .epilogue = CUBLASLT_EPILOGUE_BIAS, .bias = 2, .aux = NONE,
     .without = NONE},
    {"dense.forward_bias_relu", FORWARD, .result = 3, .epilogue = CUBLASLT_EPILOGUE_RELU_BIAS, .bias = 2, .aux = NONE,
     .without = NONE},
    {"dense.forward_bias_gelu", FORWARD, .result = 3, .epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS, .bias = 2, .aux = 4,
     .without = NONE},
    {"dense.forward_bias_gelu", FORWARD, .result = 3, .epilogue = CUBLASLT_EPILOGUE_GELU_BIAS, .bias = 2, .aux = NONE,
     .without = 4},
    {"dense.forward_bias_gelu", FORWARD, .result = 4, .epilogue = CUBLASLT_EPILOGUE_BIAS, .bias = 2, .aux = NONE,
     .without = NONE, .behind = "gelu.forward_tanh", .operands = 2, .operand = {4, 3}},
    {"dense.forward_bias_gelu", FORWARD, .result = 3, .epilogue = CUBLASLT_EPILOGUE_BIAS, .bias = 2, .aux = NONE,
     .without = 4, .behind = "gelu.forward_tanh", .operands = 2, .operand = {3, 3}},
    {"dense.backward_data", .left = 1, .right = 0, .result = 2, PLAIN},
    {"dense.backward_data_gelu", .left = 1, .right = 0, .result = 3, .epilogue = CUBLASLT_EPILOGUE_DGELU_BGRAD,
     .bias = 4, .aux = 2, .without = NONE},
    {"dense.backward_data_gelu", .left = 1, .right = 0, .result = 3, PLAIN, .behind = "bias_gelu.backward",
     .operands = 4, .operand = {3, 2, 3, 4}},
    {"dense.backward_weights", .left = 0, .right = 1, .result = 2, .right_transposed = true, PLAIN},
    {"dense.backward_weights_bias", .left = 0, .right = 1, .result = 2, .right_transposed = true,
     .epilogue = CUBLASLT_EPILOGUE_BGRADB, .bias = 3, .aux = NONE, .without = NONE},
    {"dense.backward_weights_bias", .left = 0, .right = 1, .result = 2, .right_transposed = true, PLAIN,
     .behind = "bias.backward", .operands = 2, .operand = {1, 3}},
};
enum { PRODUCTS = sizeof products / sizeof *products };

static bool type_of(const twi_operand *operand, cudaDataType_t *out) {
    static const struct {
        uint8_t dtype;
        cudaDataType_t type;
    } types[] = {{TW_F32, CUDA_R_32F}, {TW_F16, CUDA_R_16F}, {TW_BF16, CUDA_R_16BF}};
    uint8_t dtype = operand->store == TWI_REAL ? operand->dtype : TW_F32;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].dtype == dtype) return *out = types[i].type, operand->dtype != TWI_DTYPE_DOUBLE;
    return false;
}

static bool is_absent(const twi_operand *o) { return o->shape.rank == 0; }

static int64_t leading(const twi_operand *o) { return o->shape.dim[0] > 1 ? o->stride[0] : o->shape.dim[1]; }

/* What cuBLASLt documents of the epilogue's own vector and matrix: the types are the result's, the vector has no gaps,
 * rows of the matrix are a multiple of 8 apart. */
static const char *refuse_epilogue(const product *p, const twi_call *call, cudaDataType_t result) {
    cudaDataType_t type = result;
    if (p->bias != NONE) {
        const twi_operand *bias = &call->operand[p->bias];
        type_of(bias, &type);
        if (type != result) return "a bias of another type than the result";
        if (bias->shape.dim[0] > 1 && bias->stride[0] != 1) return "a bias with gaps";
    }
    if (p->aux == NONE) return NULL;
    type_of(&call->operand[p->aux], &type);
    if (type != result) return "an input of gelu of another type than the result";
    return leading(&call->operand[p->aux]) % 8 == 0 ? NULL : "rows of gelu's input that are no multiple of 8";
}

static const char *refuse(const product *p, const twi_call *call) {
    const int8_t matrices[] = {p->left, p->right, p->result, p->aux};
    cudaDataType_t type, left = CUDA_R_32F, right = CUDA_R_32F, result = CUDA_R_32F;
    if (p->without != NONE && !is_absent(&call->operand[p->without])) return "a matrix that is wanted, but not made";
    for (size_t i = 0; i < sizeof matrices; i++) {
        if (matrices[i] == NONE) continue;
        const twi_operand *o = &call->operand[matrices[i]];
        if (is_absent(o)) return "a matrix that nobody wants";
        if (!type_of(o, &type)) return "an element type that cuBLASLt does not take";
        if (o->shape.rank != 2 || (o->stride[1] != 1 && o->shape.dim[1] > 1))
            return "a matrix that is not stored by rows";
        if (o->shape.dim[0] < 1 || o->shape.dim[1] < 1) return "a product of nothing";
        if (o->shape.dim[0] > INT32_MAX || o->shape.dim[1] > INT32_MAX) return "more rows or columns than 2^31 - 1";
    }
    type_of(&call->operand[p->left], &left), type_of(&call->operand[p->right], &right);
    type_of(&call->operand[p->result], &result);
    return left != right ? "factors of two types" : refuse_epilogue(p, call, result);
}

/* ---- a prepared product ---- */

/* Of what an epilogue reads or writes beside the result only the addresses are looked at, and while an algorithm is
 * chosen only how well they are aligned. */
static tw_status set_addresses(twi_cuda_device *device, const product *p, cublasLtMatmulDesc_t operation,
                               const void *bias, const void *aux) {
    if (p->bias != NONE)
        LT(device, cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    if (p->aux != NONE)
        LT(device,
           cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux));
    return TW_OK;
}

typedef struct matmul {
    const product *product;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t left, right, result;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes;
    const twk_entry *behind; /* NULL: nothing */
} matmul;

static tw_status make_layout(twi_cuda_device *device, const twi_operand *o, cublasLtMatrixLayout_t *out) {
    cudaDataType_t type = CUDA_R_32F;
    type_of(o, &type);
    LT(device, cublasLtMatrixLayoutCreate(out, type, (uint64_t)o->shape.dim[1], (uint64_t)o->shape.dim[0], leading(o)));
    return TW_OK;
}

static tw_status describe(twi_cuda_device *device, matmul *m, const twi_call *call) {
    const product *p = m->product;
    const cublasComputeType_t type = call->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    const cublasOperation_t left = p->left_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t right = p->right_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    LT(device, cublasLtMatmulDescCreate(&m->operation, type, CUDA_R_32F));
    LT(device, cublasLtMatmulDescSetAttribute(m->operation, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left));
    LT(device, cublasLtMatmulDescSetAttribute(m->operation, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right));
    LT(device,
       cublasLtMatmulDescSetAttribute(m->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, sizeof p->epilogue));
    if (p->aux != NONE) {
        const int64_t between = leading(&call->operand[p->aux]);
        LT(device, cublasLtMatmulDescSetAttribute(m->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &between,
                                                  sizeof between));
    }
    const void *somewhere = (const void *)(uintptr_t)ALIGNMENT_BYTES;
    TWI_TRY(set_addresses(device, p, m->operation, somewhere, somewhere));
    TWI_TRY(make_layout(device, &call->operand[p->left], &m->left));
    TWI_TRY(make_layout(device, &call->operand[p->right], &m->right));
    return make_layout(device, &call->operand[p->result], &m->result);
}

static size_t most_workspace(const twi_cuda_site *site) {
    return site->workspace_limit < TWI_CARD_PRODUCT_WORKSPACE ? site->workspace_limit : TWI_CARD_PRODUCT_WORKSPACE;
}

static tw_status limit(twi_cuda_device *device, cublasLtMatmulPreference_t preference, size_t workspace) {
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint32_t alignment = ALIGNMENT_BYTES, schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    LT(device, cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                    sizeof workspace));
    LT(device, cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                                    sizeof schemes));
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++)
        LT(device, cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment, sizeof alignment));
    return TW_OK;
}

/* m->workspace_bytes: what is allowed becomes what is wanted. An epilogue that cuBLASLt will not hear of is no failure:
 * there is another way. */
static tw_status choose(twi_cuda_device *device, matmul *m, cublasLtMatmulPreference_t preference) {
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    TWI_TRY(limit(device, preference, m->workspace_bytes));
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(device->blas->handle, m->operation, m->left, m->right,
                                                           m->result, m->result, preference, 1, &found, &count);
    if (status == CUBLAS_STATUS_INVALID_VALUE && m->product->epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    TWI_TRY(check(device, status, "cublasLtMatmulAlgoGetHeuristic"));
    if (count < 1) return TWI_FAIL(TW_ERROR_UNSUPPORTED, "cuBLASLt has no algorithm for this product");
    LT(device, found.state);
    m->algorithm = found.algo;
    m->workspace_bytes = found.workspaceSize;
    return TW_OK;
}

static void release(twi_cuda_site *site) {
    matmul *m = site->state;
    if (!m) return;
    if (m->operation) (void)cublasLtMatmulDescDestroy(m->operation);
    const cublasLtMatrixLayout_t layouts[] = {m->left, m->right, m->result};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (layouts[i]) (void)cublasLtMatrixLayoutDestroy(layouts[i]);
    twi_put(site->device->context->memory, m);
    site->state = NULL;
}

static tw_status fill(twi_cuda_site *site, const twi_call *call) {
    twi_cuda_device *device = site->device;
    cublasLtMatmulPreference_t preference;
    TWI_TRY(describe(device, site->state, call));
    LT(device, cublasLtMatmulPreferenceCreate(&preference));
    tw_status status = choose(device, site->state, preference);
    (void)cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

/* ---- what is behind it ---- */

static twi_call call_behind(const product *p, const twi_call *call) {
    twi_call part = *call;
    part.operand_count = p->operands;
    for (int o = 0; o < p->operands; o++) part.operand[o] = call->operand[p->operand[o]];
    return part;
}

/* Both use the same workspace, one after the other. */
static tw_status plan_behind(twi_cuda_site *site, const product *p, const twi_call *call, const twk_entry **out) {
    *out = NULL;
    if (!p->behind) return TW_OK;
    const twk_entry *entry = twi_cuda_find_entry(p->behind);
    const twi_call part = call_behind(p, call);
    if (!entry) return TWI_FAIL(TW_ERROR_UNSUPPORTED, "there is no kernel '%s'", p->behind);
    const char *reason = entry->refuse ? entry->refuse(&part) : NULL;
    if (reason) return TWI_FAIL(TW_ERROR_UNSUPPORTED, "%s: %s", p->behind, reason);
    size_t bytes = entry->workspace ? entry->workspace(&part) : 0;
    if (bytes > site->workspace_bytes) site->workspace_bytes = bytes;
    *out = entry;
    return TW_OK;
}

/* ---- the family ---- */

static tw_status prepare_product(twi_cuda_site *site, const product *p, const twi_call *call) {
    const char *reason = refuse(p, call);
    if (reason) return TWI_FAIL(TW_ERROR_UNSUPPORTED, "%s", reason);
    const twk_entry *behind;
    site->name = p->behind ? "cublaslt+kernel" : "cublaslt";
    if (!site->device->blas) { /* it chooses only where the device is: plan for the most it may take */
        site->workspace_bytes = most_workspace(site);
        return plan_behind(site, p, call, &behind);
    }
    matmul *m;
    TWI_TRY(twi_get(site->device->context->memory, &m, 1, sizeof *m, "matrix product"));
    m->product = p;
    m->workspace_bytes = most_workspace(site);
    site->state = m;
    tw_status status = fill(site, call);
    site->workspace_bytes = m->workspace_bytes;
    if (status == TW_OK) status = plan_behind(site, p, call, &m->behind);
    if (status) release(site);
    return status;
}

static tw_status prepare(twi_cuda_site *site, const twi_call *call) {
    tw_status status = TW_OK;
    bool found = false;
    for (int i = 0; i < PRODUCTS; i++) {
        if (strcmp(products[i].kernel, site->kernel->name) != 0) continue;
        if (found) /* another way has been refused */
            twi_log_line(&site->device->context->log, TW_LOG_DEBUG, "cuda: %s not by one product: %s",
                         site->kernel->name, tw_last_error());
        found = true;
        status = prepare_product(site, &products[i], call);
        if (status != TW_ERROR_UNSUPPORTED) return status;
    }
    return found ? status : TWI_FAIL(TW_ERROR_UNSUPPORTED, "no matrix product");
}

/* Addresses are a part of the description; they are read when the product is enqueued. */
static tw_status launch(const twi_cuda_site *site, const twi_call *call, void *workspace, cudaStream_t stream) {
    twi_cuda_device *device = site->device;
    const matmul *m = site->state;
    const product *p = m->product;
    const float one = 1, zero = 0;
    const void *bias = p->bias == NONE ? NULL : call->operand[p->bias].data;
    const void *aux = p->aux == NONE ? NULL : call->operand[p->aux].data;
    TWI_TRY(set_addresses(device, p, m->operation, bias, aux));
    void *result = call->operand[p->result].data;
    LT(device, cublasLtMatmul(device->blas->handle, m->operation, &one, call->operand[p->left].data, m->left,
                              call->operand[p->right].data, m->right, &zero, result, m->result, result, m->result,
                              &m->algorithm, workspace, m->workspace_bytes, stream));
    if (!m->behind) return TW_OK;
    const twi_call part = call_behind(p, call);
    const twk_launch behind = {.stream = stream, .workspace = workspace, .processors = device->processors};
    return twi_cuda_check(device, m->behind->run(&part, &behind), p->behind);
}

const twi_cuda_family twi_cuda_cublaslt = {
    .name = "cublaslt", .prepare = prepare, .release = release, .launch = launch};
