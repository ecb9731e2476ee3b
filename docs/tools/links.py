"""The links of Markdown files, and the paths of the repository that they name in `code`."""

import os
import re

FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1\s*$", re.S | re.M)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FOLDERS = ("bench", "bindings", "cuda", "docs", "examples", "include", "src", "tests", "transports")
PATH = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./\-]*\w|CHANGELOG\.md|CONTRIBUTING\.md|README\.md|SECURITY\.md")
# Folders whose files are of others, or are made.
PASSED_OVER = {".git", ".venv", "build", "node_modules", "__pycache__", ".pytest_cache"}


def markdown_files(repository):
    for folder, folders, names in os.walk(repository):
        folders[:] = sorted(one for one in folders if one not in PASSED_OVER and not one.startswith("build-"))
        for name in sorted(names):
            if name.endswith(".md"):
                yield os.path.relpath(os.path.join(folder, name), repository)


def prose(text):
    """The text with its fenced code blanked out; lines keep their numbers."""
    return FENCE.sub(lambda found: "\n" * found.group().count("\n"), text)


def anchor(title):
    """The anchor of a heading, as GitHub and MyST make it."""
    plain = re.sub(r"[`*]|\[|\]\([^)]*\)", "", title.strip().lower())
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(text):
    return {anchor(title) for title in re.findall(r"^#{1,6} (.+)$", prose(text), re.M)}


def faults_of_link(repository, path, target):
    if re.match(r"[a-z]+:", target):
        return None
    place, _, fragment = target.partition("#")
    whole = os.path.join(repository, os.path.dirname(path), place) if place else os.path.join(repository, path)
    if not os.path.exists(whole):
        return f"links to {target}, which does not exist"
    if fragment and whole.endswith(".md"):
        with open(whole) as file:
            if fragment not in anchors(file.read()):
                return f"links to {target}, and there is no heading of that name"
    return None


def faults(repository):
    """One line for each link that leads nowhere, and for each path in `code` that does not exist in the repository."""
    found = []
    for path in markdown_files(repository):
        with open(os.path.join(repository, path)) as file:
            text = prose(file.read())
        for number, line in enumerate(text.split("\n"), 1):
            for link in LINK.finditer(line):
                fault = faults_of_link(repository, path, link.group(3))
                if fault:
                    found.append(f"{path}:{number}: {fault}")
            if path == "CHANGELOG.md":  # it has former names too
                continue
            for code in CODE.findall(line):
                is_path = PATH.fullmatch(code.rstrip("/")) and "/foo" not in code  # foo: the name in an explanation
                if is_path and not os.path.exists(os.path.join(repository, code)):
                    found.append(f"{path}:{number}: `{code}` does not exist")
    return found
