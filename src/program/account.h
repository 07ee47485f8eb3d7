/* What lies in a program's arena when most of it is in use. */
#ifndef TWI_PROGRAM_ACCOUNT_H
#define TWI_PROGRAM_ACCOUNT_H

#include "program.h"

typedef enum twi_share {
    TWI_SHARE_INPUT,      /* the batch */
    TWI_SHARE_ACTIVATION, /* made by the forward */
    TWI_SHARE_GRADIENT,   /* made by what follows it */
    TWI_SHARE_WORKSPACE,  /* of implementations, and partial sums */
    TWI_SHARES
} twi_share;

typedef struct twi_account {
    int segment;              /* of the fullest moment */
    size_t bytes[TWI_SHARES]; /* alignment included */
    size_t unused;            /* the rest of the arena */
} twi_account;

/* Is told of every block that is alive then, with the label of the step that made it. */
typedef void (*twi_account_fn)(void *user, const char *label, twi_share share, size_t bytes);

/* Of a program whose memory is planned. visit may be NULL. */
void twi_program_account(const tw_program *program, twi_account *out, twi_account_fn visit, void *user);

/* Of a planned program, the most that workspaces, of implementations and of workers, and partial sums take at once. */
size_t twi_program_workspace_bytes(const tw_program *program);

#endif
