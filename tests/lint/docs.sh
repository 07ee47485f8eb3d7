#!/usr/bin/env bash
# usage: docs.sh ROOT
# Every public function has a /** comment */ directly before it.
set -eu
cd "$1"
mapfile -t headers < <(find include -name '*.h' | sort)
awk '
    FNR == 1 { documented = 0; inside = 0 }
    /^TW_API/ && !documented { print FILENAME ":" FNR ": no /** comment */ before " $0; failed = 1 }
    /^[ \t]*\/\*\*/ { inside = 1 }
    { documented = inside && /\*\/[ \t]*$/ }
    /\*\// { inside = 0 }
    END { exit failed }' "${headers[@]}"
