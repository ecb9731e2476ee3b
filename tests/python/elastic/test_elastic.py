"""Elastic jobs: ranks die, stop, fail, join and leave; the others restore the last commit and continue."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time

import elastic_tasks
import farandole
import farandole.torch as hvd
import horovod.torch.elastic as horovod_elastic
import kill_ranks
import pytest
import torch
from farandole import basics, elastic, elastic_client
from launch import FARANDOLE, launch

HERE = os.path.dirname(os.path.abspath(__file__))
HOROVODRUN = [os.path.join(os.path.dirname(sys.executable), "horovodrun")]
EXIT_TOO_FEW, EXIT_PEER_LOST = 201, 202


class Done:
    """An elastic job: its output, its errors and its exit code."""

    def __init__(self, flags, task, *arguments, timeout=60, command=(FARANDOLE, "run"), shell=False,
                 lost_after_s=1, program=sys.executable):  # fmt: skip
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))
        }
        variables.update(OMP_NUM_THREADS="1", FARANDOLE_LOST_AFTER_S=str(lost_after_s))
        below = ["sh", "-c", '"$@"; exit $?', "sh"] if shell else []
        task = [*below, program, os.path.join(HERE, "elastic_tasks.py"), task]
        command = [*command, *flags.split(), "--", *task]
        done = subprocess.run([*command, *map(str, arguments)], env=variables, capture_output=True, text=True,
                              timeout=timeout)  # fmt: skip
        self.code, self.output, self.errors = done.returncode, done.stdout, done.stderr
        self.printed = [json.loads(line.split("SAYS ")[1]) for line in done.stdout.splitlines() if "SAYS " in line]

    def all_with(self, key):
        return [one for one in self.printed if key in one]

    @property
    def report(self):
        return f"exit code {self.code}\n{self.output}\n{self.errors}"


# ---- Ranks are lost --------------------------------------------------------------------------------------------------


def test_a_killed_rank_is_replaced_and_the_others_continue_from_the_commit():
    job = Done("-np 3 --min-np 2 --wait-for-replacements", "one_dies")
    assert job.code == 0, job.report
    # 5 steps were made, 4 committed; no rank restarts at 0, not even the new one.
    assert sorted((one["worker"], one["enters"], one["rank"]) for one in job.all_with("enters")) == [
        (0, 0, 0), (0, 4, 0), (1, 0, 1), (2, 0, 2), (2, 4, 1), (3, 4, 2)
    ], job.report  # fmt: skip
    assert sorted(one["reset"] for one in job.all_with("reset")) == [[0, 3], [1, 3]], job.report
    ends = job.all_with("total")
    assert [one["total"] for one in ends] == [36] * 3 and all(one["equal"] for one in ends), job.report
    assert "rank 1 (process" in job.errors and "signal 9" in job.errors, job.report
    assert "generation 2 begins with 3 ranks" in job.errors, job.report


def test_survivors_continue_before_the_replacement_is_there_and_it_joins_at_a_commit():
    job = Done("-np 3 --min-np 2 --reset-limit 1", "one_dies_and_its_replacement_is_slow")
    assert job.code == 0, job.report
    assert sorted((one["worker"], one["size"], one["rank"]) for one in job.all_with("enters")) == [
        (0, 2, 0), (0, 3, 0), (0, 3, 0), (1, 3, 1), (2, 2, 1), (2, 3, 1), (2, 3, 2), (3, 3, 2)
    ], job.report  # fmt: skip
    ends = job.all_with("total")
    # The sum is that of the sizes of all steps: none was lost, none was made twice.
    assert [one["total"] for one in ends] == [sum(2 * size for size in ends[0]["sizes"])] * 3, job.report
    assert ends[0]["sizes"][:3] == [3, 3, 2] and ends[0]["sizes"][-1] == 3, job.report
    assert "generation 2 begins with 2 ranks" in job.errors and "generation 3 begins with 3 ranks" in job.errors


@pytest.mark.parametrize("workers", [[1], [0], [0, 2]])
def test_ranks_that_alone_receive_sigterm_leave_at_the_next_commit_and_are_replaced(workers):
    job = Done("-np 3 --min-np 3", "some_are_terminated", *workers)
    assert job.code == 0, job.report
    assert sorted(one["worker"] for one in job.all_with("left")) == workers, job.report
    assert job.errors.count("was lost: exit code 143") == len(workers), job.report
    # They leave at the commit of step 6. No step is lost.
    stay, new = [one for one in range(3) if one not in workers], [3, 4][: len(workers)]
    assert sorted((one["worker"], one["enters"]) for one in job.all_with("enters") if one["enters"]) == [
        (worker, 6) for worker in stay + new
    ], job.report
    assert "restoring the last commit" not in job.errors, job.report
    assert [one["total"] for one in job.all_with("total")] == [36] * 3, job.report


def test_the_state_outlives_rank_0():
    job = Done("-np 3 --min-np 3", "one_dies", 0)
    assert job.code == 0, job.report
    assert [one["total"] for one in job.all_with("total")] == [36] * 3, job.report
    assert {(one["worker"], one["rank"]) for one in job.all_with("total")} == {(1, 0), (2, 1), (3, 2)}, job.report


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_replacement_that_has_not_received_the_state_does_not_hold_it(restarts):
    job = Done(
        f"-np 2 --min-np 1 --wait-for-replacements --max-restarts {restarts}",
        "one_dies_and_then_rank_0_as_it_sends_the_state",
    )
    assert job.code == (0 if restarts else EXIT_PEER_LOST), job.report
    assert "no rank is left that holds the state" in job.errors, job.report
    enters = [one["enters"] for one in job.all_with("enters")]
    assert enters.count(0) == 2 + 2 * restarts, job.report  # at the start, and at the restart that the job counts


def test_a_replacement_that_ends_with_0_before_init_does_not_end_the_job():
    job = Done("-np 3 --min-np 1 --wait-for-replacements", "the_replacement_has_nothing_to_do")
    assert job.code == 0, job.report
    assert all(one["equal"] for one in job.all_with("total")) and job.all_with("total"), job.report
    assert re.search(r"rank 1 \(process \d+\) was lost: exit code 0", job.errors), job.report


@pytest.mark.parametrize("flags", ["--elastic-timeout 3", "--start-timeout 3"])
def test_a_replacement_that_does_not_come_to_init_does_not_keep_the_job(flags):
    job = Done(f"-np 2 --min-np 1 {flags}", "one_never_comes", 2)
    assert job.code == 0 and len(job.all_with("total")) == 1, job.report
    assert "rank 1 was started to join the others, and does not come to init(), and is ended" in job.errors, job.report


def test_a_rank_that_does_not_come_to_the_first_generation_is_named_and_ended():
    job = Done("-np 2 --min-np 1 --elastic-timeout 4", "one_never_comes", 1)
    assert job.code == 0 and len(job.all_with("total")) == 1, job.report
    waits, *others = [line for line in job.errors.splitlines() if "rank 1" in line]
    assert "the next generation waits for rank 1; what has not come after 4 s is ended" in waits, job.report
    assert "has kept the others waiting for the next generation for too long, and is ended" in others[0], job.report
    assert others[1].endswith("was lost: signal 9 (Killed), by this launcher"), job.report


def test_several_losses_are_survived():
    job = Done("-np 3 --min-np 2 --wait-for-replacements", "many_die")
    assert job.code == 0, job.report
    ends = job.all_with("total")
    assert [one["total"] for one in ends] == [36] * 3 and all(one["equal"] for one in ends), job.report
    assert {one["worker"] for one in ends} == {2, 4, 5}, job.report


def test_the_launcher_does_not_grow_with_the_ranks_that_are_killed():
    kill_ranks.kill_ranks(4)


def test_a_rank_may_die_before_it_joins_the_next_generation():
    begin = time.monotonic()
    job = Done("-np 2 --min-np 2", "one_dies_while_they_meet")
    assert job.code == 0, job.report
    assert [(one["total"], one["rank"]) for one in sorted(job.all_with("total"), key=lambda one: one["rank"])] == [
        (24, 0), (24, 1)
    ], job.report  # fmt: skip
    assert "generation 3 begins" in job.errors and "have not arrived" not in job.errors, job.report
    assert time.monotonic() - begin < 30  # the start's timeout


def test_without_replacements_the_job_shrinks():
    job = Done("-np 3 --min-np 2 --replacements 0", "one_dies")
    assert job.code == 0, job.report
    ends = job.all_with("total")
    assert [one["total"] for one in ends] == [4 * 3 + 8 * 2] * 2, job.report
    assert [one["sizes"] for one in ends] == [[3, 3, 2, 2, 2, 2]] * 2, job.report
    assert "generation 2 begins with 2 ranks" in job.errors


def _wrapper(folder):
    """A program that runs Python. It is gone when its two ranks have begun, so that no other one can be started."""
    path = folder / "wrapper"
    path.write_text(f"""#!/bin/sh
    touch {folder}/begun.$FARANDOLE_WORKER
    [ $FARANDOLE_WORKER = 0 ] || {{ until [ -e {folder}/begun.0 ]; do sleep 0.01; done; rm "$0"; }}
    exec {sys.executable} "$@"
    """)
    path.chmod(0o755)
    return str(path)


def test_ranks_continue_without_a_replacement_that_cannot_be_started(tmp_path):
    program = _wrapper(tmp_path)
    job = Done("-np 2 --min-np 1", "one_dies", 0, program=program)
    assert job.code == 0, job.report
    assert [(one["total"], one["rank"]) for one in job.all_with("total")] == [(4 * 2 + 8, 0)], job.report
    words = f"rank 0 was lost before it began: cannot run '{program}': No such file or directory, while starting rank 0"
    assert job.errors.count(words) == 1 and "generation 2 begins with 1 ranks" in job.errors, job.report


def test_a_replacement_that_cannot_be_started_and_is_needed_ends_the_job_in_good_order(tmp_path):
    job = Done("-np 2 --min-np 2", "one_dies", 0, program=_wrapper(tmp_path))
    assert job.code == 201, job.report
    why = "1 rank is left, and the job needs at least 2"
    assert f"farandole run: the job ends: {why}" in job.errors, job.report
    assert re.search(rf"\[1\] \S*ShutDownError: the elastic job ends: {why}", job.errors), job.report


def test_one_remaining_rank_continues():
    job = Done("-np 2 --min-np 1 --replacements 0", "one_dies", 0)
    assert job.code == 0, job.report
    assert [(one["total"], one["rank"]) for one in job.all_with("total")] == [(4 * 2 + 8, 0)], job.report


def test_a_rank_that_raises_is_replaced():
    job = Done("-np 2 --min-np 2", "one_raises")
    assert job.code == 0, job.report
    assert [one["total"] for one in job.all_with("total")] == [24] * 2, job.report
    assert "a fault of its own" in job.errors and "exit code 1" in job.errors


STOPPED = "was stopped by signal 19 (Stopped (signal)), and was killed so that the others can continue without it"
TOO_LATE = "was lost by the others, and does not come to the next generation"


# Its child would be found as a silent rank only after FARANDOLE_LOST_AFTER_S.
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_killed_rank_whose_child_lives_is_lost_at_once(transport):
    job = Done(f"-np 3 --min-np 2 -x FARANDOLE_TRANSPORT={transport}", "one_dies_and_its_child_lives", lost_after_s=600)
    assert job.code == 0, job.report
    assert len(job.all_with("total")) in (2, 3), job.report  # the replacement may come after the last step


def test_a_stopped_rank_is_killed_and_replaced():
    job = Done("-np 2 --min-np 2", "one_stops")
    assert job.code == 0, job.report
    assert [one["total"] for one in job.all_with("total")] == [24] * 2, job.report
    assert STOPPED in job.errors and TOO_LATE not in job.errors, job.report
    (stopped,) = job.all_with("stops")
    assert not os.path.exists(f"/proc/{stopped['stops']}")


def test_a_stopped_rank_below_a_shell_has_time_to_come_and_is_killed():
    """The launcher sees its own child alone, which is not stopped."""
    job = Done("-np 2 --min-np 2", "one_stops", shell=True)
    assert job.code == 0, job.report
    assert [one["total"] for one in job.all_with("total")] == [24] * 2, job.report
    assert TOO_LATE in job.errors and STOPPED not in job.errors, job.report


def test_a_rank_that_is_stopped_when_another_dies_does_not_delay_the_others_until_the_timeout():
    job = Done("-np 3 --min-np 3 --elastic-timeout 3600", "one_stops_and_another_dies")
    assert job.code == 0, job.report
    assert [one["total"] for one in job.all_with("total")] == [36] * 3, job.report
    assert STOPPED in job.errors and "for too long" not in job.errors, job.report


def test_a_failure_without_a_loss_restores_the_commit():
    job = Done("-np 2 --min-np 2", "fails_without_a_loss")
    assert job.code == 0, job.report
    assert sorted(one["enters"] for one in job.all_with("enters")) == [0, 0, 4, 4], job.report
    assert [one["total"] for one in job.all_with("total")] == [24] * 2, job.report


def test_init_joins_the_next_generation_without_elastic_run():
    job = Done("-np 2 --min-np 1", "begins_again_by_itself")
    assert job.code == 0, job.report
    assert sorted((one["turn"], one["rank"], one["sum"]) for one in job.printed) == [
        (turn, rank, 1) for turn in range(3) for rank in range(2)
    ], job.report


@pytest.mark.parametrize("mounted", [False, True])
def test_the_job_follows_the_number_in_the_np_file(tmp_path, mounted):
    """Also where the file is that of a mounted ConfigMap, whose folder is a link which the kubelet replaces."""
    if mounted:
        (tmp_path / "..version_2").mkdir()
        (tmp_path / "..version_2" / "wanted").write_text("2")
        (tmp_path / "..data").symlink_to("..version_2")
        (tmp_path / "wanted").symlink_to("..data/wanted")
    job = Done(f"-np 2 --min-np 1 --max-np 3 --np-file {tmp_path}/wanted", "grows", tmp_path)
    assert job.code == 0, job.report
    entered = [(one["worker"], one["rank"], one["sizes"]) for one in job.all_with("enters")]
    assert sorted(entered) == [(0, 0, [2]), (0, 0, [2, 3]), (0, 0, [2, 3, 1]), (1, 1, [2]), (1, 1, [2, 3]),
                               (2, 2, [2, 3])], job.report  # fmt: skip
    (last,) = job.all_with("steps")
    # No rank was lost, so no step is lost. Ranks whose peers only leave need no synchronisation.
    assert last["worker"] == 0 and last["steps"] == max(one["enters"] for one in job.all_with("enters"))
    assert "the target is 3 ranks, not 2" in job.errors and "the target is 1 ranks, not 3" in job.errors, job.report
    assert job.errors.count("removed from the elastic job, and ends") == 2 and "was lost" not in job.errors, job.report


def test_horovods_variables_follow_the_number_of_ranks(tmp_path):
    job = Done(f"-np 2 --min-np 1 --max-np 3 --np-file {tmp_path}/wanted", "shows_horovods_variables", tmp_path)
    assert job.code == 0, job.report
    host = socket.gethostname()
    starts = {one["worker"]: one["at_start"] for one in job.all_with("at_start")}
    assert {worker: (start[0], start[-1]) for worker, start in starts.items()} == {
        0: ("0", host), 1: ("1", host), 2: ("2", host)
    }, job.report  # fmt: skip
    worlds = job.all_with("world")
    assert sorted((one["worker"], *one["world"][:2]) for one in worlds) == [
        (0, "0", "1"), (0, "0", "2"), (0, "0", "3"), (1, "1", "2"), (1, "1", "3"), (2, "2", "3")
    ], job.report  # fmt: skip
    assert all(one["variables"] == [*one["world"], host] for one in worlds), job.report


def test_an_invalid_number_in_the_np_file_is_ignored(tmp_path):
    job = Done(f"-np 1 --np-file {tmp_path}/wanted", "writes_nonsense", tmp_path)
    assert job.code == 0, job.report
    refused = f"'{tmp_path}/wanted' contains 'many', which is no number of ranks; nothing changes"
    assert refused in job.errors, job.report
    assert Done("-np 1 --np-file /no/such/folder/x", "grows").code == 200


# ---- The job ends ----------------------------------------------------------------------------------------------------


def test_with_fewer_than_min_np_the_job_ends():
    job = Done("-np 2 --min-np 2 --replacements 0", "one_dies")
    assert job.code == EXIT_TOO_FEW, job.report
    assert "the job ends: 1 rank is left, and the job needs at least 2; no more may be replaced" in job.errors, (
        job.report
    )
    assert "signal 9" in job.errors


def test_the_reset_limit_ends_the_job():
    job = Done("-np 3 --min-np 1 --reset-limit 1", "many_die")
    assert job.code == EXIT_PEER_LOST, job.report
    assert "the job ends: the limit of 1 resets is reached" in job.errors, job.report
    assert "generation 2 begins" in job.errors and "generation 4 begins" not in job.errors
    # If the replacement came so late that the others went on without it, its generation is no reset.
    assert "generation 3 begins" not in job.errors or "generation 2 begins with 2 ranks" in job.errors, job.report


def test_the_job_ends_when_all_ranks_die():
    job = Done("-np 2 --min-np 1", "all_die")
    assert job.code == EXIT_PEER_LOST, job.report
    assert "no rank is left that holds the state" in job.errors, job.report


def test_a_program_that_fails_before_init_ends_with_its_own_code():
    job = Done("-np 2 --min-np 1", "none_begins")
    codes = re.findall(r"was lost: exit code (\d+)", job.errors)
    assert sorted(codes) == ["3", "4"] and job.code == int(codes[0]), job.report  # that of the first
    assert "no rank came as far as init()" in job.errors


def test_a_replacement_that_fails_at_once_is_not_replaced():
    job = Done("-np 3 --min-np 2", "replaced_ones_fail")
    assert job.code == 0, job.report
    assert [one["sizes"] for one in job.all_with("total")] == [[3, 3, 2, 2, 2, 2]] * 2, job.report


def test_a_mismatch_ends_the_job():
    job = Done("-np 2 --min-np 1", "disagrees")
    assert job.code == EXIT_PEER_LOST, job.report
    assert "MismatchError" in job.errors and "generation 2" not in job.errors, job.report


def test_elastic_functions_may_be_called_one_after_the_other():
    job = Done("-np 2 --min-np 2", "two_phases", "never")
    assert job.code == 0, job.report
    assert [one["steps"] for one in job.all_with("steps")] == [[6, 6]] * 2, job.report


@pytest.mark.parametrize("moment", ["later", "between"])
def test_ranks_in_different_calls_of_elastic_functions_end_with_an_error(moment):
    flags = {"later": "-np 2 --min-np 2", "between": "-np 3 --min-np 2 --replacements 0"}[moment]
    job = Done(flags, "two_phases", moment)
    assert job.code in (EXIT_TOO_FEW, EXIT_PEER_LOST), job.report  # by which rank ends first
    assert (
        "MismatchError: elastic.run: rank 0 is in call 2 of an elastic function, and rank 1 in call 1," in job.errors
    ), job.report
    assert "train all phases in one elastic function" in job.errors and job.all_with("steps") == [], job.report


def test_no_generation_follows_one_in_which_a_rank_has_finished():
    job = Done("-np 2 --min-np 1", "one_finishes_early")
    assert job.code == 1, job.report
    assert "other ranks have finished, so that no generation follows" in job.errors, job.report


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("-np 2 --min-np 3", "--min-np 3, -np 2"),
        ("-np 2 --max-np 1", "--max-np 1"),
        ("-np 1 --min-np 1 --nnodes 2 --rendezvous x:1", "runs on one host"),
        ("-np 2 --reset-limit -1", "--reset-limit"),
    ],
)
def test_invalid_elastic_options_are_rejected(flags, words):
    job = Done(flags, "one_dies")
    assert job.code == 64 and words in job.errors, job.report


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", ["", "overlap_forward"])
def test_training_continues_with_a_replacement_and_then_with_fewer_ranks(overlap):
    job = Done("-np 3 --min-np 2 --replacements 1 --wait-for-replacements", "trains", overlap, timeout=240)
    assert job.code == 0, job.report
    entered = {(one["worker"], *one["enters"], one["size"]) for one in job.all_with("enters")}
    assert entered == {(0, 0, 0, 3), (1, 0, 0, 3), (2, 0, 0, 3), (0, 0, 4, 3), (2, 0, 4, 3), (3, 0, 4, 3),
                       (0, 1, 6, 2), (3, 1, 6, 2)}, job.report  # fmt: skip
    assert all(one["momentum"] == 2 for one in job.all_with("enters") if one["enters"] != [0, 0]), job.report
    ends = job.all_with("equal")
    assert len(ends) == 2 and all(one["equal"] and one["size"] == 2 for one in ends), job.report
    assert ends[0]["weights"] == ends[1]["weights"] and ends[0]["losses"] == ends[1]["losses"], job.report
    losses = ends[0]["losses"]
    assert sum(losses[-10:]) < 0.3 * sum(losses[:10]), losses
    # Every sample once an epoch, also across the resets, whatever the number of ranks.
    for epoch in range(3):
        assert sorted(i for when, i in ends[0]["seen"] if when == epoch) == list(range(60)), job.report


@pytest.mark.parametrize("form", ["before", "after"])
def test_a_loss_between_the_last_batch_and_the_end_of_an_epoch_repeats_no_sample(form):
    job = Done("-np 3 --min-np 2 --replacements 0", "epoch_ends_with_a_loss", form, timeout=120)
    assert job.code == 0, job.report
    ends = job.all_with("seen")
    assert len(ends) == 2 and [one["ended"] for one in ends] == [[0, 1], [0, 1]], job.report
    for epoch in range(2):
        assert sorted(i for when, i in ends[0]["seen"] if when == epoch) == list(range(12)), job.report


# ---- The client alone ------------------------------------------------------------------------------------------------


def with_a_fake_launcher(monkeypatch, lines):
    """Yields a client of a fake launcher that sends `lines` and closes; then the request that the launcher received."""
    name = f"farandole-test-{os.getpid()}-{time.monotonic_ns()}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + name)
    listener.listen()
    monkeypatch.setenv("FARANDOLE_ELASTIC", f"unix:@{name}")
    monkeypatch.setenv("FARANDOLE_WORKER", "5")
    client = elastic_client.LauncherClient()
    with listener, listener.accept()[0] as other:
        other.sendall("".join(line + "\n" for line in lines).encode())
        other.shutdown(socket.SHUT_WR)
        yield client
        yield other.recv(100).decode()


WORLD = {"rank": 1, "size": 3, "local_rank": 0, "local_size": 2, "rendezvous": "unix:@x?coordinator=1"}


def test_changes_before_a_generation_are_not_reported_in_it(monkeypatch):
    talk = with_a_fake_launcher(monkeypatch, ["hosts added", "world 2 1 3 0 2 unix:@x?coordinator=1", "hosts removed"])
    client = next(talk)
    assert client.next_world(7) == WORLD
    assert client.membership_changes() == elastic_client.REMOVED
    assert client.membership_changes() == 0
    assert next(talk) == "join 5 7\n"


@pytest.mark.parametrize(
    ("lines", "reported"),
    [
        (["hosts removed"], False),  # before the generation
        (["world 2 1 3 0 2 unix:@x?coordinator=1", "hosts added"], False),
        (["world 2 1 3 0 2 unix:@x?coordinator=1", "hosts added", "hosts removed"], True),
    ],
)
def test_a_client_tells_whether_its_launcher_has_reported_ranks_that_leave(monkeypatch, lines, reported):
    first = [*lines, "world 3 1 3 0 2 unix:@x?coordinator=1"] if lines == ["hosts removed"] else lines
    client = next(talk := with_a_fake_launcher(monkeypatch, first))
    assert client.next_world() == WORLD
    assert client.has_reported_removal(60) == reported  # a launcher that has exited reports nothing
    assert client.membership_changes() == (elastic_client.ADDED if "hosts added" in lines else 0) | 2 * reported
    assert client.has_reported_removal(60) == reported
    talk.close()


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("end of it", farandole.ShutDownError, "the elastic job ends: of it"),
        ("removed", SystemExit, "^0$"),
        ("hosts added", farandole.PeerLostError, "has exited or rejected this rank"),
    ],
)
def test_next_world_raises_the_reason_when_no_generation_follows(monkeypatch, line, kind, words):
    client = next(talk := with_a_fake_launcher(monkeypatch, [line]))
    with pytest.raises(kind, match=words):
        client.next_world()
    talk.close()


def test_a_rank_that_has_belonged_to_the_job_may_be_removed(monkeypatch):
    client = next(talk := with_a_fake_launcher(monkeypatch, ["world 2 1 3 0 2 unix:@x?coordinator=1", "removed"]))
    assert client.next_world() == WORLD
    with pytest.raises(elastic_client.RankRemoved, match="has been removed from the elastic job"):
        client.next_world()
    talk.close()


@pytest.fixture
def fake_launcher(monkeypatch):
    """The listener of a launcher that sends nothing, and a client of it that asks every tenth of a second."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + (name := f"farandole-test-{os.getpid()}-{time.monotonic_ns()}"))
    listener.listen()
    monkeypatch.setenv("FARANDOLE_ELASTIC", f"unix:@{name}")
    monkeypatch.setenv("FARANDOLE_WORKER", "5")
    monkeypatch.setenv("FARANDOLE_LOST_AFTER_S", "0.4")
    with listener:
        yield listener, elastic_client.LauncherClient()


