/* The networks that are known by name, and batches to measure them with: shared by `talweg plan`, `talweg bench` and
 * tests/bench/bench_train. */
#ifndef TWI_CLI_WORKLOAD_H
#define TWI_CLI_WORKLOAD_H

#include <talweg/talweg.h>

typedef struct twi_workload {
    const char *name;
    tw_value *(*build)(tw_model *model, tw_value *x, int64_t classes);
    int channels, side; /* of the images that it is measured with */
    int own_side;       /* of those that it was made for */
    int classes;
} twi_workload;

/* The names of all, for messages. */
#define TWI_WORKLOAD_NAMES "mlp, lenet, resnet20, resnet18 and resnet50"
/* NULL: there is none of that name. */
const twi_workload *twi_workload_find(const char *name);
/* Pixels of an image. */
int64_t twi_workload_pixels(const twi_workload *workload);
/* Fills f32 images with noise on a pattern of their class, one of ten; equal from call to call. Speed does not depend
 * on it. */
void twi_workload_fill(const twi_workload *workload, int64_t count, float *images, int32_t *classes);
/* The next number of a sequence that every process draws alike. */
uint32_t twi_workload_draw(uint32_t *word);

#endif
