/* A card as cuDNN wants a device described that is not here. */
#ifndef TWI_CUDA_CARD_TEXT_H
#define TWI_CUDA_CARD_TEXT_H

#include <talweg/plan.h>

/* Limits of threads, registers and shared memory are those of its compute capability (CUDA programming guide, "Compute
 * capabilities"); a capability that is not known has those of the nearest below it. */
enum { TWI_CARD_TEXT = 1024 };
void twi_cuda_describe_card(const tw_card *card, char json[TWI_CARD_TEXT]);

#endif
