/* The CPU back end's runner on small plans made by hand, with kernels made up here; its memory and choice. What is run
 * is run with one, two and three workers and must give the same bits. */
#define _GNU_SOURCE /* strdup, setenv, nanosleep */
#include "hand_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { MOST_WORKERS = 3 };

/* Enough work, says the kernel, that all workers are called. */
static double plenty(const twi_call *call) {
    (void)call;
    return 1e9;
}

/* ---- kernels ---- */

#define READ(reach) \
    { "r", TWI_READ, TWI_ACC, reach, 0 }
#define WRITE(reach) \
    { "w", TWI_WRITE, TWI_ACC, reach, 0 }

/* y = 2 x + 1 */
static void affine_run(const twi_call *call) {
    const float *x = call->operand[0].data;
    float *y = call->operand[1].data;
    for (int64_t i = 0; i < twi_shape_count(&call->operand[0].shape); i++) y[i] = 2 * x[i] + 1;
}
static const twi_kernel affine = {.name = "test.affine",
                                  .operand_count = 2,
                                  .operand = {READ(TWI_BATCHED), WRITE(TWI_BATCHED)},
                                  .flops = plenty,
                                  .run = affine_run};

/* sum[j] += x[n][j]; where[n] = place of sample n, size of its chunk. Some chunks take longer than others, to show who
 * does not wait for them. */
static void sum_run(const twi_call *call) {
    const twi_operand *x = &call->operand[0];
    int64_t columns = twi_sample_count(x), samples = x->shape.dim[0];
    float *sum = call->operand[1].data, *where = call->operand[2].data;
    for (int64_t n = 0; n < samples; n++) {
        for (int64_t j = 0; j < columns; j++) sum[j] += ((const float *)x->data)[n * columns + j];
        where[2 * n] = (float)(call->sample + n);
        where[2 * n + 1] = (float)samples;
    }
    nanosleep(&(struct timespec){0, call->sample * 7 % 5 * 50000}, NULL);
}
static const twi_kernel sum = {.name = "test.sum",
                               .operand_count = 3,
                               .operand = {READ(TWI_BATCHED), WRITE(TWI_SUMMED), WRITE(TWI_BATCHED)},
                               .flops = plenty,
                               .run = sum_run};

/* y[i] = the part that wrote it, by its ends */
static int64_t parts_range(const twi_call *call) { return call->operand[0].shape.dim[0]; }
static void parts_run(const twi_call *call) {
    float *y = call->operand[0].data;
    for (int64_t i = call->begin; i < call->end; i++) y[i] += (float)(call->begin * 1000 + call->end);
}
static const twi_kernel parts = {.name = "test.parts",
                                 .operand_count = 1,
                                 .operand = {{"y", TWI_UPDATE, TWI_ACC, TWI_WHOLE, 0}},
                                 .split = TWI_BY_RANGE,
                                 .range = parts_range,
                                 .grain = 8,
                                 .flops = plenty,
                                 .run = parts_run};

/* total = 3 total + sum[0], on whole operands */
static void total_run(const twi_call *call) {
    float *total = call->operand[1].data;
    total[0] = 3 * total[0] + ((const float *)call->operand[0].data)[0];
}
static const twi_kernel total = {.name = "test.total",
                                 .operand_count = 2,
                                 .operand = {READ(TWI_WHOLE), {"t", TWI_UPDATE, TWI_ACC, TWI_WHOLE, 0}},
                                 .split = TWI_AT_ONCE,
                                 .run = total_run};

/* ---- the runner ---- */

typedef struct sum_case {
    int64_t samples, columns, chunk;
    int groups;
} sum_case;

