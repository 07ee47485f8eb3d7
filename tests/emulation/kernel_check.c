/* See kernel_check.h. All values of a buffer are kept on the host as float (or int32_t, bytes), rounded to the storage type
 * of the setting; device memory holds them in that type. */
#include "kernel_check.h"

#include "backend/cuda/kernel_table.h"
#include "base/half.h"
#include "program/resident.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Float against float, of the largest element: sums in another order. Sums over a batch, of numbers of about 1 that may
 * cancel, err as a walk of as many steps does. What is stored in fewer bits may be rounded to either side. */
static const double float_tolerance = 1e-5, least_scale = 0.1;
static const double rounding[] = {[TW_F32] = 0, [TW_F16] = 0x1p-10, [TW_BF16] = 0x1p-7};
enum { SHOWN = 3, LATE = 1 };

typedef struct memory {
    twi_operand layout; /* shape, strides, store; data: the host's, first element */
    void *host;
    size_t count; /* elements from the first to the last, gaps included */
} memory;

typedef struct check {
    const case_graph *graph;
    const tw_program *program;
    const kernel_setting *setting;
    memory *buffer;
    twi_control control;
    cudaStream_t stream;
    int *failures;
} check;

#define MUST(call) assert_int_equal(call, cudaSuccess)

/* ---- memory ---- */

static bool is_float(uint8_t store) { return store == TWI_REAL || store == TWI_ACC || store == TWI_F32; }
static size_t host_size(uint8_t store) { return store == TWI_U8 || store == TWI_BITS ? 1 : 4; }
static size_t device_size(const check *c, uint8_t store) {
    return store == TWI_REAL && c->setting->real != TW_F32 ? 2 : host_size(store);
}

/* Axes of a sample from the slowest to the fastest, `gap` elements behind each row of the fastest. */
static void order_axes(twi_operand *o, const int *slow_to_fast, int64_t gap) {
    int64_t stride = 1;
    for (int i = o->shape.rank - 2; i >= 0; i--) {
        int axis = slow_to_fast[i];
        o->stride[axis] = stride;
        stride *= o->shape.dim[axis];
        if (i == o->shape.rank - 2) stride += gap;
    }
    o->stride[0] = stride;
}

/* As the kernels take it: parameters are kept in float, but some kernels want them in the storage type. */
static uint8_t store_of(const tw_program *program, int index) {
    uint8_t store = program->buffer[index].store;
    for (int s = 0; s < program->step_count; s++)
        for (int o = 0; o < program->step[s].kernel->operand_count; o++)
            if (program->step[s].operand[o] == index && program->step[s].kernel->operand[o].store == TWI_REAL)
                store = TWI_REAL;
    return store;
}

static void lay_out(const check *c, int index, const twi_buffer *buffer, twi_operand *o) {
    static const int rows[] = {1, 2, 3, 4, 5}, turned[] = {3, 2, 1};
    *o =
        (twi_operand){.shape = buffer->shape, .store = store_of(c->program, index), .dtype = (uint8_t)c->setting->real};
    memcpy(o->stride, buffer->stride, sizeof o->stride);
    int choice = c->setting->layout == KERNEL_MIXED ? index % 3 : c->setting->layout == KERNEL_ROWS;
    bool elementwise = o->store == TWI_REAL || o->store == TWI_BITS || o->store == TWI_U8;
    if (!elementwise || buffer->shape.rank < 2 || choice == 0) return;
    if (choice == 1 || buffer->shape.rank != 4)
        order_axes(o, rows, 0);
    else
        order_axes(o, turned, o->store == TWI_REAL ? 3 : 0);
}

static size_t extent(const twi_operand *o) {
    if (o->store == TWI_BITS) return (size_t)(o->shape.dim[0] * twi_bits_bytes(twi_sample_count(o)));
    int64_t last = 0;
    for (int axis = 0; axis < o->shape.rank; axis++) last += (o->shape.dim[axis] - 1) * o->stride[axis];
    return (size_t)last + 1;
}

static int64_t at(const twi_operand *o, int64_t index) {
    if (o->shape.rank == 0) return 0;
    int64_t sample = twi_sample_count(o);
    return twi_offset(o, index / sample, index % sample);
}

