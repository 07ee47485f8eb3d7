/* Looks at what goes into every relu and max pool of a model, by a program that only runs forward. */
#include "clear_samples.h"
#include "backend/attrs.h"
#include "program/model.h"

#include <math.h>

enum { MOST_DECISIONS = 16 };

static bool decides(const twi_node *node) {
    return strcmp(node->op->name, "relu") == 0 || strcmp(node->op->name, "max_pool") == 0;
}

static bool relu_is_clear(const float *value, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(value[i]) >= CLEAR_MARGIN)) return false;
    return true;
}

/* Values of 0 are those that a relu has cut off: whichever is taken, no gradient passes. */
static bool window_is_clear(const float *corner, const twi_pool_attrs *pool, int64_t width) {
    float first = 0, second = 0;
    for (int h = 0; h < pool->kernel_h; h++)
        for (int w = 0; w < pool->kernel_w; w++) {
            const float value = corner[h * width + w];
            if (value > first) {
                second = first;
                first = value;
            } else if (value > second)
                second = value;
        }
    return first == 0 || first - second >= CLEAR_MARGIN;
}

/* Windows side by side, behind a relu, as the nets here have them. */
static bool pool_is_clear(const float *value, const twi_shape *x, const twi_pool_attrs *pool) {
    const int64_t height = x->dim[2], width = x->dim[3];
    for (int64_t c = 0; c < x->dim[1]; c++)
        for (int64_t h = 0; h + pool->kernel_h <= height; h += pool->stride_h)
            for (int64_t w = 0; w + pool->kernel_w <= width; w += pool->stride_w)
                if (!window_is_clear(value + (c * height + h) * width + w, pool, width)) return false;
    return true;
}

static bool is_clear(const twi_node *node, const float *value) {
    const twi_shape *x = &node->input[0]->shape;
    if (strcmp(node->op->name, "relu") == 0) return relu_is_clear(value, twi_shape_count_from(x, 1));
    return pool_is_clear(value, x, node->attrs);
}

void find_clear_samples(tw_model *model, const tw_value *x, const float *samples, int64_t batch, bool *clear) {
    const twi_node *node[MOST_DECISIONS];
    tw_value *value[MOST_DECISIONS];
    tw_program *program;
    int count = 0;
    for (int i = 0; i < model->graph.node_count; i++)
        if (decides(model->graph.node[i])) {
            assert_true(count < MOST_DECISIONS);
            node[count] = model->graph.node[i];
            value[count] = node[count]->input[0];
            count++;
        }
    CHECK_OK(tw_program_create(&program, model, batch, TW_OPTIONS(program, .outputs = value, .output_count = count)));
    CHECK_OK(tw_program_write(program, x, TW_F32, samples, batch * twi_shape_count_from(&x->shape, 1)));
    CHECK_OK(tw_program_run(program));
    for (int64_t n = 0; n < batch; n++) clear[n] = true;
    for (int i = 0; i < count; i++) {
        const int64_t size = twi_shape_count_from(&value[i]->shape, 1);
        float *values = malloc((size_t)(batch * size) * sizeof *values);
        assert_non_null(values);
        CHECK_OK(tw_program_read(program, value[i], values, batch * size));
        for (int64_t n = 0; n < batch; n++) clear[n] = clear[n] && is_clear(node[i], values + n * size);
        free(values);
    }
    tw_program_destroy(program);
}
