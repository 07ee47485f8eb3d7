/* What threads of a block or warp do together: barriers, shuffles, votes, reductions, fences. Each call carries the
 * place where it stands in the source, so that the scheduler can say where threads diverge. */
#ifndef EMU_CUDA_THREADS_H
#define EMU_CUDA_THREADS_H

namespace emu {

struct Site {
    const char *file;
    int line;
};
/* As a default argument it is evaluated where the call stands. */
#define EMU_SITE ::emu::Site site = {__builtin_FILE(), __builtin_LINE()}

enum class Meeting {
    sync_warp,
    shuffle,
    ballot,
    reduce_add,
    reduce_min,
    reduce_max,
    sync_threads,
    sync_threads_count,
    sync_threads_and,
    sync_threads_or
};

int meet_block(Meeting kind, int predicate, Site site);
/* Lane `source` is whose value a shuffle reads. */
uint64_t meet_warp(Meeting kind, unsigned mask, uint64_t value, int source, Site site);
void fence();

inline int lane() { return running->index & 31; }

template <class T> uint64_t to_bits(T value) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "shuffles and atomics move at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}
template <class T> T from_bits(uint64_t bits) {
    T value;
    memcpy(static_cast<void *>(&value), &bits, sizeof value);
    return value;
}
template <class T> T shuffle(unsigned mask, T value, int source, Site site) {
    return from_bits<T>(meet_warp(Meeting::shuffle, mask, to_bits(value), source, site));
}

} // namespace emu

inline void __syncthreads(EMU_SITE) { emu::meet_block(emu::Meeting::sync_threads, 0, site); }
inline int __syncthreads_count(int predicate, EMU_SITE) {
    return emu::meet_block(emu::Meeting::sync_threads_count, predicate, site);
}
inline int __syncthreads_and(int predicate, EMU_SITE) {
    return emu::meet_block(emu::Meeting::sync_threads_and, predicate, site);
}
inline int __syncthreads_or(int predicate, EMU_SITE) {
    return emu::meet_block(emu::Meeting::sync_threads_or, predicate, site);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, EMU_SITE) {
    emu::meet_warp(emu::Meeting::sync_warp, mask, 0, 0, site);
}

/* Lanes form groups of `width` neighbours; a source outside the group gives the lane its own value. */
template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMU_SITE) {
    return emu::shuffle(mask, value, (emu::lane() & ~(width - 1)) | (source & (width - 1)), site);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, EMU_SITE) {
    int lane = emu::lane(), source = lane ^ bits;
    return emu::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, site);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32, EMU_SITE) {
    int lane = emu::lane(), source = lane + static_cast<int>(distance);
    return emu::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, site);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32, EMU_SITE) {
    int lane = emu::lane(), source = lane - static_cast<int>(distance);
    return emu::shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_SITE) {
    return static_cast<unsigned>(emu::meet_warp(emu::Meeting::ballot, mask, predicate != 0, 0, site));
}
inline int __any_sync(unsigned mask, int predicate, EMU_SITE) {
    return emu::meet_warp(emu::Meeting::ballot, mask, predicate != 0, 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, EMU_SITE) {
    return emu::meet_warp(emu::Meeting::ballot, mask, predicate == 0, 0, site) == 0;
}
#define EMU_REDUCE(name)                                                                                 \
    inline unsigned __reduce_##name##_sync(unsigned mask, unsigned value, EMU_SITE) {                    \
        return static_cast<unsigned>(emu::meet_warp(emu::Meeting::reduce_##name, mask, value, 0, site)); \
    }
EMU_REDUCE(add)
EMU_REDUCE(min)
EMU_REDUCE(max)
#undef EMU_REDUCE

inline void __threadfence() { emu::fence(); }

#endif