static uint16_t to_half(tw_dtype type, float value) {
    return type == TW_F16 ? twi_f16_from_f32(value) : twi_bf16_from_f32(value);
}
static float from_half(tw_dtype type, uint16_t bits) {
    return type == TW_F16 ? twi_f16_to_f32(bits) : twi_bf16_to_f32(bits);
}

/* As storage would have it. */
static void round_values(const check *c, memory *m) {
    if (m->layout.store != TWI_REAL || c->setting->real == TW_F32) return;
    float *values = m->host;
    for (size_t i = 0; i < m->count; i++) values[i] = from_half(c->setting->real, to_half(c->setting->real, values[i]));
}

/* Device memory with what the host has, `*late` elements into an allocation. */
static void *to_device(const check *c, const memory *m, void **allocation) {
    size_t size = device_size(c, m->layout.store), late = c->setting->unaligned && size > 1 ? LATE : 0;
    MUST(cudaMalloc(allocation, (m->count + late) * size + !m->count)); /* a model without parameters has none */
    char *device = (char *)*allocation + late * size;
    if (size == host_size(m->layout.store)) {
        MUST(cudaMemcpy(device, m->host, m->count * size, cudaMemcpyHostToDevice));
        return device;
    }
    uint16_t *half = malloc(m->count * size);
    assert_non_null(half);
    for (size_t i = 0; i < m->count; i++) half[i] = to_half(c->setting->real, ((const float *)m->host)[i]);
    MUST(cudaMemcpy(device, half, m->count * size, cudaMemcpyHostToDevice));
    free(half);
    return device;
}

static void *from_device(const check *c, const memory *m, const void *device) {
    size_t size = device_size(c, m->layout.store);
    char *found = malloc(m->count * host_size(m->layout.store));
    assert_non_null(found);
    if (size == host_size(m->layout.store)) {
        MUST(cudaMemcpy(found, device, m->count * size, cudaMemcpyDeviceToHost));
        return found;
    }
    uint16_t *half = malloc(m->count * size);
    assert_non_null(half);
    MUST(cudaMemcpy(half, device, m->count * size, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < m->count; i++) ((float *)found)[i] = from_half(c->setting->real, half[i]);
    free(half);
    return found;
}

/* ---- what a program begins with ---- */

static double some_number(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 33) * 0x1p-30 - 1;
}

static void fill(check *c, int index) {
    memory *m = &c->buffer[index];
    const twi_buffer *buffer = &c->program->buffer[index];
    uint64_t state = (uint64_t)index + 1;
    bool positive = strcmp(buffer->name, "moment 2") == 0;
    for (int64_t i = 0; is_float(m->layout.store) && i < twi_shape_count(&m->layout.shape); i++) {
        double value = some_number(&state);
        ((float *)m->host)[at(&m->layout, i)] = (float)(positive ? fabs(value) : value);
    }
    if (c->setting->faults && buffer->source == TWI_SOURCE_FLAT && strstr(buffer->name, "gradients"))
        for (size_t i = m->count / 2; i < m->count; i += 7) ((float *)m->host)[i] = NAN;
}

static void give(check *c, const case_data *data) {
    for (int o = 0; c->graph && o < c->graph->operand_count; o++) {
        const case_operand *operand = &c->graph->operand[o];
        for (int b = 0; b < c->program->buffer_count; b++) {
            const twi_buffer *buffer = &c->program->buffer[b];
            bool fed = c->program->value_buffer[operand->value->id] == b;
            bool kept = buffer->source == TWI_SOURCE_VALUES && buffer->parameter == operand->value->parameter;
            if (!fed && !(kept && operand->value->parameter >= 0)) continue;
            memory *m = &c->buffer[b];
            for (int64_t i = 0; i < operand->count; i++) {
                int64_t offset = at(&m->layout, i);
                double value = data->values[o][i];
                if (operand->classes && c->setting->faults && i % 3 == 2) value = i % 2 ? -5 : (double)operand->classes;
                if (m->layout.store == TWI_I32)
                    ((int32_t *)m->host)[offset] = (int32_t)value;
                else
                    ((float *)m->host)[offset] = (float)value;
            }
        }
    }
}

