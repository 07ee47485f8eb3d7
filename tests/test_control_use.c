/* What kernels say of the control block (twi_kernel.control) is all they do with it: programs are run segment by segment
 * with a control block that can be read or written only as far as the segment's kernels say. */
#define _GNU_SOURCE /* MAP_ANONYMOUS, sigsetjmp, setenv */
#include "program_net.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BATCH = 12, SIDE = 12, PIXELS = SIDE * SIDE, CLASSES = 10 };

static tw_value *layers(tw_model *model, tw_value *x) {
    x = tw_relu(model, tw_batch_norm(model, tw_conv2d(model, x, 8, 3, TW_OPTIONS(conv2d, .padding = 1)), NULL));
    x = tw_dropout(model, tw_flatten(model, tw_max_pool(model, x, 2, NULL)), 0.2f);
    x = tw_relu(model, tw_dense(model, x, 24, NULL));
    return tw_dense(model, x, CLASSES, NULL);
}

/* A layer whose gradient may go into its weight at once. */
static tw_value *dense_layers(tw_model *model, tw_value *x) {
    return tw_dense(model, tw_relu(model, tw_dense(model, x, 24, NULL)), CLASSES, NULL);
}

/* ---- a control block behind a fence ---- */

/* The page that begins with `from` of it, which is made to be out of reach. */
typedef struct fence {
    unsigned char *memory;
    size_t page;
    twi_control *control;
} fence;

static void open_fence(fence *f, size_t from, const twi_control *values) {
    f->page = (size_t)sysconf(_SC_PAGESIZE);
    f->memory = mmap(NULL, 2 * f->page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f->memory != MAP_FAILED && sizeof(twi_control) < f->page);
    f->control = (twi_control *)(void *)(f->memory + f->page - from);
    memcpy(f->control, values, sizeof *values);
}
static void set_fence(const fence *f, int protection) {
    assert_int_equal(mprotect(f->memory + f->page, f->page, protection), 0);
}

static sigjmp_buf caught;
static void catch_fault(int number) {
    (void)number;
    siglongjmp(caught, 1);
}

/* ---- running ---- */

static void run_fenced(tw_program *program, size_t from, uint8_t (*may)(uint8_t says)) {
    const twi_plan *plan = &program->plan;
    tw_context *context = twi_program_context(program);
    fence f;
    void *prepared;
    open_fence(&f, from, program->model->store.control);
    CHECK_OK(twi_backend_cpu.prepare(context, &prepared, plan, f.control,
                                     program->arena ? program->arena : program->model->arena,
                                     program->scratch ? program->scratch : program->model->scratch));
    struct sigaction before, ours = {.sa_handler = catch_fault};
    sigaction(SIGSEGV, &ours, &before);
    for (int s = 0; s < plan->segment_count; s++) {
        const twi_segment *segment = &plan->segment[s];
        uint8_t says = 0;
        for (int i = 0; i < segment->step_count; i++) says |= plan->step[segment->first_step + i].kernel->control;
        set_fence(&f, may(says));
        const bool fine = sigsetjmp(caught, 1) == 0;
        if (fine) CHECK_OK(twi_backend_cpu.run(context, prepared, s, 1));
        set_fence(&f, PROT_READ | PROT_WRITE);
        if (!fine) fail_msg("the segment of %s does more than it says", plan->step[segment->first_step].kernel->name);
    }
    sigaction(SIGSEGV, &before, NULL);
    assert_int_equal(f.control->fault.code, 0);
    twi_backend_cpu.discard(context, prepared);
    munmap(f.memory, 2 * f.page);
}

/* In memory what steps advance begins with bad_loss, and ends with the fault. */
static uint8_t may_advance(uint8_t says) {
    return says & TWI_CONTROL_WRITE ? PROT_READ | PROT_WRITE : says & TWI_CONTROL_READ ? PROT_READ : PROT_NONE;
}
static uint8_t may_look(uint8_t says) {
    return says & TWI_CONTROL_FAULTS ? (says & TWI_CONTROL_WRITE ? PROT_READ | PROT_WRITE : PROT_READ) : PROT_NONE;
}

typedef struct way {
    const char *isa; /* NULL: the processor's */
    tw_value *(*build)(tw_model *, tw_value *);
    tw_optimizer_kind optimizer;
    tw_non_finite on_non_finite;
    bool accumulate, scaling;
} way;

static void check_way(const way *w) {
    net n;
    static float images[BATCH * PIXELS];
    int32_t labels[BATCH];
    const tw_loss_scaling scaling = {0};
    tw_optimizer_options optimizer = TW_OPTIMIZER_OPTIONS_INIT;
    optimizer.kind = w->optimizer;
    optimizer.learning_rate = 0.01;
    for (int i = 0; i < BATCH * PIXELS; i++) images[i] = (float)(i * 37 % 101) / 50 - 1;
    for (int i = 0; i < BATCH; i++) labels[i] = i % CLASSES;
    if (w->isa) setenv("TALWEG_CPU", w->isa, 1);
    open_net_on(&n, "cpu", 1, w->build, 1, SIDE);
    tw_program *program;
    CHECK_OK(tw_program_create(&program, n.model, BATCH,
                               TW_OPTIONS(program, .train = true, .losses = &n.loss, .loss_count = 1,
                                          .optimizer = &optimizer, .on_non_finite = w->on_non_finite,
                                          .accumulate = w->accumulate, .loss_scaling = w->scaling ? &scaling : NULL)));
    CHECK_OK(tw_program_write(program, n.x, TW_F32, images, BATCH * PIXELS));
    CHECK_OK(tw_program_write(program, n.labels, TW_I32, labels, BATCH));
    CHECK_OK(tw_program_run(program));
    run_fenced(program, offsetof(twi_control, bad_loss), may_advance);
    run_fenced(program, offsetof(twi_control, fault), may_look);
    close_net(&n);
    if (w->isa) unsetenv("TALWEG_CPU");
}

static void test_kernels_do_as_they_say(void **state) {
    (void)state;
    if (check_device() || getenv("TALWEG_CPU")) skip();
    static const way ways[] = {
        {NULL, layers, TW_SGD, TW_NON_FINITE_STOP, false, false},
        {NULL, layers, TW_ADAMW, TW_NON_FINITE_SKIP, true, true},
        {NULL, dense_layers, TW_SGD, TW_NON_FINITE_IGNORE, false, false},
        {"specification", layers, TW_SGD, TW_NON_FINITE_SKIP, true, true},
        {"specification", layers, TW_ADAMW, TW_NON_FINITE_STOP, false, false},
        {"specification", dense_layers, TW_SGD, TW_NON_FINITE_IGNORE, false, false},
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) check_way(&ways[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kernels_do_as_they_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
