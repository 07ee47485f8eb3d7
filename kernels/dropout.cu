/* Dropout, forward and backward alike: an element's draw is named, so the mask is never stored. Formula: src/ops/op_dropout.c. */
#include "backend/attrs.h"
#include "entries.h"
#include "pointwise.cuh"

namespace {

/* A draw gives four words, for four elements that follow each other in logical order. */
enum { WORDS = 4 };

struct apply : twk_functor<1, 0, TWK_NO_MASK, true> {
    const twi_control *control;
    uint64_t stream; /* the node's; another one in every attempt */
    int64_t sample, sample_size;
    int64_t first; /* element that index 0 stands for, in the effective batch */
    float rate, scale;

    uint32_t key[2], words[WORDS];
    int64_t drawn; /* what `words` are the draw of; -1: nothing yet */

    __device__ bool begin() {
        twi_draw_key(control->seed, TWI_PURPOSE_DROPOUT, key);
        stream = twi_attempt_stream(stream, control->attempt);
        first = (control->window_sample + sample) * sample_size;
        drawn = -1;
        return true;
    }
    __device__ float operator()(const float *in, twk_aside &aside) {
        int64_t index = first + aside.index;
        if (index / WORDS != drawn) {
            drawn = index / WORDS;
            twi_draw_with_key(key, stream, (uint64_t)drawn, words);
        }
        int at = (int)(index % WORDS);
        uint32_t word = at < 2 ? (at == 0 ? words[0] : words[1]) : (at == 2 ? words[2] : words[3]);
        return twi_uniform(word) >= rate ? in[0] * scale : 0;
    }
};

template <class T> cudaError_t run_apply(const twi_call *call, const twk_launch *launch) {
    const twi_operand *x = &call->operand[0], *y = &call->operand[1];
    apply f = {};
    f.control = call->control;
    f.stream = call->stream;
    f.sample = call->sample;
    f.sample_size = twi_sample_count(x);
    f.rate = ((const twi_dropout_attrs *)call->attrs)->rate;
    f.scale = (float)(1 / (1 - (double)f.rate)); /* infinite for rate 1, where nothing is kept */
    const twk_input in[] = {twk_input_of(x)};
    return twk_pointwise<T>(launch, f, in, y);
}

} // namespace

extern "C" const twk_entry twk_dropout_entries[] = {
    {"dropout.apply", NULL, NULL, TWK_TYPED(run_apply)},
    {},
};