static void open_memory(check *c, const case_data *data) {
    c->buffer = calloc((size_t)c->program->buffer_count, sizeof *c->buffer);
    assert_non_null(c->buffer);
    for (int b = 0; b < c->program->buffer_count; b++) {
        memory *m = &c->buffer[b];
        lay_out(c, b, &c->program->buffer[b], &m->layout);
        m->count = extent(&m->layout);
        m->host = malloc(m->count * host_size(m->layout.store));
        assert_non_null(m->host);
        memset(m->host, 0xff, m->count * host_size(m->layout.store)); /* floats: not a number */
        fill(c, b);
    }
    give(c, data);
    for (int b = 0; b < c->program->buffer_count; b++) round_values(c, &c->buffer[b]);
}

static void close_memory(check *c) {
    for (int b = 0; b < c->program->buffer_count; b++) free(c->buffer[b].host);
    free(c->buffer);
}

/* ---- comparing ---- */

static void complain(check *c, const twi_step *step, int o, const char *how, int64_t index, double found,
                     double expected) {
    const char *what = o < 0 ? "control" : step->kernel->operand[o].name;
    if ((*c->failures)++ < SHOWN)
        print_error("%s of '%s', %s%s: %s[%lld] is %.9g, expected %.9g\n", step->kernel->name, step->label,
                    c->setting->name, how, what, (long long)index, found, expected);
}

static double tolerance_of(const check *c, const memory *m, double expected, double scale) {
    double rounded = m->layout.store == TWI_REAL ? rounding[c->setting->real] : 0;
    return float_tolerance * scale + rounded * fabs(expected);
}

static double value_of(const memory *m, const void *data, int64_t i) {
    if (m->layout.store == TWI_BITS) {
        int64_t sample = twi_sample_count(&m->layout), n = i / sample;
        return twi_bit_get((const uint8_t *)data + n * twi_bits_bytes(sample), twi_offset(&m->layout, 0, i % sample));
    }
    int64_t offset = at(&m->layout, i);
    if (is_float(m->layout.store)) return (double)((const float *)data)[offset];
    return m->layout.store == TWI_I32 ? ((const int32_t *)data)[offset] : ((const uint8_t *)data)[offset];
}

static void compare(check *c, const twi_step *step, int o, const char *how, const memory *m, const void *found) {
    int64_t count = twi_shape_count(&m->layout.shape);
    double scale = least_scale;
    if (step->kernel->operand[o].reach == TWI_SUMMED)
        scale = sqrt((double)twi_shape_count(&c->buffer[step->operand[0]].layout.shape));
    for (int64_t i = 0; i < count && is_float(m->layout.store); i++) {
        double size = fabs(value_of(m, m->host, i));
        if (isfinite(size) && size > scale) scale = size;
    }
    for (int64_t i = 0; i < count; i++) {
        double a = value_of(m, found, i), b = value_of(m, m->host, i);
        bool same = a == b || (isnan(a) && isnan(b));
        if (!same && !(is_float(m->layout.store) && fabs(a - b) <= tolerance_of(c, m, b, scale)))
            complain(c, step, o, how, i, a, b);
    }
}

static void compare_control(check *c, const twi_step *step, const char *how, const twi_control *found) {
    const twi_control *expected = &c->control;
    const double pairs[][2] = {{(double)found->update, (double)expected->update},
                               {(double)found->attempt, (double)expected->attempt},
                               {found->learning_rate, expected->learning_rate},
                               {found->fault.lock, 0},
                               {found->fault.code, expected->fault.code},
                               {found->fault.node, expected->fault.node},
                               {(double)found->fault.sample, (double)expected->fault.sample},
                               {found->fault.value, expected->fault.value},
                               {found->bad_loss, expected->bad_loss},
                               {found->guard.scale, expected->guard.scale},
                               {(double)found->guard.good, (double)expected->guard.good},
                               {(double)found->guard.skipped, (double)expected->guard.skipped},
                               {(double)found->guard.in_a_row, (double)expected->guard.in_a_row},
                               {found->guard.used, expected->guard.used},
                               {found->guard.norm, expected->guard.norm},
                               {found->guard.factor, expected->guard.factor},
                               {found->guard.value, expected->guard.value},
                               {(double)found->guard.place, (double)expected->guard.place},
                               {found->guard.bad_loss, expected->guard.bad_loss},
                               {found->guard.refused, expected->guard.refused}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        double a = pairs[i][0], b = pairs[i][1];
        if (a != b && !(fabs(a - b) <= 1e-12 * fabs(b)) && !(isnan(a) && isnan(b)))
            complain(c, step, -1, how, (int64_t)i, a, b);
    }
}

