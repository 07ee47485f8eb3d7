/* What guards an update: options of loss scaling, clipping and of numbers that are not finite, as the guard's steps
 * read them, and what those steps found. The rules themselves are in src/backend/guard.h. */
#include "program.h"
#include "backend/attrs.h"

#include <float.h>
#include <math.h>

#define SCALE_LEAST 0x1p-126
#define SCALE_MOST 0x1p+126

static const tw_loss_scaling presets = {65536, 2, 0.5, 2000, 1, 16777216, 50};

static double given(double value, double preset) { return value != 0 ? value : preset; }
static int64_t given_count(int64_t value, int64_t preset) { return value ? value : preset; }

static tw_status check_range(const char *field, double value, bool fits, const char *range) {
    return fits ? TW_OK : TWI_FAIL(TW_ERROR_ARGUMENT, "loss_scaling: %s is %g; give %s", field, value, range);
}

tw_status twi_loss_scaling_fill(tw_loss_scaling *out, const tw_loss_scaling *options) {
    const tw_loss_scaling none = {0}, *o = options ? options : &none;
    *out = (tw_loss_scaling){.growth = given(o->growth, presets.growth),
                             .backoff = given(o->backoff, presets.backoff),
                             .growth_interval = given_count(o->growth_interval, presets.growth_interval),
                             .minimum = given(o->minimum, presets.minimum),
                             .maximum = given(o->maximum, presets.maximum),
                             .patience = given_count(o->patience, presets.patience)};
    out->initial = given(o->initial, fmax(out->minimum, fmin(presets.initial, out->maximum)));
    /* A scale that f32 cannot hold would make a gradient of every loss infinite, and one whose inverse it holds as a
     * denormal number, which are flushed, an update of nothing. */
    TWI_TRY(check_range("minimum", out->minimum, out->minimum >= SCALE_LEAST && out->minimum <= SCALE_MOST,
                        "a scale from 2^-126 to 2^126"));
    TWI_TRY(check_range("maximum", out->maximum, out->maximum >= out->minimum && out->maximum <= SCALE_MOST,
                        "a scale up to 2^126, not below the minimum"));
    TWI_TRY(check_range("initial", out->initial, out->initial >= out->minimum && out->initial <= out->maximum,
                        "a scale between minimum and maximum"));
    TWI_TRY(check_range("growth", out->growth, out->growth >= 1 && out->growth <= FLT_MAX, "a finite factor from 1"));
    TWI_TRY(check_range("backoff", out->backoff, out->backoff > 0 && out->backoff <= 1, "a factor in (0, 1]"));
    TWI_TRY(
        check_range("growth_interval", (double)out->growth_interval, out->growth_interval > 0, "at least 1 update"));
    return check_range("patience", (double)out->patience, out->patience > 0, "at least 1 update");
}

static tw_status check_options(const tw_program_options *o) {
    if (o->on_non_finite == TW_NON_FINITE_ROLL_BACK)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "on_non_finite: it is a trainer that rolls back; give a program "
                                           "TW_NON_FINITE_STOP or TW_NON_FINITE_SKIP");
    if (o->on_non_finite == TW_NON_FINITE_IGNORE && o->optimizer && o->optimizer->clip_norm > 0)
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "on_non_finite: clip_norm needs the norm of all gradients, so it does not go "
                        "with TW_NON_FINITE_IGNORE; leave one of them out");
    if (o->on_non_finite == TW_NON_FINITE_IGNORE && (o->loss_scaling || o->precision == TW_PRECISION_F16))
        return TWI_FAIL(TW_ERROR_ARGUMENT,
                        "on_non_finite: loss scaling, which f16 comes with, has to see gradients that are not "
                        "finite; give it TW_NON_FINITE_STOP or TW_NON_FINITE_SKIP");
    if (o->on_non_finite != TW_NON_FINITE_STOP && o->on_non_finite != TW_NON_FINITE_SKIP &&
        o->on_non_finite != TW_NON_FINITE_IGNORE)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "on_non_finite %d is none of TW_NON_FINITE_...", (int)o->on_non_finite);
    if (o->optimizer) return TW_OK;
    if (o->on_non_finite == TW_NON_FINITE_SKIP)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "on_non_finite: without an optimizer there is no update to leave out");
    if (o->loss_scaling)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "loss_scaling needs an optimizer: its update is what divides by the scale");
    return TW_OK;
}

tw_status twi_guard_open(tw_program *program, const tw_program_options *options) {
    twi_guard_attrs *guard = &program->guard;
    tw_loss_scaling scaling;
    TWI_TRY(check_options(options));
    TWI_TRY(twi_loss_scaling_fill(&scaling, options->loss_scaling));
    guard->scales = options->loss_scaling || (options->precision == TW_PRECISION_F16 && options->optimizer);
    program->unguarded = options->on_non_finite == TW_NON_FINITE_IGNORE;
    guard->skips = guard->scales || options->on_non_finite == TW_NON_FINITE_SKIP;
    guard->clip = options->optimizer ? (double)options->optimizer->clip_norm : 0;
    guard->growth = scaling.growth;
    guard->backoff = scaling.backoff;
    guard->minimum = scaling.minimum;
    guard->maximum = scaling.maximum;
    guard->interval = scaling.growth_interval;
    guard->patience = scaling.patience;
    twi_guard *state = &program->model->store.guard;
    if (!guard->scales || twi_program_only_plans(program)) return TW_OK;
    if (state->scale == 0) state->scale = scaling.initial;
    state->scale = fmax(scaling.minimum, fmin(state->scale, scaling.maximum));
    return TW_OK;
}

/* ---- what was found ---- */

const char *twi_guard_name(const tw_program *program, int64_t place) {
    int64_t base;
    (void)twi_update_block(program->guarded, place / TWI_UPDATE_BLOCK, &base);
    return twi_store_name_at(&program->model->store, base + place % TWI_UPDATE_BLOCK);
}

void twi_guard_settle(const tw_program *program, const twi_control *control) {
    twi_store *store = &program->model->store;
    store->stopped = control->fault.code == TW_ERROR_NUMERIC && control->fault.sample >= TWI_FAULT_RUN;
    if (!program->train) return;
    store->guard = control->guard;
    if (store->updates != control->update) store->snapshot.at.returned = false;
    if (control->fault.sample == TWI_FAULT_RUN && control->fault.code && control->fault.node >= 0)
        store->culprit = program->model->graph.node[control->fault.node]->name;
    else if (control->guard.bad_loss) /* which gradients follow */
        store->culprit = program->model->graph.node[control->guard.bad_loss - 1]->name;
    else if (control->guard.place >= 0 && control->guard.refused)
        store->culprit = twi_guard_name(program, control->guard.place);
}

tw_guard_stats tw_model_get_guard(const tw_model *model) {
    if (!model) return (tw_guard_stats){.loss_scale = 1};
    const twi_store *store = &model->store;
    return (tw_guard_stats){.loss_scale = store->guard.scale > 0 ? store->guard.scale : 1,
                            .good = store->guard.good,
                            .skipped = store->guard.skipped,
                            .skipped_in_a_row = store->guard.in_a_row,
                            .rolled_back = store->rolled_back,
                            .gradient_norm = store->guard.norm,
                            .culprit = store->culprit};
}
