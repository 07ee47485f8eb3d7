# Prints a C file as file:line: code, with comments and the contents of strings and characters left out.
FNR == 1 { comment = 0 }
{
    rest = $0
    code = ""
    while (rest != "") {
        if (comment) {
            end = index(rest, "*/")
            comment = !end
            rest = end ? substr(rest, end + 2) : ""
        } else if (match(rest, /"([^"\\]|\\.)*"|'([^'\\]|\\.)+'|\/\*|\/\//)) {
            code = code substr(rest, 1, RSTART - 1)
            token = substr(rest, RSTART, RLENGTH)
            rest = token == "//" ? "" : substr(rest, RSTART + RLENGTH)
            comment = token == "/*"
            if (!comment && token != "//") code = code (token ~ /^"/ ? "\"\"" : "''")
        } else {
            code = code rest
            rest = ""
        }
    }
    if (code ~ /[^ \t]/) print FILENAME ":" FNR ": " code
}
