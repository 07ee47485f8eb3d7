#!/usr/bin/env bash
# usage: includes.sh ROOT
# Dependencies point downwards only. A module (a folder under src) may include the public headers, its own files, and
# the files of the modules listed for it; nothing else. Programs outside src see the public headers alone; tests all.
allowed='
base
backend      base
backend/cpu  base backend
ops          base backend
graph        base backend ops
program      base backend ops graph
layers       base backend ops graph program
zoo          base backend ops graph program
optim        base backend ops graph program
data         base backend ops graph program
io           base backend ops graph program
trainer      base backend ops graph program layers zoo optim data io
infer        base backend ops graph program layers zoo optim data io
cli
'
# Headers of vendors, and the one module that may see each.
vendors='
(oneapi/dnnl/)?dnnl[a-z_]*[.]h   backend/cpu
cu[a-z]*(_[a-z]+)*[.]h           backend/cuda
'
set -eu
cd "$1"

module_of() { # src/<module>/<file>
    local folder=${1%/*}
    echo "${folder#src/}"
}

failures=0
complain() {
    echo "$1: $2"
    failures=1
}

check_quoted() { # file:line, including module, header
    local target module=$2
    if [ -f "src/$module/$3" ]; then
        target=src/$module/$3
    elif [ -f "src/$3" ]; then
        target=src/$3
    else
        complain "$1" "\"$3\" is neither beside the file nor under src"
        return
    fi
    target=$(module_of "$(realpath --relative-to=. "$target")")
    [ "$target" = "$module" ] && return
    local row
    row=$(grep -E "^$module( |$)" <<<"$allowed" || true)
    if [ -z "$row" ]; then
        complain "$1" "module $module is not in the table of $0"
    elif ! grep -qE " $target( |$)" <<<"$row"; then
        complain "$1" "$module may not include \"$3\" of $target"
    fi
}

check_vendor() { # file:line, including module, header
    local pattern owner
    while read -r pattern owner; do
        if [ -n "$pattern" ] && [ "$owner" != "$2" ] && grep -qxE "$pattern" <<<"$3"; then
            complain "$1" "<$3> may be seen by $owner only"
        fi
    done <<<"$vendors"
}

include='^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]([^>"]*)[>"]'
while IFS=: read -r file line text; do
    [[ $text =~ $include ]]
    header=${BASH_REMATCH[1]}
    module=
    [[ $file == src/* ]] && module=$(module_of "$file")
    if [[ $header == talweg/* || $header == talweg.h ]]; then
        [ -f "include/$header" ] || complain "$file:$line" "<$header> is no public header"
    elif [[ $text != *\"* ]]; then
        check_vendor "$file:$line" "$module" "$header"
    elif [ -n "$module" ]; then
        check_quoted "$file:$line" "$module" "$header"
    else
        complain "$file:$line" "\"$header\": only public headers here"
    fi
done < <(grep -nE "$include" -r include src examples --include='*.[ch]' --include='*.def')
exit $failures
