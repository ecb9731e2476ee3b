"""Tests of elastic jobs that lose pod 0, which leads at the beginning: another pod takes over, and no state is lost."""

import re
import signal
import time

import builders
import podsim
import pytest
from elastic_pods import (
    COMPLETE,
    ELASTIC,
    all_output,
    assert_conditions,
    assert_late_pods_join,
    assert_one_pod_learns_alone,
    elastic_job,
    elastic_run,
    steps_of,
    until_steps,
    until_steps_anywhere,
)
from farandole.integrations.kubernetes import generate

GENERATED = "job --nnodes 1:3 --image any --"


def assert_no_step_was_lost(sim, again=1):
    """At most `again` steps, those since the last commit, were made a second time. A rank that is killed may not have
    printed its last one."""
    steps = steps_of(sim)
    missing = set(range(1, max(steps) + 1)) - set(steps)
    assert len(missing) <= again and len(steps) - len(set(steps)) <= again, (steps, sim.logs())


def generated(steps):
    return podsim.read(generate([*GENERATED.split(), *ELASTIC, "--steps", str(steps), "--step-seconds", "0.05"]))


@pytest.mark.parametrize("way", ["killed", "evicted"])
def test_k19_when_pod_0_is_lost_the_others_go_on_and_its_successor_joins_them(elastic, way):
    """The output of `gen job`. The container is killed, or the pod gets SIGTERM."""
    sim = elastic(generated(200))
    until_steps(sim, 3)
    lost = sim.pod("train-0")
    sim.held.add("train-0")
    lost.kill() if way == "killed" else sim.evict(lost, grace=20)
    until_steps_anywhere(sim, 2)
    sim.wait(20, lambda: lost.code is not None)
    assert lost.code == (137 if way == "killed" else 143), sim.logs()
    sim.release("train-0")
    until_steps_anywhere(sim, 3)
    sim.wait(60)
    assert_conditions(sim, "train", COMPLETE)
    assert_no_step_was_lost(sim, again=1 if way == "killed" else 0)
    assert "this node, 1, leads the job from now on, because node 0, " in sim.pod("train-1").output, sim.logs()
    assert "this is node 0 of the job that" in sim.pod("train-0").output, sim.logs()
    assert sim.pod("train-1").main.codes == sim.pod("train-2").main.codes == [0], sim.logs()


def test_k19_the_learned_weights_do_not_depend_on_the_loss_of_pod_0(elastic):
    """Its successor finds no node before the end: the job is Complete without it."""
    sim = elastic(elastic_job("1:2", 1, count=2))
    assert_one_pod_learns_alone(sim, lost="train-0", left="train-1")
    assert len(sim.pods) == 2, sim.logs()


def test_k19_pods_that_come_late_find_the_pod_that_leads(elastic):
    """Pod 0's name does not resolve any more. The pods of higher numbers answer for it."""
    sim = elastic(elastic_job("1:3", 1, steps=200), held=["train-2"])
    until_steps(sim, 2)
    sim.held.add("train-0")
    sim.pod("train-0").kill()
    until_steps_anywhere(sim, 1)
    assert_late_pods_join(sim, "train-2", "train-0")
    assert_no_step_was_lost(sim)


def test_k19_when_pod_0_vanishes_the_majority_goes_on_and_its_processes_end_when_they_come_back(elastic):
    """No connection is reset, and pod 0 goes on running on a node that is cut off. It must not train on."""
    sim = elastic(elastic_job("1:3", 1, steps=200, FARANDOLE_LOST_AFTER_S=2))
    until_steps(sim, 3)
    lost = sim.pod("train-0")
    lost.vanish()
    until_steps_anywhere(sim, 2)
    sim.wait(30, lambda: lost.code is not None)
    assert lost.code == 202 and " on 1 ranks" not in lost.output, sim.logs()
    assert "has lost contact with 2 of 3 nodes, more than half: they may go on without it" in lost.output, sim.logs()
    sim.forget(lost)
    until_steps_anywhere(sim, 3)
    lost.come_back()
    until_steps_anywhere(sim, 3)
    sim.wait(60)
    assert_conditions(sim, "train", COMPLETE)
    assert_no_step_was_lost(sim)


def test_k19_of_two_pods_the_other_keeps_the_state_until_the_successor_of_pod_0_comes(elastic):
    """It cannot know whether pod 0 goes on somewhere: it waits, and a successor is the proof that pod 0 is gone."""
    sim = elastic(elastic_job("1:2", 1, steps=200, count=2, FARANDOLE_LOST_AFTER_S=2))
    until_steps(sim, 2)
    lost, other = sim.pod("train-0"), sim.pod("train-1")
    lost.vanish()
    lost.signal(signal.SIGKILL)  # with its node; no connection is reset
    sim.wait(30, lambda: "this node, 1, leads the job from now on" in other.output)
    until = time.monotonic() + 5
    sim.wait(10, lambda: time.monotonic() > until)
    assert "generation" not in other.output and " on 1 ranks" not in all_output(sim), sim.logs()
    sim.forget(lost)
    until_steps_anywhere(sim, 2)
    sim.wait(60)
    assert_conditions(sim, "train", COMPLETE)
    assert other.main.codes == [0], sim.logs()
    assert_no_step_was_lost(sim)


def test_h16_when_pod_0_is_lost_in_the_last_steps_the_job_is_complete(elastic):
    sim = elastic(elastic_job("1:3", 1, steps=40))
    sim.wait(40, lambda: "step 38 on" in sim.pod("train-0").output)
    sim.held.add("train-0")
    sim.pod("train-0").kill()
    sim.wait(40)
    assert_conditions(sim, "train", COMPLETE)
    assert max(steps_of(sim)) == 40, sim.logs()


@pytest.mark.parametrize("way", ["container", "pod"])
def test_p6_k19_in_a_stateful_set_the_successor_of_pod_0_joins_too(elastic, way):
    """Its container is restarted in the same pod, with the same address; or the pod is replaced."""
    env = {"FARANDOLE_NNODES": "2:3", "FARANDOLE_RANK_FROM": "hostname", "FARANDOLE_START_TIMEOUT_S": 20}
    documents = builders.stateful_set(3, elastic_run(1, steps=100000), env=env)
    sim = elastic(documents, crash_backoff_s=0.3)
    until_steps(sim, 3)
    lost = sim.pod("train-0")
    lost.signal(signal.SIGKILL) if way == "container" else lost.kill()
    until_steps_anywhere(sim, 2, 1)
    until_steps_anywhere(sim, 3)
    assert_no_step_was_lost(sim)
    assert len(re.findall("this node, 1, leads the job from now on", all_output(sim))) == 1, sim.logs()
    assert sim.pod("train-1").main.codes == [] and "this is node 0 of" in sim.pod("train-0").output, sim.logs()
