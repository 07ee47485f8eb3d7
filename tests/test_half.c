/* f16 and bf16 over all their values, and conversion between all element types. */
#include "base/half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Recorded with numpy 1.24 (float16) and torch 1.13 (bfloat16). */
static void test_recorded_values(void **state) {
    (void)state;
    const struct {
        uint32_t f32;
        uint16_t f16, bf16;
    } rows[] = {
        {0x3F800000, 0x3C00, 0x3F80}, /* 1 */
        {0xC0200000, 0xC100, 0xC020}, /* -2.5 */
        {0x80000000, 0x8000, 0x8000}, /* -0 */
        {0x477FE000, 0x7BFF, 0x4780}, /* 65504, the largest f16 */
        {0x477FEFFF, 0x7BFF, 0x4780}, /* just below 65520 */
        {0x477FF000, 0x7C00, 0x4780}, /* 65520: a tie, to infinity */
        {0x38800000, 0x0400, 0x3880}, /* 2^-14, the smallest normal f16 */
        {0x387FC000, 0x03FF, 0x3880}, /* the largest denormal f16 */
        {0x33800000, 0x0001, 0x3380}, /* 2^-24, the smallest denormal f16 */
        {0x33000000, 0x0000, 0x3300}, /* 2^-25: a tie, to zero */
        {0x33000001, 0x0001, 0x3300}, /* just above */
        {0x33C00000, 0x0002, 0x33C0}, /* 1.5 * 2^-24: a tie, to even */
        {0x3DCCCCCD, 0x2E66, 0x3DCD}, /* 0.1 */
        {0x40490FDB, 0x4248, 0x4049}, /* pi */
        {0x3F801000, 0x3C00, 0x3F80}, /* 1 + 2^-11: a tie of f16, down to even */
        {0x3F803000, 0x3C02, 0x3F80}, /* 1 + 3 * 2^-11: a tie of f16, up to even */
        {0x3F808000, 0x3C04, 0x3F80}, /* 1 + 2^-8: a tie of bf16, down to even */
        {0x3F818000, 0x3C0C, 0x3F82}, /* 1 + 3 * 2^-8: a tie of bf16, up to even */
        {0x501502F9, 0x7C00, 0x5015}, /* 1e10 */
        {0xAEDBE6FF, 0x8000, 0xAEDC}, /* -1e-10 */
        {0x7F800000, 0x7C00, 0x7F80}, /* infinity */
        {0x7F7FFFFF, 0x7C00, 0x7F80}, /* the largest f32 */
        {0x00000001, 0x0000, 0x0000}, /* the smallest denormal f32 */
        {0x00800000, 0x0000, 0x0080}, /* the smallest normal f32 */
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(twi_f16_from_f32(float_of(rows[i].f32)), rows[i].f16);
        assert_int_equal(twi_bf16_from_f32(float_of(rows[i].f32)), rows[i].bf16);
    }
}

/* Every 4099th f32 that is not NaN, the results chained by FNV-1a over 16-bit words; the chain recorded with numpy and
 * torch as above. */
static void test_a_million_values(void **state) {
    (void)state;
    uint64_t f16 = 0xCBF29CE484222325u, bf16 = f16;
    int count = 0;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 4099) {
        float value = float_of((uint32_t)bits);
        if (isnan(value)) continue;
        f16 = (f16 ^ twi_f16_from_f32(value)) * 0x100000001B3u;
        bf16 = (bf16 ^ twi_bf16_from_f32(value)) * 0x100000001B3u;
        count++;
    }
    assert_int_equal(count, 1043716);
    assert_true(f16 == 0xD3AD0FB2301E3F29u);
    assert_true(bf16 == 0x7E18FA8031A4E868u);
}

static double f16_by_definition(unsigned h) {
    int exponent = (int)(h >> 10 & 31), fraction = (int)(h & 0x3FF);
    double size = exponent == 31 ? INFINITY : exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return h & 0x8000 ? -size : size;
}

