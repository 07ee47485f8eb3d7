#!/usr/bin/env bash
# `talweg plan`: what it says to right and to wrong command lines. Without the CUDA back end, so that the same is said everywhere.
# What its figures mean is tested by test_plan and test_cards.
set -u
program=${TALWEG_BUILD_DIR:?}/bin/talweg
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
export TALWEG_CUDA_DRIVER=/nowhere/libcuda.so.1 TALWEG_CUDA_PLUGIN=/nowhere/libtalweg-cuda.so
unset TALWEG_CACHE_DIR

fail() {
    echo "FAILED: $*"
    sed 's/^/    /' "$work/out" "$work/err" | head -40
    failures=$((failures + 1))
}
expect() { # status arguments...
    local status=0
    "$program" plan "${@:2}" >"$work/out" 2>"$work/err" </dev/null || status=$?
    [ "$status" = "$1" ] || fail "talweg plan ${*:2}: exit status $status, expected $1"
}
says() { grep -qF -- "$2" "$work/$1" || fail "no '$2' in $1"; }
silent() { [ ! -s "$work/$1" ] || fail "something in $1"; }
wrong() { # what it says, arguments...
    expect 2 "${@:2}" && says err "$1" && says err 'usage: talweg plan' && silent out
}

# ---- the command line ----

expect 0 --help && says out 'usage: talweg plan' && says out '--vram SIZE' && silent err
wrong 'what shall be planned?'
wrong 'unexpected argument: lenet' --model lenet lenet
wrong '--batch wants a whole number from 1 to 2147483647, got: 0' --model lenet --batch 0
wrong '--batch wants a whole number from 1 to 2147483647, got: 12x' --model lenet --batch 12x
wrong '--batch wants a whole number from 1 to 2147483647, got: 99999999999999999999' --model lenet --batch 99999999999999999999
wrong '--classes wants' --model lenet --classes -1
wrong '--accumulate wants' --model lenet --accumulate none
wrong '--threads wants' --model lenet --threads ''
wrong '--samples wants' --model lenet --samples 3000000000
wrong '--test-samples wants' --model lenet --test-samples 1.5
wrong '--input wants channels x height x width, such as 3x224x224, got: 28x28' --model lenet --input 28x28
wrong '--input wants' --model lenet --input 1x28x28x28
wrong '--precision wants f32, tf32, bf16, f16 or auto, got: half' --model lenet --precision half
wrong '--optimizer wants sgd or adamw, got: adam' --model lenet --optimizer adam
wrong '--recompute wants off, blocks or auto, got: all' --model lenet --recompute all
wrong '--memory-limit wants a size such as 24GiB (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB), got: 24' --model lenet --memory-limit 24
wrong '--vram wants a size such as 24GiB (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB), got: -1GiB' --model lenet --vram -1GiB
wrong '--vram wants' --model lenet --vram 0GiB
wrong 'ask one at a time' --model lenet --gpus --vram 1GiB
wrong 'leave --gpus out' --model lenet --gpus --dump
wrong 'leave --json out' --model lenet --json --dump
wrong 'leave --device out' --model lenet --gpus --device t4
wrong 'leave --batch out' --model lenet --vram 1GiB --batch 8
wrong 'two limits' --model lenet --vram 1GiB --memory-limit 1GiB
wrong 'a model file has its own' --model /nowhere/model.safetensors --classes 3
wrong 'a model file has its own' --model /nowhere/model.safetensors --input 1x8x8
expect 2 --model lenet --frobnicate && says err '--frobnicate' && silent out
expect 1 --model lenet --device voodoo2 && says err "no card 'voodoo2' is known" && silent out
expect 1 --model lenet --device cuda:0 && says err 'no NVIDIA driver' && silent out
says err 'a card that is not here is planned for by its name, such as --device h200 (talweg plan --list-devices)'
expect 1 --model /nowhere/model.safetensors --device cpu && says err '/nowhere/model.safetensors' && silent out
expect 1 --model lenet --device /nowhere/card.json && says err '/nowhere/card.json: cannot be opened' && silent out
expect 1 --model lenet --input 1x4x4 --device t4 && says err 'at least 12 x 12, got 4 x 4' && silent out

# ---- a plan ----

expect 0 --model lenet --batch 64 --device h200 --samples 60000 && silent err
says out 'lenet: 1 x 28 x 28, 10 classes, 61.7 k weights'
says out 'batch 64, f32, sgd with momentum, data on the device'
says out 'for NVIDIA H200 (plan:h200)'
says out 'they are not here to be asked'
says out 'driver and libraries            512 MiB  an estimate'
says out 'epoch of 60000 samples '
says out 'of 4.80 TB/s and 67.0 TFLOP/s in f32 (NVIDIA'
! grep -qE 'nan|inf|\(null\)|-[0-9]+ [KMG]iB' "$work/out" || fail 'a number that is none'
expect 0 --model lenet --device cpu --threads 1 && says out 'measured on this machine now'
! grep -q 'driver and libraries' "$work/out" || fail 'a CPU without libraries of its own'
expect 0 --model lenet --device t4 --dump && says out 'conv2d.forward'
expect 0 --model lenet --device h200 --precision bf16 && says out 'of 4.80 TB/s and 67.0 TFLOP/s in f32, 989 TFLOP/s in bf16 ('
expect 0 --model lenet --device h200 --precision auto && says out 'batch 64, bf16 (auto), sgd' && says out '989 TFLOP/s in bf16 ('
expect 0 --model lenet --device t4 --precision auto && says out 'batch 64, f32 (auto), sgd' && says out 'TFLOP/s in f32 (NVIDIA'
expect 0 --model mlp --device t4 && says out 'mlp: 1 x 28 x 28, 10 classes, 102 k weights'
expect 0 --model mlp --classes 1 --samples 1 --device t4 && says out 'mlp: 1 x 28 x 28, 1 class, ' && says out 'epoch of 1 sample '
expect 0 --list-devices && says out 'rtx5090 ' && says out 'NVIDIA A100 80GB SXM data sheet'
expect 0 --model lenet --gpus --batch 8 && says out 'b200 ' && says out 'epoch: give --samples'

