"""Elastic jobs of several nodes that lose the node that leads: another one takes over, and the ranks keep their state.

Each node is a launcher of its own on this host, and the rendezvous names the port of each."""

import os
import re
import signal

import pytest
from elastic_nodes import (
    EXIT_PEER_LOST,
    EXIT_RENDEZVOUS,
    EXIT_TERMINATED,
    Job,
    assert_left_in_time,
    assert_right,
    places,
    ranks_of,
)
from limits import allowed


@pytest.fixture
def job(tmp_path):
    jobs = []

    def make(nodes, **more):
        jobs.append(Job(tmp_path, nodes, place=places(int(nodes.split(":")[-1])), **more))
        return jobs[-1]

    yield make
    for one in jobs:
        one.end()


def steps_of(*nodes):
    """The steps that rank 0 has printed, on whatever node it was, in order."""
    return sorted(one["step"] for node in nodes for one in node.all_with("step"))


def assert_took_over(node, lost, job):
    assert re.search(rf"this node, {node.number}, leads the job from now on, because node {lost}, ", node.words), (
        job.report
    )


def assert_end_well(job, *nodes):
    job.stop()
    assert [node.code() for node in nodes] == [0] * len(nodes), job.report


def assert_kept_state(end, job):
    """Steps since the last commit, at most one, were made again; none began from the beginning."""
    assert_right(end, job)
    steps = steps_of(*job.all)  # a rank that is killed may not have printed its last one
    assert steps.count(1) == 1 and max(steps.count(step) for step in steps) <= 2, steps


# ---- The launcher that leads ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", ["1:2", "1:3", "2:3"])
def test_when_the_leader_is_killed_the_next_node_takes_over_and_no_state_is_lost(job, nodes):
    job = job(nodes)
    first, *others = job.start(*range(int(nodes[-1])))
    job.until_steps_of(first, len(others) + 1)
    first.send_signal(signal.SIGKILL)
    job.until_steps(len(others))
    (successor,) = job.start(0)
    job.until_steps(len(others) + 1)
    assert_end_well(job, *others, successor)
    assert_took_over(others[0], 0, job)
    assert_kept_state(others[0], job)
    assert "this node is node 0" in successor.words or "this is node 0 of the job that" in successor.words, job.report
    assert successor.all_with("enters")[0]["enters"] > 0, job.report  # not from the beginning


def test_nodes_that_come_late_find_the_node_that_leads(job):
    job = job("1:3")
    first, second = job.start(0, 1)
    job.until_steps_of(first, 2)
    first.send_signal(signal.SIGKILL)
    job.until_steps(1)
    (third,) = job.start(2)  # nothing listens at the first address
    job.until_steps(2)
    assert_end_well(job, second, third)
    assert_kept_state(second, job)


def test_two_nodes_that_come_late_find_a_leader_behind_them(job):
    """Each asks the nodes in order, and is answered by the other one, which looks for the leader too."""
    job = job("1:4")
    first, second, third, fourth = job.start(0, 1, 2, 3)
    job.until_steps_of(first, 4)
    for node in (third, second, first):
        node.send_signal(signal.SIGKILL)
    job.until_steps(1)
    late = job.start(1, 2)
    job.until_steps(3)
    assert_end_well(job, fourth, *late)
    assert_took_over(fourth, 0, job)
    assert_kept_state(fourth, job)


def test_each_leader_in_turn_is_killed(job):
    job = job("1:3")
    first, second, third = job.start(0, 1, 2)
    job.until_steps_of(first, 3)
    first.send_signal(signal.SIGKILL)
    job.until_steps(2)
    second.send_signal(signal.SIGKILL)
    job.until_steps(1)
    job.stop()
    assert third.code() == 0, job.report
    assert_took_over(second, 0, job)
    assert_took_over(third, 1, job)
    assert_kept_state(third, job)


def test_the_leader_and_the_next_node_are_killed_together(job):
    job = job("1:3")
    first, second, third = job.start(0, 1, 2)
    job.until_steps_of(first, 3)
    second.send_signal(signal.SIGKILL)
    first.send_signal(signal.SIGKILL)
    job.until_steps(1)
    job.stop()
    assert third.code() == 0, job.report
    assert_took_over(third, 0, job)
    assert_kept_state(third, job)


def test_before_the_first_generation_another_node_leads_too(job):
    job = job("3:4")
    first, second, third = *job.start(0, 1), None
    job.wait(lambda: "node 1, " in first.words and ranks_of(second))
    first.send_signal(signal.SIGKILL)
    third, fourth = job.start(2, 0)
    job.until_steps(3)
    assert_end_well(job, second, third, fourth)
    assert_took_over(second, 0, job)
    assert_right(second, job)


