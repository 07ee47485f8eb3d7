/* Short forms for the emulation's own tests: device arrays from host vectors and back. */
#ifndef EMU_SAMPLE_H
#define EMU_SAMPLE_H

#include "emu.h"
#include "sample_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <vector>

/* For calls that the test does not mean to fail. */
#define MUST(call)                                                                                         \
    do {                                                                                                   \
        cudaError_t must_error = (call);                                                                   \
        if (must_error) {                                                                                  \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(must_error)); \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

template <class T> class DeviceArray {
  public:
    explicit DeviceArray(size_t count) : count(count) {
        void *memory;
        MUST(cudaMalloc(&memory, count * sizeof(T)));
        data = static_cast<T *>(memory);
    }
    explicit DeviceArray(const std::vector<T> &values) : DeviceArray(values.size()) {
        MUST(cudaMemcpy(data, values.data(), count * sizeof(T), cudaMemcpyHostToDevice));
    }
    ~DeviceArray() { MUST(cudaFree(data)); }
    DeviceArray(const DeviceArray &) = delete;
    DeviceArray &operator=(const DeviceArray &) = delete;
    std::vector<T> read() const {
        std::vector<T> values(count);
        MUST(cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
        return values;
    }
    T *data;
    size_t count;
};

class Stream {
  public:
    Stream() { MUST(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking)); }
    ~Stream() { MUST(cudaStreamDestroy(handle)); }
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;
    operator cudaStream_t() const { return handle; }
    void finish() const { MUST(cudaStreamSynchronize(handle)); }

  private:
    cudaStream_t handle;
};

/* Numbers between -range and range. */
inline std::vector<float> some_numbers(size_t count, float range) {
    static unsigned state = 1;
    std::vector<float> values(count);
    for (float &value : values) {
        state = state * 1664525u + 1013904223u;
        value = (static_cast<float>(state >> 8) / 8388608.0f - 1.0f) * range;
    }
    return values;
}

#endif