def test_a_launcher_that_is_stopped_ends_the_wait(fake_launcher, caplog):
    with pytest.raises(farandole.PeerLostError, match=r"`farandole run`.* has not answered for 0.4 s \(stopped"):
        fake_launcher[1].next_world()
    assert "after 0.4 s it is lost (FARANDOLE_LOST_AFTER_S)" in caplog.text


def test_a_launcher_that_answers_may_take_its_time(fake_launcher, caplog):
    listener, client = fake_launcher
    asked = []

    def answer(other):
        with other, other.makefile("r") as lines:
            for line in lines:
                asked.append(line)
                if line == "ping\n":
                    other.sendall(b"pong\n" if len(asked) < 8 else b"world 2 1 3 0 2 unix:@x?coordinator=1\n")

    thread = threading.Thread(target=answer, args=(listener.accept()[0],))
    thread.start()
    assert client.next_world() == WORLD
    client._socket.close()
    thread.join()
    assert asked[0] == "join 5 -1\n" and set(asked[1:]) == {"ping\n"}
    assert not caplog.text


def test_an_unreachable_launcher_is_named(monkeypatch):
    monkeypatch.setenv("FARANDOLE_ELASTIC", "unix:@no-listener")
    monkeypatch.setenv("FARANDOLE_WORKER", "0")
    with pytest.raises(farandole.PeerLostError, match="farandole run"):
        elastic_client.LauncherClient()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(farandole.AuthenticationError, match="another user"):
        next(with_a_fake_launcher(monkeypatch, []))


