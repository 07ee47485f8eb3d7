/* The fusion table: which groups of steps become one, which steps disappear into their readers, and which factors into
 * weights. */
#ifndef TWI_PROGRAM_PATTERNS_H
#define TWI_PROGRAM_PATTERNS_H

#include "program.h"

#include <string.h>

enum { TWI_PATTERN_MEMBERS = 4 };

/* Member m reads, as its operand `to`, what an earlier member wrote as operand `from`. */
typedef struct twi_pattern_member {
    const char *kernel;
    int8_t earlier, from, to;
} twi_pattern_member;

/* Where an operand of the replacement comes from. */
typedef struct twi_pattern_operand {
    int8_t member, operand; /* member TWI_MASK: a new bit mask shaped like `operand` of the replacement; TWI_ABSENT:
                               there is none */
} twi_pattern_operand;
enum { TWI_MASK = -1, TWI_ABSENT = -2 };

/* A group of steps that becomes one. What one member hands to another and the replacement does not write must have no
 * other reader. Attributes are those of member 0; of member `joined`, if that is not 0, follow them in the same
 * struct. */
typedef struct twi_pattern {
    const char *name;
    int8_t members, joined;
    bool asked; /* made only where the back end has an implementation of the replacement */
    twi_pattern_member member[TWI_PATTERN_MEMBERS];
    const char *replacement;
    twi_pattern_operand operand[TWI_MAX_OPERANDS];
    /* With a mask: readers of the output it is shaped like that need only its sign take the mask instead. */
    const char *sign_reader, *mask_reader;
    int8_t sign_operand;
} twi_pattern;

extern const twi_pattern twi_patterns[]; /* ends with a NULL name; earlier rows win */

/* A step that masks its operand 0 by the bits of operand 1 into operand 2 disappears if each of its readers has a twin
 * that masks while it reads. The twin's operands: the reader's, with the masked one replaced by (unmasked, mask). */
typedef struct twi_absorb {
    const char *producer, *reader;
    int8_t operand; /* of the reader, which is the masked value */
    const char *twin;
    int8_t order[TWI_MAX_OPERANDS]; /* reader operand per twin operand; TWI_ABSORB_VALUE and TWI_ABSORB_MASK for the
                               producer's */
    bool joined;                    /* the producer's attributes follow the reader's in the twin's */
    bool asked;                     /* only where the back end has an implementation of the twin */
} twi_absorb;
enum { TWI_ABSORB_VALUE = -1, TWI_ABSORB_MASK = -2 };

extern const twi_absorb twi_absorbs[]; /* ends with a NULL producer */

/* A product whose result `scale` multiplies channel by channel, by constants, with a bias (`shift`) between the two or
 * none: the factors go into the product's weights, whose axis 0 are the channels, and a bias takes what is added.
 * Operands: shift x, b, y; scale x, factors, y; fold w, b (absent without a shift), factors, and what it makes: weights
 * and bias. Without training alone. */
typedef struct twi_fold {
    const char *product;
    int8_t weight, result; /* operands of the product */
    const char *shift, *scale, *fold;
} twi_fold;

extern const twi_fold twi_folds[]; /* ends with a NULL product */

/* Two steps, and those of their backward, that give the same in the other order, in which less is to be done: `first`
 * maps every element by itself and never turns their order around, `second` selects elements. Operands: first x, y;
 * second x, y, index; second_backward dy, index, dx; first_backward dy, y, dx. Done where a pattern that is asked about
 * then takes both. */
typedef struct twi_swap {
    const char *first, *second, *second_backward, *first_backward;
} twi_swap;

extern const twi_swap twi_swaps[]; /* ends with a NULL first */

/* A step that makes a weight's gradient, alone, and the optimizer's whose update it can do at once. The merged one's
 * operands: those that the product reads, then the weight and its moments, which it changes. Attributes are the
 * optimizer's, of one segment from 0. */
typedef struct twi_merge {
    const char *product;
    int8_t gradient; /* operand of the product, its last */
    const char *update, *merged;
} twi_merge;

extern const twi_merge twi_merges[]; /* ends with a NULL product */

/* A step that makes a weight's gradient, and one that measures it by rows for the guard too: its operands are the
 * product's and the guard's blocks. */
typedef struct twi_measure {
    const char *product;
    int8_t gradient; /* operand of the product */
    const char *measured;
} twi_measure;

extern const twi_measure twi_measures[]; /* ends with a NULL product */

/* A step that can go by the features of its operand `operand`, where that lies feature by feature, and the kernel that
 * does; NULL: the same. With `join`: it is x, w, b, y or x, w, y, its twin makes x, w, parts, and `join` makes y of
 * parts, b. */
typedef struct twi_feature {
    const char *kernel;
    int8_t operand;
    const char *twin, *join;
} twi_feature;

extern const twi_feature twi_features[]; /* ends with a NULL kernel */

/* Is that what the step does? Not if it has gone. */
static inline bool twi_is_kernel(const twi_step *step, const char *name) {
    return step->kernel && strcmp(step->kernel->name, name) == 0;
}

/* Operands through which a step reads a buffer, itself or as a view of it. */
static inline int twi_count_reads(const tw_program *program, const twi_step *step, int buffer) {
    int count = 0;
    for (int o = 0; step->kernel && o < step->kernel->operand_count; o++)
        count += step->operand[o] >= 0 && step->kernel->operand[o].access != TWI_WRITE &&
                 twi_program_root(program, step->operand[o]) == buffer;
    return count;
}

/* Does nobody want a buffer but the steps of the program? */
static inline bool twi_may_vanish(const tw_program *program, int buffer) {
    return !program->buffer[buffer].pinned && program->buffer[buffer].source == TWI_SOURCE_ARENA;
}

#endif
