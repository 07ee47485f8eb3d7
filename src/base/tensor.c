/* Tensors in host memory: reference-counted storage, and views of it by offset and strides. Arithmetic on tensors is
 * left to programs. */
#include "context.h"
#include "half.h"
#include "philox.h"
#include "shape.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <talweg/tensor.h>

typedef struct storage {
    twi_memory *memory;
    char *data;
    int64_t references;
} storage;

struct tw_tensor {
    storage *storage;
    tw_dtype dtype;
    twi_shape shape;
    int64_t stride[TW_MAX_RANK]; /* in elements */
    int64_t offset;              /* of the first element, in elements */
};

/* --- places of elements --- */

/* Elements that lie side by side in row-major order; *outer becomes the number of leading axes that step over such
 * runs. */
static int64_t run_length(const tw_tensor *tensor, int *outer) {
    int64_t run = 1;
    int axis = tensor->shape.rank;
    for (; axis > 0; axis--) {
        int64_t dim = tensor->shape.dim[axis - 1];
        if (dim != 1 && tensor->stride[axis - 1] != run) break;
        run *= dim;
    }
    *outer = axis;
    return run;
}

static bool is_contiguous(const tw_tensor *tensor) {
    int outer;
    run_length(tensor, &outer);
    return outer == 0 || twi_shape_count(&tensor->shape) == 0;
}

static char *element(const tw_tensor *tensor, int64_t place) {
    return tensor->storage->data + (size_t)(tensor->offset + place) * tw_dtype_size(tensor->dtype);
}

/* `count` elements side by side, the first of which is number `position` in row-major order. */
typedef void (*run_fn)(void *argument, char *elements, int64_t position, int64_t count);

static void for_each_run(const tw_tensor *tensor, run_fn visit, void *argument) {
    int outer;
    int64_t count = twi_shape_count(&tensor->shape), run = run_length(tensor, &outer);
    for (int64_t position = 0; position < count; position += run) {
        int64_t place = 0, index = position / run;
        for (int axis = outer - 1; axis >= 0; axis--) {
            place += index % tensor->shape.dim[axis] * tensor->stride[axis];
            index /= tensor->shape.dim[axis];
        }
        visit(argument, element(tensor, place), position, run);
    }
}

/* --- creation --- */

/* Checks what the caller gave as a shape and copies it. */
static tw_status shape_from(twi_shape *out, int rank, const int64_t *dims, const char *what) {
    out->rank = rank;
    if (rank > 0 && !dims) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: dims is NULL, expected %d numbers", what, rank);
    for (int axis = 0; axis < rank && axis < TW_MAX_RANK; axis++) out->dim[axis] = dims[axis];
    return twi_shape_check(out, what);
}

static tw_status create(tw_tensor **out, twi_memory *memory, tw_dtype dtype, const twi_shape *shape, const char *what) {
    storage *store = NULL;
    tw_tensor *tensor = NULL;
    tw_status status;
    if (!tw_dtype_size(dtype))
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: unknown element type %d, expected one of tw_dtype", what, (int)dtype);
    TWI_TRY_GOTO(twi_get(memory, &tensor, 1, sizeof *tensor, what), failed);
    TWI_TRY_GOTO(twi_get(memory, &store, 1, sizeof *store, what), failed);
    TWI_TRY_GOTO(twi_get(memory, &store->data, (size_t)twi_shape_count(shape), tw_dtype_size(dtype), what), failed);
    store->memory = memory;
    store->references = 1;
    tensor->storage = store;
    tensor->dtype = dtype;
    tensor->shape = *shape;
    twi_shape_row_major(&tensor->shape, tensor->stride);
    *out = tensor;
    return TW_OK;
failed:
    twi_put(memory, store);
    twi_put(memory, tensor);
    return status;
}

static tw_status create_checked(tw_tensor **out, tw_context *context, tw_dtype dtype, int rank, const int64_t *dims,
                                const char *what) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: out is NULL, expected the address of a tensor pointer", what);
    *out = NULL;
    if (!context) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: context is NULL, expected one from tw_context_create", what);
    twi_shape shape;
    TWI_TRY(shape_from(&shape, rank, dims, what));
    return create(out, context->memory, dtype, &shape, what);
}

tw_status tw_tensor_create(tw_tensor **out, tw_context *context, tw_dtype dtype, int rank, const int64_t *dims) {
    return create_checked(out, context, dtype, rank, dims, "tw_tensor_create");
}

tw_status tw_tensor_create_from(tw_tensor **out, tw_context *context, tw_dtype dtype, int rank, const int64_t *dims,
                                const void *data) {
    const char *what = "tw_tensor_create_from";
    if (out && !data) {
        *out = NULL;
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: data is NULL; tw_tensor_create makes a tensor of zeros", what);
    }
    TWI_TRY(create_checked(out, context, dtype, rank, dims, what));
    memcpy((*out)->storage->data, data, (size_t)tw_tensor_count(*out) * tw_dtype_size(dtype));
    return TW_OK;
}

