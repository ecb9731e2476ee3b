"""Tests of jobs that lose pods. A job of fixed size replaces its pods and resumes from its checkpoint. In an elastic
job the other pods continue and accept the successors."""

import re
import signal
import time

import builders
import podsim
import pytest
from elastic_pods import (
    COMPLETE,
    ELASTIC,
    FAILURE_POLICY,
    assert_conditions,
    assert_one_pod_learns_alone,
    begin_deployment,
    elastic_job,
    end_training,
    until_steps,
)
from farandole.integrations.kubernetes import checks, generate
from machine import start_limit_s
from training_jobs import ACCURACY, starter

CLAIM = {"volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
         "container_volumeMounts": [{"name": "c", "mountPath": "/checkpoints"}]}  # fmt: skip
RULES = {"backoffLimit": 20, "podFailurePolicy": FAILURE_POLICY}
STEPS = ["--steps", "60", "--step-seconds", "0.05", "--checkpoint", "/checkpoints/digits.npz"]


def job():
    run = [*starter(2, "$(JOB_COMPLETION_INDEX)", "train-0.train:29500"), *STEPS]
    return builders.indexed_job(2, run, rules=RULES, env={"FARANDOLE_START_TIMEOUT_S": start_limit_s()}, **CLAIM)


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("way", ["evicted", "killed"])
def test_a_job_that_loses_a_pod_resumes_and_learns_the_same(simulate, way, lost):
    sim = simulate(job())
    sim.wait(30, lambda: "step 25" in sim.pod("train-0").output)
    begin = time.monotonic()
    if way == "evicted":
        sim.evict(sim.pod(f"train-{lost}"), grace=10)
    else:
        sim.pod(f"train-{lost}").kill()
    sim.wait(30, lambda: any("resumed at step" in pod.output for pod in sim.pods))
    print(f"resumed after {time.monotonic() - begin:.1f} s")
    sim.wait(40)
    assert sim.result("train") == "Complete", sim.logs()
    gone = next(pod for pod in sim.pods if pod.plan.index == lost)
    assert gone.code == (143 if way == "evicted" else 137), sim.logs()
    first = int(re.search(r"resumed at step (\d+)", "".join(pod.output for pod in sim.pods)).group(1))
    assert first >= 20
    (printed,) = re.findall(
        r"trained: accuracy ([\d.]+) loss ([\d.]+) on 4 ranks, 1 version", "".join(pod.output for pod in sim.pods)
    )
    assert float(printed[0]) > ACCURACY and float(printed[1]) == pytest.approx(0.5799, abs=2e-3)  # as without any loss


# ---- Elastic: the others go on ---------------------------------------------------------------------------------------


def test_h16_k12_k19_an_elastic_job_survives_an_evicted_and_a_killed_pod_and_accepts_their_successors(elastic):
    sim = elastic(elastic_job("2:3", 2, steps=None))
    until_steps(sim, 6)
    first, evicted, killed = (sim.pod(f"train-{index}") for index in range(3))
    sim.held |= {"train-1", "train-2"}
    sim.evict(evicted, grace=20)
    sim.wait(20, lambda: evicted.code is not None)
    assert evicted.code == 143 and evicted.output.count("left at step") == 2, sim.logs()
    until_steps(sim, 4)
    assert "restoring" not in first.output and "was lost" not in first.output, sim.logs()  # no step was repeated
    sim.release("train-1")
    until_steps(sim, 6)
    killed.kill()
    until_steps(sim, 4)
    assert killed.code == 137 and "node 2 was lost with 2 ranks" in first.output, sim.logs()
    sim.release("train-2")
    until_steps(sim, 6)
    end_training(sim)
    assert_conditions(sim, "train", COMPLETE)
    assert first.code == 0 and first.main.codes == [0]  # it was never restarted
    assert re.findall(r"generation \d begins with (\d+) ranks on (\d) nodes", first.output) == [
        ("6", "3"), ("4", "2"), ("6", "3"), ("4", "2"), ("6", "3")], sim.logs()  # fmt: skip
    assert len(sim.pods) == 5 and sim.pod("train-1").addresses != evicted.addresses
    accuracy = float(re.search(r"trained: accuracy ([\d.]+)", first.output).group(1))
    assert accuracy > ACCURACY


