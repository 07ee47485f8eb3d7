#!/usr/bin/env bash
# usage: includes.sh ROOT
# Dependencies point downwards only. A module (a folder under src) may include the public headers, its own files, and
# what is listed for it, modules or single files; nothing else. Examples see the public headers and what lies beside them.
allowed='
base
backend      base
backend/cpu  base backend
backend/cuda base backend
ops          base backend
graph        base backend ops
program      base backend ops graph
layers       base backend ops graph program
zoo          base backend ops graph program
optim        base backend ops graph program
data         base backend ops graph program
io           base backend ops graph program data/sampler.h data/dataset.h
trainer      base backend ops graph program layers zoo optim data io
plan         base backend ops graph program layers zoo optim data io trainer
cli
'
# Headers of vendors, and the one module that may see each.
vendors='
^(oneapi/dnnl/)?dnnl[a-z_]*[.]h$   backend/cpu
^cu[a-z]*(_[a-z]+)*[.]h$           backend/cuda
^nvtx3/                            backend/cuda
'
set -eu
cd "$1"
mapfile -t files < <(find include src examples -name '*.[ch]' -o -name '*.def' | sort)
allowed=$allowed vendors=$vendors awk '
    function complain(text) {
        print FILENAME ":" FNR ": " text
        failed = 1
    }
    function folder(path) {
        sub("/?[^/]*$", "", path)
        return path
    }
    function plain(path) { # without folder/..
        while (sub("[^/]+/[.][.]/", "", path)) continue
        return path
    }
    function check_quoted(header, path, target) {
        if (module == "backend/cuda" && header == "kernels/entries.h") return # the one view of kernels/
        path = plain(folder(FILENAME) "/" header)
        if (!(path in exists)) path = "src/" header
        sub("^src/", "", path)
        target = folder(path)
        if (!("src/" path in exists)) complain("\"" header "\" is neither beside the file nor under src")
        else if (!(module in known)) complain("module " module " is not in the table of lint/includes.sh")
        else if (target != module && !((module, target) in may) && !((module, path) in may))
            complain(module " may not include \"" header "\" of " target)
    }
    BEGIN {
        for (i = split(ENVIRON["allowed"], rows, "\n"); i > 0; i--) {
            for (n = split(rows[i], word, " "); n > 1; n--) may[word[1], word[n]]
            known[word[1]]
        }
        vendor_count = split(ENVIRON["vendors"], vendor)
        for (i = 1; i < ARGC; i++) exists[ARGV[i]]
    }
    FNR == 1 {
        module = folder(FILENAME)
        if (!sub("^src/", "", module)) module = ""
    }
    match($0, /^[ \t]*#[ \t]*include[ \t]*[<"][^>"]*[>"]/) {
        header = substr($0, 1, RLENGTH - 1)
        sub(/^[^<"]*/, "", header)
        quoted = header ~ /^"/
        header = substr(header, 2)
        if (header ~ "^talweg(/|[.]h$)") {
            if (!("include/" header in exists)) complain("<" header "> is no public header")
        } else if (!quoted) {
            for (i = 1; i < vendor_count; i += 2)
                if (header ~ vendor[i] && module != vendor[i + 1])
                    complain("<" header "> may be seen by " vendor[i + 1] " only")
        } else if (module == "") {
            if (FILENAME !~ /^examples\// || !("examples/" header in exists))
                complain("\"" header "\": only public headers here")
        } else {
            check_quoted(header)
        }
    }
    END { exit failed }' "${files[@]}"
