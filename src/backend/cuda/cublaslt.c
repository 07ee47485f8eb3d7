/* The family of matrix products, by cuBLASLt, with bias and relu as its epilogues.
 *
 * cuBLASLt counts in columns: a row-major matrix [rows, columns] is its matrix of `columns` rows, leading dimension the row
 * stride. So each product is stated transposed: y = x w' becomes y' = w x'. f32 is computed in f32, never in TF32; halves
 * are summed in f32. Algorithms that add parts in whatever order they finish are left out.
 * Source: NVIDIA, cuBLAS documentation, "Using the cuBLASLt API". */
#include "cublaslt.h"
#include "cuda_memory.h"

#include <cublasLt.h>
#include <string.h>

/* What cuBLASLt may assume of every address; planned memory is aligned better. */
#define ALIGNMENT_BYTES 16u
#define WORKSPACE_BYTES ((size_t)32 << 20)

struct twi_cuda_blas {
    cublasLtHandle_t handle;
};

static tw_status check(twi_cuda_device *device, cublasStatus_t status, const char *call) {
    if (status == CUBLAS_STATUS_SUCCESS) return twi_cuda_usable(device);
    if (status == CUBLAS_STATUS_ALLOC_FAILED) return twi_cuda_out_of_memory(device, 0, call);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH)
        return TWI_FAIL(TW_ERROR_UNSUPPORTED, "%s: %s", call, cublasLtGetStatusName(status));
    if (status == CUBLAS_STATUS_EXECUTION_FAILED) TWI_TRY(twi_cuda_check(device, cudaGetLastError(), call));
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

enum { NO_BIAS = -1 };

/* Operands of a kernel as left, right and result in cuBLASLt's own order, and which are taken transposed. */
typedef struct product {
    const char *kernel;
    int8_t left, right, result, bias;
    bool left_transposed, right_transposed;
    cublasLtEpilogue_t epilogue;
} product;

static const product products[] = {
    {"dense.forward", 1, 0, 2, NO_BIAS, true, false, CUBLASLT_EPILOGUE_DEFAULT},
    {"dense.forward_bias", 1, 0, 3, 2, true, false, CUBLASLT_EPILOGUE_BIAS},
    {"dense.forward_bias_relu", 1, 0, 3, 2, true, false, CUBLASLT_EPILOGUE_RELU_BIAS},
    {"dense.backward_data", 1, 0, 2, NO_BIAS, false, false, CUBLASLT_EPILOGUE_DEFAULT},
    {"dense.backward_weights", 0, 1, 2, NO_BIAS, false, true, CUBLASLT_EPILOGUE_DEFAULT},
};

static const product *find_product(const char *kernel) {
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        if (strcmp(products[i].kernel, kernel) == 0) return &products[i];
    return NULL;
}

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

static const char *refuse(const product *p, const twi_call *call) {
    const int8_t matrices[] = {p->left, p->right, p->result};
    cudaDataType_t type, left = CUDA_R_32F, right = CUDA_R_32F, result = CUDA_R_32F, bias = CUDA_R_32F;
    for (size_t i = 0; i < sizeof matrices; i++) {
        const twi_operand *o = &call->operand[matrices[i]];
        if (!type_of(o, &type)) return "an element type that cuBLASLt does not take";
        if (o->shape.rank != 2 || (o->stride[1] != 1 && o->shape.dim[1] > 1))
            return "a matrix that is not stored by rows";
        if (o->shape.dim[0] < 1 || o->shape.dim[1] < 1) return "a product of nothing";
        if (o->shape.dim[0] > INT32_MAX || o->shape.dim[1] > INT32_MAX) return "more rows or columns than 2^31 - 1";
    }
    type_of(&call->operand[p->left], &left), type_of(&call->operand[p->right], &right);
    if (left != right) return "factors of two types";
    if (p->bias == NO_BIAS) return NULL;
    type_of(&call->operand[p->bias], &bias), type_of(&call->operand[p->result], &result);
    return bias == result ? NULL : "a bias of another type than the result";
}

/* ---- a prepared product ---- */

