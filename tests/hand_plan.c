/* Plans made by hand: see hand_plan.h. */
#include "hand_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

void hand_open(hand *h, int threads) {
    memset(h, 0, sizeof *h);
    tw_context_options options = TW_CONTEXT_OPTIONS_INIT;
    options.threads = threads;
    assert_int_equal(twi_context_open(&h->context, &options), TW_OK);
    h->context->backend = &twi_backend_cpu;
    assert_int_equal(twi_backend_cpu.open(h->context, &h->context->device), TW_OK);
    h->plan.buffer = h->buffer;
    h->plan.step = h->step;
    h->plan.segment = h->segment;
}

void hand_close(hand *h) {
    twi_backend_cpu.discard(h->context, h->prepared);
    for (int s = 0; s < h->plan.step_count; s++)
        if (h->step[s].choice.state != &h->site[s]) twi_backend_cpu.release(h->context, &h->step[s].choice);
    twi_backend_cpu.put(h->context, h->arena);
    twi_backend_cpu.put(h->context, h->scratch);
    twi_backend_cpu.close(h->context, h->context->device);
    assert_int_equal(tw_context_get_memory(h->context).blocks, 3); /* the context, its pool and its workers */
    twi_context_close(h->context);
}

int hand_buffer(hand *h, twi_place place, bool batched, const int64_t *dims) {
    twi_buffer_plan *b = &h->buffer[h->plan.buffer_count];
    *b = (twi_buffer_plan){.name = "b", .store = TWI_ACC, .batched = batched, .place = (uint8_t)place};
    for (; dims[b->shape.rank] >= 0; b->shape.rank++) b->shape.dim[b->shape.rank] = dims[b->shape.rank];
    static const int last_first[] = {1, 3, 2, 0};
    int64_t step = 1;
    for (int i = 0; i < b->shape.rank; i++) {
        int axis = b->shape.rank == 4 ? last_first[i] : b->shape.rank - 1 - i;
        b->stride[axis] = step;
        step *= b->shape.dim[axis];
    }
    b->bytes = (size_t)step * sizeof(float);
    if (batched) b->sample_bytes = b->bytes / (size_t)b->shape.dim[0];
    if (place == TWI_PLACE_ARENA) {
        b->offset = h->plan.arena_bytes;
        h->plan.arena_bytes += aligned(b->bytes);
    } else if (place == TWI_PLACE_LOCAL) { /* room for all samples: more than any chunk */
        b->offset = h->plan.scratch_offset;
        h->plan.scratch_offset += aligned(b->bytes);
    }
    return h->plan.buffer_count++;
}

void hand_segment(hand *h, twi_split split, int64_t samples, int64_t chunk, int groups) {
    h->segment[h->plan.segment_count++] = (twi_segment){.first_step = h->plan.step_count,
                                                        .split = (uint8_t)split,
                                                        .samples = samples,
                                                        .chunk = chunk,
                                                        .groups = groups};
}

int hand_step(hand *h, const twi_kernel *kernel, const twi_cpu_impl *impl, const void *attrs, const int *operands) {
    int index = h->plan.step_count++;
    twi_step_plan *step = &h->step[index];
    *step = (twi_step_plan){.kernel = kernel, .attrs = attrs, .label = "step", .node = index};
    memcpy(step->buffer, operands, kernel->operand_count * sizeof operands[0]);
    step->segment = h->plan.segment_count - 1;
    h->segment[step->segment].step_count++;
    h->site[index] = (twi_cpu_site){.impl = impl, .kernel = kernel};
    step->choice.state = &h->site[index];
    return index;
}

static void shape_call(const hand *h, const twi_step_plan *step, int64_t samples, twi_call *call) {
    *call = (twi_call){.attrs = step->attrs, .operand_count = step->kernel->operand_count};
    for (int o = 0; o < call->operand_count; o++) {
        const twi_buffer_plan *b = &h->buffer[step->buffer[o]];
        twi_operand *operand = &call->operand[o];
        operand->shape = b->shape;
        memcpy(operand->stride, b->stride, sizeof operand->stride);
        operand->store = b->store;
        operand->dtype = b->dtype;
        if (b->batched) operand->shape.dim[0] = samples;
    }
}

tw_status hand_choose(hand *h) {
    twi_step_plan *step = &h->step[h->plan.step_count - 1];
    const twi_segment *segment = &h->segment[step->segment];
    twi_call main, tail;
    shape_call(h, step, segment->chunk, &main);
    shape_call(h, step, segment->samples % segment->chunk, &tail);
    return twi_backend_cpu.choose(h->context, step->kernel, &main, tail.operand[0].shape.dim[0] ? &tail : NULL,
                                  SIZE_MAX, &step->choice);
}

tw_status hand_bind(hand *h) {
    size_t widest = 0;
    for (int s = 0; s < h->plan.step_count; s++) {
        twi_step_plan *step = &h->step[s];
        const twi_segment *segment = &h->segment[step->segment];
        step->shared_offset = h->plan.arena_bytes;
        h->plan.arena_bytes += aligned(step->choice.shared_bytes);
        if (step->choice.worker_bytes > widest) widest = step->choice.worker_bytes;
        for (int o = 0; o < step->kernel->operand_count; o++) {
            if (step->kernel->operand[o].reach != TWI_SUMMED) continue;
            size_t bytes =
                step->choice.partial_bytes[o] ? step->choice.partial_bytes[o] : h->buffer[step->buffer[o]].bytes;
            step->partial_offset[o] = h->plan.arena_bytes;
            if (step->choice.partial_bytes[o] || segment->groups > 1)
                h->plan.arena_bytes += aligned(twi_partial_stride(bytes) * (size_t)segment->groups);
        }
    }
    h->plan.worker_bytes = h->plan.scratch_offset + aligned(widest);
    void *arena, *scratch;
    size_t workers = (size_t)tw_context_get_threads(h->context);
    assert_int_equal(twi_backend_cpu.get(h->context, &arena, h->plan.arena_bytes, "arena"), TW_OK);
    assert_int_equal(twi_backend_cpu.get(h->context, &scratch, workers * h->plan.worker_bytes, "scratch"), TW_OK);
    h->arena = arena;
    h->scratch = scratch;
    return twi_backend_cpu.prepare(h->context, &h->prepared, &h->plan, &h->control, arena, scratch);
}

void hand_run(hand *h) {
    assert_int_equal(twi_backend_cpu.run(h->context, h->prepared, 0, h->plan.segment_count), TW_OK);
}

float *hand_data(const hand *h, int buffer) { return (float *)(void *)(h->arena + h->buffer[buffer].offset); }

static void fill(float *x, int64_t count, uint32_t seed) {
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed * 0x1p-31f;
    }
}
int64_t hand_count(const hand *h, int buffer) { return twi_shape_count(&h->buffer[buffer].shape); }
void hand_fill(hand *h, int buffer) { fill(hand_data(h, buffer), hand_count(h, buffer), 17u + (uint32_t)buffer); }
