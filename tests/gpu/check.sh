#!/usr/bin/env bash
# usage: check.sh NAME | --list
# One check on a GPU, by name; --list prints the names. Exit status: 0 passed, 77 skipped (the reason is printed), else failed.
# Environment: TALWEG_BUILD_DIR has bin/ and lib/, TALWEG_SOURCE_DIR this source tree; TALWEG_TEST_DEVICE is the device
# (default: cuda:0); TALWEG_TEST_DATA a folder with mnist/. run.sh and ctest (label gpu) call this.
set -euo pipefail

# Test programs that run on the device TALWEG_TEST_DEVICE names, and the checks defined below.
programs=(test_ops test_trajectories test_device_info test_pool_values test_program_runs test_tied_layers
    test_accumulate test_windows test_weights_file test_feed test_set_too_large test_trainer test_evaluate test_history
    test_fit_windows test_checkpoint test_reproducible test_fit_errors test_gather test_lifetime)
checks=(digits mnist)

if [ "${1:-}" = --list ]; then
    printf '%s\n' "${programs[@]}" "${checks[@]}"
    exit
fi
name=$1
bin=${TALWEG_BUILD_DIR:?}/bin
export TALWEG_TEST_DEVICE=${TALWEG_TEST_DEVICE:-cuda:0}

skip() { echo "skipped: $*"; exit 77; }

# accuracy THRESHOLD COMMAND...: the last line is "test accuracy NN.NN %".
accuracy() {
    local threshold=$1 line
    shift
    line=$("$@" | tee /dev/stderr | tail -n 1)
    awk -v line="$line" -v threshold="$threshold" \
        'BEGIN { split(line, word, " "); exit !(word[1] == "test" && word[3] + 0 >= threshold) }' && return
    echo "'$line', expected a test accuracy of at least $threshold %"
    return 1
}

# The recipes and thresholds of tests/full_accuracy.sh.
digits() {
    local out
    out=$(mktemp -d)
    trap 'rm -rf "$out"' RETURN
    accuracy 97.5 "$bin/digits" --device "$TALWEG_TEST_DEVICE" --data "$TALWEG_SOURCE_DIR/examples/data/digits" --out "$out"
}
mnist() {
    [ -d "${TALWEG_TEST_DATA:-}/mnist" ] || skip "no mnist/ in TALWEG_TEST_DATA ('${TALWEG_TEST_DATA:-}')"
    accuracy 98.9 "$bin/mnist_lenet" "$TALWEG_TEST_DATA/mnist" --device "$TALWEG_TEST_DEVICE" --epochs 5
}

answer=$("$bin/talweg" doctor --device "$TALWEG_TEST_DEVICE" 2>&1) || skip "$answer"
for check in "${checks[@]}"; do
    [ "$name" != "$check" ] || { "$name"; exit; }
done
[ -x "$bin/$name" ] || skip "$bin/$name is not built"
exec "$bin/$name"
