/* What the emulation tells the sanitizers. The runtime of a ThreadSanitizer build is compiled without instrumentation
 * but with EMU_TSAN, so that its own data is not seen and only the order it declares here counts. */
#ifndef EMU_SANITIZERS_H
#define EMU_SANITIZERS_H

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#endif

extern "C" {
void __asan_poison_memory_region(void const volatile *, size_t);
void __asan_unpoison_memory_region(void const volatile *, size_t);
void __sanitizer_start_switch_fiber(void **, const void *, size_t);
void __sanitizer_finish_switch_fiber(void *, const void **, size_t *);
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void *);
void __tsan_switch_to_fiber(void *, unsigned);
void __tsan_acquire(void *);
void __tsan_release(void *);
/* Under names of our own: some compilers have built-in ones, of another type. */
void emu_tsan_read_range(void *, unsigned long) __asm__("__tsan_read_range");
void emu_tsan_write_range(void *, unsigned long) __asm__("__tsan_write_range");
}

namespace emu {

/* A point of order: what happened before a release happens before what follows a later acquire. */
struct Order {
    char address = 0;
};

#ifdef EMU_ASAN
inline void poison(const void *start, size_t bytes) { __asan_poison_memory_region(start, bytes); }
inline void unpoison(const void *start, size_t bytes) { __asan_unpoison_memory_region(start, bytes); }
#else
inline void poison(const void *, size_t) {}
inline void unpoison(const void *, size_t) {}
#endif

#ifdef EMU_TSAN
constexpr bool tsan = true;
inline void acquire(Order &order) { __tsan_acquire(&order); }
inline void release(Order &order) { __tsan_release(&order); }
inline void tell_read(const void *start, size_t bytes) { emu_tsan_read_range(const_cast<void *>(start), bytes); }
inline void tell_write(const void *start, size_t bytes) { emu_tsan_write_range(const_cast<void *>(start), bytes); }
inline void *tsan_context() { return __tsan_get_current_fiber(); }
/* The new context comes after all that the present one did: make it before what is to be unordered. */
inline void *tsan_create() { return __tsan_create_fiber(0); }
inline void tsan_destroy(void *context) { __tsan_destroy_fiber(context); }
/* Flag 1: the switch itself orders nothing. */
inline void tsan_switch(void *context) { __tsan_switch_to_fiber(context, 1); }
#else
constexpr bool tsan = false;
inline void acquire(Order &) {}
inline void release(Order &) {}
inline void tell_read(const void *, size_t) {}
inline void tell_write(const void *, size_t) {}
inline void *tsan_context() { return nullptr; }
inline void *tsan_create() { return nullptr; }
inline void tsan_destroy(void *) {}
inline void tsan_switch(void *) {}
#endif

/* Runs the rest of the scope as another context of ThreadSanitizer (made on first use), on the same stack. */
class As {
  public:
    explicit As(void *&context) : back(tsan_context()) {
        if (tsan && !context) context = tsan_create();
        tsan_switch(context);
    }
    ~As() { tsan_switch(back); }
    As(const As &) = delete;
    As &operator=(const As &) = delete;

  private:
    void *back;
};

} // namespace emu

#endif