# ---- States and samplers, alone --------------------------------------------------------------------------------------


def test_an_object_state_is_restored_to_its_last_save():
    state = elastic.ObjectState(step=1, list=[1])
    state.step, state.list = 2, state.list + [2]
    state.commit()
    state.list.append(3)
    state.step = 3
    state.restore()
    assert (state.step, state.list) == (2, [1, 2])
    state.list.append(4)  # a restored value is not the saved one
    state.restore()
    assert state.list == [1, 2]


def test_a_torch_state_saves_models_optimizers_samplers_and_plain_values():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    state = hvd.elastic.TorchState(model, optimizer, sampler=hvd.elastic.ElasticSampler(range(10)), epoch=1)
    assert state.model is model and state.optimizer is optimizer and state.epoch == 1
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def step():
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.epoch += 1
        state.sampler.record_batch(0, 4)

    step()
    assert optimizer.state and not torch.equal(model.weight, before["weight"]) and state.sampler.processed_num == 4
    state.restore()
    assert torch.equal(model.weight, before["weight"]) and not optimizer.state
    assert (state.epoch, state.sampler.processed_num) == (1, 0)
    step()
    state.commit()
    after = model.weight.detach().clone()
    step()
    state.restore()
    assert torch.equal(model.weight, after) and (state.epoch, state.sampler.processed_num) == (2, 4)
    assert len(state.sampler.remaining_indices) == 6


