#!/usr/bin/env python3
"""Measures bench_train when it does not have the machine for itself: alone, two at once, and beside a process that only keeps a
processor busy. Nobody may collapse: two together should do about what one does alone, and what a second of processor time brings
should stay. Rounds are interleaved, medians are told.

usage: beside_others.py BENCH_TRAIN [--workload MODEL:BATCH] [--threads N] [--rounds N] [--seconds S]"""
import argparse
import json
import statistics
import subprocess
import sys

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("bench_train")
parser.add_argument("--workload", default="lenet:64")
parser.add_argument("--threads", type=int, default=0, help="0: all processors")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--seconds", type=float, default=2)
options = parser.parse_args()
model, batch = options.workload.split(":")
command = [options.bench_train, "--model", model, "--batch", batch, "--threads", str(options.threads), "--seconds", str(options.seconds),
           "--warmup", "0.3"]


def measure(count, busy):
    """Images a second of all, and images a second of processor time, of `count` processes beside `busy` others."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        ours = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
        answers = [process.communicate()[0] for process in ours]
    finally:
        for process in others:
            process.kill()
            process.wait()
    if any(process.returncode for process in ours):
        sys.exit("bench_train failed")
    found = [json.loads(answer.strip().splitlines()[-1]) for answer in answers]
    return sum(f["rate"] for f in found), statistics.mean(f["rate_per_cpu_s"] for f in found)


cases = [("alone", 1, 0), ("two at once, together", 2, 0), ("beside one busy process", 1, 1), ("beside two busy processes", 1, 2)]
results = {name: [] for name, _, _ in cases}
for _ in range(options.rounds):
    for name, count, busy in cases:
        results[name].append(measure(count, busy))
alone = results["alone"]
print("%s, %s threads, medians of %d interleaved rounds of %g s\n" % (options.workload, options.threads or "all", options.rounds, options.seconds))
print("| | images/s | of alone | images a second of processor time | of alone |\n|---|---|---|---|---|")
for name, rows in results.items():
    rate, thrift = (statistics.median(row[i] for row in rows) for i in (0, 1))
    share = lambda i: statistics.median(row[i] / other[i] for row, other in zip(rows, alone))
    print("| %s | %.0f | %.2f | %.0f | %.2f |" % (name, rate, share(0), thrift, share(1)))
