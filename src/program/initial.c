/* Initial values of parameters: by a rule's distribution, or one constant. */
#include "base/context.h"
#include "base/philox.h"
#include "base/threads.h"
#include "store.h"

#include <math.h>

#define SHARED_DRAWS 4096 /* fewer take less time than workers need to wake */

typedef struct init_rule {
    bool normal;
    double (*scale)(const twi_parameter *parameter); /* bound of the uniform, deviation of the normal */
} init_rule;

static double at_least_1(int64_t fan) { return fan > 0 ? (double)fan : 1; }
static double default_bound(const twi_parameter *p) { return 1 / sqrt(at_least_1(p->fan_in)); }
static double kaiming_bound(const twi_parameter *p) { return sqrt(6 / at_least_1(p->fan_in)); }
static double kaiming_deviation(const twi_parameter *p) { return sqrt(2 / at_least_1(p->fan_in)); }
static double xavier_bound(const twi_parameter *p) { return sqrt(6 / at_least_1(p->fan_in + p->fan_out)); }
static double xavier_deviation(const twi_parameter *p) { return sqrt(2 / at_least_1(p->fan_in + p->fan_out)); }

static const init_rule init_rules[] = {
    [TW_INIT_DEFAULT] = {false, default_bound},         [TW_INIT_CONSTANT] = {false, NULL},
    [TW_INIT_KAIMING_UNIFORM] = {false, kaiming_bound}, [TW_INIT_KAIMING_NORMAL] = {true, kaiming_deviation},
    [TW_INIT_XAVIER_UNIFORM] = {false, xavier_bound},   [TW_INIT_XAVIER_NORMAL] = {true, xavier_deviation},
};

/* Of a parameter's initial values, drawn by name and logical index, so that neither the layout nor the other layers
 * matter, nor who draws them. */
typedef struct draws {
    const twi_parameter *parameter;
    uint64_t seed, stream;
    float scale;
    bool normal;
    float *values;
} draws;

static void draw_four(const draws *d, int64_t i, float unit[4]) {
    uint32_t word[4];
    twi_draw(d->seed, TWI_PURPOSE_INIT, d->stream, (uint64_t)i / 4, word);
    if (d->normal) {
        twi_normal2(word[0], word[1], unit);
        twi_normal2(word[2], word[3], unit + 2);
    } else {
        for (int k = 0; k < 4; k++) unit[k] = 2 * twi_uniform(word[k]) - 1;
    }
}

/* A worker's share, of whole fours. */
static void draw_share(void *argument, int worker, int workers) {
    const draws *d = argument;
    const int64_t count = twi_shape_count(&d->parameter->shape), fours = (count + 3) / 4,
                  end = (worker + 1) * fours / workers * 4;
    for (int64_t i = worker * fours / workers * 4; i < end; i += 4) {
        float unit[4];
        draw_four(d, i, unit);
        for (int k = 0; k < 4 && i + k < count; k++) d->values[i + k] = d->scale * unit[k];
    }
}

/* In logical order. */
static void draw(const twi_store *store, int index, uint64_t seed, float *values) {
    const twi_parameter *parameter = &store->parameter[index];
    const int64_t count = twi_shape_count(&parameter->shape);
    const init_rule *rule = &init_rules[parameter->init.kind];
    if (!parameter->learned || !rule->scale) {
        const float value = parameter->learned ? parameter->init.value : (float)parameter->init_value;
        for (int64_t i = 0; i < count; i++) values[i] = value;
        return;
    }
    draws d = {.parameter = parameter,
               .seed = seed,
               .stream = twi_hash_text(parameter->name),
               .scale = (float)rule->scale(parameter),
               .normal = rule->normal,
               .values = values};
    (count >= SHARED_DRAWS ? twi_pool_run_surely : twi_pool_run_alone)(store->context->pool, draw_share, &d);
}

tw_status twi_store_initialize(twi_store *store, uint64_t seed) {
    if (store->context->plans_only) return TW_OK; /* there is nothing behind the arrays */
    for (int i = 0; i < store->count; i++) {
        float *values;
        TWI_TRY(twi_get(store->context->memory, &values, (size_t)twi_shape_count(&store->parameter[i].shape),
                        sizeof *values, "initial values"));
        draw(store, i, seed, values);
        tw_status status = twi_store_write(store, twi_store_values(store, i), i, values);
        twi_put(store->context->memory, values);
        TWI_TRY(status);
    }
    return TW_OK;
}
