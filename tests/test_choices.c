/* Choices that are remembered: by their key, from one process to the next, and no more of them than so many. */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */
#include "check.h"
#include "base/choices.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct kept {
    twi_memory *memory;
    twi_log log;
    twi_choices choices;
} kept;

static void open_choices(kept *k, const char *folder) {
    k->log = (twi_log){0};
    CHECK_OK(twi_memory_create(&k->memory, 0, NULL, NULL));
    CHECK_OK(twi_choices_open(&k->choices, k->memory, &k->log, folder, "kept", "of this machine"));
}

static void close_choices(kept *k) {
    twi_choices_close(&k->choices);
    assert_int_equal(twi_memory_get_stats(k->memory).blocks, 0);
    twi_memory_destroy(k->memory);
}

static void put(kept *k, int from, int to) {
    for (int i = from; i < to; i++) {
        char key[32], choice[32];
        snprintf(key, sizeof key, "shape %d", i);
        snprintf(choice, sizeof choice, "way %d", i);
        CHECK_OK(twi_choices_put(&k->choices, key, choice));
    }
}

static bool knows(const kept *k, int i) {
    char key[32], choice[32];
    snprintf(key, sizeof key, "shape %d", i);
    snprintf(choice, sizeof choice, "way %d", i);
    const char *found = twi_choices_find(&k->choices, key);
    if (found) assert_string_equal(found, choice);
    return found;
}

static void the_oldest_goes_for_a_new_one(void **state) {
    (void)state;
    kept k;
    open_choices(&k, "");
    put(&k, 0, TWI_CHOICES_MOST);
    for (int i = 0; i < TWI_CHOICES_MOST; i += 17) assert_true(knows(&k, i));
    const size_t full = twi_memory_get_stats(k.memory).bytes, blocks = twi_memory_get_stats(k.memory).blocks;
    put(&k, TWI_CHOICES_MOST, TWI_CHOICES_MOST + 2000);
    for (int i = 0; i < TWI_CHOICES_MOST + 2000; i++) assert_true(knows(&k, i) == (i >= 2000));
    assert_int_equal(twi_memory_get_stats(k.memory).blocks, blocks);
    assert_true(twi_memory_get_stats(k.memory).bytes < full + 8000); /* longer numbers */
    CHECK_OK(twi_choices_put(&k.choices, "shape 2000", "way 2000")); /* in its place */
    assert_true(knows(&k, 2000) && knows(&k, 2001));
    close_choices(&k);
}

static void a_file_adds_to_what_is_known_as_far_as_there_is_room(void **state) {
    (void)state;
    char folder[] = "/tmp/talweg-choices-XXXXXX", command[64];
    kept k, other;
    assert_non_null(mkdtemp(folder));
    open_choices(&k, folder);
    open_choices(&other, folder);
    put(&k, 0, 10);
    put(&other, 5, 15);
    close_choices(&k);
    close_choices(&other);
    open_choices(&k, folder);
    for (int i = 0; i < 15; i++) assert_true(knows(&k, i));
    put(&k, 1000, 1000 + TWI_CHOICES_MOST);
    close_choices(&k);
    open_choices(&k, folder);
    assert_int_equal(k.choices.count, TWI_CHOICES_MOST);
    assert_true(!knows(&k, 3) && knows(&k, 1000) && knows(&k, 999 + TWI_CHOICES_MOST));
    assert_string_equal(k.choices.path + strlen(k.choices.path) - 4, ".txt");
    assert_int_equal(unlink(k.choices.path), 0);
    snprintf(command, sizeof command, "%s", folder);
    close_choices(&k);
    assert_int_equal(rmdir(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_goes_for_a_new_one),
        cmocka_unit_test(a_file_adds_to_what_is_known_as_far_as_there_is_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