/* What the order of sums says: a group adds chunk by chunk, groups are added in index order. */
static void expect_sum(const sum_case *c, const float *x, float *out) {
    int64_t chunks = (c->samples + c->chunk - 1) / c->chunk;
    float *group = calloc((size_t)c->columns, sizeof *group);
    assert_non_null(group);
    for (int g = 0; g < c->groups; g++) {
        memset(group, 0, (size_t)c->columns * sizeof *group);
        int64_t end = (g + 1) * chunks / c->groups * c->chunk;
        for (int64_t n = g * chunks / c->groups * c->chunk; n < end && n < c->samples; n++)
            for (int64_t j = 0; j < c->columns; j++) group[j] += x[n * c->columns + j];
        for (int64_t j = 0; j < c->columns; j++) out[j] = g ? out[j] + group[j] : group[j];
    }
    free(group);
}

static void test_sums_of_groups(void **state) {
    (void)state;
    static const sum_case cases[] = {
        {8, 5, 2, 1}, {8, 5, 2, 4}, {17, 3, 4, 3}, {17, 33, 4, 5}, {1, 7, 4, 1}, {40, 40000, 3, 4}, {5, 2, 1, 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const sum_case *c = &cases[i];
        float *expected = calloc((size_t)c->columns, sizeof *expected);
        assert_non_null(expected);
        for (int threads = 1; threads <= MOST_WORKERS; threads++) {
            hand h;
            hand_open(&h, threads);
            int x = hand_buffer(&h, TWI_PLACE_ARENA, true, DIMS(c->samples, c->columns));
            int y = hand_buffer(&h, TWI_PLACE_ARENA, false, DIMS(c->columns));
            int where = hand_buffer(&h, TWI_PLACE_ARENA, true, DIMS(c->samples, 2));
            hand_segment(&h, TWI_BY_SAMPLE, c->samples, c->chunk, c->groups);
            hand_step(&h, &sum, NULL, NULL, OPERANDS(x, y, where));
            assert_int_equal(hand_bind(&h), TW_OK);
            hand_fill(&h, x);
            expect_sum(c, hand_data(&h, x), expected);
            for (int again = 0; again < 2; again++) {
                hand_fill(&h, y); /* what was there does not matter */
                hand_run(&h);
                assert_memory_equal(hand_data(&h, y), expected, (size_t)c->columns * sizeof *expected);
            }
            for (int64_t n = 0; n < c->samples; n++) {
                int64_t left = c->samples - n / c->chunk * c->chunk;
                assert_float_equal(hand_data(&h, where)[2 * n], (float)n, 0);
                assert_float_equal(hand_data(&h, where)[2 * n + 1], (float)(left < c->chunk ? left : c->chunk), 0);
            }
            hand_close(&h);
        }
        free(expected);
    }
}

/* In a program in double, sums over groups are of double: 1 + 2^-40 twice is not 2. */
static void sum_f64_run(const twi_call *call) {
    *(double *)call->operand[1].data += *(const double *)call->operand[0].data;
}
static void test_sums_in_double(void **state) {
    (void)state;
    const twi_kernel kernel = {.name = "sgd.update", /* which implementations know: they must not be asked */
                               .operand_count = 2,
                               .operand = {READ(TWI_BATCHED), WRITE(TWI_SUMMED)},
                               .flops = plenty,
                               .run = sum_f64_run};
    hand h;
    hand_open(&h, 2);
    int x = hand_buffer(&h, TWI_PLACE_ARENA, true, DIMS(4, 2)); /* two floats' room: one double */
    int y = hand_buffer(&h, TWI_PLACE_ARENA, false, DIMS(2));
    h.buffer[x].dtype = h.buffer[y].dtype = TWI_DTYPE_DOUBLE;
    hand_segment(&h, TWI_BY_SAMPLE, 4, 1, 4);
    hand_step(&h, &kernel, NULL, NULL, OPERANDS(x, y));
    assert_int_equal(hand_choose(&h), TW_OK);
    assert_string_equal(h.step[0].choice.implementation, "specification");
    assert_int_equal(hand_bind(&h), TW_OK);
    for (int n = 0; n < 4; n++) ((double *)(void *)hand_data(&h, x))[n] = 1 + 0x1p-40;
    hand_run(&h);
    assert_true(*(double *)(void *)hand_data(&h, y) == 4 + 0x1p-38);
    hand_close(&h);
}

static void test_ranges(void **state) {
    (void)state;
    static const int64_t counts[] = {1, 8, 9, 100, 5000, 0};
    for (int c = 0; c < 6; c++) {
        int64_t count = counts[c];
        float *first = calloc((size_t)count + 1, sizeof *first);
        assert_non_null(first);
        for (int threads = 1; threads <= MOST_WORKERS; threads++) {
            hand h;
            hand_open(&h, threads);
            int y = hand_buffer(&h, TWI_PLACE_ARENA, false, DIMS(count));
            hand_segment(&h, TWI_BY_RANGE, 1, 1, 1);
            hand_step(&h, &parts, NULL, NULL, OPERANDS(y));
            assert_int_equal(hand_bind(&h), TW_OK);
            hand_run(&h);
            for (int64_t i = 0, begin = 0; i < count; i++) { /* written once, by a part of whole grains around i */
                if (i && hand_data(&h, y)[i] != hand_data(&h, y)[i - 1]) begin = i;
                int64_t end = (int64_t)hand_data(&h, y)[i] - begin * 1000;
                assert_true(begin % 8 == 0 && end > i && end <= count && (end == count || end % 8 == 0));
            }
            if (threads == 1) memcpy(first, hand_data(&h, y), (size_t)count * sizeof *first);
            assert_memory_equal(hand_data(&h, y), first, (size_t)count * sizeof *first);
            hand_close(&h);
        }
        free(first);
    }
}

/* Two steps a chunk with what is between them in the worker's scratch; then sums, and steps done at once, in turn. */
static void test_chain(void **state) {
    (void)state;
    enum { SAMPLES = 23, COLUMNS = 11 };
    float first = 0;
    for (int threads = 1; threads <= MOST_WORKERS; threads++) {
        hand h;
        hand_open(&h, threads);
        int x = hand_buffer(&h, TWI_PLACE_ARENA, true, DIMS(SAMPLES, COLUMNS));
        int t = hand_buffer(&h, TWI_PLACE_LOCAL, true, DIMS(SAMPLES, COLUMNS));
        int y = hand_buffer(&h, TWI_PLACE_ARENA, true, DIMS(SAMPLES, COLUMNS));
        int s = hand_buffer(&h, TWI_PLACE_ARENA, false, DIMS(COLUMNS));
        int where = hand_buffer(&h, TWI_PLACE_ARENA, true, DIMS(SAMPLES, 2));
        int all = hand_buffer(&h, TWI_PLACE_FIXED, false, DIMS(1));
        float kept = 0;
        h.buffer[all].address = &kept;
        hand_segment(&h, TWI_BY_SAMPLE, SAMPLES, 4, 3);
        hand_step(&h, &affine, NULL, NULL, OPERANDS(x, t));
        hand_step(&h, &affine, NULL, NULL, OPERANDS(t, y));
        for (int turn = 0; turn < 2; turn++) {
            hand_segment(&h, TWI_BY_SAMPLE, SAMPLES, 5, 4);
            hand_step(&h, &sum, NULL, NULL, OPERANDS(y, s, where));
            hand_segment(&h, TWI_AT_ONCE, 1, 1, 1);
            hand_step(&h, &total, NULL, NULL, OPERANDS(s, all));
            hand_step(&h, &total, NULL, NULL, OPERANDS(s, all));
            hand_segment(&h, TWI_AT_ONCE, 1, 1, 1);
            hand_step(&h, &total, NULL, NULL, OPERANDS(s, all));
        }
        assert_int_equal(hand_bind(&h), TW_OK);
        hand_fill(&h, x);
        uint64_t allocations = tw_context_get_memory(h.context).allocations;
        hand_run(&h);
        for (int i = 0; i < SAMPLES * COLUMNS; i++)
            assert_float_equal(hand_data(&h, y)[i], 2 * (2 * hand_data(&h, x)[i] + 1) + 1, 0);
        for (int w = 0; w < threads; w++) /* of the local buffer, no more than a chunk's samples */
            for (int i = 4 * COLUMNS; i < SAMPLES * COLUMNS; i++)
                assert_float_equal(((float *)(void *)(h.scratch + (size_t)w * h.plan.worker_bytes))[i], 0, 0);
        float expected = 0;
        for (int turn = 0; turn < 6; turn++) expected = 3 * expected + hand_data(&h, s)[0];
        assert_float_equal(kept, expected, 0);
        if (threads == 1) first = kept;
        assert_memory_equal(&kept, &first, sizeof kept);
        /* Piece by piece it comes to the same. */
        kept = 0;
        for (int segment = 0; segment < h.plan.segment_count; segment++)
            assert_int_equal(twi_backend_cpu.run(h.context, h.prepared, segment, 1), TW_OK);
        assert_memory_equal(&kept, &first, sizeof kept);
        assert_int_equal(tw_context_get_memory(h.context).allocations, allocations);
        hand_close(&h);
    }
}

/* An implementation with all that one can have: a shared table, scratch, sums in a layout of its own. It does what
 * `sum` does to w x, with w reversed into the shared workspace and the sum kept reversed. */
static void reverse(float *to, const float *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = from[count - 1 - i];
}
static void full_begin(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)site;
    reverse(workspace->shared, call->operand[1].data, call->operand[1].shape.dim[0]);
}
static void full_run(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    int64_t columns = twi_sample_count(&call->operand[0]), samples = call->operand[0].shape.dim[0];
    const float *x = call->operand[0].data, *shared = workspace->shared;
    float *product = workspace->scratch, *part = call->operand[2].data;
    if (workspace->tail != (samples != *(const int64_t *)site->state[0])) return;
    for (int64_t n = 0; n < samples; n++) {
        for (int64_t j = 0; j < columns; j++) product[columns - 1 - j] = shared[columns - 1 - j] * x[n * columns + j];
        for (int64_t j = 0; j < columns; j++) part[j] = call->first && n == 0 ? product[j] : part[j] + product[j];
    }
}
static void full_finish(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace,
                        void *const partial[TWI_MAX_OPERANDS]) {
    (void)site;
    (void)workspace;
    reverse(call->operand[2].data, partial[2], call->operand[2].shape.dim[0]);
}
static const twi_cpu_impl full = {.name = "full", .begin = full_begin, .run = full_run, .finish = full_finish};
static const twi_kernel weighted = {.name = "test.weighted",
                                    .operand_count = 3,
                                    .operand = {READ(TWI_BATCHED), READ(TWI_WHOLE), WRITE(TWI_SUMMED)},
                                    .flops = plenty};