/* Of the bias only its address is looked at, and while an algorithm is chosen only how well that is aligned. */
static tw_status set_bias(twi_cuda_device *device, cublasLtMatmulDesc_t operation, const void *bias) {
    LT(device, cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    return TW_OK;
}

typedef struct matmul {
    const product *product;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t left, right, result;
    cublasLtMatmulAlgo_t algorithm;
} matmul;

static tw_status make_layout(twi_cuda_device *device, const twi_operand *o, cublasLtMatrixLayout_t *out) {
    cudaDataType_t type = CUDA_R_32F;
    type_of(o, &type);
    int64_t leading = o->shape.dim[0] > 1 ? o->stride[0] : o->shape.dim[1];
    LT(device, cublasLtMatrixLayoutCreate(out, type, (uint64_t)o->shape.dim[1], (uint64_t)o->shape.dim[0], leading));
    return TW_OK;
}

static tw_status describe(twi_cuda_device *device, matmul *m, const twi_call *call) {
    const product *p = m->product;
    const cublasOperation_t left = p->left_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t right = p->right_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    LT(device, cublasLtMatmulDescCreate(&m->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT(device, cublasLtMatmulDescSetAttribute(m->operation, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left));
    LT(device, cublasLtMatmulDescSetAttribute(m->operation, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right));
    LT(device,
       cublasLtMatmulDescSetAttribute(m->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, sizeof p->epilogue));
    if (p->bias != NO_BIAS) TWI_TRY(set_bias(device, m->operation, (const void *)(uintptr_t)ALIGNMENT_BYTES));
    TWI_TRY(make_layout(device, &call->operand[p->left], &m->left));
    TWI_TRY(make_layout(device, &call->operand[p->right], &m->right));
    return make_layout(device, &call->operand[p->result], &m->result);
}

static size_t most_workspace(const twi_cuda_site *site) {
    return site->workspace_limit < WORKSPACE_BYTES ? site->workspace_limit : WORKSPACE_BYTES;
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

/* *workspace: what is allowed becomes what is wanted. */
static tw_status choose(twi_cuda_device *device, matmul *m, cublasLtMatmulPreference_t preference, size_t *workspace) {
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    TWI_TRY(limit(device, preference, *workspace));
    LT(device, cublasLtMatmulAlgoGetHeuristic(device->blas->handle, m->operation, m->left, m->right, m->result,
                                              m->result, preference, 1, &found, &count));
    if (count < 1) return TWI_FAIL(TW_ERROR_UNSUPPORTED, "cuBLASLt has no algorithm for this product");
    LT(device, found.state);
    m->algorithm = found.algo;
    *workspace = found.workspaceSize;
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
    site->workspace_bytes = most_workspace(site);
    tw_status status = choose(device, site->state, preference, &site->workspace_bytes);
    (void)cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

static tw_status prepare(twi_cuda_site *site, const twi_call *call) {
    const product *p = find_product(site->kernel->name);
    if (!p) return TWI_FAIL(TW_ERROR_UNSUPPORTED, "no matrix product");
    const char *reason = refuse(p, call);
    if (reason) return TWI_FAIL(TW_ERROR_UNSUPPORTED, "%s", reason);
    if (!site->device->blas) { /* it chooses only where the device is: plan for the most it may take */
        site->workspace_bytes = most_workspace(site);
        return TW_OK;
    }
    matmul *m;
    TWI_TRY(twi_get(site->device->context->memory, &m, 1, sizeof *m, "matrix product"));
    m->product = p;
    site->state = m;
    tw_status status = fill(site, call);
    if (status) release(site);
    return status;
}

/* The bias pointer is a part of the description; it is read when the product is enqueued. */
static tw_status launch(const twi_cuda_site *site, const twi_call *call, void *workspace, cudaStream_t stream) {
    twi_cuda_device *device = site->device;
    const matmul *m = site->state;
    const product *p = m->product;
    const float one = 1, zero = 0;
    if (p->bias != NO_BIAS) TWI_TRY(set_bias(device, m->operation, call->operand[p->bias].data));
    void *result = call->operand[p->result].data;
    LT(device, cublasLtMatmul(device->blas->handle, m->operation, &one, call->operand[p->left].data, m->left,
                              call->operand[p->right].data, m->right, &zero, result, m->result, result, m->result,
                              &m->algorithm, workspace, site->workspace_bytes, stream));
    return TW_OK;
}

const twi_cuda_family twi_cuda_cublaslt = {
    .name = "cublaslt", .prepare = prepare, .release = release, .launch = launch};
