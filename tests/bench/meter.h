/* What programs to measure with share: arguments, the clock, and statistics. */
#ifndef METER_H
#define METER_H

#include <talweg/talweg.h>

#include <time.h>

/* Every program has these: its name before messages, and what --help prints. */
extern const char meter_program[], meter_usage[];

/* Ends the program with the library's message if it failed at `what`. */
void meter_check(tw_status status, const char *what);
/* The same memory; ends the program if there is none. */
void *meter_need(void *memory);
/* Ends the program, saying what is wrong with an argument and how it is used. */
_Noreturn void meter_refuse(const char *reason, const char *text);

/* An argument from `least` to `most`; refused otherwise. */
double meter_number(const char *text, double least, double most, const char *reason);
int meter_whole(const char *text, int least, int most, const char *reason);

/* Seconds. */
double meter_now(clockid_t clock);

/* The middle of the values, which it sorts, lowest first. */
double meter_median(double *values, int count);
/* The quantile q, 0 to 1, of sorted values, linear between neighbours. */
double meter_quantile(const double *values, int count, double q);

#endif
