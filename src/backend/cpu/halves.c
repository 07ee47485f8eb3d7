/* The way of halves.h: an f32 site inside, and where the widened operands lie. What a worker needs: a place for every
 * half that a chunk reads or writes, then the scratch of the f32 site. Weights are widened once a run, into memory
 * shared by all workers. Sums over chunks stay f32 until the last group was added. */
#include "halves.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

/* What becomes of an operand. */
typedef enum way {
    WAY_AS_IS,
    WAY_SCRATCH, /* widened before the chunk, or rounded behind it */
    WAY_SHARED,  /* widened before the run */
    WAY_SUM      /* f32 in the groups' parts, rounded at the end */
} way;

typedef struct widened {
    twi_cpu_site f32;
    char name[48];
    const twi_halves_loops *loops;
    uint8_t way[TWI_MAX_OPERANDS];
    size_t offset[TWI_MAX_OPERANDS]; /* in scratch or in the shared memory */
    size_t scratch, shared;          /* where those of the f32 site begin */
} widened;

bool twi_cpu_is_half(const twi_call *call, int operand) {
    const twi_operand *o = &call->operand[operand];
    return o->store == TWI_REAL && (o->dtype == TW_F16 || o->dtype == TW_BF16) && !call->kernel->half_of[operand];
}

bool twi_cpu_has_halves(const twi_call *call) {
    for (int o = 0; o < call->operand_count; o++)
        if (twi_cpu_is_half(call, o)) return true;
    return false;
}

twi_call twi_cpu_widened_call(const twi_call *call) {
    twi_call wide = *call;
    for (int o = 0; o < call->operand_count; o++)
        if (twi_cpu_is_half(call, o)) wide.operand[o].dtype = TW_F32;
    return wide;
}

/* ---- preparing ---- */

/* Elements in memory: where samples lie side by side, of whole blocks of them. */
static int64_t stored_count(const twi_operand *operand) {
    const int64_t count = twi_shape_count(&operand->shape), lanes = operand->lanes;
    if (!lanes) return count;
    const int64_t samples = operand->shape.dim[0];
    return (samples + lanes - 1) / lanes * lanes * (count / samples);
}

static size_t lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* What steps that go by sample read as a whole are weights: no step writes them. */
static way way_of(const twi_call *call, int operand) {
    const twi_operand_rule *rule = &call->kernel->operand[operand];
    if (!twi_cpu_is_half(call, operand)) return WAY_AS_IS;
    if (rule->reach == TWI_SUMMED) return WAY_SUM;
    if (rule->access == TWI_READ && rule->reach == TWI_WHOLE && call->kernel->split == TWI_BY_SAMPLE) return WAY_SHARED;
    return WAY_SCRATCH;
}

/* Parts of a range write equal parts of an output. */
static tw_status check_ranges(const twi_call *call) {
    if (call->kernel->split != TWI_BY_RANGE) return TW_OK;
    const int64_t range = call->kernel->range(call);
    for (int o = 0; o < call->operand_count; o++)
        if (twi_cpu_is_half(call, o) && call->kernel->operand[o].access != TWI_READ &&
            twi_shape_count(&call->operand[o].shape) % range != 0)
            return TWI_FAIL(TW_ERROR_UNSUPPORTED, "op kernel '%s' has no implementation in %s on the back end 'cpu'",
                            call->kernel->name, tw_dtype_name((tw_dtype)call->operand[o].dtype));
    return TW_OK;
}

static tw_status place(twi_cpu_site *site, widened *w, const twi_call *main) {
    size_t bytes;
    for (int o = 0; o < main->operand_count; o++) {
        w->way[o] = (uint8_t)way_of(main, o);
        if (w->way[o] == WAY_AS_IS) {
            site->partial_bytes[o] = w->f32.partial_bytes[o];
            continue;
        }
        TWI_TRY(twi_mul_size(&bytes, (size_t)stored_count(&main->operand[o]), sizeof(float), "widened operand"));
        bytes = lines(bytes);
        size_t *total = w->way[o] == WAY_SHARED ? &w->shared : &w->scratch;
        if (w->way[o] == WAY_SUM) site->partial_bytes[o] = w->f32.partial_bytes[o] ? w->f32.partial_bytes[o] : bytes;
        if (w->way[o] == WAY_SUM && !w->f32.partial_bytes[o]) continue;
        w->offset[o] = *total;
        TWI_TRY(twi_add_size(total, *total, bytes, "widened operands"));
    }
    TWI_TRY(twi_add_size(&site->worker_bytes, w->scratch, w->f32.worker_bytes, "scratch for halves"));
    return twi_add_size(&site->shared_bytes, w->shared, w->f32.shared_bytes, "workspace for halves");
}

/* ---- running ---- */

static twi_cpu_workspace inner_workspace(const widened *w, const twi_cpu_workspace *workspace) {
    twi_cpu_workspace inner = *workspace;
    inner.scratch = (unsigned char *)workspace->scratch + w->scratch;
    inner.shared = (unsigned char *)workspace->shared + w->shared;
    return inner;
}

