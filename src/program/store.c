/* The flat arrays of the parameter store and their conversion to and from logical order. */
#include "store.h"

#include <string.h>

enum { ALIGN_ELEMENTS = 16 }; /* 64 bytes: every parameter starts on a cache line */

void twi_store_init(twi_store *store, tw_context *context, size_t real_size) {
    memset(store, 0, sizeof *store);
    store->guard.place = -1;
    store->context = context;
    store->real_size = real_size;
}

typedef struct arrays {
    void **at[TWI_STORE_ARRAYS];
} arrays;

static arrays list_arrays(twi_store *store) {
    return (arrays){{&store->weights, &store->gradients, &store->gradient_sums, &store->moment[0], &store->moment[1],
                     &store->moment[2], &store->buffers, &store->shadows, (void **)&store->control,
                     &store->snapshot.weights, &store->snapshot.buffers, &store->snapshot.moment[0],
                     &store->snapshot.moment[1], &store->snapshot.moment[2], &store->half_weights[TW_F16],
                     &store->half_weights[TW_BF16], &store->half_gradients[TW_F16], &store->half_gradients[TW_BF16]}};
}

twi_store_mark twi_store_note(twi_store *store) {
    const arrays a = list_arrays(store);
    twi_store_mark mark;
    for (int i = 0; i < TWI_STORE_ARRAYS; i++) mark.there[i] = *a.at[i];
    return mark;
}

void twi_store_return(twi_store *store, const twi_store_mark *mark) {
    const arrays a = list_arrays(store);
    for (int i = 0; i < TWI_STORE_ARRAYS; i++) {
        if (mark->there[i]) continue;
        store->context->backend->put(store->context, *a.at[i]);
        *a.at[i] = NULL;
    }
    if (!store->snapshot.weights) store->snapshot.at = (twi_snapshot_mark){0};
}

void twi_store_drop(twi_store *store) { twi_store_return(store, &(twi_store_mark){{false}}); }

void twi_store_free(twi_store *store) {
    twi_store_drop(store);
    for (int i = 0; i < store->alias_count; i++) twi_put(store->context->memory, store->alias[i].name);
    twi_put(store->context->memory, store->alias);
    twi_put(store->context->memory, store->parameter);
    memset(store, 0, sizeof *store);
}

