"""Checks the error texts that docs/troubleshooting.md quotes: the sources must have each of them.

A text is the first cell of a row of a table, in `code`. `...` in it separates parts. The words of each part must be in
the string literals of one source file, in their order.
"""

import os
import re

PAGE = "docs/troubleshooting.md"
FOLDERS = ("src", "transports", "cuda", "bindings")
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"' + r"|'((?:[^'\\\n]|\\.)*)'")


def _words_of(path):
    """All string literals of a source file, one after the other, with one space for whatever stood between."""
    with open(path, errors="replace") as file:
        text = file.read()
    text = re.sub(r"^\s*(//|#(?!include)).*$", "", text, flags=re.M) if path.endswith((".cpp", ".h")) else text
    parts = [first or second for first, second in LITERAL.findall(text)]
    joined = re.sub(r"\{[^{}]*\}", " ", " ".join(parts).replace("\\n", " ").replace('\\"', '"'))
    return _normal(joined)


def _normal(text):
    return " " + " ".join(re.findall(r"[A-Za-z_]{2,}", text)) + " "


def sources(repository):
    for top in FOLDERS:
        for folder, _, names in os.walk(os.path.join(repository, top)):
            for name in names:
                if name.endswith((".cpp", ".h", ".py")):
                    path = os.path.join(folder, name)
                    yield os.path.relpath(path, repository), _words_of(path)


def quoted(repository):
    """(line, text) of each error text of the page."""
    with open(os.path.join(repository, PAGE)) as file:
        for number, line in enumerate(file, 1):
            cell = re.match(r"\| `([^`]+)` \|", line)
            if cell:
                yield number, cell.group(1)


def faults(repository):
    words = list(sources(repository))
    found = []
    for number, text in quoted(repository):
        parts = [part for part in map(_normal, text.split("...")) if part.strip()]
        for part in parts:
            if not any(part in whole for _, whole in words):
                found.append(f"{PAGE}:{number}: no source has the words '{part.strip()}' of: {text}")
    return found
