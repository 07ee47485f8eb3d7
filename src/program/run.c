/* Running programs. A run is launched, and it lands: its results are fetched into a row of host memory behind it, and
 * its counters are taken over. On a device that works beside the host several runs may be in flight; a public run lands
 * before it returns. Allocates nothing, but where making another program took the arena and failed. */
#include "program.h"

#include <math.h>
#include <string.h>

tw_status twi_program_take_arena(tw_program *program) {
    if (program->model->arena_user == program) return TW_OK;
    if (!program->prepared) TWI_TRY(twi_program_share_arena(program));
    program->model->arena_user = program;
    program->model->arena_turns++;
    program->ran = false;
    memset(program->fed, 0, (size_t)program->value_count * sizeof *program->fed);
    return TW_OK;
}

tw_status twi_program_check_runs(const tw_program *program, const char *function) {
    const tw_context *context = program->model->context;
    if (program->plan_only)
        return TWI_FAIL(TW_ERROR_STATE, "%s: the program was created with plan_only, and cannot run", function);
    if (!context->plans_only) return TW_OK;
    return TWI_FAIL(TW_ERROR_STATE, "%s: the context was opened on \"%s\", to plan only; open it on \"%s\" to run",
                    function, context->device_name, context->backend->name);
}

static tw_status check_fed(tw_program *program, const char *function) {
    TWI_TRY(twi_program_check_runs(program, function));
    bool held = program->model->arena_user == program;
    for (int v = 0; v < program->value_count; v++) {
        const tw_value *value = program->model->graph.value[v];
        if (value->kind == TWI_VALUE_INPUT && program->value_buffer[v] >= 0 && !(held && program->fed[v]) &&
            !twi_program_gathers(program, value))
            return TWI_FAIL(TW_ERROR_STATE,
                            "%s: input '%s' is not there: it was never fed, or another program of the model was fed or "
                            "run since (programs of a model share memory); feed them again",
                            function, value->name);
    }
    TWI_TRY(twi_source_check(program, function));
    return twi_program_take_arena(program);
}

/* ---- launching ---- */

/* The scalars of the next run, as the host knows them. */
static void fill_control(tw_program *program, bool gradients, twi_control *control) {
    const twi_window window = twi_window_of(program);
    const twi_store *store = &program->model->store;
    memset(control, 0, sizeof *control);
    control->seed = program->model->seed;
    control->attempt = window.attempt;
    control->constants = 1 + store->version + program->model->arena_turns + (program->train ? 0 : store->moved);
    control->sample_weight = 1.0 / (double)window.samples;
    control->micro = window.micro;
    control->window_sample = window.done;
    control->update = store->updates;
    control->learning_rate = store->learning_rate;
    control->guard = store->guard;
    control->slot = (uint64_t)program->turn;
    if (gradients) twi_source_take(program, control);
}

/* The results follow the run into the row; a mark stands behind them. */
static tw_status fetch_row(const tw_program *program, const twi_flight *flight) {
    tw_context *context = twi_program_context(program);
    const twi_backend *backend = context->backend;
    TWI_TRY(backend->fetch(context, flight->row, program->model->store.control, sizeof(twi_control)));
    for (int i = 0; i < program->row_count && flight->gradients; i++) {
        const int buffer = program->row[i].buffer;
        TWI_TRY(backend->fetch(context, flight->row + program->row[i].offset, twi_program_address(program, buffer),
                               program->buffer[buffer].bytes));
    }
    return backend->mark(context, flight->mark);
}

static bool went_well(tw_context *context, tw_status status) {
    if (status == TW_OK) return true;
    twi_log_line(&context->log, TW_LOG_WARNING, "run: its results are waited for and fetched once more, since %s",
                 tw_last_error());
    return false;
}

/* A call that fails behind a run must not lose what the run did: updates would be done twice. */
static tw_status fetch_once_more(const tw_program *program, const twi_flight *flight) {
    tw_context *context = twi_program_context(program);
    const twi_backend *backend = context->backend;
    TWI_TRY(backend->copy_out(context, flight->row, program->model->store.control, sizeof(twi_control)));
    for (int i = 0; i < program->row_count && flight->gradients; i++) {
        const int buffer = program->row[i].buffer;
        TWI_TRY(backend->copy_out(context, flight->row + program->row[i].offset, twi_program_address(program, buffer),
                                  program->buffer[buffer].bytes));
    }
    tw_clear_error();
    return TW_OK;
}

/* What depends on parameters and statistics alone is done where those have changed; *done segments are then behind the
 * run. */
static tw_status run_constants(tw_program *program, uint64_t constants, int first, int *done) {
    tw_context *context = twi_program_context(program);
    *done = first == 0 ? program->constant_segments : 0;
    if (!*done || program->constants == constants) return TW_OK;
    TWI_TRY(context->backend->run(context, program->prepared, 0, *done));
    program->constants = constants;
    return TW_OK;
}

