#!/usr/bin/env bash
# From a fresh clone to a network that reads handwriting: installs what is missing, builds, trains.
set -euo pipefail

usage() {
    cat <<'END'
usage: examples/quickstart.sh [--seed N] [--help] [other options of the digits program]

Installs what is missing (Debian, Ubuntu; as root or with sudo), builds Talweg into build/ and trains a small
convolutional network on 1,201 handwritten digits. At the end: its accuracy on 596 others, the saved model, the
training history and a picture of the learning curve, all in build/digits/. The other example programs are built too.
Compiling takes about two minutes on two idle processors, training a few seconds. What was built can be installed:
cmake --install build --prefix PREFIX

  --seed N    the seed of weights, order and dropout
  --help      this text; build/bin/digits --help, once built, lists all options
END
}

for argument in "$@"; do
    case $argument in
    --help | -h) usage && exit ;;
    esac
done

cd "$(dirname "$0")/.."
bash tests/setup.sh
cuda=OFF # what nothing here could run is not compiled
for device in /dev/nvidiactl /dev/dxg; do [ ! -e "$device" ] || cuda=AUTO; done
cmake -S . -B build -DTALWEG_CUDA=$cuda
cmake --build build --parallel "$(nproc)" --target talweg_examples talweg_cli talweg_static # what an install takes
mkdir -p build/digits
exec build/bin/digits --data examples/data/digits --out build/digits "$@"
