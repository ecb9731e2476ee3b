"""Elastic jobs of several nodes, each with its own launcher on this host: nodes join, leave, die and return."""

import os
import re
import signal
import socket

import pytest
from elastic_nodes import (
    EXIT_PEER_LOST,
    EXIT_RENDEZVOUS,
    EXIT_TERMINATED,
    EXIT_TOO_FEW,
    Job,
    assert_left_in_time,
    assert_right,
    ranks_of,
)
from limits import allowed


@pytest.fixture
def job(tmp_path):
    jobs = []

    def make(nodes, **more):
        jobs.append(Job(tmp_path, nodes, **more))
        return jobs[-1]

    yield make
    for one in jobs:
        one.end()


# ---- Coming and going ------------------------------------------------------------------------------------------------


def test_a_killed_node_is_dropped_and_its_successor_joins_at_a_commit(job):
    job = job("2:3", flags="-np 2")
    first, second, third = job.start(0, 1, 2)
    job.until_steps_of(first, 6)
    assert sorted((one["rank"], *one["local"]) for node in job.all for one in node.all_with("enters")) == [
        (0, 0, 2), (1, 1, 2), (2, 0, 2), (3, 1, 2), (4, 0, 2), (5, 1, 2)], job.report  # fmt: skip
    third.send_signal(signal.SIGKILL)
    job.until_steps_of(first, 4)
    (fourth,) = job.start(2)
    job.until_steps_of(first, 6)
    job.stop()
    assert [first.code(), second.code(), fourth.code()] == [0, 0, 0], job.report
    assert_right(first, job)
    assert fourth.all_with("enters")[0]["enters"] > 0, job.report  # not from the beginning
    assert re.search(
        r"node 2 was lost with 2 ranks \(its connection ended\): 2 nodes, 4 ranks are left", first.words
    ), job.report
    assert "generation 3 begins with 6 ranks on 3 nodes" in first.words, job.report
    assert "restoring" in "".join(first.output + first.errors), job.report


def test_a_terminated_node_leaves_at_a_commit_and_the_others_lose_no_step(job):
    job = job("1:3")
    first, second, third = job.start(0, 1, 2)
    job.until_steps_of(first, 3)
    second.send_signal(signal.SIGTERM)
    assert second.code() == EXIT_TERMINATED, job.report
    job.until_steps_of(first, 2)
    job.stop()
    assert [first.code(), third.code()] == [0, 0], job.report
    assert_right(first, job)
    steps = [one["step"] for one in first.all_with("step")]
    assert steps == list(range(1, len(steps) + 1)), steps  # no step was made twice
    (left,) = second.all_with("left")
    assert 0 < left["left"] <= len(steps) and 0 < left["seconds"] <= 25, job.report
    printed = first.words + second.words
    assert "was requested to end: the others continue without it from their next commit" in printed, job.report
    assert "was lost" not in printed, job.report
    assert "node 1 has left: 2 nodes, 2 ranks" in first.words, job.report


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_all_nodes_that_are_terminated_at_once_leave_at_a_commit(job, order):
    job = job("1:3")
    nodes = job.start(0, 1, 2)
    job.until_steps_of(nodes[0], 3)
    for number in order:
        nodes[number].send_signal(signal.SIGTERM)
    assert [node.code(allowed(40)) for node in nodes] == [EXIT_TERMINATED] * 3, job.report
    for node in nodes:
        assert_left_in_time(node, job)


def test_a_node_that_is_terminated_after_the_leading_node_still_leaves_at_a_commit(job):
    job = job("1:2")
    nodes = job.start(0, 1, STEP_S="2")
    job.until_steps_of(nodes[0], 2, count=1)
    nodes[0].send_signal(signal.SIGTERM)
    job.wait(lambda: "leads the job: the ranks have 25 s to save and to end" in nodes[1].words)
    nodes[1].send_signal(signal.SIGTERM)
    assert [node.code(allowed(40)) for node in nodes] == [EXIT_TERMINATED] * 2, job.report
    for node in nodes:
        assert_left_in_time(node, job)


def test_a_node_that_is_terminated_while_its_ranks_wait_for_others_leaves_at_once(job):
    job = job("3:4")
    first, second, third = job.start(0, 1, 2)
    job.until_steps_of(first, 3)
    third.send_signal(signal.SIGKILL)
    job.wait(lambda: "restoring" in second.words)
    second.send_signal(signal.SIGTERM)
    assert second.code(allowed(40)) == EXIT_TERMINATED, job.report
    assert_left_in_time(second, job)


