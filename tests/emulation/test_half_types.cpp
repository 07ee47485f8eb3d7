/* That __half and __nv_bfloat16, as kernels on the CPU have them, convert exactly as src/base/half.c does: all values to
 * f32, and every f32 at, next to and half-way between two of them back. */
#include "cuda_language.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
#include "base/half.h"
}

static float half_to(uint16_t bits) { return __half2float(emu::from_bits<__half>(bits)); }
static uint16_t half_from(float value) { return static_cast<uint16_t>(emu::to_bits(__float2half_rn(value))); }
static float bfloat_to(uint16_t bits) { return __bfloat162float(emu::from_bits<__nv_bfloat16>(bits)); }
static uint16_t bfloat_from(float value) { return static_cast<uint16_t>(emu::to_bits(__float2bfloat16_rn(value))); }

struct Conversions {
    float (*to)(uint16_t), (*expected_to)(uint16_t);
    uint16_t (*from)(float), (*expected_from)(float);
};

/* Not-a-number stays that; its payload is free. */
static void check(const Conversions &type, float value) {
    uint16_t found = type.from(value), expected = type.expected_from(value);
    bool same = found == expected || (isnan(type.to(found)) && isnan(type.to(expected)));
    if (!same || isnan(type.to(found)) != isnan(value)) fail_msg("%a: %04x, expected %04x", value, found, expected);
}

static void check_all(const Conversions &type) {
    for (unsigned bits = 0; bits < 65536; bits++) {
        float value = type.to(static_cast<uint16_t>(bits)), expected = type.expected_to(static_cast<uint16_t>(bits));
        if (isnan(expected) ? !isnan(value) : emu::to_bits(value) != emu::to_bits(expected))
            fail_msg("%04x: %a, expected %a", bits, value, expected);
        check(type, value);
        uint32_t exact = static_cast<uint32_t>(emu::to_bits(value));
        uint32_t next = static_cast<uint32_t>(emu::to_bits(type.expected_to(static_cast<uint16_t>(bits + 1))));
        uint32_t tie = exact + (next - exact) / 2;
        for (uint32_t beside : {exact + 1, exact - 1, tie - 1, tie, tie + 1})
            check(type, emu::from_bits<float>(beside));
    }
}

static void f16_converts_as_in_the_library(void **) {
    check_all({half_to, twi_f16_to_f32, half_from, twi_f16_from_f32});
}

static void bf16_converts_as_in_the_library(void **) {
    check_all({bfloat_to, twi_bf16_to_f32, bfloat_from, twi_bf16_from_f32});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_converts_as_in_the_library),
        cmocka_unit_test(bf16_converts_as_in_the_library),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
