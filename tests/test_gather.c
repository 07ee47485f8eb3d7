/* Programs that gather their batches from a resident set: the floats are the loader's, bit for bit, for all that can
 * happen to a sample and whatever runs the steps; errors; the order; memory. What trainers make of it is in test_feed.c. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "backend/cpu/cpu.h"
#include "base/context.h"
#include "check.h"
#include "data/order.h"
#include "ops/op.h"
#include "program/program.h"
#include "small_task.h"

#include <math.h>
#include <stdio.h>

extern const twi_registry twi_registry_builtin_f64;

/* ---- against the loader ---- */

enum { COUNT = 23, BATCH = 8, EPOCH = 3, MOST_FLOATS = 512 };

typedef struct sample {
    int channels, height, width;
} sample;

static const sample samples[] = {{1, 12, 20}, {1, 7, 5}, {3, 6, 5}, {5, 3, 9}, {3, 1, 1}, {17, 4, 3}, {1, 3, 35}};

/* Under what the bits are compared. */
typedef struct machine {
    const char *isa; /* TALWEG_CPU */
    int threads;
    const twi_registry *registry;
} machine;

typedef struct way {
    tw_dtype dtype;
    const sample *sample;
    bool flip, flat; /* flat: the input has one axis */
    int crop_padding;
} way;

static uint8_t bytes[COUNT * MOST_FLOATS];
static float floats[COUNT * MOST_FLOATS];
static int32_t labels[COUNT];

static int fill_samples(void **state) {
    (void)state;
    for (int i = 0; i < COUNT * MOST_FLOATS; i++) {
        bytes[i] = (uint8_t)(i * 31 + i / 97 * 7 + 1);
        floats[i] = (float)(i % 1013) / 61.0f - 7;
    }
    for (int i = 0; i < COUNT; i++) labels[i] = (i * 5 + 2) % 7;
    return 0;
}

static const void *images_of(tw_dtype dtype) { return dtype == TW_U8 ? (const void *)bytes : floats; }
static int64_t floats_of(const sample *s) { return (int64_t)s->channels * s->height * s->width; }

static tw_normalization normalization_for(const sample *s) {
    tw_normalization n = {0};
    if (s->channels > TW_MAX_CHANNELS) return n;
    n.channels = s->channels;
    for (int c = 0; c < s->channels; c++) {
        n.mean[c] = s->height == 12 ? 127 / 255.0f : 0.13f * (float)(c + 1); /* no line, and lines */
        n.deviation[c] = c == 1 ? 0 : 0.31f + 0.07f * (float)c;
    }
    return n;
}

static tw_model *model_for(tw_context *context, const way *w) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, context));
    const int64_t flat = floats_of(w->sample);
    tw_value *x = w->flat ? tw_input_shaped(model, "x", 1, &flat)
                          : tw_input(model, w->sample->channels, w->sample->height, w->sample->width);
    tw_input_labels(model, "labels");
    CHECK_OK(tw_model_build(model, tw_dense(model, x, 7, NULL), NULL));
    return model;
}

static tw_program *program_for(tw_model *model, const way *w, tw_resident *resident, int64_t batch) {
    tw_value *outputs[] = {tw_model_get_input(model), tw_model_find(model, "labels"), tw_model_get_output(model)};
    tw_program *program;
    CHECK_OK(tw_program_create(
        &program, model, batch,
        TW_OPTIONS(program, .outputs = outputs, .output_count = 3,
                   .source = TW_OPTIONS(source, .resident = resident, .images = outputs[0], .labels = outputs[1],
                                        .flip = w->flip, .crop_padding = w->crop_padding, .seed = 11,
                                        .normalization = normalization_for(w->sample)))));
    return program;
}

static tw_loader *loader_for(const tw_dataset *data, const way *w) {
    tw_loader *loader;
    CHECK_OK(
        tw_loader_create(&loader, data,
                         TW_OPTIONS(loader, .batch = BATCH, .seed = 11, .flip = w->flip,
                                    .crop_padding = w->crop_padding, .normalization = normalization_for(w->sample))));
    CHECK_OK(tw_loader_start(loader, EPOCH, 0));
    return loader;
}