/* ---- a step ---- */

static void make_call(const check *c, const twi_step *step, twi_call *call) {
    twi_program_call(c->program, step, 0, call);
    call->stream = 0x1234567;
    call->node = step->node ? step->node->id : -1;
    for (int o = 0; o < call->operand_count; o++)
        if (step->operand[o] >= 0) call->operand[o] = c->buffer[step->operand[o]].layout;
}

static void clear_sums(const check *c, const twi_step *step) {
    for (int o = 0; o < step->kernel->operand_count; o++) {
        if (step->operand[o] < 0 || step->kernel->operand[o].reach != TWI_SUMMED) continue;
        memory *m = &c->buffer[step->operand[o]];
        memset(m->host, 0, m->count * host_size(m->layout.store));
    }
}

static void run_specification(check *c, const twi_step *step, twi_call *call) {
    clear_sums(c, step);
    call->control = &c->control;
    for (int o = 0; o < call->operand_count; o++)
        if (step->operand[o] >= 0) call->operand[o].data = c->buffer[step->operand[o]].host;
    step->kernel->run(call);
    for (int o = 0; o < call->operand_count; o++)
        if (step->operand[o] >= 0) round_values(c, &c->buffer[step->operand[o]]);
}

/* Which input's memory an output may take here: with the same layout. -1: none. */
static int lies_over(const check *c, const twi_step *step, int o) {
    int over = step->kernel->operand[o].over - 1;
    if (over < 0 || step->operand[o] < 0 || step->operand[over] < 0) return -1;
    const memory *y = &c->buffer[step->operand[o]], *x = &c->buffer[step->operand[over]];
    return memcmp(y->layout.stride, x->layout.stride, sizeof y->layout.stride) == 0 ? over : -1;
}

/* Images, labels and order of the data set that a program gathers from. */
enum { IMAGES, LABELS, ORDER, RESIDENT };

/* Device memory of a call before it runs. */
typedef struct on_device {
    void *allocation[TWI_MAX_OPERANDS], *workspace, *resident[RESIDENT];
    twi_control *control;
    twi_call call;
} on_device;

