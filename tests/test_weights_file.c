/* Weight files and models: PyTorch's files in, ours out, what does not fit, and writing that fails half-way. */
#define _GNU_SOURCE
#include "check.h"
#include "data_files.h"
#include "golden/weights_from_torch.h"
#include "io/safetensors.h"
#include "small_task.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char log_text[4096];

static void keep_log(void *user, tw_log_level level, const char *message) {
    (void)user;
    if (level <= TW_LOG_WARNING)
        snprintf(log_text + strlen(log_text), sizeof log_text - strlen(log_text), "%s\n", message);
}

static int open_logged(void **state) {
    (void)state;
    log_text[0] = 0;
    if (make_folder(state)) return -1;
    return tw_context_create(&task_context, check_device_or_cpu(),
                             TW_OPTIONS(context, .threads = 1, .log = keep_log, .log_level = TW_LOG_INFO));
}

static int close_logged(void **state) {
    uint64_t blocks = tw_context_get_memory(task_context).blocks;
    static uint64_t empty;
    tw_context *fresh;
    CHECK_OK(tw_context_create(&fresh, check_device_or_cpu(), TW_OPTIONS(context, .threads = 1)));
    empty = tw_context_get_memory(fresh).blocks;
    tw_context_destroy(fresh);
    tw_context_destroy(task_context);
    if (check_device()) blocks = empty; /* a device remembers choices until its context goes */
    if (blocks != empty) print_error("%d blocks of memory are left\n", (int)(blocks - empty));
    return remove_folder(state) || blocks != empty;
}
#define logged(test) cmocka_unit_test_setup_teardown(test, open_logged, close_logged)

/* The network of golden/make_safetensors.py. */
static tw_model *torch_model(void) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_input(model, 2, 4, 4);
    x = tw_conv2d(model, x, 3, 3, TW_OPTIONS(conv2d, .kernel_w = 2, .padding = 1));
    x = tw_dense(model, tw_relu(model, tw_batch_norm(model, x, NULL)), 2, NULL);
    CHECK_OK(tw_model_build(model, x, TW_OPTIONS(model, .seed = 5)));
    return model;
}

static const char *put_bytes(const char *name, const void *bytes, size_t size) {
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    return path_of(name);
}

static unsigned char *get_bytes(const char *path, size_t *size) {
    enum { MOST = 1 << 20 };
    FILE *file = fopen(path, "rb");
    unsigned char *bytes = malloc(MOST);
    assert_true(file && bytes);
    *size = fread(bytes, 1, MOST, file);
    fclose(file);
    return bytes;
}

static int files_in_folder(void) {
    int count = -2; /* . and .. */
    DIR *listing = opendir(path_of(""));
    assert_non_null(listing);
    while (readdir(listing)) count++;
    closedir(listing);
    return count;
}

static void predict(tw_model *model, const float *x, int64_t count, float *y, int64_t results) {
    tw_program *program;
    tw_value *output = tw_model_get_output(model);
    CHECK_OK(tw_program_create(&program, model, 2, TW_OPTIONS(program, .outputs = &output, .output_count = 1)));
    CHECK_OK(tw_program_write(program, tw_model_get_input(model), TW_F32, x, count));
    CHECK_OK(tw_program_run(program));
    CHECK_OK(tw_program_read(program, output, y, results));
    tw_program_destroy(program);
}

/* ---- PyTorch's files ---- */

static void load_from_torch(const void *bytes, size_t size) {
    tw_model *model = torch_model();
    float weight[3 * 2 * 3 * 2], var[3], batches, y[4];
    CHECK_OK(tw_model_load(model, put_bytes("torch.safetensors", bytes, size), NULL));
    CHECK_OK(tw_parameter_read(model, "conv1.weight", weight, 36));
    assert_memory_equal(weight, torch_weight, sizeof weight);
    CHECK_OK(tw_parameter_read(model, "bn1.running_var", var, 3));
    assert_memory_equal(var, torch_var, sizeof var);
    CHECK_OK(tw_parameter_read(model, "bn1.num_batches_tracked", &batches, 1));
    assert_true(batches == 7);
    predict(model, torch_x, 64, y, 4);
    for (int i = 0; i < 4; i++) assert_true(fabsf(y[i] - torch_y[i]) < 1e-5f * 17); /* 17: the largest of the outputs */
    tw_model_destroy(model);
}

