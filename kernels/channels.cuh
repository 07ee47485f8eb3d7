/* Sums over everything but the channels (axis 1), or over everything, of values of one shape, in two stages: blocks sum
 * slices of rows (a row is a place of all axes but the channels'), a second kernel adds the slices in order.
 *
 * A functor F says what is summed. Its constants:
 *   SUMS    how many sums a channel has; READS real inputs; MASK: reads bits; CENTER: one float a channel
 *   WRITES  also makes an output of the shape (which may lie over an input)
 * and, on the device:
 *   bool begin(block)   all threads of a block call it; false: every sum is 0 and nothing is read
 *   float operator()(const float *in, bool bit, float center, float *sum)   adds to sum[SUMS], returns the output */
#ifndef TWK_CHANNELS_CUH
#define TWK_CHANNELS_CUH

#include "combine.cuh"
#include "reduce.cuh"
#include "space.cuh"

template <int SUMS_, int READS_, bool MASK_ = false, bool CENTER_ = false, bool WRITES_ = false>
struct twk_channel_functor {
    static constexpr int SUMS = SUMS_, READS = READS_;
    static constexpr bool MASK = MASK_, CENTER = CENTER_, WRITES = WRITES_;
    __device__ bool begin() const { return true; }
};

/* The plain sum of one input. */
struct twk_channel_sum : twk_channel_functor<1, 1> {
    __device__ float operator()(const float *in, bool, float, float *sum) const { return sum[0] += in[0]; }
};

template <class F> struct twk_channels {
    static constexpr int Y = F::READS - 1 + F::WRITES, BITS = Y + F::MASK, VIEWS = BITS + 1;
    const void *in[F::READS];
    void *y;
    const uint8_t *bits;
    const float *center;
    float *parts;  /* [slices, SUMS, channels] */
    float *counts; /* NULL, or [channels]: how many rows were summed */
    int64_t channels, slice_rows;
    int64_t channel_stride[VIEWS];
    twk_space<VIEWS> rows;
};

template <class T, class F, int WIDTH>
__device__ void twk_add_row(const twk_channels<F> &p, F &f, int64_t row, int64_t channel, const float *center,
                            float sum[F::SUMS][WIDTH]) {
    typedef twk_channels<F> P;
    int64_t offset[P::VIEWS];
    p.rows.offsets(row, offset);
#pragma unroll
    for (int v = 0; v < P::VIEWS; v++) offset[v] += channel * p.channel_stride[v];
    float in[F::READS][WIDTH], y[WIDTH];
#pragma unroll
    for (int v = 0; v < F::READS; v++) {
        const T *data = (const T *)p.in[v] + offset[v];
        if constexpr (WIDTH == TWK_PACK)
            twk_load_pack(data, in[v]);
        else
            in[v][0] = twk_float(*data);
    }
    unsigned byte = 0;
    if (F::MASK) byte = p.bits[offset[P::BITS] >> 3] >> (WIDTH == 1 ? offset[P::BITS] & 7 : 0);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        float values[F::READS], sums[F::SUMS];
#pragma unroll
        for (int v = 0; v < F::READS; v++) values[v] = in[v][i];
#pragma unroll
        for (int s = 0; s < F::SUMS; s++) sums[s] = sum[s][i];
        y[i] = f(values, (byte >> i & 1) != 0, center[i], sums);
#pragma unroll
        for (int s = 0; s < F::SUMS; s++) sum[s][i] = sums[s];
    }
    if constexpr (F::WRITES) {
        T *data = (T *)p.y + offset[P::Y];
        if constexpr (WIDTH == TWK_PACK)
            twk_store_pack(data, y);
        else
            *data = twk_element<T>(y[0]);
    }
}

/* Block x: channels along x, WIDTH a thread; rows along y. Grid x: channels, y: slices. */
template <class T, class F, int WIDTH>
__global__ void __launch_bounds__(TWK_THREADS) twk_channels_kernel(twk_channels<F> p, F functor) {
    TWC_SHARED(float, part, [F::SUMS * WIDTH][TWK_THREADS]);
    F f = functor;
    int lane = threadIdx.y * blockDim.x + threadIdx.x;
    int64_t channel = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * WIDTH;
    float sum[F::SUMS][WIDTH] = {}, center[WIDTH] = {};
    bool live = f.begin();
    if (live && channel < p.channels) {
        if (F::CENTER) {
#pragma unroll
            for (int i = 0; i < WIDTH; i++) center[i] = p.center[channel + i];
        }
        int64_t first = blockIdx.y * p.slice_rows, last = first + p.slice_rows;
        if (last > p.rows.count) last = p.rows.count;
#pragma unroll 4
        for (int64_t row = first + threadIdx.y; row < last; row += blockDim.y)
            twk_add_row<T, F, WIDTH>(p, f, row, channel, center, sum);
    }
#pragma unroll
    for (int s = 0; s < F::SUMS; s++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++) part[s * WIDTH + i][lane] = sum[s][i];
    for (unsigned step = blockDim.y / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.y >= step) continue;
#pragma unroll
        for (int s = 0; s < F::SUMS * WIDTH; s++) part[s][lane] += part[s][lane + step * blockDim.x];
    }
    if (threadIdx.y > 0 || channel >= p.channels) return;
    if (p.counts && blockIdx.y == 0)
        for (int i = 0; i < WIDTH; i++) p.counts[channel + i] = live ? (float)p.rows.count : 0;
#pragma unroll
    for (int s = 0; s < F::SUMS; s++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            p.parts[((int64_t)blockIdx.y * F::SUMS + s) * p.channels + channel + i] = part[s * WIDTH + i][lane];
}

