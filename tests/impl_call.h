/* Calls one CPU implementation the way the runner does: operands with shapes and strides, scratch as asked for, on
 * every instruction set this processor has. Behind operands is a page that nobody may touch: what the host lends a
 * program may end so. */
#ifndef TALWEG_TESTS_IMPL_CALL_H
#define TALWEG_TESTS_IMPL_CALL_H

#include "backend/cpu/cpu.h"

/* A shape and order of memory: rank 2 or 4. */
typedef struct impl_shape {
    int rank;
    int64_t dim[4];
    bool channels_last;
} impl_shape;

int64_t impl_count(const impl_shape *shape);
/* Offset of logical element (n,c,h,w). */
int64_t impl_at(const impl_shape *shape, int64_t n, int64_t c, int64_t h, int64_t w);

/* Memory as of page_end.h; contents are reproducible numbers in -1..1 (floats) or random bytes. Released at the end. */
float *impl_floats(int64_t count);
uint8_t *impl_bytes(int64_t count);
/* All of it. */
void impl_release(void);

/* Operand o of a call. */
void impl_operand(twi_call *call, int o, twi_store_kind store, const impl_shape *shape, void *data);
/* A row-major operand of per-channel rows or the like. */
void impl_rows(twi_call *call, int o, twi_store_kind store, int64_t rows, int64_t columns, void *data);

/* A loop over the instruction sets this processor has. */
#define IMPL_EACH_ISA(isa)                                         \
    for (int isa = TWI_ISA_BASELINE; isa <= TWI_ISA_AVX512_BF16; isa++) \
        if (impl_has_isa(isa))
bool impl_has_isa(twi_isa isa);

/* Does it sum in a layout of its own? */
bool impl_finishes(const twi_cpu_impl *family, const char *kernel);

/* Runs a member of a family; it must take the call. One that finishes its sums runs twice where the call adds, and what the
 * output held before is gone. */
void impl_run(const twi_cpu_impl *family, const char *kernel, twi_isa isa, const twi_call *call);
/* Why it does not take the call; NULL if it does. */
const char *impl_refusal(const twi_cpu_impl *family, const char *kernel, const twi_call *call);

/* |got - want| <= tolerance * (1 + |want|), or both not a number. */
void impl_close(double want, double got, double tolerance, const char *what, int64_t index);

#endif
