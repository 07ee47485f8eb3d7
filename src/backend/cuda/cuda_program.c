/* Binds a plan to device memory, captures what can be run of it as graphs, and launches them. One launch a run: the
 * host neither walks the steps nor waits between them. */
#include "cuda_copy.h"
#include "cuda_program.h"
#include "nvtx.h"

#include <string.h>

/* What can be run: everything, the gradients, the update; and, apart from these, what makes constants. */
enum { PARTS = 4 };

typedef struct bound_step {
    const twi_cuda_site *site;
    const char *label;
    twi_call call;
} bound_step;

typedef struct bound_part {
    const char *name;
    bool apart; /* reads no input */
    int first_segment, segment_count;
    int first_step, step_count;
    cudaGraphExec_t graph;
} bound_part;

typedef struct bound_program {
    bound_step *step;
    int step_count;
    void *workspace; /* shared by all steps, one after the other */
    bound_part part[PARTS];
    int part_count;
} bound_program;

/* ---- binding ---- */

static void *address_of(const twi_buffer_plan *buffer, void *arena) {
    return buffer->place == TWI_PLACE_FIXED ? buffer->address : (char *)arena + buffer->offset;
}

static tw_status bind_step(const twi_plan *plan, int index, twi_control *control, void *arena, bound_step *out) {
    const twi_step_plan *step = &plan->step[index];
    twi_call *call = &out->call;
    out->site = step->choice.state;
    out->label = step->label;
    call->kernel = step->kernel;
    call->attrs = step->attrs;
    call->control = control;
    call->stream = step->stream;
    call->node = step->node;
    call->first = true;
    call->tf32 = step->tf32;
    call->operand_count = step->kernel->operand_count;
    for (int o = 0; o < call->operand_count; o++) {
        if (step->buffer[o] < 0) continue;
        const twi_buffer_plan *buffer = &plan->buffer[step->buffer[o]];
        if (buffer->place == TWI_PLACE_LOCAL)
            return TWI_FAIL(TW_ERROR_INTERNAL,
                            "cuda: step '%s': buffer '%s' was planned for one worker; please report it", step->label,
                            buffer->name);
        twi_operand *operand = &call->operand[o];
        operand->data = address_of(buffer, arena);
        operand->shape = buffer->shape;
        memcpy(operand->stride, buffer->stride, sizeof operand->stride);
        operand->store = buffer->store;
        operand->dtype = buffer->dtype;
    }
    if (step->kernel->split == TWI_BY_RANGE) call->end = step->kernel->range(call);
    return TW_OK;
}

static void add_part(bound_program *program, const twi_plan *plan, const char *name, int first, int count) {
    if (count <= 0) return;
    const twi_segment *head = &plan->segment[first], *last = &plan->segment[first + count - 1];
    program->part[program->part_count++] = (bound_part){
        .name = name,
        .apart = first < plan->constant_segments,
        .first_segment = first,
        .segment_count = count,
        .first_step = head->first_step,
        .step_count = last->first_step + last->step_count - head->first_step,
    };
}

/* ---- launching ---- */

static tw_status launch_step(twi_cuda_device *device, const bound_program *program, const bound_step *step) {
    twi_nvtx_begin(step->site->kernel->name, step->label);
    tw_status status = step->site->family->launch(step->site, &step->call, program->workspace, device->stream);
    if (status == TW_OK && device->each_step)
        status = twi_cuda_check(device, cudaStreamSynchronize(device->stream), "waiting for the step");
    twi_nvtx_end();
    return status ? twi_fail_within(status, "%s '%s'", step->site->kernel->name, step->label) : TW_OK;
}

static tw_status launch_steps(twi_cuda_device *device, const bound_program *program, const bound_part *part) {
    for (int i = part->first_step; i < part->first_step + part->step_count; i++)
        TWI_TRY(launch_step(device, program, &program->step[i]));
    return TW_OK;
}

/* ---- capturing ---- */

/* What libraries load at their first call is allowed while capturing (relaxed); nothing of this context runs
 * meanwhile. */
