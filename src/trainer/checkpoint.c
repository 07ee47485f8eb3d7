/* Checkpoints: a safetensors file with the model's tensors, the optimizer's moments, and in its metadata everything
 * else that decides how training goes on. docs/checkpoints.md describes it. Random numbers are named by seeds and
 * counters (src/base/philox.h), so there is no generator whose state would have to be kept. */
#include "fields.h"
#include "io/checksum.h"
#include "io/model_tensors.h"
#include "program/snapshot.h"
#include "program/update.h"
#include "trainer.h"

#include <stdio.h>
#include <string.h>

#define FORMAT_KEY "talweg.checkpoint"
#define FORMAT_VERSION "1"
#define WRITER_KEY "talweg.writer"
#define HISTORY_KEY "history"
#define MOMENTS "optimizer."
#define SNAPSHOT MOMENTS "snapshot."

/* ---- tables of what the metadata hold ---- */

/* What the trainer that goes on must have alike. */
typedef struct settings {
    tw_trainer_options options; /* optimizer.schedule as it was given */
    uint64_t model_seed;
} settings;

/* clang-format off */
#define SETTING(name, type, field) {.key = name, .kind = &twi_field_##type, .offset = offsetof(settings, field)}
#define LATER(name, type, field, text) {.key = name, .kind = &twi_field_##type, .offset = offsetof(settings, field), .preset = text}
static const twi_field setting_fields[] = {
    SETTING("model.seed", uint64, model_seed),
    SETTING("seed", uint64, options.seed),
    SETTING("batch", int, options.batch),
    SETTING("accumulate", int, options.accumulate),
    SETTING("no_shuffle", bool, options.no_shuffle),
    SETTING("drop_last", bool, options.drop_last),
    SETTING("flip", bool, options.flip),
    SETTING("crop_padding", int, options.crop_padding),
    SETTING("no_normalization", bool, options.no_normalization),
    SETTING("normalization", normalization, options.normalization),
    SETTING("label_smoothing", float, options.label_smoothing),
    SETTING("warmup_epochs", double, options.warmup_epochs),
    SETTING("optimizer.kind", optimizer, options.optimizer.kind),
    SETTING("optimizer.learning_rate", double, options.optimizer.learning_rate),
    SETTING("optimizer.momentum", float, options.optimizer.momentum),
    SETTING("optimizer.nesterov", bool, options.optimizer.nesterov),
    SETTING("optimizer.beta1", float, options.optimizer.beta1),
    SETTING("optimizer.beta2", float, options.optimizer.beta2),
    SETTING("optimizer.epsilon", float, options.optimizer.epsilon),
    SETTING("optimizer.weight_decay", float, options.optimizer.weight_decay),
    SETTING("optimizer.decay_all", bool, options.optimizer.decay_all),
    SETTING("optimizer.clip_norm", float, options.optimizer.clip_norm),
    SETTING("loss_scaling.initial", double, options.loss_scaling.initial),
    SETTING("loss_scaling.growth", double, options.loss_scaling.growth),
    SETTING("loss_scaling.backoff", double, options.loss_scaling.backoff),
    SETTING("loss_scaling.growth_interval", int64, options.loss_scaling.growth_interval),
    SETTING("loss_scaling.minimum", double, options.loss_scaling.minimum),
    SETTING("loss_scaling.maximum", double, options.loss_scaling.maximum),
    SETTING("loss_scaling.patience", int64, options.loss_scaling.patience),
    SETTING("on_non_finite", non_finite, options.on_non_finite),
    SETTING("snapshot_every", int64, options.snapshot_every),
    SETTING("schedule.kind", schedule, options.optimizer.schedule.kind),
    SETTING("schedule.warmup", int64, options.optimizer.schedule.warmup),
    SETTING("schedule.total", int64, options.optimizer.schedule.total),
    SETTING("schedule.every", int64, options.optimizer.schedule.every),
    SETTING("schedule.factor", double, options.optimizer.schedule.factor),
    SETTING("schedule.minimum", double, options.optimizer.schedule.minimum),
    LATER("precision", precision, options.precision, "f32"),
    LATER("precision_rules", rules, options, "0:"),
    {.key = NULL},
};

/* What it takes over. */
typedef struct state {
    twi_position position;
    tw_normalization normalization;
    uint64_t attempts, updates;
    double learning_rate;
    double scale;
    int64_t good, skipped, in_a_row, rolled_back;
    twi_snapshot_mark snapshot;
} state;

