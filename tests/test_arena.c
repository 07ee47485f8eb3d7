/* The arena that programs of a model share: how it grows under a limit of memory, and what is left of the others when it cannot. */
#include "program_net.h"

enum { SIDE = 16, FEW = 4, MANY = 12, CLASSES = 10 };

static tw_program *answering(net *n) {
    tw_program *program;
    CHECK_OK(tw_program_create(&program, n->model, FEW, TW_OPTIONS(program, .outputs = &n->logits, .output_count = 1)));
    return program;
}

static tw_status learning(net *n, size_t limit, bool plan_only, tw_program **out) {
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    sgd.momentum = 0.9f;
    return tw_program_create(out, n->model, MANY,
                             TW_OPTIONS(program, .train = true, .losses = &n->loss, .loss_count = 1, .optimizer = &sgd,
                                        .memory_limit = limit, .plan_only = plan_only));
}

/* Bytes that the larger program takes with all that belongs to it, and of these those of its arena. */
static size_t planned_bytes(net *n, size_t *arena) {
    tw_program *plan;
    CHECK_OK(learning(n, 0, true, &plan));
    const size_t bytes = twi_program_bytes(plan);
    *arena = tw_program_get_stats(plan).arena_bytes;
    tw_program_destroy(plan);
    return bytes;
}

static tw_status feed(net *n, tw_program *program) {
    static float images[FEW * 3 * SIDE * SIDE];
    for (int i = 0; i < FEW * 3 * SIDE * SIDE; i++) images[i] = (float)((i * 7919) % 1009) / 504 - 1;
    return tw_program_write(program, n->x, TW_F32, images, FEW * 3 * SIDE * SIDE);
}

static void answer(net *n, tw_program *program, float logits[FEW * CLASSES]) {
    CHECK_OK(feed(n, program));
    CHECK_OK(tw_program_run(program));
    CHECK_OK(tw_program_read(program, n->logits, logits, FEW * CLASSES));
}

/* Without one, the old memory goes when the new is there. */
static void a_limit_holds_while_the_arena_grows(void **state) {
    (void)state;
    for (int limited = 0; limited < 2; limited++) {
        net n;
        size_t arena;
        float before[FEW * CLASSES], after[FEW * CLASSES];
        open_net(&n, resnet20, 3, SIDE);
        tw_program *small = answering(&n), *large;
        answer(&n, small, before);
        const size_t limit = planned_bytes(&n, &arena);
        assert_true(arena > n.model->arena_bytes);
        CHECK_OK(learning(&n, limited ? limit : 0, false, &large));
        const tw_memory_stats held = tw_context_get_device_memory(n.context);
        assert_true(twi_model_bytes(n.model) == limit);
        assert_true(limited ? held.peak == held.bytes : held.peak > held.bytes);
        answer(&n, small, after);
        assert_memory_equal(before, after, sizeof before);
        tw_program_destroy(large);
        tw_program_destroy(small);
        close_net(&n);
    }
}

static bool refuse_large(void *user, uint64_t index, size_t bytes) {
    (void)index;
    return bytes >= *(const size_t *)user;
}

static void others_get_their_arena_again(void **state) {
    (void)state;
    if (check_device()) skip(); /* the hook is asked for memory of the host */
    net n;
    size_t most, nothing = 0;
    float before[FEW * CLASSES], after[FEW * CLASSES];
    open_net(&n, resnet20, 3, SIDE);
    tw_program *small = answering(&n), *other = answering(&n), *large;
    answer(&n, small, before);
    const size_t limit = planned_bytes(&n, &most);
    tw_context_set_memory_hook(n.context, refuse_large, &most);
    CHECK_FAILS(learning(&n, limit, false, &large), TW_ERROR_OUT_OF_MEMORY, "activation arena");
    CHECK_FAILS(tw_program_read(small, n.logits, after, FEW * CLASSES), TW_ERROR_STATE, "nothing to read");
    tw_context_set_memory_hook(n.context, refuse_large, &nothing);
    CHECK_FAILS(feed(&n, small), TW_ERROR_OUT_OF_MEMORY, "activation arena");
    tw_context_set_memory_hook(n.context, NULL, NULL);
    answer(&n, small, after);
    assert_memory_equal(before, after, sizeof before);
    answer(&n, other, after);
    assert_memory_equal(before, after, sizeof before);
    CHECK_OK(learning(&n, limit, false, &large));
    tw_program_destroy(large);
    tw_program_destroy(other);
    tw_program_destroy(small);
    close_net(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_limit_holds_while_the_arena_grows),
        cmocka_unit_test(others_get_their_arena_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
