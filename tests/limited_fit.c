/* See limited_fit.h. */
#include "limited_fit.h"
#include "backend/cpu/cpu.h"
#include "program/program.h"
#include "trainer/room.h"

#include <math.h>
#include <stdio.h>

void keep_line(void *user, tw_log_level level, const char *line) {
    lines *l = user;
    if (level > TW_LOG_INFO) return;
    strncat(l->text, line, sizeof l->text - 2 - strlen(l->text));
    strcat(l->text, "\n");
}

/* ---- nets and data ---- */

static tw_value *dropping(tw_model *model, tw_value *x) {
    return tw_dense(model, tw_dropout(model, tw_max_pool(model, x, 2, NULL), 0.3f), 10, NULL);
}
tw_value *convolutions(tw_model *model, tw_value *x) {
    for (int i = 0; i < 4; i++) x = tw_relu(model, tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1)));
    return dropping(model, x);
}
tw_value *norms(tw_model *model, tw_value *x) {
    x = tw_relu(model, tw_batch_norm(model, tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1)), NULL));
    return dropping(model, tw_residual(model, x, 16, NULL));
}
tw_value *frozen_norms(tw_model *model, tw_value *x) {
    x = norms(model, x);
    CHECK_OK(tw_model_set_statistics_frozen(model, "", true));
    return x;
}

tw_value *lenet(tw_model *model, tw_value *x) { return tw_zoo_lenet5(model, x, 10); }
tw_value *resnet20(tw_model *model, tw_value *x) { return tw_zoo_resnet20(model, x, 10, NULL); }
tw_value *resnet18(tw_model *model, tw_value *x) { return tw_zoo_resnet18(model, x, 10, NULL); }

const setting networks[NETWORKS] = {
    {"LeNet-5", lenet, 1, 28, 64, 150}, {"ResNet-20", resnet20, 3, 32, 64, 70}, {"ResNet-18", resnet18, 3, 64, 32, 34}};
double limited_share(int network, int k) {
    static const double shares[SHARES] = {0.9, 0.7, 0.5, 0.3};
    /* Without AVX-512 one sample of LeNet-5 takes a third of what 64 do. */
    const double least = network == 0 && !check_device() && twi_cpu_isa() < TWI_ISA_AVX512 ? 0.35 : 0;
    return fmax(shares[k], least);
}

static const setting host_task = {"convolutions", convolutions, 1, 12, 48, 145},
                     device_task = {"convolutions", convolutions, 1, 8, 8, 17};
const setting *task(void) { return check_device() ? &device_task : &host_task; }
int epochs(void) { return check_device() ? 1 : 3; }
setting task_with(tw_value *(*build)(tw_model *, tw_value *)) {
    setting s = *task();
    s.build = build;
    return s;
}

tw_model *open_model(tw_context *context, const setting *s) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, context));
    tw_value *logits = s->build(model, tw_input(model, s->channels, s->side, s->side));
    CHECK_OK(tw_model_build(model, logits, TW_OPTIONS(model, .seed = 3)));
    return model;
}

tw_dataset *open_data(tw_context *context, const setting *s) {
    const size_t pixels = (size_t)s->samples * (size_t)(s->channels * s->side * s->side);
    float *images = malloc(pixels * sizeof *images);
    int32_t *labels = malloc((size_t)s->samples * sizeof *labels);
    uint32_t draw = 7;
    tw_dataset *data;
    assert_true(images && labels);
    for (size_t i = 0; i < pixels; i++) {
        draw = draw * 1664525u + 1013904223u;
        images[i] = (float)(draw >> 8) / (float)(1 << 24) + (float)(i / (pixels / (size_t)s->samples) % 10) / 10;
    }
    for (int i = 0; i < s->samples; i++) labels[i] = i % 10;
    CHECK_OK(tw_dataset_create_from(&data, context, TW_F32, images, s->samples, s->channels, s->side, s->side, labels,
                                    TW_OPTIONS(dataset, .classes = 10)));
    free(images);
    free(labels);
    return data;
}

void plan_plain(tw_model *model, const tw_dataset *data, const tw_trainer_options *options, size_t *fixed,
                size_t *planned) {
    tw_trainer *trainer;
    twi_feed train = {0}, test = {0};
    const twi_room room = {&train, &test, data, NULL};
    twi_rehearsal plan;
    CHECK_OK(tw_trainer_create(&trainer, model, options));
    CHECK_OK(twi_room_rehearse(trainer, &room, &plan));
    assert_int_equal(plan.batch, options->batch);
    *planned = plan.stats.arena_bytes + plan.stats.scratch_bytes;
    *fixed = plan.bytes - plan.shared;
    tw_trainer_destroy(trainer);
}

/* ---- fits ---- */

static bool note(void *user, const tw_progress *progress) {
    learned *l = user;
    if (l->calls < 64) l->steps[l->calls++] = progress->step;
    return l->calls == l->stop_at;
}

