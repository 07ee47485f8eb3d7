/* A data set while it is made: the formats fill the arrays of a new data set, set its classes, check its labels. */
#ifndef TWI_DATA_DATASET_H
#define TWI_DATA_DATASET_H

#include "base/context.h"
#include <talweg/data.h>

struct tw_dataset {
    tw_context *context;
    tw_dtype dtype;
    int64_t count;
    int channels, height, width, classes;
    void *images;       /* count x channels x height x width */
    int32_t *labels;    /* count */
    char **class_names; /* classes */
    char *name_text;    /* what class_names point into */
};

/* An empty data set; whoever fills it frees it with tw_dataset_destroy when something fails. */
tw_status twi_dataset_new(tw_dataset **out, tw_context *context);

/* Takes the caller's options; NULL is all defaults. */
tw_status twi_dataset_read_options(tw_dataset_options *out, const tw_dataset_options *options, const char *what);

/* Sets number and names of the classes: those of the options, else the format's (format_classes 0: largest label + 1;
 * format_names NULL: "0", "1", ...). */
tw_status twi_dataset_set_classes(tw_dataset *dataset, const tw_dataset_options *options, int format_classes,
                                  const char *const *format_names);

/* Checks labels[first .. first+count-1] against the classes; `source` is what they came from, where they are the
 * records 0 .. count-1. Errors: LABEL. */
tw_status twi_dataset_check_labels(const tw_dataset *dataset, int64_t first, int64_t count, const char *source);

/* A fingerprint of samples and labels, in their order. */
uint64_t twi_dataset_hash(const tw_dataset *dataset);

/* Elements of one sample. */
size_t twi_dataset_sample_size(const tw_dataset *dataset);

#endif
