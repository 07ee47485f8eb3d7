/* Trials of implementations on the CPU: the choice is one of those that take the call, is remembered, shows in the plan's
 * hash, and is given up where memory or the file of choices does not allow it. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include "base/philox.h"
#include "program_net.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

enum { BATCH = 20, SIDE = 12, CHANNELS = 3, PIXELS = CHANNELS * SIDE * SIDE };

typedef struct folder {
    char path[64], file[512];
} folder;

static int open_folder(void **state) {
    static folder f;
    snprintf(f.path, sizeof f.path, "/tmp/talweg-choices-XXXXXX");
    f.file[0] = 0;
    *state = &f;
    return mkdtemp(f.path) ? 0 : 1;
}

static void find_file(folder *f) {
    DIR *list = opendir(f->path);
    assert_non_null(list);
    int files = 0;
    for (struct dirent *entry; (entry = readdir(list));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(f->file, sizeof f->file, "%s/%s", f->path, entry->d_name);
        files++;
    }
    closedir(list);
    assert_int_equal(files, 1);
}

static int close_folder(void **state) {
    folder *f = *state;
    if (*f->file) unlink(f->file);
    return rmdir(f->path);
}

/* ---- a net whose convolutions several implementations take ---- */

typedef struct lines {
    int tried, timed, ignored, one_left_out, all_left_out;
} lines;

static void count_lines(void *user, tw_log_level level, const char *message) {
    lines *l = user;
    (void)level;
    l->tried += strstr(message, ", taken") != NULL;
    l->timed += strstr(message, " us") != NULL;
    l->ignored += strstr(message, "are not read") != NULL;
    l->one_left_out += strstr(message, "is not tried by") != NULL;
    l->all_left_out += strstr(message, "is not tried:") != NULL;
}

typedef struct tuned {
    tw_context *context;
    tw_model *model;
    tw_value *x, *labels;
    tw_program *program;
    lines lines;
    uint64_t hash;
    double loss;
    char implementation[3][24]; /* of the wide convolution: forward, backward of data and of weights */
} tuned;

static tw_value *build(tw_model *model, tw_value *x) {
    x = tw_relu(model, tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1)));
    x = tw_relu(model, tw_conv2d(model, x, 16, 3, TW_OPTIONS(conv2d, .padding = 1, .name = "wide")));
    return tw_dense(model, tw_global_avg_pool(model, x), 10, NULL);
}

static void note_implementations(tuned *t) {
    static const char *const kernels[] = {"conv2d.forward", "conv2d.backward_data", "conv2d.backward_weights"};
    for (int i = 0; i < tw_program_get_stats(t->program).steps; i++) {
        tw_step_info step = TW_STEP_INFO_INIT;
        CHECK_OK(tw_program_get_step(t->program, i, &step));
        for (int k = 0; k < 3 && strcmp(step.label, "wide.product") == 0; k++)
            if (strncmp(step.kernel, kernels[k], strlen(kernels[k])) == 0)
                snprintf(t->implementation[k], sizeof t->implementation[k], "%s", step.implementation);
    }
}

static void open_net_tuned(tuned *t, tw_value *(*net)(tw_model *, tw_value *), const char *device, bool autotune,
                           const char *folder, int threads) {
    memset(t, 0, sizeof *t);
    CHECK_OK(tw_context_create(&t->context, device,
                               TW_OPTIONS(context, .threads = threads, .autotune = autotune, .cache_folder = folder,
                                          .log = count_lines, .log_user = &t->lines, .log_level = TW_LOG_DEBUG)));
    CHECK_OK(tw_model_create(&t->model, t->context));
    t->x = tw_input(t->model, CHANNELS, SIDE, SIDE);
    t->labels = tw_input_labels(t->model, NULL);
    tw_value *logits = net(t->model, t->x);
    tw_loss loss = {tw_cross_entropy(t->model, logits, t->labels, NULL), 1};
    CHECK_OK(tw_model_build(t->model, logits, TW_OPTIONS(model, .seed = 1)));
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    CHECK_OK(
        tw_program_create(&t->program, t->model, BATCH,
                          TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1, .optimizer = &sgd)));
    t->hash = tw_program_get_plan_hash(t->program);
    note_implementations(t);
}

static void open_tuned(tuned *t, const char *device, bool autotune, const char *folder, int threads) {
    open_net_tuned(t, build, device, autotune, folder, threads);
}

static void train(tuned *t) {
    static float images[BATCH * PIXELS];
    static int32_t labels[BATCH];
    for (int i = 0; i < BATCH * PIXELS; i++) images[i] = (float)(i * 29 % 97) / 97 - 0.5f;
    for (int i = 0; i < BATCH; i++) labels[i] = i % 10;
    for (int run = 0; run < 3; run++) {
        CHECK_OK(tw_program_write(t->program, t->x, TW_F32, images, BATCH * PIXELS));
        CHECK_OK(tw_program_write(t->program, t->labels, TW_I32, labels, BATCH));
        CHECK_OK(tw_program_run(t->program));
    }
    t->loss = tw_program_get_loss(t->program);
}

