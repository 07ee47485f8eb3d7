/* Steps over the flat parameter arena: segments of it, each with its weight decay, are cut into blocks of threads that take
 * four elements at a time. Segments travel in the kernel's parameters, some hundred a launch.
 *
 * A functor F, copied into every thread, has on the device:
 *   bool begin()                                 all threads of a block call it; false for all: nothing is to be done
 *   template <int WIDTH> void step(int64_t i, float weight_decay, bool half)   elements i..i+WIDTH-1; WIDTH is 4 or 1;
 *                                                half: their gradients are in half precision
 *   void end(int64_t block, int64_t first)       all threads call it, with the number of the block in all launches and its
 *                                                first element, which may lie before the segment's */
#ifndef TWK_SEGMENTS_CUH
#define TWK_SEGMENTS_CUH

#include "backend/attrs.h"
#include "elements.cuh"

enum { TWK_SEGMENTS = 128, TWK_FOUR = 4, TWK_FOURS = 4, TWK_SEGMENT_PART = TWK_THREADS * TWK_FOUR * TWK_FOURS };
static_assert((int)TWK_SEGMENT_PART == (int)TWI_UPDATE_BLOCK, "blocks of threads take the blocks of twi_update_blocks");

/* 3 kB of the 4 that any device takes as parameters. */
typedef struct twk_segments {
    int count;
    bool wide;       /* elements may be taken four at a time */
    int64_t earlier; /* blocks of earlier launches */
    struct {
        int64_t begin, end;
        float weight_decay;
        uint32_t block : 31; /* its first */
        uint32_t half : 1;
    } item[TWK_SEGMENTS];
} twk_segments;

template <int WIDTH> struct alignas(WIDTH * sizeof(float)) twk_floats { float at[WIDTH]; };
template <int WIDTH> __device__ inline twk_floats<WIDTH> &twk_floats_at(float *data, int64_t i) {
    return *reinterpret_cast<twk_floats<WIDTH> *>(data + i);
}
template <int WIDTH> __device__ inline const twk_floats<WIDTH> &twk_floats_at(const float *data, int64_t i) {
    return *reinterpret_cast<const twk_floats<WIDTH> *>(data + i);
}

/* The same of halves. */
template <class T, int WIDTH> struct alignas(WIDTH * sizeof(T)) twk_halves { T at[WIDTH]; };

/* Gradients, which segment by segment are float or T. */
template <class T> struct twk_gradients {
    const float *floats;
    const T *halves; /* NULL: no segment's are */
    template <int WIDTH> __device__ twk_floats<WIDTH> at(int64_t i, bool half) const {
        if (!half) return twk_floats_at<WIDTH>(floats, i);
        twk_halves<T, WIDTH> from = *reinterpret_cast<const twk_halves<T, WIDTH> *>(halves + i);
        twk_floats<WIDTH> to;
#pragma unroll
        for (int e = 0; e < WIDTH; e++) to.at[e] = twk_float(from.at[e]);
        return to;
    }
};
template <class T> twk_gradients<T> twk_gradients_of(const twi_operand *floats, const twi_operand *halves) {
    twk_gradients<T> gradients = {(const float *)floats->data, (const T *)halves->data};
    return gradients;
}

template <class T, int WIDTH> __device__ inline void twk_round_to(T *data, int64_t i, const twk_floats<WIDTH> &from) {
    twk_halves<T, WIDTH> to;
#pragma unroll
    for (int e = 0; e < WIDTH; e++) to.at[e] = twk_element<T>(from.at[e]);
    *reinterpret_cast<twk_halves<T, WIDTH> *>(data + i) = to;
}

template <class F>
__global__ void __launch_bounds__(TWK_THREADS)
    twk_segments_kernel(const __grid_constant__ twk_segments segments, F functor) {
    F f = functor;
    if (!f.begin()) return;
    int s = 0;
    for (int step = TWK_SEGMENTS / 2; step > 0; step /= 2)
        if (s + step < segments.count && segments.item[s + step].block <= blockIdx.x) s += step;
    int64_t begin = segments.item[s].begin, end = segments.item[s].end;
    float weight_decay = segments.item[s].weight_decay;
    const bool half = segments.item[s].half;
    int64_t first = begin / TWK_FOUR * TWK_FOUR + (int64_t)(blockIdx.x - segments.item[s].block) * TWK_SEGMENT_PART;
#pragma unroll
    for (int k = 0; k < TWK_FOURS; k++) {
        int64_t i = first + (k * TWK_THREADS + threadIdx.x) * TWK_FOUR;
        if (segments.wide && i >= begin && i + TWK_FOUR <= end)
            f.template step<TWK_FOUR>(i, weight_decay, half);
        else
            for (int64_t e = i; e < i + TWK_FOUR; e++)
                if (e >= begin && e < end) f.template step<1>(e, weight_decay, half);
    }
    f.end(segments.earlier + blockIdx.x, first);
}

template <class F>
cudaError_t twk_over_segments(const twk_launch *launch, const twi_update_attrs *attrs, bool wide, const F &f) {
    cudaError_t error = cudaSuccess;
    twk_segments part = {};
    part.wide = wide;
    int64_t blocks = 0;
    for (int32_t s = 0; s < attrs->segment_count && error == cudaSuccess; s++) {
        const twi_update_segment *segment = &attrs->segment[s];
        if (twi_segment_blocks(segment) == 0) continue;
        part.item[part.count].begin = segment->begin;
        part.item[part.count].end = segment->end;
        part.item[part.count].weight_decay = segment->weight_decay;
        part.item[part.count].half = segment->half;
        part.item[part.count++].block = (uint32_t)blocks & 0x7FFFFFFFu;
        blocks += twi_segment_blocks(segment);
        if (part.count < TWK_SEGMENTS) continue;
        error = TWC_LAUNCH(twk_segments_kernel<F>, (unsigned)blocks, TWK_THREADS, 0, launch->stream, part, f);
        part.earlier += blocks;
        part.count = 0;
        blocks = 0;
    }
    if (error != cudaSuccess || part.count == 0) return error;
    return TWC_LAUNCH(twk_segments_kernel<F>, (unsigned)blocks, TWK_THREADS, 0, launch->stream, part, f);
}

#endif