@pytest.mark.parametrize("turn", range(6))
def test_the_leader_is_killed_while_the_next_generation_forms(job, turn):
    """A node is killed, and the leader shortly after: before, while and after the others request a generation."""
    job = job("1:4")
    first, second, third, fourth = job.start(0, 1, 2, 3)
    job.until_steps_of(first, 4)
    fourth.send_signal(signal.SIGKILL)
    signal.sigtimedwait([], 0.01 * 2**turn - 0.01)
    first.send_signal(signal.SIGKILL)
    job.until_steps(2)
    assert_end_well(job, second, third)
    assert_took_over(second, 0, job)
    assert_kept_state(second, job)


def test_the_leader_is_killed_while_the_ranks_of_a_generation_meet(job):
    """The others look for a coordinator that has ended with it."""
    job = job("1:4", task="spreads_and_kills_its_launcher_as_they_meet")
    (first,) = job.start(0, KILLS="1")
    second, third, fourth = job.start(1, 2, 3)
    job.until_steps_of(first, 4)
    fourth.send_signal(signal.SIGKILL)
    job.until_steps(2)
    assert_end_well(job, second, third)
    assert_took_over(second, 0, job)
    assert_kept_state(second, job)


def test_at_the_end_of_the_job_its_result_is_that_of_the_training(job):
    """Rank 0 has finished, and others have not ended yet, when its launcher is killed."""
    job = job("1:3")
    first, second, third = job.start(0, 1, 2, LINGERS="2")
    job.until_steps_of(first, 3)
    job.stop()
    job.wait(lambda: first.all_with("total") and not ranks_of(first))
    first.send_signal(signal.SIGKILL)
    assert [second.code(), third.code()] == [0, 0], job.report
    assert_took_over(second, 0, job)
    assert_right(first, job)
    assert [node.all_with("total")[0]["total"] for node in (second, third)] == [first.all_with("total")[0]["total"]] * 2


def test_a_rank_that_fails_at_the_end_ends_the_job_with_its_code(job):
    """The exit code of the training is known to the node that has taken over."""
    job = job("1:3")
    first, second = job.start(0, 1)
    (third,) = job.start(2, LINGERS="2", FAILS_AT_THE_END="7")
    job.until_steps_of(first, 3)
    job.stop()
    job.wait(lambda: second.all_with("total") and not ranks_of(second))
    first.send_signal(signal.SIGKILL)
    assert third.code() == 7, job.report
    assert second.code() == EXIT_PEER_LOST, job.report


# ---- The launcher that leads is requested to end ---------------------------------------------------------------------


# The others wait for no node that leaves, and keep the state: before it leads, and before they have found it.
@pytest.mark.parametrize("moment", ["and led the job", "leads the job from now on"])
def test_the_next_leader_gets_sigterm_at_once(job, moment):
    job = job("1:3")
    first, second, third = job.start(0, 1, 2)
    job.until_steps(3)
    third.send_signal(signal.SIGSTOP)  # node 1 asks it before it takes over
    first.send_signal(signal.SIGKILL)
    job.wait(lambda: moment in second.words)
    second.send_signal(signal.SIGTERM)
    third.send_signal(signal.SIGCONT)
    assert second.code(allowed(30)) == EXIT_TERMINATED, job.report
    assert_left_in_time(second, job)
    job.until_steps(1, count=10)
    job.stop()
    assert third.code() == 0, job.report
    assert_kept_state(third, job)


@pytest.mark.parametrize("nodes", ["1:2", "2:3"])
def test_a_leader_that_is_terminated_leaves_at_a_commit_and_no_step_is_lost(job, nodes):
    job = job(nodes)
    first, *others = job.start(*range(int(nodes[-1])))
    job.until_steps_of(first, len(others) + 1)
    first.send_signal(signal.SIGTERM)
    assert first.code() == EXIT_TERMINATED, job.report
    job.until_steps(len(others))
    (successor,) = job.start(0)
    job.until_steps(len(others) + 1)
    assert_end_well(job, *others, successor)
    assert_right(others[0], job)
    steps = steps_of(*job.all)
    assert steps == list(range(1, len(steps) + 1)), steps  # none was made twice
    assert len(first.all_with("left")) == 1, job.report
    printed = "".join(node.words + "".join(node.output) for node in job.all)
    assert "restoring" not in printed and "was lost" not in printed, job.report
    assert "was requested to end, and another node takes over" in others[0].words, job.report
    assert_took_over(others[0], 0, job)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_program_that_ends_with_0_at_sigterm_leaves_the_job_to_the_others(job, which):
    job = job("1:3", task="spreads_and_ends_at_sigterm")
    nodes = job.start(0, 1, 2)
    job.until_steps(3)
    nodes[which].send_signal(signal.SIGTERM)
    assert nodes[which].code() == EXIT_TERMINATED, job.report
    others = [node for node in nodes if node is not nodes[which]]
    job.until_steps(2, count=10)
    assert_end_well(job, *others)
    assert_kept_state(others[0], job)


