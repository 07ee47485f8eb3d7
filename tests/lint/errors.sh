#!/usr/bin/env bash
# usage: errors.sh ROOT
# Failures are born in TWI_FAIL alone, memory comes from the context alone, and the library leaves the program's
# process, output, signals and random numbers alone (src/cli is a program, with memory of its own). Each rule: files it does not hold for, and
# what it forbids.
rules='
src/base/status[.][ch]   (return|[^=!<>]=)[[:space:]]*TW_ERROR_[A-Z_]+|[^a-z_]twi_fail[[:space:]]*[(]
src/(base/memory[.]c|cli/[a-z_]+[.][ch]) (^|[^a-zA-Z_.>])(malloc|calloc|realloc|aligned_alloc|posix_memalign|strdup|strndup|asprintf|free)[[:space:]]*[(]
src/cli/[a-z_]+[.][ch]   (^|[^a-zA-Z_.>])(assert|abort|exit|_exit|_Exit|signal|sigaction|raise|printf|puts|putchar|perror|rand|srand)[[:space:]]*[(]
src/cli/[a-z_]+[.][ch]   (^|[^a-zA-Z_])(stdout|stderr|assert[.]h)([^a-zA-Z_]|$)
'
set -eu
cd "$1"
code=$(find src -name '*.[ch]' | sort | xargs awk -f "${0%/*}/code.awk")

failures=0
while read -r except pattern; do
    [ -n "$except" ] || continue
    if grep -vE "^$except:" <<<"$code" | grep -E "^[^:]+:[0-9]+: .*($pattern)"; then
        echo "  forbidden outside '$except': $pattern"
        failures=1
    fi
done <<<"$rules"
exit $failures
