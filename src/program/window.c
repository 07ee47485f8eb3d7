/* Accumulation windows: the batches whose gradients one update sums. What a window holds is counted here, on the host;
 * the sums themselves are made by steps (op_accumulate.c). A run outside of a window is a window of one batch. */
#include "program.h"

#include <math.h>
#include <string.h>

tw_status tw_window_open(tw_model *model, int64_t samples) {
    if (!model) return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_window_open: model is NULL");
    if (!model->built) return TWI_FAIL(TW_ERROR_STATE, "tw_window_open: build the model first (tw_model_build)");
    if (samples < 1)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_window_open: samples is %lld; give what all batches of the window hold",
                        (long long)samples);
    model->window = (twi_window){.samples = samples, .attempt = model->store.attempts};
    model->update_due = false;
    return TW_OK;
}

void tw_window_close(tw_model *model) {
    if (!model || !model->window.samples) return;
    model->window.samples = 0;
    model->update_due = false;
}

double tw_window_get_loss(const tw_model *model) {
    return model && model->window.done ? model->window.loss / (double)model->window.done : (double)NAN;
}

static tw_status refuse_spoilt(const char *function) {
    return TWI_FAIL(TW_ERROR_STATE,
                    "%s: a run of the open window failed, so there will be no update; open another one "
                    "(tw_window_open)",
                    function);
}

/* Is the program one of those that sum? */
static tw_status check_sums(const tw_program *program, const char *function) {
    const twi_window *window = &program->model->window;
    if (program->accumulate) return TW_OK;
    return TWI_FAIL(
        TW_ERROR_STATE,
        "%s: a window of %lld samples is open (%lld run), and this program does not sum gradients; create it "
        "with accumulate, or drop the window with tw_window_close",
        function, (long long)window->samples, (long long)window->done);
}

tw_status twi_window_admit(const tw_program *program, bool whole, const char *function) {
    const twi_window *window = &program->model->window;
    if (!window->samples || !program->train) return TW_OK;
    TWI_TRY(check_sums(program, function));
    if (whole)
        return TWI_FAIL(TW_ERROR_STATE,
                        "%s: a window of %lld samples is open; run its batches with tw_program_run_gradients and then "
                        "tw_program_run_update, or drop it with tw_window_close",
                        function, (long long)window->samples);
    if (window->spoilt) return refuse_spoilt(function);
    if (program->batch > window->samples - window->done)
        return TWI_FAIL(TW_ERROR_STATE,
                        "%s: the program's batch is %lld, but the open window lacks only %lld of its %lld samples; "
                        "update now, or open a window of as many samples as its batches hold",
                        function, (long long)program->batch, (long long)(window->samples - window->done),
                        (long long)window->samples);
    return TW_OK;
}

tw_status twi_window_admit_update(const tw_program *program) {
    static const char function[] = "tw_program_run_update";
    const tw_model *model = program->model;
    const twi_window *window = &model->window;
    if (!window->samples)
        return model->gradients_by == program && model->update_due
                   ? TW_OK
                   : TWI_FAIL(TW_ERROR_STATE,
                              "%s: there are no gradients of this program; call tw_program_run_gradients first",
                              function);
    TWI_TRY(check_sums(program, function));
    if (window->spoilt) return refuse_spoilt(function);
    if (window->done < window->samples)
        return TWI_FAIL(TW_ERROR_STATE, "%s: the open window has run %lld of its %lld samples; run the others first",
                        function, (long long)window->done, (long long)window->samples);
    return TW_OK;
}

twi_window twi_window_of(const tw_program *program) {
    const tw_model *model = program->model;
    if (model->window.samples && program->train) return model->window;
    return (twi_window){.samples = program->batch, .attempt = model->store.attempts};
}

void twi_window_count(const tw_program *program, tw_status status) {
    twi_window *window = &program->model->window;
    if (!window->samples || !program->train) return;
    window->spoilt = status != TW_OK;
    if (status) return;
    window->micro++;
    window->done += program->batch;
    window->loss += program->loss_value * (double)program->batch;
}
