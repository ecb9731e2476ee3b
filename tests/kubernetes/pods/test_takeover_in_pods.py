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
    LEADER,
    UNTIL_TOLD,
    all_output,
    assert_conditions,
    assert_late_pods_join,
    assert_one_pod_learns_alone,
    begin_deployment,
    elastic_job,
    elastic_run,
    end_training,
    steps_of,
    until_steps,
    until_steps_anywhere,
)
from farandole.integrations.kubernetes import generate
from machine import start_limit_s

GENERATED = "job --nnodes 1:3 --image any --"


def assert_no_step_was_lost(sim, again=1):
    """At most `again` steps, those since the last commit, were made a second time. A rank that is killed may not have
    printed its last one."""
    steps = steps_of(sim)
    missing = set(range(1, max(steps) + 1)) - set(steps)
    assert len(missing) <= again and len(steps) - len(set(steps)) <= again, (steps, sim.logs())


def steps_alone(*pods):
    """The number of steps of one rank that they have printed. A job may begin with one: count before the fault too."""
    return sum(pod.output.count(" on 1 ranks") for pod in pods)


def generated():
    return podsim.read(generate([*GENERATED.split(), *ELASTIC, *UNTIL_TOLD, "--step-seconds", "0.05"]))


@pytest.mark.parametrize("way", ["killed", "evicted"])
def test_k19_when_pod_0_is_lost_the_others_go_on_and_its_successor_joins_them(elastic, way):
    """The output of `gen job`. The container is killed, or the pod gets SIGTERM."""
    sim = elastic(generated())
    until_steps(sim, 3)
    lost = sim.pod("train-0")
    sim.held.add("train-0")
    lost.kill() if way == "killed" else sim.evict(lost, grace=20)
    until_steps_anywhere(sim, 2)
    sim.wait(20, lambda: lost.code is not None)
    assert lost.code == (137 if way == "killed" else 143), sim.logs()
    sim.release("train-0")
    until_steps_anywhere(sim, 3)
    end_training(sim)
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
    sim = elastic(elastic_job("1:3", 1, steps=None), held=["train-2"])
    until_steps(sim, 2)
    sim.held.add("train-0")
    sim.pod("train-0").kill()
    until_steps_anywhere(sim, 1)
    assert_late_pods_join(sim, "train-2", "train-0")
    assert_no_step_was_lost(sim)


def test_k19_when_pod_0_vanishes_the_majority_goes_on_and_its_processes_end_when_they_come_back(elastic):
    """No connection is reset, and pod 0 goes on running on a node that is cut off. It must not train on."""
    sim = elastic(elastic_job("1:3", 1, steps=None, FARANDOLE_LOST_AFTER_S=2))
    until_steps(sim, 3)
    lost = sim.pod("train-0")
    alone = steps_alone(lost)
    lost.vanish()
    until_steps_anywhere(sim, 2)
    sim.wait(30, lambda: lost.code is not None)
    assert lost.code == 202 and steps_alone(lost) == alone, sim.logs()
    assert "has lost contact with 2 of 3 nodes, more than half: they may go on without it" in lost.output, sim.logs()
    sim.forget(lost)
    until_steps_anywhere(sim, 3)
    lost.come_back()
    until_steps_anywhere(sim, 3)
    end_training(sim)
    assert_conditions(sim, "train", COMPLETE)
    assert_no_step_was_lost(sim)


def test_k19_of_two_pods_the_other_keeps_the_state_until_the_successor_of_pod_0_comes(elastic):
    """It cannot know whether pod 0 goes on somewhere: it waits, and a successor is the proof that pod 0 is gone."""
    sim = elastic(elastic_job("1:2", 1, steps=None, count=2, FARANDOLE_LOST_AFTER_S=2))
    until_steps(sim, 2)
    lost, other = sim.pod("train-0"), sim.pod("train-1")
    alone = steps_alone(lost, other)
    lost.vanish()
    lost.signal(signal.SIGKILL)  # with its node; no connection is reset
    sim.wait(30, lambda: "this node, 1, leads the job from now on" in other.output)
    until = time.monotonic() + 5
    sim.wait(10, lambda: time.monotonic() > until)
    assert "generation" not in other.output and steps_alone(lost, other) == alone, sim.logs()
    sim.forget(lost)
    until_steps_anywhere(sim, 2)
    end_training(sim)
    assert_conditions(sim, "train", COMPLETE)
    assert other.main.codes == [0], sim.logs()
    assert_no_step_was_lost(sim)


