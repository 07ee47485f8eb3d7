/* Ops as users write them, for tests: each shows one thing a definition can say. */
#ifndef TALWEG_TESTS_USER_OPS_H
#define TALWEG_TESTS_USER_OPS_H

#include <talweg/talweg.h>

/* prelu(x, a): y = x < 0 ? a[c] x : x, a slope a channel, in whatever layout. The user pointer, if any, is a prelu_seen. */
typedef struct prelu_seen {
    int dx, da, y; /* calls of backward that were given them */
} prelu_seen;
tw_status user_ops_prelu(tw_context *context, tw_op_layout layout, prelu_seen *seen);
/* The node, with slopes named `slope` of initial value 0.25. */
tw_value *user_ops_apply_prelu(tw_model *model, tw_value *x, const char *slope);

/* running_tanh(x): y[n,i] = tanh(gain * (x[n,0] + ... + x[n,i])) in logical order, x[N,...] -> y[N,elements]; with `reverse` from the
 * end. Row-major, with workspace and FLOPs. */
typedef struct running_attrs {
    float gain;
    bool reverse;
} running_attrs;
tw_status user_ops_running_tanh(tw_context *context);

/* noise(x): y = x (1 + u - 1/2) in training, u uniform in 0 .. 1 for every element; y = x otherwise. x[N,elements] */
tw_status user_ops_noise(tw_context *context);

/* center(x, b): y[n,i] = x[n,i] - mean over the batch + b[i], at once. */
tw_status user_ops_center(tw_context *context);

/* positive(x): y = x, and a fault where an element is negative. */
tw_status user_ops_positive(tw_context *context);

int64_t user_ops_count(const tw_op_tensor *tensor);

#endif
