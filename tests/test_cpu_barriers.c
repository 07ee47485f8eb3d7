/* Where the CPU back end has barriers between phases: wherever it has to, and nowhere else. Plans are made up at random, with
 * buffers that share memory in every way; which phases must not overlap is found anew here, byte by byte, and what runs
 * leave in memory is the same with any number of workers. */
#define _GNU_SOURCE /* nanosleep */
#include "hand_plan.h"

#include "backend/cpu/cpu_program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { MOST_WORKERS = 4, STEPS = 12, FLOATS = 2048, SAMPLES = 8, PLANS = 120 };

static double plenty(const twi_call *call) {
    (void)call;
    return 1e9;
}

/* ---- kernels ---- */

/* The first part of a step comes late: who does not wait for it is ahead. */
static void linger(int64_t first) {
    if (first == 0) nanosleep(&(struct timespec){0, 30000}, NULL);
}

static int64_t elements(const twi_call *call) { return call->operand[0].shape.dim[0]; }

/* y = x / 2 + what the control block says, as far as the kernel looks at it; attrs: the fault to raise. */
static void work(const twi_call *call) {
    const uint8_t looks = call->kernel->control;
    const bool at_once = call->kernel->split == TWI_AT_ONCE;
    const int64_t begin = at_once ? 0 : call->begin, end = at_once ? elements(call) : call->end;
    const float *x = call->operand[0].data;
    float *y = call->operand[1].data;
    if (!at_once) linger(begin);
    if (call->attrs) twi_fault_raise(call->control, TW_ERROR_NUMERIC, 0, *(const int *)call->attrs, 0);
    float more = looks & TWI_CONTROL_READ ? (float)call->control->update / 256 : 0;
    if (looks & TWI_CONTROL_FAULTS && twi_fault_raised(call->control)) more += 0.5f;
    for (int64_t i = begin; i < end; i++) y[i] = x[i] / 2 + more;
    if (looks & TWI_CONTROL_WRITE) call->control->update++;
}

static void sum(const twi_call *call) {
    const float *x = call->operand[0].data;
    float *y = call->operand[1].data;
    const int64_t columns = twi_sample_count(&call->operand[0]), samples = call->operand[0].shape.dim[0];
    linger(call->sample);
    for (int64_t n = 0; n < samples; n++)
        for (int64_t j = 0; j < columns; j++) y[j] += x[n * columns + j];
}

#define X(reach) \
    { "x", TWI_READ, TWI_ACC, reach, 0 }
#define Y(reach) \
    { "y", TWI_WRITE, TWI_ACC, reach, 0 }
#define WORK(name_, split_, control_, flops_)                                                        \
    {                                                                                                \
        .name = name_, .operand_count = 2, .operand = {X(TWI_WHOLE), Y(TWI_WHOLE)}, .split = split_, \
        .control = control_, .range = elements, .flops = flops_, .run = work                         \
    }
enum { RANGE, SMALL, ONCE, ADVANCE, RATE, COMMIT, SUM, KINDS };
static const twi_kernel kernels[KINDS] = {
    [RANGE] = WORK("test.range", TWI_BY_RANGE, 0, plenty),
    [SMALL] = WORK("test.small", TWI_BY_RANGE, 0, NULL), /* one worker does all parts */
    [ONCE] = WORK("test.once", TWI_AT_ONCE, 0, plenty),
    [ADVANCE] = WORK("test.advance", TWI_AT_ONCE, TWI_CONTROL_READ | TWI_CONTROL_WRITE, plenty),
    [RATE] = WORK("test.rate", TWI_BY_RANGE, TWI_CONTROL_READ, plenty),
    [COMMIT] = WORK("test.commit", TWI_BY_RANGE, TWI_CONTROL_READ | TWI_CONTROL_FAULTS, plenty),
    [SUM] = {.name = "test.sum",
             .operand_count = 2,
             .operand = {X(TWI_BATCHED), Y(TWI_SUMMED)},
             .flops = plenty,
             .run = sum},
};

static void add_step(hand *h, int kind, int x, int y, const int *fault) {
    const twi_kernel *kernel = &kernels[kind];
    if (kind == SUM)
        hand_segment(h, TWI_BY_SAMPLE, SAMPLES, 1, 4);
    else
        hand_segment(h, (twi_split)kernel->split, 1, 1, 1);
    hand_step(h, kernel, NULL, fault, OPERANDS(x, y));
}

static const twi_cpu_phase *phase(const hand *h, int p) { return &((const twi_cpu_program *)h->prepared)->phase[p]; }

/* ---- two phases ---- */

