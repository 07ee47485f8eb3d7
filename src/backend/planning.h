/* Contexts that only plan: device memory is counted and not taken, by the same calls that take it in a context that
 * runs. So what is planned is what will be held, whoever asks for it. */
#ifndef TWI_BACKEND_PLANNING_H
#define TWI_BACKEND_PLANNING_H

#include "backend.h"

/* Of a card's memory as it is sold, what is counted on: error correction and the desktop take their part. */
static inline size_t twi_planned_room(size_t memory_bytes) { return memory_bytes - memory_bytes / 16; }
/* What a driver and its libraries take of a GPU before the first program, beside all that is counted. A process's
 * context with CUDA's modules loaded as they are needed was read to take 287 MB (PyTorch, pull request 86509), and
 * libraries add their kernels: rounded up. */
#define TWI_PLANNED_OVERHEAD ((size_t)512 << 20)

/* A block that would be held. */
typedef struct twi_planned_block {
    const char *what; /* as it was asked for */
    size_t bytes;
    void *address; /* of nothing */
} twi_planned_block;

typedef struct twi_planning twi_planning;

/* The table of a back end with memory that is only counted, and without running; it becomes the context's. */
tw_status twi_planning_open(tw_context *context, const twi_backend *planned);
void twi_planning_close(tw_context *context);
/* What was held when most was. */
const twi_planned_block *twi_planning_peak(const tw_context *context, int *count);
/* Are the implementations of the card's CUDA back end not known? */
bool twi_planning_is_estimated(const tw_context *context);
/* Begins the search for the peak anew, from what is held now. */
void twi_planning_forget_peak(tw_context *context);

/* A card whose CUDA back end is not here: every step is planned as "estimated", those with arithmetic with the most
 * workspace that the libraries may take. Errors: OUT_OF_MEMORY. */
extern const twi_backend twi_backend_estimated;

#endif