def test_a_node_that_joins_as_another_one_leaves_gets_the_state(job):
    """The others have been told of the one that leaves alone: no rank skips the synchronisation for that."""
    job = job("1:3", task="spreads_and_one_joins_as_another_leaves")
    first, second = job.start(0, 1)
    job.until_steps_of(first, 2)
    (third,) = job.start(2, JOINS="late")
    job.wait(lambda: re.search(r"node 2, .*, is here", first.words))
    second.send_signal(signal.SIGTERM)
    assert second.code() == EXIT_TERMINATED, job.report
    job.until_steps_of(first, 2, count=10)
    job.stop()
    assert [first.code(), third.code()] == [0, 0], job.report
    assert_right(first, job)
    assert_right(third, job)


def test_a_late_node_gets_its_number_and_joins(job):
    job = job("1:2")
    (first,) = job.start(0)
    job.until_steps_of(first, 1)
    (second,) = job.start(1)
    job.until_steps_of(first, 2)
    job.stop()
    assert [first.code(), second.code()] == [0, 0], job.report
    assert_right(first, job)
    assert "restoring" not in "".join(first.output) + first.words  # nothing was lost for it


def test_nodes_without_numbers_are_numbered_in_order_of_arrival(job):
    job = job("2:3")
    first = job.start(None)[0]
    job.wait(lambda: "this node leads the job" in first.words)  # on one host the first listener leads
    second, third = job.start(None, None)
    job.until_steps_of(first, 3)
    job.stop()
    assert [node.code() for node in job.all] == [0, 0, 0], job.report
    assert_right(first, job)
    assert {re.search(r"this is node (\d) of the job", node.words).group(1) for node in (second, third)} == {"1", "2"}


def test_a_stopped_node_is_lost_like_a_dead_one(job):
    job = job("1:2", flags="-np 1")
    first, second = job.start(0, 1)
    job.until_steps_of(first, 2)
    (rank,) = ranks_of(second)
    os.kill(second.process.pid, signal.SIGSTOP)  # launcher and rank, as on a disconnected node
    os.kill(rank, signal.SIGSTOP)
    job.until_steps_of(first, 1)
    job.stop()
    assert first.code() == 0, job.report
    assert "node 1 was lost with 1 ranks (it did not answer for 1 s)" in first.words, job.report
    assert_right(first, job)


def test_the_launcher_of_another_node_kills_its_stopped_rank(job):
    job = job("1:2", flags="-np 1")
    first, second = job.start(0, 1)
    job.until_steps_of(first, 2)
    (rank,) = ranks_of(second)
    os.kill(rank, signal.SIGSTOP)
    job.until_steps_of(first, 2)
    job.stop()
    assert [first.code(), second.code()] == [0, 0], job.report
    assert "and was killed so that the others can continue without it" in second.words, job.report
    assert "does not come to the next generation" not in first.words, job.report
    assert_right(first, job)


def assert_came_too_late(late, job):
    assert late.code() == 0, job.report
    (line,) = [line for line in late.words.splitlines() if "finished" in line]
    assert line.endswith(
        "finished before ranks of this node took part: nothing is left to do, and this node ends with 0"
    )
    assert "Traceback" not in late.words + "".join(late.output), job.report


def test_a_node_that_arrives_after_the_end_of_the_job_ends_with_0_and_one_line(job):
    """A pod that was scheduled late. An open connection keeps the leader in its last phase, in which it closes them."""
    job = job("1:3")
    (first,) = job.start(0)
    job.until_steps_of(first, 1)
    with socket.create_connection(job.place.split(":")):
        job.stop()
        job.wait(lambda: first.all_with("total") and not ranks_of(first))
        (late,) = job.start(1)
        assert_came_too_late(late, job)
    assert first.code() == 0, job.report


def test_a_node_that_arrives_while_the_last_rank_ends_does_not_fail_the_job(job):
    job = job("1:3")
    (first,) = job.start(0, flags="-np 2", LINGERS="2")
    job.until_steps_of(first, 2)
    job.stop()
    job.wait(lambda: len(ranks_of(first)) == 1)
    (late,) = job.start(1)
    assert_came_too_late(late, job)
    assert "node 1, " in first.words and first.code() == 0, job.report


