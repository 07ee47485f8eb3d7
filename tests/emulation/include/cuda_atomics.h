/* Atomic operations. They are atomic accesses of the host too, so that ThreadSanitizer tells them from plain ones. */
#ifndef EMU_CUDA_ATOMICS_H
#define EMU_CUDA_ATOMICS_H

namespace emu {

[[noreturn]] void misaligned_atomic(const void *address, size_t bytes);

template <size_t bytes> struct Word;
template <> struct Word<2> { typedef uint16_t __attribute__((may_alias)) type; };
template <> struct Word<4> { typedef uint32_t __attribute__((may_alias)) type; };
template <> struct Word<8> { typedef uint64_t __attribute__((may_alias)) type; };

/* *address = change(*address), at once; returns what was there. */
template <class T, class Change> T modify(T *address, Change change) {
    using word = typename Word<sizeof(T)>::type;
    if (reinterpret_cast<uintptr_t>(address) % sizeof(T)) misaligned_atomic(address, sizeof(T));
    word *memory = reinterpret_cast<word *>(address);
    word found = __atomic_load_n(memory, __ATOMIC_RELAXED);
    for (;;) {
        T old = from_bits<T>(found);
        word changed = static_cast<word>(to_bits<T>(change(old)));
        if (__atomic_compare_exchange_n(memory, &found, changed, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old;
    }
}

/* A parameter of this type does not take part in finding T. */
template <class T> struct Same { typedef T type; };
template <class T> using same = typename Same<T>::type;

} // namespace emu

#define EMU_ATOMIC(name, result)                                                        \
    template <class T> T name(T *address, emu::same<T> value) {                         \
        return emu::modify(address, [value](T old) { return static_cast<T>(result); }); \
    }
EMU_ATOMIC(atomicAdd, old + value)
EMU_ATOMIC(atomicSub, old - value)
EMU_ATOMIC(atomicMax, old > value ? old : value)
EMU_ATOMIC(atomicMin, old < value ? old : value)
EMU_ATOMIC(atomicOr, old | value)
EMU_ATOMIC(atomicAnd, old &value)
EMU_ATOMIC(atomicXor, old ^ value)
EMU_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
EMU_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef EMU_ATOMIC

template <class T> T atomicExch(T *address, emu::same<T> value) {
    return emu::modify(address, [value](T) { return value; });
}
template <class T> T atomicCAS(T *address, emu::same<T> expected, emu::same<T> value) {
    return emu::modify(address, [expected, value](T old) { return old == expected ? value : old; });
}

#endif
