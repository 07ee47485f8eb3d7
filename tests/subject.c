/* What the tests of windows share. */
#include "subject.h"
#include "clear_samples.h"
#include "program/model.h"
#include "small_task.h"

static const tw_optimizer_options sgd = {
    .size = sizeof sgd, .learning_rate = 0.05, .momentum = 0.9f, .weight_decay = 1e-3f};

tw_value *subject_batch_norm(tw_model *model, tw_value *x) {
    x = tw_batch_norm(model, tw_conv2d(model, x, 4, 5, NULL), NULL);
    return tw_dense(model, tw_max_pool(model, tw_dropout(model, tw_relu(model, x), 0.2f), 4, NULL), SUBJECT_CLASSES,
                    NULL);
}

uint32_t subject_hash(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 16;
    x *= 0x846CA68Bu;
    return x ^ x >> 16;
}

static void make_samples_at(subject *s, int64_t place, int64_t first, int64_t count, int classes) {
    for (int64_t n = place; n < place + count; n++) {
        uint32_t sample = (uint32_t)(first + n - place);
        s->label[n] = (int32_t)(subject_hash(sample) % (uint32_t)classes);
        for (int64_t p = 0; p < s->pixels; p++) {
            float noise = (float)(subject_hash(sample * (uint32_t)s->pixels + (uint32_t)p) >> 8) * 0x1p-24f;
            float pattern = (float)((s->label[n] * 7919 + p * 104729) % 251) / 251.0f;
            s->image[n * s->pixels + p] = noise + pattern - 1;
        }
    }
}

void subject_samples(subject *s, int64_t first, int64_t count, int classes) {
    make_samples_at(s, 0, first, count, classes);
}

void subject_clear_samples(subject *s, int64_t *next, int64_t count) {
    bool clear[SUBJECT_MOST];
    for (int64_t have = 0; have < count;) {
        make_samples_at(s, have, *next, count - have, SUBJECT_CLASSES);
        *next += count - have;
        find_clear_samples(s->model, s->x, s->image, count, clear);
        for (int64_t n = have; n < count; n++)
            if (clear[n]) {
                memmove(s->image + have * s->pixels, s->image + n * s->pixels, (size_t)s->pixels * sizeof *s->image);
                s->label[have++] = s->label[n];
            }
    }
}

subject subject_open(tw_context *context, build_fn build, int64_t pixels) {
    subject s = {.context = context, .pixels = pixels, .optimizer = &sgd};
    CHECK_OK(tw_model_create(&s.model, context));
    s.x = pixels == SUBJECT_PIXELS ? tw_input(s.model, 1, 28, 28) : tw_input_shaped(s.model, "x", 1, &pixels);
    s.labels = tw_input_labels(s.model, NULL);
    tw_value *logits = build(s.model, s.x);
    s.loss = tw_cross_entropy(s.model, logits, s.labels, NULL);
    CHECK_OK(tw_model_build(s.model, logits, TW_OPTIONS(model, .seed = 3)));
    assert_non_null(s.image = malloc((size_t)(SUBJECT_MOST * pixels) * sizeof *s.image));
    return s;
}

void subject_close(subject *s) {
    for (int i = 0; i <= SUBJECT_MOST; i++) tw_program_destroy(s->program[i]);
    tw_model_destroy(s->model);
    free(s->image);
}

tw_program *subject_program(const subject *s, int64_t batch, bool accumulate) {
    tw_program *program;
    CHECK_OK(tw_program_create(&program, s->model, batch,
                               TW_OPTIONS(program, .train = true, .losses = &(tw_loss){s->loss, 0}, .loss_count = 1,
                                          .optimizer = s->optimizer, .accumulate = accumulate, .record_passes = true)));
    return program;
}

tw_program *subject_fed(subject *s, int64_t first, int64_t batch) {
    if (!s->program[batch]) s->program[batch] = subject_program(s, batch, true);
    CHECK_OK(tw_program_write(s->program[batch], s->x, TW_F32, s->image + first * s->pixels, batch * s->pixels));
    CHECK_OK(tw_program_write(s->program[batch], s->labels, TW_I32, s->label + first, batch));
    return s->program[batch];
}

tw_program *subject_sum(subject *s, const int *batches) {
    tw_program *program = NULL;
    int64_t total = 0, first = 0;
    for (int i = 0; batches[i]; i++) total += batches[i];
    CHECK_OK(tw_window_open(s->model, total));
    for (int i = 0; batches[i]; first += batches[i++]) {
        program = subject_fed(s, first, batches[i]);
        CHECK_OK(tw_program_run_gradients(program));
    }
    return program;
}

double subject_step(subject *s, const int *batches) {
    CHECK_OK(tw_program_run_update(subject_sum(s, batches)));
    return tw_window_get_loss(s->model);
}

/* From the device's memory. */
static void read_moment(const subject *s, void *out, size_t bytes) {
    CHECK_OK(s->context->backend->copy_out(s->context, out, s->model->store.moment[0], bytes));
}

lasting subject_keep(const subject *s) {
    size_t count;
    lasting l = {.parameters = task_parameters(s->model, &count),
                 .moment_bytes = (size_t)s->model->store.learned_count * sizeof(float),
                 .updates = tw_model_get_updates(s->model),
                 .learning_rate = tw_model_get_learning_rate(s->model)};
    assert_non_null(l.moment = malloc(l.moment_bytes));
    read_moment(s, l.moment, l.moment_bytes);
    return l;
}

void subject_assert_kept(const subject *s, lasting *l) {
    assert_true(task_unchanged(s->model, l->parameters));
    void *moment = malloc(l->moment_bytes);
    assert_non_null(moment);
    read_moment(s, moment, l->moment_bytes);
    assert_memory_equal(moment, l->moment, l->moment_bytes);
    free(moment);
    assert_int_equal(tw_model_get_updates(s->model), l->updates);
    assert_true(tw_model_get_learning_rate(s->model) == l->learning_rate);
    free(l->parameters);
    free(l->moment);
}