/* ---- host side ---- */

/* How a shape's channels and rows are dealt out: by shapes and layout alone, so that sums never depend on the device. */
typedef struct twk_channel_grid {
    int width, across, down; /* channels a thread; threads along channels and along rows of a block */
    int64_t tiles;           /* blocks along channels */
    int slices;
    int64_t slice_rows;
} twk_channel_grid;

enum { TWK_ROWS_A_THREAD = 16, TWK_CHANNEL_BLOCKS = 1024 };

inline twk_channel_grid twk_channel_grid_of(int64_t channels, int64_t rows, int width, bool channels_apart) {
    twk_channel_grid grid = {width, 1, TWK_THREADS, 0, 1, rows};
    while (!channels_apart && grid.across < TWK_WARP && grid.across * width < channels) grid.across *= 2;
    grid.down = TWK_THREADS / grid.across;
    grid.tiles = twk_ceil(channels, grid.across * width);
    int64_t most = twk_ceil(TWK_CHANNEL_BLOCKS, grid.tiles), wanted = twk_ceil(rows, grid.down * TWK_ROWS_A_THREAD);
    int64_t slices = wanted < most ? wanted : most;
    grid.slice_rows = twk_ceil(rows, slices > 0 ? slices : 1);
    grid.slices = grid.slice_rows > 0 ? (int)twk_ceil(rows, grid.slice_rows) : 1;
    return grid;
}

/* Do the channels of an operand (or the bits of its mask) lie side by side in whole packs? */
inline bool twk_channels_pack(const twi_operand *o) {
    if (o->shape.dim[1] % TWK_PACK != 0 || o->stride[1] != 1) return false;
    for (int axis = 0; axis < o->shape.rank; axis++)
        if (axis != 1 && o->shape.dim[axis] > 1 && o->stride[axis] % TWK_PACK != 0) return false;
    return true;
}

/* The channels' axis, or that there is none: everything is one channel. */
enum { TWK_CHANNELS = 1, TWK_ONE_CHANNEL = -1 };

inline int64_t twk_channel_count(const twi_operand *o, int axis) { return axis < 0 ? 1 : o->shape.dim[axis]; }

/* Bytes of partial sums, however the rows will be dealt out: data and their alignment are not known yet. */
inline size_t twk_channels_workspace(const twi_operand *o, int axis, int sums) {
    int64_t channels = twk_channel_count(o, axis), rows = twi_shape_count(&o->shape) / (channels > 0 ? channels : 1);
    int most = 1;
    for (int width = 1; width <= TWK_PACK; width += TWK_PACK - 1)
        for (int apart = 0; apart < 2; apart++) {
            int slices = twk_channel_grid_of(channels, rows, width, apart != 0).slices;
            if (slices > most) most = slices;
        }
    return (size_t)(most * sums * channels) * sizeof(float);
}

/* sums[s * channels + c] and counts[c] of in[0..READS-1]. y: where F::WRITES; mask: F::MASK; center[c]: F::CENTER; counts may
 * be NULL. */
template <class T, class F>
cudaError_t twk_channel_sums(const twk_launch *launch, F f, int axis, const twi_operand *const *in,
                             const twi_operand *y, const twi_operand *mask, const float *center, float *sums,
                             float *counts = NULL) {
    typedef twk_channels<F> P;
    P p = {};
    twk_view views[P::VIEWS];
    bool packs = axis >= 0;
    for (int v = 0; v < F::READS; v++) {
        views[v] = twk_view_of(in[v]);
        p.in[v] = in[v]->data;
        packs = packs && twk_channels_pack(in[v]) && twk_aligned(in[v]->data, TWK_PACK_ALIGNMENT);
    }
    if (F::WRITES) {
        views[P::Y] = twk_view_of(y);
        p.y = y->data;
        packs = packs && twk_channels_pack(y) && twk_aligned(y->data, TWK_PACK_ALIGNMENT);
    }
    if (F::MASK) {
        views[P::BITS] = twk_view_of_bits(mask);
        p.bits = (const uint8_t *)mask->data;
        packs = packs && twk_channels_pack(mask);
    }
    const twi_shape *shape = &in[0]->shape;
    p.center = center;
    p.counts = counts;
    p.channels = twk_channel_count(in[0], axis);
    p.rows = twk_space_of<P::VIEWS>(shape, 0, axis, views, 0);
    for (int v = 0; v < P::VIEWS; v++) p.channel_stride[v] = axis < 0 ? 0 : views[v].stride[axis];
    twk_channel_grid grid =
        twk_channel_grid_of(p.channels, p.rows.count, packs ? TWK_PACK : 1, axis < 0 || in[0]->stride[axis] != 1);
    p.slice_rows = grid.slice_rows;
    p.parts = grid.slices == 1 ? sums : (float *)launch->workspace;
    if (p.channels == 0) return cudaSuccess;
    const dim3 blocks((unsigned)grid.tiles, (unsigned)grid.slices), threads((unsigned)grid.across, (unsigned)grid.down);
    cudaError_t error =
        packs ? TWC_LAUNCH((twk_channels_kernel<T, F, TWK_PACK>), blocks, threads, 0, launch->stream, p, f)
              : TWC_LAUNCH((twk_channels_kernel<T, F, 1>), blocks, threads, 0, launch->stream, p, f);
    if (error != cudaSuccess || grid.slices == 1) return error;
    return twk_combine(launch, p.parts, grid.slices, F::SUMS * p.channels, sums);
}

#endif