#define STATE(name, type, field) {.key = name, .kind = &twi_field_##type, .offset = offsetof(state, field)}
static const twi_field state_fields[] = {
    STATE("attempts", uint64, attempts),
    STATE("updates", uint64, updates),
    STATE("learning_rate", double, learning_rate),
    STATE("guard.scale", double, scale),
    STATE("guard.good", int64, good),
    STATE("guard.skipped", int64, skipped),
    STATE("guard.skipped_in_a_row", int64, in_a_row),
    STATE("guard.rolled_back", int64, rolled_back),
    STATE("snapshot.taken", bool, snapshot.taken),
    STATE("snapshot.returned", bool, snapshot.returned),
    STATE("snapshot.updates", uint64, snapshot.updates),
    STATE("snapshot.learning_rate", double, snapshot.learning_rate),
    STATE("snapshot.scale", double, snapshot.scale),
    STATE("snapshot.good", int64, snapshot.good),
    STATE("normalization.used", normalization, normalization),
    STATE("fit.first_epoch", int, position.first_epoch),
    STATE("fit.first_update", uint64, position.first_update),
    STATE("epoch", int, position.epoch),
    STATE("step", int64, position.step),
    STATE("tally.loss", double, position.tally.loss),
    STATE("tally.top1", int64, position.tally.top1),
    STATE("tally.top5", int64, position.tally.top5),
    STATE("tally.samples", int64, position.tally.samples),
    STATE("seconds.training", double, position.training),
    STATE("seconds.elapsed", double, position.elapsed),
    STATE("schedule.updates", int64, position.origin.schedule),
    STATE("plan", uint64, position.origin.plan),
    STATE("exact", bool, position.exact),
    {.key = NULL},
};

/* What the next fit must find alike. */
#define ORIGIN(name, type, field) {.key = name, .kind = &twi_field_##type, .offset = offsetof(twi_origin, field)}
static const twi_field origin_fields[] = {
    ORIGIN("data.samples", int64, samples),
    ORIGIN("data.channels", int, channels),
    ORIGIN("data.height", int, height),
    ORIGIN("data.width", int, width),
    ORIGIN("data.classes", int, classes),
    ORIGIN("data.hash", uint64, data),
    ORIGIN("trainable", int, trainable),
    {.key = NULL},
};

/* A row of the history is its numbers with blanks between, and a semicolon behind the last. */
#define ROW(type, field) {.key = #field, .kind = &twi_field_##type, .offset = offsetof(tw_history_row, field)}
static const twi_field row_fields[] = {
    ROW(int, epoch), ROW(double, learning_rate), ROW(double, seconds), ROW(double, images_per_second),
    ROW(double, train.loss), ROW(double, train.top1), ROW(double, train.top5), ROW(int64, train.samples),
    ROW(double, test.loss), ROW(double, test.top1), ROW(double, test.top5), ROW(int64, test.samples),
    {.key = NULL},
};
/* clang-format on */

static settings settings_of(const tw_trainer *trainer) {
    settings s = {trainer->options, trainer->model->seed};
    s.options.optimizer.schedule = trainer->schedule;
    return s;
}

/* From a callback of fit there may be batches on their way, which are part of what the model is when they are over. */
static tw_status state_of(const tw_trainer *trainer, state *out) {
    const twi_store *store = &trainer->model->store;
    twi_position position = trainer->position;
    if (trainer->fitting) TWI_TRY(twi_position_settle(trainer, &position));
    *out = (state){.position = position,
                   .normalization = trainer->normalization,
                   .attempts = store->attempts,
                   .updates = store->updates,
                   .learning_rate = store->learning_rate,
                   .scale = store->guard.scale,
                   .good = store->guard.good,
                   .skipped = store->guard.skipped,
                   .in_a_row = store->guard.in_a_row,
                   .rolled_back = store->rolled_back,
                   .snapshot = store->snapshot.at};
    return TW_OK;
}

/* ---- tensors ---- */

/* Is the snapshot another state than the model's own? They are one where no update was made since. */
static bool has_snapshot(const twi_snapshot_mark *snapshot, uint64_t updates) {
    return snapshot->taken && snapshot->updates != updates;
}

