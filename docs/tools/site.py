"""Puts the documents and the reference together in build/docs/source and builds build/docs/html with Sphinx.

It fails on a warning, on a broken link, on a path in `code` that is not in the repository, and on a public function or
class without documentation.
"""

import fnmatch
import os
import re
import shutil
import sys
import time

import binding_sizes
import c_header
import environment
import links
import python_api
from sphinx.application import Sphinx

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(REPOSITORY, "build", "docs")
SOURCE = os.path.join(BUILD, "source")
HTML = os.path.join(BUILD, "html")

# The order of the pages in the sidebar. A pattern may match no page; each page is listed once.
CONTENTS = (
    ("First steps", ["docs/quickstart/pytorch", "docs/quickstart/horovod", "docs/quickstart/jax",
                     "docs/quickstart/numpy", "docs/quickstart/cpp", "docs/quickstart/kubernetes",
                     "docs/quickstart/*"]),
    ("Coming from elsewhere", ["docs/from-*"]),
    ("Running", ["docs/install", "docs/wheels", "docs/cli", "docs/environment", "docs/launchers", "docs/kubernetes",
                 "docs/kubernetes/first-hour",
                 "docs/keras", "docs/jax", "docs/ray", "docs/spark", "docs/dask", "docs/elastic", "docs/checkpoints",
                 "docs/metrics", "docs/gpu"]),
    ("Speed", ["docs/performance", "docs/tuning", "docs/topology", "docs/simulate", "docs/compression"]),
    ("When something goes wrong", ["docs/troubleshooting", "docs/faq"]),
    ("Reference", ["docs/api/c", "docs/api/cpp", "docs/api/farandole*"]),
    ("How it works", ["docs/architecture", "docs/bindings", "docs/protocols", "docs/glossary", "docs/adr/*", "docs/*"]),
    ("The project", ["CONTRIBUTING", "SECURITY", "CHANGELOG"]),
    ("Examples", ["examples/**"]),
)  # fmt: skip


def read(path):
    with open(os.path.join(REPOSITORY, path)) as file:
        return file.read()


def write(path, text):
    whole = os.path.join(SOURCE, path)
    os.makedirs(os.path.dirname(whole), exist_ok=True)
    with open(whole, "w") as file:
        file.write(text)


def documents():
    """The Markdown files that are pages."""
    for path in links.markdown_files(REPOSITORY):
        if os.sep not in path or path.startswith(("docs" + os.sep, "examples" + os.sep)):
            yield path


def page_of(path):
    """The page that a Markdown file becomes."""
    return "index.md" if path == "README.md" else path


def moved_links(path, text, pages):
    """The text with its links as they are in the site: to pages, and to files of the repository as downloads."""

    def moved(found):
        mark, words, target = found.groups()
        place, _, fragment = target.partition("#")
        if re.match(r"[a-z]+:", target) or not place:
            return found.group()
        goal = os.path.normpath(os.path.join(os.path.dirname(path), place))
        here = os.path.dirname(page_of(path))
        if goal in pages:
            return f"{mark}[{words}]({os.path.relpath(page_of(goal), here or '.')}{'#' + fragment if fragment else ''})"
        if os.path.isdir(os.path.join(REPOSITORY, goal)):
            inside = os.path.join(goal, "README.md")
            return f"[{words}]({os.path.relpath(inside, here or '.')})" if inside in pages else words
        return f"{mark}[{words}]({os.path.relpath(os.path.join('repository', goal), here or '.')})"

    parts = []
    end = 0
    for fence in links.FENCE.finditer(text):  # what is in a fence is no link
        parts += [links.LINK.sub(moved, text[end : fence.start()]), fence.group()]
        end = fence.end()
    return "".join([*parts, links.LINK.sub(moved, text[end:])])


def entry(page):
    """The line of a toctree: a module is shown by its name alone."""
    return f"{page.split('/')[-1]} <{page}>" if page.startswith("docs/api/farandole") else page


def contents(pages):
    """The toctrees of the front page, one for each part; every page is in one of them."""
    left = sorted(page.removesuffix(".md") for page in pages if page != "index.md")
    lines = []
    for title, patterns in CONTENTS:
        chosen = []
        for pattern in patterns:
            if "*" not in pattern:
                found = [page for page in left if page == pattern]
            else:  # one star stays in its folder
                found = [page for page in left if fnmatch.fnmatchcase(page, pattern)
                         and ("**" in pattern or page.count("/") == pattern.count("/"))]  # fmt: skip
            chosen += found
            left = [page for page in left if page not in found]
        if chosen:
            entries = [entry(page) for page in chosen]
            lines += ["```{toctree}", ":hidden:", f":caption: {title}", "", *entries, "```", ""]
    if left:
        raise SystemExit(f"docs: no part of the contents has {', '.join(left)}; see CONTENTS in docs/tools/site.py")
    return "\n".join(lines)


def stage():
    """Writes the sources of the site. Returns what is undocumented."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    os.makedirs(SOURCE)
    os.symlink(REPOSITORY, os.path.join(SOURCE, "repository"))
    os.symlink(os.path.join(REPOSITORY, "docs", "_static"), os.path.join(SOURCE, "_static"))
    shutil.copy(os.path.join(REPOSITORY, "docs", "conf.py"), SOURCE)
    pages = set(documents())
    header, wrapper = read("include/farandole/farandole.h"), read("include/farandole/farandole.hpp")
    sources = python_api.Sources(REPOSITORY)
    made = {"docs/api/c.md": c_header.c_page(header), "docs/api/cpp.md": c_header.cpp_page(wrapper)}
    for module, title in python_api.MODULES:
        made[f"docs/api/{module}.md"] = python_api.page(sources, module, title)
    made["docs/bindings.md"] = binding_sizes.page(REPOSITORY)
    for path, text in made.items():
        write(path, text)
    whole = {*map(page_of, pages), *made}
    for path in pages:
        text = moved_links(path, read(path), pages)
        if path == "README.md":
            text += "\n\n" + contents(whole)
        write(page_of(path), text)
    missing = [f"farandole.h: {name}" for name in c_header.undocumented_c(c_header.sections_of(header))]
    missing += [f"farandole.hpp: {name}" for name in c_header.undocumented_cpp(c_header.cpp_members(wrapper))]
    return missing + python_api.undocumented(sources)


def build():
    """Runs Sphinx. Returns (pages, warnings)."""
    os.environ["FARANDOLE_REPOSITORY"] = REPOSITORY
    shutil.rmtree(HTML, ignore_errors=True)
    app = Sphinx(SOURCE, SOURCE, HTML, os.path.join(BUILD, "doctrees"), "html", status=None, freshenv=True,
                 parallel=max(1, min(4, os.cpu_count() or 1)))  # fmt: skip
    app.build(force_all=True)
    return len(app.env.all_docs), app._warncount


def main():
    started = time.monotonic()
    faults = [f"broken: {one}" for one in links.faults(REPOSITORY)]
    if read("docs/environment.md") != environment.page(REPOSITORY):
        faults.append("stale: docs/environment.md; run python3 docs/tools/environment.py")
    faults += [f"undocumented: {one}" for one in stage()]
    pages, warnings = build()
    for fault in faults:
        print(f"docs: {fault}", file=sys.stderr)
    print(f"docs: {pages} pages, {warnings} warnings, {len(faults)} faults, {time.monotonic() - started:.0f} seconds; "
          "build/docs/html/index.html")  # fmt: skip
    return 1 if faults or warnings else 0


if __name__ == "__main__":
    sys.exit(main())
