/* More elements than 31 bits count: a batch of bf16 that is fed, goes through two steps and is looked at row by row. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <talweg/talweg.h>

#include <stdio.h>
#include <unistd.h>

enum { WIDTH = 32768, ROWS = 65538 }; /* 2^31 is reached in row 65536 */
static const size_t bytes_needed = (size_t)13 << 30;

static int largest_at(int64_t row) { return (int)((row * 7919 + 11) % WIDTH); }

static void every_row_is_right_beyond_2_to_the_31(void **state) {
    (void)state;
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (check_device() || pages <= 0 || (size_t)pages * (size_t)page < bytes_needed) {
        print_message("needs the CPU and 13 GiB of memory\n");
        skip();
    }
    const int64_t count = (int64_t)ROWS * WIDTH;
    uint8_t *images = malloc((size_t)count);
    int32_t *found = calloc(ROWS, sizeof *found);
    tw_context *context;
    tw_model *model;
    tw_program *program;
    assert_true(images && found && count > INT64_C(0x80000000));
    for (int64_t row = 0; row < ROWS; row++) {
        memset(images + row * WIDTH, (int)(row % 100), WIDTH);
        images[row * WIDTH + largest_at(row)] = 200;
    }
    CHECK_OK(tw_context_create(&context, "cpu", TW_OPTIONS(context, .threads = 2)));
    CHECK_OK(tw_model_create(&model, context));
    tw_value *x = tw_input_shaped(model, "x", 1, (int64_t[]){WIDTH});
    tw_value *y = tw_relu(model, tw_add(model, x, x)), *best = tw_argmax(model, y);
    CHECK_OK(tw_model_build(model, y, NULL));
    CHECK_OK(
        tw_program_create(&program, model, ROWS,
                          TW_OPTIONS(program, .outputs = &best, .output_count = 1, .precision = TW_PRECISION_BF16)));
    CHECK_OK(tw_program_write(program, x, TW_U8, images, count));
    free(images);
    CHECK_OK(tw_program_run(program));
    CHECK_OK(tw_program_read(program, best, found, ROWS));
    for (int64_t row = 0; row < ROWS; row++)
        if (found[row] != largest_at(row))
            fail_msg("row %lld: %d, expected %d", (long long)row, (int)found[row], largest_at(row));
    free(found);
    tw_program_destroy(program);
    tw_model_destroy(model);
    tw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_row_is_right_beyond_2_to_the_31)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
