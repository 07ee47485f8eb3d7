/* That fusion changes no value, on small nets made so that something stands in its way: values with other readers, views. */
#include "program_net.h"

#include <math.h>

/* Sums that fusion must not take apart wrongly: one normalised value twice, one masked gradient twice, a view as reader. */
static tw_value *norm_twice(tw_model *model, tw_value *x) {
    tw_value *n = tw_batch_norm(model, x, NULL);
    return tw_dense(model, tw_relu(model, tw_add(model, n, n)), 3, NULL);
}
static tw_value *value_twice(tw_model *model, tw_value *x) {
    tw_value *v = tw_conv2d(model, x, 2, 1, NULL);
    return tw_dense(model, tw_relu(model, tw_add(model, tw_batch_norm(model, x, NULL), tw_add(model, v, v))), 3, NULL);
}
static tw_value *norm_and_view(tw_model *model, tw_value *x) {
    tw_value *n = tw_batch_norm(model, x, NULL);
    return tw_dense(model, tw_relu(model, tw_add(model, n, tw_reshape(model, n, 3, (int64_t[]){2, 3, 3}))), 3, NULL);
}

/* A relu, and a pooling, that two read: neither may vanish for one of them. And one whose only reader is a view. */
static tw_value *relu_and_pool(tw_model *model, tw_value *x) {
    tw_value *r = tw_relu(model, tw_conv2d(model, x, 2, 2, TW_OPTIONS(conv2d, .padding = 1)));
    return tw_add(model, tw_dense(model, tw_max_pool(model, r, 2, NULL), 3, NULL), tw_dense(model, r, 3, NULL));
}
static tw_value *pooled_twice(tw_model *model, tw_value *x) {
    tw_value *p = tw_max_pool(model, tw_relu(model, tw_conv2d(model, x, 2, 2, NULL)), 2, NULL);
    return tw_add(model, tw_dense(model, tw_conv2d(model, p, 2, 1, NULL), 3, NULL), tw_dense(model, p, 3, NULL));
}
static tw_value *pooled_and_view(tw_model *model, tw_value *x) {
    tw_value *p = tw_max_pool(model, tw_relu(model, tw_conv2d(model, x, 4, 2, NULL)), 2, NULL);
    return tw_dense(model, tw_flatten(model, p), 3, NULL);
}

/* Logits and every parameter's gradient of one run. */
static int run_net(net *n, bool no_fusion, float *values) {
    enum { IMAGES = 9 }; /* as many as convolutions that pool want at least */
    float images[IMAGES * 18];
    int32_t labels[IMAGES];
    for (int i = 0; i < IMAGES * 18; i++) images[i] = (float)((i * 37) % 23 - 11) * 0.1f;
    for (int i = 0; i < IMAGES; i++) labels[i] = i % 3;
    tw_program *program = make(n, IMAGES, no_fusion);
    CHECK_OK(tw_program_write(program, n->x, TW_F32, images, IMAGES * 18));
    CHECK_OK(tw_program_write(program, n->labels, TW_I32, labels, IMAGES));
    CHECK_OK(tw_program_run_gradients(program));
    CHECK_OK(tw_program_read(program, n->logits, values, IMAGES * 3));
    int count = IMAGES * 3;
    for (int p = 0; p < tw_model_count_parameters(n->model); p++) {
        tw_parameter parameter;
        CHECK_OK(tw_model_get_parameter(n->model, p, &parameter));
        int64_t elements = 1;
        for (int axis = 0; axis < parameter.rank; axis++) elements *= parameter.dims[axis];
        if (!parameter.learned) continue;
        CHECK_OK(tw_program_read_parameter_gradient(program, parameter.name, values + count, elements));
        count += (int)elements;
    }
    tw_program_destroy(program);
    return count;
}

static void test_fusion_changes_no_value(void **state) {
    (void)state;
    tw_value *(*const nets[])(tw_model *, tw_value *) = {norm_twice,    value_twice,  norm_and_view,
                                                         relu_and_pool, pooled_twice, pooled_and_view};
    for (size_t k = 0; k < sizeof nets / sizeof *nets; k++) {
        static float fused[1024], plain[1024];
        net n;
        open_net(&n, nets[k], 2, 3);
        int count = run_net(&n, false, fused);
        assert_int_equal(run_net(&n, true, plain), count);
        for (int i = 0; i < count; i++)
            if (!(fabsf(fused[i] - plain[i]) <= 1e-5f))
                fail_msg("net %zu: value %d is %g, unfused %g", k, i, fused[i], plain[i]);
        close_net(&n);
    }
}

/* Without a backward less stands in the way of a fusion. */
static void test_fusion_changes_no_answer(void **state) {
    (void)state;
    enum { IMAGES = 9 };
    tw_value *(*const nets[])(tw_model *, tw_value *) = {relu_and_pool, pooled_twice, pooled_and_view};
    for (size_t k = 0; k < sizeof nets / sizeof *nets; k++) {
        float images[IMAGES * 18], answers[2][IMAGES * 3];
        net n;
        open_net(&n, nets[k], 2, 3);
        for (int i = 0; i < IMAGES * 18; i++) images[i] = (float)((i * 37) % 23 - 11) * 0.1f;
        for (int plain = 0; plain < 2; plain++) {
            tw_program *program;
            CHECK_OK(tw_program_create(
                &program, n.model, IMAGES,
                TW_OPTIONS(program, .outputs = &n.logits, .output_count = 1, .no_fusion = plain != 0)));
            CHECK_OK(tw_program_write(program, n.x, TW_F32, images, IMAGES * 18));
            CHECK_OK(tw_program_run(program));
            CHECK_OK(tw_program_read(program, n.logits, answers[plain], IMAGES * 3));
            tw_program_destroy(program);
        }
        for (int i = 0; i < IMAGES * 3; i++) assert_true(fabsf(answers[0][i] - answers[1][i]) <= 1e-5f);
        close_net(&n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fusion_changes_no_value),
        cmocka_unit_test(test_fusion_changes_no_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