static tw_status list_tensors(const tw_trainer *trainer, bool snapshot, twi_model_tensors *list) {
    static const char *const prefixes[TWI_MOMENTS] = {MOMENTS "momentum.", MOMENTS "exp_avg.", MOMENTS "exp_avg_sq."};
    static const char *const kept[TWI_MOMENTS + 1] = {SNAPSHOT "momentum.", SNAPSHOT "exp_avg.", SNAPSHOT "exp_avg_sq.",
                                                      SNAPSHOT "values."};
    const twi_moments moments = twi_optimizer_moments(&trainer->options.optimizer);
    TWI_TRY(twi_model_tensors_list(list, trainer->model, prefixes, moments));
    return snapshot ? twi_model_tensors_add_snapshot(list, kept, moments) : TW_OK;
}

/* Moments are there once a program needs them. */
static tw_status need_moments(const tw_trainer *trainer) {
    return twi_store_need_moments(&trainer->model->store, twi_optimizer_moments(&trainer->options.optimizer));
}

static tw_status check_names(const tw_model *model) {
    for (int i = 0; i < model->store.count; i++)
        if (strncmp(model->store.parameter[i].name, MOMENTS, sizeof MOMENTS - 1) == 0)
            return TWI_FAIL(TW_ERROR_UNSUPPORTED,
                            "a checkpoint keeps the optimizer's state under names that begin with '" MOMENTS
                            "', as the parameter '%s' does: give its layer another name",
                            model->store.parameter[i].name);
    return TW_OK;
}

tw_status twi_checkpoint_check(const tw_trainer *trainer) {
    twi_atomic_file file;
    if (!trainer->checkpoint) return TW_OK;
    TWI_TRY(check_names(trainer->model));
    TWI_TRY(twi_atomic_file_open(&file, trainer->memory, trainer->checkpoint));
    twi_atomic_file_drop(&file);
    return TW_OK;
}

/* ---- saving ---- */

/* Versions and machine: between others the same plan may round otherwise. */
static void print_writer(const tw_trainer *trainer, char text[TWI_FIELD_TEXT]) {
    const tw_context *context = tw_model_get_context(trainer->model);
    snprintf(text, TWI_FIELD_TEXT, "talweg %s, %s: %s", tw_version(), context->device_name, context->machine);
}

static void add_number(twi_text *text, const char *key, const char *value) {
    (void)key;
    twi_text_add(text, "%s ", value);
}

static tw_status print_history(const tw_trainer *trainer, char **out) {
    twi_text text;
    twi_text_init(&text, trainer->memory);
    for (int i = 0; i < trainer->position.epoch; i++) {
        twi_fields_print(row_fields, &trainer->history[i], &text, add_number);
        twi_text_add(&text, ";");
    }
    return twi_text_take(&text, out);
}

static tw_status print_metadata(const tw_trainer *trainer, char **out) {
    const settings given = settings_of(trainer);
    state now;
    char writer[TWI_FIELD_TEXT], *history;
    twi_text text;
    TWI_TRY(state_of(trainer, &now));
    TWI_TRY(print_history(trainer, &history));
    print_writer(trainer, writer);
    twi_text_init(&text, trainer->memory);
    twi_metadata_add(&text, FORMAT_KEY, FORMAT_VERSION);
    twi_metadata_add(&text, WRITER_KEY, writer);
    twi_metadata_add(&text, TWI_CHECKSUM_KEY, TWI_CHECKSUM_EMPTY);
    twi_fields_print(setting_fields, &given, &text, twi_metadata_add);
    twi_fields_print(state_fields, &now, &text, twi_metadata_add);
    twi_fields_print(origin_fields, &now.position.origin, &text, twi_metadata_add);
    twi_metadata_add(&text, HISTORY_KEY, history);
    twi_put(trainer->memory, history);
    return twi_text_take(&text, out);
}

static tw_status save(const tw_trainer *trainer, const char *path) {
    twi_model_tensors list;
    char *metadata;
    TWI_TRY(check_names(trainer->model));
    TWI_TRY(need_moments(trainer));
    void *before = twi_plain_numbers_enter();
    tw_status status = print_metadata(trainer, &metadata);
    twi_plain_numbers_leave(before);
    TWI_TRY(status);
    const twi_store *store = &trainer->model->store;
    status = list_tensors(trainer, has_snapshot(&store->snapshot.at, store->updates), &list);
    if (status == TW_OK) status = twi_model_tensors_save(&list, metadata, path);
    if (list.model) twi_model_tensors_free(&list);
    twi_put(trainer->memory, metadata);
    return status;
}

tw_status tw_trainer_save(const tw_trainer *trainer, const char *path) {
    if (!trainer || !path)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_save: %s is NULL", trainer ? "path" : "trainer");
    tw_status status = save(trainer, path);
    return status ? twi_fail_within(status, "tw_trainer_save") : TW_OK;
}

