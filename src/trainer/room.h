/* Keeping within memory, as fit does it: room.c, and room_left.c for what there is. */
#ifndef TWI_TRAINER_ROOM_H
#define TWI_TRAINER_ROOM_H

#include "trainer.h"
#include "program/store.h"

/* What fit works with. */
typedef struct twi_room {
    twi_feed *train, *test; /* test is closed if there is no set */
    const tw_dataset *train_set, *test_set;
} twi_room;

/* Bytes of the device that sets can still take, within the trainer's limit, the context's cap and what is free, beside
 * what is kept for sets that are going to be there for certain; SIZE_MAX: nobody says. */
size_t twi_room_left(const tw_trainer *trainer);
/* The smaller of a limit (0: none) and what the model and sets may take in all, so that it is there; 0: neither. */
size_t twi_room_limit(const tw_trainer *trainer, size_t limit);
/* Once there are programs: is there room to write checkpoints, where fit does? Errors: OUT_OF_MEMORY. */
tw_status twi_room_check_saving(const tw_trainer *trainer);
/* Begins to try what may fail for want of memory. */
void twi_room_try(tw_trainer *trainer);
/* After such a failure: is it the user's? What was planned within a limit that the options name was refused all the
 * same, and they do not ask for another plan (on_out_of_memory). */
bool twi_room_stops(const tw_trainer *trainer);
/* What measures and predicts outside of a fit is held to the limit there is then. */
void twi_room_enter(tw_trainer *trainer);
/* What twi_room_open would make under the trainer's limit, for its number of parts. */
typedef struct twi_rehearsal {
    tw_program_stats stats; /* of the largest program of training: of a batch, or a part */
    int64_t batch;          /* its */
    size_t bytes;           /* of the model with all programs */
    size_t shared;          /* of that, arena and scratch */
} twi_rehearsal;
/* Plans it, and takes nothing; the feeds, which are closed before, are so behind it. Errors: OUT_OF_MEMORY naming a
 * floor. */
tw_status twi_room_rehearse(tw_trainer *trainer, const twi_room *room, twi_rehearsal *out);
/* Opens the feeds within the limit that the options and the device set: by what programs do to keep it, by parts of
 * batches, by smaller batches to measure with. What fails in spite of the plan is planned anew with less, where the
 * options want that.
 * Errors: OUT_OF_MEMORY, naming the least limit that would do where there is none; feeds may be open then. */
tw_status twi_room_open(tw_trainer *trainer, const twi_room *room);
/* The same after a run failed for want of memory, as the thread's last error says: with less than before. */
tw_status twi_room_reopen(tw_trainer *trainer, const twi_room *room);
/* Closes the feeds, after whatever became of them. held: what the model's store held before, where they came to
 * nothing, and to which it goes back: a fit that is refused keeps no memory. Else NULL. */
void twi_room_leave(tw_trainer *trainer, const twi_room *room, const twi_store_mark *held);

#endif
