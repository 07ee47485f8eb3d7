/* What of a normal distribution lies below x, in the two forms of gelu, and the slope of x times that. Formulas:
 * src/ops/op_gelu.c. */
#ifndef TWK_GELU_CUH
#define TWK_GELU_CUH

#include "elements.cuh"

/* Beyond so many deviations a share is 0 or 1 and its slope 0; within, no power overflows. Not-a-number stays. */
__device__ inline float twk_gelu_bounded(float x) { return x > 14 ? 14 : x < -14 ? -14 : x; }

struct twk_gelu_erf {
    static __device__ float share(float x) { return 0.5f * erfcf(-0.70710678f * x); }
    static __device__ float slope(float x) {
        float z = twk_gelu_bounded(x);
        return share(x) + 0.39894228f * z * expf(-0.5f * z * z);
    }
};

/* By the exponential of the side that does not overflow, so that both tails keep their digits. */
struct twk_gelu_tanh {
    static __device__ float share(float x, float *other) {
        float z = twk_gelu_bounded(x), a = fabsf(z);
        float e = expf(-1.59576912f * a * (1 + 0.044715f * a * a)), s = 1 / (1 + e);
        *other = z < 0 ? s : e * s; /* what lies above */
        return z < 0 ? e * s : s;
    }
    static __device__ float share(float x) {
        float other;
        return share(x, &other);
    }
    static __device__ float slope(float x) {
        float z = twk_gelu_bounded(x), other, below = share(x, &other);
        return below + 1.59576912f * z * below * other * (1 + 3 * 0.044715f * z * z);
    }
};

#endif
