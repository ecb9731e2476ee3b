"""horovodrun's host discovery script: what it prints, how it fails, and that it and the job end with horovodrun."""

import os
import signal
import subprocess
import sys
import time

import pytest
from farandole import hosts
from horovod.runner import discovery

HOROVODRUN = os.path.join(os.path.dirname(sys.executable), "horovodrun")
LIMIT_S = 60


@pytest.fixture
def script(tmp_path):
    """Writes a script. In its text HERE is a folder; processes whose numbers are in `child` and `rank` are ended."""

    def write(text, first_line="#!/bin/sh\n"):
        path = tmp_path / "discover.sh"
        path.write_bytes(first_line.encode() + text.replace("HERE", str(tmp_path)).encode("latin-1"))
        path.chmod(0o755)
        return str(path)

    yield write
    for path in (tmp_path / "child", tmp_path / "rank"):
        if path.exists() and not has_ended(int(path.read_text())):
            os.kill(int(path.read_text()), signal.SIGKILL)


@pytest.fixture
def horovodrun(tmp_path):
    """Starts horovodrun with one rank, which is a shell that runs `program`."""
    started = []

    def start(script, program):
        words = ["-np", "1", "--min-np", "1", "--host-discovery-script", script, "--", "sh", "-c"]
        started.append(subprocess.Popen([HOROVODRUN, *words, program.replace("HERE", str(tmp_path))], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE))  # fmt: skip
        return started[-1]

    yield start
    for process in started:
        process.kill()


def until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has_ended(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def number_in(path):
    until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


# Answers once. The next call stores the number of a child and waits for it.
HANGS_LATER = """
if [ -e HERE/called ]; then sleep 1000 & echo $! > HERE/child; wait; fi
touch HERE/called; echo localhost:1
"""
WAITS_FOR_THE_CHILD = "until [ -s HERE/child ]; do sleep 0.05; done; echo $$ > HERE/rank; "


# ---- What it prints
# ---------------------------------------------------------------------------------------------------


def test_the_slots_of_the_lines_are_added(script):
    assert discovery.discovered_slots(script("printf 'localhost:2\\nlocalhost\\n'")) == 3
    assert discovery.discovered_slots(script("")) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("printf 'localhost:\\377\\n'", r"discover.sh: 'localhost:\\xff' in the hosts .* is not host:slots"),
        ("printf '\\033[2J:1\\n'", r"'\\x1b\[2J:1' in the hosts"),
        ("echo localhost:" + "9" * 5000, "is not host:slots"),
        ("echo other:2", "discover.sh: other is not this host"),
        ("printf 'bad \\377' >&2; exit 3", r"discover.sh failed with exit code 3: bad \\xff"),
        ("kill -SEGV $$", "discover.sh was ended by signal 11"),
        ("yes localhost:1", "discover.sh prints more than 256 KiB; it must print one line host:slots"),
    ],
)  # fmt: skip
def test_wrong_output_is_an_error_that_names_the_script(script, text, words):
    with pytest.raises(hosts.HostsError, match=words):
        discovery.discovered_slots(script(text))


def test_a_script_that_cannot_be_started_is_an_error_with_the_remedy(script, tmp_path):
    with pytest.raises(hosts.HostsError, match="cannot be run: .*names its interpreter, such as #!/bin/sh"):
        discovery.discovered_slots(script("echo localhost:1", first_line=""))
    path = script("echo localhost:1", first_line="#!/no/such/interpreter\n")
    with pytest.raises(hosts.HostsError, match="cannot be run: .*the interpreter in its first line does not"):
        discovery.discovered_slots(path)
    os.chmod(path, 0o644)
    with pytest.raises(hosts.HostsError, match=r"cannot be run: .*make it executable: chmod \+x"):
        discovery.discovered_slots(path)


def test_a_call_that_hangs_is_ended_with_its_children(script, tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "LIMIT_S", 0.3)
    path = script("sleep 1000 & echo $! > HERE/child; wait")
    with pytest.raises(hosts.HostsError, match=r"discover.sh did not end within 0.3 s and was killed"):
        discovery.discovered_slots(path)
    child = number_in(tmp_path / "child")
    until(lambda: has_ended(child))


def test_a_child_that_keeps_the_output_open_does_not_delay_the_result(script, tmp_path):
    assert discovery.discovered_slots(script("sleep 1000 & echo $! > HERE/child; echo localhost:2")) == 2
    child = number_in(tmp_path / "child")
    assert not has_ended(child)  # a script may start a daemon
    os.kill(child, signal.SIGKILL)


# ---- During the job
# ---------------------------------------------------------------------------------------------------


def test_horovodrun_ends_with_the_job_though_the_script_hangs(script, horovodrun, tmp_path):
    process = horovodrun(script(HANGS_LATER), WAITS_FOR_THE_CHILD + "exit 7")
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 7, errors
    child = number_in(tmp_path / "child")
    until(lambda: has_ended(child))
    assert "horovodrun:" not in errors


def test_the_job_goes_on_though_the_output_of_the_script_becomes_invalid(script, horovodrun, tmp_path):
    path = script("""
        echo call >> HERE/calls
        [ -e HERE/called ] && printf 'localhost:\\377\\n'
        touch HERE/called; echo localhost:1""")
    process = horovodrun(path, "until [ $(wc -l < HERE/calls) -gt 3 ]; do sleep 0.05; done")
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    assert errors.count(r"'localhost:\xff' in the hosts") == 1 and "the number of ranks stays" in errors, errors


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_signal_ends_the_job_and_a_script_that_hangs(script, horovodrun, tmp_path, number, code):
    process = horovodrun(script(HANGS_LATER), WAITS_FOR_THE_CHILD + "exec sleep 1000")
    rank, child = number_in(tmp_path / "rank"), number_in(tmp_path / "child")
    process.send_signal(number)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code, errors
    until(lambda: has_ended(rank))
    if number == signal.SIGKILL:
        os.kill(child, signal.SIGKILL)  # nothing is left that could end it
    until(lambda: has_ended(child))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_script_that_hangs_before_the_job(script, horovodrun, tmp_path, number, code):
    process = horovodrun(script("sleep 1000 & echo $! > HERE/child; wait"), "exit 0")
    child = number_in(tmp_path / "child")
    process.send_signal(number)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, errors) == (code, "")
    until(lambda: has_ended(child))
