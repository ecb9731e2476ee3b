"""The output of `farandole run`: readers that are slow, stop or end, full disks, closed streams, and folders."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from launch import FARANDOLE
from limits import allowed

LINES = 500_000  # 0 to 499999: more bytes than a pipe and the launcher hold


def variables(**more):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
    return {**inherited, "OMP_NUM_THREADS": "1", **more}


@contextlib.contextmanager
def start(script, *options, ranks=2, **streams):
    """A job whose ranks run a script of the shell; it is killed at the end and after a limit. Both outputs are pipes if
    no other is given."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    command = [FARANDOLE, "run", "-np", str(ranks), "--quiet", *options, "--", "bash", "-c", script]
    with subprocess.Popen(command, env=variables(), text=True, **streams) as job:
        limit = threading.Timer(allowed(60), job.kill)
        limit.start()
        try:
            yield job
        finally:
            limit.cancel()
            job.kill()


def run(script, *options, ranks=2, **streams):
    with start(script, *options, ranks=ranks, **streams) as job:
        output, errors = job.communicate()
        return job.returncode, output, errors


def wait_for(condition, what):
    end = time.monotonic() + allowed(30)
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


# ---- Readers that are slow or have stopped ---------------------------------------------------------------------------


def test_sigterm_ends_ranks_that_write_faster_than_their_output_is_read(tmp_path):
    with start(f"touch {tmp_path}/$FARANDOLE_RANK; exec yes") as job:
        wait_for(lambda: len(os.listdir(tmp_path)) == 2, "the ranks have not started")
        assert job.stdout.readline() in ("[0] y\n", "[1] y\n")
        job.send_signal(signal.SIGTERM)
        assert job.wait(allowed(30)) == 143
        assert job.stderr.read() == "farandole run: SIGTERM: the ranks have 25 s to save and to end\n"


@pytest.mark.parametrize("options", [[], ["--json-logs"], ["--min-np", "2", "--replacements", "0"]])
def test_the_end_of_a_rank_is_handled_while_another_one_writes_and_its_output_is_not_read(options):
    with start("[ $FARANDOLE_RANK = 0 ] && exec yes; echo reason >&2; sleep 1; exit 5", *options) as job:
        errors = ""
        while "exit code 5" not in errors:  # nothing reads the output meanwhile
            line = job.stderr.readline()
            assert line, errors
            errors += line
        for line in job.stdout:
            assert line.rstrip().endswith(("[0] y", '"y"}')), line
        assert job.wait(allowed(30)) == (201 if "--min-np" in options else 5)


def test_a_rank_waits_until_its_output_is_read_and_no_line_is_lost(tmp_path):
    with start(f"seq 0 {LINES - 1}; touch {tmp_path}/written", ranks=1) as job:
        assert job.stdout.readline() == "[0] 0\n"
        time.sleep(0.5)
        assert os.listdir(tmp_path) == []
        for number in range(1, LINES):
            assert job.stdout.readline() == f"[0] {number}\n"
        assert job.stdout.read() == "" and job.wait(allowed(30)) == 0
        assert os.listdir(tmp_path) == ["written"]


@pytest.mark.parametrize("signal_number", [None, signal.SIGINT])
def test_output_that_is_left_after_the_ranks_is_written_unless_a_signal_ends_the_wait(tmp_path, signal_number):
    # More than a pipe holds, and less than the launcher takes.
    with start(f"seq 100000 149999; touch {tmp_path}/written", ranks=1) as job:
        wait_for(lambda: os.listdir(tmp_path) == ["written"], "the rank waits for a reader")
        time.sleep(0.2)
        assert job.poll() is None
        if signal_number is None:
            assert job.stdout.read() == "".join(f"[0] {number}\n" for number in range(100000, 150000))
            assert job.wait(allowed(30)) == 0
        else:
            job.send_signal(signal_number)
            assert job.wait(allowed(30)) in (130, -signal.SIGINT)


def test_the_last_line_of_a_rank_is_written_without_an_end_although_its_child_holds_the_pipe():
    code, output, errors = run("setsid sleep 300 & printf 'last words'", ranks=1)
    assert (code, output, errors) == (0, "[0] last words\n", "")


def test_lines_of_both_streams_keep_their_order_in_one_file(tmp_path):
    with open(tmp_path / "both", "w") as both:
        code, _, _ = run("for i in 1 2 3 4 5; do echo $i; sleep 0.2; echo $i >&2; sleep 0.2; done; exit 3", ranks=1,
                         stdout=both, stderr=subprocess.STDOUT)  # fmt: skip
    lines = (tmp_path / "both").read_text().splitlines()
    assert code == 3 and lines[:10] == [f"[0] {number}" for number in (1, 1, 2, 2, 3, 3, 4, 4, 5, 5)], lines
    assert lines[10].startswith("farandole run: rank 0 (process "), lines


# ---- Output that cannot be written -----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--min-np", "1"]])
@pytest.mark.parametrize("closed", ["stdout", "stderr", "both"])
def test_a_reader_that_ends_ends_the_ranks_in_good_order(tmp_path, closed, options):
    script = f"""trap 'touch {tmp_path}/saved.$FARANDOLE_RANK; exit' TERM
    touch {tmp_path}/begun.$FARANDOLE_RANK
    while :; do echo line; echo line >&2; sleep 0.05; done"""
    streams = {"stderr": subprocess.STDOUT} if closed == "both" else {}
    with start(script, *options, **streams) as job:
        wait_for(lambda: len(os.listdir(tmp_path)) == 2, "the ranks have not started")
        lost, kept = (job.stderr, job.stdout) if closed == "stderr" else (job.stdout, job.stderr)
        assert lost.readline() in ("[0] line\n", "[1] line\n")
        lost.close()
        left = kept.read() if kept else ""
        assert job.wait(allowed(30)) == 141, left
        assert sorted(os.listdir(tmp_path)) == ["begun.0", "begun.1", "saved.0", "saved.1"]
        words = "farandole run: the reader of the output has ended: the ranks have 25 s to save and to end\n"
        assert (words in left) == (closed == "stdout"), left


