/* The data set itself: arrays of samples and labels in memory, classes and their names. Files are left to idx.c and
 * cifar.c, statistics to dataset_measure.c, batches to loader.c. */
#define _POSIX_C_SOURCE 200809L /* stpcpy */
#include "dataset.h"
#include "base/dtype_text.h"
#include "base/options.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

tw_status twi_dataset_new(tw_dataset **out, tw_context *context) {
    TWI_TRY(twi_get(context->memory, out, 1, sizeof **out, "data set"));
    (*out)->context = context;
    return TW_OK;
}

void tw_dataset_destroy(tw_dataset *dataset) {
    if (!dataset) return;
    twi_memory *memory = dataset->context->memory;
    twi_put(memory, dataset->images);
    twi_put(memory, dataset->labels);
    twi_put(memory, dataset->class_names);
    twi_put(memory, dataset->name_text);
    twi_put(memory, dataset);
}

tw_status twi_dataset_read_options(tw_dataset_options *out, const tw_dataset_options *options, const char *what) {
    TWI_TRY(twi_options_read(out, sizeof *out, options, what));
    if (out->classes < 0 || out->classes > TW_MAX_CLASSES)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: classes is %d; give 1 .. %d, or 0 for the data's own", what,
                        out->classes, TW_MAX_CLASSES);
    if (out->class_names && !out->classes)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: class_names without classes: say how many names there are", what);
    for (int i = 0; out->class_names && i < out->classes; i++)
        if (!out->class_names[i])
            return TWI_FAIL(TW_ERROR_ARGUMENT, "%s: class_names[%d] of %d is NULL", what, i, out->classes);
    return TW_OK;
}

static int count_classes(const tw_dataset *dataset) {
    int32_t largest = 0;
    for (int64_t i = 0; i < dataset->count; i++)
        if (dataset->labels[i] > largest) largest = dataset->labels[i];
    return largest < TW_MAX_CLASSES ? largest + 1 : TW_MAX_CLASSES; /* the label check names one that is larger */
}

/* Copies the names, or writes numbers, one after the other into one text. */
static tw_status set_names(tw_dataset *dataset, const char *const *names) {
    enum { LONGEST_NUMBER = sizeof "1048575" };
    twi_memory *memory = dataset->context->memory;
    size_t classes = (size_t)dataset->classes, size = classes * LONGEST_NUMBER;
    if (names) {
        size = 0;
        for (size_t i = 0; i < classes; i++) TWI_TRY(twi_add_size(&size, size, strlen(names[i]) + 1, "class names"));
    }
    TWI_TRY(twi_get(memory, &dataset->class_names, classes, sizeof *dataset->class_names, "class names"));
    TWI_TRY(twi_get(memory, &dataset->name_text, size, 1, "class names"));
    char *text = dataset->name_text;
    for (size_t i = 0; i < classes; i++) {
        dataset->class_names[i] = text;
        if (names)
            text = stpcpy(text, names[i]) + 1;
        else
            text += snprintf(text, LONGEST_NUMBER, "%zu", i) + 1;
    }
    return TW_OK;
}

tw_status twi_dataset_set_classes(tw_dataset *dataset, const tw_dataset_options *options, int format_classes,
                                  const char *const *format_names) {
    dataset->classes = options->classes ? options->classes : format_classes ? format_classes : count_classes(dataset);
    const char *const *names = options->class_names;
    if (!names && dataset->classes == format_classes) names = format_names;
    return set_names(dataset, names);
}

tw_status twi_dataset_check_labels(const tw_dataset *dataset, int64_t first, int64_t count, const char *source) {
    for (int64_t i = 0; i < count; i++) {
        int32_t label = dataset->labels[first + i];
        if (label < 0 || label >= dataset->classes)
            return TWI_FAIL(TW_ERROR_LABEL,
                            "%s: record %lld has label %d, outside 0 .. %d of %d classes: correct the label%s", source,
                            (long long)i, (int)label, dataset->classes - 1, dataset->classes,
                            label < 0                 ? ", since classes count from 0"
                            : label >= TW_MAX_CLASSES ? ", since there can be no more classes"
                                                      : ", or give the right number of classes");
    }
    return TW_OK;
}

size_t twi_dataset_sample_size(const tw_dataset *dataset) {
    return (size_t)dataset->channels * (size_t)dataset->height * (size_t)dataset->width;
}

/* Bytes of `count` samples of the shape in `dataset`. */
static tw_status images_size(size_t *out, const tw_dataset *dataset) {
    TWI_TRY(twi_mul_size(out, (size_t)dataset->channels, (size_t)dataset->height, "images"));
    TWI_TRY(twi_mul_size(out, *out, (size_t)dataset->width, "images"));
    TWI_TRY(twi_mul_size(out, *out, tw_dtype_size(dataset->dtype), "images"));
    return twi_mul_size(out, *out, (size_t)dataset->count, "images");
}

static tw_status get_arrays(tw_dataset *dataset) {
    twi_memory *memory = dataset->context->memory;
    size_t size;
    TWI_TRY(images_size(&size, dataset));
    TWI_TRY(twi_get(memory, &dataset->images, size, 1, "images of a data set"));
    return twi_get(memory, &dataset->labels, (size_t)dataset->count, sizeof *dataset->labels, "labels of a data set");
}

