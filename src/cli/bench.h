/* What `talweg bench` asks for and what it measured: made by bench.c, told by bench_report.c. */
#ifndef TWI_CLI_BENCH_H
#define TWI_CLI_BENCH_H

#include "workload.h"

typedef struct twi_bench_settings {
    const char *device;
    const twi_workload *workload;
    int batch; /* 0: the mode's own */
    int threads;
    double seconds;
    tw_precision precision;
    bool infer, explain, json, autotune;
} twi_bench_settings;

/* Of the runs of one stretch of time. */
typedef struct twi_bench_times {
    int64_t runs;
    double seconds;                  /* wall clock */
    double median, p99, best, first; /* of a run */
} twi_bench_times;

typedef struct twi_bench_result {
    tw_device_info device;
    tw_program_stats stats;
    int64_t weights;
    double ready;              /* seconds until the program was made */
    twi_bench_times plain;     /* what counts */
    twi_bench_times timed;     /* --explain: with the clocks on, of the quietest part of that time */
    tw_ceilings all;           /* --explain: of all threads together */
    tw_step_info *step;        /* --explain: every step, with its times then */
} twi_bench_result;

/* Each false if there is no memory for what is to be told. */
bool twi_bench_report(const twi_bench_settings *settings, const twi_bench_result *result);
bool twi_bench_report_json(const twi_bench_settings *settings, const twi_bench_result *result);

#endif
