/* The loader: order, normalisation, flip and crop, workers, resuming, memory. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/context.h"
#include <talweg/data.h>

#define assert_ok(call)                                 \
    do {                                                \
        tw_status got_ = (call);                        \
        if (got_) print_error("%s\n", tw_last_error()); \
        assert_int_equal(got_, TW_OK);                  \
    } while (0)

enum { COUNT = 101, CHANNELS = 3, HEIGHT = 6, WIDTH = 5, PLANE = HEIGHT * WIDTH, SAMPLE = CHANNELS * PLANE };

static tw_context *context;
static tw_dataset *dataset; /* u8; every pixel of sample i, channel c: a value of its own */
static uint8_t bytes[COUNT * SAMPLE];
static int32_t labels[COUNT];
static uint64_t blocks_at_open;

static int open_context(void **state) {
    (void)state;
    tw_context_options options = TW_CONTEXT_OPTIONS_INIT;
    options.threads = 1;
    for (int i = 0; i < COUNT * SAMPLE; i++) bytes[i] = (uint8_t)(i * 31 + i / SAMPLE * 7 + 1);
    for (int i = 0; i < COUNT; i++) labels[i] = i % 10;
    if (twi_context_open(&context, &options)) return -1;
    blocks_at_open = twi_memory_get_stats(context->memory).blocks;
    return (int)tw_dataset_create_from(&dataset, context, TW_U8, bytes, COUNT, CHANNELS, HEIGHT, WIDTH, labels, NULL);
}

static int close_context(void **state) {
    (void)state;
    tw_dataset_destroy(dataset);
    const uint64_t blocks = twi_memory_get_stats(context->memory).blocks;
    twi_context_close(context);
    return blocks == blocks_at_open ? 0 : -1;
}

static tw_loader *create(const tw_loader_options *options) {
    tw_loader *loader;
    assert_ok(tw_loader_create(&loader, dataset, options));
    return loader;
}

static tw_batch next(tw_loader *loader) {
    tw_batch batch;
    assert_ok(tw_loader_next(loader, &batch));
    return batch;
}

/* Runs an epoch to its end. Everything it delivers, one after the other. */
typedef struct epoch {
    int64_t indices[COUNT];
    int32_t labels[COUNT];
    float images[COUNT * SAMPLE];
    int samples, batches;
} epoch;

static void run(epoch *out, tw_loader *loader, int64_t number, int64_t first_batch) {
    out->samples = out->batches = 0;
    assert_ok(tw_loader_start(loader, number, first_batch));
    for (tw_batch batch = next(loader); batch.count; batch = next(loader)) {
        assert_int_equal(batch.index, first_batch + out->batches++);
        assert_in_range(out->samples + batch.count, 1, COUNT);
        memcpy(out->indices + out->samples, batch.indices, (size_t)batch.count * sizeof *batch.indices);
        memcpy(out->labels + out->samples, batch.labels, (size_t)batch.count * sizeof *batch.labels);
        memcpy(out->images + out->samples * SAMPLE, batch.images, (size_t)batch.count * SAMPLE * sizeof(float));
        out->samples += batch.count;
    }
    tw_batch after = next(loader); /* the end stays the end */
    assert_true(after.count == 0 && after.images == NULL);
}

static void assert_permutation(const epoch *e) {
    bool seen[COUNT] = {false};
    assert_int_equal(e->samples, COUNT);
    for (int i = 0; i < COUNT; i++) {
        assert_in_range(e->indices[i], 0, COUNT - 1);
        assert_false(seen[e->indices[i]]);
        seen[e->indices[i]] = true;
        assert_int_equal(e->labels[i], labels[e->indices[i]]);
    }
}

static epoch a, b;

