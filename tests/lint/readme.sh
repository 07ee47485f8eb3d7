#!/usr/bin/env bash
# usage: readme.sh ROOT SHARED-LIBRARY COMPILER
# The C programs of the README compile and link exactly as they stand there.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -f "$1/README.md" ]; then
    awk -v prefix="$work/block" '/^```c$/ { inside = 1; n++; next } /^```/ { inside = 0 } inside { print > prefix n ".c" }' \
        "$1/README.md"
fi
programs=$(grep -lE '^int main\(' "$work"/*.c 2>/dev/null || true)
if [ -z "$programs" ]; then
    echo "skipped: README.md has no C program yet"
    exit 77
fi
for program in $programs; do
    "$3" -std=c11 -Wall -Wextra -Wpedantic -Werror -I"$1/include" "$program" -o "$work/program" \
        -L"${2%/*}" -ltalweg -lm -Wl,-rpath,"${2%/*}"
done