static void test_files_from_torch(void **state) {
    (void)state;
    load_from_torch(torch_f32, sizeof torch_f32);
    load_from_torch(torch_f16, sizeof torch_f16);
    load_from_torch(torch_bf16, sizeof torch_bf16);
}

/* A program made before the load computes with the new weights. */
static void test_programs_see_loaded_weights(void **state) {
    (void)state;
    tw_model *model = torch_model();
    tw_value *output = tw_model_get_output(model);
    tw_program *program;
    float y[4];
    CHECK_OK(tw_program_create(&program, model, 2, TW_OPTIONS(program, .outputs = &output, .output_count = 1)));
    CHECK_OK(tw_program_write(program, tw_model_get_input(model), TW_F32, torch_x, 64));
    CHECK_OK(tw_program_run(program));
    CHECK_OK(tw_model_load(model, put_bytes("torch.safetensors", torch_f32, sizeof torch_f32), NULL));
    CHECK_OK(tw_program_run(program));
    CHECK_OK(tw_program_read(program, output, y, 4));
    for (int i = 0; i < 4; i++) assert_true(fabsf(y[i] - torch_y[i]) < 1e-5f * 17);
    tw_program_destroy(program);
    tw_model_destroy(model);
}

/* ---- our files ---- */

static void test_saved_files_look_like_torchs(void **state) {
    (void)state;
    tw_model *model = torch_model();
    twi_tensor_file ours, torchs;
    size_t size;
    CHECK_OK(tw_model_load(model, put_bytes("torch.safetensors", torch_f32, sizeof torch_f32), NULL));
    CHECK_OK(tw_model_save(model, path_of("ours.safetensors")));
    unsigned char *bytes = get_bytes(path_of("ours.safetensors"), &size);
    assert_int_equal(size - (8 + bytes[0] + 256 * (size_t)bytes[1]),
                     sizeof torch_f32 - (8 + torch_f32[0] + 256 * torch_f32[1]));
    assert_int_equal((bytes[0] + 256 * bytes[1]) % 8, 0); /* aligned data */
    assert_memory_equal(bytes + 8, "{\"__metadata__\":{\"format\":\"pt\"},", 32);
    free(bytes);
    CHECK_OK(twi_tensor_file_open(&ours, context->memory, path_of("ours.safetensors")));
    CHECK_OK(twi_tensor_file_open(&torchs, context->memory, path_of("torch.safetensors")));
    assert_int_equal(ours.count, torchs.count);
    for (int i = 0; i < ours.count; i++) {
        int k = 0;
        unsigned char one[1024], other[1024];
        while (k < torchs.count && strcmp(torchs.entry[k].name, ours.entry[i].name) != 0) k++;
        assert_true(k < torchs.count);
        assert_int_equal(ours.entry[i].dtype, torchs.entry[k].dtype);
        assert_true(twi_shape_equal(&ours.entry[i].shape, &torchs.entry[k].shape));
        CHECK_OK(twi_tensor_file_read(&ours, &ours.entry[i], one));
        CHECK_OK(twi_tensor_file_read(&torchs, &torchs.entry[k], other));
        assert_memory_equal(one, other, ours.entry[i].end - ours.entry[i].begin);
    }
    twi_tensor_file_close(&ours);
    twi_tensor_file_close(&torchs);
    tw_model_destroy(model);
}