static void every_epoch_is_another_permutation(void **state) {
    (void)state;
    tw_loader *loader = create(TW_OPTIONS(loader, .batch = 10, .seed = 7));
    assert_int_equal(tw_loader_count(loader), 11);
    int64_t orders[3][COUNT];
    for (int e = 0; e < 3; e++) {
        run(&a, loader, e, 0);
        assert_permutation(&a);
        assert_int_equal(a.batches, 11);
        memcpy(orders[e], a.indices, sizeof a.indices);
        int kept = 0; /* places that the shuffle left alone: 1 is expected, 10 has a probability of 1e-7 */
        for (int i = 0; i < COUNT; i++) kept += a.indices[i] == i;
        assert_true(kept < 10);
    }
    assert_memory_not_equal(orders[0], orders[1], sizeof orders[0]);
    assert_memory_not_equal(orders[1], orders[2], sizeof orders[0]);
    run(&a, loader, 1, 0); /* an epoch can be had again */
    assert_memory_equal(a.indices, orders[1], sizeof orders[1]);
    tw_loader_destroy(loader);

    loader = create(TW_OPTIONS(loader, .batch = 33, .seed = 7)); /* the batch size does not matter */
    run(&a, loader, 1, 0);
    assert_memory_equal(a.indices, orders[1], sizeof orders[1]);
    tw_loader_destroy(loader);
    loader = create(TW_OPTIONS(loader, .batch = 33, .seed = UINT64_C(1) << 63)); /* but the seed does */
    run(&a, loader, 1, 0);
    assert_permutation(&a);
    assert_memory_not_equal(a.indices, orders[1], sizeof orders[1]);
    tw_loader_destroy(loader);
}

/* Each of the 24 orders of 4 samples is equally likely: 100 of 2400 epochs, give or take 5 standard deviations of
 * 9.8. */
static void every_order_is_equally_likely(void **state) {
    (void)state;
    int seen[256] = {0}, orders = 0;
    tw_dataset *four;
    tw_loader *loader;
    assert_ok(tw_dataset_create_from(&four, context, TW_U8, bytes, 4, 1, 1, 1, labels, NULL));
    assert_ok(tw_loader_create(&loader, four, TW_OPTIONS(loader, .seed = 1)));
    for (int e = 0; e < 2400; e++) {
        assert_ok(tw_loader_start(loader, e, 0));
        const int64_t *at = next(loader).indices;
        seen[at[0] * 64 + at[1] * 16 + at[2] * 4 + at[3]]++;
    }
    for (int i = 0; i < 256; i++) {
        orders += seen[i] > 0;
        assert_true(!seen[i] || (seen[i] > 50 && seen[i] < 150));
    }
    assert_int_equal(orders, 24);
    tw_loader_destroy(loader);
    tw_dataset_destroy(four);
}

static void evaluation_keeps_the_order_and_the_tail(void **state) {
    (void)state;
    tw_loader *loader = create(TW_OPTIONS(loader, .batch = 10, .no_shuffle = true));
    for (int e = 0; e < 2; e++) {
        run(&a, loader, e, 0);
        assert_int_equal(a.samples, COUNT);
        for (int i = 0; i < COUNT; i++) assert_int_equal(a.indices[i], i);
    }
    assert_ok(tw_loader_start(loader, 0, 10));
    assert_int_equal(next(loader).count, 1);
    tw_loader_destroy(loader);

    loader = create(TW_OPTIONS(loader, .batch = 10, .drop_last = true, .workers = 2));
    assert_int_equal(tw_loader_count(loader), 10);
    run(&a, loader, 0, 0);
    assert_int_equal(a.samples, 100);
    tw_loader_destroy(loader);

    loader = create(TW_OPTIONS(loader, .batch = 1000)); /* larger than the data set */
    assert_int_equal(tw_loader_count(loader), 1);
    run(&a, loader, 0, 0);
    assert_permutation(&a);
    tw_loader_destroy(loader);
}

/* Rounded once from the exact value, of which 0.1307 and 0.3081 as floats are part. */
static void normalises_bytes(void **state) {
    (void)state;
    tw_loader *loader = create(TW_OPTIONS(loader, .no_shuffle = true, .batch = COUNT,
                                          .normalization = {3, {0.1307f, 0.5f, 0}, {0.3081f, 0, 2}}));
    run(&a, loader, 0, 0);
    for (int i = 0; i < COUNT * SAMPLE; i++) {
        const double x = bytes[i] / 255.0, expected[] = {(x - 0.1307f) / 0.3081f, x - 0.5, x / 2};
        assert_true(a.images[i] == (float)expected[i / PLANE % CHANNELS]);
    }
    tw_loader_destroy(loader);

    loader = create(TW_OPTIONS(loader, .no_shuffle = true, .batch = COUNT, .channels_last = true));
    run(&a, loader, 0, 0);
    for (int n = 0; n < COUNT; n++)
        for (int c = 0; c < CHANNELS; c++)
            for (int p = 0; p < PLANE; p++)
                assert_true(a.images[n * SAMPLE + p * CHANNELS + c] ==
                            (float)(bytes[n * SAMPLE + c * PLANE + p] / 255.0));
    tw_loader_destroy(loader);
}

