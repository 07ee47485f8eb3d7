/* Resident data sets as objects: samples, labels and the order of an epoch in device memory. How a program takes its
 * batches from one is in source.c. */
#include "resident.h"
#include "base/dtype_text.h"

static tw_status copy(tw_resident *resident, int index, const void *host, size_t bytes, const char *what) {
    tw_context *context = resident->context;
    TWI_TRY(context->backend->get(context, &resident->copies[index], bytes, what));
    return context->backend->copy_in(context, resident->copies[index], host, bytes);
}

static size_t index_bytes(const tw_resident *resident) { return (size_t)resident->count * sizeof(int32_t); }

static size_t image_bytes(const tw_resident *resident) {
    const twi_sample_kind *kind = &resident->kind;
    return (size_t)resident->count * (size_t)kind->channels * (size_t)kind->height * (size_t)kind->width *
           tw_dtype_size(kind->dtype);
}

tw_status twi_resident_weigh(const tw_resident *resident, size_t *out) {
    *out = index_bytes(resident); /* its order, where the samples are read in place */
    if (resident->context->backend->host_memory) return TW_OK;
    return twi_add_size(out, image_bytes(resident), 2 * index_bytes(resident), "resident set");
}

tw_status twi_resident_place(tw_resident *resident) {
    const twi_backend *backend = resident->context->backend;
    void *order;
    TWI_TRY(backend->get(resident->context, &order, index_bytes(resident), "order of a resident set"));
    resident->order = order;
    resident->view = (twi_resident_view){.images = resident->images, .labels = resident->labels, .order = order};
    if (backend->host_memory) return TW_OK;
    TWI_TRY(copy(resident, 0, resident->images, image_bytes(resident), "resident samples"));
    TWI_TRY(copy(resident, 1, resident->labels, index_bytes(resident), "resident labels"));
    resident->view.images = resident->copies[0];
    resident->view.labels = resident->copies[1];
    resident->images = NULL; /* from here on the caller's arrays are no longer needed */
    resident->labels = NULL;
    return TW_OK;
}

static tw_status check_samples(const twi_shape *shape, tw_dtype dtype) {
    char type[TWI_DTYPE_TEXT];
    if (dtype != TW_U8 && dtype != TW_F32)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_resident_create: samples are %s; give u8 or f32",
                        twi_dtype_text(dtype, type));
    for (int axis = 0; axis < shape->rank; axis++)
        if (shape->dim[axis] < 1) {
            char text[TWI_SHAPE_TEXT];
            return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_resident_create: %s has an axis below 1",
                            twi_shape_text(shape, text));
        }
    if (shape->dim[0] >= INT32_MAX)
        return TWI_FAIL(TW_ERROR_UNSUPPORTED,
                        "tw_resident_create: %lld samples; a set takes fewer than %d: use several sets",
                        (long long)shape->dim[0], INT32_MAX);
    return twi_shape_check(shape, "tw_resident_create: samples");
}

tw_status twi_resident_describe(tw_resident **out, tw_context *context, tw_dtype dtype, const void *images,
                                int64_t count, int channels, int height, int width, const int32_t *labels) {
    *out = NULL;
    if (!context || !images || !labels)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_resident_create: %s is NULL",
                        !context  ? "context"
                        : !images ? "images"
                                  : "labels");
    const twi_shape shape = {4, {count, channels, height, width}};
    TWI_TRY(check_samples(&shape, dtype));
    tw_resident *resident;
    TWI_TRY(twi_get(context->memory, &resident, 1, sizeof *resident, "resident set"));
    resident->context = context;
    resident->kind = (twi_sample_kind){dtype, channels, height, width};
    resident->count = count;
    resident->images = images;
    resident->labels = labels;
    *out = resident;
    return TW_OK;
}

tw_status tw_resident_create(tw_resident **out, tw_context *context, tw_dtype dtype, const void *images, int64_t count,
                             int channels, int height, int width, const int32_t *labels) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_resident_create: out is NULL");
    tw_resident *resident;
    *out = NULL;
    TWI_TRY(twi_resident_describe(&resident, context, dtype, images, count, channels, height, width, labels));
    tw_status status = twi_resident_place(resident);
    if (status) {
        tw_resident_destroy(resident);
        return status;
    }
    *out = resident;
    return TW_OK;
}

void tw_resident_destroy(tw_resident *resident) {
    if (!resident) return;
    tw_context *context = resident->context;
    void *const owned[] = {resident->order, resident->copies[0], resident->copies[1]};
    for (int i = 0; i < 3; i++) context->backend->put(context, owned[i]);
    twi_put(context->memory, resident);
}

int64_t tw_resident_count(const tw_resident *resident) { return resident ? resident->count : 0; }

int64_t tw_resident_get_position(const tw_resident *resident) {
    return resident ? (int64_t)resident->view.position : 0;
}

tw_status tw_resident_set_order(tw_resident *resident, int64_t epoch, const int32_t *indices, int64_t count) {
    if (!resident || !indices)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_resident_set_order: %s is NULL", resident ? "indices" : "resident");
    if (epoch < 0)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_resident_set_order: epoch is %lld; they count from 0", (long long)epoch);
    if (count < 0 || count > resident->count)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_resident_set_order: count is %lld; give 0 .. %lld, the set's samples",
                        (long long)count, (long long)resident->count);
    for (int64_t i = 0; i < count; i++)
        if (indices[i] < 0 || indices[i] >= resident->count)
            return TWI_FAIL(TW_ERROR_ARGUMENT,
                            "tw_resident_set_order: indices[%lld] is %d; the set has samples 0 .. %lld", (long long)i,
                            (int)indices[i], (long long)resident->count - 1);
    TWI_TRY(resident->context->backend->copy_in(resident->context, resident->order, indices,
                                                (size_t)count * sizeof *indices));
    resident->ordered = count;
    resident->view.epoch = (uint64_t)epoch;
    resident->view.position = 0;
    return TW_OK;
}