# ---- The one that leads ----------------------------------------------------------------------------------------------


def test_without_the_leading_node_the_others_exit_with_202(job):
    job = job("1:2")
    first, second = job.start(0, 1)
    job.until_steps_of(first, 2)
    first.send_signal(signal.SIGKILL)
    assert second.code() == EXIT_PEER_LOST, job.report
    assert "which leads the job, is gone; its pod and this one are to be started again" in second.words, job.report


def test_when_the_leading_node_is_terminated_all_leave_at_one_commit(job):
    job = job("1:2")
    first, second = job.start(0, 1)
    job.until_steps_of(first, 2)
    first.send_signal(signal.SIGTERM)
    assert (first.code(), second.code()) == (EXIT_TERMINATED, EXIT_PEER_LOST), job.report
    assert [one["left"] for one in first.all_with("left")] == [one["left"] for one in second.all_with("left")] != [], (
        job.report
    )
    assert "was requested to end, and leads the job" in second.words, job.report


# ---- Too few, too many, strangers ------------------------------------------------------------------------------------


def test_with_too_few_at_the_start_the_missing_are_named(job):
    job = job("3:4", flags="--start-timeout 2")
    first, second = job.start(0, 1)
    assert first.code() == second.code() == EXIT_RENDEZVOUS, job.report
    for node in (first, second):
        assert (
            "2 of at least 3 nodes are here after 2 s (--start-timeout): node 2 and node 3 did not arrive" in node.words
        ), job.report


def test_with_too_few_nodes_left_the_job_waits_and_exits_with_201(job):
    job = job("2:2", flags="--elastic-timeout 2 --reset-limit 9")
    first, second = job.start(0, 1)
    job.until_steps_of(first, 2)
    second.send_signal(signal.SIGKILL)
    assert first.code() == EXIT_TOO_FEW, job.report
    assert (
        "1 of at least 2 nodes is left, and within 2 s (--elastic-timeout) no other took the place of node 1"
        in first.words
    )


def test_with_too_few_nodes_left_the_job_waits_and_continues_when_one_joins(job):
    job = job("2:2", flags="--reset-limit 9")
    first, second = job.start(0, 1)
    job.until_steps_of(first, 2)
    second.send_signal(signal.SIGKILL)
    job.wait(lambda: "1 nodes, 1 ranks are left" in first.words)
    (third,) = job.start(1)
    job.until_steps_of(first, 2)
    job.stop()
    assert (first.code(), third.code()) == (0, 0), job.report
    assert_right(first, job)


def test_a_second_node_with_the_same_number_is_rejected_and_both_are_named(job):
    job = job("1:2")
    first, second = job.start(0, 1)
    job.until_steps_of(first, 2)
    (third,) = job.start(1)
    assert third.code() == EXIT_RENDEZVOUS, job.report
    pids = second.process.pid, third.process.pid
    numbers = "two nodes claim to be node 1: .*process {} .*which was first, and .*process {} ".format(*pids)
    assert re.search(numbers, third.words), job.report
    job.stop()
    assert (first.code(), second.code()) == (0, 0), job.report


def test_a_node_with_another_key_is_rejected(job):
    job = job("1:2")
    (first,) = job.start(0)
    (other,) = job.start(1, key="f" * 32)
    assert other.code() == EXIT_RENDEZVOUS and "job key differs" in other.words, job.report
    job.until_steps_of(first, 1)
    job.stop()
    assert first.code() == 0


# ---- Beginning anew --------------------------------------------------------------------------------------------------


def test_ranks_without_a_state_restart_together_on_all_nodes(job):
    job = job("2", task="has_a_checkpoint", flags="--max-restarts 1")
    nodes = job.start(0, 1)
    assert [node.code() for node in nodes] == [0, 0], job.report
    assert [one["begins"] for node in nodes for one in node.all_with("begins")] == [0, 3, 0, 3], job.report
    assert [one["ends"] for node in nodes for one in node.all_with("ends")] == [6, 6]
    assert "no rank is left that holds the state: restart 1 of 1, of all ranks" in nodes[0].words, job.report


def test_without_restarts_the_job_ends_with_a_retryable_code(job):
    job = job("1:2", task="has_a_checkpoint")
    nodes = job.start(0, 1)
    assert [node.code() for node in nodes] == [EXIT_PEER_LOST] * 2, job.report
    assert all("no rank is left that holds the state" in node.words for node in nodes), job.report