/* ---- loading: what can fail ---- */

/* Everything a file gives, before anything in the trainer changes. */
typedef struct loaded {
    const twi_tensor_file *file;
    state state;
    tw_history_row *history; /* state.position.epoch rows */
    twi_model_tensors list;
    twi_model_values values;
} loaded;

static const char *find_text(const void *source, const char *key) { return twi_tensor_file_find(source, key); }

static tw_status check_format(const twi_tensor_file *file) {
    const char *format = twi_tensor_file_find(file, FORMAT_KEY);
    if (!format)
        return TWI_FAIL(TW_ERROR_FORMAT, "%s: is no checkpoint; weights alone are loaded with tw_model_load",
                        file->path);
    if (strcmp(format, FORMAT_VERSION) != 0)
        return TWI_FAIL(TW_ERROR_FORMAT, "%s: is a checkpoint of format %.20s, this library reads " FORMAT_VERSION,
                        file->path, format);
    return TW_OK;
}

static tw_status refuse(const twi_text *differences, const char *where, const char *what) {
    TWI_TRY(differences->status);
    if (!differences->length) return TW_OK;
    return TWI_FAIL(TW_ERROR_MISMATCH, "%s was written with another%s: go on with %s, or begin anew without it", where,
                    differences->data, what);
}

static tw_status check_settings(const tw_trainer *trainer, const twi_tensor_file *file) {
    const settings here = settings_of(trainer);
    twi_text differences;
    twi_text_init(&differences, trainer->memory);
    tw_status status = twi_fields_compare(setting_fields, &here, find_text, file, file->path, &differences);
    if (status == TW_OK) status = refuse(&differences, file->path, "the options it was written with");
    twi_text_free(&differences);
    return status;
}

static const char *parse_row(const char *text, tw_history_row *row) {
    for (const twi_field *field = row_fields; text && field->key; field++) {
        text = field->kind->parse(text, (char *)row + field->offset);
        text = text && *text == ' ' ? text + 1 : NULL;
    }
    return text && *text == ';' ? text + 1 : NULL;
}

/* Every row takes at least two bytes a number: what a file claims, its size must bear out. */
static tw_status parse_history(loaded *l, twi_memory *memory) {
    const int rows = l->state.position.epoch;
    const char *text = twi_tensor_file_find(l->file, HISTORY_KEY);
    const size_t least = 2 * (sizeof row_fields / sizeof *row_fields - 1) + 1;
    if (!text || strlen(text) / least < (size_t)rows) text = NULL;
    if (text) TWI_TRY(twi_get(memory, &l->history, (size_t)rows, sizeof *l->history, "history"));
    for (int i = 0; text && i < rows; i++) {
        text = parse_row(text, &l->history[i]);
        if (l->history[i].epoch != i + 1) text = NULL;
    }
    if (!text || *text)
        return TWI_FAIL(TW_ERROR_FORMAT, "%s: 'history' of its metadata is not the %d epochs that are done",
                        l->file->path, rows);
    return TW_OK;
}

static tw_status parse_texts(loaded *l, const tw_trainer *trainer) {
    const twi_tensor_file *file = l->file;
    TWI_TRY(check_settings(trainer, file));
    TWI_TRY(twi_fields_parse(state_fields, &l->state, find_text, file, file->path));
    TWI_TRY(twi_fields_parse(origin_fields, &l->state.position.origin, find_text, file, file->path));
    if (l->state.position.first_epoch > l->state.position.epoch)
        return TWI_FAIL(TW_ERROR_FORMAT, "%s: its fit began with epoch %d, after the %d that are done", file->path,
                        l->state.position.first_epoch, l->state.position.epoch);
    return parse_history(l, trainer->memory);
}

static tw_status read_all(loaded *l, const tw_trainer *trainer) {
    TWI_TRY(check_format(l->file));
    void *before = twi_plain_numbers_enter();
    tw_status status = parse_texts(l, trainer);
    twi_plain_numbers_leave(before);
    TWI_TRY(status);
    TWI_TRY(list_tensors(trainer, has_snapshot(&l->state.snapshot, l->state.updates), &l->list));
    TWI_TRY(twi_model_values_read(&l->values, &l->list, l->file, false, "build the network it was written of"));
    TWI_TRY(need_moments(trainer));
    if (!l->state.snapshot.taken) return TW_OK;
    return twi_snapshot_open(&trainer->model->store, twi_optimizer_moments(&trainer->options.optimizer));
}