void open_fit(fit *f, const setting *s, tw_trainer_options options, double share) {
    size_t fixed, planned;
    *f = (fit){.l = {0}};
    CHECK_OK(tw_context_create(
        &f->context, check_device_or_cpu(),
        TW_OPTIONS(context, .threads = 2, .log = keep_line, .log_user = &f->l.log, .log_level = TW_LOG_INFO)));
    f->model = open_model(f->context, s);
    f->data = open_data(f->context, s);
    options.size = sizeof options;
    options.batch = s->batch;
    options.epochs = epochs();
    options.optimizer = (tw_optimizer_options){.learning_rate = 0.01f, .momentum = 0.9f};
    options.on_step = note;
    options.user = &f->l;
    if (share > 0) plan_plain(f->model, f->data, &options, &fixed, &planned);
    if (share > 0) options.memory_limit = fixed + (size_t)(share * (double)planned);
    CHECK_OK(tw_trainer_create(&f->trainer, f->model, &options));
}

void close_fit(fit *f) {
    tw_trainer_destroy(f->trainer);
    tw_dataset_destroy(f->data);
    tw_model_destroy(f->model);
    tw_context_destroy(f->context);
}

learned finish(fit *f) {
    learned *l = &f->l;
    tw_history_row row;
    CHECK_OK(tw_trainer_fit(f->trainer, f->data, f->data));
    l->parts = f->trainer->parts;
    l->exact = tw_trainer_is_exact(f->trainer);
    CHECK_OK(tw_trainer_get_history(f->trainer, epochs() - 1, &row));
    l->loss = row.test.loss;
    l->parameters = task_parameters(f->model, &l->count);
    close_fit(f);
    return *l;
}

learned learn(const setting *s, tw_trainer_options options, double share, void (*arrange)(tw_context *)) {
    fit f;
    open_fit(&f, s, options, share);
    if (arrange) arrange(f.context);
    return finish(&f);
}

void assert_near(const learned *a, const learned *b) {
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++)
        if (!(fabs((double)a->parameters[i] - (double)b->parameters[i]) <= 1e-4)) /* a relu that rounding decides */
            fail_msg("parameter %zu: %.9g and %.9g", i, (double)a->parameters[i], (double)b->parameters[i]);
    if (fabs(a->loss - b->loss) > 1e-5) fail_msg("loss %.9g and %.9g", a->loss, b->loss);
    assert_int_equal(a->calls, b->calls);
    for (int i = 0; i < a->calls; i++) assert_int_equal(a->steps[i], b->steps[i]);
}

void drop(learned *l) { free(l->parameters); }

/* ---- networks ---- */

/* Of the set: its order where the samples are read in place, else all of it. */
static size_t resident_bytes(const setting *s) {
    const size_t samples = (size_t)s->samples, pixels = (size_t)(s->channels * s->side * s->side);
    return check_device() ? samples * (pixels + 2) * sizeof(float) : samples * sizeof(int32_t);
}

/* The share is of activations and workspaces. */
void fit_within(const setting *s, double share, bool measured) {
    setting used = *s;
    if (!measured) used.samples = used.batch;
    lines log = {""};
    tw_context *context;
    tw_trainer *trainer;
    size_t fixed, planned;
    CHECK_OK(tw_context_create(
        &context, check_device_or_cpu(),
        TW_OPTIONS(context, .threads = 2, .log = keep_line, .log_user = &log, .log_level = TW_LOG_INFO)));
    tw_model *model = open_model(context, s);
    tw_dataset *data = open_data(context, &used);
    tw_trainer_options options = TW_TRAINER_OPTIONS_INIT;
    options.batch = s->batch;
    options.no_normalization = true;
    options.optimizer = (tw_optimizer_options){.learning_rate = 0.01f, .momentum = 0.9f};
    plan_plain(model, data, &options, &fixed, &planned);
    fixed += (measured ? 2 : 1) * resident_bytes(&used);
    const size_t most = (size_t)(share * (double)planned);
    options.memory_limit = fixed + most;
    CHECK_OK(tw_trainer_create(&trainer, model, &options));
    CHECK_OK(tw_trainer_fit(trainer, data, measured ? data : NULL));
    print_message("%s, batch %d, %.0f %%: %s\n", s->name, s->batch, 100 * share, log.text);
    /* A set that is streamed leaves some of what is granted for it. */
    const size_t left = strstr(log.text, "are streamed to the device") ? resident_bytes(&used) : 0;
    assert_true(planned > most && model->arena_bytes + model->scratch_bytes <= most + left);
    assert_true(tw_context_get_device_memory(context).peak <= options.memory_limit);
    assert_int_equal(tw_context_get_device_memory(context).bytes, twi_model_bytes(model));
    assert_true(strstr(log.text, "plan of batch") || strstr(log.text, "fit: batches of"));
    if (strstr(log.text, "fit: batches of"))
        assert_true(!strstr(log.text, "statistics of each part") == (model->store.buffer_count == 0) &&
                    !strstr(log.text, "tw_model_set_statistics_frozen") == (model->store.buffer_count == 0));
    tw_history_row row;
    assert_int_equal(tw_model_get_updates(model), (used.samples + s->batch - 1) / s->batch);
    CHECK_OK(tw_trainer_get_history(trainer, 0, &row));
    assert_int_equal(row.test.samples, measured ? used.samples : 0);
    tw_trainer_destroy(trainer);
    tw_dataset_destroy(data);
    tw_model_destroy(model);
    tw_context_destroy(context);
}