# ---- Silent nodes: who may go on -------------------------------------------------------------------------------------


def stop_all(node):
    """Stops the launcher and its ranks, as a host does that is cut off; returns what continue_all() needs."""
    stopped = [node.process.pid, *ranks_of(node)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    return stopped


def continue_all(stopped):
    """Ranks before their launcher: one that finds its rank stopped may kill it, so that the others go on without it."""
    for pid in reversed(stopped):
        os.kill(pid, signal.SIGCONT)


def test_a_silent_leader_is_replaced_by_the_majority_and_ends_when_it_wakes(job):
    job = job("1:3")
    first, second, third = job.start(0, 1, 2)
    job.until_steps_of(first, 3)
    stopped = stop_all(first)
    job.until_steps(2)
    continue_all(stopped)
    assert first.code() == EXIT_PEER_LOST, job.report
    assert "has lost contact with 2 of 3 nodes, more than half: they may go on without it, so it ends" in first.words
    before = len(steps_of(first))
    job.until_steps(2)
    assert len(steps_of(first)) == before, job.report
    assert_end_well(job, second, third)
    assert_took_over(second, 0, job)
    assert_kept_state(second, job)


def test_of_two_nodes_the_one_that_loses_a_silent_leader_does_not_go_on(job):
    job = job("1:2", flags="--elastic-timeout 4")
    first, second = job.start(0, 1)
    job.until_steps_of(first, 2)
    stopped = stop_all(first)
    assert second.code() == EXIT_PEER_LOST, job.report
    assert (
        "of 2 nodes that may be alive only 1 was within 4 s (--elastic-timeout) where node 1 takes over" in second.words
    )
    assert "of two nodes that lose each other, the one that led goes on" in second.words
    assert not second.all_with("step"), job.report
    continue_all(stopped)
    job.until_steps_of(first, 1)
    job.stop()
    assert first.code() == 0, job.report
    assert_right(first, job)


def test_of_two_nodes_the_other_goes_on_when_the_silent_leaders_successor_comes(job):
    """Its number is taken by another process only when it is gone. The state of the node that has waited is kept."""
    job = job("1:2")
    first, second = job.start(0, 1)
    job.until_steps_of(first, 2)
    stop_all(first)
    job.wait(lambda: "takes over" in second.words and "this node, 1, leads" in second.words)
    first.send_signal(signal.SIGKILL)
    first.code()
    (successor,) = job.start(0)
    job.until_steps(2)
    assert_end_well(job, second, successor)
    assert_kept_state(second, job)


def test_a_new_node_0_begins_no_job_while_a_silent_node_may_go_on_with_one(job):
    job = job("1:2")
    first, second = job.start(0, 1)
    job.until_steps_of(first, 2)
    first.send_signal(signal.SIGKILL)
    job.until_steps(1)
    stopped = stop_all(second)
    (successor,) = job.start(0)
    signal.sigtimedwait([], 3)
    assert not successor.printed and "generation" not in successor.words, job.report
    continue_all(stopped)
    job.until_steps(2)
    assert_end_well(job, second, successor)
    assert_kept_state(second, job)


def test_a_new_node_0_ends_when_its_time_is_over_and_names_the_silent_node(job):
    job = job("1:2", flags="--start-timeout 2")
    first, second = job.start(0, 1)
    job.until_steps_of(first, 2)
    first.send_signal(signal.SIGKILL)
    job.until_steps(1)
    stopped = stop_all(second)
    (successor,) = job.start(0)
    assert successor.code() == EXIT_RENDEZVOUS, job.report
    assert "is node 0 and begins no job, because tcp://127.0.0.1:" in successor.words, job.report
    assert "did not answer within 2 s and may go on with one (--nnodes 1:2)" in successor.words, job.report
    continue_all(stopped)
    job.until_steps(1)
    assert_end_well(job, second)


def test_a_leader_that_loses_contact_with_more_than_half_ends(job):
    job = job("1:3")
    first, second, third = job.start(0, 1, 2)
    job.until_steps_of(first, 3)
    stopped = stop_all(second) + stop_all(third)
    assert first.code() == EXIT_PEER_LOST, job.report
    assert "has lost contact with 2 of 3 nodes, more than half: they may go on without it, so it ends" in first.words
    continue_all(stopped)
    job.until_steps(2)
    assert_end_well(job, second, third)
    assert_kept_state(second, job)
