/* The tensors of a model as a safetensors file holds them: its parameters and buffers, and where wanted the moments of
 * its optimizer. Saving, and loading in two steps: everything that can fail, then the change. What else a file says
 * stands in its metadata, which belongs to the callers. */
#ifndef TWI_IO_MODEL_TENSORS_H
#define TWI_IO_MODEL_TENSORS_H

#include "base/text.h"
#include "program/model.h"
#include "safetensors.h"

typedef struct twi_model_tensor {
    const char *prefix; /* before the parameter's name; borrowed */
    int parameter;
    void *const *array; /* the store's field; what it points to may come later */
} twi_model_tensor;

typedef struct twi_model_tensors {
    const tw_model *model;
    twi_model_tensor *tensor;
    int count;
} twi_model_tensors;

/* Lists parameters and buffers under their names, and the moments of every learned parameter, each under its prefix:
 * prefix[i] is that of the store's moment i. */
tw_status twi_model_tensors_list(twi_model_tensors *list, const tw_model *model, const char *const *prefix,
                                 twi_moments moments);
/* Adds the store's snapshot: values under prefix[TWI_MOMENTS], moments as above. */
tw_status twi_model_tensors_add_snapshot(twi_model_tensors *list, const char *const *prefix, twi_moments moments);
void twi_model_tensors_free(twi_model_tensors *list);

/* Adds a pair to the metadata of a file to be saved. */
void twi_metadata_add(twi_text *metadata, const char *key, const char *value);
/* Writes the file beside and renames it. metadata: made by twi_metadata_add, or "". Errors: FILE. */
tw_status twi_model_tensors_save(const twi_model_tensors *list, const char *metadata, const char *path);

/* What was read of a file and fits. */
typedef struct twi_model_values {
    int *entry;    /* per tensor of the list: its entry in the file; negative: it has none */
    float *values; /* of all tensors, one after the other */
    void *scratch; /* for the largest one */
} twi_model_values;

/* Reads what fits, and takes all memory that writing wants. partial: take what fits, if anything does, and log the
 * rest; remedy: ends the message where it is not wanted.
 * Errors: MISMATCH listing missing, unexpected and mismatched tensors, or naming two that differ under names of one
 * tensor; FILE. *out is to be freed in any case. */
tw_status twi_model_values_read(twi_model_values *out, const twi_model_tensors *list, const twi_tensor_file *file,
                                bool partial, const char *remedy);
/* Puts them into the model. Fails for the device's own reasons only. */
tw_status twi_model_values_write(const twi_model_values *values, const twi_model_tensors *list, tw_model *model);
void twi_model_values_free(twi_model_values *values, const twi_model_tensors *list);

#endif
