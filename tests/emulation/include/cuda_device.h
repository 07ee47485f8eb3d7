/* Device functions: loads and stores with cache hints, bits, and arithmetic with a rounding of its own. The fast
 * functions (__expf and so on) are the host's exact ones here: tests allow for the difference. */
#ifndef EMU_CUDA_DEVICE_H
#define EMU_CUDA_DEVICE_H

#define EMU_LOAD(name) \
    template <class T> T name(const T *address) { return *address; }
EMU_LOAD(__ldca)
EMU_LOAD(__ldcg)
EMU_LOAD(__ldcs)
EMU_LOAD(__ldg)
#undef EMU_LOAD
#define EMU_STORE(name) \
    template <class T> void name(T *address, emu::same<T> value) { *address = value; }
EMU_STORE(__stcg)
EMU_STORE(__stcs)
EMU_STORE(__stwb)
EMU_STORE(__stwt)
#undef EMU_STORE

inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; i++) reversed |= (x >> i & 1u) << (31 - i);
    return reversed;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    __extension__ typedef unsigned __int128 wide;
    return static_cast<unsigned long long>(static_cast<wide>(a) * b >> 64);
}

inline float __int_as_float(int x) { return emu::from_bits<float>(static_cast<uint32_t>(x)); }
inline float __uint_as_float(unsigned x) { return emu::from_bits<float>(x); }
inline int __float_as_int(float x) { return emu::from_bits<int>(emu::to_bits(x)); }
inline unsigned __float_as_uint(float x) { return static_cast<unsigned>(emu::to_bits(x)); }
inline long long __double_as_longlong(double x) { return emu::from_bits<long long>(emu::to_bits(x)); }
inline double __longlong_as_double(long long x) { return emu::from_bits<double>(emu::to_bits(x)); }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __saturatef(float x) { return x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline int __float2int_rn(float x) { return static_cast<int>(rintf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
/* Macros, because the C library declares functions of these names. */
#define __expf(x) expf(x)
#define __exp2f(x) exp2f(x)
#define __log2f(x) log2f(x)
#define __logf(x) logf(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)

template <class A, class B> std::common_type_t<A, B> max(A a, B b) {
    std::common_type_t<A, B> x = a, y = b;
    return x > y ? x : y;
}
template <class A, class B> std::common_type_t<A, B> min(A a, B b) {
    std::common_type_t<A, B> x = a, y = b;
    return x < y ? x : y;
}

namespace emu {
[[noreturn]] void trap(Site site);
}
inline void __trap(EMU_SITE) { emu::trap(site); }

#endif