static tw_status capture(twi_cuda_device *device, const bound_program *program, bound_part *part) {
    cudaGraph_t graph = NULL;
    TWI_CUDA(device, cudaStreamBeginCapture(device->stream, cudaStreamCaptureModeRelaxed));
    tw_status status = launch_steps(device, program, part);
    cudaError_t ended =
        cudaStreamEndCapture(device->stream, &graph); /* also to leave the stream usable after a failure */
    if (status == TW_OK)
        status = twi_cuda_check(device, ended, "cudaStreamEndCapture");
    else
        (void)cudaGetLastError();
    if (status == TW_OK)
        status = twi_cuda_check(device, cudaGraphInstantiate(&part->graph, graph, 0), "cudaGraphInstantiate");
    if (graph) (void)cudaGraphDestroy(graph);
    return status;
}

static tw_status bind(twi_cuda_device *device, bound_program *program, const twi_plan *plan, twi_control *control,
                      void *arena, void *scratch) {
    TWI_TRY(twi_get(device->context->memory, &program->step, (size_t)plan->step_count, sizeof *program->step,
                    "bound steps"));
    program->step_count = plan->step_count;
    program->workspace = scratch ? (char *)scratch + plan->scratch_offset : NULL;
    for (int i = 0; i < plan->step_count; i++) TWI_TRY(bind_step(plan, i, control, arena, &program->step[i]));
    const int first = plan->constant_segments;
    add_part(program, plan, "all", first, plan->segment_count - first);
    add_part(program, plan, "constants", 0, first);
    if (plan->update_segment > first && plan->update_segment < plan->segment_count) {
        add_part(program, plan, "gradients", first, plan->update_segment - first);
        add_part(program, plan, "update", plan->update_segment, plan->segment_count - plan->update_segment);
    }
    for (int i = 0; i < program->part_count && !device->each_step; i++)
        TWI_TRY(capture(device, program, &program->part[i]));
    return TW_OK;
}

tw_status twi_cuda_prepare(tw_context *context, void **out, const twi_plan *plan, twi_control *control, void *arena,
                           void *scratch) {
    twi_cuda_device *device = twi_cuda_of(context);
    bound_program *program;
    *out = NULL;
    TWI_TRY(twi_cuda_enter(device));
    TWI_TRY(twi_get(context->memory, &program, 1, sizeof *program, "bound program"));
    tw_status status = bind(device, program, plan, control, arena, scratch);
    if (status) {
        twi_cuda_discard(context, program);
        return status;
    }
    *out = program;
    return TW_OK;
}

void twi_cuda_discard(tw_context *context, void *prepared) {
    bound_program *program = prepared;
    if (!program) return;
    (void)cudaStreamSynchronize(twi_cuda_of(context)->stream); /* a graph may be under way */
    for (int i = 0; i < program->part_count; i++)
        if (program->part[i].graph) (void)cudaGraphExecDestroy(program->part[i].graph);
    (void)cudaGetLastError();
    twi_put(context->memory, program->step);
    twi_put(context->memory, program);
}

tw_status twi_cuda_run(tw_context *context, void *prepared, int first_segment, int segment_count) {
    twi_cuda_device *device = twi_cuda_of(context);
    const bound_program *program = prepared;
    TWI_TRY(twi_cuda_enter(device));
    for (int i = 0; i < program->part_count; i++) {
        const bound_part *part = &program->part[i];
        if (part->first_segment != first_segment || part->segment_count != segment_count) continue;
        if (!part->apart) TWI_TRY(twi_cuda_slots_begin(device));
        twi_nvtx_begin("run", part->name);
        tw_status status = part->graph
                               ? twi_cuda_check(device, cudaGraphLaunch(part->graph, device->stream), "cudaGraphLaunch")
                               : launch_steps(device, program, part);
        twi_nvtx_end();
        return status || part->apart ? status : twi_cuda_slots_end(device);
    }
    return segment_count
               ? TWI_FAIL(TW_ERROR_INTERNAL, "cuda: segments %d to %d are no part of the program; please report it",
                          first_segment, first_segment + segment_count - 1)
               : TW_OK;
}