/* A buffer of so many floats at a place of the arena. */
static int buffer_at(hand *h, size_t place, int64_t count) {
    const int b = hand_buffer(h, TWI_PLACE_FIXED, false, DIMS(count));
    h->buffer[b].place = TWI_PLACE_ARENA;
    h->buffer[b].offset = place * sizeof(float);
    return b;
}

static void test_two_phases(void **state) {
    (void)state;
    enum { COUNT = 64 };
    static const struct pair {
        size_t from[2], to[2]; /* in floats */
        bool barrier;
    } pairs[] = {
        {{0, 200}, {100, 300}, false}, {{0, 0}, {100, 200}, false},  {{0, 100}, {100, 200}, true},
        {{0, 200}, {100, 0}, true},    {{0, 200}, {100, 100}, true}, {{0, 163}, {100, 300}, true},
        {{0, 164}, {100, 300}, false}, {{0, 200}, {100, 63}, true},  {{0, 200}, {100, 264}, false},
        {{0, 37}, {100, 300}, true},   {{0, 36}, {100, 300}, false},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        hand h;
        hand_open(&h, 2);
        h.plan.arena_bytes = FLOATS * sizeof(float);
        for (int k = 0; k < 2; k++)
            add_step(&h, RANGE, buffer_at(&h, pairs[i].from[k], COUNT), buffer_at(&h, pairs[i].to[k], COUNT), NULL);
        assert_int_equal(hand_bind(&h), TW_OK);
        assert_false(phase(&h, 0)->barrier);
        if (phase(&h, 1)->barrier != pairs[i].barrier) fail_msg("pair %d", (int)i);
        hand_close(&h);
    }
}

/* Samples side by side take whole blocks of memory. Here 3 samples of 16 floats by 8: 128 floats, of which 48 count. */
static void test_blocks_of_samples(void **state) {
    (void)state;
    for (int lanes = 0; lanes <= 8; lanes += 8) {
        hand h;
        hand_open(&h, 2);
        h.plan.arena_bytes = FLOATS * sizeof(float);
        const int x = hand_buffer(&h, TWI_PLACE_FIXED, true, DIMS(3, 16));
        h.buffer[x].place = TWI_PLACE_ARENA;
        h.buffer[x].lanes = (uint8_t)lanes;
        add_step(&h, RANGE, x, buffer_at(&h, 200, 48), NULL);
        add_step(&h, RANGE, buffer_at(&h, 300, 32), buffer_at(&h, 96, 32), NULL);
        assert_int_equal(hand_bind(&h), TW_OK);
        assert_int_equal(phase(&h, 1)->barrier, lanes != 0);
        hand_close(&h);
    }
}

/* Sums over groups: the pieces wait for the groups, whose parts are memory like other. */
static void test_parts_of_sums(void **state) {
    (void)state;
    enum { COLUMNS = 40000 };
    for (int over = 0; over < 2; over++) {
        hand h;
        hand_open(&h, 2);
        const int x = hand_buffer(&h, TWI_PLACE_ARENA, true, DIMS(SAMPLES, COLUMNS));
        const int y = hand_buffer(&h, TWI_PLACE_ARENA, false, DIMS(COLUMNS));
        const int from = hand_buffer(&h, TWI_PLACE_ARENA, false, DIMS(64));
        const int to = hand_buffer(&h, TWI_PLACE_ARENA, false, DIMS(64));
        if (over) /* the last group's part of the sum, which is placed behind the buffers */
            h.buffer[to].offset = h.plan.arena_bytes + 3 * twi_partial_stride(COLUMNS * sizeof(float));
        add_step(&h, SUM, x, y, NULL);
        add_step(&h, RANGE, from, to, NULL);
        assert_int_equal(hand_bind(&h), TW_OK);
        assert_true(phase(&h, 0)->part == twi_cpu_run_group && phase(&h, 1)->part == twi_cpu_run_piece);
        assert_true(phase(&h, 1)->parts > 1 && !phase(&h, 1)->alone && phase(&h, 1)->barrier);
        assert_int_equal(phase(&h, 2)->barrier, over);
        hand_close(&h);
    }
}

/* What implementations share among workers, and keep in a layout of their own until it is finished. */
static void keep_begin(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace) {
    (void)site, (void)call, (void)workspace;
}
static void keep_finish(const twi_cpu_site *site, const twi_call *call, const twi_cpu_workspace *workspace,
                        void *const partial[TWI_MAX_OPERANDS]) {
    (void)site, (void)call, (void)workspace, (void)partial;
}
static const twi_cpu_impl keeper = {.name = "keeper", .begin = keep_begin, .run = keep_begin, .finish = keep_finish};

