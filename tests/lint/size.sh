#!/usr/bin/env bash
# usage: size.sh ROOT
# A source file has at most 500 lines and a name of its own in the whole tree. Exceptions, one a line with the reason:
exceptions='
context.h   the public header is only ever written <talweg/context.h>
'
set -eu
cd "$1"

excepted() { grep -q "^$1 " <<<"$exceptions"; }

failures=0
declare -A seen
while IFS= read -r file; do
    name=${file##*/}
    excepted "$name" && continue
    lines=$(wc -l <"$file")
    if [ "$lines" -gt 500 ]; then
        echo "$file:$lines: more than 500 lines; split it by job"
        failures=1
    fi
    if [ -n "${seen[$name]:-}" ]; then
        echo "$file:1: ${seen[$name]} has the same name; names are unique in the tree"
        failures=1
    fi
    seen[$name]=$file
done < <(find include src kernels tests examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort)
exit $failures
