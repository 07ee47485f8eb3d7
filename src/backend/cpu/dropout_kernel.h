/* dropout.apply: Philox 4x32-10 on a vector of draws. A draw's four words are for four neighbouring elements in
 * logical order; the draws are those of twi_draw, which the specification calls. */
#include "base/philox.h"
#include "dense.h"
#include "loops.h"
#include "backend/attrs.h"
#include "point.h"
#include "vec_test.h"

/* Half as many 64-bit lanes, a word in each: a product of two words needs the room. Upper halves are left undefined. */
enum { DRAWS = VEC_WIDTH / 2 };
typedef uint64_t lanes64 __attribute__((vector_size(8 * DRAWS)));
typedef uint32_t lanes32 __attribute__((vector_size(4 * DRAWS)));

VEC_INLINE lanes64 times_word(lanes64 a, uint32_t b) {
#if VEC_WIDTH == 16 && defined(__AVX512F__)
    return (lanes64)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif VEC_WIDTH == 8 && defined(__AVX2__)
    return (lanes64)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#else
    return (a & UINT32_MAX) * b;
#endif
}

/* kept[4*draw + word]: 1 if the word, as a number from 0 to 1, is not below the rate: if its upper 24 bits reach
 * `least`. */
VEC_INLINE void draw_kept(uint8_t *kept, uint64_t block, uint64_t stream, const uint32_t key[2], uint32_t least) {
    lanes64 index = {0};
    for (int draw = 0; draw < DRAWS; draw++) index[draw] = block + (uint64_t)draw;
    lanes64 c0 = index, c1 = index >> 32, c2 = (uint32_t)stream + (lanes64){0}, c3 = (stream >> 32) + (lanes64){0};
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        lanes64 p0 = times_word(c0, 0xD2511F53u), p1 = times_word(c2, 0xCD9E8D57u);
        c0 = (p1 >> 32) ^ c1 ^ k0;
        c2 = (p0 >> 32) ^ c3 ^ k1;
        c1 = p1;
        c3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const lanes64 word[4] = {c0, c1, c2, c3};
    lanes64 bytes = {0};
    for (int w = 0; w < 4; w++) {
        lanes64 below = ((word[w] << 32 >> 40) - least) >> 63;
        bytes |= (below ^ 1) << (8 * w);
    }
    lanes32 packed = __builtin_convertvector(bytes, lanes32);
    memcpy(kept, &packed, sizeof packed);
}

/* Without a branch, which would be mispredicted every other time; not-a-number times 0 would stay. */
VEC_INLINE float kept_or_zero(float value, uint8_t kept) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits &= 0u - kept;
    memcpy(&value, &bits, sizeof bits);
    return value;
}
VEC_INLINE void apply_kept(float *y, const float *x, const uint8_t *kept, float scale, int64_t count) {
    typedef uint8_t bytes __attribute__((vector_size(VEC_WIDTH)));
    int64_t i = 0;
    for (; i + VEC_WIDTH <= count; i += VEC_WIDTH) {
        bytes some;
        memcpy(&some, kept + i, sizeof some);
        vec_test yes = vec_same(__builtin_convertvector(some, vec_mask), vec_splat_int(1));
        vec_store(y + i, vec_keep(yes, vec_load(x + i) * vec_splat(scale)));
    }
    for (; i < count; i++) y[i] = kept_or_zero(x[i] * scale, kept[i]);
}

/* x, y */
static void dropout(const twi_call *call, const twi_cpu_workspace *workspace) {
    const twi_dropout_attrs *attrs = call->attrs;
    const twi_operand *operand = &call->operand[0];
    const float *x = operand->data;
    float *y = call->operand[1].data, scale = (float)(1 / (1 - (double)attrs->rate));
    int64_t samples = operand->shape.dim[0], count = twi_sample_count(operand);
    bool logical = twi_is_row_major(operand);
    int64_t channels = logical ? 1 : operand->shape.dim[1], pixels = count / channels;
    double threshold = (double)attrs->rate * 0x1p24;
    uint32_t least = (uint32_t)threshold, key[2];
    if (least < threshold) least++;
    twi_draw_key(call->control->seed, TWI_PURPOSE_DROPOUT, key);
    uint64_t stream = twi_call_stream(call);
    for (int64_t n = 0; n < samples; n++, x += count, y += count) {
        uint64_t index = (uint64_t)twi_call_position(call, n) * (uint64_t)count;
        uint8_t *drawn = workspace->scratch, *kept = drawn + index % 4;
        for (int64_t i = 0; i < count + 4; i += 4 * DRAWS)
            draw_kept(drawn + i, (index + (uint64_t)i) / 4, stream, key, least);
        if (logical) {
            apply_kept(y, x, kept, scale, count);
        } else {
            for (int64_t p = 0; p < pixels; p++) {
                for (int64_t c = 0; c < channels; c++)
                    y[p * channels + c] = kept_or_zero(x[p * channels + c] * scale, kept[c * pixels + p]);
            }
        }
    }
}
