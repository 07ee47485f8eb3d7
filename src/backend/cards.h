/* Cards that a context can be opened on without having one, to plan: "plan:h200". The public part is
 * <talweg/plan.h>. */
#ifndef TWI_BACKEND_CARDS_H
#define TWI_BACKEND_CARDS_H

#include <talweg/plan.h>

/* ---- what the CUDA back end makes of a card, the same whether it is here or a plan goes without it ---- */

/* Volta multiplies f16, Ampere bf16 and TF32 too. */
static inline bool twi_card_computes_in(int capability, tw_precision precision) {
    if (precision == TW_PRECISION_F16) return capability >= 70;
    return (precision == TW_PRECISION_BF16 || precision == TW_PRECISION_TF32) && capability >= 80;
}
/* The most workspace that cuDNN is allowed for a convolution, and cuBLASLt for a product. */
static inline size_t twi_card_convolution_workspace(size_t memory_bytes) {
    const size_t most = (size_t)256 << 20, share = memory_bytes / 16;
    return share < most ? share : most;
}
#define TWI_CARD_PRODUCT_WORKSPACE ((size_t)32 << 20)

/* Fills in what is known of a card by the name that its driver tells, and the memory, both of which stay; false:
 * nothing is. */
bool twi_card_recognise(tw_card *card);

#endif
