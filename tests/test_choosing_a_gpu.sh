#!/usr/bin/env bash
# docs/choosing-a-gpu.md, docs/memory.md and docs/mixed-precision.md: their commands run, and what they quote is what these print. With --write they are brought up to date instead.
# Without the CUDA back end, so that the figures depend on no library.
set -u
program=${TALWEG_BUILD_DIR:?}/bin/talweg
documents=${TALWEG_SOURCE_DIR:?}/docs
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TALWEG_CUDA_PLUGIN=/nowhere/libtalweg-cuda.so
unset TALWEG_CACHE_DIR

# The document with what its commands print now: a block that begins with "$ talweg " is a command and its output.
print_now() { # document
    local inside=no line words
    while IFS= read -r line; do
        case $line in
        '$ talweg '*)
            [ "$inside" = yes ] || continue
            printf '%s\n' "$line"
            read -ra words <<<"${line#'$ talweg '}"
            "$program" "${words[@]}" 2>&1 || echo "exit status $?"
            echo "$line" >>"$work/commands"
            inside=skip
            ;;
        '```console')
            inside=yes
            printf '%s\n' "$line"
            ;;
        '```'*)
            inside=no
            printf '%s\n' "$line"
            ;;
        *) [ "$inside" = skip ] || printf '%s\n' "$line" ;;
        esac
    done <"$1"
}

failed=0
for entry in choosing-a-gpu:3 memory:3 mixed-precision:2; do # and how many commands there must be
    document=$documents/${entry%:*}.md
    : >"$work/commands"
    print_now "$document" >"$work/now"
    if [ "${1:-}" = --write ]; then
        cp "$work/now" "$document"
        continue
    fi
    [ "$(wc -l <"$work/commands")" -ge "${entry#*:}" ] || { echo "FAILED: hardly any commands in $document" && failed=1; }
    diff -u "$document" "$work/now" || { echo "FAILED: run it with --write, and read what has changed" && failed=1; }
done
exit $failed
