/* The distinct convolutions of the networks in the zoo, read from their graphs. */
#ifndef TALWEG_TESTS_NETWORK_CONVS_H
#define TALWEG_TESTS_NETWORK_CONVS_H

#include "conv_check.h"

enum { NETWORK_CONVS_MOST = 96 };

typedef struct network_conv {
    const char *network; /* where it was met first: "ResNet-18" */
    char layer[64];      /* "layer1.0.conv1" */
    conv_check_case c;
} network_conv;

/* Those of LeNet-5 and ResNet-20 at batch 128, ResNet-18 and ResNet-50 on 224 x 224 at batch 64; returns how many. */
int network_convs(network_conv out[NETWORK_CONVS_MOST]);

#endif
