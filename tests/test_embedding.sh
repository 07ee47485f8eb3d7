#!/usr/bin/env bash
# The library inside a program that is not written around it: names of the program's own stay its own, linked static or
# shared; models may outlive main and be used while it exits; the library can be opened and closed again and again.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
    echo "$*"
    exit 1
}

cat >task.h <<'END'
#include <talweg/talweg.h>
#include <stdio.h>

/* A network, a training step, a file: enough to pull in most of the library. 0 if all went well. */
static tw_context *context;
static tw_model *model;
static tw_program *predict;

static int train(const char *path) {
    tw_optimizer_options sgd = TW_OPTIMIZER_OPTIONS_INIT;
    tw_program_options options = TW_PROGRAM_OPTIONS_INIT, plain = TW_PROGRAM_OPTIONS_INIT;
    static float x[4 * 64];
    const int32_t y[4] = {0, 1, 2, 0};
    tw_program *program;
    if (tw_context_create(&context, "cpu", NULL) || tw_model_create(&model, context)) return 1;
    tw_value *output = tw_conv2d(model, tw_input(model, 1, 8, 8), 16, 3, NULL);
    output = tw_dense(model, tw_relu(model, tw_batch_norm(model, output, NULL)), 3, NULL);
    tw_value *labels = tw_input_labels(model, "labels");
    const tw_loss loss = {tw_cross_entropy(model, output, labels, NULL), 1};
    if (tw_model_build(model, output, NULL)) return 2;
    options.train = true;
    options.losses = &loss;
    options.loss_count = plain.output_count = 1;
    options.optimizer = &sgd;
    plain.outputs = &output;
    if (tw_program_create(&program, model, 4, &options) || tw_program_create(&predict, model, 4, &plain)) return 3;
    if (tw_program_write(program, tw_model_get_input(model), TW_F32, x, 4 * 64)) return 4;
    if (tw_program_write(program, labels, TW_I32, y, 4) || tw_program_run(program)) return 5;
    tw_program_destroy(program);
    return tw_model_save(model, path) || tw_model_load(model, path, NULL) ? 6 : 0;
}

static int classify(void) {
    static float x[4 * 64], y[4 * 3];
    return tw_program_write(predict, tw_model_get_input(model), TW_F32, x, 4 * 64) || tw_program_run(predict) ||
           tw_program_read(predict, tw_model_get_output(model), y, 12);
}

static void finish(void) {
    tw_program_destroy(predict);
    tw_model_destroy(model);
    tw_context_destroy(context);
}
END

# The program's own functions of names that libraries like to take. Each is called by it, and by nobody else.
cat >names.c <<'END'
#include "task.h"
static int calls;
#define OWN(name) int name(void); int name(void) { return ++calls; }
OWN(crc32) OWN(inflate) OWN(log_error) OWN(read_file) OWN(fail) OWN(die) OWN(error) OWN(stbi_load) OWN(relu) OWN(conv2d)
OWN(softmax) OWN(context_create) OWN(model_create) OWN(backward) OWN(forward) OWN(sgd) OWN(adamw) OWN(philox) OWN(sgemm)
OWN(thread_pool) OWN(memory_get) OWN(json_parse) OWN(check) OWN(bind) OWN(status) OWN(tensor) OWN(twi) OWN(gemm)

int main(void) {
    int result = train("names.safetensors");
    if (!result) result = classify();
    finish();
    if (result || calls) return printf("%d: %s; %d calls of the program's own\n", result, tw_last_error(), calls), 1;
    crc32(), log_error(), read_file(), stbi_load(), fail(), error();
    return calls == 6 ? 0 : 1;
}
END

# Used once more while the process exits; never destroyed.
cat >exits.c <<'END'
#include "task.h"
#include <stdlib.h>
static void at_exit(void) {
    if (classify()) _Exit(7);
}
int main(void) { return atexit(at_exit) || train("exits.safetensors"); }
END

# Ends with the main thread gone first.
cat >threads.c <<'END'
#include "task.h"
#include <pthread.h>
#include <stdlib.h>
static void *last(void *main_thread) {
    pthread_join(*(pthread_t *)main_thread, NULL);
    int result = train("threads.safetensors") || classify();
    exit(result);
}
int main(void) {
    static pthread_t self, other;
    self = pthread_self();
    if (pthread_create(&other, NULL, last, &self)) return 8;
    pthread_exit(NULL);
}
END

# Opened, used, closed.
cat >reopen.c <<'END'
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
int main(int count, char **arguments) {
    for (int round = 0; count == 2 && round < 50; round++) {
        void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
        if (!library) return puts(dlerror()), 1;
        int (*create)(void **, const char *, const void *) = (int (*)(void **, const char *, const void *))dlsym(library, "tw_context_create");
        void (*destroy)(void *) = (void (*)(void *))dlsym(library, "tw_context_destroy");
        void *context;
        if (!create || !destroy || create(&context, "cpu", NULL)) return 2;
        destroy(context);
        dlclose(library);
    }
    return 0;
}
END

archive=$TALWEG_BUILD_DIR/lib/libtalweg.a
shared=$TALWEG_BUILD_DIR/lib
include="-I$TALWEG_SOURCE_DIR/include"
# What the archive itself needs is in the pkg-config file.
private=$(sed -n 's/^Libs.private: *//p' "$TALWEG_BUILD_DIR/src/talweg.pc")

run() {
    local output status=0
    output=$("$@" 2>&1) || status=$?
    [ "$status" = 0 ] || fail "$*: exit status $status: $output"
    [ -z "$output" ] || fail "$*: output of a silent program: $output"
}

for host in names exits threads; do
    "$TALWEG_CC" -std=c11 -D_GNU_SOURCE $include $host.c -o static-$host "$archive" $private -lpthread -lm
    "$TALWEG_CC" -std=c11 -D_GNU_SOURCE $include $host.c -o shared-$host -L"$shared" -ltalweg -Wl,-rpath,"$shared" -lpthread
    run ./static-$host
    run ./shared-$host
done

"$TALWEG_CC" -std=c11 -D_GNU_SOURCE reopen.c -o reopen -ldl
run ./reopen "$shared/libtalweg.so"

# A global object of a C++ program, destroyed after main.
if command -v c++ >/dev/null; then
    cat >global.cpp <<'END'
#include "task.h"
struct net {
    int result;
    net() : result(train("global.safetensors")) {}
    ~net() {
        if (classify()) fputs("classify failed\n", stderr);
        finish();
    }
};
static net global;
int main() { return global.result; }
END
    c++ -std=c++17 $include global.cpp -o global -L"$shared" -ltalweg -Wl,-rpath,"$shared"
    run ./global
fi