static void normalises_floats_of_many_channels(void **state) {
    (void)state;
    enum { MANY = 20 };
    float pixels[2 * MANY];
    const int32_t two[] = {0, 1};
    tw_dataset *set;
    tw_loader *loader;
    for (int i = 0; i < 2 * MANY; i++) pixels[i] = (float)i - 3;
    assert_ok(tw_dataset_create_from(&set, context, TW_F32, pixels, 2, 1, 4, 5, two, NULL));
    assert_ok(tw_loader_create(&loader, set, TW_OPTIONS(loader, .no_shuffle = true, .normalization = {1, {2}, {4}})));
    assert_ok(tw_loader_start(loader, 0, 0));
    tw_batch batch = next(loader);
    for (int i = 0; i < 2 * MANY; i++) assert_true(batch.images[i] == ((float)i - 5) / 4);
    tw_loader_destroy(loader);
    tw_dataset_destroy(set);

    assert_ok(tw_dataset_create_from(&set, context, TW_F32, pixels, 2, MANY, 1, 1, two, NULL));
    assert_ok(tw_loader_create(&loader, set, TW_OPTIONS(loader, .no_shuffle = true)));
    assert_ok(tw_loader_start(loader, 0, 0));
    assert_memory_equal(next(loader).images, pixels, sizeof pixels);
    tw_loader_destroy(loader);
    tw_dataset_destroy(set);
}

/* The image that flipping and shifting by (down, right) must give, straight from the definition; zeros outside. */
static bool is_changed(const float *image, int64_t index, bool flip, int down, int right, bool channels_last) {
    for (int c = 0; c < CHANNELS; c++)
        for (int y = 0; y < HEIGHT; y++)
            for (int x = 0; x < WIDTH; x++) {
                const int row = y + down, column = x + right, source = flip ? WIDTH - 1 - column : column;
                const bool inside = row >= 0 && row < HEIGHT && column >= 0 && column < WIDTH;
                const uint8_t value = inside ? bytes[index * SAMPLE + c * PLANE + row * WIDTH + source] : 0;
                const int at = channels_last ? (y * WIDTH + x) * CHANNELS + c : c * PLANE + y * WIDTH + x;
                if (image[at] != (float)(value / 255.0)) return false;
            }
    return true;
}

/* Which change was made to each sample: numbered flip, down, right. */
static void find_changes(int changes[COUNT], const epoch *e, int padding, bool channels_last) {
    const int places = 2 * padding + 1;
    for (int i = 0; i < COUNT; i++) {
        const float *image = e->images + i * SAMPLE;
        int found = -1;
        for (int k = 0; k < 2 * places * places && found < 0; k++)
            if (is_changed(image, e->indices[i], k >= places * places, k / places % places - padding,
                           k % places - padding, channels_last))
                found = k;
        assert_true(found >= 0);
        changes[e->indices[i]] = found;
    }
}

static void flips_and_crops(void **state) {
    (void)state;
    enum { PADDING = 2, PLACES = 25 };
    int first[COUNT], second[COUNT], same = 0, like_neighbour = 0, flipped = 0, seen[2 * PLACES] = {0}, kinds = 0;
    for (int last = 0; last < 2; last++) {
        tw_loader *loader =
            create(TW_OPTIONS(loader, .seed = 3, .flip = true, .crop_padding = PADDING, .channels_last = last != 0));
        run(&a, loader, 4, 0);
        find_changes(last ? second : first, &a, PADDING, last);
        tw_loader_destroy(loader);
    }
    assert_memory_equal(first, second, sizeof first); /* the layout does not matter */
    tw_loader *loader =
        create(TW_OPTIONS(loader, .seed = 3, .flip = true, .crop_padding = PADDING, .workers = 3, .batch = 7));
    run(&a, loader, 4, 0);
    find_changes(second, &a, PADDING, false);
    assert_memory_equal(first, second, sizeof first); /* nor do workers and batch size */
    run(&a, loader, 5, 0);
    find_changes(second, &a, PADDING, false);
    for (int i = 0; i < COUNT; i++) {
        same += first[i] == second[i];
        like_neighbour += i && first[i] == first[i - 1];
        flipped += first[i] >= PLACES;
        kinds += !seen[first[i]]++;
    }
    assert_true(same < 9 && like_neighbour < 9); /* 2 of 101 are expected */
    assert_in_range(flipped, 30, 71);            /* 50.5 +- 4 standard deviations of 5 */
    assert_in_range(kinds, 35, 2 * PLACES);      /* 50 (1 - (49/50)^101) = 43.5 are expected */
    tw_loader_destroy(loader);
}