def test_assigning_another_model_saves_it():
    state = hvd.elastic.TorchState(torch.nn.Linear(1, 1))
    other = torch.nn.Linear(1, 1)
    state.model = other
    weight = other.weight.detach().clone()
    with torch.no_grad():
        other.weight.fill_(7)
    state.restore()
    assert state.model is other and torch.equal(other.weight, weight)
    assert state.optimizer is None
    with pytest.raises(AttributeError, match="no 'scheduler'"):
        _ = state.scheduler


def test_other_kinds_of_values_can_get_handlers():
    class Counter:
        value = 0

    class CounterHandler(horovod_elastic.state.StateHandler):
        def save(self):
            self.saved = self.value.value

        def restore(self):
            self.value.value = self.saved

    registry = horovod_elastic.state.get_handler_registry()
    horovod_elastic.state.set_handler_registry([(Counter, CounterHandler), *registry])
    try:
        state = hvd.elastic.TorchState(counter=Counter())
        state.counter.value = 5
        state.restore()
        assert state.counter.value == 0
    finally:
        horovod_elastic.state.set_handler_registry(registry)


def among(monkeypatch, size):
    """The samples of each rank in a world of that size."""

    def of_rank(sampler, rank):
        monkeypatch.setattr(basics, "is_initialized", lambda: True)
        monkeypatch.setattr(basics, "rank", lambda: rank)
        monkeypatch.setattr(basics, "size", lambda: size)
        sampler.reset()
        return list(sampler)

    return of_rank


