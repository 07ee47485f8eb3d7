#!/usr/bin/env python3
"""Makes the IDX files in this folder from scikit-learn's digits.csv.gz.

usage: make.py [digits.csv.gz]     without a path: the copy inside an installed scikit-learn

Within each class, in the order of the source, samples 2, 5, 8, ... (counted from 0) are the test set and the rest
the training set; both keep the order of the source. Grey values 0 .. 16 become v * 255 / 16, rounded, halves upwards.
"""
import gzip
import importlib.util
import pathlib
import struct
import sys


def source_path():
    if len(sys.argv) > 1:
        return pathlib.Path(sys.argv[1])
    package = importlib.util.find_spec("sklearn")
    if package is None:
        sys.exit("scikit-learn is not installed; give the path of its digits.csv.gz")
    return pathlib.Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def write_idx(path, dims, payload):
    header = struct.pack(">HBB", 0, 0x08, len(dims)) + struct.pack(f">{len(dims)}I", *dims)  # 0x08: unsigned bytes
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(header + payload)


def main():
    splits = {"train": [], "test": []}
    seen = [0] * 10
    with gzip.open(source_path(), "rt", encoding="ascii") as lines:
        for line in lines:
            *pixels, label = (int(float(number)) for number in line.split(","))
            splits["test" if seen[label] % 3 == 2 else "train"].append((pixels, label))
            seen[label] += 1
    for name, samples in splits.items():
        images = bytes((v * 255 + 8) // 16 for pixels, _ in samples for v in pixels)
        labels = bytes(label for _, label in samples)
        folder = pathlib.Path(__file__).parent
        write_idx(folder / f"{name}-images-idx3-ubyte.gz", (len(samples), 8, 8), images)
        write_idx(folder / f"{name}-labels-idx1-ubyte.gz", (len(samples),), labels)
        print(f"{name}: {len(samples)} samples")


main()
