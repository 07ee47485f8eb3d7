#!/usr/bin/env bash
# usage: symbols.sh ROOT SHARED-LIBRARY STATIC-LIBRARY
# What the library takes from and gives to a program, read from its symbol tables.
# (fprintf may write a file of the library's own: what it can print with, stdout and stderr, is forbidden.)
forbidden='exit|_exit|_Exit|quick_exit|abort|__assert_fail|raise|kill|signal|sigaction|atexit|srand|rand|srandom|random'
forbidden+='|setlocale|stdout|stderr|_*v?d?printf(_chk)?|puts|putchar|perror'
set -eu
failures=0
complain() {
    printf '%s\n' "$@"
    failures=1
}

taken=$(nm -D --undefined-only "$2" | awk '{ sub(/@.*/, "", $2); print $2 }' | grep -xE "$forbidden" || true)
[ -z "$taken" ] || complain "$2 uses what a library must leave to the program:" "$taken"

declared=$(bash "${0%/*}/exports.sh" "$1")
listed=$(cat "$1/src/exports.txt")
if ! difference=$(diff <(echo "$listed") <(echo "$declared")); then
    complain "src/exports.txt (<) and the headers (>) differ; if the change is meant:" \
             "  bash tests/lint/exports.sh . > src/exports.txt" "$difference"
fi
given=$(nm -D --defined-only "$2" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort)
if ! difference=$(diff <(echo "$listed") <(echo "$given")); then
    complain "src/exports.txt (<) and the symbols of $2 (>) differ:" "$difference"
fi

strangers=$(nm -g --defined-only "$3" | awk 'NF == 3 { print $3 }' | grep -vE '^twi?_' || true)
[ -z "$strangers" ] || complain "$3 defines global symbols without the prefix tw_ or twi_:" "$strangers"
exit $failures