def test_a_sampler_divides_the_rest_among_the_remaining_ranks(monkeypatch):
    sampler = hvd.elastic.ElasticSampler(range(24), seed=3)
    sampler.set_epoch(5)
    parts = [among(monkeypatch, 3)(sampler, rank) for rank in range(3)]
    assert sorted(sum(parts, [])) == list(range(24)) and parts[0] != sorted(parts[0])
    for batch in range(2):
        sampler.record_batch(batch, 2)
    seen = sum((part[:4] for part in parts), [])
    assert sampler.state_dict() == {"epoch": 5, "processed_num": 12}
    rest = sum((among(monkeypatch, 2)(sampler, rank) for rank in range(2)), [])
    assert sorted(seen + rest) == list(range(24))


def test_a_sampler_gives_all_ranks_the_same_number(monkeypatch):
    sampler = hvd.elastic.ElasticSampler(range(7), shuffle=False)
    parts = [among(monkeypatch, 3)(sampler, rank) for rank in range(3)]
    assert parts == [[0, 3, 6], [1, 4, 0], [2, 5, 1]] and len(sampler) == 3
    sampler.record_batch(0, 3)
    assert sampler.processed_num == 7  # not 9: there are no more
    assert among(monkeypatch, 3)(sampler, 0) == []


def test_set_epoch_continues_the_current_epoch():
    sampler = hvd.elastic.ElasticSampler(range(8), seed=1)
    first = list(sampler)
    sampler.record_batch(0, 3)
    sampler.set_epoch(0)
    assert list(sampler) == first[3:]
    sampler.set_epoch(1)
    assert sampler.processed_num == 0 and list(sampler) != first
    sampler.record_batch(0, 8)
    sampler.set_epoch(1)  # it is over, so this is another round
    assert len(sampler) == 8
    other = hvd.elastic.ElasticSampler(range(8), seed=1)
    other.load_state_dict({"epoch": 0, "processed_num": 3})
    assert list(other) == first[3:]


