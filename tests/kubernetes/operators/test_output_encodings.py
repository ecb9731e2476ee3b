"""`farandole kubernetes` with closed standard streams, and with encodings other than UTF-8."""

import os
import subprocess
import sys

import pytest
from api_pods import pod
from live_commands import RUNNING


def run(*words, variables=None, redirection=""):
    code = "import sys; from farandole.integrations.kubernetes.__main__ import main; sys.exit(main(sys.argv[1:]))"
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", code, *words]
    return subprocess.run(command, env={**os.environ, **(variables or {})}, capture_output=True)


def run_without_reader(*words, variables):
    """The exit code and the standard error of a command whose reader has ended before it writes."""
    reader, writer = os.pipe()
    os.close(reader)
    code = "import sys; from farandole.integrations.kubernetes.__main__ import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *words]
    with os.fdopen(writer, "wb") as pipe:
        environment = {**os.environ, **variables}
        done = subprocess.run(command, env=environment, stdout=pipe, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr


GEN = ["gen", "job", "--name", "train", "--image", "image", "--env", "PLACE=Zürich ☃"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16", "ascii:strict"])
def test_a_manifest_is_utf_8_whatever_the_encoding_of_the_output(encoding):
    done = run(*GEN, "--", "python", variables={"PYTHONIOENCODING": encoding})
    assert done.returncode == 0, done.stderr
    assert "Zürich ☃" in done.stdout.decode()
    assert done.stdout == run(*GEN, "--", "python", variables={"PYTHONIOENCODING": "utf-8"}).stdout


def test_logs_have_escapes_for_what_the_output_cannot_show(api):
    api.put_job()
    api.put_pod(pod(0))
    api.write("train-0-x1", "Zürich ☃")
    done = run("logs", "train", variables={"PYTHONIOENCODING": "latin-1"})
    assert done.returncode == RUNNING, done.stderr
    assert done.stdout.decode("latin-1").splitlines()[-1] == "0| Zürich \\u2603"


def test_an_argument_that_is_not_utf_8_is_rejected():
    done = run("gen", "job", "--name", "train", "--image", "image", "--env", b"A=\xff", "--", "python")
    assert done.returncode == 64 and done.stdout == b""
    assert done.stderr == b"farandole kubernetes: the argument 'A=\\udcff' is not UTF-8\n"


@pytest.mark.parametrize("words", [["--help"], [*GEN, "--", "python"]], ids=["help", "gen"])
def test_a_closed_standard_output_is_an_error_and_a_closed_standard_error_is_none(words):
    done = run(*words, redirection=">&-")
    assert (done.returncode, done.stderr.decode()) == (
        74,
        "farandole kubernetes: standard output is closed; redirect it to /dev/null\n",
    )
    quiet = run(*words, redirection="2>&-")
    assert (quiet.returncode, quiet.stderr) == (0, b"") and quiet.stdout == run(*words).stdout


COMMANDS = [
    ["--help"],
    *([one, "--help"] for one in ("gen", "chart", "logs", "status", "topology")),
    [*GEN, "--", "python"],
]


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_a_full_standard_output_is_an_error_and_a_reader_that_ends_is_none(words, unbuffered):
    variables = {"PYTHONUNBUFFERED": unbuffered}
    full = run(*words, variables=variables, redirection=">/dev/full")
    assert (full.returncode, full.stderr.decode()) == (
        74,
        "farandole kubernetes: standard output cannot be written: No space left on device\n",
    )
    assert run_without_reader(*words, variables=variables) == (141, "")


@pytest.mark.parametrize("words", [["--help"], ["--output", "FILE", "--location", "a"]], ids=["help", "location"])
@pytest.mark.parametrize("lost", [">/dev/full", ">&-"])
def test_the_program_for_locations_reports_a_lost_output(words, lost, tmp_path):
    words = [str(tmp_path / "file") if word == "FILE" else word for word in words]
    module = "farandole.integrations.kubernetes.location"
    command = ["sh", "-c", f'exec "$@" {lost}', "sh", sys.executable, "-m", module, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 74 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("farandole location: standard output "), done.stderr
