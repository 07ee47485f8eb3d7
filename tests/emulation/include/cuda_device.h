/* Device functions that kernels call; one that is missing is added where it is first needed. The fast functions (__expf and
 * so on) are the host's exact ones here: tests allow for the difference. */
#ifndef EMU_CUDA_DEVICE_H
#define EMU_CUDA_DEVICE_H

template <class T> T __ldg(const T *address) { return *address; }

inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    __extension__ typedef unsigned __int128 wide;
    return static_cast<unsigned long long>(static_cast<wide>(a) * b >> 64);
}

inline int __float_as_int(float x) { return emu::from_bits<int>(emu::to_bits(x)); }

/* Macros, because the C library declares functions of these names. */
#define __expf(x) expf(x)
#define __logf(x) logf(x)

template <class A, class B> std::common_type_t<A, B> max(A a, B b) {
    std::common_type_t<A, B> x = a, y = b;
    return x > y ? x : y;
}
template <class A, class B> std::common_type_t<A, B> min(A a, B b) {
    std::common_type_t<A, B> x = a, y = b;
    return x < y ? x : y;
}

#endif
