#!/usr/bin/env bash
# usage: test_kernels_compile.sh [ARCHITECTURE...]
# Every kernel compiles with nvcc for these architectures (80 and 90), without a warning, and keeps its variables in
# registers. With --list before them, tells the registers of every kernel.
set -eu
list=
[ "${1:-}" = --list ] && list=1 && shift
architectures=${*:-80 90}
cd "${TALWEG_SOURCE_DIR:-$(dirname "$0")/..}"
nvcc=${TALWEG_NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
if ! "$nvcc" --version > /dev/null 2>&1; then
    echo "skipped: there is no nvcc that runs (TALWEG_NVCC tells where it is)"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

targets=
for architecture in $architectures; do
    targets+=" -gencode arch=compute_$architecture,code=sm_$architecture"
done
compile="'$nvcc' -std=c++17 -O3 -Ikernels -Isrc -Iinclude -I. $targets -Xptxas -v -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror"
printf '%s\n' kernels/*.cu | xargs -P "$(nproc)" -I{} sh -c \
    "name=\$(basename {} .cu); $compile -c {} -o '$work'/\$name.o >'$work'/\$name.log 2>&1 || { echo {}; cat '$work'/\$name.log; exit 255; }"

# ptxas tells: the kernel and the architecture; stack and spills; registers.
cat "$work"/*.log | c++filt | awk -v list="$list" '
    /Compiling entry function/ { kernel = $0; sub(/.*entry function ./, "", kernel); sub(/. for .*/, "", kernel)
                                 target = $0; sub(/.* for ./, "", target); sub(/.$/, "", target) }
    /bytes spill stores/ { stores = $5; loads = $9
                           if (stores + loads > 0) { print target ": " kernel " spills " stores " and reloads " loads " bytes"; failed = 1 } }
    /Used [0-9]+ registers/ { kernels++; used = $0; sub(/.*Used /, "", used); sub(/ registers.*/, "", used)
                              if (list) print target ": " used " registers, " kernel; if (used + 0 > most) most = used + 0 }
    END { print kernels " kernels compiled, " most " registers at most"; exit failed || !kernels }'