tw_status twi_store_add(twi_store *store, const twi_parameter *parameter, int *index) {
    if (store->weights)
        return TWI_FAIL(TW_ERROR_STATE, "parameter '%s': the model is built; add layers before tw_model_build",
                        parameter->name);
    if (store->count == store->capacity) {
        int grown = store->capacity ? 2 * store->capacity : 64;
        TWI_TRY(twi_grow(store->context->memory, &store->parameter, (size_t)grown, sizeof *store->parameter,
                         "parameter records"));
        store->capacity = grown;
    }
    int64_t *total = parameter->learned ? &store->learned_count : &store->buffer_count;
    int64_t count = twi_shape_count(&parameter->shape);
    if (count > INT64_MAX / 64 - *total)
        return TWI_FAIL(TW_ERROR_OVERFLOW, "parameter '%s': the parameters together are too large to address",
                        parameter->name);
    twi_parameter *record = &store->parameter[store->count];
    *record = *parameter;
    record->offset = *total;
    *total += (count + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
    *index = store->count++;
    return TW_OK;
}

tw_status twi_store_add_alias(twi_store *store, const char *name, int index) {
    twi_memory *memory = store->context->memory;
    if (store->alias_count == store->alias_capacity) {
        int grown = store->alias_capacity ? 2 * store->alias_capacity : 8;
        TWI_TRY(twi_grow(memory, &store->alias, (size_t)grown, sizeof *store->alias, "names of shared parameters"));
        store->alias_capacity = grown;
    }
    twi_alias *alias = &store->alias[store->alias_count];
    TWI_TRY(twi_get_text(memory, &alias->name, name));
    alias->parameter = index;
    store->alias_count++;
    return TW_OK;
}

int twi_store_find(const twi_store *store, const char *name) {
    for (int i = 0; i < store->count; i++)
        if (strcmp(store->parameter[i].name, name) == 0) return i;
    for (int i = 0; i < store->alias_count; i++)
        if (strcmp(store->alias[i].name, name) == 0) return store->alias[i].parameter;
    return -1;
}

void twi_store_strides(const twi_shape *shape, int64_t stride[TW_MAX_RANK]) {
    if (shape->rank != 4) {
        twi_shape_row_major(shape, stride);
        return;
    }
    /* O,I,H,W stored as O,H,W,I: what NHWC convolutions read */
    static const int order[4] = {1, 3, 2, 0};
    int64_t step = 1;
    for (int i = 0; i < 4; i++) {
        stride[order[i]] = step;
        step *= shape->dim[order[i]];
    }
}

const char *twi_store_name_at(const twi_store *store, int64_t element) {
    const char *name = "";
    for (int i = 0; i < store->count; i++)
        if (store->parameter[i].learned && store->parameter[i].offset <= element) name = store->parameter[i].name;
    return name;
}

void *twi_store_at(const twi_store *store, void *array, int index) {
    return (char *)array + (size_t)store->parameter[index].offset * store->real_size;
}

void *twi_store_half_at(const twi_store *store, void *array, int index) {
    return (char *)array + (size_t)store->parameter[index].offset * 2;
}

void *twi_store_values(const twi_store *store, int index) {
    return store->parameter[index].learned ? store->weights : store->buffers;
}

/* A run of elements whose values lie in a row, and that are stored `stride` apart. */
typedef void (*run_fn)(void *stored, size_t real_size, int64_t at, int64_t stride, float *values, int64_t count);

static void run_out(void *stored, size_t real_size, int64_t at, int64_t stride, float *values, int64_t count) {
    if (real_size == sizeof(double))
        for (int64_t i = 0; i < count; i++) values[i] = (float)((double *)stored)[at + i * stride];
    else if (stride == 1)
        memcpy(values, (float *)stored + at, (size_t)count * sizeof *values);
    else
        for (int64_t i = 0; i < count; i++) values[i] = ((float *)stored)[at + i * stride];
}

static void run_in(void *stored, size_t real_size, int64_t at, int64_t stride, float *values, int64_t count) {
    if (real_size == sizeof(double))
        for (int64_t i = 0; i < count; i++) ((double *)stored)[at + i * stride] = values[i];
    else if (stride == 1)
        memcpy((float *)stored + at, values, (size_t)count * sizeof *values);
    else
        for (int64_t i = 0; i < count; i++) ((float *)stored)[at + i * stride] = values[i];
}

/* A parameter's axes, with those that lie as one made one: the fewer there are, the longer are the runs. */
typedef struct axes {
    int count;
    int64_t length[TW_MAX_RANK], stride[TW_MAX_RANK];
} axes;

static axes merge_axes(const twi_shape *shape) {
    int64_t stride[TW_MAX_RANK];
    axes a = {.count = 1, .length = {1}, .stride = {1}};
    twi_store_strides(shape, stride);
    for (int axis = 0; axis < shape->rank; axis++) {
        const int64_t length = shape->dim[axis];
        if (length == 1) continue;
        const bool joins = a.length[a.count - 1] == 1 || a.stride[a.count - 1] == length * stride[axis];
        if (!joins) a.length[a.count++] = 1;
        a.length[a.count - 1] *= length;
        a.stride[a.count - 1] = stride[axis];
    }
    return a;
}

static void each_run(const twi_shape *shape, void *stored, size_t real_size, float *values, run_fn fn) {
    const axes a = merge_axes(shape);
    const int last = a.count - 1;
    int64_t position[TW_MAX_RANK] = {0}, count = twi_shape_count(shape), at = 0;
    for (int64_t i = 0; i < count; i += a.length[last]) {
        fn(stored, real_size, at, a.stride[last], values + i, a.length[last]);
        for (int axis = last - 1; axis >= 0; axis--) {
            at += a.stride[axis];
            if (++position[axis] < a.length[axis]) break;
            at -= position[axis] * a.stride[axis];
            position[axis] = 0;
        }
    }
}

tw_status twi_store_read(const twi_store *store, const void *array, int index, float *values) {
    const twi_parameter *parameter = &store->parameter[index];
    tw_context *context = store->context;
    size_t bytes = (size_t)twi_shape_count(&parameter->shape) * store->real_size;
    void *stored;
    TWI_TRY(twi_get(context->memory, &stored, 1, bytes, parameter->name));
    tw_status status = context->backend->copy_out(
        context, stored, (const char *)array + (size_t)parameter->offset * store->real_size, bytes);
    if (status == TW_OK) each_run(&parameter->shape, stored, store->real_size, values, run_out);
    twi_put(context->memory, stored);
    return status;
}

tw_status twi_store_write_through(twi_store *store, void *array, int index, const float *values, void *scratch) {
    const twi_shape *shape = &store->parameter[index].shape;
    each_run(shape, scratch, store->real_size, (float *)values, run_in);
    twi_store_written(store);
    return store->context->backend->copy_in(store->context, twi_store_at(store, array, index), scratch,
                                            (size_t)twi_shape_count(shape) * store->real_size);
}

tw_status twi_store_write(twi_store *store, void *array, int index, const float *values) {
    const twi_parameter *parameter = &store->parameter[index];
    twi_memory *memory = store->context->memory;
    void *scratch;
    TWI_TRY(twi_get(memory, &scratch, (size_t)twi_shape_count(&parameter->shape), store->real_size, parameter->name));
    tw_status status = twi_store_write_through(store, array, index, values, scratch);
    twi_put(memory, scratch);
    return status;
}

static tw_status get_array(twi_store *store, void *out, int64_t count, const char *what) {
    size_t bytes;
    TWI_TRY(twi_mul_size(&bytes, (size_t)count, store->real_size, what));
    return store->context->backend->get(store->context, out, bytes ? bytes : 1, what);
}

tw_status twi_store_build(twi_store *store) {
    TWI_TRY(get_array(store, &store->weights, store->learned_count, "parameters"));
    TWI_TRY(get_array(store, &store->buffers, store->buffer_count, "running statistics"));
    TWI_TRY(get_array(store, &store->shadows, store->buffer_count, "shadows of running statistics"));
    return store->context->backend->get(store->context, (void **)&store->control, sizeof *store->control,
                                        "control block");
}

tw_status twi_store_need_gradients(twi_store *store) {
    return store->gradients ? TW_OK : get_array(store, &store->gradients, store->learned_count, "gradients");
}

tw_status twi_store_need_gradient_sums(twi_store *store) {
    return store->gradient_sums ? TW_OK
                                : get_array(store, &store->gradient_sums, store->learned_count, "gradient sums");
}

static tw_status need_half(twi_store *store, void **array, const char *what) {
    size_t bytes;
    if (*array) return TW_OK;
    TWI_TRY(twi_mul_size(&bytes, (size_t)store->learned_count, 2, what));
    return store->context->backend->get(store->context, array, bytes ? bytes : 1, what);
}

tw_status twi_store_need_half_weights(twi_store *store, tw_dtype half) {
    if (store->half_weights[half]) return TW_OK;
    store->half_stale[half] = true;
    return need_half(store, &store->half_weights[half], "parameters in half precision");
}

tw_status twi_store_need_half_gradients(twi_store *store, tw_dtype half) {
    return need_half(store, &store->half_gradients[half], "gradients in half precision");
}

void twi_store_updated(twi_store *store, tw_dtype half) {
    for (int h = TW_F16; h < TWI_HALVES; h++)
        if (h != (int)half) store->half_stale[h] = true;
}

void twi_store_written(twi_store *store) {
    store->version++;
    twi_store_updated(store, TW_F32);
}

tw_status twi_store_refresh(twi_store *store, tw_dtype half) {
    if (!store->half_stale[half]) return TW_OK;
    TWI_TRY(store->context->backend->narrow(store->context, store->half_weights[half], half, store->weights,
                                            store->learned_count));
    store->half_stale[half] = false;
    return TW_OK;
}

tw_status twi_store_need_moments(twi_store *store, twi_moments moments) {
    for (int i = moments.first; i < moments.first + moments.count; i++)
        if (!store->moment[i]) TWI_TRY(get_array(store, &store->moment[i], store->learned_count, "optimizer state"));
    return TW_OK;
}
