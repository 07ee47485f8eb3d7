/* Which results of the forward are dropped and made again: a dynamic programme over the chain of blocks. A block is
 * kept as it is; or what is cheap to make again is dropped (steps without arithmetic worth counting: norms,
 * activations); or it is kept at its border only, alone or as one of several neighbours that are done again together.
 * The estimate of memory here only ranks: budget.c holds every choice against the planned arena.
 * After Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost", 2016: borders are kept, cheap
 * steps dropped first. The dynamic programme takes the place of their equal segments. */
#include "recompute.h"

#include <math.h>
#include <string.h>

enum { GROUP_BLOCKS = 48, UNITS = 512 };

typedef enum level { KEEP_ALL, DROP_CHEAP, KEEP_BORDER, LEVELS } level;

/* Of a group of blocks: bytes that it holds through the rest of the forward and the backward of what follows; those
 * that its own backward needs beside; the work of doing it again. */
typedef struct twi_price {
    size_t lasting, passing;
    double work; /* infinite: not a choice */
} twi_price;

typedef struct pricing {
    const twi_outline *outline;
    bool *needed; /* per buffer: the backward, or a step done again for it, reads it */
} pricing;

static twi_price *price_of(const twi_outline *outline, int first, int count, level l) {
    return &outline->price[((size_t)first * GROUP_BLOCKS + (size_t)(count - 1)) * LEVELS + l];
}

static size_t held_bytes(const twi_outline *outline, int root) {
    const twi_buffer *buffer = &outline->buffer[root];
    const bool planned = buffer->source == TWI_SOURCE_ARENA && !buffer->pinned && !buffer->local;
    return planned ? buffer->bytes : 0;
}

static bool writes(const twi_step *step, int buffer) {
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (step->operand[o] == buffer && step->kernel->operand[o].access != TWI_READ) return true;
    return false;
}

static bool is_repeatable(const twi_outline *outline, int index) {
    const twi_step *step = &outline->step[index];
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (step->operand[o] >= 0 && step->kernel->operand[o].access != TWI_READ)
            return outline->kept[step->operand[o]].writer == index;
    return false;
}

static bool drops(const twi_outline *outline, int index, level l, int border) {
    const twi_step *step = &outline->step[index];
    if (l == KEEP_ALL || !is_repeatable(outline, index)) return false;
    if (l == DROP_CHEAP && step->kernel->flops) return false;
    return border < 0 || !writes(step, border);
}

/* Is a step that is dropped done again for something that is read? Then so must be what it reads. */
static bool mark_needed(const pricing *p, int index) {
    const twi_outline *outline = p->outline;
    const twi_step *step = &outline->step[index];
    bool wanted = false;
    for (int o = 0; o < step->kernel->operand_count; o++)
        if (step->operand[o] >= 0 && step->kernel->operand[o].access != TWI_READ)
            wanted |= p->needed[step->operand[o]] ||
                      (outline->kept[step->operand[o]].read_later && held_bytes(outline, step->operand[o]));
    for (int o = 0; wanted && o < step->kernel->operand_count; o++)
        if (step->operand[o] >= 0 && step->kernel->operand[o].access == TWI_READ)
            p->needed[twi_program_root(outline->program, step->operand[o])] = true;
    return wanted;
}

static twi_price price_group(const pricing *p, int first, int count, level l) {
    const twi_outline *outline = p->outline;
    const int begin = outline->block[first].first, end = outline->block[first + count - 1].end,
              border = outline->block[first + count - 1].border;
    twi_price price = {0};
    size_t largest = 0, dropped = 0, widest = 0;
    memset(p->needed, 0, (size_t)outline->buffer_count);
    for (int i = end - 1; i >= begin; i--) {
        const twi_step *step = &outline->step[i];
        const bool again = drops(outline, i, l, border) && mark_needed(p, i);
        size_t own = 0;
        for (int o = 0; o < step->kernel->operand_count; o++) {
            if (step->operand[o] < 0 || step->kernel->operand[o].access == TWI_READ) continue;
            const int root = step->operand[o];
            const size_t bytes = held_bytes(outline, root);
            if (bytes > largest) largest = bytes;
            own += bytes;
            if (!again && (outline->kept[root].read_later || p->needed[root] || root == border)) price.lasting += bytes;
        }
        if (!again) continue;
        price.work += twi_outline_cost(outline, i);
        dropped += own;
        if (own > widest) widest = own;
    }
    /* Beside gradients, some of what is made again: all of it where one needs the other, else one after the other. */
    price.passing = 2 * largest + (l == KEEP_BORDER ? dropped : 2 * widest < dropped ? 2 * widest : dropped);
    if (l != KEEP_ALL && !dropped) price.work = INFINITY;
    return price;
}

static void price_all(const pricing *p) {
    const twi_outline *outline = p->outline;
    for (int b = 0; b < outline->block_count; b++)
        for (int n = 1; n <= GROUP_BLOCKS; n++)
            for (int l = 0; l < LEVELS; l++) {
                const bool possible = b + n <= outline->block_count && (n == 1 || l == KEEP_BORDER);
                *price_of(outline, b, n, (level)l) =
                    possible ? price_group(p, b, n, (level)l) : (twi_price){.work = INFINITY};
            }
}