def processed(sampler):
    """The samples of one loop, which are recorded."""
    samples = list(sampler)
    for batch in range(0, len(samples), 2):
        sampler.record_batch(batch, len(samples[batch : batch + 2]))
    return sorted(samples)


@pytest.mark.parametrize("restored", ["the same object", "a new object"])
def test_a_restored_epoch_without_samples_left_is_not_repeated(restored):
    sampler = hvd.elastic.ElasticSampler(range(5))
    state = hvd.elastic.TorchState(sampler=sampler)
    sampler.set_epoch(0)
    assert processed(sampler) == [0, 1, 2, 3, 4]
    state.save()
    if restored == "the same object":  # a rank that is left
        state.restore()
        state.on_reset()
    else:  # a replacement, or a program that loads a checkpoint
        other = hvd.elastic.ElasticSampler(range(5))
        other.load_state_dict(sampler.state_dict())
        sampler = other
    sampler.set_epoch(0)  # before the loop: the end of the epoch is still to be done
    assert processed(sampler) == []
    sampler.set_epoch(0)  # after the loop: the epoch begins again
    assert processed(sampler) == [0, 1, 2, 3, 4]
    sampler.set_epoch(1)
    assert processed(sampler) == [0, 1, 2, 3, 4]


def check_all_ranks_begin_an_epoch_again_if_rank_0_does():
    hvd.init()
    sampler = hvd.elastic.ElasticSampler(range(4))
    state = hvd.elastic.TorchState(sampler=sampler)
    if hvd.rank() == 0:  # the other one is new
        processed(sampler)
    sampler.processed_num = 4
    state.sync()
    sampler.set_epoch(0)
    assert len(sampler) == 2
    sampler.processed_num = 4
    state.on_reset()
    state.sync()
    sampler.set_epoch(0)
    assert len(sampler) == 0


