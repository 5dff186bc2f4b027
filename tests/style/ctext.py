# SPDX-License-Identifier: Apache-2.0
"""A view of C sources that is good enough for style checks: text without comments, literals and
macro bodies, same line numbers; and the functions in it. Not a parser: it leans on the house style
(a function's closing brace stands in column 0)."""

import os
import re

SKIP_DIRS = re.compile(r"^(build.*|\.git|__pycache__|\.cache|\.vscode)$")
C_SUFFIXES = (".c", ".h")


class Source:
    """One file: path relative to the root, its text and, when it is C, the bare code."""

    def __init__(self, root, path):
        self.root, self.path = root, path
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            self.text = f.read()
        self.lines = self.text.split("\n")
        self.is_c = path.endswith(C_SUFFIXES)
        self._code = None

    @property
    def code(self):
        if self._code is None:
            self._code = blank_macros(strip(self.text))
        return self._code

    @property
    def folder(self):
        return self.path.split("/")[0]

    def line_of(self, offset):
        return self.text.count("\n", 0, offset) + 1


def sources(root):
    for folder, dirs, files in os.walk(root):
        dirs[:] = sorted(d for d in dirs if not SKIP_DIRS.match(d))
        for name in sorted(files):
            path = os.path.relpath(os.path.join(folder, name), root)
            if not os.path.islink(os.path.join(root, path)):
                yield Source(root, path)


TOKEN = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)


def strip(text):
    """Blank comments and literals: every character but newlines becomes a blank."""
    def blank(match):
        token = match.group(0)
        hollow = re.sub(r"[^\n]", " ", token)
        if token[0] in "\"'":       # keep the quotes, so that an argument stays an argument
            return token[0] + hollow[1:-1] + token[-1]
        return hollow
    return TOKEN.sub(blank, text)


def blank_macros(code):
    """Blank preprocessor lines with their continuations."""
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group(0)),
                  code, flags=re.M)


def match_paren(code, start):
    """Offset of the bracket that closes the one at start, or -1."""
    depth = 0
    for i in range(start, len(code)):
        if code[i] in "([{":
            depth += 1
        elif code[i] in ")]}":
            depth -= 1
            if depth == 0:
                return i
    return -1


def split_args(text):
    """Split at commas outside of brackets."""
    args, depth, last = [], 0, 0
    for i, c in enumerate(text):
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            args.append(text[last:i].strip())
            last = i + 1
    args.append(text[last:].strip())
    return args


class Function:
    def __init__(self, name, params, first, last):
        self.name, self.params, self.first, self.last = name, params, first, last

    @property
    def nr_lines(self):
        return self.last - self.first + 1


# Annotations with arguments, which are not the function's own brackets.
ANNOTATION = re.compile(r"\b__(attribute__|printf|format|aligned)\s*\((?:[^()]|\((?:[^()]|"
                        r"\([^()]*\))*\))*\)")
HEAD = re.compile(r"^(?![ \t\n}])[^;{}=]*?\b(\w+)\s*\(", re.M)


def functions(src):
    """Functions defined in a source: `type name(params)` at column 0, then `{ ... }`."""
    code = ANNOTATION.sub(lambda m: re.sub(r"[^\n]", "_", m.group(0)), src.code)
    pos = 0
    while True:
        head = HEAD.search(code, pos)
        if not head:
            return
        close = match_paren(code, head.end() - 1)
        if close < 0:
            return
        after = re.compile(r"\s*(?:__\w+\s*)*").match(code, close + 1).end()
        if code[after:after + 1] != "{":
            pos = close + 1
            continue
        end = match_paren(code, after)
        if end < 0:
            end = len(code) - 1
        params = [p for p in split_args(code[head.end():close]) if p not in ("", "void", "...")]
        start = head.start() + len(head.group(0)) - len(head.group(0).lstrip())
        yield Function(head.group(1), params, src.line_of(start), src.line_of(end))
        pos = end + 1


def calls(code, names):
    """(offset, name, argument text) of each call to one of names."""
    for m in re.finditer(r"\b(%s)\s*\(" % "|".join(names), code):
        close = match_paren(code, m.end() - 1)
        if close > 0:
            yield m.start(), m.group(1), code[m.end():close]
