/* The emulation's settings from the environment, its source of chance, and how threads say who they are. */
#ifndef EMU_REPORT_H
#define EMU_REPORT_H

#include <stddef.h>
#include <stdint.h>

namespace emu {

enum class ThreadOrder { forward, reverse, random };
enum class StreamOrder { random, lazy, eager };

struct Settings {
    uint64_t seed;            /* TALWEG_EMU_SEED, 1 */
    ThreadOrder thread_order; /* TALWEG_EMU_THREADS forward | reverse | random */
    StreamOrder stream_order; /* TALWEG_EMU_STREAMS random | lazy | eager */
    size_t memory;            /* TALWEG_EMU_MEM_MB, 2048, in bytes */
};
const Settings &settings();

/* 0 .. below-1, from one series that the seed begins. */
unsigned chance(unsigned below);

/* The kernel and thread that run, as text for messages; empty outside kernels. scheduler.cpp */
const char *who_runs(char *buffer, size_t size);

} // namespace emu

#endif
