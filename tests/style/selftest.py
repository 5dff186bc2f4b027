#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that each style check can fail: every sample below is a small tree that breaks one rule, and
the check must say so at the right place. A clean tree must pass all of them."""

import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import style  # noqa: E402

SPDX = "/* SPDX-License-Identifier: Apache-2.0 */\n"
DEF = "allocator/base/err_reasons.def"


def lines(n, line="\tx++;\n"):
    return line * n


CLEAN = {
    "allocator/base/list.h": SPDX + "#ifndef A\n#define A\n#include <stdint.h>\n#endif\n",
    "tiers/tier.h": SPDX + '#include "allocator/base/list.h"\ntypedef int (*tier_fn)(int a);\n',
    "allocator/a.c": SPDX + '#include "tiers/tier.h"\n'
    "/* malloc(n * size), strcpy(a, b) and TEST in a comment do no harm. */\n"
    "static const char *text = \"strcpy(a, b)\";\n"
    "#define TWICE(x)                 \\\n\tdo {                 \\\n\t\tx; x;        \\\n\t} while (0)\n"
    "int five(int a, int b, int c, int d, int e)\n{\n\tstruct s *s = malloc(sizeof(*s));\n\n"
    "\treturn kvc_err(-ENOSPC, full);\n}\n"
    "int longest(void)\n{\n" + lines(77) + "}\n",
    "fs/ops.c": SPDX + "static void op_write(fuse_req_t req, int a, int b, int c, int d, int e)\n"
    "{\n}\n\nstatic const struct fuse_lowlevel_ops ops = {.write = op_write};\n",
    DEF: SPDX + 'KVC_ERR_REASON(full, "no room")\n',
    "tests/unit/test_a.c": SPDX + "int main(void)\n{\n\treturn 0;\n}\n",
    "tests/fs/test_a.sh": "sleep 0.1 # poll: the mount\n: ${KVC_TEST_DATA:-../shar" "ed}\n",
}
LISTED = ["tests/unit/test_a.c", "tests/fs/test_a.sh"]

# check, path, content, line, part of the message
SAMPLES = [
    ("include", "allocator/base/x.h", SPDX + '#include "tiers/tier.h"\n', 2, "itself"),
    ("include", "tiers/x.c", SPDX + '\n#include "allocator/x.h"\n', 3, "no such header"),
    ("include", "tiers/y.c", SPDX + '#include "fs/ops.c"\n', 2, "tiers may not include fs"),
    ("include", "fs/x.c", SPDX + '#include "tiers/tier.h"\n', 2, "fs may not include tiers"),
    ("include", "tools/kvctl.c", SPDX + '#include "tiers/tier.h"\n', 2, "public headers"),
    ("include", "tools/connectors/x.c", SPDX + '#include "fs/ops.c"\n', 2, "public headers"),
    ("limits", "fs/x.c", SPDX + "int f(void)\n{\n" + lines(78) + "}\n", 2, "f() has 81 lines"),
    ("limits", "fs/x.c", SPDX + "int\nf(void)\n{\n" + lines(77) + "}\n", 2, "f() has 81 lines"),
    ("limits", "fs/x.c", SPDX + "__printf(1, 2) void f(int a, ...)\n{\n" + lines(78) + "}\n", 2,
     "f() has 81 lines"),
    ("limits", "fs/x.c", SPDX + "__must_check static struct x *\n__f(int a)\n"
     "\t__attribute__((noinline, format(printf, 1, 2)))\n{\n" + lines(78) + "}\n", 2,
     "__f() has 83 lines"),
    ("limits", "fs/x.h", SPDX + "static inline int f(int a, int b, int c, int d, int (*e)(int, int),"
     "\n\t\t    int f)\n{\n}\n", 2, "f() has 6 parameters"),
    ("limits", "fs/x.c", SPDX + "static void f(fuse_req_t req, int a, int b, int c, int d, int e)\n"
     "{\n}\n", 2, "f() has 6 parameters"),
    ("limits", "tests/unit/x.c", SPDX + lines(1000, "\n"), 1001, "file has 1001 lines"),
    ("banned", "fs/x.c", SPDX + "int f(void)\n{\n\tstrcpy(a, b);\n}\n", 4, "strcpy() is banned"),
    ("banned", "fs/x.c", SPDX + "#define F(x) atoi(x)\n", 2, "atoi() is banned"),
    ("banned", "fs/x.c", SPDX + "\tp = malloc(n * sizeof(*p));\n", 2, "malloc() of a product"),
    ("banned", "fs/x.c", SPDX + "\tp = realloc(p, 2 *\n\t\t    n);\n", 2, "realloc() of a"),
    ("banned", "fs/x.c", SPDX + "#ifdef KVC_TEST\n#endif\n", 2, "test conditional"),
    ("banned", "tests/unit/x.c", SPDX + "\tusleep(1000);\n", 2, "do not sleep"),
    ("banned", "tests/fs/x.sh", "cd x\nsleep 1\n", 2, "do not sleep"),
    ("headers", "fs/x.h", SPDX + "uint64_t f(void);\n", 1, "does not compile alone"),
    ("headers", "fs/x.h", SPDX + "struct x { int a; };\n", 1, "does not compile alone"),
    ("spdx", "fs/x.c", "int x;\n", 1, "SPDX"),
    ("spdx", DEF, "\n", 1, "SPDX"),
    ("typedef", "fs/x.c", SPDX + "typedef struct x x_t;\n", 2, "typedef of a struct"),
    ("typedef", "fs/x.c", SPDX + "typedef\nenum { A } x_t;\n", 2, "typedef of a enum"),
    ("reasons", "fs/x.c", SPDX + "\treturn kvc_err(f(a, b),\n\t\t       full);\n", 2, "already"),
    ("reasons", "fs/x.c", SPDX + "\treturn kvc_err_count(err, KVC_ERR_full);\n", 2, "already"),
    ("reasons", DEF, SPDX + 'KVC_ERR_REASON(full, "")\nKVC_ERR_REASON(unused, "")\n', 3, "nowhere"),
    ("reasons", DEF, SPDX + 'KVC_ERR_REASON(full, "")\nKVC_ERR_REASON(early, "")\n', 3, "order"),
    ("words", "README.md", "See /wor" "k/main.\n", 1, "a path of one machine"),
    ("words", "fs/x.c", SPDX + "/* fixes iss" "ue #7 */\n", 2, "an issue number"),
    ("words", "tests/fs/x.sh", "cat ../shar" "ed/x\n", 1, "a path outside"),
    ("words", "fs/x.c", SPDX + "/* TO" "DO: more */\n", 2, "an open end"),
    ("whitespace", "tools/x", "a \n", 1, "trailing blank"),
    ("whitespace", "fs/x.c", SPDX + "int f(void)\n{\n    return 0;\n}\n", 4, "with spaces"),
    ("whitespace", "fs/x.c", SPDX + "        int x;\n", 2, "with spaces"),
    ("whitespace", "fs/x.c", SPDX + "int x;", 2, "no newline"),
    ("listed", "tests/unit/test_b.c", SPDX, 1, "in no CMake list"),
    ("listed", "tests/fs/test_b.sh", "\n", 1, "in no CMake list"),
    ("listed", "skipped", "unit/b: no library kvc_b", 1, "unit/b: no library kvc_b"),
]


def plant(root, files):
    for path, content in files.items():
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as f:
            f.write(content)


def check_tree(check, change):
    """Plant the clean tree with one change and run a check on it."""
    with tempfile.TemporaryDirectory() as tmp:
        skipped = change.pop("skipped", "")
        plant(tmp, {**{"src/" + p: c for p, c in {**CLEAN, **change}.items()},
                    "b/tests/skipped.txt": skipped,
                    "b/tests/listed.txt": "\n".join(tmp + "/src/" + p for p in LISTED)})
        return style.run(check, tmp + "/src", tmp + "/b")


def main():
    failures = []
    for check in style.CHECKS:
        failures += ["clean tree, %s: %s" % (check, f) for f in check_tree(check, {})]
    for check, path, content, line, text in SAMPLES:
        found = check_tree(check, {path: content})
        where = "%s:%d: " % ("tests/fs/test_a.sh" if path == "skipped" else path, line)
        if path == "skipped":
            where = ""
        if not any(f.startswith(where) and text in f for f in found):
            failures.append("%s: no '%s' at %s, but %s" % (check, text, where, found))
    for check in style.CHECKS:
        if check not in {s[0] for s in SAMPLES}:
            failures.append("%s: no sample that breaks it" % check)
    print("\n".join(failures) or "%d samples, each found" % len(SAMPLES))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