static void test_every_bit_comes_back(void **state) {
    (void)state;
    static const uint32_t odd[6] = {0x80000000, 0x00000001, 0x7F800000, 0xFF800000, 0x7FC12345, 0x3F800001};
    tw_model *model = torch_model(), *other = task_plain_model(task_context, 1), *same = torch_model();
    float values[6];
    size_t count;
    memcpy(values, odd, sizeof odd);
    CHECK_OK(tw_parameter_write(model, "fc1.bias", values, 2));
    CHECK_OK(tw_parameter_write(model, "bn1.running_mean", values + 2, 3));
    CHECK_OK(tw_model_save(model, path_of("a.safetensors")));
    CHECK_OK(tw_parameter_write(same, "fc1.bias", (float[]){3, 4}, 2));
    CHECK_OK(tw_model_load(same, path_of("a.safetensors"), NULL));
    float *before = task_parameters(model, &count);
    assert_true(task_unchanged(same, before));
    free(before);
    /* saving again gives the same bytes, over what was there */
    CHECK_OK(tw_model_save(same, path_of("b.safetensors")));
    CHECK_OK(tw_model_save(same, path_of("b.safetensors")));
    size_t sizes[2];
    char first[256];
    snprintf(first, sizeof first, "%s", path_of("a.safetensors"));
    unsigned char *a = get_bytes(first, &sizes[0]), *b = get_bytes(path_of("b.safetensors"), &sizes[1]);
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(a, b, sizes[0]);
    free(a);
    free(b);
    assert_int_equal(files_in_folder(), 2);
    tw_model_destroy(model);
    tw_model_destroy(other);
    tw_model_destroy(same);
}

static void test_odd_names_come_back(void **state) {
    (void)state;
    tw_model *model, *other;
    tw_model **const both[] = {&model, &other};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tw_model_create(both[i], task_context));
        tw_value *x = tw_input_shaped(*both[i], "x", 1, (int64_t[]){2});
        x = tw_dense(*both[i], x, 2, TW_OPTIONS(dense, .name = "a \"quoted\\name\"\n\x01"));
        x = tw_dense(*both[i], x, 2, TW_OPTIONS(dense, .name = "\xC3\xA9\xE2\x82\xAC"));
        CHECK_OK(tw_model_build(*both[i], x, TW_OPTIONS(model, .seed = (uint64_t)i)));
    }
    size_t count;
    CHECK_OK(tw_model_save(model, path_of("a.safetensors")));
    CHECK_OK(tw_model_load(other, path_of("a.safetensors"), NULL));
    float *values = task_parameters(model, &count);
    assert_true(task_unchanged(other, values));
    free(values);
    tw_model_destroy(model);
    tw_model_destroy(other);
}

/* ---- what does not fit ---- */

/* Two dense layers in -> hidden -> out, named. */
static tw_model *two_layers(const char *first, int64_t in, int64_t hidden, int64_t out) {
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    tw_value *x = tw_dense(model, tw_input_shaped(model, "x", 1, &in), hidden, TW_OPTIONS(dense, .name = first));
    x = tw_dense(model, x, out, TW_OPTIONS(dense, .name = "head"));
    CHECK_OK(tw_model_build(model, x, TW_OPTIONS(model, .seed = (uint64_t)(hidden + out))));
    return model;
}

static void assert_misfit(tw_model *model, const char *const *says) {
    size_t count;
    float *before = task_parameters(model, &count);
    assert_int_equal(tw_model_load(model, path_of("a.safetensors"), NULL), TW_ERROR_MISMATCH);
    for (; *says; says++)
        if (!strstr(tw_last_error(), *says)) fail_msg("\"%s\" does not say \"%s\"", tw_last_error(), *says);
    assert_true(task_unchanged(model, before));
    free(before);
    tw_model_destroy(model);
}

