/* Kernels that make every element of one output from the elements at the same place of some inputs.
 *
 * A functor F says what is done; it is copied into every thread. Its constants:
 *   REALS   inputs of the call's element type, FLOATS inputs of float (they may be one number a channel, or one in all)
 *   MASK    TWK_NO_MASK, TWK_READS_MASK, TWK_WRITES_MASK
 *   INDEXED wants the element's logical index in the whole value
 * and functions, all on the device:
 *   bool begin()                                  once a thread; false: nothing is to be done
 *   float operator()(const float *in, twk_aside &)  in: REALS, then FLOATS
 *
 * A thread does eight elements that follow each other in the output's memory (so it owns whole bytes of a mask), with wide
 * loads where all operands allow them. It reads an element before it writes it: outputs may lie over inputs. */
#ifndef TWK_POINTWISE_CUH
#define TWK_POINTWISE_CUH

#include "space.cuh"

enum twk_mask { TWK_NO_MASK, TWK_READS_MASK, TWK_WRITES_MASK };

/* What an element has beside its values. */
typedef struct twk_aside {
    bool bit; /* of the mask: read, or to be written */
    int64_t index;
} twk_aside;

template <int REALS_, int FLOATS_, twk_mask MASK_ = TWK_NO_MASK, bool INDEXED_ = false> struct twk_functor {
    static constexpr int REALS = REALS_, FLOATS = FLOATS_;
    static constexpr twk_mask MASK = MASK_;
    static constexpr bool INDEXED = INDEXED_;
    __device__ bool begin() { return true; }
};

template <class F> struct twk_points {
    static constexpr int INPUTS = F::REALS + F::FLOATS, Y = INPUTS, BITS = Y + (F::MASK != TWK_NO_MASK),
                         INDEX = BITS + F::INDEXED, VIEWS = INDEX + 1;
    const void *in[INPUTS];
    void *y;
    uint8_t *bits; /* NULL: nobody wants them */
    bool packed;
    int64_t runs;      /* samples, where a mask's bytes keep them apart; else everything is one run */
    twk_divisor packs; /* of a run */
    int64_t run_stride[VIEWS];
    twk_space<VIEWS> space;
};

template <class T, class Y, class F> __device__ void twk_do_pack(const twk_points<F> &p, F &f, const int64_t *offset) {
    typedef twk_points<F> P;
    float in[P::INPUTS][TWK_PACK], y[TWK_PACK];
#pragma unroll
    for (int v = 0; v < P::INPUTS; v++) {
        bool real = v < F::REALS, wide = p.space.stride[v][0] == 1;
        const T *reals = (const T *)p.in[v] + offset[v];
        const float *floats = (const float *)p.in[v] + offset[v];
        if (wide && real)
            twk_load_pack(reals, in[v]);
        else if (wide)
            twk_load_pack(floats, in[v]);
        else {
            float value = real ? twk_float(*reals) : *floats;
#pragma unroll
            for (int i = 0; i < TWK_PACK; i++) in[v][i] = value;
        }
    }
    unsigned byte = 0;
    if (F::MASK == TWK_READS_MASK) byte = p.bits[offset[P::BITS] >> 3];
#pragma unroll
    for (int i = 0; i < TWK_PACK; i++) {
        twk_aside aside = {(byte >> i & 1) != 0, 0};
        if (F::INDEXED) aside.index = offset[P::INDEX] + i * p.space.stride[P::INDEX][0];
        float values[P::INPUTS];
#pragma unroll
        for (int v = 0; v < P::INPUTS; v++) values[v] = in[v][i];
        y[i] = f(values, aside);
        if (F::MASK == TWK_WRITES_MASK) byte |= (unsigned)aside.bit << i;
    }
    twk_store_pack((Y *)p.y + offset[P::Y], y);
    if (F::MASK == TWK_WRITES_MASK && p.bits) p.bits[offset[P::BITS] >> 3] = (uint8_t)byte;
}

template <class T, class Y, class F>
__device__ void twk_do_elements(const twk_points<F> &p, F &f, int64_t run, int64_t first, int count) {
    typedef twk_points<F> P;
    unsigned byte = 0;
    int64_t byte_at = 0;
    for (int i = 0; i < count; i++) {
        int64_t offset[P::VIEWS];
        p.space.offsets(first + i, offset);
#pragma unroll
        for (int v = 0; v < P::VIEWS; v++) offset[v] += run * p.run_stride[v];
        float values[P::INPUTS];
#pragma unroll
        for (int v = 0; v < P::INPUTS; v++)
            values[v] = v < F::REALS ? twk_float(((const T *)p.in[v])[offset[v]]) : ((const float *)p.in[v])[offset[v]];
        twk_aside aside = {false, 0};
        int64_t bit = F::MASK != TWK_NO_MASK ? offset[P::BITS] : 0;
        if (F::MASK == TWK_READS_MASK) aside.bit = p.bits[bit >> 3] >> (bit & 7) & 1;
        if (F::INDEXED) aside.index = offset[P::INDEX];
        ((Y *)p.y)[offset[P::Y]] = twk_element<Y>(f(values, aside));
        byte |= (unsigned)aside.bit << i;
        if (i == 0) byte_at = bit >> 3;
    }
    if (F::MASK == TWK_WRITES_MASK && p.bits) p.bits[byte_at] = (uint8_t)byte;
}

