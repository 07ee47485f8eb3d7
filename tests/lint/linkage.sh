#!/usr/bin/env bash
# usage: linkage.sh FILES...
# Neither the library nor a program is linked with NVIDIA's libraries: they are found at run time or not at all.
set -eu
failures=0
while IFS= read -r line; do
    case $line in
    File:*) file=${line#File: } ;;
    *)
        echo "${file:-$*}: is linked with $line"
        failures=1
        ;;
    esac
done < <(readelf -d "$@" | sed -nE '/^File: /p; s/.*[(]NEEDED[)].*\[(lib(cuda|cudart|cublas|cublasLt|cudnn|nv)[^]]*)\].*/\1/p')
exit $failures
