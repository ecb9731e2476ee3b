"""Ranks that receive SIGTERM continue to a leave point, save there, and exit with 143; on one host."""

import json
import os
import signal
import subprocess
import sys
import time

import farandole
import pytest
from farandole import termination
from launch import FARANDOLE
from limits import allowed

HERE = os.path.dirname(os.path.abspath(__file__))


def told_to_end(flags, task, folder, ups):
    """The output of a job that gets SIGTERM after `ups` ranks have started."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
    variables.update(OMP_NUM_THREADS="1", FARANDOLE_TERM_GRACE_S="17")
    command = [
        FARANDOLE,
        "run",
        *flags.split(),
        "--",
        sys.executable,
        os.path.join(HERE, "elastic_tasks.py"),
        task,
        str(folder),
    ]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        try:
            lines = []
            while sum('"up"' in line for line in lines) < ups:
                lines.append(job.stdout.readline())
                assert lines[-1], job.stderr.read()
            job.send_signal(signal.SIGTERM)
            rest, errors = job.communicate(timeout=allowed(30))
        finally:
            job.kill()
    printed = [json.loads(line.split("SAYS ")[1]) for line in "".join(lines + [rest]).splitlines() if "SAYS " in line]
    return job.returncode, printed, errors


def test_a_plain_loop_saves_at_its_leave_point(tmp_path):
    code, _, errors = told_to_end("-np 2", "leaves", tmp_path, 2)
    assert code == 143, errors
    for rank in range(2):
        saved = json.loads((tmp_path / f"saved.{rank}").read_text())
        assert saved["steps"] > 0 and 0 < saved["seconds"] <= 17


def test_a_terminated_elastic_job_leaves_at_one_commit(tmp_path):
    code, printed, errors = told_to_end("-np 2 --min-np 1", "leaves_at_a_commit", tmp_path, 2)
    assert code == 143, errors
    left = [one["left"] for one in printed if "left" in one]
    assert len(left) == 2 and left[0] == left[1] >= 5, (printed, errors)
    assert "was lost" not in errors and "Traceback" not in errors, errors


@pytest.fixture
def quiet(monkeypatch):
    """Restores the state of the module after the test."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(termination, "_callbacks", [])
    monkeypatch.setattr(termination, "_deadline", None)
    monkeypatch.setattr(termination, "_handler_installed", False)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_callbacks_are_called_in_order_with_the_time_that_is_left(quiet, monkeypatch):
    monkeypatch.setenv("FARANDOLE_TERM_GRACE_S", "4")
    calls = []
    farandole.on_leave(lambda seconds: calls.append(("first", 0 < seconds <= 4)))
    farandole.on_leave(lambda seconds: calls.append(("second", 0 < seconds <= 4)))
    farandole.leave_if_requested()
    assert calls == []
    os.kill(os.getpid(), signal.SIGTERM)
    assert termination.is_requested()
    with pytest.raises(SystemExit) as end:
        farandole.leave_if_requested()
    assert end.value.code == 143 and calls == [("first", True), ("second", True)]


def test_after_a_callback_that_raises_the_others_run(quiet, caplog):
    calls = []
    farandole.on_leave(lambda seconds: 1 / 0)
    farandole.on_leave(lambda seconds: calls.append(1))
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        farandole.leave_if_requested()
    assert end.value.code == 143 and calls == [1]
    assert "a callback of on_leave failed" in caplog.text and "ZeroDivisionError" in caplog.text


def test_sigterm_ends_a_forked_child_at_once(quiet):
    farandole.on_leave(lambda seconds: None)
    begun, begins = os.pipe()  # Python drops signals that come while it forks
    child = os.fork()
    if child == 0:
        try:
            os.write(begins, b"x")
            time.sleep(60)
        finally:
            os._exit(0)
    os.read(begun, 1)
    os.kill(child, signal.SIGTERM)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM


def test_a_commit_is_a_leave_point_also_without_a_launcher(quiet):
    farandole.on_leave(lambda seconds: None)
    state = farandole.elastic.ObjectState(step=1)
    state.commit()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit):
        state.commit()


def test_a_handler_of_the_program_stays(quiet, caplog):
    own = lambda *_: None  # noqa: E731
    signal.signal(signal.SIGTERM, own)
    farandole.on_leave(lambda seconds: None)
    assert signal.getsignal(signal.SIGTERM) is own and "its own handler for SIGTERM" in caplog.text


def test_on_leave_rejects_objects_that_are_not_callable(quiet):
    with pytest.raises(TypeError, match="on_leave takes a function, not 5"):
        farandole.on_leave(5)


def test_sigterm_kills_the_process_again_when_no_leave_point_follows(quiet):
    assert termination.install_handler() and termination.install_handler()
    termination.restore_handler()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    termination.on_leave(lambda seconds: None)
    termination.restore_handler()
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL


def test_the_former_name_of_leave_if_requested_is_the_same_function():
    assert farandole.leave_if_told is farandole.leave_if_requested
