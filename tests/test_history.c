/* The history as rows, CSV and picture; files that cannot be written. */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */
#include "small_task.h"

#include <dirent.h>
#include <locale.h>
#include <stdio.h>
#include <unistd.h>

static char folder[] = "/tmp/talweg-history-XXXXXX";
static tw_dataset *data;
static tw_model *model;

static const char *path_of(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* The whole of a small file, to be freed. */
static char *contents_of(const char *path) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    return text;
}

static int files_in_folder(void) {
    int count = 0;
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    while (readdir(listing)) count++;
    closedir(listing);
    return count - 2; /* without . and .. */
}

static int occurrences(const char *text, const char *part) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)); at++) count++;
    return count;
}

static tw_trainer *fitted(int epochs, int evaluate_every, const tw_dataset *test) {
    tw_trainer *trainer;
    CHECK_OK(tw_trainer_create(&trainer, model,
                               TW_OPTIONS(trainer, .epochs = epochs, .batch = 4, .evaluate_every = evaluate_every)));
    CHECK_OK(tw_trainer_fit(trainer, data, test));
    return trainer;
}

static int open_all(void **state) {
    if (task_open(state) || !mkdtemp(folder)) return -1;
    data = task_data(task_context, 10, 1);
    model = task_plain_model(task_context, 1);
    return 0;
}

static int close_all(void **state) {
    tw_model_destroy(model);
    tw_dataset_destroy(data);
    unlink(path_of("history.csv"));
    unlink(path_of("curve.svg"));
    int left = rmdir(folder);
    memcpy(folder + strlen(folder) - 6, "XXXXXX", 6);
    return task_close(state) || left;
}

/* ---- rows and CSV ---- */

static void rows_end_where_they_end(void **state) {
    (void)state;
    tw_trainer *trainer = fitted(2, 1, data);
    tw_history_row row;
    CHECK_OK(tw_trainer_get_history(trainer, 1, &row));
    assert_int_equal(row.epoch, 2);
    CHECK_FAILS(tw_trainer_get_history(trainer, 2, &row), TW_ERROR_ARGUMENT, "row 2; there are 2 rows");
    CHECK_FAILS(tw_trainer_get_history(trainer, -1, &row), TW_ERROR_ARGUMENT, "row -1");
    CHECK_FAILS(tw_trainer_get_history(trainer, 0, NULL), TW_ERROR_ARGUMENT, "out is NULL");
    assert_int_equal(tw_trainer_count_history(NULL), 0);
    tw_trainer_destroy(trainer);
}

/* Reads a row back: ten fields, empty ones left as they are. */
static int parse_row(const char *line, double field[10]) {
    int filled = 0;
    for (int i = 0; i < 10; i++) {
        char *end = (char *)(uintptr_t)line;
        if (*line != ',' && *line != '\n') {
            field[i] = strtod(line, &end);
            filled++;
        }
        if (*end != (i < 9 ? ',' : '\n')) return -1;
        line = end + 1;
    }
    return filled;
}

static void csv_holds_every_row(void **state) {
    (void)state;
    tw_trainer *trainer = fitted(3, 2, data);
    CHECK_OK(tw_trainer_save_history(trainer, path_of("history.csv")));
    char *text = contents_of(path_of("history.csv")), *line = text;
    static const char header[] = "epoch,learning_rate,seconds,images_per_second,train_loss,train_top1,train_top5,test_"
                                 "loss,test_top1,test_top5\n";
    assert_memory_equal(line, header, sizeof header - 1);
    line += sizeof header - 1;
    for (int i = 0; i < 3; i++) {
        tw_history_row row;
        double field[10];
        CHECK_OK(tw_trainer_get_history(trainer, i, &row));
        assert_int_equal(parse_row(line, field), row.test.samples ? 10 : 7);
        assert_true(field[0] == i + 1);
        assert_float_equal(field[1], row.learning_rate, 1e-9);
        assert_float_equal(field[4], row.train.loss, 1e-6);
        assert_float_equal(field[5], row.train.top1, 1e-6);
        if (row.test.samples) assert_float_equal(field[7], row.test.loss, 1e-6);
        if (row.test.samples) assert_float_equal(field[9], row.test.top5, 1e-6);
        line = strchr(line, '\n') + 1;
    }
    assert_int_equal(*line, 0);
    free(text);
    tw_trainer_destroy(trainer);
}

