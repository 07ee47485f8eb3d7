#!/usr/bin/env bash
# examples/get_data.sh against local mirrors. The files are made here; a copy of the script gets their sums in place of the
# real ones. With TALWEG_TEST_DATA naming a folder that holds mnist/, the script itself is run on the real files.
set -u
here=$(cd "$(dirname "$0")" && pwd)
script=${TALWEG_SOURCE_DIR:-$here/..}/examples/get_data.sh
work=$(mktemp -d "${TMPDIR:-/tmp}/talweg-get-data-XXXXXX")
trap 'rm -rf "$work"' EXIT
export no_proxy='*' # nothing here leaves the machine
failures=0

fail() {
    echo "FAILED: $*"
    sed 's/^/    /' "$work/log"
    failures=$((failures + 1))
}
# Runs the script (copied, or "$tool") and checks exit status and a piece of its output.
expect() { # status text arguments...
    local status=0 wanted=$1 text=$2
    shift 2
    bash "$tool" "$@" >"$work/log" 2>&1 </dev/null || status=$?
    [ "$status" = "$wanted" ] || fail "get_data.sh $*: exit status $status, expected $wanted"
    grep -qF -- "$text" "$work/log" || fail "get_data.sh $*: output lacks '$text'"
}
holds_four() { [ "$(find "$data" -mindepth 1 | wc -l)" = 4 ]; }
same() { cmp -s "$1" "$2" || fail "$2 differs from $1"; }

# Mirrors with small files of the right names.
mnist_files="train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz t10k-images-idx3-ubyte.gz t10k-labels-idx1-ubyte.gz"
mkdir -p "$work/mirror" "$work/examples" "$work/cifar-10-batches-bin"
for name in $mnist_files; do head -c 5000 /dev/urandom >"$work/mirror/$name"; done
for i in 1 2; do head -c 3073 /dev/urandom >"$work/cifar-10-batches-bin/data_batch_$i.bin"; done
tar -czf "$work/mirror/cifar-10-binary.tar.gz" -C "$work" cifar-10-batches-bin

# The copy: the sum before each name is replaced by that of the mirror's file.
tool=$work/examples/get_data.sh
edits=()
for file in "$work"/mirror/*; do
    edits+=(-e "s/[0-9a-f]\{64\}  ${file##*/}/$(sha256sum <"$file" | cut -d' ' -f1)  ${file##*/}/")
done
sed "${edits[@]}" "$script" >"$tool"

echo "usage"
expect 0 "usage: get_data.sh mnist|fashion-mnist|cifar10" --help
expect 2 "say which data set"
expect 2 "unknown data set 'imagenet'" imagenet
expect 2 "unknown option '--quick'" mnist --quick
expect 2 "--dir needs a value" mnist --dir
expect 2 "one data set at a time" mnist cifar10
expect 1 "there is no such folder, and it is no URL" mnist --mirror "$work/nowhere"

echo "from a local folder"
data="$work/my data"
expect 0 "mnist is in $data" mnist --dir "$data" --mirror "$work/mirror"
for name in $mnist_files; do same "$work/mirror/$name" "$data/$name"; done
holds_four || fail "more than the four files is left in the folder"

echo "what is there and right is left alone, what is wrong is replaced"
expect 0 "t10k-labels-idx1-ubyte.gz: already there" mnist --dir "$data" --mirror "$work"
echo damaged >"$data/train-labels-idx1-ubyte.gz"
expect 0 "train-labels-idx1-ubyte.gz: there, but with a wrong checksum" mnist --dir "$data" --mirror "$work/mirror/"
same "$work/mirror/train-labels-idx1-ubyte.gz" "$data/train-labels-idx1-ubyte.gz"
rm -r "$data"
expect 0 "fashion-mnist is in" fashion-mnist --dir "$data" --mirror "$work/mirror"

echo "a mirror with a wrong or missing file"
mkdir "$work/wrong"
cp "$work"/mirror/* "$work/wrong"
echo "<html>moved</html>" >"$work/wrong/t10k-images-idx3-ubyte.gz"
rm -r "$data"
expect 1 "t10k-images-idx3-ubyte.gz: wrong checksum, expected SHA-256" mnist --dir "$data" --mirror "$work/wrong"
[ ! -e "$data/t10k-images-idx3-ubyte.gz" ] || fail "a file with a wrong checksum was put in place"
rm "$work/wrong/t10k-images-idx3-ubyte.gz"
expect 1 "there is no such file" mnist --dir "$data" --mirror "$work/wrong"

echo "an archive is unpacked"
rm -r "$data"
expect 0 "cifar10 is in" cifar10 --dir "$data" --mirror "$work/mirror"
same "$work/cifar-10-batches-bin/data_batch_2.bin" "$data/cifar-10-batches-bin/data_batch_2.bin"
[ "$(ls -A "$data")" = cifar-10-batches-bin ] || fail "more than the unpacked folder is left"
expect 0 "cifar-10-batches-bin: already there" cifar10 --dir "$data" --mirror "$work"
echo damaged >"$data/cifar-10-batches-bin/data_batch_2.bin"
expect 0 "cifar10 is in" cifar10 --dir "$data" --mirror "$work/mirror"
same "$work/cifar-10-batches-bin/data_batch_2.bin" "$data/cifar-10-batches-bin/data_batch_2.bin"

if command -v curl >/dev/null; then
    echo "from a URL, going on where a download broke off"
    first=train-images-idx3-ubyte.gz
    rm -r "$data"
    mkdir "$data"
    head -c 2000 "$work/mirror/$first" >"$data/.$first.part"
    expect 0 "going on at byte 2000" mnist --dir "$data" --mirror "file://$work/mirror"
    same "$work/mirror/$first" "$data/$first"
    holds_four || fail "a partial file is left"
    for size in 2000 5000 6000; do # a partial file of something else: too short, as long, longer
        rm "$data/$first"
        head -c $size /dev/zero >"$data/.$first.part"
        expect 0 "starting again" mnist --dir "$data" --mirror "file://$work/mirror"
        same "$work/mirror/$first" "$data/$first"
    done
    rm "$data/$first"
    cp "$work/mirror/$first" "$data/.$first.part" # broke off just before it was put in place
    expect 0 "mnist is in" mnist --dir "$data" --mirror "file://$work/mirror"
    rm "$data/$first"
    head -c 2000 "$work/mirror/$first" >"$data/.$first.part"
    expect 1 "2000 bytes are kept" mnist --dir "$data" --mirror "http://127.0.0.1:9"
    rm "$data/.$first.part"
    echo "<html>moved</html>" >"$work/wrong/$first"
    expect 1 "wrong checksum, expected SHA-256" mnist --dir "$data" --mirror "file://$work/wrong"
    if [ -e "$data/$first" ] || [ -e "$data/.$first.part" ]; then fail "a wrong file is kept"; fi
else
    echo "curl is not installed: downloads from URLs are not tested"
fi

if [ -n "${TALWEG_TEST_DATA:-}" ]; then
    echo "the real MNIST files"
    tool=$script
    rm -r "$data"
    expect 0 "mnist is in" mnist --dir "$data" --mirror "$TALWEG_TEST_DATA/mnist"
else
    echo "TALWEG_TEST_DATA is not set: the real MNIST files are not tried"
fi

[ $failures = 0 ] && echo "all passed"
exit $((failures > 0))
