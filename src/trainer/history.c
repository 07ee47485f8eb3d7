/* What each epoch brought: rows, and the rows as CSV. */
#include "trainer.h"
#include "base/text.h"

#include <limits.h>

tw_status twi_history_reserve(tw_trainer *trainer, int epochs) {
    const int wanted = trainer->history_count + epochs, capacity = trainer->history_capacity;
    if (wanted <= capacity) return TW_OK;
    const int doubled = capacity > INT_MAX / 2 ? INT_MAX : 2 * capacity;
    const int grown = wanted > doubled ? wanted : doubled;
    TWI_TRY(twi_grow(trainer->memory, &trainer->history, (size_t)grown, sizeof *trainer->history, "history"));
    trainer->history_capacity = grown;
    return TW_OK;
}

void twi_history_add(tw_trainer *trainer, const tw_history_row *row) {
    trainer->history[trainer->history_count++] = *row;
}

int tw_trainer_count_history(const tw_trainer *trainer) { return trainer ? trainer->history_count : 0; }

tw_status tw_trainer_get_history(const tw_trainer *trainer, int index, tw_history_row *out) {
    if (!trainer || !out)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_get_history: %s is NULL", trainer ? "out" : "trainer");
    *out = (tw_history_row){0};
    if (index < 0 || index >= trainer->history_count)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_get_history: row %d; there are %d rows, from 0", index,
                        trainer->history_count);
    *out = trainer->history[index];
    return TW_OK;
}

tw_status twi_history_save(const tw_trainer *trainer, const char *path,
                           void (*write)(const tw_trainer *trainer, twi_atomic_file *file)) {
    twi_atomic_file file;
    TWI_TRY(twi_atomic_file_open(&file, trainer->memory, path));
    void *before = twi_plain_numbers_enter();
    write(trainer, &file);
    twi_plain_numbers_leave(before);
    return twi_atomic_file_commit(&file);
}

/* Leaves its fields empty where nothing was measured. */
static void write_metrics(twi_atomic_file *file, const tw_metrics *metrics) {
    if (metrics->samples)
        twi_atomic_file_print(file, ",%.8g,%.8g,%.8g", metrics->loss, metrics->top1, metrics->top5);
    else
        twi_atomic_file_print(file, ",,,");
}

static void write_csv(const tw_trainer *trainer, twi_atomic_file *file) {
    twi_atomic_file_print(file, "epoch,learning_rate,seconds,images_per_second,train_loss,train_top1,train_top5,test_"
                                "loss,test_top1,test_top5\n");
    for (int i = 0; i < trainer->history_count; i++) {
        const tw_history_row *row = &trainer->history[i];
        twi_atomic_file_print(file, "%d,%.8g,%.6g,%.6g", row->epoch, row->learning_rate, row->seconds,
                              row->images_per_second);
        write_metrics(file, &row->train);
        write_metrics(file, &row->test);
        twi_atomic_file_print(file, "\n");
    }
}

tw_status tw_trainer_save_history(const tw_trainer *trainer, const char *path) {
    if (!trainer || !path)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_save_history: %s is NULL", trainer ? "path" : "trainer");
    return twi_history_save(trainer, path, write_csv);
}
