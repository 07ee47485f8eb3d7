#!/usr/bin/env python3
"""Measures bench_train beside PyTorch: every variant in turn, several rounds, medians, and the ratio to PyTorch's best.

usage: beside_pytorch.py BENCH_TRAIN [--device NAME] [--python PYTHON] [--rounds N] [--seconds S] [--threads N]
                         [--only MODEL:BATCH ...] [--precision NAME ...] [--bf16] [--infer] [--limit S]
                         [--openblas-core NAME ...]

On the CPU PyTorch runs with memory kept (--malloc keep) and passive waiting, in both layouts, and with --openblas-core also
with OpenBLAS told which processor it has, where it does not know; the best counts. Both find ready batches in memory and read
them there (bench_train --data lent; images of several channels Talweg reorders first). On a GPU it runs channels last, eager and as one CUDA graph a step, its batches ready in the device's memory; bench_train gathers
and normalises its own there. Both pick convolutions by trial. f32 is f32 in both, without TF32; --precision names those of bench_train, each
a row beside PyTorch's f32; --bf16 adds PyTorch's autocast, for comparison. Where PyTorch is
not there, or does not see the GPU, bench_train is measured alone.

--infer measures answers instead of training steps, one image each unless --only says another batch: PyTorch in eval mode
without gradients. Half and 99 of 100 answers are within the times of the table, and the shortest is what a busy machine disturbs
least; Talweg's hold the reordering of an image of several channels.

A round is all workloads once. With --limit no process starts that late, and what was left out is said. Prints a Markdown
table at the end; each figure is the median over the rounds, with the lowest and the highest in brackets. Exit status: 0, or
1 if bench_train failed anywhere.

Share of the roofline: the time that the planned steps' arithmetic and memory traffic would take at the datasheet's peak
rates, whichever is longer, as a share of the time measured.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

# By part of the device's name: f32 TFLOP/s outside tensor cores and TB/s, as in NVIDIA's datasheets.
CARDS = [("H200", 67, 4.8), ("H100 PCIe", 51, 2.0), ("H100", 67, 3.35), ("A100-SXM4-80GB", 19.5, 2.039),
         ("A100 80GB PCIe", 19.5, 1.935), ("A100", 19.5, 1.555), ("L40S", 91.6, 0.864), ("L4", 30.3, 0.3),
         ("RTX 4090", 82.6, 1.008)]
WORKLOADS = {"cpu": ["mlp:64", "mlp:256", "lenet:64", "lenet:256", "resnet20:64"],
             "cuda": ["lenet:128", "lenet:1024", "resnet20:128", "resnet20:1024", "resnet18:256", "resnet50:64",
                      "resnet50:256"],
             "infer": ["lenet:1", "resnet20:1"]}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("bench_train")
parser.add_argument("--device", default="cpu")
parser.add_argument("--python", default=sys.executable, help="an interpreter that has torch; '' for none")
parser.add_argument("--openblas-core", nargs="*", default=[], help="OPENBLAS_CORETYPE to try as well")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--seconds", type=float, default=3)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--only", nargs="*")
parser.add_argument("--precision", nargs="*", default=["f32"], help="of bench_train: f32, bf16, ...")
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--infer", action="store_true")
parser.add_argument("--limit", type=float, help="seconds for everything")
options = parser.parse_args()
gpu = options.device != "cpu"
workloads = options.only or WORKLOADS["infer" if options.infer else "cuda" if gpu else "cpu"]
torch_script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_train.py")
began = time.monotonic()
failed = False


def say(text):
    print(text, file=sys.stderr, flush=True)


def left():
    return float("inf") if options.limit is None else options.limit - (time.monotonic() - began)


def torch_reason():
    """Why PyTorch cannot be measured; None if it can."""
    if not options.python:
        return "no interpreter with torch was named"
    probe = "import torch; assert %s or torch.cuda.is_available(), 'torch sees no GPU'" % (not gpu)
    try:
        answer = subprocess.run([options.python, "-c", probe], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    return None if answer.returncode == 0 else answer.stderr.strip().splitlines()[-1]


def variants(model, batch, with_torch):
    common = ["--model", model, "--batch", batch, "--threads", str(options.threads), "--seconds", str(options.seconds),
              "--warmup", str(min(1, options.seconds)), "--mode", "infer" if options.infer else "train"]
    ways = ["--data", "gather", "--autotune"] if gpu else []
    for precision in options.precision:
        yield "talweg " + precision, [options.bench_train, "--device", options.device, "--precision", precision] + ways + common
    if not with_torch:
        return
    torch = [options.python, torch_script, "--malloc", "keep", "--wait", "passive"] + common
    if gpu:
        for bf16 in ["0", "1"] if options.bf16 else ["0"]:
            for variant in ["eager", "graph"]:
                yield "pytorch %s%s" % (variant, ", bf16" if bf16 == "1" else ""), torch + [
                    "--device", options.device, "--channels-last", "1", "--variant", variant, "--bf16", bf16]
        return
    for core in [""] + options.openblas_core:
        suffix = ", OpenBLAS for " + core if core else ""
        ways = torch + (["--openblas-core", core] if core else [])
        yield "pytorch" + suffix, ways
        if model != "mlp":
            yield "pytorch, channels last" + suffix, ways + ["--channels-last", "1"]


def run(name, workload, command):
    """The JSON line of one process; None if it failed or took too long."""
    global failed
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=None if options.limit is None else max(left(), 1))
        if answer.returncode == 0:
            return json.loads(answer.stdout.strip().splitlines()[-1])
        reason = (answer.stderr.strip().splitlines() or ["exit status %d" % answer.returncode])[-1]
        failed = failed or name.startswith("talweg")
    except subprocess.TimeoutExpired:
        reason = "cut: out of time"
    except (IndexError, ValueError):
        reason = "its last line is no JSON"
        failed = failed or name.startswith("talweg")
    say("%s, %s: %s" % (workload, name, reason))
    return None


def measure(with_torch):
    """{workload: {variant: [JSON, ...]}}, and what was left out for lack of time."""
    results, cut = {workload: {} for workload in workloads}, []
    for turn in range(options.rounds):
        for workload in workloads:
            for name, command in variants(*workload.split(":"), with_torch):
                if left() <= 0:
                    cut.append("round %d of %s, %s" % (turn + 1, workload, name))
                    continue
                answer = run(name, workload, command)
                if answer:
                    results[workload].setdefault(name, []).append(answer)
                    say("%s, %s: %.0f %s" % (workload, name, answer["rate"], answer["unit"]))
    return results, cut


def number(value):
    return "%.3g" % value if value < 100 else "%.0f" % value


def spread(values):
    return "%s [%s, %s]" % (number(statistics.median(values)), number(min(values)), number(max(values)))


def median_of(rows, key):
    return number(statistics.median(r[key] for r in rows)) if rows else "-"


def roofline(rows):
    for name, tflops, tbytes in CARDS:
        if name in rows[0]["device_name"]:
            least = max(rows[0]["gflop_per_step"] / tflops, rows[0]["mb_per_step"] / tbytes / 1e3)  # ms
            return "%.0f %%" % (100 * least / statistics.median(r["batch"] / r["rate"] * 1e3 for r in rows))
    return "-"


def row(*cells):
    """A line of the table; what only a GPU has is left out on the CPU."""
    return "| %s |" % " | ".join(text for text in cells if text is not None)


def latencies(results):
    """The lines of the table of answers."""
    yield row("workload", "talweg, us (p50)", "p99", "shortest", "PyTorch's best, us (p50)", "p99", "shortest", "ratio of p50",
              "ratio of the shortest")
    yield row(*["---"] * 9)
    p50 = lambda rows: spread([r["lat_us_p50"] for r in rows])
    for workload, found in results.items():
        others = [variant for variant in found if not variant.startswith("talweg")]
        best = min(others, key=lambda variant: statistics.median(r["lat_us_p50"] for r in found[variant]), default=None)
        theirs = found.get(best, [])
        for precision in options.precision:
            name = workload.replace(":", ", batch ") + ("" if precision == "f32" else ", " + precision)
            ours = found.get("talweg " + precision)
            if not ours:
                yield row(name, "not measured")
                continue
            ratio = lambda key: spread([b[key] / a[key] for a, b in zip(ours, theirs)]) if theirs else "-"
            yield row(name, p50(ours), median_of(ours, "lat_us_p99"), median_of(ours, "lat_us_best"),
                      "%s (%s)" % (p50(theirs), best) if theirs else "-", median_of(theirs, "lat_us_p99"),
                      median_of(theirs, "lat_us_best"), ratio("lat_us_p50"), ratio("lat_us_best"))


def table(results):
    memory = "device_mb" if gpu else "peak_rss_mb"
    yield row("workload", "talweg, images/s", "PyTorch's best, images/s", "ratio", "share of the roofline" if gpu else None,
              "host, us a step" if gpu else None, "peak memory, MB", "first step after start, s")
    yield row(*["---"] * (8 if gpu else 6))
    for workload, found in results.items():
        name = workload.replace(":", ", batch ")
        plain = {variant: rows for variant, rows in found.items() if not variant.startswith("talweg") and "bf16" not in variant}
        best = max(plain, key=lambda variant: statistics.median(r["rate"] for r in plain[variant]), default=None)
        theirs = plain.get(best, [])
        for precision in options.precision:
            ours = found.get("talweg " + precision)
            label = name if precision == "f32" else "%s, %s" % (name, precision)
            if not ours:
                yield row(label, "not measured")
                continue
            ratios = [a["rate"] / b["rate"] for a, b in zip(ours, theirs)]
            pair = lambda key: "%s / %s" % (median_of(ours, key), median_of(theirs, key))
            yield row(label, spread([r["rate"] for r in ours]),
                      "%s (%s)" % (spread([r["rate"] for r in theirs]), best) if theirs else "-",
                      spread(ratios) if ratios else "-", roofline(ours) if gpu else None, pair("host_us") if gpu else None,
                      pair(memory), pair("first_step_s"))
        for variant in found:
            if variant.startswith("pytorch") and "bf16" in variant:
                yield row("%s, %s" % (name, variant), "", spread([r["rate"] for r in found[variant]]), "", "",
                          *("- / " + median_of(found[variant], key) for key in ("host_us", memory, "first_step_s")))


reason = torch_reason()
if reason:
    say("PyTorch is not measured: %s" % reason)
results, cut = measure(reason is None)
if cut:
    say("left out, out of time: %s" % "; ".join(cut))
names = {r["device_name"] for found in results.values() for variant in found if variant.startswith("talweg") for r in found[variant]}
versions = sorted({r["peer"] for found in results.values() for rows in found.values() for r in rows})
print("%s on %s; %s; PyTorch in f32; medians of at most %d interleaved rounds of %g s" % (
    options.device, ", ".join(sorted(names)) or "nothing", ", ".join(versions), options.rounds, options.seconds))
print("\n".join(latencies(results) if options.infer else table(results)))
sys.exit(failed)
