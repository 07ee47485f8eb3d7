#!/usr/bin/env bash
# Installed into a prefix with a space, the library is found by pkg-config and by CMake, links shared and static, and
# forces no flag, symbol or floating-point state on the program.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
    echo "$*"
    exit 1
}
quietly() { "$@" >"$work/log" 2>&1 || fail "$* failed:" "$(cat "$work/log")"; }

cat >host.c <<'END'
#include <talweg/base.h>
#include <stdio.h>

/* Names that a library might take for its own. */
int crc32(void);
int log_error(void);
int read_file(void);
int stbi_load(void);
int crc32(void) { return 1; }
int log_error(void) { return 2; }
int read_file(void) { return 3; }
int stbi_load(void) { return 4; }

int main(void) {
    volatile float denormal = 1e-40f;
    if (denormal * 1.0f == 0.0f || crc32() + log_error() + read_file() + stbi_load() != 10) return 1;
    return printf("%s\n", tw_version()) < 0;
}
END

prefix="$work/a prefix"
quietly cmake --install "$TALWEG_BUILD_DIR" --prefix "$prefix"
libdir=$(dirname "$(find "$prefix" -name libtalweg.a)")

# The program finds the library wherever the tree is put.
mkdir moved
mv "$prefix" moved/
[ "$("$work/moved/a prefix/bin/talweg" --version)" = "talweg $(sed -n 's/^Version: //p' "moved/a prefix/${libdir#"$prefix"/}/pkgconfig/talweg.pc")" ] ||
    fail "the installed program does not run"
mv "moved/a prefix" .

# pkg-config. Its output is quoted for the shell, hence eval.
export PKG_CONFIG_PATH=$libdir/pkgconfig
version=$(pkg-config --modversion talweg)
flags=$(pkg-config --cflags --libs talweg)
[[ ! $flags =~ (^| )-[^IlL] ]] || fail "pkg-config passes more than -I, -L and -l: $flags"
eval "\"$TALWEG_CC\" host.c -o shared $flags"
[ "$(LD_LIBRARY_PATH=$libdir ./shared)" = "$version" ] || fail "shared: not the version of pkg-config, $version"
readelf -d shared | grep -q 'NEEDED.*libtalweg\.so\.[0-9]*\]' || fail "shared: the library has no SONAME"

flags=$(pkg-config --static --cflags --libs talweg)
[[ $flags == *-lz*-lm*-lpthread* ]] || fail "pkg-config --static leaves out libraries: $flags"
eval "\"$TALWEG_CC\" host.c -o static ${flags//-ltalweg/-l:libtalweg.a}"
[ "$(./static)" = "$version" ] || fail "static: not the version of pkg-config, $version"

# CMake.
for library in talweg talweg_static; do
    mkdir "$library"
    cat >"$library/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(host C)
find_package(talweg $version EXACT REQUIRED)
foreach(kind IN ITEMS COMPILE_OPTIONS COMPILE_DEFINITIONS COMPILE_FEATURES LINK_OPTIONS)
    get_target_property(value talweg::$library INTERFACE_\${kind})
    if(value)
        message(FATAL_ERROR "\${kind} leaks to users: \${value}")
    endif()
endforeach()
add_executable(host ../host.c)
target_link_libraries(host PRIVATE talweg::$library)
END
    quietly cmake -S $library -B $library/build -DCMAKE_C_COMPILER="$TALWEG_CC" -DCMAKE_PREFIX_PATH="$prefix"
    quietly cmake --build $library/build
    [ "$($library/build/host)" = "$version" ] || fail "CMake, $library: not the version of pkg-config, $version"
done

# Stands for compiling and for linking, and leaves an empty file.
cat >empty <<'END'
#!/bin/sh
while [ "$1" != -o ]; do shift; done
: >"$2"
END
chmod +x empty

# An absolute library directory, as some distributions set it, stays as it is.
quietly cmake -S "$TALWEG_SOURCE_DIR" -B absolute -DCMAKE_C_COMPILER="$TALWEG_CC" -DCMAKE_INSTALL_LIBDIR="$work/lib 64" \
              -DTALWEG_TESTS=OFF -DTALWEG_CUDA=OFF -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON \
              -DCMAKE_C_COMPILER_LAUNCHER="$work/empty" -DCMAKE_C_LINKER_LAUNCHER="$work/empty"
eval "flags=($(PKG_CONFIG_PATH=absolute/src pkg-config --libs talweg))"
[ "${flags[0]}" = "-L$work/lib 64" ] || fail "pkg-config ignores an absolute library directory: ${flags[*]}"

# What quickstart builds is all that an install takes.
targets=$(sed -n 's/^cmake --build build .*--target \([^#]*\).*/\1/p' "$TALWEG_SOURCE_DIR/examples/quickstart.sh")
[ "$targets" ] || fail "quickstart.sh names no targets"
# shellcheck disable=SC2086
quietly cmake --build absolute --target $targets
quietly cmake --install absolute --prefix "$work/from quickstart"
