#!/usr/bin/env python3
"""Measures how much faster bench_train is on several threads than on one: every case in turn, several rounds. With more than one
BENCH_TRAIN, say of before and after a change, all of them are measured in turn.

usage: beside_one_thread.py BENCH_TRAIN ... [--threads N] [--rounds N] [--seconds S] [--only MODEL:BATCH[:DATA] ...]

A time is the lower quartile over the rounds of each round's median step. On a machine that others use too medians of medians tell more
of them than of the program; the shortest step of all rounds stands beside it. DATA as in bench_train --data: mlp:64:memory copies."""
import argparse
import json
import statistics
import subprocess
import sys

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("bench_train", nargs="+")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=9)
parser.add_argument("--seconds", type=float, default=0.6)
parser.add_argument("--only", nargs="*", default=["mlp:64", "mlp:256", "lenet:64", "lenet:256", "resnet20:64"])
options = parser.parse_args()


def measure(program, case, threads):
    """Median and shortest step of one run, in us."""
    model, batch, *data = case.split(":")
    command = [program, "--model", model, "--batch", batch, "--threads", str(threads), "--seconds", str(options.seconds), "--warmup", "0.2"]
    answer = subprocess.run(command + (["--data", *data] if data else []), capture_output=True, text=True)
    if answer.returncode:
        sys.exit("%s: %s" % (" ".join(command), answer.stderr.strip()))
    found = json.loads(answer.stdout.strip().splitlines()[-1])
    return found["lat_us_p50"], found["lat_us_best"]


def lower_quartile(values):
    return statistics.quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else values[0]


threads = [1, options.threads]
times = {(case, program, n): [] for case in options.only for program in options.bench_train for n in threads}
for _ in range(options.rounds):
    for case, program, n in times:
        times[case, program, n].append(measure(program, case, n))
print("step in us, lower quartile of the medians of %d runs of %g s in turn; in brackets the shortest of all\n" % (options.rounds, options.seconds))
print("| workload | one thread | %d threads | one to %d |\n|---|---|---|---|" % (options.threads, options.threads))
for case in options.only:
    for number, program in enumerate(options.bench_train):
        one, many = ((lower_quartile([m for m, _ in times[case, program, n]]), min(s for _, s in times[case, program, n])) for n in threads)
        name = case + (" (%d)" % (number + 1) if len(options.bench_train) > 1 else "")
        print("| %s | %.0f [%.0f] | %.0f [%.0f] | %.2f [%.2f] |" % (name, *one, *many, one[0] / many[0], one[1] / many[1]))