static void test_workspaces(void **state) {
    (void)state;
    enum { BESIDE, OVER_WORKSPACE, OVER_OUTPUT, WAYS };
    for (int way = 0; way < WAYS; way++) {
        hand h;
        hand_open(&h, 2);
        h.plan.brief_shared = true; /* so that its begin is a phase of the segment */
        const int x = hand_buffer(&h, TWI_PLACE_ARENA, true, DIMS(SAMPLES, 64));
        const int y = hand_buffer(&h, TWI_PLACE_ARENA, false, DIMS(64));
        const int from = hand_buffer(&h, TWI_PLACE_ARENA, false, DIMS(64));
        const int to = hand_buffer(&h, TWI_PLACE_ARENA, false, DIMS(64));
        if (way == OVER_WORKSPACE) h.buffer[to].offset = h.plan.arena_bytes;
        if (way == OVER_OUTPUT) h.buffer[to].offset = h.buffer[y].offset;
        add_step(&h, RANGE, from, to, NULL);
        hand_segment(&h, TWI_BY_SAMPLE, SAMPLES, 1, 4);
        for (int k = 0; k < 2; k++) { /* two of them: the phases are shared */
            const int step = hand_step(&h, &kernels[SUM], &keeper, NULL, OPERANDS(x, y));
            h.step[step].choice.shared_bytes = h.step[step].choice.partial_bytes[1] = 1 << 18;
        }
        /* The range is the first step, and the workspace of the second begins where the plan ended. */
        assert_int_equal(hand_bind(&h), TW_OK);
        static twi_cpu_part *const kinds[] = {twi_cpu_run_range, twi_cpu_run_begin, twi_cpu_run_group,
                                              twi_cpu_run_piece, twi_cpu_run_finish};
        const bool expected[] = {false, way == OVER_WORKSPACE, true, true, true};
        for (int p = 0; p < 5; p++) {
            assert_true(phase(&h, p)->part == kinds[p] && !phase(&h, p)->alone);
            if (p == 1 || p > 2) assert_int_equal(phase(&h, p)->barrier, expected[p]);
        }
        assert_true(phase(&h, 2)->barrier);
        hand_close(&h);
    }
}

/* A user's functions may have memory that no operand tells of. */
static void test_functions_of_the_users(void **state) {
    (void)state;
    twi_kernel foreign = kernels[RANGE];
    foreign.user = (const struct twi_user_op *)(const void *)&foreign; /* which nobody looks into */
    for (int both = 0; both < 2; both++) {
        hand h;
        hand_open(&h, 2);
        h.plan.arena_bytes = FLOATS * sizeof(float);
        for (int k = 0; k < 2; k++) {
            hand_segment(&h, TWI_BY_RANGE, 1, 1, 1);
            hand_step(&h, k == 0 || both ? &foreign : &kernels[RANGE], NULL, NULL,
                      OPERANDS(buffer_at(&h, 200 * (size_t)k, 64), buffer_at(&h, 200 * (size_t)k + 100, 64)));
        }
        assert_int_equal(hand_bind(&h), TW_OK);
        assert_int_equal(phase(&h, 1)->barrier, both);
        hand_close(&h);
    }
}

/* ---- plans made up at random ---- */

static uint32_t drawn;
static int draw(int below) {
    drawn = drawn * 1664525u + 1013904223u;
    return (int)((uint64_t)drawn * (uint32_t)below >> 32);
}

static const int faults[] = {7, 5, 3};

/* Two buffers that do not overlap, but with those of other steps they may. */
static void make_plan(hand *h, uint32_t seed, int threads) {
    drawn = seed;
    hand_open(h, threads);
    h->plan.arena_bytes = FLOATS * sizeof(float);
    const int kinds = seed % 2 ? KINDS : SUM; /* of sums there are more phases than steps */
    for (int s = 0; s < STEPS; s++) {
        const int kind = draw(kinds), count = 16 * (1 + draw(12)), read = kind == SUM ? count * SAMPLES : count;
        const int *fault = kind != COMMIT && draw(6) == 0 ? &faults[draw(3)] : NULL;
        int from, to;
        do {
            from = draw((FLOATS - read) / 16 + 1) * 16;
            to = draw((FLOATS - count) / 16 + 1) * 16;
        } while (from < to + count && to < from + read);
        int x = buffer_at(h, (size_t)from, read);
        if (kind == SUM) {
            h->plan.buffer_count--;
            x = hand_buffer(h, TWI_PLACE_FIXED, true, DIMS(SAMPLES, count));
            h->buffer[x].place = TWI_PLACE_ARENA;
            h->buffer[x].offset = (size_t)from * sizeof(float);
        }
        add_step(h, kind, x, buffer_at(h, (size_t)to, count), kind == SUM ? NULL : fault);
    }
    assert_int_equal(hand_bind(h), TW_OK);
    drawn = seed + 1;
    for (size_t i = 0; i < h->plan.arena_bytes / sizeof(float); i++)
        ((float *)(void *)h->arena)[i] = (float)draw(1 << 16) / (1 << 16);
}