# With one batch, or none that is asked for by name, the data are streamed.
expect 0 --model lenet --device t4 && says out 'data streamed'
expect 0 --model lenet --device t4 --samples 1000 --stream && says out 'data streamed' && says out 'epoch of 1000 samples'

# ---- a card of one's own ----

cat >"$work/h200.json" <<'JSON'
{"key": "mine", "name": "NVIDIA H200", "capability": 90, "processors": 132, "memory_gib": 141, "clock_mhz": 1980, "l2_mib": 60,
 "bandwidth_gbs": 4800, "f32_tflops": 67, "tf32_tflops": 495, "bf16_tflops": 989, "f16_tflops": 989, "source": "here"}
JSON
expect 0 --model resnet20 --batch 100 --device h200
grep -v 'TB/s\|plan:' "$work/out" >"$work/known"
expect 0 --model resnet20 --batch 100 --device "$work/h200.json" && says out '(plan:mine)'
grep -v 'TB/s\|plan:' "$work/out" | cmp -s - "$work/known" || fail 'the same card, another plan'
echo '{"name": "x", "capability": 90, "processors": 1, "memory_gib": 24}' >"$work/bare.json"
expect 0 --model lenet --device "$work/bare.json" && says out "unknown: the device's bandwidth and rates are not known"

# ---- the largest batch ----

needs() { # batch: bytes that it needs
    "$program" plan --model resnet20 --device t4 --batch "$1" --json |
        sed -nE 's/^ "memory": .*"peak": ([0-9]+),.*"overhead_estimate": ([0-9]+),.*/\1 + \2/p' | bc
}
expect 0 --model resnet20 --device t4 --vram 3GiB && says out 'fits in 3.00 GiB, as asked'
batch=$(sed -nE 's/^largest batch in 3[.]0+ GiB: ([0-9]+), .*/\1/p' "$work/out")
room=$((3 << 30))
if [ -n "$batch" ] && command -v bc >/dev/null; then
    [ "$(needs "$batch")" -le $room ] || fail "batch $batch does not fit"
    [ "$(needs $((batch + 1)))" -gt $room ] || fail "batch $((batch + 1)) fits, too"
fi
# All in one unit, with as many digits as tell what fits from what does not.
expect 0 --model lenet --device cpu --threads 2 --vram 1GB
awk '/^largest batch in/ { gsub(/;/, ""); found = 1; exit !($5 == "MiB:" && $10 == "MiB" && $15 == "MiB" && $9 <= $4 && $14 > $4) }
     END { if (!found) exit 1 }' "$work/out" || fail 'what a batch needs cannot be told from what the next one does'
expect 1 --model resnet50 --device t4 --vram 600MB && says err 'not even a batch of 1 fits' && silent out
expect 1 --model lenet --vram 2GiB && says err 'none here; name a card by --device' && silent out
expect 0 --model lenet --device cpu --vram 50MB && says out 'fits in 47.7 MiB, as asked'
expect 0 --model lenet --device t4 --vram 900000GiB && says out ': 16777216, which needs ' && says out '; larger ones are not'
# Nor is memory of the host taken for a batch.
expect 0 --model lenet --device t4 --batch 2000000000 && says out 'does not fit'

# ---- JSON ----

if command -v python3 >/dev/null; then
    printf '{"name": "\303\251 \303\050 \377 \355\240\200 \360\237\230\200", "capability": 90, "processors": 8, "memory_gib": 8}' \
        >"$work/card.json"
    expect 0 --model lenet --json --device "$work/card.json"
    python3 - "$work/out" <<'PY' || fail "JSON of a name that is not UTF-8"
import json, sys
name = json.load(open(sys.argv[1], encoding="utf-8"))["card"]["name"]
assert name == "\u00e9 \ufffd( \ufffd \ufffd\ufffd\ufffd \U0001f600", ascii(name)
PY
    for options in '--device t4' '--device rtx4090 --samples 1000' '--device t4 --vram 2GiB' --gpus; do
        # shellcheck disable=SC2086
        expect 0 --model resnet20 --json $options
        python3 - "$work/out" <<'PY' || fail "JSON of $options"
import json, sys
plans = json.load(open(sys.argv[1]))
for plan in plans if isinstance(plans, list) else [plans]:
    memory = plan["memory"]
    parts = sum(v for k, v in memory.items() if k not in ("peak", "overhead_estimate", "workspace_estimated", "fits"))
    assert parts == memory["peak"] > 0, memory
    assert plan["time"]["update_seconds"] > 0 and plan["card"]["name"]
    if "kinds" in plan:
        assert abs(sum(k["bytes"] for k in plan["kinds"]) - plan["time"]["bytes"]) < 1
        assert abs(sum(k["seconds"] for k in plan["kinds"]) - plan["time"]["update_seconds"]) < 1e-9
        assert plan["layers"][0]["memory"] >= plan["layers"][1]["memory"]
PY
    done
fi
exit $failures
