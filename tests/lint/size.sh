#!/usr/bin/env bash
# usage: size.sh ROOT
# A source file has at most 500 lines, and a name of its own in the whole tree. A public header may share its name with
# an internal one, since it is only ever written <talweg/...>. Files that may be longer, one a line with the reason:
exceptions='
'
set -eu
cd "$1"

failures=0
declare -A seen
while IFS= read -r file; do
    lines=$(wc -l <"$file")
    if [ "$lines" -gt 500 ] && ! grep -q "^$file " <<<"$exceptions"; then
        echo "$file:$lines: more than 500 lines; split it by job"
        failures=1
    fi
    name=${file##*/}
    [[ $file == include/* ]] && name="<$name>"
    if [ -n "${seen[$name]:-}" ]; then
        echo "$file:1: ${seen[$name]} has the same name; names are unique in the tree"
        failures=1
    fi
    seen[$name]=$file
done < <(find include src kernels tests examples -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | sort)
exit $failures
