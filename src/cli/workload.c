/* The networks and the batches; what is measured of them is left to the callers. */
#include "workload.h"

#include <string.h>

static tw_value *mlp(tw_model *model, tw_value *x, int64_t classes) {
    const int64_t widths[] = {128, classes};
    return tw_zoo_mlp(model, x, 2, widths);
}
static tw_value *lenet(tw_model *model, tw_value *x, int64_t classes) { return tw_zoo_lenet5(model, x, classes); }
static tw_value *resnet20(tw_model *model, tw_value *x, int64_t classes) {
    return tw_zoo_resnet20(model, x, classes, NULL);
}
static tw_value *resnet18(tw_model *model, tw_value *x, int64_t classes) {
    return tw_zoo_resnet18(model, x, classes, NULL);
}
static tw_value *resnet50(tw_model *model, tw_value *x, int64_t classes) {
    return tw_zoo_resnet50(model, x, classes, NULL);
}

static const twi_workload workloads[] = {{"mlp", mlp, 1, 28, 28, 10},
                                         {"lenet", lenet, 1, 28, 28, 10},
                                         {"resnet20", resnet20, 3, 32, 32, 10},
                                         {"resnet18", resnet18, 3, 64, 224, 1000},
                                         {"resnet50", resnet50, 3, 224, 224, 1000}};

const twi_workload *twi_workload_find(const char *name) {
    for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++)
        if (strcmp(workloads[i].name, name) == 0) return &workloads[i];
    return NULL;
}

int64_t twi_workload_pixels(const twi_workload *workload) {
    return (int64_t)workload->channels * workload->side * workload->side;
}

uint32_t twi_workload_draw(uint32_t *word) { return *word = *word * 1664525u + 1013904223u; }

void twi_workload_fill(const twi_workload *workload, int64_t count, float *images, int32_t *classes) {
    const int64_t pixels = twi_workload_pixels(workload);
    uint32_t word = 12345;
    for (int64_t i = 0; i < count; i++) {
        classes[i] = (int32_t)(twi_workload_draw(&word) >> 16) % 10;
        for (int64_t p = 0; p < pixels; p++) {
            float pattern = (float)((classes[i] * 7919 + p * 104729) % 251) / 251.0f;
            float noise = (float)(twi_workload_draw(&word) >> 8) * 0x1p-24f;
            images[i * pixels + p] = 0.5f * (pattern + noise) - 0.5f;
        }
    }
}
