/* What stands between gradients and the update: their norm, whether they are finite, and the loss scale that follows
 * from that. The rules are the same text for the host and for CUDA devices; who looks at gradients is
 * src/ops/op_guard.c, who ends an update op_commit.c. */
#ifndef TWI_BACKEND_GUARD_H
#define TWI_BACKEND_GUARD_H

#include "base/philox.h"

#include <stdbool.h>

enum { TWI_UPDATE_BLOCK = 4096 }; /* gradients of a full block (attrs.h) */

/* A program's part of the rules. */
typedef struct twi_guard_attrs {
    int64_t blocks; /* of the gradients that are updated: twi_update_blocks */
    double clip;    /* largest norm; 0: any */
    bool skips;     /* a loss or gradient that is not finite leaves the update out; otherwise it is a fault */
    bool scales;    /* the loss is scaled, by a scale between minimum and maximum */
    double growth, backoff, minimum, maximum;
    int64_t interval; /* updates in a row before the scale grows */
    int64_t patience; /* so many left out in a row are a fault */
} twi_guard_attrs;

/* Part of the control block: steps advance it, and it lasts from run to run. */
typedef struct twi_guard {
    double scale;     /* of the next run's loss; 0: no program has asked for one */
    int64_t good;     /* updates in a row since it last changed */
    int64_t skipped;  /* updates left out in all */
    int64_t in_a_row; /* and since the last that was made */
    /* of the last run, or, in a window, of the sums so far */
    double used;      /* the scale its gradients have; 1: none */
    double norm;      /* of the gradients without the scale, before clipping; infinite where they are not finite */
    double factor;    /* what the update multiplies every gradient by */
    double value;     /* what is not finite: the last such gradient */
    int64_t place;    /* and where: block * TWI_UPDATE_BLOCK + element of it; -1: gradients are finite */
    int32_t bad_loss; /* 1 + node of a loss that is not finite; 0: they are */
    uint32_t refused; /* there will be no update */
} twi_guard;

/* A block of gradients is summed up in one number: its root mean square, or, where a gradient is not finite, below
 * zero: which one, the last of them, and what it is. Both fit a float exactly enough. Of a block that is longer than
 * others (twi_update_segment.row) what lies beyond a full one is named as that one's last. */
TWI_HOST_DEVICE static inline double twi_guard_mark(double value, int64_t element) {
    if (element >= TWI_UPDATE_BLOCK) element = TWI_UPDATE_BLOCK - 1;
    return -1 - (double)(4 * element + (value != value ? 0 : value > 0 ? 1 : 2));
}
TWI_HOST_DEVICE static inline int64_t twi_guard_marked(double mark) { return (int64_t)(-1 - mark) / 4; }
TWI_HOST_DEVICE static inline double twi_guard_marked_value(double mark) {
    const double huge = 1e308;
    const int kind = (int)((int64_t)(-1 - mark) % 4);
    return kind == 0 ? huge * 10 - huge * 10 : kind == 1 ? huge * 10 : -huge * 10;
}

/* After all gradients were looked at: `norm` is that of the scaled ones, `place` -1 if they are finite. True: a
 * fault. */
TWI_HOST_DEVICE static inline bool twi_guard_decide(twi_guard *guard, const twi_guard_attrs *attrs, bool first,
                                                    int32_t bad_loss, double norm, int64_t place, double value) {
    if (first) guard->bad_loss = 0;
    if (bad_loss && !guard->bad_loss) guard->bad_loss = bad_loss;
    guard->used = attrs->scales ? guard->scale : 1;
    guard->place = place;
    guard->value = value;
    guard->norm = place < 0 ? norm / guard->used : 1e308 * 10;
    guard->factor = 1 / guard->used;
    /* As torch.nn.utils.clip_grad_norm_: a little less than the norm asked for, and never divided by 0. */
    if (attrs->clip > 0 && guard->norm + 1e-6 > attrs->clip) guard->factor *= attrs->clip / (guard->norm + 1e-6);
    guard->refused = place >= 0 || guard->bad_loss;
    return place >= 0 && !attrs->skips;
}

/* At the end of an update that was made or left out. True: too many were left out. */
TWI_HOST_DEVICE static inline bool twi_guard_advance(twi_guard *guard, const twi_guard_attrs *attrs) {
    double scale = guard->scale;
    if (guard->refused) {
        guard->skipped++;
        guard->in_a_row++;
        guard->good = 0;
        scale *= attrs->backoff;
    } else {
        guard->in_a_row = 0;
        if (attrs->scales && ++guard->good >= attrs->interval) {
            guard->good = 0;
            scale *= attrs->growth;
        }
    }
    if (attrs->scales)
        guard->scale = scale < attrs->minimum ? attrs->minimum : scale > attrs->maximum ? attrs->maximum : scale;
    return guard->in_a_row >= attrs->patience && guard->refused;
}

#endif
