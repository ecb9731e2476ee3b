"""Tests of faulty DNS: late names, wrong names, a silent server, and a pod that returns with another address."""

import time

import builders
from test_jobs_faults import job
from training_jobs import assert_trained, starter


def assert_trained_once_mended(sim, mend):
    """Lets both pods run for a while with the faulty names, then mends the names."""
    sim.wait(20, lambda: all(pod.main.pid for pod in sim.pods) and len(sim.pods) == 2)
    time.sleep(1.5)
    mend()
    sim.wait(40)
    assert_trained(sim, 4, ["train-0", "train-1"])


def test_names_that_appear_late_are_waited_for(simulate):
    sim = simulate(job(2), held=["train-0"])
    sim.hidden.add("train-0")
    sim.release("train-0")
    assert_trained_once_mended(sim, sim.hidden.clear)


def test_a_name_that_resolves_wrongly_at_first_is_resolved_again(simulate):
    sim = simulate(job(2), held=["train-0"])
    sim.wrong["train-0"] = ["198.18.200.200"]  # no pod has this address
    sim.release("train-0")
    assert_trained_once_mended(sim, sim.wrong.clear)


def test_a_name_server_that_is_silent_for_a_while_is_queried_again(simulate):
    sim = simulate(job(2), held=["train-1"])
    sim.fabric.silence_names()
    sim.release("train-1")
    assert_trained_once_mended(sim, lambda: sim.fabric.silence_names(False))


def test_the_first_pod_may_return_with_another_address_before_the_world_begins(simulate):
    run = starter(2, "$(ORDINAL)", "train-0.train:29500")
    documents = builders.stateful_set(2, run, env={"FARANDOLE_START_TIMEOUT_S": 20})
    documents[2]["spec"]["template"]["spec"]["containers"][0]["env"].append(
        {"name": "ORDINAL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}}
    )
    sim = simulate(documents, held=["train-1"])
    sim.wait(20, lambda: sim.pod("train-0").main.pid)
    first = sim.pod("train-0")
    old = first.addresses
    first.terminate(0)
    sim.wait(20, lambda: sim.pod("train-0") is not first and sim.pod("train-0").main.pid)
    assert sim.pod("train-0").addresses != old
    sim.release("train-1")
    sim.wait(40, lambda: len(sim.pods) == 3 and all(pod.main.codes for pod in sim.pods[1:]))
    sim.pods.remove(first)
    first.end()
    assert_trained(sim, 4, ["train-0", "train-1"])


def test_a_name_that_never_exists_is_named_at_the_deadline(simulate):
    sim = simulate(
        job(2, starter(2, "$(JOB_COMPLETION_INDEX)", "nobody.train:29500"), env={"FARANDOLE_START_TIMEOUT_S": 3})
    )
    sim.wait(30, lambda: all(pod.code is not None for pod in sim.pods))
    assert all(pod.code != 0 and "nobody.train" in pod.output for pod in sim.pods), sim.logs()