static void compare_batch(tw_program *program, const way *w, const tw_batch *batch, const machine *m) {
    static float images[BATCH * MOST_FLOATS];
    int32_t own[BATCH];
    const tw_value *x = tw_model_get_input(program->model), *y = tw_model_find(program->model, "labels");
    const int64_t count = batch->count * floats_of(w->sample);
    CHECK_OK(tw_program_run(program));
    CHECK_OK(tw_program_read(program, x, images, count));
    CHECK_OK(tw_program_read(program, y, own, batch->count));
    assert_memory_equal(own, batch->labels, (size_t)batch->count * sizeof *own);
    for (int64_t i = 0; i < count; i++)
        if (memcmp(&images[i], &batch->images[i], sizeof *images) != 0)
            fail_msg("%s, %d threads: %s [%d, %d, %d]%s%s crop %d: float %lld is %.9g, the loader's %.9g", m->isa,
                     m->threads, tw_dtype_name(w->dtype), w->sample->channels, w->sample->height, w->sample->width,
                     w->flat ? " flat" : "", w->flip ? " flip" : "", w->crop_padding, (long long)i, (double)images[i],
                     (double)batch->images[i]);
}

static void compare_way(tw_context *context, const way *w, const machine *m) {
    const sample *s = w->sample;
    tw_dataset *data;
    tw_resident *resident;
    CHECK_OK(tw_dataset_create_from(&data, context, w->dtype, images_of(w->dtype), COUNT, s->channels, s->height,
                                    s->width, labels, NULL));
    CHECK_OK(tw_resident_create(&resident, context, w->dtype, images_of(w->dtype), COUNT, s->channels, s->height,
                                s->width, labels));
    tw_model *model = model_for(context, w);
    tw_loader *loader = loader_for(data, w);
    tw_program *full = program_for(model, w, resident, BATCH), *rest = program_for(model, w, resident, COUNT % BATCH);
    int32_t order[COUNT];
    twi_epoch_order(order, COUNT, true, 11, EPOCH);
    CHECK_OK(tw_resident_set_order(resident, EPOCH, order, COUNT));
    for (;;) {
        tw_batch batch;
        CHECK_OK(tw_loader_next(loader, &batch));
        if (!batch.count) break;
        compare_batch(batch.count == BATCH ? full : rest, w, &batch, m);
    }
    assert_int_equal(tw_resident_get_position(resident), COUNT);
    tw_program_destroy(full);
    tw_program_destroy(rest);
    tw_loader_destroy(loader);
    tw_model_destroy(model);
    tw_resident_destroy(resident);
    tw_dataset_destroy(data);
}

static void compare_all(const machine *m) {
    tw_context *context;
    assert_int_equal(setenv("TALWEG_CPU", m->isa, 1), 0);
    if (strcmp(m->isa, "specification") != 0 && strcmp(twi_cpu_isa_name(twi_cpu_isa()), m->isa) != 0) return;
    CHECK_OK(tw_context_create(&context, m->registry == &twi_registry_builtin ? check_device_or_cpu() : "cpu",
                               TW_OPTIONS(context, .threads = m->threads)));
    context->registry = m->registry;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const sample *s = &samples[i];
        const int paddings[] = {0, 2, s->height < s->width ? s->height : s->width};
        for (int k = 0; k < 24; k++) {
            const way w = {k & 1 ? TW_F32 : TW_U8, s, k & 2, k & 4, paddings[k / 8]};
            if (w.crop_padding <= paddings[2]) compare_way(context, &w, m);
        }
    }
    tw_context_destroy(context);
}

static void test_the_loaders_floats(void **state) {
    (void)state;
    static const char *const isas[] = {"specification", "baseline", "avx2", "avx512"};
    for (int i = 0; i < 4; i++)
        for (int threads = 1; threads <= 2; threads++) compare_all(&(machine){isas[i], threads, &twi_registry_builtin});
    unsetenv("TALWEG_CPU");
}

