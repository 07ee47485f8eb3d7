#!/usr/bin/env bash
# The kernels compile for the other architectures too, from Turing to the Blackwell cards; the registers of each are told.
exec bash "$(dirname "$0")/test_kernels_compile.sh" --list 75 86 89 100 120
