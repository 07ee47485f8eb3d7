/* f16 and bf16 by their bits, so that neither the rounding mode nor flush-to-zero matters, and conversion of arrays
 * between all element types. Half-precision arithmetic is left to the kernels. */
#include "half.h"

#include <math.h>
#include <string.h>

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

/* Drops `shift` bits, rounding to nearest even. */
static uint32_t round_shift(uint32_t bits, int shift) {
    uint32_t half = 1u << (shift - 1);
    return (bits + half - 1 + (bits >> shift & 1)) >> shift;
}

uint16_t twi_f16_from_f32(float value) {
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
    uint32_t half;
    if (size > 0x7F800000u) /* NaN: quiet, with the upper part of its payload */
        half = 0x7E00u | (size >> 13 & 0x3FFu);
    else if (size >= 0x477FF000u) /* 65520, half-way beyond the largest */
        half = 0x7C00u;
    else if (size >= 0x38800000u) /* 2^-14, the smallest normal: exponent bias 127 becomes 15 */
        half = round_shift(size - (112u << 23), 13);
    else if (size > 0x33000000u) /* above 2^-25, half the smallest denormal, which is a tie and goes to 0 */
        half = round_shift((size & 0x7FFFFFu) | 0x800000u, (int)(126 - (size >> 23)));
    else
        half = 0;
    return (uint16_t)(sign | half);
}

float twi_f16_to_f32(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, fraction = bits & 0x3FFu;
    if (exponent == 31) return float_of(sign | 0x7F800000u | fraction << 13 | (fraction ? 0x400000u : 0));
    if (exponent == 0) /* denormals of f16 are normal numbers of f32 */
        return float_of(sign | bits_of((float)fraction * 0x1p-24f));
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t twi_bf16_from_f32(float value) {
    uint32_t bits = bits_of(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)round_shift(bits, 16); /* beyond the largest the carry makes it infinity */
}

float twi_bf16_to_f32(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    return float_of((wide & 0x7FFFFFFFu) > 0x7F800000u ? wide | 0x400000u : wide);
}

uint16_t twi_half_from_f32(tw_dtype half, float value) {
    return half == TW_F16 ? twi_f16_from_f32(value) : twi_bf16_from_f32(value);
}

float twi_half_to_f32(tw_dtype half, uint16_t bits) {
    return half == TW_F16 ? twi_f16_to_f32(bits) : twi_bf16_to_f32(bits);
}

/* --- arrays ---
 * A pair of types is converted through cells: a double for the real types, an int64_t for the integer types. Both
 * hold every value of theirs exactly; where the kinds differ the cells are converted in between. */

typedef union cell {
    double real;
    int64_t integer;
} cell;

/* The f32 next to x, odd in its last bit unless x is an f32 itself: rounding it further to 16 bits then gives what
 * rounding x at once gives, ties included. */
static float odd_f32(double x) {
    float value = (float)x;
    if ((double)value == x) return value;
    uint32_t bits = bits_of(value);
    if (fabs((double)value) > fabs(x)) bits--;
    return float_of(bits | 1u);
}

static int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

#define DEFINE_ACCESS(name, type, load_expression, store_expression, member)        \
    static void load_##name(cell *cells, const void *source, int64_t count) {       \
        const type *elements = source;                                              \
        for (int64_t i = 0; i < count; i++) {                                       \
            type x = elements[i];                                                   \
            cells[i].member = load_expression;                                      \
        }                                                                           \
    }                                                                               \
    static void store_##name(void *destination, const cell *cells, int64_t count) { \
        type *elements = destination;                                               \
        for (int64_t i = 0; i < count; i++) {                                       \
            cell c = cells[i];                                                      \
            elements[i] = (type)(store_expression);                                 \
        }                                                                           \
    }

DEFINE_ACCESS(f32, float, (double)x, c.real, real)
DEFINE_ACCESS(f16, uint16_t, (double)twi_f16_to_f32(x), twi_f16_from_f32(odd_f32(c.real)), real)
DEFINE_ACCESS(bf16, uint16_t, (double)twi_bf16_to_f32(x), twi_bf16_from_f32(odd_f32(c.real)), real)
DEFINE_ACCESS(i32, int32_t, x, clamp(c.integer, INT32_MIN, INT32_MAX), integer)
DEFINE_ACCESS(i64, int64_t, x, c.integer, integer)
DEFINE_ACCESS(u8, uint8_t, x, clamp(c.integer, 0, UINT8_MAX), integer)

static const struct {
    void (*load)(cell *cells, const void *source, int64_t count);
    void (*store)(void *destination, const cell *cells, int64_t count);
    bool integer;
} accesses[] = {
    [TW_F32] = {load_f32, store_f32, false},    [TW_F16] = {load_f16, store_f16, false},
    [TW_BF16] = {load_bf16, store_bf16, false}, [TW_I32] = {load_i32, store_i32, true},
    [TW_I64] = {load_i64, store_i64, true},     [TW_U8] = {load_u8, store_u8, true},
};

static int64_t integer_of(double x) {
    if (isnan(x)) return 0;
    if (x >= 0x1p63) return INT64_MAX;
    return x <= -0x1p63 ? INT64_MIN : (int64_t)rint(x);
}

/* From 2^53 on the lowest bits are gathered into one sticky bit, for the same reason as in odd_f32: what is left is an
 * exact double, and no target type is precise enough to tell the difference. */
static double real_of(int64_t x) {
    uint64_t size = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    if (size >> 53) size = (size & ~(uint64_t)0x7FF) | ((size & 0x7FF) ? 0x800u : 0);
    return x < 0 ? -(double)size : (double)size;
}

void twi_convert(void *destination, tw_dtype to, const void *source, tw_dtype from, int64_t count) {
    enum { CELLS = 256 };
    cell cells[CELLS];
    const char *read = source;
    char *write = destination;
    size_t read_size = tw_dtype_size(from), write_size = tw_dtype_size(to);
    if (from == to) { /* bit for bit, denormals and payloads of NaN included */
        if (count > 0) memcpy(destination, source, (size_t)count * read_size);
        return;
    }
    for (int64_t done = 0; done < count; done += CELLS) {
        int64_t n = count - done < CELLS ? count - done : CELLS;
        accesses[from].load(cells, read + (size_t)done * read_size, n);
        if (accesses[from].integer && !accesses[to].integer)
            for (int64_t i = 0; i < n; i++) cells[i].real = real_of(cells[i].integer);
        if (!accesses[from].integer && accesses[to].integer)
            for (int64_t i = 0; i < n; i++) cells[i].integer = integer_of(cells[i].real);
        accesses[to].store(write + (size_t)done * write_size, cells, n);
    }
}
