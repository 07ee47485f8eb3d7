#!/usr/bin/env bash
# usage: exports.sh ROOT
# Prints the names of the public functions, as the headers declare them, sorted. After a change of the interface:
#   bash tests/lint/exports.sh . > src/exports.txt
set -eu
cd "$1"
find include -name '*.h' | sort | xargs cat | tr '\n' ' ' | sed 's/TW_API/\n&/g' |
    sed -nE 's/^TW_API [^(;]*[^a-z0-9_(;](tw_[a-z0-9_]+) *\(.*/\1/p' | LC_ALL=C sort
