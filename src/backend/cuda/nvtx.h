/* Named ranges for NVIDIA's profilers, where the build has TALWEG_NVTX; otherwise nothing. NVTX is headers alone: what
 * takes the ranges is brought by the profiler. */
#ifndef TWI_CUDA_NVTX_H
#define TWI_CUDA_NVTX_H

#ifdef TWI_HAVE_NVTX

#include <nvtx3/nvToolsExt.h>
#include <stdio.h>

/* "conv2d.forward conv1.product" around what the host does for a step; the text is copied. */
static inline void twi_nvtx_begin(const char *what, const char *name) {
    char text[128];
    snprintf(text, sizeof text, "%s %s", what, name);
    nvtxRangePushA(text);
}

static inline void twi_nvtx_end(void) { nvtxRangePop(); }

#else

static inline void twi_nvtx_begin(const char *what, const char *name) { (void)what, (void)name; }
static inline void twi_nvtx_end(void) {}

#endif
#endif