def test_all_ranks_begin_an_epoch_again_if_rank_0_does():
    launch(2, check_all_ranks_begin_an_epoch_again_if_rank_0_does)


# ---- run, alone ------------------------------------------------------------------------------------------------------


class Recorder(elastic.State):
    def __init__(self, events):
        super().__init__()
        self.events = events

    def __getattribute__(self, name):
        if name in ("save", "restore", "sync", "reset"):
            return lambda: self.events.append(name)
        return super().__getattribute__(name)


def loop(monkeypatch, failures, is_elastic=True, rank_joins=False):
    """Records the calls of run when func raises `failures`, one in each call."""
    events = []
    monkeypatch.setattr(elastic_client, "is_elastic", lambda: is_elastic)
    monkeypatch.setattr(elastic, "_any_rank_lacks_state", lambda lacks, call: lacks or rank_joins)
    monkeypatch.setattr(elastic, "_join_next_world", lambda: events.append("again"))
    state = Recorder(events)
    state.register_reset_callbacks([lambda: events.append("callback")])
    failures = list(failures)

    @elastic.run
    def func(state, word, more=0):
        """What it does."""
        events.append("func")
        if failures:
            raise failures.pop(0)
        return word, more

    assert func.__doc__ == "What it does."
    return func(state, "done", more=2), events


