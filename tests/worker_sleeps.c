#include "worker_sleeps.h"

#include "check.h"

#include <dirent.h>
#include <stdio.h>

static bool is_known(const threads_known *known, long thread) {
    for (int i = 0; i < known->count; i++)
        if (known->thread[i] == thread) return true;
    return thread <= 0;
}

threads_known threads_find(void) {
    threads_known found = {0};
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (const struct dirent *task; (task = readdir(tasks));) {
        assert_true(found.count < THREADS_KNOWN);
        found.thread[found.count++] = strtol(task->d_name, NULL, 10);
    }
    closedir(tasks);
    return found;
}

long threads_sleeps_of_others(const threads_known *known) {
    long sum = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (const struct dirent *task; (task = readdir(tasks));) {
        char path[300], line[256];
        const long thread = strtol(task->d_name, NULL, 10);
        if (is_known(known, thread)) continue;
        snprintf(path, sizeof path, "/proc/self/task/%ld/status", thread);
        FILE *file = fopen(path, "r");
        long switches;
        while (file && fgets(line, sizeof line, file))
            if (sscanf(line, "voluntary_ctxt_switches: %ld", &switches) == 1) sum += switches;
        if (file) fclose(file);
    }
    closedir(tasks);
    return sum;
}