/* In runs of a few segments each, the same in every plan of the seed. */
static void run_plan(hand *h, uint32_t seed) {
    drawn = seed;
    for (int turn = 0; turn < 3; turn++) {
        const int cut = draw(2) ? h->plan.segment_count : draw(h->plan.segment_count + 1);
        assert_int_equal(twi_backend_cpu.run(h->context, h->prepared, 0, cut), TW_OK);
        assert_int_equal(twi_backend_cpu.run(h->context, h->prepared, cut, h->plan.segment_count - cut), TW_OK);
        if (turn == 1) memset(&h->control.fault, 0, sizeof h->control.fault);
    }
}

/* May steps s and t overlap in time? By bytes; and what they say of the control block. */
static bool may_overlap(const hand *h, int s, int t) {
    static uint8_t touched[2][FLOATS * sizeof(float)]; /* 1: read, 2: written */
    const int step[] = {s, t};
    memset(touched, 0, sizeof touched);
    for (int k = 0; k < 2; k++)
        for (int o = 0; o < 2; o++) {
            const twi_buffer_plan *b = &h->buffer[h->step[step[k]].buffer[o]];
            for (size_t i = 0; i < b->bytes; i++) touched[k][b->offset + i] |= (uint8_t)(1 << o);
        }
    for (size_t i = 0; i < sizeof touched[0]; i++)
        if (touched[0][i] && touched[1][i] && (touched[0][i] | touched[1][i]) & 2) return false;
    for (int k = 0; k < 2; k++) {
        const uint8_t one = h->step[step[k]].kernel->control, other = h->step[step[1 - k]].kernel->control;
        if (one & TWI_CONTROL_WRITE && other) return false;
        if (!(one & TWI_CONTROL_FAULTS) && other & TWI_CONTROL_FAULTS) return false;
    }
    return true;
}

/* Of plans without sums, where every step is a phase. */
static void check_barriers(const hand *h, uint32_t seed) {
    bool before_all[STEPS]; /* done by one worker, while all others wait */
    for (int p = 0, last = 0; p < STEPS; p++) {
        if (phase(h, p)->barrier) last = p;
        before_all[p] = phase(h, p)->alone && (p == last || before_all[p - 1]);
        bool conflict = false;
        for (int q = 0; q < p; q++) {
            const bool fine = may_overlap(h, p, q) || (phase(h, p)->alone && phase(h, q)->alone);
            if (q >= last && !before_all[q] && !fine) fail_msg("plan %u: %d has to wait for %d", seed, p, q);
        }
        int since = p - 1; /* the barrier before */
        while (since > 0 && !phase(h, since)->barrier) since--;
        for (int q = since < 0 ? 0 : since; q < p; q++)
            conflict =
                conflict || !(before_all[q] || may_overlap(h, p, q) || (phase(h, p)->alone && phase(h, q)->alone));
        if (phase(h, p)->barrier && !conflict) fail_msg("plan %u: %d waits for nothing", seed, p);
    }
}

static void test_plans(void **state) {
    (void)state;
    int barriers = 0, phases = 0;
    for (uint32_t seed = 1; seed <= PLANS; seed++) {
        hand first;
        make_plan(&first, seed, 1);
        if (seed % 2 == 0) check_barriers(&first, seed);
        for (int p = 0; p < ((const twi_cpu_program *)first.prepared)->phase_count; p++, phases++)
            barriers += phase(&first, p)->barrier;
        run_plan(&first, seed);
        for (int threads = 2; threads <= MOST_WORKERS; threads++) {
            hand h;
            make_plan(&h, seed, threads);
            run_plan(&h, seed);
            if (memcmp(h.arena, first.arena, h.plan.arena_bytes) != 0) fail_msg("plan %u, %d threads", seed, threads);
            assert_int_equal(h.control.update, first.control.update);
            assert_int_equal(h.control.fault.code, first.control.fault.code);
            assert_int_equal(h.control.fault.sample, first.control.fault.sample);
            hand_close(&h);
        }
        hand_close(&first);
    }
    assert_in_range(barriers, phases / 4, phases * 3 / 4); /* plans neither need all of them nor none */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_phases),
        cmocka_unit_test(test_blocks_of_samples),
        cmocka_unit_test(test_parts_of_sums),
        cmocka_unit_test(test_workspaces),
        cmocka_unit_test(test_functions_of_the_users),
        cmocka_unit_test(test_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