static tw_status fill_from(tw_dataset *dataset, const void *images, const int32_t *labels,
                           const tw_dataset_options *options) {
    TWI_TRY(get_arrays(dataset));
    memcpy(dataset->images, images,
           (size_t)dataset->count * twi_dataset_sample_size(dataset) * tw_dtype_size(dataset->dtype));
    memcpy(dataset->labels, labels, (size_t)dataset->count * sizeof *labels);
    TWI_TRY(twi_dataset_set_classes(dataset, options, 0, NULL));
    return twi_dataset_check_labels(dataset, 0, dataset->count, "tw_dataset_create_from: labels");
}

tw_status tw_dataset_create_from(tw_dataset **out, tw_context *context, tw_dtype dtype, const void *images,
                                 int64_t count, int channels, int height, int width, const int32_t *labels,
                                 const tw_dataset_options *options) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_dataset_create_from: out is NULL");
    *out = NULL;
    if (!context || !images || !labels)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_dataset_create_from: %s is NULL",
                        !context  ? "context"
                        : !images ? "images"
                                  : "labels");
    char type[TWI_DTYPE_TEXT];
    if (dtype != TW_U8 && dtype != TW_F32)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_dataset_create_from: images are %s; give u8 (0 .. 255) or f32",
                        twi_dtype_text(dtype, type));
    if (count < 1 || channels < 1 || height < 1 || width < 1)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "tw_dataset_create_from: %lld samples of %d x %d x %d: every size must be at least 1",
                        (long long)count, channels, height, width);
    tw_dataset_options given;
    TWI_TRY(twi_dataset_read_options(&given, options, "tw_dataset_create_from"));

    tw_dataset *dataset;
    TWI_TRY(twi_dataset_new(&dataset, context));
    dataset->dtype = dtype;
    dataset->count = count;
    dataset->channels = channels;
    dataset->height = height;
    dataset->width = width;
    tw_status status = fill_from(dataset, images, labels, &given);
    if (status)
        tw_dataset_destroy(dataset);
    else
        *out = dataset;
    return status;
}

static tw_status fill_subset(tw_dataset *subset, const tw_dataset *dataset, const int64_t *indices) {
    size_t bytes = twi_dataset_sample_size(dataset) * tw_dtype_size(dataset->dtype);
    const tw_dataset_options defaults = TW_DATASET_OPTIONS_INIT;
    TWI_TRY(get_arrays(subset));
    for (int64_t i = 0; i < subset->count; i++) {
        memcpy((char *)subset->images + (size_t)i * bytes, (const char *)dataset->images + (size_t)indices[i] * bytes,
               bytes);
        subset->labels[i] = dataset->labels[indices[i]];
    }
    return twi_dataset_set_classes(subset, &defaults, dataset->classes, (const char *const *)dataset->class_names);
}

tw_status tw_dataset_create_subset(tw_dataset **out, const tw_dataset *dataset, const int64_t *indices, int64_t count) {
    if (!out) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_dataset_create_subset: out is NULL");
    *out = NULL;
    if (!dataset || !indices)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_dataset_create_subset: %s is NULL", dataset ? "indices" : "dataset");
    if (count < 1)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_dataset_create_subset: %lld indices: give at least one",
                        (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (indices[i] < 0 || indices[i] >= dataset->count)
            return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_dataset_create_subset: indices[%lld] is %lld, outside 0 .. %lld",
                            (long long)i, (long long)indices[i], (long long)dataset->count - 1);

    tw_dataset *subset;
    TWI_TRY(twi_dataset_new(&subset, dataset->context));
    subset->dtype = dataset->dtype;
    subset->count = count;
    subset->channels = dataset->channels;
    subset->height = dataset->height;
    subset->width = dataset->width;
    tw_status status = fill_subset(subset, dataset, indices);
    if (status)
        tw_dataset_destroy(subset);
    else
        *out = subset;
    return status;
}

int64_t tw_dataset_count(const tw_dataset *dataset) { return dataset ? dataset->count : 0; }

int tw_dataset_get_classes(const tw_dataset *dataset) { return dataset ? dataset->classes : 0; }

const char *tw_dataset_get_class_name(const tw_dataset *dataset, int index) {
    return dataset && index >= 0 && index < dataset->classes ? dataset->class_names[index] : "";
}

int tw_dataset_get_channels(const tw_dataset *dataset) { return dataset ? dataset->channels : 0; }

int tw_dataset_get_height(const tw_dataset *dataset) { return dataset ? dataset->height : 0; }

int tw_dataset_get_width(const tw_dataset *dataset) { return dataset ? dataset->width : 0; }

tw_dtype tw_dataset_get_dtype(const tw_dataset *dataset) { return dataset ? dataset->dtype : TW_F32; }

const void *tw_dataset_get_images(const tw_dataset *dataset) { return dataset ? dataset->images : NULL; }

const int32_t *tw_dataset_get_labels(const tw_dataset *dataset) { return dataset ? dataset->labels : NULL; }