/* Whether bytes lie on a line shows in no bit: a mean among them and numbers next to zero do not, and get none. */
static void test_the_line_of_bytes(void **state) {
    (void)state;
    const struct {
        float mean, deviation;
        bool line;
    } cases[] = {{0, 0, true},          {0.5f, 0.5f, true},     {0.1307f, 0.3081f, true},
                 {-2, 1e-3f, true},     {0.485f, 0.229f, true}, {127 / 255.0f, 1, false},
                 {0.25f, 1e38f, false}, {0.25f, 1e-40f, false}, {1, 0x1p117f, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tw_normalization n = {1, {cases[i].mean}, {cases[i].deviation}};
        float numbers[256 + sizeof(twi_byte_line) / sizeof(float)];
        assert_int_equal(sizeof numbers / sizeof *numbers, twi_pixel_numbers(TW_U8));
        twi_pixel_fill(numbers, TW_U8, 1, &n);
        const twi_byte_line line = twi_pixel_line(numbers);
        assert_int_equal(!isnan(line.scale), cases[i].line);
        for (int v = 0; v < 256 && cases[i].line; v++) {
            volatile double product = v * line.scale;
            const float apart = (float)(product + line.shift), fused = (float)fma(v, line.scale, line.shift);
            assert_memory_equal(&apart, &numbers[v], sizeof apart);
            assert_memory_equal(&fused, &numbers[v], sizeof fused);
        }
    }
}

/* On the CPU, whose the specification is. */
static void test_the_specification_in_double(void **state) {
    (void)state;
    compare_all(&(machine){"specification", 1, &twi_registry_builtin_f64});
    unsetenv("TALWEG_CPU");
}

/* ---- a small task, by hand ---- */

static const int32_t in_order[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static tw_resident *resident_of(const tw_dataset *data) {
    tw_resident *resident;
    CHECK_OK(tw_resident_create(&resident, task_context, TW_U8, tw_dataset_get_images(data), tw_dataset_count(data), 1,
                                TASK_SIDE, TASK_SIDE, tw_dataset_get_labels(data)));
    return resident;
}

static tw_value *add_loss(tw_model *model) {
    return tw_cross_entropy(model, tw_model_get_output(model), tw_input_labels(model, "labels"), NULL);
}

/* A program that trains, gathering where there is a resident set. */
static tw_status make(tw_program **out, tw_model *model, tw_value *value, tw_resident *resident, int64_t batch) {
    const tw_loss loss = {value, 1};
    return tw_program_create(
        out, model, batch,
        TW_OPTIONS(program, .train = true, .losses = &loss, .loss_count = 1, .record_passes = true,
                   .optimizer = TW_OPTIONS(optimizer, .learning_rate = 0.1f),
                   .source = resident ? TW_OPTIONS(source, .resident = resident, .images = tw_model_get_input(model),
                                                   .labels = tw_model_find(model, "labels"))
                                      : NULL));
}

static void test_images_stay_in_the_chunk(void **state) {
    (void)state;
    if (!task_context->backend->chunked) skip(); /* chunks are the CPU's way */
    tw_dataset *data = task_data(task_context, 16, 1);
    tw_resident *resident = resident_of(data);
    tw_model *model = task_plain_model(task_context, 1);
    tw_value *loss = add_loss(model);
    tw_program *fed, *gathered;
    CHECK_OK(make(&fed, model, loss, NULL, 16));
    CHECK_OK(make(&gathered, model, loss, resident, 16));
    const char *dump = tw_program_dump(gathered, TW_PASS_MEMORY), *segment = strstr(dump, "segment 1: by sample");
    assert_non_null(segment);
    const char *end = strstr(segment, "segment 2"), *images = strstr(segment, "gather.bytes");
    assert_true(images && images < end);
    assert_true(strstr(images, "gather.labels") < end && strstr(images, "dense.forward") < end);
    /* Cut alike: the gathering moves no chunk. */
    assert_int_equal(gathered->segment_count, fed->segment_count);
    for (int i = 0; i < fed->segment_count; i++) {
        assert_int_equal(gathered->segment[i].chunk, fed->segment[i].chunk);
        assert_int_equal(gathered->segment[i].groups, fed->segment[i].groups);
    }
    tw_program_destroy(fed);
    tw_program_destroy(gathered);
    /* Without a backward that reads the images once more, a batch of them never lies in memory. */
    tw_value *output = tw_model_get_output(model);
    size_t arena[2];
    for (int g = 0; g < 2; g++) {
        tw_program *program;
        CHECK_OK(tw_program_create(
            &program, model, 16,
            TW_OPTIONS(program, .outputs = &output, .output_count = 1,
                       .source =
                           g ? TW_OPTIONS(source, .resident = resident, .images = tw_model_get_input(model)) : NULL)));
        arena[g] = tw_program_get_stats(program).arena_bytes;
        tw_program_destroy(program);
    }
    assert_true(arena[1] + 16 * TASK_PIXELS * sizeof(float) <= arena[0]);
    tw_model_destroy(model);
    tw_resident_destroy(resident);
    tw_dataset_destroy(data);
}

/* Where no step by samples reads the images, and every worker's own copy would not fit its cache. */
static void test_gathering_by_itself_is_shared(void **state) {
    (void)state;
    enum { SAMPLES = 400, SIDE = 28 };
    if (!task_context->backend->chunked) skip();
    uint8_t *pixels = calloc(SAMPLES, SIDE * SIDE);
    int32_t *classes = calloc(SAMPLES, sizeof *classes);
    tw_resident *resident;
    tw_model *model;
    assert_true(pixels && classes);
    CHECK_OK(tw_resident_create(&resident, task_context, TW_U8, pixels, SAMPLES, 1, SIDE, SIDE, classes));
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_flatten(model, tw_input(model, 1, SIDE, SIDE));
    CHECK_OK(tw_model_build(model, tw_dense(model, tw_relu(model, tw_dense(model, x, 128, NULL)), 10, NULL), NULL));
    tw_program *program;
    CHECK_OK(make(&program, model, add_loss(model), resident, SAMPLES));
    int gathering = 0;
    for (int i = 0; i < program->step_count; i++) {
        if (strncmp(program->step[i].kernel->name, "gather.", 7) != 0) continue;
        assert_true(program->step[i].groups > 1 && program->step[i].chunk < SAMPLES);
        assert_int_equal(program->segment[program->step[i].segment].step_count, 2); /* nothing but images and labels */
        gathering++;
    }
    assert_int_equal(gathering, 2);
    tw_program_destroy(program);
    tw_model_destroy(model);
    tw_resident_destroy(resident);
    free(pixels);
    free(classes);
}

static void test_the_order_is_taken_batch_by_batch(void **state) {
    (void)state;
    tw_dataset *data = task_data(task_context, 16, 1);
    tw_resident *resident = resident_of(data);
    tw_model *model = task_model(task_context, 1);
    tw_value *loss = add_loss(model);
    tw_program *eight, *five;
    CHECK_OK(make(&eight, model, loss, resident, 8));
    CHECK_OK(make(&five, model, loss, resident, 5));
    CHECK_FAILS(tw_program_run(eight), TW_ERROR_STATE, "0 samples are left of the resident set's order");
    CHECK_OK(tw_resident_set_order(resident, 0, in_order, 13));
    assert_int_equal(tw_resident_count(resident), 16);
    CHECK_OK(tw_program_run(eight));
    CHECK_FAILS(tw_program_run_gradients(eight), TW_ERROR_STATE, "5 samples are left");
    CHECK_OK(tw_program_run_gradients(five)); /* goes on from there */
    assert_int_equal(tw_resident_get_position(resident), 13);
    CHECK_OK(tw_program_run_update(five)); /* takes none */
    CHECK_FAILS(tw_program_run(five), TW_ERROR_STATE, "0 samples are left");
    CHECK_OK(tw_resident_set_order(resident, 1, (int32_t[]){3, 3, 3, 3, 3}, 5)); /* a sample may come again */
    CHECK_OK(tw_program_run(five));
    tw_program_destroy(eight);
    tw_program_destroy(five);
    tw_model_destroy(model);
    tw_resident_destroy(resident);
    tw_dataset_destroy(data);
}

static void test_a_bad_label_stops_the_run(void **state) {
    (void)state;
    static const uint8_t images[4 * TASK_PIXELS];
    static const int32_t bad[] = {0, 1, 2, TASK_CLASSES};
    tw_resident *resident;
    CHECK_OK(tw_resident_create(&resident, task_context, TW_U8, images, 4, 1, TASK_SIDE, TASK_SIDE, bad));
    tw_model *model = task_plain_model(task_context, 1);
    tw_program *program;
    CHECK_OK(make(&program, model, add_loss(model), resident, 4));
    size_t count;
    float *before = task_parameters(model, &count);
    CHECK_OK(tw_resident_set_order(resident, 0, (int32_t[]){1, 0, 3, 2}, 4));
    CHECK_FAILS(tw_program_run(program), TW_ERROR_LABEL, "label 3 of sample 2 is outside 0 .. 2");
    assert_true(task_unchanged(model, before));
    free(before);
    tw_program_destroy(program);
    tw_model_destroy(model);
    tw_resident_destroy(resident);
}

/* ---- errors ---- */

static void test_sets_that_cannot_be(void **state) {
    (void)state;
    tw_resident *resident = (void *)1;
    const int32_t label = 0, outside[] = {0, 1};
    const uint8_t image[2] = {0};
    tw_context *c = task_context;
    CHECK_FAILS(tw_resident_create(NULL, c, TW_U8, image, 1, 1, 1, 1, &label), TW_ERROR_ARGUMENT, "out is NULL");
    CHECK_FAILS(tw_resident_create(&resident, NULL, TW_U8, image, 1, 1, 1, 1, &label), TW_ERROR_ARGUMENT, "context");
    assert_null(resident);
    CHECK_FAILS(tw_resident_create(&resident, c, TW_U8, NULL, 1, 1, 1, 1, &label), TW_ERROR_ARGUMENT, "images");
    CHECK_FAILS(tw_resident_create(&resident, c, TW_U8, image, 1, 1, 1, 1, NULL), TW_ERROR_ARGUMENT, "labels");
    CHECK_FAILS(tw_resident_create(&resident, c, TW_F16, image, 1, 1, 1, 1, &label), TW_ERROR_ARGUMENT, "f16");
    CHECK_FAILS(tw_resident_create(&resident, c, (tw_dtype)99, image, 1, 1, 1, 1, &label), TW_ERROR_ARGUMENT,
                "type 99");
    CHECK_FAILS(tw_resident_create(&resident, c, TW_U8, image, 0, 1, 1, 1, &label), TW_ERROR_ARGUMENT, "[0, 1, 1, 1]");
    CHECK_FAILS(tw_resident_create(&resident, c, TW_U8, image, 1, 1, -1, 1, &label), TW_ERROR_ARGUMENT, "below 1");
    CHECK_FAILS(tw_resident_create(&resident, c, TW_U8, image, INT32_MAX, 1, 1, 1, &label), TW_ERROR_UNSUPPORTED,
                "2147483647 samples");
    CHECK_FAILS(tw_resident_create(&resident, c, TW_F32, image, 1 << 30, 1 << 30, 1 << 30, 4, &label),
                TW_ERROR_OVERFLOW, "samples");
    CHECK_OK(tw_resident_create(&resident, c, TW_U8, image, 1, 1, 1, 1, &label));
    CHECK_FAILS(tw_resident_set_order(NULL, 0, outside, 1), TW_ERROR_ARGUMENT, "resident is NULL");
    CHECK_FAILS(tw_resident_set_order(resident, 0, NULL, 1), TW_ERROR_ARGUMENT, "indices is NULL");
    CHECK_FAILS(tw_resident_set_order(resident, -1, outside, 1), TW_ERROR_ARGUMENT, "epoch is -1");
    CHECK_FAILS(tw_resident_set_order(resident, 0, outside, 2), TW_ERROR_ARGUMENT, "count is 2; give 0 .. 1");
    CHECK_FAILS(tw_resident_set_order(resident, 0, outside + 1, 1), TW_ERROR_ARGUMENT, "indices[0] is 1");
    assert_int_equal(tw_resident_count(NULL) + tw_resident_get_position(NULL), 0);
    tw_resident_destroy(resident);
    tw_resident_destroy(NULL);
}

static void expect_refused(tw_model *model, const tw_source_options *source, tw_status status, const char *part) {
    tw_value *output = tw_model_get_output(model);
    tw_program *program = (void *)1;
    CHECK_FAILS(tw_program_create(&program, model, 4,
                                  TW_OPTIONS(program, .outputs = &output, .output_count = 1, .source = source)),
                status, part);
    assert_null(program);
}
#define EXPECT_REFUSED(status, part, ...) expect_refused(model, TW_OPTIONS(source, __VA_ARGS__), status, part)

static void test_sources_that_cannot_be(void **state) {
    (void)state;
    tw_dataset *data = task_data(task_context, 16, 1);
    tw_resident *set = resident_of(data), *small;
    const uint8_t image[2] = {0};
    const int32_t label = 0;
    CHECK_OK(tw_resident_create(&small, task_context, TW_U8, image, 1, 2, 1, 1, &label));
    tw_model *model = task_model(task_context, 1), *other = task_model(task_context, 1);
    tw_value *x = tw_model_get_input(model), *loss = add_loss(model), *y = tw_model_find(model, "labels");
    expect_refused(model, &(tw_source_options){.resident = set, .images = x}, TW_ERROR_ARGUMENT, "size field");
    EXPECT_REFUSED(TW_ERROR_ARGUMENT, "resident is NULL", .images = x);
    EXPECT_REFUSED(TW_ERROR_ARGUMENT, "neither images nor labels", .resident = set);
    EXPECT_REFUSED(TW_ERROR_ARGUMENT, "another model", .resident = set, .images = tw_model_get_input(other));
    EXPECT_REFUSED(TW_ERROR_ARGUMENT, "is no input", .resident = set, .images = tw_model_get_output(model));
    EXPECT_REFUSED(TW_ERROR_ARGUMENT, "takes labels", .resident = set, .images = y);
    EXPECT_REFUSED(TW_ERROR_ARGUMENT, "does not take a label a sample", .resident = set, .labels = x);
    EXPECT_REFUSED(TW_ERROR_MISMATCH, "2 channels, height 1, width 1", .resident = small, .images = x);
    EXPECT_REFUSED(TW_ERROR_ARGUMENT, "crop_padding is 13", .resident = set, .images = x, .crop_padding = 13);
    EXPECT_REFUSED(TW_ERROR_ARGUMENT, "normalization is given for 2 channels", .resident = set, .images = x,
                   .normalization = {.channels = 2});
    tw_context *elsewhere;
    tw_resident *foreign;
    CHECK_OK(tw_context_create(&elsewhere, check_device_or_cpu(), TW_OPTIONS(context, .threads = 1)));
    CHECK_OK(tw_resident_create(&foreign, elsewhere, TW_U8, image, 1, 2, 1, 1, &label));
    EXPECT_REFUSED(TW_ERROR_ARGUMENT, "another context", .resident = foreign, .images = x);
    tw_resident_destroy(foreign);
    tw_context_destroy(elsewhere);
    tw_program *program;
    CHECK_OK(make(&program, model, loss, set, 4));
    CHECK_FAILS(tw_program_write(program, x, TW_F32, floats, 4 * TASK_PIXELS), TW_ERROR_ARGUMENT,
                "gathered from the program's source");
    CHECK_OK(tw_resident_set_order(set, 0, in_order, 4));
    CHECK_OK(tw_program_run(program));
    CHECK_FAILS(tw_program_read(program, x, floats, 4 * TASK_PIXELS), TW_ERROR_ARGUMENT, "is not kept");
    tw_program_destroy(program);
    tw_model_destroy(model);
    tw_model_destroy(other);
    tw_resident_destroy(small);
    tw_resident_destroy(set);
    tw_dataset_destroy(data);
}

static bool fails_at(void *user, uint64_t index, size_t size) {
    (void)size;
    return index == *(const uint64_t *)user;
}

static tw_status gather_once(const tw_dataset *data, tw_model *model, tw_value *loss) {
    tw_resident *resident = NULL;
    tw_program *program = NULL;
    tw_status status = tw_resident_create(&resident, task_context, TW_U8, tw_dataset_get_images(data),
                                          tw_dataset_count(data), 1, TASK_SIDE, TASK_SIDE, tw_dataset_get_labels(data));
    if (status == TW_OK) status = make(&program, model, loss, resident, 8);
    if (status == TW_OK) status = tw_resident_set_order(resident, 0, in_order, 8);
    if (status == TW_OK) status = tw_program_run(program);
    tw_program_destroy(program);
    tw_resident_destroy(resident);
    return status;
}

static void test_any_allocation_may_fail(void **state) {
    (void)state;
    tw_dataset *data = task_data(task_context, 16, 1);
    tw_model *model = task_plain_model(task_context, 1);
    tw_value *loss = add_loss(model);
    CHECK_OK(gather_once(data, model, loss)); /* the arena is there from now on */
    const uint64_t before = tw_context_get_memory(task_context).blocks;
    uint64_t at = 0;
    for (tw_status status = TW_ERROR_OUT_OF_MEMORY; status; at++) {
        tw_context_set_memory_hook(task_context, fails_at, &at);
        status = gather_once(data, model, loss);
        tw_context_set_memory_hook(task_context, NULL, NULL);
        assert_true(status == TW_OK || status == TW_ERROR_OUT_OF_MEMORY);
        assert_int_equal(tw_context_get_memory(task_context).blocks, before);
    }
    assert_in_range(at, 10, 2000);
    tw_model_destroy(model);
    tw_dataset_destroy(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_loaders_floats),          cmocka_unit_test(test_the_line_of_bytes),
        cmocka_unit_test(test_the_specification_in_double), with_context(test_images_stay_in_the_chunk),
        with_context(test_gathering_by_itself_is_shared),   with_context(test_the_order_is_taken_batch_by_batch),
        with_context(test_a_bad_label_stops_the_run),       with_context(test_sets_that_cannot_be),
        with_context(test_sources_that_cannot_be),          with_context(test_any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, fill_samples, NULL);
}
