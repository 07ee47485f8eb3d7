/* What memory there is for fit, and what is left of it: of the context's caps, of the device, within the trainer's
 * limit. */
#include "room.h"
#include "program/program.h"

/* Of what is free: for what is taken beside the plan, unless there is none without it. */
enum { RESERVE_SHARE = 32 };

static tw_context *context_of(const tw_trainer *trainer) { return tw_model_get_context(trainer->model); }

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
static size_t left_of(size_t a, size_t b) { return a > b ? a - b : 0; }

static size_t without_reserve(size_t bytes) { return bytes - bytes / RESERVE_SHARE; }

/* What checkpoints and files of weights take of the host while they are written: a tensor at a time, as it lies in
 * memory and as it lies in the file, and their headers. A run must not be ended by its own checkpoint. */
static size_t room_to_save(const tw_trainer *trainer) {
    enum { HEADERS = 64 * 1024 };
    const twi_store *store = &trainer->model->store;
    size_t largest = 0;
    for (int i = 0; i < store->count; i++) {
        const size_t bytes = (size_t)twi_shape_count(&store->parameter[i].shape) * sizeof(float);
        if (bytes > largest) largest = bytes;
    }
    return largest < (SIZE_MAX - HEADERS) / 2 ? HEADERS + 2 * largest : SIZE_MAX;
}

/* Of the context's caps. The memory of a device that is the host's lies under the host's cap. */
static size_t cap_left(const tw_trainer *trainer, bool reserve) {
    const tw_context *context = context_of(trainer);
    const tw_memory_stats device = tw_context_get_device_memory(context), host = tw_context_get_memory(context);
    size_t left = device.limit ? left_of(device.limit, device.bytes) : SIZE_MAX;
    if (!context->backend->host_memory || context->plans_only || !host.limit) return left;
    const size_t host_left = left_of(left_of(host.limit, host.bytes), room_to_save(trainer));
    return smaller(left, reserve ? without_reserve(host_left) : host_left);
}

/* Of the device itself. The host's memory is no budget: it pages, and other programs give back. */
static size_t device_left(const tw_trainer *trainer, bool reserve) {
    const tw_context *context = context_of(trainer);
    tw_device_info info = TW_DEVICE_INFO_INIT;
    if (context->backend->host_memory) return SIZE_MAX;
    if (context->backend->describe(context, &info))
        twi_log_line(&context->log, TW_LOG_WARNING, "fit: what is free on the device is not known, since %s",
                     tw_last_error());
    if (!info.memory_bytes) return SIZE_MAX;
    return reserve ? without_reserve(info.free_bytes) : info.free_bytes;
}

/* What the model and sets may take in all, so that it is there; 0: no limit. A card that is only planned for is no
 * limit to programs: what they would need is what is asked. */
static size_t available(const tw_trainer *trainer, bool reserve) {
    const bool planned = context_of(trainer)->plans_only;
    const size_t cap = cap_left(trainer, reserve), left = planned ? cap : smaller(cap, device_left(trainer, reserve));
    return left == SIZE_MAX ? 0 : twi_model_bytes(trainer->model) + trainer->placed + left;
}

static size_t smaller_limit(size_t a, size_t b) { return !a ? b : !b || a < b ? a : b; }

/* Where programs are only planned: those of all uses, one beside the other, and the sets. */
static size_t rehearsed_left(const tw_trainer *trainer) {
    const size_t limit = smaller_limit(trainer->limit, available(trainer, true));
    const tw_program *program = NULL;
    for (int i = 0; i < TWI_CACHED_PROGRAMS && !program; i++) program = trainer->cached[i].program;
    return limit ? left_of(limit, trainer->aside + (program ? twi_program_bytes(program) : 0)) : SIZE_MAX;
}

/* For sets, which can be streamed: so they always leave the reserve, that libraries may want. */
size_t twi_room_left(const tw_trainer *trainer) {
    if (trainer->rehearses) return rehearsed_left(trainer);
    const size_t coming = trainer->aside - trainer->placed;
    size_t left = smaller(cap_left(trainer, true), device_left(trainer, true));
    if (left != SIZE_MAX) left = left_of(left, coming);
    return trainer->limit ? smaller(left, left_of(trainer->limit, twi_model_bytes(trainer->model) + trainer->aside))
                          : left;
}

size_t twi_room_limit(const tw_trainer *trainer, size_t limit) {
    return smaller_limit(limit, available(trainer, !trainer->no_reserve));
}

/* What the host keeps of programs beside their plan is known only when there are programs. */
tw_status twi_room_check_saving(const tw_trainer *trainer) {
    const tw_memory_stats host = tw_context_get_memory(context_of(trainer));
    const size_t left = left_of(host.limit, host.bytes), wanted = room_to_save(trainer);
    if (!trainer->options.checkpoint || !host.limit || context_of(trainer)->plans_only || left >= wanted) return TW_OK;
    return TWI_FAIL(TW_ERROR_OUT_OF_MEMORY,
                    "the context's cap of %zu bytes leaves %zu, and writing checkpoints wants %zu; raise it with "
                    "tw_context_set_memory_limit",
                    host.limit, left, wanted);
}
