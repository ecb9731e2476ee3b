"""Jobs that lose pods and go on: pods are replaced, the ranks begin again where they had saved. Within one pod a world
shrinks and grows without that; across pods it does not, and says so."""

import re
import time

import pytest

import short
from test_jobs import ACCURACY, starter

CLAIM = {"volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
         "container_volumeMounts": [{"name": "c", "mountPath": "/checkpoints"}]}  # fmt: skip
# The preempted pod does not count; what its peers do about it counts, but not often.
RULES = {"backoffLimit": 20,
         "podFailurePolicy": {"rules": [
             {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 64, 78]}},
             {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
             {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [202, 203]}}]}}  # fmt: skip
STEPS = ["--steps", "60", "--step-seconds", "0.05", "--checkpoint", "/checkpoints/digits.npz"]


def job():
    run = [*starter(2, "$(JOB_COMPLETION_INDEX)", "train-0.train:29500"), *STEPS]
    return short.indexed_job(2, run, rules=RULES, env={"FARANDOLE_START_TIMEOUT_S": 20}, **CLAIM)


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
    assert sim.result("train") == "Complete", sim.story()
    gone = next(pod for pod in sim.pods if pod.plan.index == lost)
    assert gone.code == (143 if way == "evicted" else 137), sim.story()
    first = int(re.search(r"resumed at step (\d+)", "".join(pod.output for pod in sim.pods)).group(1))
    assert first >= 20
    (said,) = re.findall(r"trained: accuracy ([\d.]+) loss ([\d.]+) on 4 ranks, 1 version", "".join(pod.output for pod in sim.pods))
    assert float(said[0]) > ACCURACY and float(said[1]) == pytest.approx(0.5799, abs=2e-3)  # as without any loss


def test_elastic_across_pods_is_refused_with_the_reason(simulate):
    run = ["farandole", "run", "--nnodes", "2", "--node-rank", "$(JOB_COMPLETION_INDEX)", "--rendezvous", "train-0.train:29500",
           "-np", "2", "--min-np", "1", "--", *short.TRAIN]  # fmt: skip
    sim = simulate(short.indexed_job(2, run))
    sim.wait(20)
    assert all(pod.code == 64 for pod in sim.pods if pod.code is not None) and "runs on one host" in sim.pods[0].output, sim.story()