static void close_tuned(tuned *t) {
    tw_program_destroy(t->program);
    tw_model_destroy(t->model);
    tw_context_destroy(t->context);
}

/* ---- tests ---- */

/* Skips where no step has two implementations to choose from: without oneDNN on the baseline, or by TALWEG_CPU. */
static void need_a_choice(void) {
    tuned t;
    open_tuned(&t, "cpu", true, "", 1);
    const bool none = t.lines.tried == 0;
    close_tuned(&t);
    if (none) skip();
}

static void the_fastest_is_taken_and_remembered(void **state) {
    folder *f = *state;
    need_a_choice();
    tuned first, second, plain;
    open_tuned(&first, "cpu", true, f->path, 2);
    assert_true(first.lines.tried > 0 && first.lines.timed >= 2 * first.lines.tried);
    train(&first);
    close_tuned(&first);
    find_file(f);
    open_tuned(&second, "cpu", true, f->path, 1);
    assert_int_equal(second.lines.tried + second.lines.timed, 0); /* asked, not tried */
    assert_true(second.hash == first.hash && first.hash != 0);
    train(&second);
    assert_true(second.loss == first.loss); /* whatever the number of threads */
    close_tuned(&second);
    open_tuned(&plain, "cpu", false, f->path, 2);
    assert_int_equal(plain.lines.tried, 0);
    train(&plain);
    assert_true(plain.loss > 0.999 * first.loss && plain.loss < 1.001 * first.loss);
    close_tuned(&plain);
}

