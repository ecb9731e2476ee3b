"""The programs in the documents about JAX."""

import os
import re
import subprocess
import sys

import pytest
from launch import FARANDOLE, ROOT
from limits import allowed


def blocks(path, language):
    with open(os.path.join(ROOT, path)) as file:
        text = file.read()
    return re.findall(rf"test_documents.py runs it -->\n```{language}\n(.*?)```", text, re.S)


def lines_of(program, folder):
    script = folder / "train.py"
    script.write_text(program)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
    done = subprocess.run([FARANDOLE, "run", "-np", "2", "--", sys.executable, str(script)], env=variables,
                          capture_output=True, text=True, timeout=allowed(100))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


def test_first_steps(tmp_path):
    (program,) = blocks("docs/quickstart/jax.md", "python")
    (console,) = blocks("docs/quickstart/jax.md", "console")
    assert lines_of(program, tmp_path) == sorted(console.splitlines()[1:])


@pytest.mark.parametrize("program", blocks("docs/jax.md", "python"))
def test_the_page(program, tmp_path):
    assert lines_of(program, tmp_path) == []
