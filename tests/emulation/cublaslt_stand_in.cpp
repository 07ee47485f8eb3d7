/* Stands for the calls of cuBLASLt that the library makes: checks what the real ones check (states of descriptors, shapes,
 * leading dimensions, element types, alignment, workspace, that addresses are the device's) and computes the product by
 * plain loops on the emulated stream. An algorithm holds only for the problem that it was chosen for. Which products the real
 * one has no algorithm for is not known here: for gradients of a bias from a factor this one has none unless both sides of the
 * result are multiples of 4, so that both ways to do without are gone. */
#include "emu.h"

#include <cublasLt.h>
#include <math.h>
#include <memory>
#include <string.h>
#include <vector>

extern "C" {
#include "base/half.h"
}

struct cublasLtContext {
    uint32_t mark;
};

namespace {

const uint32_t MARK = 0x6c74u;
const uint64_t ALGORITHM = 0x7461776c676f7269u;

struct Layout { // in a cublasLtMatrixLayoutOpaque_t
    uint64_t mark;
    uint32_t type;
    uint64_t rows, columns;
    int64_t leading;
};

struct Operation { // in a cublasLtMatmulDescOpaque_t
    uint64_t mark;
    int32_t compute, scale;
    int32_t left, right;
    uint32_t epilogue;
    const void *bias;
    void *aux;
    int64_t aux_leading;
};

struct Preference { // in a cublasLtMatmulPreferenceOpaque_t
    uint64_t mark;
    uint64_t workspace;
    uint32_t alignment[4];
    uint32_t schemes;
};

struct Algorithm { // in a cublasLtMatmulAlgo_t
    uint64_t mark, problem, workspace;
    uint32_t alignment[4];
};

cublasStatus_t failing(cublasStatus_t otherwise) { return static_cast<cublasStatus_t>(emu_failing_status(otherwise)); }

template <class Inside, class Opaque> Inside *view(Opaque *opaque) {
    static_assert(sizeof(Inside) <= sizeof(Opaque), "fits the vendor's struct");
    auto *inside = reinterpret_cast<Inside *>(opaque);
    return inside && inside->mark == MARK ? inside : nullptr;
}

template <class Inside, class Opaque> cublasStatus_t make(const char *call, Opaque **out, const Inside &value) {
    if (!out) return CUBLAS_STATUS_INVALID_VALUE;
    *out = nullptr;
    if (emu_call(call)) return failing(CUBLAS_STATUS_ALLOC_FAILED);
    *out = new Opaque;
    memset(*out, 0, sizeof **out);
    memcpy(*out, &value, sizeof value);
    return CUBLAS_STATUS_SUCCESS;
}

template <class Inside, class Opaque> cublasStatus_t destroy(Opaque *opaque) {
    if (!view<Inside>(opaque)) return CUBLAS_STATUS_INVALID_VALUE;
    memset(opaque, 0, sizeof *opaque); // so that a later use is seen
    delete opaque;
    return CUBLAS_STATUS_SUCCESS;
}

template <class T> cublasStatus_t set(T *field, const void *buffer, size_t size) {
    if (!buffer || size != sizeof *field) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, buffer, size);
    return CUBLAS_STATUS_SUCCESS;
}

size_t size_of(uint32_t type) { return type == CUDA_R_32F ? 4 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 0; }

float load(const void *data, uint32_t type, size_t at) {
    if (type == CUDA_R_32F) return static_cast<const float *>(data)[at];
    uint16_t bits = static_cast<const uint16_t *>(data)[at];
    return type == CUDA_R_16F ? twi_f16_to_f32(bits) : twi_bf16_to_f32(bits);
}

void store(void *data, uint32_t type, size_t at, float value) {
    if (type == CUDA_R_32F)
        static_cast<float *>(data)[at] = value;
    else
        static_cast<uint16_t *>(data)[at] = type == CUDA_R_16F ? twi_f16_from_f32(value) : twi_bf16_from_f32(value);
}

size_t bytes_of(const Layout &m) {
    return m.columns ? ((m.columns - 1) * static_cast<size_t>(m.leading) + m.rows) * size_of(m.type) : 0;
}

// What an epilogue does. The vector is one number a row of the result or, for BGRADB, a column.
struct Epilogue {
    uint32_t value;
    bool adds_bias, relu, gelu, slope_of_gelu, sums_result, sums_a, sums_b;
    bool writes_aux, reads_aux;
    bool has_vector() const { return adds_bias || writes_vector(); }
    bool writes_vector() const { return sums_result || sums_a || sums_b; }
    bool has_aux() const { return writes_aux || reads_aux; }
};