/* Rewrites the file: every choice becomes this implementation, under a sum that is right or not. */
static void rewrite(const folder *f, const char *choice, const char *header, bool right_sum) {
    static char text[1 << 16], out[1 << 16];
    FILE *file = fopen(f->file, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    char *rest, *line = strtok_r(text, "\n", &rest);
    size_t length = (size_t)snprintf(out, sizeof out, "%s\n", header ? header : line);
    while ((line = strtok_r(NULL, "\n", &rest))) {
        char *tab = strchr(line, '\t');
        if (!tab) continue;
        length += (size_t)snprintf(out + length, sizeof out - length, "%.*s\t%s\n", (int)(tab - line), line, choice);
    }
    file = fopen(f->file, "w");
    fprintf(file, "%ssum %llx\n", out, (unsigned long long)twi_hash_text(out) + !right_sum);
    fclose(file);
}

static void what_the_file_says_is_taken_and_shows_in_the_hash(void **state) {
    folder *f = *state;
    need_a_choice();
    tuned t, plain;
    open_tuned(&plain, "cpu", false, NULL, 1);
    open_tuned(&t, "cpu", true, f->path, 1);
    close_tuned(&t);
    find_file(f);
    rewrite(f, "patches", NULL, true);
    open_tuned(&t, "cpu", true, f->path, 1);
    for (int k = 0; k < 3; k++) assert_string_equal(t.implementation[k], "patches");
    assert_true((t.hash == plain.hash) == (strcmp(plain.implementation[0], "patches") == 0));
    train(&t);
    train(&plain);
    assert_true(plain.loss > 0.999 * t.loss && plain.loss < 1.001 * t.loss);
    close_tuned(&t);
    close_tuned(&plain);
    open_tuned(&t, "plan:cpu", true, f->path, 1); /* planned as it would run */
    assert_string_equal(t.implementation[0], "patches");
    close_tuned(&t);
}

static void a_damaged_or_foreign_file_is_ignored_and_logged(void **state) {
    folder *f = *state;
    need_a_choice();
    tuned t;
    open_tuned(&t, "cpu", true, f->path, 1);
    close_tuned(&t);
    find_file(f);
    rewrite(f, "patches", NULL, false); /* a wrong sum */
    open_tuned(&t, "cpu", true, f->path, 1);
    assert_true(t.lines.ignored >= 1 && t.lines.tried > 0);
    close_tuned(&t);
    rewrite(f, "patches", "talweg cpu choices 1; another machine", true);
    open_tuned(&t, "cpu", true, f->path, 1);
    assert_true(t.lines.ignored >= 1 && t.lines.tried > 0);
    close_tuned(&t);
    rewrite(f, "unheard of", NULL, true); /* whole, but nobody is called that */
    open_tuned(&t, "cpu", true, f->path, 1);
    assert_int_equal(t.lines.ignored, 0);
    assert_true(t.lines.tried > 0);
    close_tuned(&t);
    for (off_t length = 0; length < 200; length += 67) {
        assert_int_equal(truncate(f->file, length), 0);
        open_tuned(&t, "cpu", true, f->path, 1);
        assert_true(t.lines.ignored >= 1 && t.lines.tried > 0);
        close_tuned(&t);
    }
}

static tw_value *lenet5(tw_model *model, tw_value *x) { return tw_zoo_lenet5(model, x, 10); }

/* Its convolutions are fused with pooling, and hand each other samples side by side where there are vectors for it. */
static void lenet_is_tried_too(void **state) {
    (void)state;
    tuned t, plain;
    open_net_tuned(&t, lenet5, "cpu", true, "", 2);
    open_net_tuned(&plain, lenet5, "cpu", false, "", 2);
    train(&t);
    train(&plain);
    assert_true(plain.loss > 0.999 * t.loss && plain.loss < 1.001 * t.loss);
    close_tuned(&t);
    close_tuned(&plain);
}

static void a_folder_that_cannot_be_written_is_only_logged(void **state) {
    tuned t;
    (void)state;
    open_tuned(&t, "cpu", true, "/dev/null/nowhere", 1);
    train(&t);
    close_tuned(&t);
}

/* What stays is what was found: of a choice its key and its text, and a table of them. */
static void trials_give_all_memory_back(void **state) {
    (void)state;
    lines l = {0};
    tw_context *context;
    tw_model *model;
    tw_program *program;
    CHECK_OK(tw_context_create(&context, "cpu",
                               TW_OPTIONS(context, .threads = 1, .autotune = true, .cache_folder = "",
                                          .log = count_lines, .log_user = &l, .log_level = TW_LOG_DEBUG)));
    const uint64_t before = tw_context_get_memory(context).blocks;
    CHECK_OK(tw_model_create(&model, context));
    tw_value *y = build(model, tw_input(model, CHANNELS, SIDE, SIDE));
    CHECK_OK(tw_model_build(model, y, NULL));
    CHECK_OK(tw_program_create(&program, model, BATCH, TW_OPTIONS(program, .outputs = &y, .output_count = 1)));
    tw_program_destroy(program);
    tw_model_destroy(model);
    const uint64_t kept = l.tried > 0 ? 1 + 2 * (uint64_t)l.tried : 0;
    assert_int_equal(tw_context_get_memory(context).blocks, before + kept);
    tw_context_destroy(context);
}

typedef struct failing {
    uint64_t at; /* this allocation fails */
    bool met;
} failing;

static bool fail_one(void *user, uint64_t index, size_t bytes) {
    failing *f = user;
    (void)bytes;
    f->met = f->met || index == f->at;
    return index == f->at;
}

/* Memory that a trial lacks only leaves the trial out: the program is made as without. Other memory is missed as ever. */
static void any_allocation_may_fail(void **state) {
    (void)state;
    need_a_choice();
    int made = 0, one_left_out = 0, all_left_out = 0, refused = 0;
    enum { STEP = 1 };
    failing f = {.met = true};
    for (f.at = 0; f.met; f.at += STEP) {
        tw_context *context;
        tw_model *model;
        tw_program *program;
        lines l = {0};
        CHECK_OK(tw_context_create(&context, "cpu",
                                   TW_OPTIONS(context, .threads = 1, .autotune = true, .cache_folder = "",
                                              .log = count_lines, .log_user = &l, .log_level = TW_LOG_DEBUG)));
        CHECK_OK(tw_model_create(&model, context));
        tw_value *y = build(model, tw_input(model, CHANNELS, SIDE, SIDE));
        CHECK_OK(tw_model_build(model, y, NULL));
        f.met = false;
        tw_context_set_memory_hook(context, fail_one, &f);
        tw_status status =
            tw_program_create(&program, model, BATCH, TW_OPTIONS(program, .outputs = &y, .output_count = 1));
        tw_context_set_memory_hook(context, NULL, NULL);
        if (status == TW_OK) {
            made += f.met;
            one_left_out += l.one_left_out > 0;
            all_left_out += l.all_left_out > 0;
        } else {
            refused++;
            assert_int_equal(status, TW_ERROR_OUT_OF_MEMORY);
        }
        tw_program_destroy(program);
        tw_model_destroy(model);
        tw_context_destroy(context);
    }
    assert_true(made > 0 && one_left_out > 0 && all_left_out > 0 && refused > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_fastest_is_taken_and_remembered, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(what_the_file_says_is_taken_and_shows_in_the_hash, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(a_damaged_or_foreign_file_is_ignored_and_logged, open_folder, close_folder),
        cmocka_unit_test(a_folder_that_cannot_be_written_is_only_logged),
        cmocka_unit_test(lenet_is_tried_too),
        cmocka_unit_test(trials_give_all_memory_back),
        cmocka_unit_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