def test_a_reader_that_has_ended_when_a_job_succeeds_is_no_success():
    command = [FARANDOLE, "run", "-np", "1", "--quiet", "--", "sh", "-c", "exec >&2; sleep 0.5; echo late"]
    job = subprocess.Popen(command, env=variables(), stderr=subprocess.PIPE)
    job.stderr.close()
    assert job.wait(allowed(60)) == 141


@pytest.mark.parametrize("full", ["stdout", "stderr"])
def test_a_full_disk_ends_no_job_and_is_no_success(tmp_path, full):
    script = f"echo out; echo error >&2; sleep 0.5; echo out; echo error >&2; touch {tmp_path}/$FARANDOLE_RANK"
    with open("/dev/full", "w") as device:
        code, output, errors = run(script, **{full: device})
    assert code == 74 and sorted(os.listdir(tmp_path)) == ["0", "1"], errors
    if full == "stderr":
        assert sorted(output.splitlines()) == ["[0] out"] * 2 + ["[1] out"] * 2
        return
    lines = sorted(errors.splitlines())
    assert lines[:4] == ["[0] error"] * 2 + ["[1] error"] * 2
    assert lines[4:] == ["farandole run: standard output cannot be written: No space left on device; the job goes on, "
                         "and lines are lost; if its ranks succeed, the exit code is 74"]  # fmt: skip


def test_a_rank_that_fails_has_its_code_although_output_was_lost():
    with open("/dev/full", "w") as device:
        code, _, errors = run("echo out; exit 5", ranks=1, stdout=device)
    assert code == 5 and "standard output cannot be written" in errors, errors


# ---- Standard streams that are closed --------------------------------------------------------------------------------


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("options", ["", "--min-np 1"])
def test_streams_that_are_closed_take_no_output(tmp_path, redirection, options):
    script = f"echo out; echo error >&2; cat; sleep 0.3; echo out; touch {tmp_path}/$FARANDOLE_RANK"
    command = f"'{FARANDOLE}' run -np 2 --quiet {options} -- sh -c '{script}' {redirection}"
    done = subprocess.run(["bash", "-c", command], env=variables(), capture_output=True, text=True,
                          timeout=allowed(60))  # fmt: skip
    assert done.returncode == 0 and sorted(os.listdir(tmp_path)) == ["0", "1"], done.stderr
    closed = redirection.split()
    expected = [] if ">&-" in closed else ["[0] out"] * 2 + ["[1] out"] * 2
    assert sorted(done.stdout.splitlines()) == expected
    assert sorted(done.stderr.splitlines()) == ([] if "2>&-" in closed else ["[0] error", "[1] error"])


@pytest.mark.parametrize("command", ["config", "env", "--version", "bench --ranks 2 --sizes 4"])
@pytest.mark.parametrize("redirection", [">&-", "<&- >&-"])
def test_a_command_that_prints_to_a_closed_stream_fails(command, redirection):
    done = subprocess.run(["bash", "-c", f"'{sys.executable}' -m farandole {command} {redirection}"],
                          capture_output=True, text=True, timeout=allowed(60))  # fmt: skip
    assert done.returncode == 74 and "farandole: standard output cannot be written" in done.stderr, done.stderr


# ---- The folder of --output-filename ---------------------------------------------------------------------------------


def _file(path):
    path.write_text("")


def _folder_in_the_place_of_a_file(path):
    (path / "rank.1" / "stderr").mkdir(parents=True)


def _pipe_in_the_place_of_a_file(path):
    (path / "rank.1").mkdir(parents=True)
    os.mkfifo(path / "rank.1" / "stdout")


@pytest.mark.parametrize("options", [[], ["--min-np", "1"]])
@pytest.mark.parametrize(
    "make, words",
    [
        (_file, ": Not a directory;"),
        (_folder_in_the_place_of_a_file, "/rank.1/stderr': Is a directory;"),
        (_pipe_in_the_place_of_a_file, "/rank.1/stdout' is a pipe, and not a file;"),
    ],
)
def test_a_folder_that_cannot_take_the_files_is_bad_use(tmp_path, make, words, options):
    folder = tmp_path / "logs"
    make(folder)
    code, output, errors = run("echo started", "--output-filename", str(folder), *options)
    assert (code, output) == (64, ""), errors
    assert errors.startswith(f"farandole run: --output-filename '{folder}': ") and words in errors
    assert errors.endswith("; give a folder in which this user can make files\n")


def test_a_full_disk_of_the_folder_is_reported_once_and_is_no_success(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"rank.{rank}").mkdir()
        (tmp_path / f"rank.{rank}" / "stdout").symlink_to("/dev/full")
    code, output, errors = run("echo out; sleep 0.3; echo out; echo error >&2", "--output-filename", str(tmp_path))
    assert code == 74 and sorted(output.splitlines()) == ["[0] out"] * 2 + ["[1] out"] * 2
    assert errors.count("cannot be written: No space left on device; the job goes on, and lines are lost") == 1
    assert f"farandole run: --output-filename: {tmp_path}/rank." in errors
    assert [(tmp_path / f"rank.{rank}" / "stderr").read_text() for rank in (0, 1)] == ["error\n"] * 2
