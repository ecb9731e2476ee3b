"""The code in the documents: each block is run here, or a marker above it states why not.

A marker is a comment on the line above the block:

    <!-- run -->             console: each command is run, and what is printed below it is compared; sh: run as a script
    <!-- run: -np 2 -->      python, c, cpp: run on so many ranks by `farandole run`; without -np on one process alone
    <!-- run: fails -->      console: commands that end with an error; their standard error is compared too
    <!-- file: NAME -->      written to a file that blocks below it use
    <!-- output -->          text: what the block above it prints
    <!-- not run: REASON --> neither; Python must still parse, and the names and options that it uses must exist

In what is compared, `...` stands for any text of a line, and a line of `...` for any lines. Lines of several ranks are
compared rank by rank.
"""

import ast
import importlib
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import pytest
from limits import allowed

REPOSITORY = str(next(one for one in pathlib.Path(__file__).resolve().parents if (one / "pyproject.toml").exists()))
BINARIES = os.path.dirname(sys.executable)
FARANDOLE = os.path.join(BINARIES, "farandole")
sys.path.insert(0, os.path.join(REPOSITORY, "docs", "tools"))

import binding_sizes  # noqa: E402
import environment  # noqa: E402
import error_texts  # noqa: E402
import links  # noqa: E402

DEADLINE_S = 60
MARKER = r"(?:<!-- (run|not run|file|output)(?:: (.*?))? -->\n\n?)?"
BLOCK = re.compile(rf"^{MARKER}(```+)([\w+-]*)\n(.*?)^\3[ ]*$", re.M | re.S)
CODE = {"bash", "c", "cmake", "console", "cpp", "promql", "py", "python", "sh", "shell", "yaml"}
SUFFIX = {"c": "c", "cpp": "cpp", "python": "py"}
DOCUMENTS = [
    path for path in links.markdown_files(REPOSITORY) if os.sep not in path or path.startswith("docs" + os.sep)
]


class Block:
    """A fenced block of a document, and the marker above it."""

    def __init__(self, path, line, marker, detail, language, text):
        self.place = f"{path}:{line}"
        self.marker = marker
        self.detail = detail or ""
        self.language = language
        self.text = text


def blocks_of(path):
    with open(os.path.join(REPOSITORY, path)) as file:
        text = file.read()
    for found in BLOCK.finditer(text):
        marker, detail, _, language, code = found.groups()
        yield Block(path, text.count("\n", 0, found.start(3)) + 1, marker, detail, language, code)


ALL = {path: list(blocks_of(path)) for path in DOCUMENTS}


def matches(expected, printed):
    """Whether what was printed is what stands in the document."""
    pattern = ""
    for line in by_rank(expected):
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ ]*\n"
    return re.fullmatch(pattern, "".join(line + "\n" for line in by_rank(printed))) is not None


def by_rank(text):
    """The lines of the text. If all begin with [rank], they are sorted by rank: the order between ranks varies."""
    lines = text.strip("\n").split("\n")
    ranks = [re.match(r"\[(\d+)\]", line) for line in lines]
    if all(ranks):
        lines.sort(key=lambda line: int(re.match(r"\[(\d+)\]", line).group(1)))
    return lines


class Document:
    """Runs the blocks of one document in one folder, in their order."""

    def __init__(self, folder):
        self.folder = folder
        self.printed = ""
        self.variables = {name: value for name, value in os.environ.items()
                          if not name.startswith(("FARANDOLE_", "HOROVOD_", "OMPI_", "PET_"))}  # fmt: skip
        self.variables.update(OMP_NUM_THREADS="1", FARANDOLE_START_TIMEOUT_S="50",
                              PATH=f"{BINARIES}:{self.variables['PATH']}")  # fmt: skip

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w") as file:
            file.write(text)
        return name

    def call(self, command, block, errors=False):
        done = subprocess.run(command, cwd=self.folder, env=self.variables, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT if errors else subprocess.PIPE,
                              timeout=allowed(DEADLINE_S))  # fmt: skip
        assert (done.returncode != 0) == errors, f"{block.place}: {done.returncode}\n{done.stdout}{done.stderr or ''}"
        return done.stdout

    def run(self, block):
        if block.marker == "file":
            self.write(block.detail, block.text)
        elif block.marker == "output":
            assert matches(block.text, self.printed), f"{block.place}: printed was\n{self.printed}"
        elif block.marker == "run" and block.language == "console":
            self.run_console(block)
        elif block.marker == "run" and block.language in ("sh", "bash"):
            self.printed = self.call(["bash", "-ec", block.text], block)
        elif block.marker == "run":
            self.printed = self.call(self.program(block), block)

    def program(self, block):
        name = self.write(f"block.{SUFFIX[block.language]}", block.text)
        command = [sys.executable, name]
        if block.language != "python":
            import farandole

            package = os.path.dirname(farandole.__file__)
            compiler = ["g++", "-std=c++17"] if block.language == "cpp" else ["gcc"]
            self.call([*compiler, "-Wall", "-Werror", name, "-o", "block", "-I", farandole.get_include(), "-L", package,
                       "-lfarandole", f"-Wl,-rpath,{package}"], block)  # fmt: skip
            command = ["./block"]
        return [FARANDOLE, "run", *shlex.split(block.detail), "--", *command] if block.detail else command

    def run_console(self, block):
        """Each `$ ` begins a command, which ends where its lines do not end with a backslash."""
        errors = block.detail == "fails"
        exports = ""
        for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
            command, expected = re.match(r"((?:[^\n]*\\\n)*[^\n]*)\n?(.*)", part, re.S).groups()
            if command.startswith("export "):
                exports += command + "\n"
                continue
            self.printed = self.call(["bash", "-ec", exports + command], block, errors)
            if expected.strip():
                assert matches(expected, self.printed), f"{block.place}: {command}\nprinted was\n{self.printed}"


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if any(one.marker == "run" for one in ALL[path])])
def test_code_in_documents_runs(path):
    with tempfile.TemporaryDirectory(prefix="farandole-documents-") as folder:
        document = Document(folder)
        for block in ALL[path]:
            document.run(block)


