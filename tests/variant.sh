#!/usr/bin/env bash
# usage: variant.sh CMAKE TREE PROCESSORS "TARGET..." OPTIONS...
# Configures a variant of the build (tests/variants.cmake), and builds some of its targets.
set -eu
"$1" -B "$2" "${@:5}"
"$1" --build "$2" --parallel "$3" --target $4
