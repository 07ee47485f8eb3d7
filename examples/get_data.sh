#!/usr/bin/env bash
# Downloads a public data set, checks it against its published SHA-256 sums and puts it where tw_dataset_open finds it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
    cat <<END
usage: get_data.sh mnist|fashion-mnist|cifar10|cifar100 [--dir DIR] [--mirror PLACE]

  --dir DIR       where the data goes (default: $root/build/data/NAME)
  --mirror PLACE  take the files from there instead of the public source: a URL that file names can be added to, or a
                  local folder that holds the files
  --help          this text

What is already there and right is left alone; a download that broke off is taken up where it ended.
END
}

say() { printf '%s\n' "$*"; }
die() {
    printf 'get_data.sh: %s\n' "$*" >&2
    exit 1
}
misuse() {
    printf 'get_data.sh: %s\n' "$*" >&2
    usage >&2
    exit 2
}

# Sets sources (tried in turn), files (SHA-256 sum and name of each) and, for an archive, the folder it unpacks to.
# The sums agree with those that several projects publish: MLDatasets.jl, torchvision for Ruby, batchup.
describe() {
    unpacked=
    case $1 in
    mnist)
        sources=(https://ossci-datasets.s3.amazonaws.com/mnist https://storage.googleapis.com/cvdf-datasets/mnist)
        files='440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609  train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c  train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6  t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6  t10k-labels-idx1-ubyte.gz'
        ;;
    fashion-mnist)
        sources=(http://fashion-mnist.s3-website.eu-central-1.amazonaws.com
            https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion)
        files='3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84  train-images-idx3-ubyte.gz
a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845  train-labels-idx1-ubyte.gz
346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073  t10k-images-idx3-ubyte.gz
67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5  t10k-labels-idx1-ubyte.gz'
        ;;
    cifar10)
        sources=(https://www.cs.toronto.edu/~kriz)
        files='c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd  cifar-10-binary.tar.gz'
        unpacked=cifar-10-batches-bin
        ;;
    cifar100)
        sources=(https://www.cs.toronto.edu/~kriz)
        files='58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec  cifar-100-binary.tar.gz'
        unpacked=cifar-100-binary
        ;;
    *) misuse "unknown data set '$1'" ;;
    esac
}

has_sum() { # file sum
    [ -f "$1" ] && [ "$(sha256sum <"$1")" = "$2  -" ]
}

# Brings one file from a URL into a partial file, going on where that ends. Status 33: it cannot be gone on with.
transfer() { # url part
    local quiet=() answer status=0
    if command -v curl >/dev/null; then
        [ -t 2 ] && quiet=(--progress-bar) || quiet=(--silent --show-error)
        answer=$(curl --fail --location --retry 2 --connect-timeout 20 "${quiet[@]}" --write-out '%{http_code}' \
            --continue-at - --output "$2" "$1") || status=$?
        case $answer:$status in
        416:* | *:33 | *:36) return 33 ;; # nothing beyond the partial file's end; resuming is not offered
        *) return "$status" ;;
        esac
    elif command -v wget >/dev/null; then
        [ -t 2 ] || quiet=(--no-verbose)
        wget --tries=3 --timeout=20 "${quiet[@]}" --continue --output-document="$2" "$1"
    else
        die "neither curl nor wget is there: install one of them, or give --mirror FOLDER"
    fi
}

# Brings the partial file to its right content from one source. A partial file that turns out to be of no use is dropped
# and the file fetched once more from its start; one that only broke off is kept.
fetch_from() { # source name sum part
    local from="$1/$2" part=$4 status resumed
    if [ -d "$1" ]; then
        [ -f "$from" ] || { say "  $from: there is no such file"; return 1; }
        cp -- "$from" "$part" || return 1
        has_sum "$part" "$3" && return 0
        rm -f -- "$part"
        say "  $from: wrong checksum, expected SHA-256 $3"
        return 1
    fi
    while :; do
        resumed=false
        [ -s "$part" ] && resumed=true && say "  going on at byte $(wc -c <"$part")"
        status=0
        transfer "$from" "$part" || status=$?
        has_sum "$part" "$3" && return 0
        [ $status = 0 ] || [ $status = 33 ] || return 1
        rm -f -- "$part"
        [ $status != 0 ] || say "  $from: wrong checksum, expected SHA-256 $3"
        $resumed || return 1
        say "  what was there of it is of no use: starting again"
    done
}

# Puts one file into $dir, whole and checked, or dies.
get() { # name sum
    local file="$dir/$1" part="$dir/.$1.part" source
    if has_sum "$file" "$2"; then
        say "$1: already there"
        return
    fi
    [ ! -e "$file" ] || say "$1: there, but with a wrong checksum: getting it again"
    for source in "${sources[@]}"; do
        say "$1: from $source"
        if has_sum "$part" "$2" || fetch_from "$source" "$1" "$2" "$part"; then
            mv -f -- "$part" "$file"
            return
        fi
    done
    [ ! -s "$part" ] || say "  $(wc -c <"$part") bytes are kept: the same command goes on from there"
    die "$1 could not be had from ${sources[*]}: check the network, or give --mirror"
}

# Unpacks $dir/archive into $dir/$unpacked in one go, and notes the sums of what is in it for the next time.
unpack() { # archive
    local work="$dir/.unpack.$$"
    rm -rf -- "$work"
    mkdir -- "$work"
    tar -xzf "$dir/$1" -C "$work" || { rm -rf -- "$work"; die "$1 cannot be unpacked into $dir"; }
    [ -d "$work/$unpacked" ] || { rm -rf -- "$work"; die "$1 does not hold the folder $unpacked"; }
    (cd "$work/$unpacked" && sha256sum -- *.bin >SHA256SUMS)
    rm -rf -- "${dir:?}/$unpacked"
    mv -- "$work/$unpacked" "$dir/$unpacked"
    rm -rf -- "$work" "${dir:?}/$1"
}

is_unpacked() {
    [ -s "$dir/$unpacked/SHA256SUMS" ] && (cd "$dir/$unpacked" && sha256sum --check --status SHA256SUMS)
}

name='' dir='' mirror=''
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h)
        usage
        exit 0
        ;;
    --dir | --mirror)
        [ -n "${2:-}" ] || misuse "$1 needs a value"
        [ "$1" = --dir ] && dir=$2 || mirror=${2%/}
        shift
        ;;
    -*) misuse "unknown option '$1'" ;;
    *)
        [ -z "$name" ] || misuse "one data set at a time: '$name' or '$1'"
        name=$1
        ;;
    esac
    shift
done
[ -n "$name" ] || misuse "say which data set"
describe "$name"
[ -z "$mirror" ] || sources=("$mirror")
case $mirror in
'' | *://*) ;;
*) [ -d "$mirror" ] || die "--mirror $mirror: there is no such folder, and it is no URL" ;;
esac
dir=${dir:-$root/build/data/$name}
mkdir -p -- "$dir" || die "$dir cannot be made"

if [ -n "$unpacked" ] && is_unpacked; then
    say "$unpacked: already there"
else
    while read -r sum file; do
        get "$file" "$sum"
        [ -z "$unpacked" ] || unpack "$file"
    done <<<"$files"
fi
say "$name is in $dir"
