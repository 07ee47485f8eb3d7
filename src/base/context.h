/* The context: what everything made from it shares. Created in src/program/context.c, where the back end is known. */
#ifndef TWI_BASE_CONTEXT_H
#define TWI_BASE_CONTEXT_H

#include "log.h"
#include "memory.h"
#include "threads.h"

struct tw_context {
    twi_memory *memory;
    twi_pool *pool;
    twi_log log;
    const struct twi_backend *backend; /* the table of functions of src/backend/backend.h */
    struct twi_registry *own_registry;   /* the built-in ops and a user's */
    bool plans_only;                     /* opened on "plan:...": builds and plans, and refuses to run */
    struct twi_planning *planning;       /* then: what would be held of the device (src/backend/planning.h) */
    const struct tw_card *card;          /* what it plans for, if that is described */
    const struct twi_registry *registry; /* the ops known here: src/ops/op.h */
    size_t device_memory_limit;        /* 0: none */
    bool autotune;                     /* as in tw_context_options */
    char *cache_folder;                /* NULL: none was named */
    void *device;                      /* the back end's own state for this context */
    int ordinal;                       /* which of the back end's devices */
    char device_name[40];
    char machine[96]; /* what the same plan may compute other bits on, if it differs: instruction set, libraries */
};

/* The part of a context that needs no device: memory, workers and log. NULL options mean all defaults. */
tw_status twi_context_open(tw_context **out, const tw_context_options *options);
/* Frees what twi_context_open made; the back end's part must be gone. NULL is fine. */
void twi_context_close(tw_context *context);

#endif