static void test_misfits_are_listed(void **state) {
    (void)state;
    tw_model *model = two_layers("body", 5, 4, 10);
    CHECK_OK(tw_model_save(model, path_of("a.safetensors")));
    tw_model_destroy(model);
    assert_misfit(two_layers("body", 5, 4, 3),
                  (const char *[]){"2 fit", "0 missing, 0 unexpected, 2 mismatched",
                                   "mismatched 'head.weight' (file F32 [10, 4], model [3, 4])",
                                   "mismatched 'head.bias' (file F32 [10], model [3])", "unchanged", "partial",
                                   path_of(""), NULL});
    assert_misfit(two_layers("trunk", 5, 4, 10),
                  (const char *[]){"2 fit, 2 missing, 2 unexpected, 0 mismatched", "missing 'trunk.weight'",
                                   "missing 'trunk.bias'", "unexpected 'body.weight'", "unexpected 'body.bias'", NULL});
    assert_misfit(two_layers("body", 4, 5, 10), /* [5, 4] for [4, 5]: as many numbers */
                  (const char *[]){"1 fit, 0 missing, 0 unexpected, 3 mismatched",
                                   "mismatched 'body.weight' (file F32 [4, 5], model [5, 4])", NULL});
    assert_misfit(task_model(task_context, 1), /* far from it: the first of each kind, and the counts */
                  (const char *[]){"0 fit, 9 missing, 4 unexpected, 0 mismatched", "missing 'conv1.weight'",
                                   "and more missing", "unexpected 'head.bias'", "another network's file", NULL});
}

/* Everything the model has is there, and one layer more. */
static void test_a_tensor_too_many(void **state) {
    (void)state;
    tw_model *model = two_layers("body", 5, 4, 3), *part;
    CHECK_OK(tw_model_save(model, path_of("a.safetensors")));
    tw_model_destroy(model);
    CHECK_OK(tw_model_create(&part, task_context));
    tw_value *x = tw_input_shaped(part, "x", 1, (int64_t[]){5});
    CHECK_OK(tw_model_build(part, tw_dense(part, x, 4, TW_OPTIONS(dense, .name = "body")), NULL));
    CHECK_OK(tw_model_load(part, path_of("a.safetensors"), TW_OPTIONS(load, .partial = true)));
    assert_non_null(strstr(log_text, "loaded 2 of 2 parameters: unexpected 'head.weight', unexpected 'head.bias'"));
    assert_misfit(part,
                  (const char *[]){"2 fit, 0 missing, 2 unexpected, 0 mismatched", "unexpected 'head.bias'", NULL});
}

static void test_types_that_do_not_fit(void **state) {
    (void)state;
    static const char header[] = "{\"head.bias\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                                 "\"body.weight\":{\"dtype\":\"U8\",\"shape\":[1,1],\"data_offsets\":[8,9]}}";
    char bytes[8 + sizeof header - 1 + 9] = {(char)(sizeof header - 1)};
    memcpy(bytes + 8, header, sizeof header - 1);
    put_bytes("a.safetensors", bytes, sizeof bytes);
    assert_misfit(two_layers("body", 1, 1, 2), (const char *[]){"mismatched 'head.bias' (file I32 [2], model [2])",
                                                                "'body.weight' (file U8 [1, 1]", NULL});
}

static void test_partial_loading(void **state) {
    (void)state;
    tw_model *model = two_layers("body", 5, 4, 10), *other = two_layers("body", 5, 4, 3);
    float body[20], loaded[20], head[12], kept[12];
    CHECK_OK(tw_model_save(model, path_of("a.safetensors")));
    CHECK_OK(tw_parameter_read(model, "body.weight", body, 20));
    CHECK_OK(tw_parameter_read(other, "head.weight", head, 12));
    CHECK_OK(tw_model_load(other, path_of("a.safetensors"), TW_OPTIONS(load, .partial = true)));
    CHECK_OK(tw_parameter_read(other, "body.weight", loaded, 20));
    CHECK_OK(tw_parameter_read(other, "head.weight", kept, 12));
    assert_memory_equal(loaded, body, sizeof body);
    assert_memory_equal(kept, head, sizeof head);
    assert_non_null(strstr(log_text, "loaded 2 of 4 parameters"));
    assert_non_null(strstr(log_text, "mismatched 'head.weight' (file F32 [10, 4], model [3, 4])"));
    tw_model_destroy(other);
    /* nothing at all fits: that is no partial success */
    other = task_plain_model(task_context, 1);
    CHECK_FAILS(tw_model_load(other, path_of("a.safetensors"), TW_OPTIONS(load, .partial = true)), TW_ERROR_MISMATCH,
                "0 fit");
    /* what is broken is broken partially, too */
    CHECK_FAILS(
        tw_model_load(model, put_bytes("cut", torch_f32, sizeof torch_f32 - 1), TW_OPTIONS(load, .partial = true)),
        TW_ERROR_FORMAT, "beyond the end");
    tw_model_destroy(model);
    tw_model_destroy(other);
}

