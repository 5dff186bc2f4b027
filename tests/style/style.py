#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""House rules that a machine can check. Usage: style.py CHECK ROOT [BUILD_DIR]; prints
file:line: message and exits 1 when a rule is broken. tests/style/selftest.py feeds every check a
sample that breaks it."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ctext  # noqa: E402

MAX_FUNCTION_LINES, MAX_PARAMS, MAX_FILE_LINES = 80, 5, 1000
PRODUCT = ("allocator", "tiers", "gpu", "kernels", "fs", "tools")

# Layers by folder, upper ones first: a folder may include the next one below and itself.
LAYERS = {
    "fs": {"fs", "allocator"},
    "allocator": {"allocator", "tiers"},
    "tiers": {"tiers", "gpu"},
    "gpu": {"gpu", "kernels"},
    "kernels": {"kernels"},
    "tools": {"tools", "fs", "allocator", "tiers", "gpu", "kernels"},
}
PUBLIC_ONLY = re.compile(r"^tools/(kvctl|kvdecode|connectors)\b")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)


def product(src):
    return src.folder in PRODUCT


def resolve_include(src, name):
    """Project path of an #include "name", or None when it is not ours."""
    beside = os.path.normpath(os.path.join(os.path.dirname(src.path), name))
    for path in (name, beside):
        if os.path.exists(os.path.join(src.root, path)):
            return path
    return None


def include_error(src, name, path):
    if src.path.startswith("allocator/base/"):
        return None if path.startswith("allocator/base/") else \
            "allocator/base includes nothing of the project but itself, not " + name
    if path.startswith("allocator/base/"):
        return None
    if PUBLIC_ONLY.match(src.path):
        if path.startswith("fs/uapi/") or path.startswith("tools/"):
            return None
        return "%s may include public headers (fs/uapi) only, not %s" % (src.path, name)
    if path.split("/")[0] not in LAYERS[src.folder]:
        return "%s may not include %s" % (src.folder, name)
    return None


def check_include(srcs):
    """Includes follow the layers."""
    for src in srcs:
        if not src.is_c or src.folder not in LAYERS:
            continue
        for m in INCLUDE.finditer(src.text):
            path = resolve_include(src, m.group(1))
            if path is None and m.group(1).split("/")[0] in LAYERS:
                yield src, src.line_of(m.start()), "no such header: " + m.group(1)
            elif path is not None:
                error = include_error(src, m.group(1), path)
                if error:
                    yield src, src.line_of(m.start()), error


def check_limits(srcs):
    """Lengths of functions and files, numbers of parameters."""
    srcs = [s for s in srcs if s.is_c]
    tables = "\n".join(s.code for s in srcs)
    for src in srcs:
        nr_lines = src.text.count("\n")
        if nr_lines > MAX_FILE_LINES:
            yield src, nr_lines, "file has %d lines, limit %d" % (nr_lines, MAX_FILE_LINES)
        for fn in ctext.functions(src):
            if fn.nr_lines > MAX_FUNCTION_LINES:
                yield src, fn.first, "%s() has %d lines, limit %d" % (
                    fn.name, fn.nr_lines, MAX_FUNCTION_LINES)
            if len(fn.params) > MAX_PARAMS and not imposed(fn, tables):
                yield src, fn.first, "%s() has %d parameters, limit %d" % (
                    fn.name, len(fn.params), MAX_PARAMS)


def imposed(fn, tables):
    """libfuse gives the signature of the operations that stand in its table, the C library that of a
    call which is taken over."""
    if fn.name == "mmap":
        return True
    return fn.params[0].startswith("fuse_req_t") and \
        re.search(r"\.\w+\s*=\s*%s\b" % fn.name, tables)


BANNED = ("strcpy", "strcat", "sprintf", "vsprintf", "atoi", "atol", "strtok", "alloca", "gets")
SLEEPS = ("sleep", "usleep", "nanosleep", "clock_nanosleep", "g_usleep")


def multiplies(args):
    """Whether allocation arguments contain a product that could overflow."""
    args = re.sub(r"\bsizeof\s*\([^()]*(\([^()]*\))?[^()]*\)", "S", args)
    args = re.sub(r"\(\s*(?:const\s+)?(?:struct\s+)?\w+\s*\*+\s*\)", "", args)
    return re.search(r"[\w)\]]\s*\*\s*[\w(]", args)


