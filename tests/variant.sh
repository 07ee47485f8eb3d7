#!/usr/bin/env bash
# usage: variant.sh CMAKE TREE PROCESSORS OPTIONS...
# Configures and builds a variant of the build (tests/variants.cmake).
set -eu
"$1" -B "$2" "${@:4}"
"$1" --build "$2" --parallel "$3"