static void test_arguments(void **state) {
    (void)state;
    tw_model *model;
    CHECK_OK(tw_model_create(&model, task_context));
    CHECK_FAILS(tw_model_save(NULL, "x"), TW_ERROR_ARGUMENT, "NULL");
    CHECK_FAILS(tw_model_save(model, NULL), TW_ERROR_ARGUMENT, "NULL");
    CHECK_FAILS(tw_model_load(NULL, "x", NULL), TW_ERROR_ARGUMENT, "NULL");
    CHECK_FAILS(tw_model_load(model, NULL, NULL), TW_ERROR_ARGUMENT, "NULL");
    CHECK_FAILS(tw_model_save(model, path_of("x")), TW_ERROR_STATE, "not built");
    CHECK_FAILS(tw_model_load(model, path_of("x"), NULL), TW_ERROR_STATE, "build the model first");
    assert_int_equal(files_in_folder(), 0);
    tw_model_destroy(model);
}

/* ---- writing that fails ---- */

/* The file that was there is intact and alone. */
static void assert_old_file_stands(tw_model *model, const unsigned char *old, size_t old_size, int files) {
    size_t size;
    unsigned char *now = get_bytes(path_of("a.safetensors"), &size);
    assert_int_equal(size, old_size);
    assert_memory_equal(now, old, size);
    free(now);
    assert_int_equal(files_in_folder(), files);
    CHECK_OK(tw_model_load(model, path_of("a.safetensors"), NULL));
}

