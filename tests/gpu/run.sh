#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: builds, checks every op and the training on the GPU against the CPU and recorded numbers,
# measures speed beside PyTorch, looks for memory errors and races; the last lines are the table.
set -uo pipefail
shopt -s nullglob

usage() {
    cat <<'END'
usage: tests/gpu/run.sh [--build DIR | --tree DIR] [--device NAME] [--parts LIST] [--limit S] [--data DIR] [--dry] [--bf16]
       tests/gpu/run.sh --pack DIR [--architectures LIST]

  --build DIR      build there first (default: build-gpu); needs CMake, the CUDA toolkit and cmocka
  --tree DIR       build nothing: use bin/ and lib/ of that folder, as --pack made them elsewhere (README.md)
  --device NAME    cuda:0, cuda:1, ... (default: cuda:0)
  --parts LIST     of checks,speed,sanitizers (default: all three, in this order)
  --limit S        seconds for everything (default: 570): checks have 40 % of it, speed goes on to 85 %, sanitizers to the
                   end; what was cut is said
  --data DIR       a folder with mnist/ (default: TALWEG_TEST_DATA); without it that check is skipped
  --dry            the least of everything, to try this script
  --bf16           PyTorch's speed in bf16 as well
  --pack DIR       build and put what --tree needs into DIR, then end
  --architectures  CMake's list of compute capabilities for --pack (default: 80-real;90)

Exit status: 0 if all that ran passed, 77 if the GPU cannot be used (the reason is printed), 1 otherwise.
END
}

refuse() { echo "run.sh: $*" >&2; usage >&2; exit 2; }

tree='' build=build-gpu pack='' device=cuda:0 parts=checks,speed,sanitizers limit=570 data=${TALWEG_TEST_DATA:-} dry=false
architectures='80-real;90' bf16=()
while [ $# -gt 0 ]; do
    case $1 in
    --dry) dry=true ;;
    --bf16) bf16=(--bf16) ;;
    --help | -h) usage && exit ;;
    --build | --tree | --device | --parts | --limit | --data | --pack | --architectures)
        [ $# -gt 1 ] || refuse "$1 needs a value"
        printf -v "${1#--}" %s "$2"
        shift
        ;;
    *) refuse "unexpected argument: $1" ;;
    esac
    shift
done
[[ $limit =~ ^[1-9][0-9]*$ ]] || refuse "--limit: '$limit' is not a number of seconds"
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }
mapfile -t names < <(bash "$here/check.sh" --list)

# ---- building ----

programs=(talweg bench_train digits mnist_lenet)
for name in "${names[@]}"; do [[ $name != test_* ]] || programs+=("$name"); done

# make_tree DIR OPTION...: configures and builds what is run here; warnings and progress go to DIR/run.log.
make_tree() {
    local folder=$1
    mkdir -p "$folder"
    shift
    command -v cmake >/dev/null || { echo "run.sh: there is no cmake here; build elsewhere with --pack, and use --tree"; return 1; }
    echo "building in $folder"
    cmake -S "$source" -B "$folder" -DCMAKE_BUILD_TYPE=Release -DTALWEG_CUDA=ON "$@" >"$folder/run.log" 2>&1 &&
        cmake --build "$folder" --parallel "$(nproc)" --target "${programs[@]/#talweg/talweg_cli}" talweg_cuda >>"$folder/run.log" 2>&1 &&
        return
    tail -n 20 "$folder/run.log"
    return 1
}