def test_h16_when_pod_0_is_lost_in_the_last_steps_the_job_is_complete(elastic):
    sim = elastic(elastic_job("1:3", 1, steps=200))  # the others need the state, and time to begin
    until_steps(sim, 3)
    sim.wait(40, lambda: "step 198 on" in sim.pod("train-0").output)
    sim.held.add("train-0")
    sim.pod("train-0").kill()
    sim.wait(40)
    assert_conditions(sim, "train", COMPLETE)
    assert max(steps_of(sim)) == 200, sim.logs()


@pytest.mark.parametrize("way", ["container", "pod"])
def test_p6_k19_in_a_stateful_set_the_successor_of_pod_0_joins_too(elastic, way):
    """Its container is restarted in the same pod, with the same address; or the pod is replaced."""
    env = {"FARANDOLE_NNODES": "2:3", "FARANDOLE_RANK_FROM": "hostname", "FARANDOLE_START_TIMEOUT_S": start_limit_s()}
    documents = builders.stateful_set(3, elastic_run(1, steps=None), env=env)
    sim = elastic(documents, crash_backoff_s=0.3)
    until_steps(sim, 3)
    lost = sim.pod("train-0")
    lost.signal(signal.SIGKILL) if way == "container" else lost.kill()
    until_steps_anywhere(sim, 2, 1)
    until_steps_anywhere(sim, 3)
    assert_no_step_was_lost(sim)
    assert len(re.findall("this node, 1, leads the job from now on", all_output(sim))) == 1, sim.logs()
    assert sim.pod("train-1").main.codes == [] and "this is node 0 of" in sim.pod("train-0").output, sim.logs()


# ---- A Deployment: its pods find each other by the addresses of one Service ------------------------------------------


def assert_another_pod_led(sim, times=1):
    leads = re.findall(r"this node, (\d), leads the job from now on, because node 0, ", all_output(sim))
    assert len(leads) == times and "0" not in leads, sim.logs()
    workers = [pod for pod in sim.pods if pod.plan.stem != LEADER]
    assert all(pod.main.codes == [] for pod in workers), sim.logs()


def test_p6_k19_when_the_container_that_leads_a_deployment_is_killed_another_pod_takes_over(elastic):
    """It is restarted in its pod, with the same address, and joins as node 0."""
    sim, leader = begin_deployment(elastic, "1:3", workers=2)
    until_steps(sim, 3, pod=leader.name)
    leader.signal(signal.SIGKILL)
    sim.wait(30, lambda: leader.main.codes == [137])
    sim.wait(30, lambda: "this is node 0 of the job that" in leader.output)
    until_steps_anywhere(sim, 3)
    assert_no_step_was_lost(sim)
    assert_another_pod_led(sim)
    for name in ("web", "web-leader"):
        assert sim.conditions(name) == {"Available": "MinimumReplicasAvailable"}, sim.logs()


def test_p6_k19_when_the_pod_that_leads_a_deployment_is_evicted_no_step_is_made_twice(elastic):
    """Its successor comes while it still terminates, and waits until another pod leads."""
    sim, leader = begin_deployment(elastic, "1:3", workers=2)
    until_steps(sim, 3, pod=leader.name)
    sim.evict(leader, grace=20)
    sim.wait(30, lambda: leader.code is not None)
    until_steps_anywhere(sim, 3)
    assert leader.code == 143 and "left at step" in leader.output, sim.logs()
    successor = sim.pod(LEADER)
    assert successor is not leader and successor.main.codes == [], sim.logs()
    assert "this is node 0 of the job that" in successor.output, sim.logs()
    assert_no_step_was_lost(sim, again=0)
    assert_another_pod_led(sim)


