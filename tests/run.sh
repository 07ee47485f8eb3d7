#!/usr/bin/env bash
# Installs what is missing, builds into build/, runs the tests; the last lines are ctest's own.
set -euo pipefail

usage() {
    cat <<'END'
usage: tests/run.sh [--full] [--help]

Builds Talweg and its tests into build/ and runs them: plain, under sanitizers, and with clang where it is
installed; warnings count as errors. Needed packages are installed first (Debian, Ubuntu; as root or with sudo).

  --full    also the long tests: accuracy over several seeds, every test in every build
  --help    this text

TALWEG_TEST_DATA=DIR   a folder with mnist/ and cifar10/ for the tests on real data; without it they are skipped
END
}

labels=quick
for argument in "$@"; do
    case $argument in
    --full) labels='quick|full' ;;
    --help | -h) usage && exit ;;
    *) usage >&2 && exit 2 ;;
    esac
done

cd "$(dirname "$0")/.."
bash tests/setup.sh --tests
processors=$(nproc)
cmake -S . -B build -DTALWEG_TESTS=ON -DTALWEG_CUDA=AUTO -DTALWEG_TEST_VARIANTS=ON -DTALWEG_EXAMPLES=ON -DTALWEG_WERROR=ON
cmake --build build --parallel "$processors"
exec ctest --test-dir build -L "^($labels)\$" --output-on-failure --parallel "$processors"
