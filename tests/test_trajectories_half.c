/* Losses of the first 20 training steps in bf16 and f16 against PyTorch's, from the same initial weights on the same batches,
 * with the same values rounded to halves. The recorded numbers and the script that made them are in tests/golden.
 *
 * Bounds: two programs that round the same values differ by sums in another order, which now and then round to the
 * neighbouring half, and by what only one of them rounds (a fused step rounds once, gradients of biases not at all). Each
 * such step is one unit of the type in one of many values: so the losses are nearer to PyTorch's in the same type than
 * PyTorch's own in f32 are, for most trainings (the script prints how far those are: up to 2e-3 in bf16, 1e-3 in f16). */
#include "golden/trajectories_half.h"
#include "trajectory.h"

enum { HALVES = 2 };

static const struct {
    tw_precision precision;
    double allowed;
} halves[HALVES] = {{TW_PRECISION_BF16, 2e-3}, {TW_PRECISION_F16, 1e-3}};

#define LOSSES(name)                                                     \
    {                                                                    \
        {name##_8_bf16, name##_32_bf16}, { name##_8_f16, name##_32_f16 } \
    }
static const double *const losses[TRAJECTORIES][HALVES][TRAJECTORY_BATCHES] = {
    LOSSES(lenet5_sgd), LOSSES(lenet5_adamw), LOSSES(resnet20_sgd), LOSSES(resnet20_adamw)};

static void follow(void **state) {
    const int t = *(const int *)*state;
    for (int h = 0; h < HALVES; h++)
        for (int i = 0; i < trajectory_batches(); i++)
            trajectory_follow(t, i, halves[h].precision, losses[t][h][i], halves[h].allowed);
}

int main(int argc, char **argv) { return trajectory_main(argc, argv, follow); }