static void test_workspaces(void **state) {
    (void)state;
    static const sum_case cases[] = {{21, 9, 4, 3}, {21, 30000, 4, 2}, {8, 9, 4, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const sum_case *c = &cases[i];
        size_t bytes = (size_t)c->columns * sizeof(float);
        float *product = calloc((size_t)c->samples, bytes), *expected = calloc(1, bytes);
        assert_true(product && expected);
        for (int threads = 1; threads <= MOST_WORKERS; threads++) {
            hand h;
            hand_open(&h, threads);
            int x = hand_buffer(&h, TWI_PLACE_ARENA, true, DIMS(c->samples, c->columns));
            int w = hand_buffer(&h, TWI_PLACE_ARENA, false, DIMS(c->columns));
            int y[2];
            int64_t chunk = c->chunk;
            hand_segment(&h, TWI_BY_SAMPLE, c->samples, c->chunk, c->groups);
            for (int k = 0; k < 2; k++) {
                y[k] = hand_buffer(&h, TWI_PLACE_ARENA, false, DIMS(c->columns));
                int step = hand_step(&h, &weighted, &full, NULL, OPERANDS(x, w, y[k]));
                h.site[step].state[0] = &chunk;
                h.step[step].choice.shared_bytes = h.step[step].choice.worker_bytes = bytes;
                h.step[step].choice.partial_bytes[2] = bytes;
            }
            assert_int_equal(hand_bind(&h), TW_OK);
            hand_fill(&h, x);
            hand_fill(&h, w);
            hand_run(&h);
            for (int64_t k = 0; k < c->samples * c->columns; k++)
                product[k] = hand_data(&h, w)[k % c->columns] * hand_data(&h, x)[k];
            expect_sum(c, product, expected);
            for (int k = 0; k < 2; k++) assert_memory_equal(hand_data(&h, y[k]), expected, bytes);
            hand_close(&h);
        }
        free(product);
        free(expected);
    }
}

/* ---- what is refused ---- */

static void test_defects_of_a_plan(void **state) {
    (void)state;
    for (int defect = 0; defect < 5; defect++) {
        hand h;
        hand_open(&h, 1);
        int x = hand_buffer(&h, TWI_PLACE_ARENA, defect != 3, DIMS(8, 2));
        int y = hand_buffer(&h, TWI_PLACE_ARENA, false, DIMS(2));
        int where = hand_buffer(&h, TWI_PLACE_ARENA, true, DIMS(8, 2));
        hand_segment(&h, defect == 2 ? TWI_AT_ONCE : TWI_BY_SAMPLE, 8, 4, defect == 0 ? 3 : 2);
        if (defect == 2)
            hand_step(&h, &affine, NULL, NULL, OPERANDS(x, where));
        else
            hand_step(&h, &sum, NULL, NULL, OPERANDS(x, y, where));
        if (defect == 1) h.segment[0].step_count = 2;
        if (defect == 4) h.buffer[y].store = TWI_I32;
        assert_int_equal(hand_bind(&h), TW_ERROR_INTERNAL);
        assert_null(h.prepared);
        hand_close(&h);
    }
}

static void test_runs_outside_the_program(void **state) {
    (void)state;
    hand h;
    hand_open(&h, 1);
    int y = hand_buffer(&h, TWI_PLACE_ARENA, false, DIMS(2));
    hand_segment(&h, TWI_BY_RANGE, 1, 1, 1);
    hand_step(&h, &parts, NULL, NULL, OPERANDS(y));
    assert_int_equal(hand_bind(&h), TW_OK);
    assert_int_equal(twi_backend_cpu.run(h.context, h.prepared, 0, 2), TW_ERROR_INTERNAL);
    assert_int_equal(twi_backend_cpu.run(h.context, h.prepared, 0, 0), TW_OK);
    assert_float_equal(hand_data(&h, y)[0], 0, 0);
    hand_close(&h);
}

static void test_kernel_without_implementation(void **state) {
    (void)state;
    hand h;
    hand_open(&h, 1);
    int x = hand_buffer(&h, TWI_PLACE_ARENA, true, DIMS(8, 2));
    int y = hand_buffer(&h, TWI_PLACE_ARENA, false, DIMS(2));
    hand_segment(&h, TWI_BY_SAMPLE, 8, 4, 2);
    hand_step(&h, &weighted, NULL, NULL, OPERANDS(x, y, y));
    assert_int_equal(hand_choose(&h), TW_ERROR_UNSUPPORTED);
    assert_non_null(strstr(tw_last_error(), "test.weighted"));
    assert_non_null(strstr(tw_last_error(), "cpu"));
    assert_null(h.step[0].choice.state);
    hand_close(&h);
}

/* ---- memory ---- */

/* The largest is touched by all workers before it is handed out. */
static void check_device_memory(int workers) {
    hand h;
    hand_open(&h, workers);
    static const size_t sizes[] = {0, 1, 255, 4096, (size_t)3 << 20, ((size_t)9 << 20) + 123};
    for (int i = 0; i < 6; i++) {
        void *memory;
        assert_int_equal(twi_backend_cpu.get(h.context, &memory, sizes[i], "test"), TW_OK);
        assert_int_equal((uintptr_t)memory % 256, 0);
        for (size_t b = 0; b < sizes[i]; b++) assert_true(((unsigned char *)memory)[b] == 0);
        memset(memory, 1, sizes[i]);
        unsigned char host[5] = {1, 2, 3, 4, 5}, back[5] = {0};
        if (sizes[i] >= sizeof host) {
            assert_int_equal(twi_backend_cpu.copy_in(h.context, memory, host, sizeof host), TW_OK);
            assert_int_equal(twi_backend_cpu.copy_out(h.context, back, memory, sizeof back), TW_OK);
            assert_memory_equal(back, host, sizeof host);
        }
        twi_backend_cpu.put(h.context, memory);
    }
    void *memory = &h;
    assert_int_equal(twi_backend_cpu.get(h.context, &memory, SIZE_MAX - 3, "test"), TW_ERROR_OVERFLOW);
    assert_null(memory);
    twi_backend_cpu.put(h.context, NULL);
    hand_close(&h);
}

static void test_device_memory(void **state) {
    (void)state;
    for (int workers = 1; workers <= MOST_WORKERS; workers++) check_device_memory(workers);
}

/* Fails the allocation `*user`. */
static bool fail_at(void *user, uint64_t index, size_t bytes) {
    (void)bytes;
    return index == *(uint64_t *)user;
}

static void test_allocation_failures_in_prepare(void **state) {
    (void)state;
    hand h;
    hand_open(&h, 2);
    int x = hand_buffer(&h, TWI_PLACE_ARENA, true, DIMS(8, 2));
    int y = hand_buffer(&h, TWI_PLACE_ARENA, false, DIMS(2));
    int where = hand_buffer(&h, TWI_PLACE_ARENA, true, DIMS(8, 2));
    hand_segment(&h, TWI_BY_SAMPLE, 8, 4, 2);
    hand_step(&h, &sum, NULL, NULL, OPERANDS(x, y, where));
    assert_int_equal(hand_bind(&h), TW_OK);
    uint64_t blocks = tw_context_get_memory(h.context).blocks, k = 0;
    tw_status status = TW_ERROR_OUT_OF_MEMORY;
    for (; status; k++) {
        void *prepared = &h;
        tw_context_set_memory_hook(h.context, fail_at, &k);
        status = twi_backend_cpu.prepare(h.context, &prepared, &h.plan, &h.control, h.arena, h.scratch);
        tw_context_set_memory_hook(h.context, NULL, NULL);
        if (status) {
            assert_int_equal(status, TW_ERROR_OUT_OF_MEMORY);
            assert_null(prepared);
        }
        twi_backend_cpu.discard(h.context, prepared);
        assert_int_equal(tw_context_get_memory(h.context).blocks, blocks);
    }
    assert_in_range(k, 8, 20);
    hand_close(&h);
}

/* ---- instruction sets ---- */

static void test_instruction_set_by_environment(void **state) {
    (void)state;
    const char *given = getenv("TALWEG_CPU");
    char *before = given ? strdup(given) : NULL;
    unsetenv("TALWEG_CPU");
    twi_isa own = twi_cpu_isa();
    static const char *const names[] = {"specification", "baseline", "avx2", "avx512", "avx512_bf16", "mmx"};
    for (int i = 0; i < 6; i++) {
        setenv("TALWEG_CPU", names[i], 1);
        twi_isa wished = (twi_isa)(TWI_ISA_NONE + i);
        assert_int_equal(twi_cpu_isa(), i < 5 && wished < own ? wished : own);
    }
    unsetenv("TALWEG_CPU");
    if (before) setenv("TALWEG_CPU", before, 1);
    free(before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_of_groups),
        cmocka_unit_test(test_sums_in_double),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_workspaces),
        cmocka_unit_test(test_defects_of_a_plan),
        cmocka_unit_test(test_runs_outside_the_program),
        cmocka_unit_test(test_kernel_without_implementation),
        cmocka_unit_test(test_device_memory),
        cmocka_unit_test(test_allocation_failures_in_prepare),
        cmocka_unit_test(test_instruction_set_by_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