static tw_status launch(tw_program *program, int first, int count, bool gradients) {
    tw_context *context = twi_program_context(program);
    tw_model *model = program->model;
    twi_control control;
    int constant;
    if (!program->prepared)
        TWI_TRY(twi_program_share_arena(program)); /* the arena moved, and memory for binding this one lacked then */
    twi_flight *flight = twi_flights_next(&model->flights);
    fill_control(program, gradients, &control);
    /* What steps advance themselves is left to those under way. */
    const size_t known = model->flights.count ? offsetof(twi_control, update) : sizeof control;
    TWI_TRY(context->backend->copy_in(context, model->store.control, &control, known));
    if (program->half_weights && gradients) TWI_TRY(twi_store_refresh(&model->store, program->half));
    TWI_TRY(run_constants(program, control.constants, first, &constant));
    TWI_TRY(context->backend->run(context, program->prepared, first + constant, count - constant));
    if (first + count > program->update_segment)
        twi_store_updated(&model->store, program->half_weights ? program->half : TW_F32);
    flight->program = program;
    flight->gradients = gradients;
    flight->attempt = control.attempt;
    flight->position = control.resident.position;
    flight->settled = false;
    if (program->train && gradients && control.micro == 0) model->store.attempts++;
    if (gradients) {
        program->ran = true;
        if (program->train) {
            model->gradients_by = program;
            model->gradients_run = control;
        }
        twi_slots_advance(program);
    }
    if (!went_well(context, fetch_row(program, flight))) TWI_TRY(fetch_once_more(program, flight));
    model->flights.count++;
    return TW_OK;
}

/* ---- landing ---- */

static double total_loss(const tw_program *program, const twi_flight *flight) {
    double total = 0;
    for (int i = 0; i < program->loss_count; i++) { /* the first entries of a row */
        const unsigned char *at = flight->row + program->row[i].offset;
        double value = program->model->store.real_size == sizeof(double) ? *(const double *)(const void *)at
                                                                         : (double)*(const float *)(const void *)at;
        total += program->loss[i].weight * value / (double)program->batch;
    }
    return total;
}

/* Runs launched behind one that failed have changed nothing: as if they had not been. */
static void undo_later(tw_model *model, const twi_flight *failed) {
    if (!failed->program->train || !failed->gradients) return;
    bool later = false;
    for (int i = 0; i < model->flights.count; i++) {
        twi_flight *flight = twi_flights_at(&model->flights, i);
        if (later && flight->program->train) flight->settled = true;
        later = later || flight == failed;
    }
    model->store.attempts = failed->attempt + 1;
    twi_source_resume(failed->program, failed->position + (uint64_t)failed->program->batch);
}

static tw_status wait_for(tw_model *model, const twi_flight *flight) {
    tw_context *context = model->context;
    twi_control any;
    if (went_well(context, context->backend->wait(context, flight->mark))) return TW_OK;
    TWI_TRY(context->backend->copy_out(context, &any, model->store.control, sizeof any)); /* waits for all there is */
    tw_clear_error();
    return TW_OK;
}

/* Waits for a run and takes over what it advanced, once. */
static tw_status settle(tw_model *model, twi_flight *flight) {
    if (flight->settled) return TW_OK;
    TWI_TRY(wait_for(model, flight));
    const twi_control *control = (const twi_control *)(const void *)flight->row;
    flight->settled = true;
    twi_guard_settle(flight->program, control);
    if (flight->gradients) flight->program->loss_value = total_loss(flight->program, flight);
    if (control->fault.code) {
        flight->program->constants = 0; /* nobody knows what a fault left of them */
        if (model->flights.count > 1) undo_later(model, flight);
        return TW_OK;
    }
    if (flight->program->train && flight->gradients) model->store.moved++;
    if (control->update != model->store.updates) model->store.version++;
    if (control->guard.refused && flight->program->train) return TW_OK; /* the rate of no update */
    model->store.updates = control->update;
    model->store.learning_rate = control->learning_rate;
    return TW_OK;
}

static bool is_faulty(const twi_flight *flight) {
    return ((const twi_control *)(const void *)flight->row)->fault.code != 0;
}

static tw_status report(const twi_flight *flight) {
    return is_faulty(flight)
               ? twi_program_explain_fault(flight->program, (const twi_control *)(const void *)flight->row)
               : TW_OK;
}

static twi_landed landed_by(const twi_flight *flight) {
    return (twi_landed){flight->program, flight->row, total_loss(flight->program, flight)};
}

tw_status twi_program_settle_all(tw_model *model) {
    twi_flights *flights = &model->flights;
    for (int i = 0; i < flights->count; i++) TWI_TRY(settle(model, twi_flights_at(flights, i)));
    if (!flights->count) return TW_OK;
    /* Those that a failure before them settled may be under way still. */
    return wait_for(model, twi_flights_at(flights, flights->count - 1));
}

bool twi_program_look(tw_model *model, int index, twi_landed *out) {
    twi_flights *flights = &model->flights;
    if (index >= flights->count) return false;
    for (int i = 0; i <= index; i++)
        if (!twi_flights_at(flights, i)->settled || is_faulty(twi_flights_at(flights, i))) return false;
    *out = landed_by(twi_flights_at(flights, index));
    return true;
}

