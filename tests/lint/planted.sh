#!/usr/bin/env bash
# usage: planted.sh C-COMPILER
# Each house check passes on a tiny tree without fault and fails on the same tree with one planted.
set -eu
cc=$1
lint=$(cd "${0%/*}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

grow_tree() { # a library of one function
    rm -rf "$work/tree"
    mkdir -p "$work/tree"/{include/talweg,src/{base,ops,graph,backend/cpu},kernels,tests,examples}
    cd "$work/tree"
    echo '#define TW_API __attribute__((visibility("default")))
/** Nothing. */
TW_API int tw_zero(void);' >include/talweg/base.h
    echo '#include <talweg/base.h>
int tw_zero(void) { return 0; }' >src/base/zero.c
    echo 'int twi_low(void);' >src/base/low.h
    echo 'int twi_high(void);' >src/graph/high.h
    echo tw_zero >src/exports.txt
    printf '%s\n' '```c' '#include <talweg/base.h>' 'int main(void) { return tw_zero(); }' '```' >README.md
}

run_check() { # name
    case $1 in
    symbols | readme)
        "$cc" -Iinclude -fPIC -fvisibility=hidden -shared -o libtalweg.so src/base/*.c &&
            "$cc" -Iinclude -fPIC -fvisibility=hidden -c src/base/zero.c -o zero.o && ar rc libtalweg.a zero.o || return 2
        ;;&
    linkage)
        "$cc" -shared -o libcudart.so.13 -Wl,-soname,libcudart.so.13 -xc /dev/null &&
            "$cc" -Iinclude -fPIC -shared -o libtalweg.so src/base/*.c -Wl,--no-as-needed $(cat libraries 2>/dev/null) || return 2
        bash "$lint/linkage.sh" libtalweg.so
        ;;
    symbols) bash "$lint/symbols.sh" . "$PWD/libtalweg.so" libtalweg.a ;;
    readme) bash "$lint/readme.sh" "$PWD" "$PWD/libtalweg.so" "$cc" ;;
    headers) bash "$lint/headers.sh" . "$cc" -std=c11 -x c ;;
    *) bash "$lint/$1.sh" . ;;
    esac
}

try() { # passes|fails, check, file, text to plant in it
    grow_tree
    [ $# -lt 4 ] || printf '%b\n' "$4" >>"$3"
    local status=0
    run_check "$2" >"$work/output" 2>&1 || status=$?
    case $1$status in
    passes0 | fails1) return ;;
    esac
    echo "$2 ends with $status where it $1, with this planted in ${3:-no file}: ${4:-}"
    cat "$work/output"
    failures=1
}

try passes size
try fails  size src/ops/long.c "$(printf '%0501d' 0 | sed 's/0/int x;\\n/g')"
try fails  size tests/long.cpp "$(printf '%0501d' 0 | sed 's/0/int x;\\n/g')"
try passes size src/base/base.h 'int x;'
try fails  size src/ops/zero.c 'int x;'

try passes includes src/graph/fine.c '#include <stdio.h>\n#include "high.h"\n#include "base/low.h"\n#include "../base/low.h"'
try passes includes src/backend/cpu/fine.c '#include <dnnl.h>'
try fails  includes src/base/up.c '#include "graph/high.h"'
try fails  includes src/base/up.c '#include "../graph/high.h"'
try fails  includes src/backend/cpu/up.c '  #  include "graph/high.h"'
try fails  includes src/graph/vendor.c '#include <dnnl.h>'
try fails  includes src/backend/cpu/vendor.c '#include <cudnn.h>'
try fails  includes src/base/lost.c '#include "nowhere.h"'
try fails  includes src/base/lost.c '#include <talweg/nowhere.h>'
try passes includes examples/shared.h '#include "shared.h"'
try fails  includes examples/inner.c '#include "base/low.h"'
try fails  includes examples/inner.c '#include "../src/base/low.h"'

try passes errors src/base/fine.c '/* return TW_ERROR_FILE; free(x) */\nint y = x == TW_ERROR_FILE; // abort()\nf("exit(1) \\\\"", TW_ERROR_FILE);'
try fails  errors src/base/born.c 'int f(void) { return TW_ERROR_FILE; }'
try fails  errors src/base/born.c '/* a */ status = /* b */ TW_ERROR_FILE;'
try fails  errors src/base/born.c 'return twi_fail(TW_ERROR_FILE, "x");'
try fails  errors src/base/memory.h 'char *c = malloc(1);'
try fails  errors src/base/end.c 'if (x) abort();'
try fails  errors src/base/say.c 'fputs("x", stderr);'
try fails  errors src/base/say.c '#include <assert.h>'

try passes docs
try fails  docs include/talweg/base.h 'TW_API int tw_one(void);'
try fails  docs include/talweg/base.h '/* One. */\nTW_API int tw_one(void);'
try fails  docs include/talweg/base.h '/** One. */\n\nTW_API int tw_one(void);'

try passes headers
try fails  headers include/talweg/alone.h 'size_t tw_one(void);'

try passes symbols
try fails  symbols src/base/zero.c '#include <stdlib.h>\nvoid twi_end(void);\nvoid twi_end(void) { abort(); }'
try fails  symbols src/base/zero.c '#include <stdio.h>\nvoid twi_say(void);\nvoid twi_say(void) { fputs("x", stderr); }'
try fails  symbols src/base/zero.c '#include <stdio.h>\nvoid twi_say(void);\nvoid twi_say(void) { printf("%d", 1); }'
try fails  symbols src/base/zero.c 'int stranger(void) { return 0; }'
try fails  symbols src/base/zero.c 'TW_API int tw_one(void);\nint tw_one(void) { return 1; }'
try fails  symbols include/talweg/base.h '/** One. */\nTW_API int\ntw_one(int a,\n           int b);'
try fails  symbols src/exports.txt tw_one

try passes linkage libraries -lm
try fails  linkage libraries ./libcudart.so.13

try passes readme
try passes readme README.md 'more\n```c\nint x = unknown;\n```'
try fails  readme README.md '```c\nint main(void) { return tw_unknown(); }\n```'
try fails  readme README.md '```c\nint main(void) { int unused; return 0; }\n```'
try fails  readme README.md '```c\nint main(void) { return 1; }\n```'
exit $failures
