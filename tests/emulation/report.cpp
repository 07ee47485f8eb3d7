/* See report.h; and emu_misuse, the one way in which the emulation ends a process. */
#include "report.h"
#include "emu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace emu {

/* The place of an environment variable's value among `choices`, which NULL ends; the first if it is not set. */
static int choose(const char *variable, const char *const *choices) {
    const char *value = getenv(variable);
    if (!value || !*value) return 0;
    for (int i = 0; choices[i]; i++)
        if (!strcmp(value, choices[i])) return i;
    emu_misuse("%s is '%s', which is no choice of it (%s, ...)", variable, value, choices[0]);
}

static uint64_t number(const char *variable, uint64_t otherwise) {
    const char *value = getenv(variable);
    return value && *value ? strtoull(value, nullptr, 10) : otherwise;
}

const Settings &settings() {
    static const char *const threads[] = {"random", "forward", "reverse", nullptr};
    static const char *const streams[] = {"random", "lazy", "eager", nullptr};
    static const ThreadOrder thread_order[] = {ThreadOrder::random, ThreadOrder::forward, ThreadOrder::reverse};
    static const StreamOrder stream_order[] = {StreamOrder::random, StreamOrder::lazy, StreamOrder::eager};
    static const Settings found = {number("TALWEG_EMU_SEED", 1), thread_order[choose("TALWEG_EMU_THREADS", threads)],
                                   stream_order[choose("TALWEG_EMU_STREAMS", streams)],
                                   static_cast<size_t>(number("TALWEG_EMU_MEM_MB", 2048)) << 20};
    return found;
}

/* SplitMix64 (Steele, Lea, Flood 2014). */
unsigned chance(unsigned below) {
    static uint64_t state = settings().seed;
    state += 0x9E3779B97F4A7C15u;
    uint64_t z = state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return static_cast<unsigned>((z >> 32) % below);
}

} // namespace emu

void emu_misuse(const char *format, ...) {
    char who[256];
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fprintf(stderr, "==EMULATION== ");
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s\n==EMULATION== seed %llu\n", emu::who_runs(who, sizeof who),
            static_cast<unsigned long long>(emu::settings().seed));
    fflush(stderr);
    _exit(66);
}