static void *copy_to_device(const void *host, size_t bytes) {
    void *device;
    MUST(cudaMalloc(&device, bytes));
    MUST(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
    return device;
}

/* The control block as the device has it. */
static void send_control(const check *c, on_device *d) {
    twi_control control = c->control;
    const tw_resident *set = c->program->source.resident;
    if (set) {
        const twi_sample_kind *kind = &set->kind;
        size_t sample = (size_t)kind->channels * (size_t)kind->height * (size_t)kind->width;
        const size_t bytes[RESIDENT] = {(size_t)set->count * sample * tw_dtype_size(kind->dtype),
                                        (size_t)set->count * sizeof(int32_t), (size_t)set->ordered * sizeof(int32_t)};
        control.resident.images = d->resident[IMAGES] = copy_to_device(control.resident.images, bytes[IMAGES]);
        control.resident.labels = d->resident[LABELS] = copy_to_device(control.resident.labels, bytes[LABELS]);
        control.resident.order = d->resident[ORDER] = copy_to_device(control.resident.order, bytes[ORDER]);
    }
    d->control = copy_to_device(&control, sizeof control);
    d->call.control = d->control;
}

static void prepare(const check *c, const twi_step *step, const twk_entry *entry, bool in_place, on_device *d) {
    make_call(c, step, &d->call);
    size_t bytes = entry->workspace ? entry->workspace(&d->call) : 0;
    MUST(cudaMalloc(&d->workspace, bytes + 1));
    MUST(cudaMemset(d->workspace, 0xff, bytes + 1));
    send_control(c, d);
    for (int o = 0; o < d->call.operand_count; o++) {
        int over = in_place ? lies_over(c, step, o) : -1;
        if (step->operand[o] < 0) continue;
        if (over >= 0)
            d->call.operand[o].data = d->call.operand[over].data;
        else
            d->call.operand[o].data = to_device(c, &c->buffer[step->operand[o]], &d->allocation[o]);
    }
}

static void run_entry(check *c, const twi_step *step, const twk_entry *entry, on_device *d) {
    const char *reason = entry->refuse ? entry->refuse(&d->call) : NULL;
    if (reason) fail_msg("%s refuses: %s", step->kernel->name, reason);
    const twk_launch launch = {c->stream, d->workspace, 4};
    cudaError_t error = entry->run(&d->call, &launch);
    if (error == cudaSuccess) error = cudaStreamSynchronize(c->stream);
    if (error != cudaSuccess) fail_msg("%s: %s", step->kernel->name, cudaGetErrorString(error));
}

/* After the specification ran: its results are the host's. */
static void judge(check *c, const twi_step *step, const char *how, on_device *d) {
    twi_control control;
    MUST(cudaMemcpy(&control, d->control, sizeof control, cudaMemcpyDeviceToHost));
    compare_control(c, step, how, &control);
    for (int o = 0; o < d->call.operand_count; o++) {
        if (step->operand[o] < 0 || step->kernel->operand[o].access == TWI_READ) continue;
        const memory *m = &c->buffer[step->operand[o]];
        void *found = from_device(c, m, d->call.operand[o].data);
        compare(c, step, o, how, m, found);
        free(found);
    }
    for (int o = 0; o < d->call.operand_count; o++) MUST(cudaFree(d->allocation[o]));
    for (int i = 0; i < RESIDENT; i++) MUST(cudaFree(d->resident[i]));
    MUST(cudaFree(d->workspace));
    MUST(cudaFree(d->control));
}

static bool may_be_in_place(const check *c, const twi_step *step) {
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (lies_over(c, step, o) >= 0) return true;
    return false;
}

static void note(kernel_seen *seen, const char *name) {
    for (int i = 0; i < seen->count; i++)
        if (strcmp(seen->name[i], name) == 0) return;
    seen->name[seen->count++] = name;
}

static void check_step(check *c, const twi_step *step, kernel_seen *seen) {
    const twk_entry *entry = twi_cuda_find_entry(step->kernel->name);
    if (!entry) fail_msg("no kernel is called %s", step->kernel->name);
    note(seen, entry->kernel);
    on_device apart = {0}, in_place = {0};
    bool twice = may_be_in_place(c, step);
    twi_call call;
    make_call(c, step, &call);
    prepare(c, step, entry, false, &apart);
    if (twice) prepare(c, step, entry, true, &in_place);
    run_entry(c, step, entry, &apart);
    if (twice) run_entry(c, step, entry, &in_place);
    run_specification(c, step, &call);
    judge(c, step, "", &apart);
    if (twice) judge(c, step, ", in place", &in_place);
}

void kernel_check(const case_graph *graph, const tw_program *program, const case_data *data,
                  const kernel_setting *setting, kernel_seen *seen, int *failures) {
    check c = {.graph = graph, .program = program, .setting = setting, .failures = failures};
    c.control = (twi_control){
        .seed = 7, .attempt = 3, .update = 5, .learning_rate = 0.1, .micro = setting->micro, .slot = setting->slot};
    c.control.sample_weight = 1.0 / (double)program->batch;
    c.control.guard = (twi_guard){.scale = 8, .used = 1, .factor = 0.25, .place = -1};
    c.control.window_sample = (int64_t)setting->micro * program->batch;
    if (program->source.resident) c.control.resident = program->source.resident->view;
    MUST(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking));
    open_memory(&c, data);
    for (int s = 0; s < program->step_count; s++) check_step(&c, &program->step[s], seen);
    close_memory(&c);
    MUST(cudaStreamDestroy(c.stream));
}