static void flips_alone_and_crops_alone(void **state) {
    (void)state;
    int changes[COUNT];
    tw_loader *loader = create(TW_OPTIONS(loader, .flip = true));
    run(&a, loader, 0, 0);
    find_changes(changes, &a, 0, false);
    tw_loader_destroy(loader);
    loader = create(TW_OPTIONS(loader, .crop_padding = WIDTH)); /* the most: a sample may leave the picture */
    run(&a, loader, 0, 0);
    find_changes(changes, &a, WIDTH, false);
    for (int i = 0; i < COUNT; i++) assert_true(changes[i] < (2 * WIDTH + 1) * (2 * WIDTH + 1)); /* none is flipped */
    tw_loader_destroy(loader);
}

static void any_number_of_workers_gives_the_same_bytes(void **state) {
    (void)state;
    static const int workers[] = {0, 1, 2, 4, 8}, prefetch[] = {0, 1, 3, 20};
    for (size_t w = 0; w < sizeof workers / sizeof *workers; w++)
        for (size_t p = 0; p < sizeof prefetch / sizeof *prefetch; p++) {
            tw_loader *loader = create(TW_OPTIONS(loader, .batch = 4, .seed = 5, .flip = true, .crop_padding = 1,
                                                  .workers = workers[w], .prefetch = prefetch[p]));
            for (int e = 0; e < 3; e++) run(w || p ? &b : &a, loader, e, 0);
            if (w || p) assert_memory_equal(&a, &b, sizeof a);
            tw_loader_destroy(loader);
        }
}

static void starts_anywhere_at_any_time(void **state) {
    (void)state;
    for (int workers = 0; workers < 3; workers++) {
        tw_loader *loader = create(TW_OPTIONS(loader, .batch = 10, .seed = 9, .flip = true, .workers = workers));
        run(&a, loader, 2, 0);
        for (int first = 0; first <= 11; first++) {
            assert_ok(tw_loader_start(loader, 7, 0)); /* another epoch, left in the middle */
            for (int i = 0; i < first % 4; i++) (void)next(loader);
            run(&b, loader, 2, first);
            const int skipped = first * 10 < COUNT ? first * 10 : COUNT;
            assert_int_equal(b.samples, COUNT - skipped);
            assert_memory_equal(b.indices, a.indices + skipped, (size_t)b.samples * sizeof *b.indices);
            assert_memory_equal(b.images, a.images + skipped * SAMPLE, (size_t)b.samples * SAMPLE * sizeof(float));
        }
        tw_loader_destroy(loader);
    }
}

static void a_batch_stays_until_the_next_call(void **state) {
    (void)state;
    tw_loader *loader = create(TW_OPTIONS(loader, .batch = 8, .workers = 4, .prefetch = 1));
    assert_ok(tw_loader_start(loader, 0, 0));
    for (tw_batch batch = next(loader); batch.count; batch = next(loader)) {
        float sum = 0;
        for (int round = 0; round < 200; round++) sum += batch.images[round % (batch.count * SAMPLE)];
        assert_true(isfinite(sum));
        for (int i = 0; i < batch.count; i++)
            assert_true(batch.images[i * SAMPLE] == (float)(bytes[batch.indices[i] * SAMPLE] / 255.0));
    }
    tw_loader_destroy(loader);
    loader = create(TW_OPTIONS(loader, .batch = 8, .workers = 4));
    assert_ok(tw_loader_start(loader, 0, 0));
    (void)next(loader);
    tw_loader_destroy(loader); /* in the middle, with workers at it */
    tw_loader_destroy(NULL);
}

static void running_takes_no_memory(void **state) {
    (void)state;
    for (int workers = 0; workers < 3; workers++) {
        tw_loader *loader = create(TW_OPTIONS(loader, .batch = 9, .flip = true, .crop_padding = 2, .workers = workers));
        const uint64_t before = twi_memory_get_stats(context->memory).allocations;
        for (int e = 0; e < 2; e++) run(&a, loader, e, 0);
        assert_int_equal(twi_memory_get_stats(context->memory).allocations, before);
        tw_loader_destroy(loader);
    }
}