def test_k19_a_node_that_vanishes_is_survived_and_its_pod_does_no_harm_when_it_comes_back(elastic):
    """No connection is reset, and the pod is replaced late. Its processes run on, and find the network again."""
    documents = elastic_job("1:2", 1, steps=None, count=2)
    variables = documents[2]["spec"]["template"]["spec"]["containers"][0]["env"]
    variables.append({"name": "FARANDOLE_LOST_AFTER_S", "value": "2"})
    sim = elastic(documents)
    until_steps(sim, 2)
    first, lost = sim.pod("train-0"), sim.pod("train-1")
    begin = time.monotonic()
    lost.vanish()
    until_steps(sim, 1)
    print(f"the other went on after {time.monotonic() - begin:.1f} s")
    sim.forget(lost)
    until_steps(sim, 2)
    lost.come_back()
    until_steps(sim, 2, 10)
    end_training(sim)
    assert_conditions(sim, "train", COMPLETE)
    assert first.main.codes == [0] and first.output.count("step 1 on") == 1, sim.logs()
    assert re.findall(r"generation \d begins with (\d+) ranks", first.output) == ["2", "1", "2"], sim.logs()


def test_k19_the_learned_weights_do_not_depend_on_the_lost_pod(elastic):
    assert_one_pod_learns_alone(elastic(elastic_job("1:2", 1, count=2)), lost="train-1", left="train-0")


LATE = "job --nnodes 1:3 --image any --set Job.spec.backoffLimitPerIndex=1 --env FARANDOLE_START_TIMEOUT_S=2 -- "


@pytest.mark.parametrize("policy", [True, False], ids=["as generated", "without successPolicy"])
@pytest.mark.parametrize("way", ["never scheduled", "evicted"])
def test_h16_k19_a_job_whose_pods_come_after_its_end_is_complete(elastic, way, policy):
    """The output of `gen job`. Without its successPolicy the successors find no leader, and the Job is Failed."""
    documents = podsim.read(generate([*LATE.split(), *ELASTIC, "--steps", "30", "--step-seconds", "0.05"]))
    if not policy:
        del next(one for one in documents if one["kind"] == "Job")["spec"]["successPolicy"]
    late = ["train-1", "train-2"] if way == "never scheduled" else ["train-2"]
    sim = elastic(documents, held=late)
    if way == "evicted":
        until_steps(sim, 2, 2)
        sim.held.add("train-1")
        sim.evict(sim.pod("train-1"))
    sim.wait(40, lambda: sim.pod("train-0").code == 0)
    for name in list(sim.held):
        sim.release(name)
    sim.wait(40)
    if policy:
        assert_conditions(sim, "train", COMPLETE)
        assert len(sim.pods) == (1 if way == "never scheduled" else 2), sim.logs()  # no pod was created for nothing
    else:
        assert_conditions(sim, "train", {"FailureTarget": "FailedIndexes", "Failed": "FailedIndexes"})
        assert "did not find the node that leads the job" in sim.pod("train-2").output, sim.logs()


def test_h16_pods_that_start_while_the_job_ends_are_no_failures(elastic):
    """They arrive between the end of the ranks and the controller's SIGTERM, or do not find the leader any more."""
    documents = podsim.read(generate([*LATE.split(), *ELASTIC, "--steps", "20", "--step-seconds", "0.05"]))
    sim = elastic(documents, held=["train-1", "train-2"])
    sim.wait(40, lambda: "step 19 on" in sim.pod("train-0").output)
    sim.release("train-1")
    sim.release("train-2")
    sim.wait(40)
    assert_conditions(sim, "train", COMPLETE)
    for pod in sim.pods[1:]:  # PID 1 ignores a SIGTERM that arrives before it has a handler, and ends with 200
        assert pod.code in (143, 200) or pod.code == 0 and "the job finished before ranks of this node" in pod.output, (
            sim.logs()
        )


