/* Elements of TWI_REAL operands: f32, f16 and bf16 in memory, float in registers; eight at a time where they lie side by
 * side and aligned. And the way from a call's element type to the launcher made for it. */
#ifndef TWK_ELEMENTS_CUH
#define TWK_ELEMENTS_CUH

#include "backend/cuda/launch.h"
#include "portable.h"

/* ---- one element ---- */

__device__ inline float twk_float(float value) { return value; }
__device__ inline float twk_float(__half value) { return __half2float(value); }
__device__ inline float twk_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T> __device__ inline T twk_element(float value);
template <> __device__ inline float twk_element<float>(float value) { return value; }
template <> __device__ inline __half twk_element<__half>(float value) { return __float2half_rn(value); }
template <> __device__ inline __nv_bfloat16 twk_element<__nv_bfloat16>(float value) {
    return __float2bfloat16_rn(value);
}

/* ---- a pack: eight elements side by side, 16-byte aligned; a byte of a mask goes with it ---- */

enum { TWK_PACK = 8, TWK_PACK_ALIGNMENT = 16 };

template <class T> struct alignas(TWK_PACK_ALIGNMENT) twk_word {
    enum { COUNT = TWK_PACK_ALIGNMENT / sizeof(T) };
    T element[COUNT];
};

template <class T> __device__ inline void twk_load_pack(const T *from, float to[TWK_PACK]) {
    const twk_word<T> *words = reinterpret_cast<const twk_word<T> *>(from);
#pragma unroll
    for (int w = 0; w < TWK_PACK / twk_word<T>::COUNT; w++) {
        twk_word<T> word = words[w];
#pragma unroll
        for (int i = 0; i < twk_word<T>::COUNT; i++) to[w * twk_word<T>::COUNT + i] = twk_float(word.element[i]);
    }
}

template <class T> __device__ inline void twk_store_pack(T *to, const float from[TWK_PACK]) {
    twk_word<T> *words = reinterpret_cast<twk_word<T> *>(to);
#pragma unroll
    for (int w = 0; w < TWK_PACK / twk_word<T>::COUNT; w++) {
        twk_word<T> word;
#pragma unroll
        for (int i = 0; i < twk_word<T>::COUNT; i++) word.element[i] = twk_element<T>(from[w * twk_word<T>::COUNT + i]);
        words[w] = word;
    }
}

inline bool twk_aligned(const void *data, size_t bytes) { return (uintptr_t)data % bytes == 0; }

/* ---- operands ---- */

inline float *twk_floats_of(const twi_call *call, int operand) { return (float *)call->operand[operand].data; }

/* ---- launchers by element type ---- */

typedef cudaError_t (*twk_run)(const twi_call *, const twk_launch *);

/* All TWI_REAL operands of a call have one type; absent ones say nothing. */
inline int twk_dtype(const twi_call *call) {
    for (int o = 0; o < call->operand_count; o++)
        if (call->operand[o].store == TWI_REAL && call->operand[o].data) return call->operand[o].dtype;
    return TW_F32;
}

template <twk_run F32, twk_run F16, twk_run BF16>
cudaError_t twk_run_typed(const twi_call *call, const twk_launch *launch) {
    switch (twk_dtype(call)) {
    case TW_F32:
        return F32(call, launch);
    case TW_F16:
        return F16(call, launch);
    case TW_BF16:
        return BF16(call, launch);
    default:
        return cudaErrorInvalidValue;
    }
}
/* The row's run function of a launcher written as template <class T>. */
#define TWK_TYPED(launcher) twk_run_typed<launcher<float>, launcher<__half>, launcher<__nv_bfloat16>>

/* ---- sizes of grids ---- */

enum { TWK_THREADS = 256 };
inline int64_t twk_ceil(int64_t count, int64_t part) { return (count + part - 1) / part; }
inline unsigned twk_blocks(int64_t threads) { return (unsigned)twk_ceil(threads, TWK_THREADS); }
__device__ inline int64_t twk_thread() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }

#endif