tw_status twi_program_check_idle(const tw_model *model) {
    if (!model->flights.count) return TW_OK;
    return TWI_FAIL(TW_ERROR_STATE,
                    "steps of a fit with run_ahead are under way; do this in on_epoch, or leave run_ahead out");
}

static tw_status check_idle(const tw_program *program, const char *function) {
    tw_status status = twi_program_check_idle(program->model);
    return status ? twi_fail_within(status, "%s", function) : TW_OK;
}

/* Launches a run, before which there is none in flight, and waits for it. */
static tw_status run_segments(tw_program *program, int first, int count, bool gradients) {
    twi_flights *flights = &program->model->flights;
    TWI_TRY(launch(program, first, count, gradients));
    twi_flight *own = twi_flights_at(flights, 0);
    flights->count = 0;
    TWI_TRY(settle(program->model, own));
    tw_status status = report(own);
    if (status == TW_OK) return TW_OK;
    const twi_control *found = (const twi_control *)(const void *)own->row;
    twi_control failed =
        gradients ? *found : program->model->gradients_run; /* an update is that of the run before it */
    failed.fault = found->fault;
    failed.guard = found->guard;
    /* The batch of that run may be gone, if it was lent. */
    if (!gradients && twi_program_lends(program)) {
        program->model->culprit = (twi_culprit){0};
        return status;
    }
    return twi_culprit_find(program, &failed, status);
}

/* A training run overwrites the gradients that an update may have waited for, whichever program's they were. */
static void drop_update(tw_program *program) {
    if (program->train) program->model->update_due = false;
}

/* whole: with the update at once. */
static tw_status admit(tw_program *program, bool whole, const char *function) {
    TWI_TRY(twi_window_admit(program, whole, function));
    TWI_TRY(check_fed(program, function));
    drop_update(program);
    return TW_OK;
}

tw_status tw_program_run(tw_program *program) {
    if (!program) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_run: program is NULL");
    TWI_TRY(check_idle(program, "tw_program_run"));
    TWI_TRY(admit(program, true, "tw_program_run"));
    return run_segments(program, 0, program->segment_count, true);
}

tw_status twi_program_launch(tw_program *program) {
    TWI_TRY(admit(program, true, "tw_program_run"));
    return launch(program, 0, program->segment_count, true);
}

tw_status twi_program_land(tw_model *model, twi_landed *out) {
    twi_flights *flights = &model->flights;
    twi_flight *oldest = twi_flights_at(flights, 0);
    tw_status status = settle(model, oldest);
    *out = status ? (twi_landed){0} : landed_by(oldest); /* one that could not be waited for may still write its row */
    if (status == TW_OK) status = report(oldest);
    flights->first = (flights->first + 1) % TWI_IN_FLIGHT_MAX;
    flights->count--;
    if (status) twi_program_land_all(model); /* behind a failure nothing was done */
    return status;
}

void twi_program_land_all(tw_model *model) {
    (void)twi_program_settle_all(model); /* if the device is lost, the next call says so */
    model->flights.count = 0;
}

tw_status twi_landed_read(const twi_landed *landed, const tw_value *value, void *values) {
    const tw_program *program = landed->program;
    for (int i = 0; i < program->row_count; i++) {
        const int buffer = program->row[i].buffer;
        if (buffer != program->value_buffer[value->id]) continue;
        memcpy(values, landed->row + program->row[i].offset, program->buffer[buffer].bytes);
        return TW_OK;
    }
    return TWI_FAIL(TW_ERROR_INTERNAL, "'%s' is in no row of results; please report it", value->name);
}

tw_status tw_program_run_gradients(tw_program *program) {
    if (!program) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_run_gradients: program is NULL");
    if (program->merged)
        return TWI_FAIL(TW_ERROR_STATE,
                        "tw_program_run_gradients: the program updates weights with their gradients, as "
                        "TW_NON_FINITE_IGNORE allows; use tw_program_run, or make one with TW_NON_FINITE_STOP");
    TWI_TRY(check_idle(program, "tw_program_run_gradients"));
    TWI_TRY(admit(program, false, "tw_program_run_gradients"));
    tw_status status = run_segments(program, 0, program->update_segment, true);
    twi_window_count(program, status);
    if (program->train) program->model->update_due = status == TW_OK;
    return status;
}

tw_status tw_program_run_update(tw_program *program) {
    if (!program) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_program_run_update: program is NULL");
    if (program->update_segment == program->segment_count)
        return TWI_FAIL(TW_ERROR_STATE, "tw_program_run_update: the program was made without an optimizer");
    TWI_TRY(check_idle(program, "tw_program_run_update"));
    TWI_TRY(twi_window_admit_update(program));
    program->model->window.samples = 0; /* whatever comes of it */
    drop_update(program);
    return run_segments(program, program->update_segment, program->segment_count - program->update_segment, false);
}

double tw_program_get_loss(const tw_program *program) { return program ? program->loss_value : NAN; }
