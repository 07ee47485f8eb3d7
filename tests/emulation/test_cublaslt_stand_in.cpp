// The stand-in of cuBLASLt: what each epilogue computes, on numbers done by hand, and what it refuses as the header says the real
// one does.
#include "emu.h"

#include <cublasLt.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
extern "C" {
#include <cmocka.h>
}

namespace {

enum { M = 8, N = 4, K = 2, FLOATS = 256 };

// D[M,N] = A[M,K] B[K,N] in columns, all in one allocation of the device.
struct Device {
    float *memory, *a, *b, *d, *vector, *aux;
    Device() {
        assert_int_equal(cudaMalloc(reinterpret_cast<void **>(&memory), 5 * FLOATS * sizeof(float)), cudaSuccess);
        a = memory, b = a + FLOATS, d = b + FLOATS, vector = d + FLOATS, aux = vector + FLOATS;
        float host[FLOATS];
        for (int i = 0; i < FLOATS; i++) host[i] = static_cast<float>(i % 7 - 3) / 4;
        for (float *to : {a, b, vector, aux}) cudaMemcpy(to, host, sizeof host, cudaMemcpyHostToDevice);
    }
    ~Device() { cudaFree(memory); }
};

float number(int i) { return static_cast<float>(i % 7 - 3) / 4; }
double product(int row, int column) {
    double sum = 0;
    for (int k = 0; k < K; k++) sum += number(k * M + row) * number(column * K + k);
    return sum;
}
double gelu(double x) { return x * 0.5 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double slope(double x) { return (gelu(x + 1e-4) - gelu(x - 1e-4)) / 2e-4; }

template <class T>
cublasStatus_t set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value) {
    return cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value);
}

struct Setting {
    int epilogue;
    int64_t aux_leading;
    int late; // floats by which the vector's or the matrix's address is off
};

// The status of the choice, or if that is fine of the run. -1: there is no algorithm.
int run(const Device &device, const Setting &setting) {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    const float one = 1, zero = 0;
    cublasLtCreate(&handle);
    cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<cublasLtEpilogue_t>(setting.epilogue));
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, device.vector);
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, device.aux + setting.late);
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, setting.aux_leading);
    cublasLtMatrixLayoutCreate(&a, CUDA_R_32F, M, K, M);
    cublasLtMatrixLayoutCreate(&b, CUDA_R_32F, K, N, K);
    cublasLtMatrixLayoutCreate(&d, CUDA_R_32F, M, N, M);
    cublasLtMatmulPreferenceCreate(&preference);
    int status = cublasLtMatmulAlgoGetHeuristic(handle, operation, a, b, d, d, preference, 1, &found, &count);
    if (status == CUBLAS_STATUS_SUCCESS && count == 0) status = -1;
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmul(handle, operation, &one, device.a, a, device.b, b, &zero, device.d, d, device.d, d,
                                &found.algo, nullptr, 0, nullptr);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    cublasLtMatmulPreferenceDestroy(preference);
    for (cublasLtMatrixLayout_t layout : {a, b, d}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(operation);
    cublasLtDestroy(handle);
    return status;
}

void expect(const float *device, int i, double expected) {
    float found;
    cudaMemcpy(&found, device + i, sizeof found, cudaMemcpyDeviceToHost);
    if (!(fabs(found - expected) < 1e-5))
        fail_msg("element %d: %g, expected %g", i, static_cast<double>(found), expected);
}

void epilogues_compute_what_they_say(void **) {
    for (int epilogue : {CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU_BGRAD,
                         CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB}) {
        Device device;
        const int leading = 16;
        assert_int_equal(run(device, {epilogue, leading, 0}), CUBLAS_STATUS_SUCCESS);
        for (int row = 0; row < M; row++) {
            double sum = 0;
            for (int column = 0; column < N; column++) {
                double d = product(row, column), kept = number(column * leading + row);
                if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) kept = d + number(row);
                if (epilogue == CUBLASLT_EPILOGUE_GELU_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
                    d = gelu(d + number(row));
                if (epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) d *= slope(kept);
                expect(device.d, column * M + row, d);
                expect(device.aux, column * leading + row, kept);
                sum += d;
            }
            if (epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) expect(device.vector, row, sum);
            if (epilogue == CUBLASLT_EPILOGUE_BGRADA) expect(device.vector, row, number(row) + number(M + row));
        }
        for (int column = 0; column < N && epilogue == CUBLASLT_EPILOGUE_BGRADB; column++)
            expect(device.vector, column, number(column * K) + number(column * K + 1));
    }
}

void what_the_header_forbids_is_refused(void **) {
    Device device;
    for (int epilogue : {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU_BGRAD}) {
        assert_int_equal(run(device, {epilogue, 12, 0}), CUBLAS_STATUS_INVALID_VALUE); // no multiple of 8
        assert_int_equal(run(device, {epilogue, 0, 0}), CUBLAS_STATUS_INVALID_VALUE);  // fewer than rows
        assert_int_equal(run(device, {epilogue, 8, 1}), CUBLAS_STATUS_INVALID_VALUE);  // badly aligned
        assert_int_equal(run(device, {epilogue, 8, 4}), CUBLAS_STATUS_SUCCESS);
    }
    assert_int_equal(run(device, {CUBLASLT_EPILOGUE_GELU_BIAS, 12, 1}), CUBLAS_STATUS_SUCCESS); // it has no such matrix
    assert_int_equal(run(device, {CUBLASLT_EPILOGUE_DRELU_BGRAD, 128, 0}), CUBLAS_STATUS_NOT_SUPPORTED);
}

} // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(epilogues_compute_what_they_say),
        cmocka_unit_test(what_the_header_forbids_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