def test_every_block_is_run_or_has_a_reason_why_not():
    unmarked = [one.place for blocks in ALL.values() for one in blocks if one.language in CODE and not one.marker]
    assert not unmarked, unmarked
    silent = [one.place for blocks in ALL.values() for one in blocks if one.marker == "not run" and not one.detail]
    assert not silent, silent


def test_files_of_blocks_are_used():
    for blocks in ALL.values():
        for number, block in enumerate(blocks):
            if block.marker == "file" and block.detail != "CMakeLists.txt":
                stem = os.path.splitext(block.detail)[0]
                users = [later for later in blocks[number + 1 :] if later.marker in ("run", "file")]
                assert any(stem in later.text for later in users), block.place


# ---- Blocks that are not run --------------------------------------------------------------------------------------

# These modules need frameworks that this environment lacks. The tests of the frameworks run the blocks.
OTHERS = ("farandole.jax", "farandole.keras", "farandole.tensorflow")
MODULES = {"farandole": "farandole", "hvd": "farandole.torch", "checkpoint": "farandole.checkpoint"}


def test_python_blocks_parse_and_their_names_exist():
    for blocks in ALL.values():
        for block in blocks:
            if block.language in ("python", "py"):
                tree = ast.parse(block.text, block.place)
                if any(name in block.text for name in OTHERS):
                    continue
                for node in ast.walk(tree):
                    if isinstance(node, ast.Attribute):
                        check_name(node, block)


def check_name(node, block):
    """A chain such as hvd.elastic.run, from the module on, as far as it is modules and classes."""
    names = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in MODULES:
        return
    found = importlib.import_module(MODULES[node.id])
    for name in names:
        if name == "keras":  # needs Keras, which the tests here do without
            return
        if not hasattr(found, name):
            try:
                found = importlib.import_module(f"{found.__name__}.{name}")
                continue
            except ImportError:
                raise AssertionError(f"{block.place}: {found.__name__} has no {name}") from None
        found = getattr(found, name)


_help = {}


def help_of(*command):
    if command not in _help:
        _help[command] = subprocess.run([FARANDOLE, *command, "--help"], capture_output=True, text=True).stdout
        if command == ("kubernetes", "chart"):  # its options are those of gen too
            _help[command] += help_of("kubernetes", "gen")
    return _help[command]


def test_commands_have_their_options():
    for blocks in ALL.values():
        for block in blocks:
            if block.language in ("sh", "console", "bash"):
                prompt = r"\$ " if block.language == "console" else ""
                for line in re.findall(rf"^{prompt}(?:\w+=\S+ )*farandole ((?:[^\n]*\\\n)*[^\n]*)", block.text, re.M):
                    check_command(line, block)


def check_command(line, block):
    words = re.split(r"\s(?:--\s|[#|>])", line + " ")[0].split()
    command = tuple(words[:2]) if words[0] in ("kubernetes", "k8s") else (words[0],)
    known = help_of(*command)
    assert known, f"{block.place}: farandole has no command {' '.join(command)}"
    for word in words[len(command) :]:
        if command == ("run",) and not word.startswith("-") and words[words.index(word) - 1][0] != "-":
            break  # the ranks' command
        if word.startswith("--"):
            option = word.split("=")[0]
            there = re.search(rf"(?<![\w-]){option}(?![\w-])", known)
            assert there, f"{block.place}: {' '.join(command)} has no {option}"


# ---- Links, tables -------------------------------------------------------------------------------------------------


def test_links_are_not_broken():
    faults = links.faults(REPOSITORY)
    assert not faults, "\n".join(faults)


def test_the_table_of_variables_is_that_of_the_source():
    with open(os.path.join(REPOSITORY, environment.PAGE)) as file:
        assert file.read() == environment.page(REPOSITORY), "run python3 docs/tools/environment.py"


def test_the_table_of_bindings_counts_each_file_once():
    sources = pathlib.Path(REPOSITORY, "bindings").rglob("*.py*")
    lines = sum(len(one.read_text().splitlines()) for one in sources if one.suffix in (".py", ".pyi"))
    counted = binding_sizes.counts(REPOSITORY)
    assert sum(one["Python"] for one in counted.values()) == lines
    for folder in counted:
        assert os.listdir(os.path.join(REPOSITORY, "bindings", folder)), "a folder of the table is empty"
    assert all(f"| `{folder}` |" in binding_sizes.page(REPOSITORY) for folder in counted)
    with pytest.raises(KeyError, match="add its folder"):
        binding_sizes.folder_of("new/native/module.cpp")


def test_the_error_texts_of_troubleshooting_are_in_the_sources():
    faults = error_texts.faults(REPOSITORY)
    assert not faults, "\n".join(faults)
