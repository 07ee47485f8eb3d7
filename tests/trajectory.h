/* Trainings whose losses are recorded from PyTorch (tests/golden), and what follows one of them: test_trajectories in f32,
 * test_trajectories_half in halves. */
#ifndef TALWEG_TESTS_TRAJECTORY_H
#define TALWEG_TESTS_TRAJECTORY_H

#include "check.h"
#include <talweg/talweg.h>

enum { TRAJECTORIES = 4, TRAJECTORY_BATCHES = 2 };

/* Trains in batches of 8 (index 0) or 32 (1). Ends the test where a step's loss is further than `allowed` from the recorded
 * one, as a part of it. Trainings, by index: lenet5 sgd, lenet5 adamw, resnet20 sgd, resnet20 adamw. */
void trajectory_follow(int trajectory, int batch_index, tw_precision precision, const double *losses, double allowed);
/* The small batch alone where a device was named, which may be emulated. */
int trajectory_batches(void);
/* Runs `follow` on every trajectory, its state a const int *, the index. An argument picks tests by name, as "lenet5*". */
int trajectory_main(int argc, char **argv, CMUnitTestFunction follow);

#endif
