/* Device memory by cudaMalloc, counted against the context's cap. */
#include "cuda_memory.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { BREAKDOWN_TEXT = 600 };

static twi_cuda_block *find(twi_cuda_device *device, const void *memory) {
    for (int i = 0; i < device->block_count; i++)
        if (device->block[i].memory == memory) return &device->block[i];
    return NULL;
}

/* "parameters 94.1 MB, activation arena 1.20 GB": blocks of one use together, in the order they were taken. */
static void describe(const twi_cuda_device *device, char text[BREAKDOWN_TEXT]) {
    size_t length = 0;
    text[0] = '\0';
    for (int i = 0; i < device->block_count; i++) {
        size_t bytes = 0;
        bool told = false;
        for (int k = 0; k < device->block_count; k++) {
            if (strcmp(device->block[k].what, device->block[i].what) != 0) continue;
            told = told || k < i;
            bytes += device->block[k].bytes;
        }
        if (told || length >= BREAKDOWN_TEXT - 1) continue;
        char quantity[TWI_QUANTITY_TEXT];
        int added = snprintf(text + length, BREAKDOWN_TEXT - length, "%s%s %s", length ? ", " : "",
                             device->block[i].what, twi_quantity((double)bytes, "B", quantity));
        length += added > 0 ? (size_t)added : 0;
    }
    if (!length) snprintf(text, BREAKDOWN_TEXT, "nothing");
}

tw_status twi_cuda_out_of_memory(twi_cuda_device *device, size_t bytes, const char *what) {
    char held[BREAKDOWN_TEXT], asked[TWI_QUANTITY_TEXT] = "more", cap[TWI_QUANTITY_TEXT] = "none",
                               left[TWI_QUANTITY_TEXT] = "unknown";
    size_t free_bytes, total_bytes;
    describe(device, held);
    if (bytes) twi_quantity((double)bytes, "B", asked);
    if (device->memory.limit) twi_quantity((double)device->memory.limit, "B", cap);
    if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess) twi_quantity((double)free_bytes, "B", left);
    return TWI_FAIL(
        TW_ERROR_OUT_OF_MEMORY,
        "%s: out of device memory: %s asked, free on the device %s, cap %s; held here: %s. Use a smaller batch", what,
        asked, left, cap, held);
}

bool twi_cuda_is_full(void) {
    /* What code and handles of a library take; of a small device a share. */
    const size_t most = (size_t)64 << 20;
    size_t free_bytes, total_bytes;
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return free_bytes < (total_bytes / 32 < most ? total_bytes / 32 : most);
}

static tw_status take_room(twi_cuda_device *device) {
    if (device->block_count < device->block_capacity) return TW_OK;
    int grown = device->block_capacity ? 2 * device->block_capacity : 32;
    TWI_TRY(twi_grow(device->context->memory, &device->block, (size_t)grown, sizeof *device->block, "device blocks"));
    device->block_capacity = grown;
    return TW_OK;
}

tw_status twi_cuda_memory_open(twi_cuda_device *device) { return take_room(device); }

tw_status twi_cuda_get(tw_context *context, void **out, size_t bytes, const char *what) {
    twi_cuda_device *device = twi_cuda_of(context);
    tw_memory_stats *stats = &device->memory;
    *out = NULL;
    TWI_TRY(twi_cuda_enter(device));
    TWI_TRY(take_room(device));
    if (bytes > SIZE_MAX - stats->bytes || (stats->limit && stats->bytes + bytes > stats->limit))
        return twi_cuda_out_of_memory(device, bytes, what);
    void *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes ? bytes : 1);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return twi_cuda_out_of_memory(device, bytes, what);
    }
    TWI_TRY(twi_cuda_check(device, error, "cudaMalloc"));
    device->block[device->block_count++] = (twi_cuda_block){memory, bytes, what};
    stats->allocations++;
    stats->blocks++;
    stats->bytes += bytes;
    if (stats->bytes > stats->peak) stats->peak = stats->bytes;
    tw_status status =
        twi_cuda_check(device, cudaMemsetAsync(memory, 0, bytes ? bytes : 1, device->stream), "cudaMemsetAsync");
    if (status) {
        twi_cuda_put(context, memory);
        return status;
    }
    device->catch_up = true; /* it is cleared only where the stream gets to it */
    *out = memory;
    return TW_OK;
}

void twi_cuda_put(tw_context *context, void *memory) {
    twi_cuda_device *device = twi_cuda_of(context);
    twi_cuda_block *block = memory ? find(device, memory) : NULL;
    if (!block) return;
    device->memory.bytes -= block->bytes;
    device->memory.blocks--;
    *block = device->block[--device->block_count];
    /* cudaFree waits for what is under way. On a lost device it fails, and the memory goes with the process. */
    (void)cudaFree(memory);
    (void)cudaGetLastError();
}

tw_memory_stats twi_cuda_get_memory(const tw_context *context) { return twi_cuda_of(context)->memory; }
