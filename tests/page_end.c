/* See page_end.h. */
#define _GNU_SOURCE
#include "page_end.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

/* Under AddressSanitizer nobody may touch what lies before it either. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

static size_t page(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static size_t whole_pages(size_t bytes) { return (bytes + page() - 1) / page() * page(); }

void *page_end_get(size_t bytes) {
    const size_t room = whole_pages(bytes);
    uint8_t *base = mmap(NULL, room + page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(base != MAP_FAILED);
    assert_int_equal(mprotect(base + room, page(), PROT_NONE), 0);
    ASAN_POISON_MEMORY_REGION(base, room - bytes);
    return base + room - bytes;
}

void page_end_put(void *memory, size_t bytes) {
    const size_t room = whole_pages(bytes);
    uint8_t *base = (uint8_t *)memory + bytes - room;
    ASAN_UNPOISON_MEMORY_REGION(base, room - bytes);
    assert_int_equal(munmap(base, room + page()), 0);
}
