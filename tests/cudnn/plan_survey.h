/* Which plans the library makes with the real cuDNN for devices that are not here, in child processes. */
#ifndef TALWEG_TESTS_PLAN_SURVEY_H
#define TALWEG_TESTS_PLAN_SURVEY_H

#include "network_convs.h"

/* Types are the dtypes that are planned, and f32 multiplied as TF32. */
enum { SURVEY_OPS = 5, SURVEY_TF32 = 3, SURVEY_TYPES = 4, SURVEY_DEVICES = 4 };

extern const char *const survey_op[SURVEY_OPS]; /* kernel names */
extern const char *const survey_type[SURVEY_TYPES];
/* Described devices. */
typedef struct survey_device {
    const char *name;
    int capability;
    const char *json;
} survey_device;
extern const survey_device survey_devices[SURVEY_DEVICES];

typedef struct survey_result {
    char plan[32];     /* "cudnn:57.a3f1"; empty: there is none */
    char failure[256]; /* why */
    size_t workspace_bytes;
} survey_result;

/* Plans of one device and type, for every convolution and op: result[conv * SURVEY_OPS + op]. `driver`: path of the
 * driver without a device. If cuDNN ends the child, the plan it was at says so, and the others are made by another. */
void survey(const network_conv *convs, int count, int device, int type, const char *driver, survey_result *result);

/* cuDNN's and CUDA's versions, as texts. */
void survey_versions(char text[64]);

#endif