static void test_full_disk(void **state) {
    (void)state;
    tw_model *model = two_layers("body", 50, 40, 10);
    size_t size;
    CHECK_OK(tw_model_save(model, path_of("a.safetensors")));
    unsigned char *old = get_bytes(path_of("a.safetensors"), &size);
    CHECK_OK(tw_parameter_write(model, "head.bias", (float[10]){1}, 10));
    /* a limit on the size of files stands for the disk that fills up on the way */
    struct rlimit limit, low;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    for (low = limit, low.rlim_cur = 0; low.rlim_cur < size; low.rlim_cur += size / 7) {
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
        tw_status status = tw_model_save(model, path_of("a.safetensors"));
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        assert_int_equal(status, TW_ERROR_FILE);
        assert_non_null(strstr(tw_last_error(), "File too large"));
        assert_non_null(strstr(tw_last_error(), path_of("a.safetensors")));
        assert_old_file_stands(model, old, size, 1);
    }
    /* a device is written to, not replaced: through a link, lest a defect costs the machine its device */
    assert_int_equal(symlink("/dev/full", path_of("full")), 0);
    CHECK_FAILS(tw_model_save(model, path_of("full")), TW_ERROR_FILE, "No space left on device");
    struct stat info;
    assert_int_equal(lstat(path_of("full"), &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    free(old);
    tw_model_destroy(model);
}

static void test_full_file_system(void **state) {
    (void)state;
    assert_int_equal(mkdir(path_of("disk"), 0700), 0);
    if (mount("tmpfs", path_of("disk"), "tmpfs", 0, "size=64k")) {
        print_message("skipped: mounting a small file system needs rights that are lacking here\n");
        return;
    }
    tw_model *model = two_layers("body", 100, 100, 10); /* 44 KB: one fits, a second one does not */
    tw_status first = tw_model_save(model, path_of("disk/a.safetensors"));
    tw_status second = tw_model_save(model, path_of("disk/a.safetensors"));
    bool says = strstr(tw_last_error(), "No space left on device") != NULL;
    tw_status loaded = tw_model_load(model, path_of("disk/a.safetensors"), NULL);
    assert_int_equal(umount(path_of("disk")), 0);
    assert_int_equal(first, TW_OK);
    assert_int_equal(second, TW_ERROR_FILE);
    assert_true(says);
    assert_int_equal(loaded, TW_OK);
    tw_model_destroy(model);
}

static void test_places_that_cannot_be_written(void **state) {
    (void)state;
    tw_model *model = two_layers("body", 5, 4, 3);
    CHECK_FAILS(tw_model_save(model, path_of("absent/a.safetensors")), TW_ERROR_FILE, "No such file");
    CHECK_FAILS(tw_model_save(model, path_of("")), TW_ERROR_FILE, "Is a directory");
    CHECK_FAILS(tw_model_save(model, ""), TW_ERROR_FILE, "cannot");
    assert_int_equal(mkdir(path_of("closed"), 0500), 0);
    assert_int_equal(chmod(path_of(".."), 0755), 0);
    assert_int_equal(chmod(path_of(""), 0755), 0);
    bool root = geteuid() == 0; /* who may write anywhere */
    if (root && seteuid(65534)) root = false;
    tw_status status = tw_model_save(model, path_of("closed/a.safetensors"));
    if (root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(status, TW_ERROR_FILE);
    assert_non_null(strstr(tw_last_error(), "Permission denied"));
    assert_int_equal(files_in_folder(), 1);
    tw_model_destroy(model);
}

static void test_leftovers_of_a_killed_run(void **state) {
    (void)state;
    tw_model *model = two_layers("body", 5, 4, 3);
    size_t size;
    char left[64];
    CHECK_OK(tw_model_save(model, path_of("a.safetensors")));
    for (int i = 0; i < 3; i++) {
        snprintf(left, sizeof left, ".talweg-%ld-%d.tmp", (long)getpid(), i);
        put_bytes(left, "half", 4);
    }
    unsigned char *old = get_bytes(path_of("a.safetensors"), &size);
    CHECK_OK(tw_model_save(model, path_of("a.safetensors")));
    assert_old_file_stands(model, old, size, 4);
    free(old);
    tw_model_destroy(model);
}

/* Kill -9 while saving: whatever the instant, a whole file is there. */
static void test_killed_while_saving(void **state) {
    (void)state;
    tw_model *model = two_layers("body", 100, 100, 10);
    CHECK_OK(tw_model_save(model, path_of("a.safetensors")));
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        assert_true(child >= 0);
        while (child == 0)
            if (tw_model_save(model, path_of("a.safetensors"))) _exit(1);
        usleep((useconds_t)(500 + 700 * round));
        assert_int_equal(kill(child, SIGKILL), 0);
        int result;
        assert_int_equal(waitpid(child, &result, 0), child);
        assert_true(WIFSIGNALED(result));
        CHECK_OK(tw_model_load(model, path_of("a.safetensors"), NULL));
    }
    tw_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        logged(test_files_from_torch),
        logged(test_programs_see_loaded_weights),
        logged(test_saved_files_look_like_torchs),
        logged(test_every_bit_comes_back),
        logged(test_odd_names_come_back),
        logged(test_misfits_are_listed),
        logged(test_a_tensor_too_many),
        logged(test_types_that_do_not_fit),
        logged(test_partial_loading),
        logged(test_arguments),
        logged(test_full_disk),
        logged(test_full_file_system),
        logged(test_places_that_cannot_be_written),
        logged(test_leftovers_of_a_killed_run),
        logged(test_killed_while_saving),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