const Epilogue *find_epilogue(uint32_t value) {
    static const Epilogue epilogues[] = {
        {CUBLASLT_EPILOGUE_DEFAULT, false, false, false, false, false, false, false, false, false},
        {CUBLASLT_EPILOGUE_BIAS, true, false, false, false, false, false, false, false, false},
        {CUBLASLT_EPILOGUE_RELU_BIAS, true, true, false, false, false, false, false, false, false},
        {CUBLASLT_EPILOGUE_GELU_BIAS, true, false, true, false, false, false, false, false, false},
        {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, true, false, true, false, false, false, false, true, false},
        {CUBLASLT_EPILOGUE_DGELU_BGRAD, false, false, false, true, true, false, false, false, true},
        {CUBLASLT_EPILOGUE_BGRADA, false, false, false, false, false, true, false, false, false},
        {CUBLASLT_EPILOGUE_BGRADB, false, false, false, false, false, false, true, false, false},
    };
    for (const Epilogue &row : epilogues)
        if (row.value == value) return &row;
    return nullptr;
}

// The tanh form, which is the one that cuBLASLt computes, as the formula has it.
const float ROOT = 0.79788456f, CUBE = 0.044715f;
float gelu(float x) { return 0.5f * x * (1 + tanhf(ROOT * (x + CUBE * x * x * x))); }
float slope_of_gelu(float x) {
    float t = tanhf(ROOT * (x + CUBE * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * ROOT * (1 + 3 * CUBE * x * x);
}

// The whole problem of a product, as the calls that choose and run it see it.
struct Problem {
    Operation operation;
    Layout left, right, result;
    uint64_t rows, columns, depth;

    uint64_t hash() const {
        const uint64_t words[] = {left.type,
                                  left.rows,
                                  left.columns,
                                  static_cast<uint64_t>(left.leading),
                                  right.type,
                                  right.rows,
                                  right.columns,
                                  static_cast<uint64_t>(right.leading),
                                  result.type,
                                  result.rows,
                                  result.columns,
                                  static_cast<uint64_t>(result.leading),
                                  rows,
                                  columns,
                                  depth,
                                  operation.epilogue,
                                  static_cast<uint64_t>(operation.aux_leading),
                                  static_cast<uint64_t>(operation.left),
                                  static_cast<uint64_t>(operation.right),
                                  static_cast<uint64_t>(operation.compute)};
        uint64_t hash = 14695981039346656037u;
        for (uint64_t word : words) hash = (hash ^ word) * 1099511628211u;
        return hash;
    }
};

cublasStatus_t read_problem(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t left, cublasLtMatrixLayout_t right,
                            cublasLtMatrixLayout_t given, cublasLtMatrixLayout_t result, Problem *p) {
    const Operation *o = view<Operation>(operation);
    const Layout *a = view<Layout>(left), *b = view<Layout>(right), *c = view<Layout>(given), *d = view<Layout>(result);
    if (!o || !a || !b || !c || !d || memcmp(c, d, sizeof *c) != 0) return CUBLAS_STATUS_INVALID_VALUE;
    bool turned_a = o->left == CUBLAS_OP_T, turned_b = o->right == CUBLAS_OP_T;
    uint64_t m = turned_a ? a->columns : a->rows, k = turned_a ? a->rows : a->columns;
    uint64_t depth = turned_b ? b->columns : b->rows, n = turned_b ? b->rows : b->columns;
    if (k != depth || d->rows != m || d->columns != n) return CUBLAS_STATUS_INVALID_VALUE;
    if (o->compute != CUBLAS_COMPUTE_32F && o->compute != CUBLAS_COMPUTE_32F_FAST_TF32)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (o->scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (a->type != b->type || (d->type != a->type && d->type != CUDA_R_32F)) return CUBLAS_STATUS_NOT_SUPPORTED;
    const Epilogue *epilogue = find_epilogue(o->epilogue);
    if (!epilogue) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (epilogue->has_vector() && !o->bias) return CUBLAS_STATUS_INVALID_VALUE;
    if (epilogue->has_aux() && (!o->aux || o->aux_leading % 8 != 0 || static_cast<uint64_t>(o->aux_leading) < m))
        return CUBLAS_STATUS_INVALID_VALUE;
    *p = {*o, *a, *b, *d, m, n, k};
    return CUBLAS_STATUS_SUCCESS;
}

bool aligned(const void *address, size_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

struct Factors {
    const Problem &p;
    const void *a, *b;
    // As TF32, if that is asked for: 10 bits behind the first.
    float factor(float value) const {
        if (p.operation.compute != CUBLAS_COMPUTE_32F_FAST_TF32) return value;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        bits = (bits + 0x1000) & ~0x1fffu;
        memcpy(&value, &bits, sizeof bits);
        return value;
    }
    float left(size_t row, size_t k) const {
        size_t leading = static_cast<size_t>(p.left.leading);
        return factor(load(a, p.left.type, p.operation.left == CUBLAS_OP_T ? row * leading + k : k * leading + row));
    }
    float right(size_t k, size_t column) const {
        size_t leading = static_cast<size_t>(p.right.leading);
        return factor(
            load(b, p.right.type, p.operation.right == CUBLAS_OP_T ? k * leading + column : column * leading + k));
    }
};

// The gradient of a bias that is a sum over the depth of one factor.
void sum_factor(const Problem &p, const Factors &factors, void *vector, bool of_left) {
    for (size_t i = 0; i < (of_left ? p.rows : p.columns); i++) {
        float sum = 0;
        for (size_t k = 0; k < p.depth; k++) sum += of_left ? factors.left(i, k) : factors.right(k, i);
        store(vector, p.result.type, i, sum);
    }
}

void compute(const Problem &p, const void *a, const void *b, void *d) {
    const Epilogue &epilogue = *find_epilogue(p.operation.epilogue);
    const Factors factors = {p, a, b};
    void *vector = const_cast<void *>(p.operation.bias);
    size_t ldd = static_cast<size_t>(p.result.leading), lde = static_cast<size_t>(p.operation.aux_leading);
    for (size_t row = 0; row < p.rows; row++) {
        float total = 0;
        for (size_t column = 0; column < p.columns; column++) {
            float sum = 0;
            for (size_t k = 0; k < p.depth; k++) sum += factors.left(row, k) * factors.right(k, column);
            if (epilogue.adds_bias) sum += load(vector, p.result.type, row);
            if (epilogue.writes_aux) store(p.operation.aux, p.result.type, column * lde + row, sum);
            if (epilogue.relu && sum < 0) sum = 0;
            if (epilogue.gelu) sum = gelu(sum);
            if (epilogue.slope_of_gelu) sum *= slope_of_gelu(load(p.operation.aux, p.result.type, column * lde + row));
            total += sum;
            store(d, p.result.type, column * ldd + row, sum);
        }
        if (epilogue.sums_result) store(vector, p.result.type, row, total);
    }
    if (epilogue.sums_a || epilogue.sums_b) sum_factor(p, factors, vector, epilogue.sums_a);
}

} // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    if (!out) return CUBLAS_STATUS_INVALID_VALUE;
    *out = nullptr;
    if (emu_call("cublasLtCreate")) return failing(CUBLAS_STATUS_ALLOC_FAILED);
    *out = new cublasLtContext{MARK};
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    if (!handle || handle->mark != MARK) return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->mark = 0;
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusName(cublasStatus_t status) {
    static const struct {
        cublasStatus_t status;
        const char *name;
    } names[] = {{CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS"},
                 {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED"},
                 {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED"},
                 {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE"},
                 {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED"},
                 {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED"}};
    for (const auto &row : names)
        if (row.status == status) return row.name;
    return "CUBLAS_STATUS_?";
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
    if (!size_of(type)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!rows || !columns || leading < 0 || static_cast<uint64_t>(leading) < rows) return CUBLAS_STATUS_INVALID_VALUE;
    return make("cublasLtMatrixLayoutCreate", out, Layout{MARK, type, rows, columns, leading});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy<Layout>(layout); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
    return make(
        "cublasLtMatmulDescCreate", out,
        Operation{MARK, compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr, 0});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) { return destroy<Operation>(operation); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void *buffer, size_t size) {
    Operation *o = view<Operation>(operation);
    if (!o || emu_call("cublasLtMatmulDescSetAttribute")) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&o->left, buffer, size);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&o->right, buffer, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&o->epilogue, buffer, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&o->bias, buffer, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return set(&o->aux, buffer, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return set(&o->aux_leading, buffer, size);
    default:
        emu_misuse("cublasLtMatmulDescSetAttribute: attribute %d is not emulated", static_cast<int>(attribute));
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    return make("cublasLtMatmulPreferenceCreate", out,
                Preference{MARK, 0, {256, 256, 256, 256}, CUBLASLT_REDUCTION_SCHEME_MASK});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return destroy<Preference>(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *buffer,
                                                    size_t size) {
    Preference *p = view<Preference>(preference);
    if (!p || emu_call("cublasLtMatmulPreferenceSetAttribute")) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&p->workspace, buffer, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&p->schemes, buffer, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return set(&p->alignment[0], buffer, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return set(&p->alignment[1], buffer, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return set(&p->alignment[2], buffer, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(&p->alignment[3], buffer, size);
    default:
        emu_misuse("cublasLtMatmulPreferenceSetAttribute: attribute %d is not emulated", static_cast<int>(attribute));
    }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t left, cublasLtMatrixLayout_t right,
                                              cublasLtMatrixLayout_t given, cublasLtMatrixLayout_t result,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t found[], int *count) {
    const Preference *preferred = view<Preference>(preference);
    if (!handle || handle->mark != MARK) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!preferred || wanted < 1 || !found || !count) return CUBLAS_STATUS_INVALID_VALUE;
    *count = 0;
    if (emu_call("cublasLtMatmulAlgoGetHeuristic")) return failing(CUBLAS_STATUS_NOT_SUPPORTED);
    Problem p;
    cublasStatus_t status = read_problem(operation, left, right, given, result, &p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const Epilogue &epilogue = *find_epilogue(p.operation.epilogue);
    if ((epilogue.sums_a || epilogue.sums_b) && (p.rows % 4 != 0 || p.columns % 4 != 0)) return CUBLAS_STATUS_SUCCESS;
    Algorithm algorithm = {ALGORITHM, p.hash(), 0, {}};
    memcpy(algorithm.alignment, preferred->alignment, sizeof algorithm.alignment);
    if (p.depth > 64 && preferred->workspace >= 4096) algorithm.workspace = 4096; // as one that splits the depth would
    memset(found, 0, sizeof *found);
    static_assert(sizeof algorithm <= sizeof found->algo, "fits the vendor's struct");
    memcpy(&found->algo, &algorithm, sizeof algorithm);
    found->workspaceSize = algorithm.workspace;
    found->state = CUBLAS_STATUS_SUCCESS;
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t left, const void *b, cublasLtMatrixLayout_t right,
                              const void *beta, const void *c, cublasLtMatrixLayout_t given, void *d,
                              cublasLtMatrixLayout_t result, const cublasLtMatmulAlgo_t *chosen, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    if (!handle || handle->mark != MARK) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (emu_call("cublasLtMatmul")) return failing(CUBLAS_STATUS_EXECUTION_FAILED);
    Problem p;
    Algorithm algorithm;
    if (!alpha || !beta || !a || !b || !c || !d || !chosen || c != d) return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t status = read_problem(operation, left, right, given, result, &p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    memcpy(&algorithm, chosen, sizeof algorithm);
    if (*static_cast<const float *>(alpha) != 1 || *static_cast<const float *>(beta) != 0)
        emu_misuse("cublasLtMatmul: only alpha 1 and beta 0 are emulated");
    if (algorithm.mark != ALGORITHM || algorithm.problem != p.hash()) return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace_bytes < algorithm.workspace || (algorithm.workspace && !aligned(workspace, 256)))
        return CUBLAS_STATUS_INVALID_VALUE;
    const void *addresses[] = {a, b, c, d};
    for (int i = 0; i < 4; i++)
        if (!aligned(addresses[i], algorithm.alignment[i])) return CUBLAS_STATUS_INVALID_VALUE;
    const Epilogue &epilogue = *find_epilogue(p.operation.epilogue);
    std::vector<emu_range> reads = {{a, bytes_of(p.left)}, {b, bytes_of(p.right)}};
    std::vector<emu_range> writes = {{d, bytes_of(p.result)}};
    if (epilogue.has_vector()) {
        if (!aligned(p.operation.bias, 16)) return CUBLAS_STATUS_INVALID_VALUE;
        size_t bytes = (epilogue.sums_b ? p.columns : p.rows) * size_of(p.result.type);
        (epilogue.writes_vector() ? writes : reads).push_back({p.operation.bias, bytes});
    }
    if (epilogue.has_aux()) {
        if (!aligned(p.operation.aux, 16)) return CUBLAS_STATUS_INVALID_VALUE;
        Layout aux = p.result;
        aux.leading = p.operation.aux_leading;
        (epilogue.writes_aux ? writes : reads).push_back({p.operation.aux, bytes_of(aux)});
    }
    if (algorithm.workspace) writes.push_back({workspace, algorithm.workspace});
    size_t used = algorithm.workspace;
    auto work = [p, a, b, d, workspace, used] {
        if (used) memset(workspace, 0xa5, used); // whoever counts on what was there is wrong
        compute(p, a, b, d);
    };
    return emu_enqueue(stream, "cublasLtMatmul", work, reads, writes) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                                     : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