def test_p6_k19_when_the_pod_that_leads_a_deployment_vanishes_the_majority_goes_on(elastic):
    sim, leader = begin_deployment(elastic, "1:3", workers=2, FARANDOLE_LOST_AFTER_S=2)
    until_steps(sim, 3, pod=leader.name)
    alone = steps_alone(leader)
    leader.vanish()
    until_steps_anywhere(sim, 2)
    sim.wait(30, lambda: leader.code is not None)
    assert leader.code == 202 and steps_alone(leader) == alone, sim.logs()
    sim.forget(leader)
    until_steps_anywhere(sim, 3)
    leader.come_back()
    until_steps_anywhere(sim, 3)
    assert_no_step_was_lost(sim)
    assert_another_pod_led(sim)


def test_p6_k19_of_two_pods_of_a_deployment_the_other_keeps_the_state_until_the_leaders_successor_comes(elastic):
    sim, leader = begin_deployment(elastic, "1:2", FARANDOLE_LOST_AFTER_S=2)
    until_steps(sim, 2, pod=leader.name)
    other = sim.pod("web-7d9c6b5f4")
    leader.vanish()
    leader.signal(signal.SIGKILL)  # with its node; no connection is reset
    sim.wait(30, lambda: "this node, 1, leads the job from now on" in other.output)
    sim.replace(leader)  # the successor comes while the first pod's object is still there: it may run on
    sim.wait(20, lambda: sim.pod(LEADER) is not leader and sim.pod(LEADER).main.running)
    until = time.monotonic() + 4
    sim.wait(10, lambda: time.monotonic() > until)
    assert "generation" not in other.output + sim.pod(LEADER).output, sim.logs()
    sim.forget(leader)
    until_steps_anywhere(sim, 2)
    assert sim.pod(LEADER).main.codes == [], sim.logs()
    assert_no_step_was_lost(sim)


def test_p6_k19_pods_that_a_deployment_adds_without_its_leader_join_and_do_not_take_its_number(elastic):
    """Two come at the same time. They answer each other, and find the pod that leads."""
    sim, leader = begin_deployment(elastic, "1:4", workers=1)
    until_steps(sim, 2, pod=leader.name)
    sim.held.add(LEADER)
    sim.evict(leader, grace=20)
    until_steps_anywhere(sim, 1)
    sim.scale("web", 3)
    until_steps_anywhere(sim, 3)
    sim.release(LEADER)
    until_steps_anywhere(sim, 4)
    numbers = re.findall(r"this is node (\d) of the job", "".join(p.output for p in sim.pods if p.plan.stem != LEADER))
    assert sorted(set(numbers)) == ["1", "2", "3"], sim.logs()
    assert_no_step_was_lost(sim, again=0)
    assert_another_pod_led(sim)


# ---- Networks that are cut in one direction --------------------------------------------------------------------------


def cut_job(count=3, **variables):
    return elastic_job(
        f"1:{count}",
        1,
        steps=None,
        count=count,
        flags=["--elastic-timeout", "4"],
        FARANDOLE_LOST_AFTER_S=2,
        **variables,
    )


def assert_one_job(sim):
    """No step was made by two jobs: a step is made again once at most, after the loss."""
    steps = steps_of(sim)
    assert max(steps.count(step) for step in steps) <= 2 and steps.count(1) == 1, (steps, sim.logs())


@pytest.mark.parametrize("deaf", [1, 2])
def test_k19_when_pod_0_is_killed_and_one_of_the_others_does_not_hear_the_other_the_lower_one_goes_on(elastic, deaf):
    sim = elastic(cut_job())
    until_steps(sim, 3)
    first, second = sim.pod("train-1"), sim.pod("train-2")
    alone = steps_alone(second)
    (first if deaf == 1 else second).drop_from(second if deaf == 1 else first)
    sim.held |= {"train-0", "train-2"}
    sim.pod("train-0").kill()
    until_steps_anywhere(sim, 1)
    sim.wait(40, lambda: second.code is not None)
    assert second.code == 202 and steps_alone(second) == alone, sim.logs()
    first.drop_from()
    for late in ("train-2", "train-0"):
        sim.release(late)
    until_steps_anywhere(sim, 3)
    assert first.main.codes == [], sim.logs()
    assert_one_job(sim)


