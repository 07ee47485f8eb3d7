#!/usr/bin/env bash
# The library and its tests for 64-bit ARM, built by a cross compiler and run under an emulator: the loops on NEON, every op
# against its specification, threads, files, and LeNet-5's first steps beside PyTorch's numbers.
#
# Wanted: aarch64-linux-gnu-gcc, qemu-aarch64, and cmocka and zlib for that architecture: where Debian's packages put them
# (libcmocka-dev:arm64, zlib1g-dev:arm64), or those packages unpacked in the folder TALWEG_AARCH64_ROOT.
set -eu
tests=(test_base test_half test_philox test_threads test_own_threads test_cpu_backend test_gemm test_gemm_sparse test_conv_inside test_point_kernels test_norm_kernels
       test_pool_kernels test_loss_kernels test_features test_conv_lanes test_conv_windows test_conv_winners test_conv_channelwise test_autotune test_device_info test_safetensors test_checkpoint_files
       test_timing test_measure test_copies test_cpu_barriers test_control_use test_trajectories test_ops)
compiler=${TALWEG_AARCH64_CC:-aarch64-linux-gnu-gcc}
root=${TALWEG_AARCH64_ROOT:-/}
skip() {
    echo "skipped: $*"
    exit 77
}
command -v "$compiler" >/dev/null || skip "there is no $compiler (Debian: gcc-aarch64-linux-gnu)"
command -v qemu-aarch64 >/dev/null || skip "there is no qemu-aarch64 (Debian: qemu-user)"
library() { # its folder
    local folder
    for folder in "$root"/usr/lib/aarch64-linux-gnu "$root"/usr/aarch64-linux-gnu/lib; do
        [ ! -e "$folder/lib$1.so" ] && [ ! -e "$folder/lib$1.a" ] || { echo "$folder" && return; }
    done
    return 1
}
libraries=$(library cmocka) || skip "there is no cmocka for aarch64 under $root (Debian: libcmocka-dev:arm64, or unpack it and set TALWEG_AARCH64_ROOT)"
library z >/dev/null || skip "there is no zlib for aarch64 under $root (Debian: zlib1g-dev:arm64, or unpack it and set TALWEG_AARCH64_ROOT)"

tree=$TALWEG_BUILD_DIR/aarch64
cmake -S "$TALWEG_SOURCE_DIR" -B "$tree" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER="$compiler" \
    -DCMAKE_LIBRARY_ARCHITECTURE=aarch64-linux-gnu -DCMAKE_FIND_ROOT_PATH="$root;/usr/aarch64-linux-gnu" \
    -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY \
    -DTALWEG_WERROR=ON -DTALWEG_ONEDNN=OFF -DTALWEG_CUDA=OFF -DTALWEG_TEST_EMULATION=OFF -DTALWEG_EXAMPLES=OFF -DTALWEG_TESTS=ON
cmake --build "$tree" --parallel "$(nproc)" --target "${tests[@]}" talweg_cli

run() { qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$libraries:$root/lib/aarch64-linux-gnu" "$@"; }
products=$(aarch64-linux-gnu-objdump -d "$tree/src/CMakeFiles/talweg_objects.dir/backend/cpu/gemm_baseline.c.o" | grep -c 'fmla.*[.]4s' || true)
failed=0
[ "$products" -gt 100 ] || { echo "FAILED: products are not made of NEON's multiply-adds ($products of them)" && failed=1; }
run "$tree/bin/talweg" bench --model mlp --batch 8 --seconds 0.01 --threads 1
for test in "${tests[@]}"; do
    echo "== $test"
    arguments=() device=()
    if [ "$test" = test_trajectories ]; then # an emulator takes very long for the other network, and for large batches
        arguments=('lenet5*') device=(-E TALWEG_TEST_DEVICE=cpu)
    fi
    run ${device[@]+"${device[@]}"} "$tree/bin/$test" ${arguments[@]+"${arguments[@]}"} >"$tree/$test.log" 2>&1 || { cat "$tree/$test.log" && echo "FAILED: $test" && failed=1; }
done
exit $failed