AGAIN = ["again", "reset", "callback"]


def test_run_synchronises_and_returns_the_functions_result(monkeypatch):
    assert loop(monkeypatch, []) == (("done", 2), ["sync", "func"])


@pytest.mark.parametrize(
    "failure",
    [
        hvd.HorovodInternalError("x"),
        farandole.PeerLostError("x"),
        farandole.errors.as_horovod(farandole.AbortedError("x")),
    ],
)
def test_run_restores_after_a_loss(monkeypatch, failure):
    result, events = loop(monkeypatch, [failure])
    assert result == ("done", 2) and events == ["sync", "func", "restore", *AGAIN, "sync", "func"]


def test_run_synchronises_only_if_ranks_join(monkeypatch):
    interrupt = farandole.errors.HostsUpdatedInterrupt
    _, events = loop(monkeypatch, [interrupt(skip_sync=True), interrupt(skip_sync=False)])
    assert events == ["sync", "func", *AGAIN, "func", *AGAIN, "sync", "func"]
    _, events = loop(monkeypatch, [interrupt(skip_sync=True), farandole.PeerLostError("x")])
    assert events == ["sync", "func", *AGAIN, "func", "restore", *AGAIN, "sync", "func"]
    # A rank joins although this one was told of ranks that leave.
    _, events = loop(monkeypatch, [interrupt(skip_sync=True)], rank_joins=True)
    assert events == ["sync", "func", *AGAIN, "sync", "func"]


@pytest.mark.parametrize("failure", [farandole.MismatchError("x"), ValueError("x"), KeyError("x")])
def test_run_raises_exceptions_that_are_no_losses(monkeypatch, failure):
    with pytest.raises(type(failure)):
        loop(monkeypatch, [failure])


def test_run_raises_losses_without_an_elastic_launcher(monkeypatch):
    with pytest.raises(farandole.PeerLostError):
        loop(monkeypatch, [farandole.PeerLostError("x")], is_elastic=False)


def test_a_state_interrupts_after_a_membership_change():
    state = elastic.ObjectState(step=1)
    state.check_host_updates()
    state.on_hosts_updated(1, elastic_client.REMOVED)
    state.step = 2
    with pytest.raises(farandole.errors.HostsUpdatedInterrupt) as caught:
        state.commit()
    assert caught.value.skip_sync
    state.restore()
    assert state.step == 2  # commit saves before it checks
    state.check_host_updates()  # once
    state.on_hosts_updated(2, elastic_client.REMOVED)
    state.on_hosts_updated(3, elastic_client.ADDED)
    with pytest.raises(farandole.errors.HostsUpdatedInterrupt) as caught:
        state.check_host_updates()
    assert not caught.value.skip_sync


# ---- Started in other ways -------------------------------------------------------------------------------------------


def test_a_function_may_be_elastic():
    totals = farandole.run(elastic_tasks.one_dies, (), {"worker": "1"}, np=2, min_np=2)
    assert totals == [24, 24]
    with pytest.raises(farandole.RankError, match="ended with signal 9"):
        farandole.run(elastic_tasks.one_dies, np=2, min_np=2, reset_limit=0)


def test_a_rank_of_an_elastic_job_may_start_another_job():
    job = Done("-np 2 --min-np 1", "starts_a_job")
    assert job.code == 0, job.report
    assert [one["sums"] for one in job.printed] == [[3, 3]] * 2, job.report


def test_horovodrun_follows_a_discovery_script(tmp_path):
    script = tmp_path / "discover.sh"
    (tmp_path / "slots").write_text("localhost:2")
    script.write_text(f"#!/bin/sh\ncat {tmp_path}/slots\n")
    script.chmod(0o755)
    job = Done(f"-np 2 --min-np 1 --host-discovery-script {script}", "asks_for_slots", tmp_path, command=HOROVODRUN)
    assert job.code == 0, job.report
    assert sorted(one["sizes"] for one in job.all_with("sizes")) == [[2, 3]] * 3, job.report


# ---- As programs for Horovod have it ---------------------------------------------------------------------------------


def test_the_names_of_horovod_are_there():
    import horovod.common.elastic
    import horovod.elastic

    assert horovod_elastic.run is hvd.elastic.run is horovod.elastic.run is elastic.run
    assert horovod_elastic.TorchState is hvd.elastic.TorchState
    assert horovod_elastic.sampler.ElasticSampler is hvd.elastic.ElasticSampler
    assert horovod.common.elastic.ObjectState is elastic.ObjectState
    assert re.fullmatch(r"\(.*\)", str(farandole.errors.HostsUpdatedInterrupt().args))
