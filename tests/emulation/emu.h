/* The emulated CUDA device as tests and other stand-ins (cuBLASLt, cuDNN) see it: counting and failing calls, the
 * device's size and state, and queueing of work on emulated streams. What CUDA itself declares is in NVIDIA's headers;
 * what stands for it is in runtime_*.cpp. How it all works: README.md beside this file.
 *
 * Calls may come from any thread; one lock is held for the length of each. A misuse that real CUDA would answer with
 * wrong numbers (an access outside an allocation, say) is reported on stderr and ends the process with status 66. */
#ifndef TALWEG_EMU_H
#define TALWEG_EMU_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#include <functional>
#include <vector>
extern "C" {
#endif

/* ---- calls, of all stand-ins in one series ---- */

/* A stand-in asks at the start of every call that can fail, with the call's own name (a string constant): true means
 * that this call must do nothing but fail. Calls that give something back release it all the same. */
bool emu_call(const char *name);
/* Calls so far; `name` NULL: of all names. */
uint64_t emu_count_calls(const char *name);
/* The k-th call from now on fails (1: the next), of those named `name` (NULL: of all). k 0: none fails. */
void emu_fail_call(uint64_t k, const char *name);
/* The same, with a status in the numbers of the call's own library. */
void emu_fail_call_with(uint64_t k, const char *name, int status);
/* For stand-ins: the status to fail with where none was asked for. */
int emu_failing_status(int otherwise);
/* Name of the call that was made to fail since the last emu_fail_call; NULL: none yet. */
const char *emu_failed_call(void);

/* ---- the device ---- */

/* Back to the state of a fresh process: settings, counters, errors. Nothing may be alive (emu_count_live). */
void emu_reset(void);
/* Size of the device's memory; the default is TALWEG_EMU_MEM_MB, or 2048 MiB. */
void emu_set_memory(size_t bytes);
/* Most device memory in use at a time since the start or emu_reset. */
size_t emu_peak_memory(void);
/* Compute capability; the default is 9.0. */
void emu_set_capability(int major, int minor);
/* Number of devices that cudaGetDeviceCount finds; the default is 1. All are alike and share one memory's size, but work on the
 * memory or the stream of one that is not the thread's current device is reported. */
void emu_set_device_count(int count);
/* From now on every call fails with `error`, as after an illegal address on a real device. */
void emu_break_device(cudaError_t error);
/* The same once `operations` more operations (kernels, copies, work of stand-ins) have run: seen at the next call. */
void emu_break_device_after(uint64_t operations, cudaError_t error);
/* Device and pinned allocations, streams, events, graphs and executable graphs that were made and not given back. */
size_t emu_count_live(void);
/* Operations run so far: kernels, copies, work of stand-ins. */
uint64_t emu_count_operations(void);

/* ---- for stand-ins of libraries that work on device memory ---- */

/* Does start .. start+bytes-1 lie inside one live device allocation? */
bool emu_is_device(const void *start, size_t bytes);
/* Is the stream being captured into a graph? */
bool emu_is_capturing(cudaStream_t stream);
/* The compute capability in force, as major * 10 + minor. */
int emu_get_capability(void);
/* Reports a misuse, with the format of printf, and ends the process. */
#ifdef __GNUC__
__attribute__((noreturn, format(printf, 1, 2)))
#endif
void emu_misuse(const char *format, ...);

#ifdef __cplusplus
}

struct emu_range {
    const void *start;
    size_t bytes;
};

/* Queues `work` on a stream, or adds it to the graph that the stream is being captured into; it runs later, in any order
 * that streams and events allow, once or (in a graph) many times, so it must own all host data it uses, and be the
 * only owner (move what it captures). Only there may
 * device memory be touched. `reads` and `writes` name all device memory that the work touches: it must lie in live
 * allocations now and when the work runs, and is what ThreadSanitizer is told. `what` (a string constant) is for messages.
 * Returns what a launch returns: cudaSuccess, or the error of the stream or device. Does not count as a call. */
cudaError_t emu_enqueue(cudaStream_t stream, const char *what, std::function<void()> work, std::vector<emu_range> reads,
                        std::vector<emu_range> writes);
#endif

#endif