def test_h16_an_elastic_job_that_kueue_admits_in_part_trains_with_fewer_pods(elastic):
    """Kueue has room for two of four pods: it lowers completions and parallelism, and then starts the job."""
    words = "job --nnodes 1:4 --queue team --image any --"
    documents = podsim.read(generate([*words.split(), *ELASTIC, "--steps", "40", "--step-seconds", "0.05"]))
    job = next(one for one in documents if one["kind"] == "Job")
    assert job["spec"]["suspend"] and job["metadata"]["annotations"]["kueue.x-k8s.io/job-min-parallelism"] == "1"
    job["spec"].update(suspend=False, completions=2, parallelism=2)
    assert checks.faults(documents) == []  # the API server accepts it
    sim = elastic(documents)
    until_steps(sim, 2)
    sim.wait(60)
    assert_conditions(sim, "train", COMPLETE)
    assert [pod.hostname for pod in sim.pods] == ["train-0", "train-1"], sim.logs()


def test_h16_with_too_few_pods_the_missing_ones_are_named(elastic):
    sim = elastic(elastic_job("3:3", 1, start_timeout=3, flags=["--max-restarts", "1"]), held=["train-2"])
    sim.wait(20, lambda: all(pod.code is not None for pod in sim.pods[:2]))
    for pod in sim.pods[:2]:
        assert pod.code == 200, sim.logs()
        assert (
            "2 of at least 3 nodes are here after 3 s (--start-timeout): node 2 (train-2) did not arrive" in pod.output
        ), sim.logs()
    assert sim.conditions("train") == {}  # its indexes have retries left


def test_p6_h13_k11_pods_of_a_deployment_are_numbered_by_arrival_and_scaled_during_training(elastic):
    """Runs the output of `gen deployment` unchanged with 2 pods, 4 pods, one of which is killed, and 2 pods again."""
    sim, leader = begin_deployment(elastic, "2:4")
    until_steps(sim, 2, pod=leader.name)
    sim.scale("web", 3)
    until_steps(sim, 4, pod=leader.name)
    workers = [pod for pod in sim.pods if pod is not leader]
    assert sorted(re.search(r"this is node (\d) of the job", pod.output).group(1) for pod in workers) == [
        "1",
        "2",
        "3",
    ], sim.logs()
    workers[0].signal(signal.SIGKILL)  # its container is restarted in the same pod
    until_steps(sim, 3, 1, pod=leader.name)
    until_steps(sim, 4, pod=leader.name)
    assert workers[0].main.codes == [137] and workers[0].output.count("this is node") == 2, sim.logs()
    sim.scale("web", 1)
    until_steps(sim, 2, pod=leader.name)
    gone = [pod for pod in workers if pod.terminating]
    sim.wait(10, lambda: all(pod.code is not None for pod in gone))
    assert len(gone) == 2 and all(pod.code == 143 and "left at step" in pod.output for pod in gone), sim.logs()
    assert leader.main.codes == [] and leader.output.count("step 1 on") == 1  # it never restarted
    for name in ("web", "web-leader"):
        assert sim.conditions(name) == {"Available": "MinimumReplicasAvailable"}, sim.logs()


def test_k1_an_elastic_pytorchjob_survives_a_killed_worker_and_accepts_its_successor(elastic):
    """The unchanged output of `gen pytorchjob`: the operator passes MIN:MAX and the address of worker 0, and recreates
    a worker that ended with 128 or more."""
    words = "pytorchjob --nnodes 2:3 --nproc-per-node 2 --image any -- " + " ".join(
        [*ELASTIC, "--steps", "120", "--step-seconds", "0.05"]
    )
    sim = elastic([*podsim.read(generate(words.split())), builders.key_secret("train-key")])
    first = sim.pod("train-worker-0")
    until_steps(sim, 6, pod=first.name)
    killed = sim.pod("train-worker-1")
    sim.held.add("train-worker-1")
    killed.kill()
    until_steps(sim, 4, pod=first.name)
    sim.release("train-worker-1")
    until_steps(sim, 6, pod=first.name)
    assert killed.main.codes == [137], (killed.main.codes, killed.code)
    assert not {"RANK", "PET_NODE_RANK"} & {one["name"] for one in first.plan.env}
    sim.wait(60)
    # As soon as one worker has ended with 0; the operator ends the rest.
    assert sim.conditions("train") == {"Succeeded": "PyTorchJobSucceeded"}, sim.logs()
    assert re.findall(r"generation \d begins with (\d+) ranks on (\d) nodes", first.output) == [
        ("6", "3"),
        ("4", "2"),
        ("6", "3"),
    ], sim.logs()
    accuracy = float(re.search(r"trained: accuracy ([\d.]+)", first.output).group(1))
    assert accuracy > ACCURACY
