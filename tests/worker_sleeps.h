/* How often the threads that a context started have gone to sleep: what tells that a run woke one. */
#ifndef TALWEG_TESTS_WORKER_SLEEPS_H
#define TALWEG_TESTS_WORKER_SLEEPS_H

enum { THREADS_KNOWN = 16 };

typedef struct threads_known {
    int count;
    long thread[THREADS_KNOWN];
} threads_known;

/* The threads there are before a context is: this one, and what a sanitizer keeps. */
threads_known threads_find(void);
/* How often the other threads have gone to sleep. */
long threads_sleeps_of_others(const threads_known *known);

#endif