def test_k19_when_pod_0_vanishes_and_the_others_are_cut_apart_none_goes_on_alone(elastic):
    sim = elastic(cut_job())
    until_steps(sim, 3)
    lost, first, second = (sim.pod(f"train-{index}") for index in range(3))
    alone = steps_alone(*sim.pods)
    second.drop_from(first)
    sim.held |= {"train-0", "train-1", "train-2"}
    lost.cut_network()
    sim.wait(60, lambda: None not in (lost.code, first.code, second.code))
    assert [lost.code, first.code, second.code] == [202] * 3 and steps_alone(*sim.pods) == alone, sim.logs()
    assert_one_job(sim)


def test_k19_when_pod_0_is_killed_that_one_pod_did_not_hear_the_one_that_did_goes_on(elastic):
    """Pod 1 has taken pod 0 for lost, and waits for more than half. Pod 2 has made steps with pod 0 since."""
    sim = elastic(cut_job())
    until_steps(sim, 3)
    lost, deaf, other = (sim.pod(f"train-{index}") for index in range(3))
    alone = steps_alone(deaf)
    sim.held |= {"train-0", "train-1"}  # packets of pod 0 would reach a successor of pod 1
    deaf.drop_from(lost)
    until_steps_anywhere(sim, 2)
    lost.kill()
    until_steps_anywhere(sim, 1)
    sim.wait(40, lambda: deaf.code is not None)
    assert deaf.code == 202 and steps_alone(deaf) == alone, sim.logs()
    sim.release("train-1")
    sim.release("train-0")
    until_steps_anywhere(sim, 3)
    assert other.main.codes == [], sim.logs()
    assert_one_job(sim)


# ---- A successor of pod 0 that reaches none of the others ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Indexed Job", "Deployment"])
def test_p6_k19_a_successor_of_pod_0_that_is_cut_off_begins_no_job_of_its_own(elastic, kind):
    if kind == "Deployment":
        sim, lost = begin_deployment(elastic, "1:2")
        name, other = LEADER, sim.pod("web-7d9c6b5f4")
    else:
        sim = elastic(elastic_job("1:2", 1, steps=None, count=2))
        name, other = "train-0", sim.pod("train-1")
        lost = sim.pod(name)
    until_steps(sim, 2, pod=lost.name)
    sim.held.add(name)
    sim.evict(lost, grace=20)
    until_steps_anywhere(sim, 1)
    sim.wait(20, lambda: lost.gone)
    other.cut_network()
    sim.release(name)
    sim.wait(20, lambda: sim.pod(name) is not lost and sim.pod(name).main.running)
    until = time.monotonic() + 4
    sim.wait(10, lambda: time.monotonic() > until)
    successor = sim.pod(name)
    assert " on 1 ranks" not in successor.output and successor.main.codes == [], sim.logs()
    other.cut_network(False)
    until_steps_anywhere(sim, 2)
    assert "this is node 0 of the job that" in successor.output and other.main.codes == [], sim.logs()
    assert_no_step_was_lost(sim, again=0)


def test_k19_a_successor_of_pod_0_names_the_silent_pods_when_its_time_is_over(elastic):
    sim = elastic(elastic_job("1:2", 1, steps=None, count=2, start_timeout=3))
    until_steps(sim, 2)
    lost, other = sim.pod("train-0"), sim.pod("train-1")
    sim.held.add("train-0")
    lost.kill()
    until_steps_anywhere(sim, 1)
    sim.wait(20, lambda: lost.gone)
    other.cut_network()
    sim.release("train-0")
    sim.wait(30, lambda: "begins no job" in sim.pod("train-0").output)
    sim.wait(20, lambda: sim.pod("train-0").code is not None)
    assert sim.pod("train-0").code == 200, sim.logs()
    assert re.search(r"is node 0 and begins no job, because tcp://train-1.train\S*:29500 did not answer within 3 s and "
                     r"may go on with one \(--nnodes 1:2\)", sim.pod("train-0").output), sim.logs()  # fmt: skip
