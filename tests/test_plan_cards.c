/* Contexts on cards that are not here: they build and plan with cuDNN's choices, know the card's memory, and refuse to run. */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */
#include "check.h"
#include <talweg/talweg.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* LeNet-5's training at a batch, planned on a device. */
typedef struct planned {
    tw_context *context;
    tw_model *model;
    tw_value *x;
    tw_program *program;
} planned;

static void plan(planned *p, const char *device, int64_t batch, const tw_context_options *options) {
    CHECK_OK(tw_context_create(&p->context, device, options));
    CHECK_OK(tw_model_create(&p->model, p->context));
    p->x = tw_input(p->model, 1, 28, 28);
    tw_value *y = tw_input_labels(p->model, NULL), *logits = tw_zoo_lenet5(p->model, p->x, 10);
    const tw_loss loss = {tw_cross_entropy(p->model, logits, y, NULL), 1};
    const tw_optimizer_options sgd = {.size = sizeof sgd, .kind = TW_SGD, .learning_rate = 0.1f, .momentum = 0.9f};
    CHECK_OK(tw_model_build(p->model, logits, NULL));
    CHECK_OK(
        tw_program_create(&p->program, p->model, batch,
                          TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1, .optimizer = &sgd)));
}

static void drop(planned *p) {
    tw_program_destroy(p->program);
    tw_model_destroy(p->model);
    tw_context_destroy(p->context);
}

static void test_every_card_plans_with_cudnn(void **state) {
    (void)state;
    static const struct {
        const char *device;
        int capability;
        double gib; /* NVIDIA's data sheet */
    } cards[] = {{"plan:t4", 75, 16},    {"plan:a100", 80, 80},   {"plan:rtx4090", 89, 24},
                 {"plan:h200", 90, 141}, {"plan:b200", 100, 180}, {"plan:rtx5090", 120, 32}};
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        planned p;
        tw_device_info info = TW_DEVICE_INFO_INIT;
        plan(&p, cards[i].device, 64, NULL);
        CHECK_OK(tw_context_get_device_info(p.context, &info));
        assert_int_equal(10 * info.capability_major + info.capability_minor, cards[i].capability);
        assert_true((double)info.memory_bytes == cards[i].gib * 1073741824);
        assert_non_null(strstr(tw_program_dump(p.program, TW_PASS_MEMORY), "cudnn:"));
        assert_non_null(strstr(tw_program_dump(p.program, TW_PASS_MEMORY), "cublaslt"));
        drop(&p);
    }
}

static void test_the_arena_grows_with_the_batch(void **state) {
    (void)state;
    planned small, large;
    plan(&small, "plan:h200", 64, NULL);
    plan(&large, "plan:h200", 256, NULL);
    const double a = (double)tw_program_get_stats(small.program).arena_bytes;
    const double b = (double)tw_program_get_stats(large.program).arena_bytes;
    assert_true(b > 3.5 * a && b < 4.5 * a);
    drop(&small);
    drop(&large);
}

static void test_nothing_runs(void **state) {
    (void)state;
    planned p;
    float images[2 * 28 * 28] = {0};
    plan(&p, "plan:h200", 2, NULL);
    CHECK_FAILS(tw_program_write(p.program, p.x, TW_F32, images, 2 * 28 * 28), TW_ERROR_STATE, "plan:h200");
    CHECK_FAILS(tw_program_run(p.program), TW_ERROR_STATE, "plan:h200");
    drop(&p);
}

/* Removes a folder of files; how many there were. */
static int remove_folder(const char *path) {
    int files = 0;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        char name[512];
        if (entry->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        assert_int_equal(unlink(name), 0);
        files++;
    }
    closedir(folder);
    assert_int_equal(rmdir(path), 0);
    return files;
}

static void test_choices_are_kept_where_the_context_says(void **state) {
    (void)state;
    char folder[] = "/tmp/talweg_cards_XXXXXX";
    planned p;
    assert_non_null(mkdtemp(folder));
    plan(&p, "plan:h200", 64, TW_OPTIONS(context, .cache_folder = folder));
    drop(&p);
    assert_int_equal(remove_folder(folder), 1);
}

static void test_a_card_that_nobody_knows(void **state) {
    (void)state;
    tw_context *context;
    CHECK_FAILS(tw_context_create(&context, "plan:voodoo2", NULL), TW_ERROR_DEVICE, "no card 'voodoo2' is known");
    assert_non_null(strstr(tw_last_error(), "h200"));
    assert_null(context);
}

/* Without the CUDA back end, or cuDNN in it, nobody is asked: test_cards looks at that. */
static bool cudnn_answers(void) {
    tw_context *context;
    tw_device_info info = TW_DEVICE_INFO_INIT;
    CHECK_OK(tw_context_create(&context, "plan:h200", NULL));
    CHECK_OK(tw_context_get_device_info(context, &info));
    tw_context_destroy(context);
    return info.cudnn_version > 0;
}

int main(void) {
    if (!cudnn_answers()) {
        printf("skipped: there is no cuDNN to ask\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_card_plans_with_cudnn),
        cmocka_unit_test(test_the_arena_grows_with_the_batch),
        cmocka_unit_test(test_nothing_runs),
        cmocka_unit_test(test_choices_are_kept_where_the_context_says),
        cmocka_unit_test(test_a_card_that_nobody_knows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
