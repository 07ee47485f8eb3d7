#!/usr/bin/env bash
# Each example program on small data: its last line, its files, its exit status, and what it writes where nobody watches.
set -u
bin=${TALWEG_BUILD_DIR:?}/bin
work=$(mktemp -d "${TMPDIR:-/tmp}/talweg-examples-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1 # what a program leaves where it runs is gone in the end
failures=0
for program in digits predict training_loop custom_op mnist_lenet cifar_resnet; do
    [ -x "$bin/$program" ] || { echo "skipped: the examples are not built (TALWEG_EXAMPLES)"; exit 77; }
done

fail() {
    echo "FAILED: $*"
    sed 's/^/    /' "$work/out" "$work/err"
    failures=$((failures + 1))
}
# Runs a program, its output kept in out and err.
expect() { # status program arguments...
    local status=0 wanted=$1
    "$bin/$2" "${@:3}" >"$work/out" 2>"$work/err" </dev/null || status=$?
    [ "$status" = "$wanted" ] || fail "${*:2}: exit status $status, expected $wanted"
}
says() { grep -qF -- "$2" "$work/$1" || fail "no '$2' in $1"; }
# The last line is the accuracy, and it is so high.
ends_with_accuracy() { # at least
    tail -n 1 "$work/out" | grep -qE '^test accuracy [0-9]+[.][0-9][0-9] %$' || fail "the last line is no accuracy"
    tail -n 1 "$work/out" | awk -v least="$1" '{ exit !($3 >= least) }' || fail "the accuracy is below $1 %"
    ! grep -q $'[\r\e]' "$work/out" "$work/err" || fail "carriage returns or escapes where no terminal is"
}

# ---- data sets of the published formats, a few samples each: a class is a brightness ----

bytes() { # value count
    head -c "$2" /dev/zero | tr '\0' "\\$(printf %03o "$1")"
}
word() { printf "\\x$(printf %02x $(($1 >> 24 & 255)))\\x$(printf %02x $(($1 >> 16 & 255)))\\x$(printf %02x $(($1 >> 8 & 255)))\\x$(printf %02x $(($1 & 255)))"; }
idx() { # prefix samples
    { word 0x803; word "$2"; word 28; word 28; for ((i = 0; i < $2; i++)); do bytes $((i % 10 * 25)) 784; done; } >"$work/mnist/$1-images-idx3-ubyte"
    { word 0x801; word "$2"; for ((i = 0; i < $2; i++)); do bytes $((i % 10)) 1; done; } >"$work/mnist/$1-labels-idx1-ubyte"
}
cifar() { # file samples
    for ((i = 0; i < $2; i++)); do bytes $((i % 10)) 1; bytes $((i % 10 * 25)) 3072; done >"$work/cifar/$1"
}
mkdir "$work/mnist" "$work/cifar" "$work/packed" "$work/a" "$work/b" "$work/c" "$work/d"
touch "$work/packed/data_batch_1.bin.xz" "$work/packed/test_batch.bin.xz"
idx train 70
idx t10k 10
cifar data_batch_1.bin 70
cifar data_batch_2.bin 20
cifar test_batch.bin 10

# ---- digits: the whole recipe, and its files ----

expect 0 digits --out "$work/a"
ends_with_accuracy 97.5
for file in digits.safetensors history.csv digits-curve.svg; do
    [ -s "$work/a/$file" ] || fail "digits left no $file"
    says out "$work/a/$file"
done
tail -n 1 "$work/out" >"$work/accuracy"
[ "$(wc -l <"$work/a/history.csv")" = 21 ] || fail "history.csv has no 20 epochs"
for run in "b 5 1" "c 5 2" "d 6 1"; do # folder, seed, threads
    read -r folder seed threads <<<"$run"
    expect 0 digits --out "$work/$folder" --epochs 1 --seed "$seed" --threads "$threads"
done
cmp -s "$work/b/digits.safetensors" "$work/c/digits.safetensors" || fail "one seed, two models"
cmp -s "$work/b/digits.safetensors" "$work/d/digits.safetensors" && fail "two seeds, one model"

# ---- predict: what the saved model is good for ----

expect 0 predict "$work/a/digits.safetensors"
tail -n 1 "$work/out" | cmp -s - "$work/accuracy" || fail "the saved model is not as good as the one that was saved"
[ "$(grep -cE '^predicted ([0-9]), label \1$' "$work/out")" -ge 2 ] || fail "predict shows no digits, or wrong ones"
[ "$(grep -cE '^[ .:=+*#%@-]{8}$' "$work/out")" = 24 ] || fail "predict draws no three digits"
expect 1 predict "$work/resnet.safetensors"
says err "$work/resnet.safetensors"
{ bytes 2 1; bytes 0 7; printf '{}'; } >"$work/weights.safetensors"
expect 1 predict "$work/weights.safetensors"
says err "$work/weights.safetensors: holds weights, but no graph"
expect 2 predict
says err "usage: predict"

# ---- digits: Ctrl-C or SIGTERM ends it after a step, with everything saved; ignored signals stay ignored ----

set -m # with job control, as at a prompt: otherwise what runs behind ignores SIGINT
interrupt() { # signal, exit status
    rm -f "$work"/a/*
    : >"$work/out" # or the wait below would be content with the run before
    "$bin/digits" --out "$work/a" --epochs 100000 >"$work/out" 2>"$work/err" </dev/null &
    for ((i = 0; i < 300; i++)); do grep -q '^epoch  2' "$work/out" && break; sleep 0.1; done
    kill "-$1" $!
    wait $!
    [ $? = "$2" ] || fail "digits, after SIG$1, does not end with $2"
    ends_with_accuracy 30
    says err "digits: tw_trainer_fit: stopped on request"
    [ -s "$work/a/digits.safetensors" ] && [ -s "$work/a/history.csv" ] || fail "digits, after SIG$1, saved nothing"
}
interrupt INT 130
interrupt TERM 143

# Stopped somewhere in its epochs and gone on with, it leaves the model of a run that was not stopped.
: >"$work/out"
"$bin/digits" --out "$work/c" --epochs 40 --checkpoint "$work/run" >"$work/out" 2>"$work/err" </dev/null &
for ((i = 0; i < 300; i++)); do grep -q '^epoch  2' "$work/out" && break; sleep 0.1; done
kill -INT $!
wait $!
expect 0 digits --out "$work/c" --epochs 40 --checkpoint "$work/run" --resume
expect 0 digits --out "$work/d" --epochs 40
cmp "$work/c/digits.safetensors" "$work/d/digits.safetensors" || fail "digits, stopped and gone on with, is another model"
without_times() { cut -d, -f1,2,5- "$1"; }
cmp <(without_times "$work/c/history.csv") <(without_times "$work/d/history.csv") || fail "digits, gone on with, has another history"
expect 1 digits --out "$work/c" --checkpoint "$work/run" --resume --seed 7
says err "seed (7 here, 1 there)"
expect 2 digits --resume
says err "digits: --resume needs --checkpoint"

: >"$work/out"
(
    trap '' INT
    exec "$bin/digits" --out "$work/a" >"$work/out" 2>"$work/err" </dev/null
) &
for ((i = 0; i < 300; i++)); do grep -q '^epoch  2' "$work/out" && break; sleep 0.1; done
kill -INT $!
wait $! || fail "digits took notice of a signal that was ignored"
set +m

# ---- the others ----

expect 0 cifar_resnet "$work/cifar" --epochs 1 --checkpoint "$work/resnet-run"
expect 0 cifar_resnet "$work/cifar" --epochs 2 --checkpoint "$work/resnet-run" --resume
says out "epoch 2/2:"
! grep -q "epoch 1/" "$work/out" || fail "cifar_resnet begins anew"

expect 0 training_loop --epochs 3 --seed 4
ends_with_accuracy 80
expect 0 custom_op --epochs 5 --seed 2
ends_with_accuracy 90
says out "slopes of the convolution's channels: 0."
expect 0 mnist_lenet "$work/mnist" --epochs 2 --threads 1
ends_with_accuracy 0
says out "epoch 2/2"
expect 0 cifar_resnet "$work/cifar" --epochs 2 --save "$work/resnet.safetensors"
ends_with_accuracy 0
says out "90 images to learn from"
[ -s "$work/resnet.safetensors" ] || fail "cifar_resnet saved nothing"

# ---- help, mistakes, trouble ----

expect 0 predict --help
for program in digits training_loop custom_op "mnist_lenet $work/mnist" "cifar_resnet $work/cifar"; do
    read -ra words <<<"$program"
    expect 0 "${words[@]}" --help
    says out "usage: ${words[0]}"
    for options in "${words[0]} --nonsense ${words[*]:1}" "$program --nonsense"; do # before and after the folder
        # shellcheck disable=SC2086
        expect 2 $options
        says err "usage: ${words[0]}"
    done
    for value in many -1 0 4294967297 100001 " 1" ""; do
        expect 2 "${words[@]}" --epochs "$value"
        says err "${words[0]}: --epochs: '$value' is not a whole number from 1 to 100000"
    done
    expect 2 "${words[@]}" --seed 18446744073709551616
    says err "from 0 to 18446744073709551615"
    expect 2 "${words[@]}" extra
    says err "${words[0]}: unexpected argument: extra"
done
expect 2 predict a extra
says err "unexpected argument: extra"
for program in "digits --out $work/d" "mnist_lenet $work/mnist" "cifar_resnet $work/cifar"; do
    read -ra words <<<"$program"
    expect 1 "${words[@]}" --device toaster
    says err "there is no device 'toaster'"
done
expect 2 mnist_lenet
expect 2 cifar_resnet
for program in "digits --data" "training_loop --data" "custom_op --data" mnist_lenet cifar_resnet; do
    # shellcheck disable=SC2086
    expect 1 $program "$work/nowhere"
    says err "TW_ERROR_FILE: $work/nowhere"
done
expect 1 mnist_lenet ""
says err "'': the folder cannot be opened"
says err "examples/get_data.sh mnist downloads"
expect 1 cifar_resnet "$work/packed"
says err "; unpack data_batch_1.bin.xz first"
says err "examples/get_data.sh cifar10"
expect 1 mnist_lenet "$work/cifar"
says err "TW_ERROR_MISMATCH"
for out in "$work/nowhere/deeper" "$work/out" ""; do # refused before training
    expect 1 digits --epochs 1 --out "$out"
    says err "digits: --out: '$out': files cannot be written there"
    [ ! -s "$work/out" ] || fail "digits trained for a folder that cannot be"
done
expect 0 digits --epochs 1 --out "$work/made"
[ -s "$work/made/digits.safetensors" ] || fail "digits did not make its folder"
if [ -w /dev/full ]; then
    for program in "digits --out $work/made" training_loop custom_op "mnist_lenet $work/mnist" "cifar_resnet $work/cifar"; do
        # shellcheck disable=SC2086
        "$bin"/$program --epochs 1 >/dev/full 2>"$work/err" && fail "$program is content with a full disk"
    done
fi

# ---- a line that is rewritten: only on a terminal ----

if script -qec true /dev/null >/dev/null 2>&1; then
    script -qec "'$bin/digits' --epochs 1 --out '$work/a'" /dev/null >"$work/out" </dev/null
    grep -q $'\repoch 1/1, step' "$work/out" || fail "no progress line on a terminal"
fi
exit $((failures > 0))