/* ---- loading: the change ---- */

static void swap_history(tw_trainer *trainer, loaded *l) {
    tw_history_row *before = trainer->history;
    trainer->history = l->history;
    trainer->history_count = trainer->history_capacity = l->state.position.epoch;
    l->history = before;
}

static void note_writer(tw_trainer *trainer, const twi_tensor_file *file) {
    const char *writer = twi_tensor_file_find(file, WRITER_KEY);
    char own[TWI_FIELD_TEXT];
    print_writer(trainer, own);
    if (writer && strcmp(writer, own) == 0) return;
    trainer->position.exact = false;
    twi_log_line(&tw_model_get_context(trainer->model)->log, TW_LOG_WARNING,
                 "%s: written by %.200s, gone on with by %s: it goes on from the same state, but not bit for bit",
                 file->path, writer ? writer : "an unknown program", own);
}

static tw_status change(tw_trainer *trainer, loaded *l) {
    twi_store *store = &trainer->model->store;
    TWI_TRY(twi_model_values_write(&l->values, &l->list, trainer->model));
    swap_history(trainer, l);
    store->attempts = l->state.attempts;
    store->updates = l->state.updates;
    store->learning_rate = l->state.learning_rate;
    if (l->state.snapshot.taken && !has_snapshot(&l->state.snapshot, store->updates))
        TWI_TRY(twi_snapshot_take(store, twi_optimizer_moments(&trainer->options.optimizer)));
    store->snapshot.at = l->state.snapshot;
    store->guard.scale = l->state.scale;
    store->guard.good = l->state.good;
    store->guard.skipped = l->state.skipped;
    store->guard.in_a_row = l->state.in_a_row;
    store->rolled_back = l->state.rolled_back;
    trainer->normalization = l->state.normalization;
    trainer->position = l->state.position;
    trainer->loaded = true;
    trainer->loaded_version = store->version;
    note_writer(trainer, l->file);
    return TW_OK;
}

static tw_status load(tw_trainer *trainer, const char *path) {
    twi_tensor_file file;
    TWI_TRY(twi_tensor_file_open(&file, trainer->memory, path));
    loaded l = {.file = &file};
    tw_status status = twi_checksum_verify(&file);
    if (status == TW_OK) status = read_all(&l, trainer);
    if (status == TW_OK) status = change(trainer, &l);
    if (l.list.model) {
        twi_model_values_free(&l.values, &l.list);
        twi_model_tensors_free(&l.list);
    }
    twi_put(trainer->memory, l.history);
    twi_tensor_file_close(&file);
    return status;
}

tw_status tw_trainer_load(tw_trainer *trainer, const char *path) {
    if (!trainer || !path)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_load: %s is NULL", trainer ? "path" : "trainer");
    if (trainer->fitting)
        return TWI_FAIL(TW_ERROR_STATE, "tw_trainer_load: called from a callback of a fit that is under way");
    tw_status status = load(trainer, path);
    return status ? twi_fail_within(status, "tw_trainer_load") : TW_OK;
}

/* ---- going on ---- */

bool tw_trainer_is_exact(const tw_trainer *trainer) { return trainer && trainer->position.exact; }

static void note_difference(tw_trainer *trainer, const char *what, const char *effect) {
    trainer->position.exact = false;
    twi_log_line(&tw_model_get_context(trainer->model)->log, TW_LOG_WARNING,
                 "fit: goes on from a checkpoint with %s: %s", what, effect);
}

tw_status twi_checkpoint_compare(tw_trainer *trainer, const twi_origin *now) {
    static const char inexact[] = "not bit for bit what it would have been";
    const twi_origin *then = &trainer->position.origin;
    twi_text differences;
    if (!then->samples) return TW_OK; /* of a trainer that never trained */
    twi_text_init(&differences, trainer->memory);
    twi_fields_differ(origin_fields, now, then, &differences);
    tw_status status = refuse(&differences, "the checkpoint", "the data set it was written with");
    twi_text_free(&differences);
    TWI_TRY(status);
    if (now->plan != then->plan || !now->plan)
        note_difference(trainer, now->plan ? "another plan" : "ops whose runs are never the same", inexact);
    if (trainer->model->store.version != trainer->loaded_version)
        note_difference(trainer, "weights that were changed since it was loaded", inexact);
    if (now->schedule != then->schedule && trainer->schedule.kind == TW_SCHEDULE_COSINE)
        note_difference(trainer, "another number of updates", "its schedule is spread over them anew");
    return TW_OK;
}