tw_status twi_recompute_price(twi_outline *outline) {
    pricing p = {.outline = outline};
    TWI_TRY(twi_get(outline->memory, &outline->price, (size_t)outline->block_count * GROUP_BLOCKS * LEVELS,
                    sizeof *outline->price, "prices of blocks"));
    TWI_TRY(twi_get(outline->memory, &p.needed, (size_t)outline->buffer_count, sizeof *p.needed, "prices of blocks"));
    price_all(&p);
    twi_put(outline->memory, p.needed);
    return TW_OK;
}

/* ---- the dynamic programme ---- */

/* The least work with which the blocks before `block` can be done while they hold `held` units through the rest. */
typedef struct state {
    double work;
    int16_t count, level; /* of the group that ends here */
    int32_t held;         /* units before it */
} state;

typedef struct table {
    const twi_outline *outline;
    state *state; /* (blocks + 1) x (UNITS + 1) */
    size_t unit;  /* bytes; rounded up, so that the sum never promises too much */
    size_t limit;
} table;

static state *at(const table *t, int block, int held) { return &t->state[(size_t)block * (UNITS + 1) + (size_t)held]; }

static void try_group(const table *t, int block, int held, int count, level l) {
    const twi_price *price = price_of(t->outline, block, count, l);
    const state *from = at(t, block, held);
    if (isinf(price->work)) return;
    const size_t before = (size_t)held * t->unit, lasting = (price->lasting + t->unit - 1) / t->unit;
    if (lasting > (size_t)(UNITS - held) || price->lasting + price->passing > t->limit ||
        before > t->limit - price->lasting - price->passing)
        return;
    state *to = at(t, block + count, held + (int)lasting);
    if (from->work + price->work >= to->work) return;
    *to = (state){from->work + price->work, (int16_t)count, (int16_t)l, held};
}

static void fill(const table *t) {
    const int blocks = t->outline->block_count;
    for (size_t i = 0; i < (size_t)(blocks + 1) * (UNITS + 1); i++) t->state[i].work = INFINITY;
    at(t, 0, 0)->work = 0;
    for (int b = 0; b < blocks; b++)
        for (int held = 0; held <= UNITS; held++) {
            if (isinf(at(t, b, held)->work)) continue;
            for (int n = 1; n <= GROUP_BLOCKS && b + n <= blocks; n++)
                for (int l = n == 1 ? KEEP_ALL : KEEP_BORDER; l < LEVELS; l++) try_group(t, b, held, n, (level)l);
        }
}

/* The groups of the best choice, from the last one on. */
static bool read_back(const table *t, bool *dropped) {
    const twi_outline *outline = t->outline;
    int block = outline->block_count, held = 0;
    for (int i = 1; i <= UNITS; i++)
        if (at(t, block, i)->work < at(t, block, held)->work) held = i;
    if (isinf(at(t, block, held)->work)) return false;
    while (block > 0) {
        const state *s = at(t, block, held);
        const int border = outline->block[block - 1].border;
        block -= s->count;
        for (int i = outline->block[block].first; i < outline->block[block + s->count - 1].end; i++)
            dropped[i] = drops(outline, i, (level)s->level, border);
        held = s->held;
    }
    return true;
}

tw_status twi_recompute_choose(const twi_outline *outline, size_t limit, bool *dropped, bool *found) {
    table t = {.outline = outline, .limit = limit, .unit = limit / UNITS + 1};
    TWI_TRY(twi_get(outline->memory, &t.state, (size_t)(outline->block_count + 1) * (UNITS + 1), sizeof *t.state,
                    "choice of what is recomputed"));
    memset(dropped, 0, (size_t)outline->forward_count);
    fill(&t);
    *found = read_back(&t, dropped);
    twi_put(outline->memory, t.state);
    return TW_OK;
}

tw_status twi_recompute_bounds(const twi_outline *outline, size_t *least, size_t *most) {
    enum { HALVINGS = 8 };
    size_t low = 0, lasting = 0, widest = 0;
    bool *dropped, found;
    for (int b = 0; b < outline->block_count; b++) {
        const twi_price *price = price_of(outline, b, 1, KEEP_ALL);
        lasting += price->lasting;
        if (price->passing > widest) widest = price->passing;
    }
    size_t high = lasting + widest;
    high += high / 8 + 1; /* sums are rounded up */
    *most = high;
    TWI_TRY(twi_get(outline->memory, &dropped, (size_t)outline->forward_count, sizeof *dropped, "dropped steps"));
    tw_status status = TW_OK;
    for (int i = 0; i < HALVINGS && status == TW_OK; i++) {
        const size_t middle = low + (high - low) / 2;
        status = twi_recompute_choose(outline, middle, dropped, &found);
        if (status == TW_OK && found)
            high = middle;
        else
            low = middle;
    }
    twi_put(outline->memory, dropped);
    *least = high;
    return status;
}