/* The call on f32 operands, where they lie. */
static twi_call bind(const widened *w, const twi_call *call, const twi_cpu_workspace *workspace) {
    twi_call wide = twi_cpu_widened_call(call);
    wide.workspace = (unsigned char *)workspace->scratch + w->scratch;
    for (int o = 0; o < call->operand_count; o++) {
        if (w->way[o] == WAY_SCRATCH) wide.operand[o].data = (unsigned char *)workspace->scratch + w->offset[o];
        if (w->way[o] == WAY_SHARED) wide.operand[o].data = (unsigned char *)workspace->shared + w->offset[o];
    }
    return wide;
}

static void widen(const widened *w, float *out, const twi_operand *operand) {
    w->loops->widen(out, operand->data, (tw_dtype)operand->dtype, stored_count(operand));
}

static void begin(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const widened *w = site->state[0];
    const twi_call wide = bind(w, call, workspace);
    const twi_cpu_workspace inner = inner_workspace(w, workspace);
    for (int o = 0; o < call->operand_count; o++)
        if (w->way[o] == WAY_SHARED) widen(w, wide.operand[o].data, &call->operand[o]);
    if (w->f32.impl && w->f32.impl->begin) w->f32.impl->begin(&w->f32, &wide, &inner);
}

/* The elements of an output that the call writes: all, or those of its part of the range. */
static void narrow(const widened *w, const twi_call *call, int o, const float *values) {
    const twi_operand *operand = &call->operand[o];
    int64_t count = stored_count(operand), first = 0;
    if (call->kernel->split == TWI_BY_RANGE) {
        const int64_t each = count / call->kernel->range(call);
        first = call->begin * each;
        count = (call->end - call->begin) * each;
    }
    w->loops->narrow((uint16_t *)operand->data + first, values + first, (tw_dtype)operand->dtype, count);
}

/* The specification adds to its sums, implementations replace them in a first call. */
static void run_f32(const widened *w, const twi_call *wide, const twi_cpu_workspace *inner) {
    if (w->f32.impl) {
        w->f32.impl->run(&w->f32, wide, inner);
        return;
    }
    for (int o = 0; wide->first && o < wide->operand_count; o++)
        if (wide->kernel->operand[o].reach == TWI_SUMMED && wide->operand[o].data)
            memset(wide->operand[o].data, 0, (size_t)twi_shape_count(&wide->operand[o].shape) * sizeof(float));
    wide->kernel->run(wide);
}

static void run(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    const widened *w = site->state[0];
    const twi_call wide = bind(w, call, workspace);
    const twi_cpu_workspace inner = inner_workspace(w, workspace);
    for (int o = 0; o < call->operand_count; o++)
        if (w->way[o] == WAY_SCRATCH && call->kernel->operand[o].access != TWI_WRITE)
            widen(w, wide.operand[o].data, &call->operand[o]);
    run_f32(w, &wide, &inner);
    for (int o = 0; o < call->operand_count; o++)
        if (w->way[o] == WAY_SCRATCH && call->kernel->operand[o].access != TWI_READ)
            narrow(w, call, o, wide.operand[o].data);
}

static void finish(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace,
                   void *const partial[TWI_MAX_OPERANDS]) {
    const widened *w = site->state[0];
    twi_call wide = bind(w, call, workspace);
    const twi_cpu_workspace inner = inner_workspace(w, workspace);
    bool own = false;
    for (int o = 0; o < call->operand_count; o++) {
        if (w->way[o] == WAY_SUM)
            wide.operand[o].data =
                w->f32.partial_bytes[o] ? (unsigned char *)workspace->scratch + w->offset[o] : partial[o];
        own = own || w->f32.partial_bytes[o];
    }
    if (own) w->f32.impl->finish(&w->f32, &wide, &inner, partial);
    for (int o = 0; o < call->operand_count; o++)
        if (w->way[o] == WAY_SUM) narrow(w, call, o, wide.operand[o].data);
}

static void release(twi_cpu_site *site) {
    widened *w = site->state[0];
    if (!w) return;
    if (w->f32.impl && w->f32.impl->release) w->f32.impl->release(&w->f32);
    twi_put(site->memory, w);
    site->state[0] = NULL;
}

/* ---- the site ---- */

static const twi_cpu_impl with_begin = {
    .name = "f32", .release = release, .begin = begin, .run = run, .finish = finish};
static const twi_cpu_impl without_begin = {.name = "f32", .release = release, .run = run, .finish = finish};

static tw_status fill(twi_cpu_site *site, widened *w, const twi_call *main) {
    TWI_TRY(check_ranges(main));
    TWI_TRY(place(site, w, main));
    const bool begins = w->shared || (w->f32.impl && w->f32.impl->begin);
    site->impl = begins ? &with_begin : &without_begin;
    return TW_OK;
}

tw_status twi_cpu_widen(twi_cpu_site *site, const twi_cpu_site *f32, const twi_call *main) {
    widened *w;
    TWI_TRY(twi_get(site->memory, &w, 1, sizeof *w, "implementation for halves"));
    w->f32 = *f32;
    w->loops = twi_halves_for(site->isa);
    snprintf(w->name, sizeof w->name, "f32 %s", f32->impl ? f32->impl->name : "specification");
    site->state[0] = w;
    site->name = w->name;
    tw_status status = fill(site, w, main);
    if (status) {
        twi_put(site->memory, w); /* the f32 site stays its owner's */
        site->state[0] = NULL;
    }
    return status;
}