static void wrong_options(void **state) {
    (void)state;
    static const struct {
        tw_loader_options options;
        const char *text;
    } cases[] = {
#define CASE(text, ...) {{.size = sizeof(tw_loader_options), __VA_ARGS__}, text}
        CASE("batch is -1", .batch = -1),
        CASE("workers is -1", .workers = -1),
        CASE("workers is 100000", .workers = 100000),
        CASE("prefetch is -2", .prefetch = -2),
        CASE("crop_padding is 6; give 0 .. 5", .crop_padding = 6),
        CASE("crop_padding is -1", .crop_padding = -1),
        CASE("given for 1 channels, the data set has 3", .normalization = {1, {0}, {1}}),
        CASE("given for -3 channels", .normalization = {-3, {0}, {1}}),
        CASE("normalization of channel 2: mean 0 and deviation -1", .normalization = {3, {0}, {1, 1, -1}}),
        CASE("normalization of channel 0: mean inf", .normalization = {3, {INFINITY}, {1, 1, 1}}),
        CASE("drop_last leaves no batch: batch is 102, the data set has 101", .batch = 102, .drop_last = true),
    };
    const uint64_t blocks = twi_memory_get_stats(context->memory).blocks;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tw_loader *loader = (void *)1;
        assert_int_equal(tw_loader_create(&loader, dataset, &cases[i].options), TW_ERROR_ARGUMENT);
        if (!strstr(tw_last_error(), cases[i].text)) fail_msg("'%s' lacks '%s'", tw_last_error(), cases[i].text);
        assert_null(loader);
        assert_int_equal(twi_memory_get_stats(context->memory).blocks, blocks);
    }
    tw_loader *loader;
    assert_int_equal(tw_loader_create(&loader, NULL, NULL), TW_ERROR_ARGUMENT);
    tw_batch batch;
    loader = create(NULL);
    assert_int_equal(tw_loader_count(loader), 2); /* of 64 samples */
    assert_int_equal(tw_loader_next(loader, &batch), TW_ERROR_STATE);
    assert_int_equal(tw_loader_start(loader, -1, 0), TW_ERROR_ARGUMENT);
    assert_int_equal(tw_loader_start(loader, 0, 3), TW_ERROR_ARGUMENT);
    assert_non_null(strstr(tw_last_error(), "first_batch is 3"));
    assert_ok(tw_loader_start(loader, 0, 0));
    assert_int_equal(next(loader).count, 64);
    tw_loader_destroy(loader);
}

static bool fail_one(void *user, uint64_t index, size_t size) {
    (void)size;
    return index == *(const uint64_t *)user;
}

static void failing_allocations(void **state) {
    (void)state;
    const uint64_t blocks = twi_memory_get_stats(context->memory).blocks;
    tw_status status = TW_ERROR_OUT_OF_MEMORY;
    uint64_t failing = 0;
    for (; status; failing++) {
        tw_loader *loader;
        assert_true(failing < 100);
        twi_memory_set_hook(context->memory, fail_one, &failing);
        status = tw_loader_create(&loader, dataset, TW_OPTIONS(loader, .workers = 2, .batch = 4));
        twi_memory_set_hook(context->memory, NULL, NULL);
        assert_true(status == TW_OK || (status == TW_ERROR_OUT_OF_MEMORY && !loader));
        tw_loader_destroy(loader);
        assert_int_equal(twi_memory_get_stats(context->memory).blocks, blocks);
    }
    assert_true(failing > 15);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_epoch_is_another_permutation),
        cmocka_unit_test(every_order_is_equally_likely),
        cmocka_unit_test(evaluation_keeps_the_order_and_the_tail),
        cmocka_unit_test(normalises_bytes),
        cmocka_unit_test(normalises_floats_of_many_channels),
        cmocka_unit_test(flips_and_crops),
        cmocka_unit_test(flips_alone_and_crops_alone),
        cmocka_unit_test(any_number_of_workers_gives_the_same_bytes),
        cmocka_unit_test(starts_anywhere_at_any_time),
        cmocka_unit_test(a_batch_stays_until_the_next_call),
        cmocka_unit_test(running_takes_no_memory),
        cmocka_unit_test(wrong_options),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests_name("loader", tests, open_context, close_context);
}
