#!/usr/bin/env bash
# run.sh and check.sh on the emulated device, which TALWEG_CUDA_DRIVER and TALWEG_CUDA_PLUGIN name: from end to end with the
# least of everything, and what they say where something is missing, fails or takes too long.
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/talweg-gpu-XXXXXX")
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    echo "FAILED: $*"
    sed 's/^/    /' "$work/out"
    failures=$((failures + 1))
}
# Runs the script, its output kept in out.
expect() { # status arguments...
    local status=0
    bash "$here/run.sh" "${@:2}" >"$work/out" 2>&1 </dev/null || status=$?
    [ "$status" = "$1" ] || fail "run.sh ${*:2}: exit status $status, expected $1"
}
says() { grep -qE -- "$1" "$work/out" || fail "no '$1' in what it printed"; }

# ---- all of it ----

expect 0 --tree "$TALWEG_BUILD_DIR" --dry
says '^cuda:0: can be used'
says '^passed   test_tied_layers '
says '^all that ran passed in '
tail -n 1 "$work/out" | grep -qE '^[|] lenet, batch 2 [|] [0-9]' || fail "the last line is not the table's"

# Without Python: what bench_train prints.
mkdir "$work/path"
for program in bash sh awk sed grep head tail cut date timeout mktemp rm dirname cat env; do
    ln -s "$(command -v "$program")" "$work/path/"
done
PATH=$work/path expect 0 --tree "$TALWEG_BUILD_DIR" --dry --parts speed
says '^passed   speed of lenet:2 '
tail -n 2 "$work/out" | grep -q '^{.*"rate"' || fail "no line of bench_train"

# ---- a check that fails; others that cannot be run ----

mkdir -p "$work/tree/bin" "$work/tree/lib"
ln -s "$TALWEG_BUILD_DIR/bin/talweg" "$work/tree/bin/"
printf '#!/bin/sh\necho deliberately\nexit 3\n' >"$work/tree/bin/test_pool_values"
chmod +x "$work/tree/bin/test_pool_values"
expect 1 --tree "$work/tree" --dry --parts checks
says '^FAILED   test_pool_values [(]exit status 3[)]'
says '^    deliberately'
says '^skipped  test_tied_layers: .* is not built'
says '^FAILED in '

# A part that takes too long leaves the next its time.
printf '#!/bin/sh\nsleep 30\n' >"$work/tree/bin/test_pool_values"
ln -s "$TALWEG_BUILD_DIR/bin/bench_train" "$work/tree/bin/"
expect 0 --tree "$work/tree" --dry --limit 20
says '^cut      test_pool_values after [0-9] s'
says '^not finished for lack of time: test_pool_values; test_tied_layers; '
tail -n 1 "$work/out" | grep -qE '^[|] lenet, batch 2 [|] [0-9]' || fail "no table where a check took too long"

# ---- compute-sanitizer ----

mkdir "$work/tools"
printf '#!/bin/sh\necho "$*"\n[ "$2" != racecheck ] || exit 9\n' >"$work/tools/compute-sanitizer"
chmod +x "$work/tools/compute-sanitizer"
PATH=$work/tools:$PATH expect 1 --tree "$work/tree" --dry --parts sanitizers
says '^passed   memcheck conv2d '
says '^FAILED   racecheck conv2d [(]exit status 9[)]'
says "^    --tool racecheck --error-exitcode 9 $work/tree/bin/test_ops conv2d"
says '^passed   initcheck conv2d '

# ---- no GPU; libraries among Python's packages ----

TALWEG_CUDA_DRIVER=$work/none.so expect 77 --tree "$TALWEG_BUILD_DIR" --dry
says '^skipped: cuda:0: cannot be used'
says 'no NVIDIA driver here'

if command -v python3 >/dev/null; then
    mkdir -p "$work/site/nvidia/part/lib"
    echo 'int part(void) { return 1; }' >"$work/part.c"
    echo 'int part(void); int whole(void) { return part(); }' >"$work/whole.c"
    "$TALWEG_CC" -shared -fPIC "$work/part.c" -o "$work/site/nvidia/part/lib/libtalwegpart.so" &&
        "$TALWEG_CC" -shared -fPIC "$work/whole.c" -L"$work/site/nvidia/part/lib" -ltalwegpart -o "$work/whole.so" ||
        fail "compiling a plug-in with a part"
    TALWEG_CUDA_PLUGIN=$work/whole.so expect 77 --tree "$TALWEG_BUILD_DIR" --dry
    says '^not found: libtalwegpart.so'
    TALWEG_CUDA_PLUGIN=$work/whole.so PYTHONPATH=$work/site expect 77 --tree "$TALWEG_BUILD_DIR" --dry
    says "^CUDA's libraries: .*/site/nvidia/part/lib"
    says 'is no plug-in of this library' # so it was opened, with its part
fi

# ---- the command line ----

expect 2 --limit soon
says "'soon' is not a number of seconds"
expect 2 --parts
says '--parts needs a value'
expect 2 --tree "$work"
says 'there is no bin/talweg'
expect 0 --help
exit $((failures > 0))
