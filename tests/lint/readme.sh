#!/usr/bin/env bash
# usage: readme.sh ROOT SHARED-LIBRARY COMPILER
# The C programs of the README compile, link and run exactly as they stand there, one after the other in a folder with
# the examples, where what one of them saves is there for the next.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -f "$1/README.md" ]; then
    awk -v prefix="$work/block" '/^```c$/ { inside = 1; file = sprintf("%s%02d.c", prefix, ++n); next }
        /^```/ { inside = 0 } inside { print > file }' "$1/README.md"
fi
programs=$(grep -lE '^int main\(' "$work"/*.c 2>/dev/null || true)
if [ -z "$programs" ]; then
    echo "skipped: README.md has no C program yet"
    exit 77
fi
mkdir -p "$work/top/build"
ln -s "$1/examples" "$work/top/examples"
for program in $programs; do
    "$3" -std=c11 -Wall -Wextra -Wpedantic -Werror -I"$1/include" "$program" -o "$work/program" \
        -L"${2%/*}" -ltalweg -lm -Wl,-rpath,"${2%/*}"
    (cd "$work/top" && "$work/program") >"$work/out" 2>&1 || { cat "$work/out"; echo "README.md: a program fails"; exit 1; }
done
