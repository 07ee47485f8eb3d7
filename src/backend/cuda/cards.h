/* Cards that a context can be opened on without having one, to plan: "plan:h200". */
#ifndef TWI_CUDA_CARDS_H
#define TWI_CUDA_CARDS_H

#include <stddef.h>

typedef struct twi_cuda_card {
    const char *key;  /* "h200" */
    const char *name; /* "NVIDIA H200" */
    int capability;   /* 90 for compute capability 9.0 */
    int processors;   /* multiprocessors */
    int memory_gib;
    int l2_mib;
    int clock_mhz; /* highest */
} twi_cuda_card;

/* Ends with a NULL key. Source: NVIDIA's data sheets of the cards. */
extern const twi_cuda_card twi_cuda_cards[];

/* NULL: there is none of that key. */
const twi_cuda_card *twi_cuda_find_card(const char *key);

/* The card as cuDNN wants a device described. Limits of threads, registers and shared memory are those of its compute
 * capability (CUDA programming guide, "Compute capabilities"). */
enum { TWI_CARD_TEXT = 1024 };
void twi_cuda_describe_card(const twi_cuda_card *card, char json[TWI_CARD_TEXT]);

#endif