template <class T, class Y, class F> __global__ void twk_pointwise_kernel(twk_points<F> p, F functor) {
    typedef twk_points<F> P;
    int64_t thread = twk_thread();
    F f = functor;
    if (thread >= p.runs * p.packs.value || !f.begin()) return;
    int64_t pack = thread, run = p.runs > 1 ? twk_divide(p.packs, thread, &pack) : 0;
    int64_t first = pack * TWK_PACK, left = p.space.count - first;
    if (p.packed && left >= TWK_PACK) {
        int64_t offset[P::VIEWS];
        p.space.offsets(first, offset);
#pragma unroll
        for (int v = 0; v < P::VIEWS; v++) offset[v] += run * p.run_stride[v];
        twk_do_pack<T, Y>(p, f, offset);
    } else {
        twk_do_elements<T, Y>(p, f, run, first, left < TWK_PACK ? (int)left : TWK_PACK);
    }
}

/* An input, and how it lies. */
typedef struct twk_input {
    const void *data;
    twk_view view;
} twk_input;
inline twk_input twk_input_of(const twi_operand *o) {
    twk_input input = {o->data, twk_view_of(o)};
    return input;
}
/* A row of numbers, one a channel. */
inline twk_input twk_channels_of(const float *data) {
    twk_input input = {data, twk_view_of_channels(1)};
    return input;
}

template <class F>
void twk_points_of(twk_points<F> *p, const twk_input *in, const twi_operand *y, const twi_operand *mask) {
    typedef twk_points<F> P;
    twk_view views[P::VIEWS];
    for (int v = 0; v < P::INPUTS; v++) {
        views[v] = in[v].view;
        p->in[v] = in[v].data;
    }
    views[P::Y] = twk_view_of(y);
    p->y = y->data;
    /* A mask that nobody wants is laid out as the output, and not written. */
    const bool masked = F::MASK != TWK_NO_MASK && mask->data;
    p->bits = masked ? (uint8_t *)mask->data : NULL;
    if (F::MASK != TWK_NO_MASK) views[P::BITS] = masked ? twk_view_of_bits(mask) : views[P::Y];
    if (F::INDEXED) twi_shape_row_major(&y->shape, views[P::INDEX].stride);

    bool apart = masked && twi_sample_count(y) % TWK_PACK != 0;
    p->space = twk_space_of<P::VIEWS>(&y->shape, apart ? 1 : 0, -1, views, masked ? P::BITS : P::Y);
    p->runs = apart ? y->shape.dim[0] : 1;
    for (int v = 0; v < P::VIEWS; v++) p->run_stride[v] = apart ? views[v].stride[0] : 0;
    p->packs = twk_divisor_of(twk_ceil(p->space.count, TWK_PACK));

    /* Only the last pack of a single axis may be cut short. */
    p->packed = !apart && p->space.rank > 0 && (p->space.rank == 1 || p->space.dim[0].value % TWK_PACK == 0) &&
                p->space.stride[P::Y][0] == 1 && twk_view_packs(p->space, P::Y, p->y);
    for (int v = 0; v < P::INPUTS; v++) p->packed = p->packed && twk_view_packs(p->space, v, p->in[v]);
    if (F::MASK != TWK_NO_MASK)
        p->packed = p->packed && p->space.stride[P::BITS][0] == 1 && twk_view_packs(p->space, P::BITS, NULL);
}

/* y = f(in): F::REALS inputs, then F::FLOATS. mask: NULL where F has none. Y: the output's type, if it is not T. */
template <class T, class F, class Y = T>
cudaError_t twk_pointwise(const twk_launch *launch, F f, const twk_input *in, const twi_operand *y,
                          const twi_operand *mask = NULL) {
    twk_points<F> p;
    if (twi_shape_count(&y->shape) == 0) return cudaSuccess;
    twk_points_of(&p, in, y, mask);
    return TWC_LAUNCH((twk_pointwise_kernel<T, Y, F>), twk_blocks(p.runs * p.packs.value), TWK_THREADS, 0, launch->stream,
                      p, f);
}

#endif
