#!/usr/bin/env bash
# The program talweg: what it prints, where, and its exit status, with a GPU's driver missing or a stand-in.
set -u
program=${TALWEG_BUILD_DIR:?}/bin/talweg
driver=$TALWEG_BUILD_DIR/tests/libfinding_driver.so
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
export TALWEG_CUDA_DRIVER=/nowhere/libcuda.so.1
unset TALWEG_CUDA_PLUGIN

fail() {
    echo "FAILED: $*"
    sed 's/^/    /' "$work/out" "$work/err"
    failures=$((failures + 1))
}
expect() { # status arguments...
    local status=0
    "$program" "${@:2}" >"$work/out" 2>"$work/err" </dev/null || status=$?
    [ "$status" = "$1" ] || fail "talweg ${*:2}: exit status $status, expected $1"
}
says() { grep -qF -- "$2" "$work/$1" || fail "no '$2' in $1"; }
silent() { [ ! -s "$work/$1" ] || fail "something in $1"; }

# ---- the command line ----

version=$(sed -nE 's/^#define TW_VERSION_(MAJOR|MINOR|PATCH) //p' "$TALWEG_SOURCE_DIR/include/talweg/base.h" | paste -sd.)
expect 0 --version && silent err
[ "$(cat "$work/out")" = "talweg $version" ] || fail "not version $version"
expect 0 --help && says out 'usage: talweg COMMAND' && says out '  doctor ' && silent err
expect 0 doctor --help && says out 'usage: talweg doctor' && says out TALWEG_CUDA_DRIVER && silent err
expect 2 && says err 'usage: talweg COMMAND' && silent out
expect 2 frobnicate && says err "there is no command 'frobnicate'" && says err 'usage: talweg COMMAND' && silent out
expect 2 --frobnicate && says err "there is no option '--frobnicate'" && silent out
expect 2 doctor --frobnicate && says err "talweg doctor: " && says err "--frobnicate" && says err 'usage: talweg doctor' && silent out
expect 2 doctor --device && says err 'requires an argument' && silent out
expect 2 doctor cpu && says err 'unexpected argument: cpu' && silent out

# ---- doctor ----

expect 0 doctor && silent err
says out 'cuda:0: cannot be used'
says out '  cuda: no NVIDIA driver here: /nowhere/libcuda.so.1: '
says out 'cpu: can be used'
says out "  threads          $(nproc)"
says out '"auto" is cpu'
! grep -q $'[\r\e]' "$work/out" || fail 'carriage returns or escapes'
TALWEG_CPU=specification expect 0 doctor --device cpu && says out 'code             specification, '
! grep -q cuda "$work/out" || fail 'more than the device asked for'
expect 1 doctor --device cuda:0 && says out 'no NVIDIA driver' && silent err
expect 1 doctor --device cuda:x && says out "there is no device 'cuda:x'"
TALWEG_CUDA_DRIVER=$driver expect 1 doctor --device cuda:7 && says out 'there is no device 7: the driver shows 1'
TALWEG_CUDA_DRIVER=$driver STAND_IN_INIT=100 expect 0 doctor && says out 'it sees no device'

emulated=$TALWEG_BUILD_DIR/tests/emulation
if [ -e "$emulated/libemulated_cuda.so" ]; then
    TALWEG_CUDA_DRIVER=$emulated/libcuda.so.1 TALWEG_CUDA_PLUGIN=$emulated/libemulated_cuda.so expect 0 doctor
    says out 'cuda:0: can be used' && says out '  code             emulated on the CPU' && says out '"auto" is cuda:0'
fi

# ---- bench: no figure is tested, only that there are figures ----

expect 0 --help && says out '  bench '
expect 0 bench --help && says out 'usage: talweg bench' && silent err
expect 0 bench --model mlp --batch 8 --seconds 0.01 --threads 1 && silent err
says out 'mlp, 1 x 28 x 28, batch 8, training with momentum SGD, f32' && says out ' images/s' && says out ' 1 thread, '
! grep -q 'implementation' "$work/out" || fail 'explains unasked'
expect 0 bench --infer --seconds 0.01 && says out 'lenet, 1 x 28 x 28, batch 1, inference, f32' && says out 'us an inference (p50; p99 '
expect 0 bench --explain --batch 9 --seconds 0.01 --threads 2 && silent err
says out 'ceilings as measured, a thread with 2 at work: ' && says out ' of the measured ceiling in the steps'
for kernel in 'conv2d[.]forward[a-z_]*' 'dense[.]backward_data[a-z_]*' 'dense[.]backward_weights[a-z_]*' sgd.update; do
    grep -qE "^ *[0-9]+ .* $kernel  *[a-z ]+ +[0-9]+ +[0-9.]+ +[0-9.]+% " "$work/out" || fail "no line of $kernel"
