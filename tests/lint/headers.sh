#!/usr/bin/env bash
# usage: headers.sh ROOT COMPILER FLAGS...
# Each public header compiles alone, without a warning.
set -eu
if ! command -v "$2" >/dev/null; then
    echo "skipped: no compiler ($2)"
    exit 77
fi
cd "$1/include"
failures=0
for header in $(find . -name '*.h' | sort); do
    echo "#include <${header#./}>" | "${@:2}" -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I. - || failures=1
done
exit $failures