# Programs, and the libraries they need that another machine may lack: not the C library, not CUDA's.
pack_tree() {
    local folder=$1 file
    make_tree "$folder/build" -DTALWEG_ONEDNN=OFF -DTALWEG_CUDA_ARCHITECTURES="$architectures" || return 1
    mkdir -p "$folder/bin" "$folder/lib" || return 1
    for file in "${programs[@]}"; do cp "$folder/build/bin/$file" "$folder/bin/" || return 1; done
    cp -P "$folder"/build/lib/libtalweg*.so* "$folder/lib/" || return 1
    ldd "$folder"/bin/* | awk '$2 == "=>" && $3 ~ "^/" { print $3 }' | sort -u |
        grep -Ev '/(lib(c|m|pthread|dl|rt|gcc_s|stdc[+][+]|talweg)[.]|ld-linux)' | xargs -r -I{} cp -L {} "$folder/lib/"
    strip "$folder"/bin/* "$folder"/lib/*.so*
    rm -rf "$folder/build"
    echo "$folder: $(du -sh "$folder" | cut -f1); there: tests/gpu/run.sh --tree $folder"
}

if [ -n "$pack" ]; then
    pack_tree "$(absolute "$pack")"
    exit
fi
if [ -z "$tree" ]; then
    tree=$(absolute "$build")
    make_tree "$tree" || exit 1
    SECONDS=0 # what the limit is for begins here
fi
tree=$(absolute "$tree")
[ -x "$tree/bin/talweg" ] || refuse "there is no bin/talweg in $tree"

# ---- what the programs find ----

export TALWEG_SOURCE_DIR=$source TALWEG_BUILD_DIR=$tree TALWEG_TEST_DEVICE=$device TALWEG_TEST_DATA=$data
export LD_LIBRARY_PATH=$tree/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
plugin=${TALWEG_CUDA_PLUGIN:-$tree/lib/libtalweg-cuda.so}
missing() { ldd "$plugin" 2>/dev/null | awk '/not found/ { print $1 }'; }
if [ -n "$(missing)" ]; then # libraries of CUDA that were installed with Python's package manager
    folders=$(python3 -c 'import glob, sys; print(":".join(f for p in sys.path for f in sorted(glob.glob(p + "/nvidia/*/lib"))))' 2>/dev/null)
    export LD_LIBRARY_PATH=$LD_LIBRARY_PATH${folders:+:$folders}
    [ -z "$folders" ] || echo "CUDA's libraries: $folders"
    [ -z "$(missing)" ] || echo "not found: $(missing | tr '\n' ' ')"
fi

answer=$("$tree/bin/talweg" doctor --device "$device" 2>&1) || { echo "skipped: $answer"; exit 77; }
echo "$answer"
nvidia-smi --query-gpu=index,name,clocks.sm,clocks.mem,power.limit,memory.used,utilization.gpu --format=csv 2>/dev/null
date -u '+measured %Y-%m-%d %H:%M UTC'
git -C "$source" log -1 --format='revision %h, %s' 2>/dev/null

# ---- running ----

failed=0 cut=() until=$limit
# share PERCENT: what follows may go on until so much of the limit has passed, so that no part takes the time of the next.
share() { until=$(((limit * $1 + 99) / 100)); }

# attempt SECONDS TITLE COMMAND...: runs it for that long at most, and for what is left; its output is shown if it failed.
attempt() {
    local seconds=$1 title=$2 status=0 began=$SECONDS left=$((until - SECONDS))
    shift 2
    if [ "$left" -le 0 ]; then
        cut+=("$title")
        return
    fi
    timeout --kill-after=5 "$((seconds < left ? seconds : left))" "$@" >"$log" 2>&1 </dev/null || status=$?
    case $status in
    0) echo "passed   $title ($((SECONDS - began)) s)" ;;
    77) echo "skipped  $title: $(sed -n 's/^skipped: //p' "$log" | head -n 1)" ;;
    124 | 137)
        cut+=("$title")
        echo "cut      $title after $((SECONDS - began)) s"
        ;;
    *)
        failed=1
        echo "FAILED   $title (exit status $status)"
        tail -n 40 "$log" | sed 's/^/    /'
        ;;
    esac
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
wants() { [[ ,$parts, == *,$1,* ]]; }

if wants checks; then
    share 40
    $dry && names=(test_pool_values test_tied_layers)
    for name in "${names[@]}"; do attempt 90 "$name" bash "$here/check.sh" "$name"; done
fi

if wants speed; then
    share 85
    measure=(--device "$device" --python "$(command -v python3)" --rounds 3 --seconds 1 "${bf16[@]}")
    $dry && measure=(--device "$device" --python '' --rounds 1 --seconds 0.01 --only lenet:2)
    if [ $((until - SECONDS)) -le 5 ]; then
        cut+=(speed)
    elif command -v python3 >/dev/null; then
        table=$(python3 "$source/tests/bench/beside_pytorch.py" "$tree/bin/bench_train" "${measure[@]}" --limit $((until - SECONDS))) || failed=1
    else # a line each, without PyTorch, medians and roofline
        workloads=(lenet:128 lenet:1024 resnet20:128 resnet20:1024 resnet18:256 resnet50:64 resnet50:256) seconds=1
        $dry && workloads=(lenet:2) seconds=0.01
        for workload in "${workloads[@]}"; do
            attempt 60 "speed of $workload" "$tree/bin/bench_train" --device "$device" --data gather --autotune \
                --seconds $seconds --warmup $seconds --model "${workload%:*}" --batch "${workload#*:}"
            table+=$(grep '^{' "$log")$'\n'
        done
    fi
fi

# Ops whose kernels share memory, reduce, or index in ways of their own, in what time is left.
if wants sanitizers; then
    share 100
    sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    if [ -x "$sanitizer" ]; then
        for tool in memcheck racecheck initcheck; do
            for op in conv2d batch_norm max_pool softmax_cross_entropy dense dropout gather adamw; do
                attempt 30 "$tool $op" "$sanitizer" --tool "$tool" --error-exitcode 9 "$tree/bin/test_ops" "$op"
                ! $dry || break
            done
        done
    else
        echo "skipped  sanitizers: there is no compute-sanitizer here"
    fi
fi

[ ${#cut[@]} -eq 0 ] || printf 'not finished for lack of time: %s\n' "$(printf '%s; ' "${cut[@]}")"
echo "$([ $failed = 0 ] && echo "all that ran passed" || echo "FAILED") in $SECONDS s"
[ -z "${table:-}" ] || printf '\n%s\n' "$table"
exit $failed