/* Rounding to f32 may reach b, which [a, b) leaves out. */
static float uniform_between(float a, float b, uint32_t word) {
    float x = (float)(a + ((double)b - a) * twi_uniform(word));
    return x < b ? x : nextafterf(b, a);
}

static float normal(float mean, float deviation, const uint32_t words[4]) {
    float pair[2];
    twi_normal2(words[0], words[1], pair);
    return (float)(mean + (double)deviation * pair[0]);
}

tw_status tw_tensor_create_random(tw_tensor **out, tw_context *context, int rank, const int64_t *dims, tw_random kind,
                                  float a, float b, uint64_t seed) {
    const char *what = "tw_tensor_create_random";
    if (out) *out = NULL;
    if (kind != TW_RANDOM_UNIFORM && kind != TW_RANDOM_NORMAL)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: unknown kind %d, expected one of tw_random", what, (int)kind);
    if (!isfinite(a) || !isfinite(b) || (kind == TW_RANDOM_UNIFORM ? !(a < b) : b < 0))
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: a = %g, b = %g, expected finite %s", what, (double)a, (double)b,
                        kind == TW_RANDOM_UNIFORM ? "a < b" : "mean a and standard deviation b >= 0");
    TWI_TRY(create_checked(out, context, TW_F32, rank, dims, what));
    float *data = tw_tensor_data(*out);
    int64_t count = tw_tensor_count(*out);
    for (int64_t i = 0; i < count; i++) {
        uint32_t words[4];
        twi_draw(seed, TWI_PURPOSE_TENSOR, 0, (uint64_t)i, words);
        data[i] = kind == TW_RANDOM_UNIFORM ? uniform_between(a, b, words[0]) : normal(a, b, words);
    }
    return TW_OK;
}

void tw_tensor_destroy(tw_tensor *tensor) {
    if (!tensor) return;
    storage *store = tensor->storage;
    twi_memory *memory = store->memory;
    twi_put(memory, tensor);
    if (--store->references == 0) {
        twi_put(memory, store->data);
        twi_put(memory, store);
    }
}

/* --- what a tensor is --- */

tw_dtype tw_tensor_get_dtype(const tw_tensor *tensor) { return tensor ? tensor->dtype : TW_F32; }

int tw_tensor_get_rank(const tw_tensor *tensor) { return tensor ? tensor->shape.rank : 0; }

int64_t tw_tensor_get_dim(const tw_tensor *tensor, int axis) {
    return axis >= 0 && axis < tw_tensor_get_rank(tensor) ? tensor->shape.dim[axis] : 0;
}

int64_t tw_tensor_count(const tw_tensor *tensor) { return tensor ? twi_shape_count(&tensor->shape) : 0; }

void *tw_tensor_data(tw_tensor *tensor) { return tensor && is_contiguous(tensor) ? element(tensor, 0) : NULL; }

/* --- elements in and out --- */

static tw_status check_transfer(const tw_tensor *tensor, const void *host, int64_t count, const char *what) {
    if (!tensor || !host)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: the %s is NULL", what, tensor ? "host array" : "tensor");
    if (count != tw_tensor_count(tensor)) {
        char text[TWI_SHAPE_TEXT];
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "%s: count is %" PRId64 ", but the tensor %s has %" PRId64 " elements; pass tw_tensor_count",
                        what, count, twi_shape_text(&tensor->shape, text), tw_tensor_count(tensor));
    }
    return TW_OK;
}

typedef struct transfer {
    char *host;
    const char *host_source;
    size_t size; /* bytes of an element */
} transfer;

static void read_run(void *argument, char *elements, int64_t position, int64_t count) {
    const transfer *t = argument;
    memcpy(t->host + (size_t)position * t->size, elements, (size_t)count * t->size);
}

static void write_run(void *argument, char *elements, int64_t position, int64_t count) {
    const transfer *t = argument;
    memcpy(elements, t->host_source + (size_t)position * t->size, (size_t)count * t->size);
}

tw_status tw_tensor_read(const tw_tensor *tensor, void *destination, int64_t count) {
    TWI_TRY(check_transfer(tensor, destination, count, "tw_tensor_read"));
    for_each_run(tensor, read_run, &(transfer){.host = destination, .size = tw_dtype_size(tensor->dtype)});
    return TW_OK;
}

tw_status tw_tensor_write(tw_tensor *tensor, const void *source, int64_t count) {
    TWI_TRY(check_transfer(tensor, source, count, "tw_tensor_write"));
    for_each_run(tensor, write_run, &(transfer){.host_source = source, .size = tw_dtype_size(tensor->dtype)});
    return TW_OK;
}

