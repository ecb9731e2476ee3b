"""Elastic jobs in simulated pods: their manifests, and what their pods have printed."""

import re
from pathlib import Path

import builders
import podsim
import pytest
from farandole.integrations.kubernetes import generate
from machine import start_limit_s
from training_jobs import ACCURACY

# The preempted pod is not counted as a failure, and the ends of its peers are not either.
FAILURE_POLICY = {"rules": [
    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 64, 78]}},
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
    {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [202, 203]}}]}  # fmt: skip
LEADER = "web-leader-7d9c6b5f4"  # the pod that leads a Deployment at the beginning
LOSS = 0.5799  # after 60 steps, on any number of ranks
ELASTIC = ["python", "/app/train_digits_elastic.py"]
# The controller replaces each deleted pod, and none of them counts as a failure of the job.
# The success of any pod is the job's: pods end with 0 when all ranks have finished.
FORGIVING = {"backoffLimitPerIndex": 2, "backoffLimit": None, "podFailurePolicy": FAILURE_POLICY,
             "successPolicy": {"rules": [{"succeededCount": 1}]}}  # fmt: skip
# Successors need as long as the machine lets them. With a number of steps the job could end before they join.
UNTIL_TOLD = ["--until", "/app/end"]
COMPLETE = {"SuccessCriteriaMet": "SuccessPolicy", "Complete": "SuccessPolicy"}


def elastic_run(per_node, steps=60, seconds=0.05, flags=()):
    """With `steps` None the ranks train until end_training()."""
    until = UNTIL_TOLD if steps is None else ["--steps", str(steps)]
    return ["farandole", "run", "--nproc-per-node", str(per_node), *flags, "--", *ELASTIC, *until,
            "--step-seconds", str(seconds)]  # fmt: skip


def elastic_job(nodes, per_node, steps=60, seconds=0.05, flags=(), start_timeout=None, count=3, **variables):
    run = elastic_run(per_node, steps, seconds, flags)
    rules = {key: value for key, value in FORGIVING.items() if value is not None}
    documents = builders.indexed_job(
        count,
        run,
        rules=rules,
        env={
            "FARANDOLE_NNODES": nodes,
            "FARANDOLE_START_TIMEOUT_S": start_timeout or start_limit_s(),
            "FARANDOLE_PORT_BASE": 29500,
            **variables,
        },
    )
    del documents[2]["spec"]["backoffLimit"]
    return documents


def begin_deployment(elastic, nnodes, workers=1, **options):
    """Runs the output of `gen deployment`, all pods of which commit each step; returns the simulation and the pod that
    leads."""
    words = ["deployment", "--name", "web", "--nnodes", nnodes, "--image", "any"]
    words += [word for name, value in options.items() for word in ("--env", f"{name}={value}")]
    documents = podsim.read(generate([*words, "--", *ELASTIC, "--steps", "100000", "--step-seconds", "0.05"]))
    for one in documents:
        if one["kind"] == "Deployment" and one["metadata"]["name"] == "web":
            one["spec"]["replicas"] = workers
    sim = elastic([*documents, builders.key_secret("web-key")], crash_backoff_s=0.3)
    return sim, sim.pod(LEADER)


def until_steps(sim, ranks, count=4, pod="train-0"):
    """Waits until rank 0, in that pod, has made `count` more steps with `ranks` ranks."""
    line = f" on {ranks} ranks"
    before = sim.pod(pod).output.count(line)
    sim.wait(30, lambda: sim.pod(pod).output.count(line) >= before + count)


def end_training(sim):
    """Lets ranks with UNTIL_TOLD end, and waits for the end of the job."""
    Path(sim.image["/app/end"]).write_text("end")
    sim.wait(60, lambda: sim.result("train") != "Running")


def assert_conditions(sim, name, conditions):
    """Waits for the ends of the pods, after which the controller writes the last conditions."""
    sim.wait(30, lambda: sim.conditions(name).keys() >= conditions.keys() or not sim.living())
    assert sim.conditions(name) == conditions, sim.logs()


def assert_learned(pod, ranks):
    (printed,) = re.findall(r"trained: accuracy ([\d.]+) loss ([\d.]+) on (\d+) ranks", pod.output)
    assert (
        float(printed[0]) > ACCURACY and int(printed[2]) == ranks and float(printed[1]) == pytest.approx(LOSS, abs=2e-3)
    )


def assert_one_pod_learns_alone(sim, lost, left):
    """The job of two pods ends well with the weights of `left`, because `lost` has no successor before the end."""
    until_steps(sim, 2)
    sim.held.add(lost)
    sim.pod(lost).kill()
    sim.wait(40, lambda: "trained" in sim.pod(left).output)
    assert_learned(sim.pod(left), 1)
    sim.wait(20)
    assert_conditions(sim, "train", COMPLETE)


def assert_late_pods_join(sim, *late):
    """Each of the pods joins the one that is there, and the job ends well."""
    for ranks, pod in enumerate(late, 2):
        sim.release(pod)
        until_steps_anywhere(sim, ranks)
    end_training(sim)
    assert_conditions(sim, "train", COMPLETE)


def all_output(sim):
    return "".join(pod.output for pod in sim.pods)


def until_steps_anywhere(sim, ranks, count=4, timeout=30):
    """Waits until rank 0, in whatever pod it is, has made `count` more steps with `ranks` ranks."""
    line = f" on {ranks} ranks"
    before = all_output(sim).count(line)
    sim.wait(timeout, lambda: all_output(sim).count(line) >= before + count)


def steps_of(sim):
    """The steps that rank 0 has printed in all pods, in order; a step that was made again is there twice."""
    return sorted(int(step) for step in re.findall(r"step (\d+) on \d+ ranks", all_output(sim)))