def check_banned(srcs):
    """Calls that house rule out, test conditionals in the product, sleeping in tests."""
    for src in srcs:
        if src.is_c and product(src):
            yield from banned_in_product(src)
        elif src.folder == "tests" and not src.path.startswith(("tests/lib/", "tests/style/")):
            yield from sleeps_in_tests(src)


def banned_in_product(src):
    code = ctext.strip(src.text)    # macro bodies count
    for off, name, _ in ctext.calls(code, BANNED):
        yield src, src.line_of(off), "%s() is banned" % name
    for off, name, args in ctext.calls(code, ("malloc", "realloc")):
        if multiplies(args):
            yield src, src.line_of(off), "%s() of a product: use kvc_alloc_array or calloc" % name
    for m in re.finditer(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|elif)\b[^\n]*", code, re.M):
        if re.search(r"(?<![A-Z])(UNIT_?)?TEST(S|ING)?(?![A-Z])", m.group(0)):
            yield src, src.line_of(m.start()), "test conditional in product code"


def sleeps_in_tests(src):
    for nr, line in enumerate((ctext.strip(src.text) if src.is_c else src.text).split("\n"), 1):
        if src.is_c and re.search(r"\b(%s)\s*\(" % "|".join(SLEEPS), line):
            yield src, nr, "tests do not sleep: wait for the condition"
        elif src.path.endswith(".sh") and re.search(r"(^|[;&|({]|\bdo|\bthen)\s*sleep\s", line):
            if not re.search(r"# poll: \w", line):
                yield src, nr, "tests do not sleep: use wait_until, or say '# poll: WHAT'"


def check_headers(srcs):
    """Each header compiles alone."""
    compiler = shlex_compiler()
    with tempfile.TemporaryDirectory() as tmp:
        for src in srcs:
            if not src.path.endswith(".h"):
                continue
            unit = os.path.join(tmp, "unit.c")
            with open(unit, "w", encoding="utf-8") as f:
                f.write('#include "%s"\n#include "%s"\n' % (src.path, src.path))
            run = subprocess.run(compiler + ["-I", src.root, "-I", src.root + "/tests", unit],
                                 capture_output=True, text=True, check=False)
            if run.returncode:
                first = [li for li in run.stderr.split("\n") if "error" in li or "warning" in li]
                yield src, 1, "does not compile alone: " + (first or [run.stderr])[0]


def shlex_compiler():
    flags = []
    if shutil.which("pkg-config"):
        for package in ("fuse3", "liburing", "libxxhash", "cmocka", "zlib", "libcjson"):
            run = subprocess.run(["pkg-config", "--cflags", package], capture_output=True,
                                 text=True, check=False)
            flags += run.stdout.split()
    return [os.environ.get("CC") or "cc", "-std=gnu11", "-fsyntax-only", "-D_GNU_SOURCE",
            "-D_FILE_OFFSET_BITS=64", "-DFUSE_USE_VERSION=314", "-Wall", "-Wextra",
            "-Wno-unused-parameter", "-Wno-sign-compare", "-Wshadow", "-Werror"] + flags


def check_spdx(srcs):
    """C files name their licence in the first line."""
    for src in srcs:
        if src.path.endswith((".c", ".h", ".def", ".cu")) and \
                src.lines[0] != "/* SPDX-License-Identifier: Apache-2.0 */":
            yield src, 1, "first line is not the SPDX line"


def check_typedef(srcs):
    """No typedefs of structs, unions or enums."""
    for src in srcs:
        if src.is_c:
            for m in re.finditer(r"\btypedef\s+(const\s+)?(struct|union|enum)\b", src.code):
                yield src, src.line_of(m.start()), "no typedef of a " + m.group(2)


def check_reasons(srcs):
    """Each error reason is used at exactly one site; the table is sorted."""
    sites, table = {}, None
    for src in srcs:
        if src.path == "allocator/base/err_reasons.def":
            table = src
        if not src.is_c or not product(src) or src.path.startswith("allocator/base/err."):
            continue
        for off, _, args in ctext.calls(src.code, ("kvc_err", "kvc_err_count")):
            name = re.sub(r"^KVC_ERR_", "", ctext.split_args(args)[-1])
            sites.setdefault(name, []).append((src, src.line_of(off)))
    if table is None:
        return
    last = ""
    for m in re.finditer(r"^KVC_ERR_REASON\(\s*(\w+)", table.code, re.M):
        name, line = m.group(1), table.line_of(m.start())
        found = sites.get(name, [])
        if name < last:
            yield table, line, "%s is not in alphabetical order" % name
        last = name
        if not found:
            yield table, line, "reason %s is used nowhere" % name
        for src, site in found[1:]:
            yield src, site, "reason %s is used at %s:%d already" % (
                name, found[0][0].path, found[0][1])