done
! grep -qE 'nan|inf ' "$work/out" || fail 'figures that are none'
expect 0 bench --model mlp --json --explain --seconds 0.01 && says out '"images_per_s": ' && says out '"ceilings": {"threads": '
[ "$(wc -l <"$work/out")" = 1 ] || fail 'more than one line of JSON'
[ "$(grep -o '"kernel": ' "$work/out" | wc -l)" = "$(grep -o '"least_s": [^,]*, "flops"' "$work/out" | wc -l)" ] || fail 'steps without all keys'
if python3 -c '' 2>/dev/null; then
    python3 -m json.tool "$work/out" >/dev/null 2>"$work/err" || fail 'no JSON'
fi
expect 0 bench --model mlp --infer --explain --seconds 0.001 --threads 1 && says out '% of what the 1 thread had;'
! grep -qE '(^|[^0-9.])1 (runs|steps|threads|classes)' "$work/out" || fail 'one of something, as if there were more'
TALWEG_CPU=specification expect 0 bench --batch 8 --seconds 0.001 --threads 1 && says out '; 1 run)'
expect 2 bench --device plan:cpu && says err '--device wants one that is here, such as cpu or cuda:0, since a card that is only planned for cannot be measured (talweg plan has its times): plan:cpu' && silent out
expect 2 bench --model alexnet && says err '--model is none of mlp, lenet, resnet20, resnet18 and resnet50: alexnet' && silent out
expect 2 bench --batch 0 && says err '--batch is not a whole number from 1 to 1048576: 0'
expect 2 bench --batch 1.5 && says err '--batch'
expect 2 bench --threads x && says err '--threads' && silent out
expect 2 bench --seconds -1 && says err '--seconds'
expect 2 bench --precision f64 && says err '--precision is none of'
expect 2 bench lenet && says err 'unexpected argument: lenet'
expect 2 bench --frobnicate && says err 'usage: talweg bench'
expect 1 bench --device cuda:0 && says err 'talweg bench: cuda: no NVIDIA driver' && silent out
if [ -e "$emulated/libemulated_cuda.so" ]; then
    TALWEG_CUDA_DRIVER=$emulated/libcuda.so.1 TALWEG_CUDA_PLUGIN=$emulated/libemulated_cuda.so \
        expect 1 bench --device cuda:0 --model mlp --batch 2 --seconds 0.001 --explain
    says err "steps are not timed on 'cuda:0'"
fi

if [ -w /dev/full ]; then
    status=0
    "$program" doctor >/dev/full 2>"$work/err" || status=$?
    [ "$status" = 1 ] || fail "nobody gets the output: exit status $status, expected 1"
    says err 'standard output cannot be written'
fi

# ---- the plug-in is looked for beside the library, and beside that alone if one is there ----

mkdir -p "$work/bin" "$work/lib"
cp "$program" "$work/bin/"
cp "$TALWEG_BUILD_DIR"/lib/libtalweg.so.[0-9] "$work/lib/"
cp "$TALWEG_BUILD_DIR/tests/libfinding_plugin.so" "$work/lib/libtalweg-cuda.so"
program=$work/bin/talweg
export LD_LIBRARY_PATH=$work/lib
TALWEG_CUDA_DRIVER=$driver expect 1 doctor --device cuda && says out "the plug-in $work/lib/libtalweg-cuda.so is of another version"
echo 'no library' >"$work/lib/libtalweg-cuda.so"
TALWEG_CUDA_DRIVER=$driver expect 1 doctor --device cuda && says out "the plug-in cannot be opened: $work/lib/libtalweg-cuda.so: "
rm "$work/lib/libtalweg-cuda.so"
TALWEG_CUDA_DRIVER=$driver expect 1 doctor --device cuda && says out 'the plug-in cannot be opened: libtalweg-cuda.so: '
exit $failures
