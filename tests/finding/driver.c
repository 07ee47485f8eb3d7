/* Stands for the NVIDIA driver where the library looks for one. What it answers is in environment variables. */
#include <stdlib.h>

int cuInit(unsigned flags);
int cuDeviceGetCount(int *out);
int cuDriverGetVersion(int *out);

static int answer(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int cuInit(unsigned flags) { return flags ? 1 /* invalid value */ : answer("STAND_IN_INIT", 0); }

int cuDeviceGetCount(int *out) {
    *out = answer("STAND_IN_DEVICES", 1);
    return 0;
}

int cuDriverGetVersion(int *out) {
    *out = answer("STAND_IN_VERSION", 99000);
    return 0;
}
