#!/usr/bin/env python3
"""Measures bench_train beside PyTorch: every variant in turn, several rounds, medians, and the ratio to PyTorch's best.

usage: beside_pytorch.py BENCH_TRAIN [--python PYTHON] [--rounds N] [--seconds S] [--threads N] [--only MODEL:BATCH ...]

PyTorch runs with memory kept (--malloc keep) and passive waiting, in both layouts; the better one counts. Prints a
Markdown table; each figure is the median over the rounds, with the lowest and the highest in brackets.
"""
import argparse
import json
import os
import statistics
import subprocess

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("bench_train")
parser.add_argument("--python", default="/usr/bin/python3", help="an interpreter that has torch")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--seconds", type=float, default=3)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--only", nargs="*", default=["mlp:64", "mlp:256", "lenet:64", "lenet:256", "resnet20:64"])
options = parser.parse_args()
torch_script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_train.py")


def run(command):
    """The JSON line of one process."""
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.strip().splitlines()[-1])


def variants(model, batch):
    common = ["--model", model, "--batch", batch, "--threads", str(options.threads), "--seconds", str(options.seconds)]
    yield "talweg", [options.bench_train] + common
    for layout in ("0", "1"):
        if model == "mlp" and layout == "1":
            continue
        yield "pytorch, channels last" if layout == "1" else "pytorch", [
            options.python, torch_script, "--malloc", "keep", "--wait", "passive", "--channels-last", layout] + common


def text(values):
    return "%.0f [%.0f, %.0f]" % (statistics.median(values), min(values), max(values))


print("| workload | talweg, images/s | PyTorch's best, images/s | ratio | peak memory, MB | first step, s |")
print("|---|---|---|---|---|---|")
for workload in options.only:
    model, batch = workload.split(":")
    results = {}
    for _ in range(options.rounds):
        for name, command in variants(model, batch):
            results.setdefault(name, []).append(run(command))
    rates = {name: [r["rate"] for r in rows] for name, rows in results.items()}
    best = max((name for name in rates if name != "talweg"), key=lambda name: statistics.median(rates[name]))
    ratios = [ours / theirs for ours, theirs in zip(rates["talweg"], rates[best])]
    pair = lambda key, form: " / ".join(form % statistics.median(r[key] for r in results[name]) for name in ("talweg", best))
    print("| %s, batch %s | %s | %s (%s) | %.2f [%.2f, %.2f] | %s | %s |" % (
        model, batch, text(rates["talweg"]), text(rates[best]), best, statistics.median(ratios), min(ratios), max(ratios),
        pair("peak_rss_mb", "%.0f"), pair("first_step_s", "%.3f")), flush=True)
