/* See impl_call.h. */
#include "impl_call.h"
#include "base/memory.h"
#include "page_end.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- memory ---- */

enum { BLOCKS = 192 };
static struct {
    uint8_t *memory;
    size_t bytes;
} block[BLOCKS];
static int blocks;
static uint32_t state = 1;

static uint32_t next(void) { return (state = state * 1664525u + 1013904223u) >> 8; }

static void *get(size_t bytes) {
    assert_true(blocks < BLOCKS);
    uint8_t *memory = page_end_get(bytes);
    block[blocks].memory = memory;
    block[blocks++].bytes = bytes;
    return memory;
}

float *impl_floats(int64_t count) {
    float *numbers = get((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++) numbers[i] = (float)next() / 8388608.0f - 1.0f;
    return numbers;
}

uint8_t *impl_bytes(int64_t count) {
    uint8_t *bytes = get((size_t)count);
    for (int64_t i = 0; i < count; i++) bytes[i] = (uint8_t)next();
    return bytes;
}

void impl_release(void) {
    for (int b = 0; b < blocks; b++) page_end_put(block[b].memory, block[b].bytes);
    blocks = 0;
}

/* ---- operands ---- */

int64_t impl_count(const impl_shape *shape) {
    int64_t count = 1;
    for (int axis = 0; axis < shape->rank; axis++) count *= shape->dim[axis];
    return count;
}

int64_t impl_at(const impl_shape *shape, int64_t n, int64_t c, int64_t h, int64_t w) {
    if (shape->rank == 2) return n * shape->dim[1] + c;
    int64_t channels = shape->dim[1], height = shape->dim[2], width = shape->dim[3];
    return shape->channels_last ? ((n * height + h) * width + w) * channels + c
                                : ((n * channels + c) * height + h) * width + w;
}

void impl_operand(twi_call *call, int o, twi_store_kind store, const impl_shape *shape, void *data) {
    twi_operand *operand = &call->operand[o];
    *operand = (twi_operand){.data = data, .store = store, .dtype = TW_F32};
    operand->shape.rank = shape->rank;
    for (int axis = 0; axis < shape->rank; axis++) {
        operand->shape.dim[axis] = shape->dim[axis];
        operand->stride[axis] = impl_at(shape, axis == 0, axis == 1, axis == 2, axis == 3);
    }
    if (call->operand_count <= o) call->operand_count = o + 1;
}

void impl_rows(twi_call *call, int o, twi_store_kind store, int64_t rows, int64_t columns, void *data) {
    const impl_shape two = {2, {rows, columns}, false};
    impl_operand(call, o, store, &two, data);
    if (rows > 1) return;
    call->operand[o].shape = (twi_shape){1, {columns}};
    call->operand[o].stride[0] = 1;
}

/* ---- running ---- */

bool impl_has_isa(twi_isa isa) { return isa <= twi_cpu_isa(); }

static const twi_cpu_impl *find(const twi_cpu_impl *family, const char *kernel) {
    for (; family->kernel; family++)
        if (strcmp(family->kernel, kernel) == 0) return family;
    fail_msg("no implementation of %s", kernel);
    return NULL;
}

const char *impl_refusal(const twi_cpu_impl *family, const char *kernel, const twi_call *call) {
    const twi_cpu_impl *impl = find(family, kernel);
    return impl->refuse ? impl->refuse(call, TWI_ISA_BASELINE) : NULL;
}

/* Filled with not-a-number, so that what is read before it is written shows, and as much of it on both sides, which is
 * found as it was. */
enum { MARGIN = 1 << 16 };

static void *workspace_of(size_t bytes) {
    uint8_t *memory = malloc(bytes + 2 * MARGIN);
    assert_non_null(memory);
    memset(memory, 0xFF, bytes + 2 * MARGIN);
    return memory + MARGIN;
}

static void put_workspace(void *workspace, size_t bytes) {
    if (!workspace) return;
    uint8_t *memory = (uint8_t *)workspace - MARGIN;
    for (size_t i = 0; i < MARGIN; i++)
        if (memory[i] != 0xFF || memory[MARGIN + bytes + i] != 0xFF)
            fail_msg("written beside a workspace of %zu", bytes);
    free(memory);
}

/* Sums in a layout of the implementation's own: once, or if the call adds, twice, and then brought back. */
static void run_and_finish(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_call own = *call;
    void *partial[TWI_MAX_OPERANDS] = {NULL};
    for (int o = 0; o < call->operand_count; o++)
        if (site->partial_bytes[o]) own.operand[o].data = partial[o] = workspace_of(site->partial_bytes[o]);
    own.first = true;
    site->impl->run(site, &own, workspace);
    own.first = false;
    if (!call->first) site->impl->run(site, &own, workspace);
    site->impl->finish(site, call, workspace, partial);
    for (int o = 0; o < call->operand_count; o++) put_workspace(partial[o], site->partial_bytes[o]);
}

bool impl_finishes(const twi_cpu_impl *family, const char *kernel) {
    while (family->kernel && strcmp(family->kernel, kernel) != 0) family++;
    return family->kernel && family->finish;
}

void impl_run(const twi_cpu_impl *family, const char *kernel, twi_isa isa, const twi_call *call) {
    const twi_cpu_impl *impl = find(family, kernel);
    const char *reason = impl->refuse ? impl->refuse(call, isa) : NULL;
    if (reason) fail_msg("%s was refused: %s", kernel, reason);
    twi_cpu_site site = {.impl = impl, .isa = isa, .workers = 1};
    assert_int_equal(twi_memory_create(&site.memory, 0, NULL, NULL), TW_OK);
    if (impl->prepare) assert_int_equal(impl->prepare(&site, call, NULL), TW_OK);
    twi_cpu_workspace workspace = {
        .shared = workspace_of(site.shared_bytes), .scratch = workspace_of(site.worker_bytes), .workers = 2};
    if (impl->begin) impl->begin(&site, call, &workspace);
    (impl->finish ? run_and_finish : impl->run)(&site, call, &workspace);
    if (impl->release) impl->release(&site);
    assert_int_equal(twi_memory_get_stats(site.memory).blocks, 0);
    twi_memory_destroy(site.memory);
    put_workspace(workspace.shared, site.shared_bytes);
    put_workspace(workspace.scratch, site.worker_bytes);
}

void impl_close(double want, double got, double tolerance, const char *what, int64_t index) {
    if (isnan(want) ? isnan(got) : fabs(got - want) <= tolerance * (1 + fabs(want))) return;
    fail_msg("%s: element %lld is %.9g, expected %.9g", what, (long long)index, got, want);
}
