#!/usr/bin/env bash
# usage: setup.sh [--tests]
# Installs what building Talweg needs and this machine lacks (with --tests: also what its tests need), as Debian or
# Ubuntu packages, and says so. Installs nothing where all is there. On other systems it says what to install.
set -euo pipefail

tests=false
[ "${1:-}" = --tests ] && tests=true
cc=$(command -v "${CC:-cc}" || command -v gcc || command -v clang || true)

has_header() { [ -n "$cc" ] && echo "#include <$1>" | "$cc" -E - >/dev/null 2>&1; }

# What is missing, as package names; oneDNN is apart, for everything works without it, only slower.
missing=()
[ -n "$cc" ] && has_header stdlib.h || missing+=(gcc libc6-dev)
command -v cmake >/dev/null || missing+=(cmake)
command -v make >/dev/null || missing+=(make)
has_header zlib.h || missing+=(zlib1g-dev)
if $tests; then
    has_header cmocka.h || missing+=(libcmocka-dev)
    command -v c++ >/dev/null || missing+=(g++)
    command -v pkg-config >/dev/null || missing+=(pkg-config)
fi
wanted=()
has_header dnnl.h || wanted=(libdnnl-dev)

say() { printf '%s\n' "$*"; }

as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)

install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

without_onednn() { say "Going on without oneDNN: everything works, only slower."; }

all=("${missing[@]}" "${wanted[@]}")
if [ ${#all[@]} -gt 0 ]; then
    if command -v apt-get >/dev/null && { [ ${#as_root[@]} -eq 0 ] || command -v sudo >/dev/null; }; then
        say "Installing: ${all[*]}"
        "${as_root[@]}" apt-get update -q
        [ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
        [ ${#wanted[@]} -eq 0 ] || install "${wanted[@]}" || without_onednn
    else
        say "Missing here, by the names of Debian's packages: ${all[*]}"
        if command -v apt-get >/dev/null; then
            say "There is no sudo; as root, run:  apt-get install ${all[*]}"
        else
            say "Install them with this system's package manager."
        fi
        [ ${#missing[@]} -eq 0 ] || exit 1
        without_onednn
    fi
fi

version=$(cmake --version | sed -n 's/^cmake version //p')
if [ "$(printf '%s\n' 3.25 "$version" | sort -V | head -n 1)" != 3.25 ]; then
    say "CMake 3.25 or newer is needed, and this is $version. A newer one: python3 -m pip install cmake"
    exit 1
fi