static void test_all_f16(void **state) {
    (void)state;
    for (unsigned h = 0; h < 0x10000; h++) {
        float wide = twi_f16_to_f32((uint16_t)h);
        if ((h & 0x7FFF) > 0x7C00) {
            assert_true(isnan(wide) && (bits_of(wide) & 0x400000u));
            assert_int_equal(twi_f16_from_f32(wide), h | 0x200); /* quiet, payload and sign kept */
        } else {
            assert_true(wide == f16_by_definition(h) && !!signbit(wide) == (h >= 0x8000));
            assert_int_equal(twi_f16_from_f32(wide), h);
        }
    }
}

/* Between every two neighbours: half-way goes to the even one, anything else to the nearer. */
static void test_all_boundaries_of_f16(void **state) {
    (void)state;
    for (unsigned h = 0; h < 0x7C00; h++) {
        double above = h == 0x7BFF ? 65536 : f16_by_definition(h + 1);
        float middle = (float)((f16_by_definition(h) + above) / 2);
        assert_int_equal(twi_f16_from_f32(middle), h + (h & 1));
        assert_int_equal(twi_f16_from_f32(nextafterf(middle, 0)), h);
        assert_int_equal(twi_f16_from_f32(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(twi_f16_from_f32(-middle), 0x8000 | (h + (h & 1)));
    }
}

static void test_all_bf16(void **state) {
    (void)state;
    for (unsigned b = 0; b < 0x10000; b++) {
        uint32_t wide = bits_of(twi_bf16_to_f32((uint16_t)b));
        bool nan = (b & 0x7FFF) > 0x7F80;
        assert_int_equal(wide, (uint32_t)b << 16 | (nan ? 0x400000u : 0));
        assert_int_equal(twi_bf16_from_f32(float_of(wide)), nan ? b | 0x40 : b);
        if ((b & 0x7FFF) >= 0x7F80) continue;
        assert_int_equal(twi_bf16_from_f32(float_of((uint32_t)b << 16 | 0x7FFF)), b);
        assert_int_equal(twi_bf16_from_f32(float_of((uint32_t)b << 16 | 0x8000)), b + (b & 1));
        assert_int_equal(twi_bf16_from_f32(float_of((uint32_t)b << 16 | 0x8001)), b + 1);
    }
    /* A NaN whose payload lies in the lower half must not become infinity. */
    assert_int_equal(twi_bf16_from_f32(float_of(0x7F800001)), 0x7FC0);
    assert_int_equal(twi_f16_from_f32(float_of(0x7F800001)), 0x7E00);
}

/* --- arrays --- */

static void test_small_integers_survive_every_pair(void **state) {
    (void)state;
    enum { N = 600 }; /* more than one block of cells, with a remainder */
    for (int from = TW_F32; from <= TW_U8; from++) {
        for (int to = TW_F32; to <= TW_U8; to++) {
            uint8_t plain[N], back[N];
            int64_t first[N], second[N]; /* room for any type */
            for (int i = 0; i < N; i++) plain[i] = (uint8_t)(i * 7);
            twi_convert(first, (tw_dtype)from, plain, TW_U8, N);
            memset(second, 0xEE, sizeof second);
            twi_convert(second, (tw_dtype)to, first, (tw_dtype)from, N - 1);
            twi_convert(back, TW_U8, second, (tw_dtype)to, N - 1);
            assert_memory_equal(back, plain, N - 1);
            assert_int_equal(((unsigned char *)second)[(N - 1) * tw_dtype_size((tw_dtype)to)], 0xEE);
        }
    }
}

static void test_real_to_integer(void **state) {
    (void)state;
    const struct {
        float from;
        int64_t i64;
        int32_t i32;
        uint8_t u8;
    } rows[] = {
        {2.5f, 2, 2, 2},
        {3.5f, 4, 4, 4},
        {-0.5f, 0, 0, 0},
        {-1.5f, -2, -2, 0},
        {255.5f, 256, 256, 255},
        {NAN, 0, 0, 0},
        {INFINITY, INT64_MAX, INT32_MAX, 255},
        {-INFINITY, INT64_MIN, INT32_MIN, 0},
        {0x1p31f, (int64_t)1 << 31, INT32_MAX, 255},
        {-0x1p31f, -((int64_t)1 << 31), INT32_MIN, 0},
        {0x1p63f, INT64_MAX, INT32_MAX, 255},
        {0x1.fffffep62f, 0x7FFFFF8000000000, INT32_MAX, 255},
        {-0x1p63f, INT64_MIN, INT32_MIN, 0},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        int64_t i64;
        int32_t i32;
        uint8_t u8;
        twi_convert(&i64, TW_I64, &rows[i].from, TW_F32, 1);
        twi_convert(&i32, TW_I32, &rows[i].from, TW_F32, 1);
        twi_convert(&u8, TW_U8, &rows[i].from, TW_F32, 1);
        assert_true(i64 == rows[i].i64 && i32 == rows[i].i32 && u8 == rows[i].u8);
    }
}

/* Rounded once: at 2^62 + 2^38 + 1 a detour over double rounds down, at 2^24 + 2^16 + 1 one over f32 does. f32 and f16
 * recorded with numpy. */
static void test_integer_to_real_rounds_once(void **state) {
    (void)state;
    const struct {
        int64_t from;
        uint32_t f32;
        uint16_t f16, bf16;
    } rows[] = {
        {16777217, 0x4B800000, 0x7C00, 0x4B80},
        {16842753, 0x4B808000, 0x7C00, 0x4B81},
        {16842751, 0x4B808000, 0x7C00, 0x4B80},
        {-16842753, 0xCB808000, 0xFC00, 0xCB81},
        {4611686293305294849, 0x5E800001, 0x7C00, 0x5E80},
        {-4611686293305294849, 0xDE800001, 0xFC00, 0xDE80},
        {65519, 0x477FEF00, 0x7BFF, 0x4780},
        {65520, 0x477FF000, 0x7C00, 0x4780},
        {257, 0x43808000, 0x5C04, 0x4380},
        {259, 0x43818000, 0x5C0C, 0x4382},
        {INT64_MAX, 0x5F000000, 0x7C00, 0x5F00},
        {INT64_MIN, 0xDF000000, 0xFC00, 0xDF00},
        {0, 0, 0, 0},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        float f32;
        uint16_t f16, bf16;
        twi_convert(&f32, TW_F32, &rows[i].from, TW_I64, 1);
        twi_convert(&f16, TW_F16, &rows[i].from, TW_I64, 1);
        twi_convert(&bf16, TW_BF16, &rows[i].from, TW_I64, 1);
        assert_int_equal(bits_of(f32), rows[i].f32);
        assert_int_equal(f16, rows[i].f16);
        assert_int_equal(bf16, rows[i].bf16);
    }
}

static void test_integers_among_themselves(void **state) {
    (void)state;
    const int64_t from[] = {INT64_MIN, -1, 300, INT64_MAX, ((int64_t)1 << 53) + 1};
    const int32_t to_i32[] = {INT32_MIN, -1, 300, INT32_MAX, INT32_MAX};
    const uint8_t to_u8[] = {0, 0, 255, 255, 255};
    int64_t i64[5];
    int32_t i32[5];
    uint8_t u8[5];
    twi_convert(i64, TW_I64, from, TW_I64, 5);
    twi_convert(i32, TW_I32, from, TW_I64, 5);
    twi_convert(u8, TW_U8, from, TW_I64, 5);
    assert_memory_equal(i64, from, sizeof from);
    assert_memory_equal(i32, to_i32, sizeof to_i32);
    assert_memory_equal(u8, to_u8, sizeof to_u8);
    twi_convert(i64, TW_I64, i32, TW_I32, 5);
    assert_true(i64[0] == INT32_MIN && i64[3] == INT32_MAX);
}

static void test_same_type_is_a_copy_bit_for_bit(void **state) {
    (void)state;
    const uint32_t from[] = {0x00000001, 0x7F800001, 0x80000000}; /* denormal, signalling NaN, -0 */
    uint32_t to[3];
    twi_convert(to, TW_F32, from, TW_F32, 3);
    assert_memory_equal(to, from, sizeof to);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_values),
        cmocka_unit_test(test_a_million_values),
        cmocka_unit_test(test_all_f16),
        cmocka_unit_test(test_all_boundaries_of_f16),
        cmocka_unit_test(test_all_bf16),
        cmocka_unit_test(test_small_integers_survive_every_pair),
        cmocka_unit_test(test_real_to_integer),
        cmocka_unit_test(test_integer_to_real_rounds_once),
        cmocka_unit_test(test_integers_among_themselves),
        cmocka_unit_test(test_same_type_is_a_copy_bit_for_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
