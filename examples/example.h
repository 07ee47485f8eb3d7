/* What the example programs do alike around the library: end in its words when it refuses something, read numbers from
 * the command line, notice output that nobody got. A program defines PROGRAM, its name, before. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <talweg/talweg.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static inline void check(tw_status status) {
    if (status == TW_OK) return;
    fprintf(stderr, PROGRAM ": %s: %s\n", tw_status_name(status), tw_last_error());
    exit(1);
}

/* For the opening of data that examples/get_data.sh gets, under the names given. */
static inline void check_data(tw_status status, const char *names) {
    if (status == TW_ERROR_FILE) {
        fprintf(stderr, PROGRAM ": %s: %s; examples/get_data.sh %s downloads the data\n", tw_status_name(status),
                tw_last_error(), names);
        exit(1);
    }
    check(status);
}

/* A whole number within bounds; anything else ends the program and says what would do. */
static inline uint64_t number(const char *option, const char *text, uint64_t least, uint64_t most) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10); /* by itself it takes a sign and blanks */
    if (*text >= '0' && *text <= '9' && !*end && !errno && value >= least && value <= most) return value;
    fprintf(stderr, PROGRAM ": --%s: '%s' is not a whole number from %llu to %llu\n", option, text,
            (unsigned long long)least, (unsigned long long)most);
    exit(2);
}

static inline void refuse_argument(const char *argument) {
    fprintf(stderr, PROGRAM ": unexpected argument: %s\n", argument);
    exit(2);
}

static inline void need_checkpoint(bool resume, const char *checkpoint) {
    if (!resume || checkpoint) return;
    fputs(PROGRAM ": --resume needs --checkpoint, to go on from\n", stderr);
    exit(2);
}

/* The exit status: lines that nobody got, on a full disk say, are a failure too. */
static inline int finish(void) {
    if (!fflush(stdout) && !ferror(stdout)) return 0;
    fputs(PROGRAM ": standard output cannot be written\n", stderr);
    return 1;
}

#endif
