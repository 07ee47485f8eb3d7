/* The guard's sums of squares on every instruction set: of gradients large and small, against sums in double. */
#include "check.h"
#include "impl_call.h"
#include "backend/attrs.h"

#include <math.h>
#include <string.h>

enum { COUNT = 2 * TWI_UPDATE_BLOCK + 1003, BLOCKS = 3 };

static void measure(twi_isa isa, float *gradients, float *blocks) {
    const twi_update_segment segment = {0, COUNT, 0, false, 0};
    const twi_update_attrs attrs = {.segment_count = 1, .segment = &segment};
    twi_call call = {.attrs = &attrs, .begin = 0, .end = BLOCKS};
    impl_rows(&call, 0, TWI_ACC, 1, COUNT, gradients);
    impl_rows(&call, 1, TWI_ACC, 1, BLOCKS, blocks);
    impl_run(twi_cpu_point_impls, "guard.measure", isa, &call);
}

static void check_blocks(twi_isa isa, float *gradients, const char *what) {
    float blocks[BLOCKS];
    measure(isa, gradients, blocks);
    for (int b = 0; b < BLOCKS; b++) {
        const int begin = b * TWI_UPDATE_BLOCK,
                  end = begin + TWI_UPDATE_BLOCK < COUNT ? begin + TWI_UPDATE_BLOCK : COUNT;
        double squares = 0;
        for (int i = begin; i < end; i++) squares += (double)gradients[i] * gradients[i];
        const double want = sqrt(squares / TWI_UPDATE_BLOCK);
        if (!(fabs(blocks[b] - want) <= 1e-6 * want))
            fail_msg("%s: block %d is %.9g, expected %.9g", what, b, blocks[b], want);
    }
}

/* Squares of 1e-25 and of 1e25 are no normal numbers of f32, and those of 1e-15 and 1e17 are so only for a few terms. */
static void sums_hold_for_gradients_of_any_size(void **state) {
    (void)state;
    static const float sizes[] = {1e-36f, 1e-25f, 1e-15f, 1e-12f, 1e-3f, 1, 1e5f, 1e17f, 1e25f, 1e37f};
    IMPL_EACH_ISA(isa) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            float *gradients = impl_floats(COUNT);
            for (int i = 0; i < COUNT; i++) gradients[i] *= sizes[s];
            check_blocks((twi_isa)isa, gradients, "of one size");
            for (int i = 0; i < COUNT; i++) gradients[i] = i % 977 == 13 ? sizes[s] : 0;
            check_blocks((twi_isa)isa, gradients, "a few");
            for (int i = 0; i < COUNT; i++) gradients[i] = i % 5 ? sizes[s] : 1;
            check_blocks((twi_isa)isa, gradients, "beside others");
            impl_release();
        }
        float *zeros = impl_floats(COUNT);
        memset(zeros, 0, COUNT * sizeof *zeros);
        check_blocks((twi_isa)isa, zeros, "zeros");
        impl_release();
    }
}

static void what_is_not_finite_is_named(void **state) {
    (void)state;
    IMPL_EACH_ISA(isa)
    for (int i = 0; i < COUNT; i += 501) {
        float *gradients = impl_floats(COUNT), blocks[BLOCKS];
        gradients[i] = i % 2 ? NAN : -INFINITY;
        measure((twi_isa)isa, gradients, blocks);
        for (int b = 0; b < BLOCKS; b++) assert_int_equal(blocks[b] < 0, b == i / TWI_UPDATE_BLOCK);
        assert_int_equal(twi_guard_marked(blocks[i / TWI_UPDATE_BLOCK]), i % TWI_UPDATE_BLOCK);
        impl_release();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_hold_for_gradients_of_any_size),
        cmocka_unit_test(what_is_not_finite_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