/* A program whose locale writes 0,5 still gets files that others can read, and keeps its locale. */
static void numbers_do_not_follow_the_locale(void **state) {
    (void)state;
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8") && !setlocale(LC_NUMERIC, "fr_FR.UTF-8")) {
        print_message("skipped: no locale with a decimal comma is installed\n");
        skip();
    }
    char number[8];
    tw_trainer *trainer = fitted(1, 1, data);
    CHECK_OK(tw_trainer_save_history(trainer, path_of("history.csv")));
    CHECK_OK(tw_trainer_save_curve(trainer, path_of("curve.svg")));
    snprintf(number, sizeof number, "%.1f", 0.5);
    setlocale(LC_NUMERIC, "C");
    assert_string_equal(number, "0,5");
    char *csv = contents_of(path_of("history.csv")), *svg = contents_of(path_of("curve.svg"));
    assert_int_equal(occurrences(csv, ","), 2 * 9);
    assert_int_equal(occurrences(svg, "x=\"76,"), 0);
    free(csv);
    free(svg);
    tw_trainer_destroy(trainer);
}

/* ---- the picture ---- */

static int points_of(const char *svg, int index) {
    const char *at = svg;
    for (int i = 0; i <= index; i++) at = strstr(at + 1, "points=\"");
    int count = 0;
    for (at += strlen("points=\""); *at != '"'; at++) count += *at == ',';
    return count;
}

static void picture_draws_every_epoch(void **state) {
    (void)state;
    const int lengths[] = {1, 2, 20, 60};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        tw_trainer *trainer = fitted(lengths[i], 2, data);
        CHECK_OK(tw_trainer_save_curve(trainer, path_of("curve.svg")));
        char *svg = contents_of(path_of("curve.svg"));
        assert_memory_equal(svg, "<svg ", 5);
        assert_string_equal(svg + strlen(svg) - 7, "</svg>\n");
        assert_int_equal(occurrences(svg, "<text"), occurrences(svg, "</text>"));
        assert_int_equal(occurrences(svg, "<polyline"), 4);
        assert_int_equal(points_of(svg, 0), lengths[i]);
        assert_int_equal(points_of(svg, 1), (lengths[i] + 1) / 2);
        for (const char *word = "nan"; word; word = strcmp(word, "nan") == 0 ? "inf" : NULL)
            assert_null(strstr(svg, word));
        assert_non_null(strstr(svg, lengths[i] == 1 ? "1 epoch," : "epochs,"));
        free(svg);
        tw_trainer_destroy(trainer);
    }
}

static void no_epochs_no_picture(void **state) {
    (void)state;
    tw_trainer *trainer;
    CHECK_OK(tw_trainer_create(&trainer, model, NULL));
    CHECK_FAILS(tw_trainer_save_curve(trainer, path_of("curve.svg")), TW_ERROR_STATE, "no epoch");
    assert_int_equal(files_in_folder(), 0);
    tw_trainer_destroy(trainer);
}

/* ---- trouble with files ---- */

static void a_file_that_cannot_be_written_is_named(void **state) {
    (void)state;
    tw_status (*const saves[])(const tw_trainer *, const char *) = {tw_trainer_save_history, tw_trainer_save_curve};
    tw_trainer *trainer = fitted(1, 1, data);
    for (int i = 0; i < 2; i++) {
        CHECK_FAILS(saves[i](trainer, "/nowhere/file"), TW_ERROR_FILE, "/nowhere/file");
        /* through a link, so that a save gone wrong replaces the link and not the machine's device */
        assert_int_equal(symlink("/dev/full", path_of("full")), 0);
        CHECK_FAILS(saves[i](trainer, path_of("full")), TW_ERROR_FILE, "No space left");
        assert_int_equal(unlink(path_of("full")), 0);
        CHECK_FAILS(saves[i](trainer, NULL), TW_ERROR_ARGUMENT, "path is NULL");
        CHECK_FAILS(saves[i](NULL, "x"), TW_ERROR_ARGUMENT, "trainer is NULL");
        CHECK_OK(saves[i](trainer, path_of("history.csv"))); /* over the one that is there, and nothing beside it */
        assert_int_equal(files_in_folder(), 1);
    }
    tw_trainer_destroy(trainer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rows_end_where_they_end, open_all, close_all),
        cmocka_unit_test_setup_teardown(csv_holds_every_row, open_all, close_all),
        cmocka_unit_test_setup_teardown(numbers_do_not_follow_the_locale, open_all, close_all),
        cmocka_unit_test_setup_teardown(picture_draws_every_epoch, open_all, close_all),
        cmocka_unit_test_setup_teardown(no_epochs_no_picture, open_all, close_all),
        cmocka_unit_test_setup_teardown(a_file_that_cannot_be_written_is_named, open_all, close_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