# Written in pieces, so that this file does not break its own rule.
FORBIDDEN = [
    (r"/wor" r"k/", "a path of one machine"),
    (r"/tmp/(b-|bri" r"ef)", "a path of one machine"),
    (r"(^|[\s\"'=:(])/root/", "a path of one machine"),
    (r"\bshar" r"ed/(data|lab|models|hooks|[A-Z]+\.md)", "a path outside the project"),
    (r"\.\./shar" r"ed\b(?!.*KVC_TEST_DATA)(?<!KVC_TEST_DATA:-\$KVC_SOURCE_DIR/\.\./shared)",
     "a path outside the project (only as the default of KVC_TEST_DATA)"),
    (r"(?i)\bissue #?\d", "an issue number"),
    (r"(?i)\bthis work" r"place\b", "the place where it was written"),
    (r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b", "an open end"),
]


def check_words(srcs):
    """No machine paths, no history, no open ends, in any text."""
    for src in srcs:
        if src.path == "LICENSE" or "\0" in src.text:
            continue
        for nr, line in enumerate(src.lines, 1):
            for pattern, what in FORBIDDEN:
                if re.search(pattern, line) and not allowed_word(src, line, pattern):
                    yield src, nr, "names " + what


def allowed_word(src, line, pattern):
    if src.path.startswith("tests/style/"):
        return True
    return "KVC_TEST_DATA" in line and pattern.startswith(r"\.\.")


def check_whitespace(srcs):
    """Tabs indent C; no trailing blanks; a newline at the end of each text file."""
    for src in srcs:
        if "\0" in src.text or src.path == "LICENSE" or not src.text:
            continue
        for nr, line in enumerate(src.lines, 1):
            if re.search(r"[ \t\r]$", line):
                yield src, nr, "trailing blank"
        if not src.text.endswith("\n"):
            yield src, len(src.lines), "no newline at the end"
        if src.is_c:
            yield from check_indent(src)


def check_indent(src):
    depth, code = 0, ctext.strip(src.text)
    in_macro = False
    for nr, line in enumerate(code.split("\n"), 1):
        if re.match(r" {8}| +\t", line) and line.strip():
            yield src, nr, "indented with spaces"
        elif re.match(r" {2,7}\S", line) and depth == 0 and not in_macro:
            yield src, nr, "indented with spaces"
        in_macro = line.endswith("\\")
        depth += line.count("(") - line.count(")")


def check_listed(srcs, build):
    """Each test source stands in a CMake list, and no entry was left out."""
    def read(name):
        with open(os.path.join(build, "tests", name), encoding="utf-8") as f:
            return [line for line in f.read().split("\n") if line]
    srcs = list(srcs)
    root = os.path.realpath(srcs[0].root)
    listed = {os.path.relpath(os.path.realpath(p), root) for p in read("listed.txt")}
    for src in srcs:
        parts = src.path.split("/")
        if parts[0] != "tests" or parts[1] in ("lib", "style") or len(parts) < 3:
            continue
        name = parts[-1]
        is_test = src.path.endswith((".c", ".sh")) or re.match(r"test_.*\.py$", name)
        if is_test and src.path not in listed:
            yield src, 1, "test source in no CMake list"
    cmake = next((s for s in srcs if s.path == "tests/CMakeLists.txt"), srcs[0])
    for skipped in read("skipped.txt"):
        yield cmake, 1, "test left out of the build: " + skipped


CHECKS = {
    "include": check_include, "limits": check_limits, "banned": check_banned,
    "headers": check_headers, "spdx": check_spdx, "typedef": check_typedef,
    "reasons": check_reasons, "words": check_words, "whitespace": check_whitespace,
    "listed": check_listed,
}


def run(check, root, build=None):
    """List of "file:line: message"."""
    srcs = ctext.sources(root)
    found = CHECKS[check](srcs, build) if check == "listed" else CHECKS[check](list(srcs))
    return ["%s:%d: %s" % (src.path, line, text) for src, line, text in found]


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in CHECKS:
        sys.exit("usage: style.py %s ROOT [BUILD_DIR]" % "|".join(CHECKS))
    found = run(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
    print("\n".join(found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
