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

template <class T> T atomicAdd(T *address, emu::same<T> value) {
    return emu::modify(address, [value](T old) { return static_cast<T>(old + value); });
}
template <class T> T atomicExch(T *address, emu::same<T> value) {
    return emu::modify(address, [value](T) { return value; });
}

#endif