typedef struct conversion {
    tw_tensor *to;
    tw_dtype from;
} conversion;

static void convert_run(void *argument, char *elements, int64_t position, int64_t count) {
    const conversion *c = argument;
    twi_convert(element(c->to, position), c->to->dtype, elements, c->from, count);
}

tw_status tw_tensor_cast(tw_tensor **out, const tw_tensor *tensor, tw_dtype dtype) {
    if (out) *out = NULL;
    if (!out || !tensor) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_tensor_cast: %s is NULL", out ? "tensor" : "out");
    TWI_TRY(create(out, tensor->storage->memory, dtype, &tensor->shape, "tw_tensor_cast"));
    for_each_run(tensor, convert_run, &(conversion){.to = *out, .from = tensor->dtype});
    return TW_OK;
}

/* --- views --- */

static tw_status create_view(tw_tensor **out, tw_tensor *tensor, const char *what) {
    TWI_TRY(twi_get(tensor->storage->memory, out, 1, sizeof **out, what));
    **out = *tensor;
    tensor->storage->references++;
    return TW_OK;
}

/* Replaces the one -1 in *shape, if there is one, by what the other dims leave of `count` elements. */
static tw_status work_out_dim(twi_shape *shape, int64_t count, const char *what) {
    int open = -1;
    for (int axis = 0; axis < shape->rank; axis++) {
        if (shape->dim[axis] != -1) continue;
        if (open >= 0)
            return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: axes %d and %d are both -1, expected one at most", what, open,
                            axis);
        open = axis;
    }
    if (open < 0) return TW_OK;
    shape->dim[open] = 1;
    TWI_TRY(twi_shape_check(shape, what));
    int64_t others = twi_shape_count(shape);
    if (others == 0 || count % others)
        return TWI_FAIL(TW_ERROR_SHAPE,
                        "%s: axis %d (-1) cannot be worked out: %" PRId64 " elements are not a multiple "
                        "of the %" PRId64 " that the other dims hold",
                        what, open, count, others);
    shape->dim[open] = count / others;
    return TW_OK;
}

tw_status tw_tensor_reshape(tw_tensor **out, tw_tensor *tensor, int rank, const int64_t *dims) {
    const char *what = "tw_tensor_reshape";
    if (out) *out = NULL;
    if (!out || !tensor || (rank > 0 && !dims))
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: %s is NULL", what, !out ? "out" : !tensor ? "tensor" : "dims");
    if (!is_contiguous(tensor))
        return TWI_FAIL(TW_ERROR_STATE,
                        "%s: the tensor is a view with gaps between its elements; make a copy of it first, "
                        "with tw_tensor_cast to its own type",
                        what);
    twi_shape shape = {.rank = rank};
    for (int axis = 0; axis < rank && axis < TW_MAX_RANK; axis++) shape.dim[axis] = dims[axis];
    int64_t count = tw_tensor_count(tensor);
    if (rank <= TW_MAX_RANK) TWI_TRY(work_out_dim(&shape, count, what));
    TWI_TRY(twi_shape_check(&shape, what));
    if (twi_shape_count(&shape) != count) {
        char from[TWI_SHAPE_TEXT], to[TWI_SHAPE_TEXT];
        return TWI_FAIL(TW_ERROR_SHAPE,
                        "%s: %s has %" PRId64 " elements, %s would have %" PRId64 "; one dim given as -1 is worked out",
                        what, twi_shape_text(&tensor->shape, from), count, twi_shape_text(&shape, to),
                        twi_shape_count(&shape));
    }
    TWI_TRY(create_view(out, tensor, what));
    (*out)->shape = shape;
    twi_shape_row_major(&shape, (*out)->stride);
    return TW_OK;
}

tw_status tw_tensor_slice(tw_tensor **out, tw_tensor *tensor, int axis, int64_t start, int64_t length) {
    const char *what = "tw_tensor_slice";
    if (out) *out = NULL;
    if (!out || !tensor) return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: %s is NULL", what, out ? "tensor" : "out");
    char text[TWI_SHAPE_TEXT];
    if (axis < 0 || axis >= tensor->shape.rank)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: axis %d, but %s has axes 0 to rank - 1 = %d", what, axis,
                        twi_shape_text(&tensor->shape, text), tensor->shape.rank - 1);
    if (start < 0 || length < 0 || start > tensor->shape.dim[axis] || length > tensor->shape.dim[axis] - start)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "%s: start %" PRId64 " and length %" PRId64 " do not lie within axis %d of %s", what, start,
                        length, axis, twi_shape_text(&tensor->shape, text));
    TWI_TRY(create_view(out, tensor, what));
    (*out)->offset += start * tensor->stride[axis];
    (*out)->shape.dim[axis] = length;
    return TW_OK;
}
