/* Philox 4x32-10 against its published vectors, and the draws made from it. */
#include "base/philox.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* Source: the known-answer vectors distributed with Random123. */
static void test_published_vectors(void **state) {
    (void)state;
    const struct {
        uint32_t counter[4], key[2], out[4];
    } rows[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}},
        {{0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF},
         {0xFFFFFFFF, 0xFFFFFFFF},
         {0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}},
        {{0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344},
         {0xA4093822, 0x299F31D0},
         {0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        uint32_t out[4];
        twi_philox(rows[i].counter, rows[i].key, out);
        assert_memory_equal(out, rows[i].out, sizeof out);
    }
}

/* Recorded from the definition written once more in Python (integers only): what a seed means must never change. */
static void test_draws_are_pinned(void **state) {
    (void)state;
    const uint32_t first[4] = {0x0650F63D, 0xF0170CB3, 0x929E09BF, 0xEBB14BB3};
    const uint32_t second[4] = {0xFEFC03A5, 0xE1E8B6F0, 0xEC6D7ACC, 0xC8927042};
    uint32_t out[4];
    twi_draw(1, TWI_PURPOSE_TENSOR, 0, 0, out);
    assert_memory_equal(out, first, sizeof out);
    twi_draw(42, TWI_PURPOSE_DROPOUT, 0x123456789ABCDEF0u, 0xFEDCBA9876543210u, out);
    assert_memory_equal(out, second, sizeof out);
}

static void test_every_part_of_a_draws_name_matters(void **state) {
    (void)state;
    uint32_t outs[8][4];
    twi_draw(1, TWI_PURPOSE_INIT, 2, 3, outs[0]);
    twi_draw(2, TWI_PURPOSE_INIT, 2, 3, outs[1]);
    twi_draw(1 | (uint64_t)1 << 32, TWI_PURPOSE_INIT, 2, 3, outs[2]);
    twi_draw(1, TWI_PURPOSE_SHUFFLE, 2, 3, outs[3]);
    twi_draw(1, TWI_PURPOSE_INIT, 3, 2, outs[4]);
    twi_draw(1, TWI_PURPOSE_INIT, 2 | (uint64_t)1 << 32, 3, outs[5]);
    twi_draw(1, TWI_PURPOSE_INIT, 2, 3 | (uint64_t)1 << 32, outs[6]);
    twi_draw(0, TWI_PURPOSE_INIT, 2, 3, outs[7]);
    for (int a = 0; a < 8; a++)
        for (int b = 0; b < a; b++) assert_memory_not_equal(outs[a], outs[b], sizeof outs[a]);
}

static void test_ranges(void **state) {
    (void)state;
    assert_true(twi_uniform(0) == 0);
    assert_true(twi_uniform(0x80000000u) == 0.5f);
    assert_true(twi_uniform(0xFFFFFFFFu) == 1 - 0x1p-24f);
    assert_int_equal(twi_below(0, 10), 0);
    assert_int_equal(twi_below(0xFFFFFFFFu, 10), 9);
    assert_int_equal(twi_below(0x80000000u, 10), 5);
    assert_int_equal(twi_below(0xFFFFFFFFu, 1), 0);
}

/* Closed forms of sqrt(-2 ln u) (cos 2 pi v, sin 2 pi v) at u = 2^-32, 1, 1/2 and v = 0, 1/4, 1/2. */
static void test_normal_deviates(void **state) {
    (void)state;
    float pair[2];
    twi_normal2(0, 0, pair);
    assert_float_equal(pair[0], sqrt(64 * log(2)), 1e-6);
    assert_float_equal(pair[1], 0, 1e-6);
    twi_normal2(0xFFFFFFFFu, 12345, pair);
    assert_true(pair[0] == 0 && pair[1] == 0);
    twi_normal2(0x7FFFFFFFu, 0x40000000u, pair);
    assert_float_equal(pair[0], 0, 1e-6);
    assert_float_equal(pair[1], sqrt(2 * log(2)), 1e-6);
    twi_normal2(0x7FFFFFFFu, 0x80000000u, pair);
    assert_float_equal(pair[0], -sqrt(2 * log(2)), 1e-6);
}

/* Mean, variance and the correlation of neighbours, within five standard errors. */
static void test_statistics(void **state) {
    (void)state;
    enum { N = 20000 };
    double sum = 0, squares = 0, products = 0, before = 0, uniform = 0;
    for (uint64_t i = 0; i < N; i++) {
        uint32_t words[4];
        float pair[2];
        twi_draw(3, TWI_PURPOSE_TENSOR, 0, i, words);
        twi_normal2(words[0], words[1], pair);
        sum += pair[0];
        squares += (double)pair[0] * pair[0];
        products += before * pair[0];
        before = pair[0];
        uniform += twi_uniform(words[2]);
    }
    double error = 5 / sqrt(N);
    assert_float_equal(sum / N, 0, error);
    assert_float_equal(squares / N, 1, error * sqrt(2));
    assert_float_equal(products / N, 0, error);
    assert_float_equal(uniform / N, 0.5, error / sqrt(12));
}

/* Source: the test vectors published with FNV-1a, 64 bits. */
static void test_name_hash(void **state) {
    (void)state;
    assert_int_equal(twi_hash_text(""), 0xCBF29CE484222325u);
    assert_int_equal(twi_hash_text("a"), 0xAF63DC4C8601EC8Cu);
    assert_int_equal(twi_hash_text("foobar"), 0x85944171F73967E8u);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_vectors),
        cmocka_unit_test(test_draws_are_pinned),
        cmocka_unit_test(test_every_part_of_a_draws_name_matters),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_normal_deviates),
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_name_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
