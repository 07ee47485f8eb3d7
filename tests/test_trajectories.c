/* Losses of the first 20 training steps against PyTorch, from the same initial weights on the same batches. The recorded
 * numbers and the script that made them are in tests/golden. */
#include "golden/trajectories.h"
#include "trajectory.h"

static const double *const losses[TRAJECTORIES][TRAJECTORY_BATCHES] = {{lenet5_sgd_8, lenet5_sgd_32},
                                                                       {lenet5_adamw_8, lenet5_adamw_32},
                                                                       {resnet20_sgd_8, resnet20_sgd_32},
                                                                       {resnet20_adamw_8, resnet20_adamw_32}};

static void follow(void **state) {
    const int t = *(const int *)*state;
    for (int i = 0; i < trajectory_batches(); i++) trajectory_follow(t, i, TW_PRECISION_F32, losses[t][i], 1e-4);
}

int main(int argc, char **argv) { return trajectory_main(argc, argv, follow); }
