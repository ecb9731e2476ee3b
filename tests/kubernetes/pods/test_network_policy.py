"""Tests of NetworkPolicies: a job works within its ports, and reports the fault if they are closed."""

import time

import builders
from network_policies import FIRST, policy
from training_jobs import starter


def job(timeout=20, **env):
    run = starter(2, "$(JOB_COMPLETION_INDEX)", f"train-0.train:{FIRST}")
    return builders.indexed_job(2, run, rules={"backoffLimitPerIndex": 0, "maxFailedIndexes": 2},
                             env={"FARANDOLE_START_TIMEOUT_S": timeout, **env})  # fmt: skip


def probe(pod, target, port):
    code = "import socket, sys\nsocket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1)"
    return (
        pod.exec("python3", "-I", "-S", "-c", code, target.addresses[0], str(port)).stderr.strip().rsplit("\n", 1)[-1]
    )


def test_the_policy_lets_the_range_through_and_nothing_else(simulate):
    listen = ("import socket, time\nkept = [socket.create_server(('', port)) for port in (29500, 29563, 29564)]\n"
              "print('up', flush=True)\ntime.sleep(60)")  # fmt: skip
    sim = simulate([*builders.indexed_job(2, ["python3", "-I", "-S", "-c", listen]), policy()])
    sim.wait(20, lambda: all("up" in pod.output for pod in sim.pods))
    first, last = sim.pod("train-0"), sim.pod("train-1")
    assert [probe(last, first, port) for port in (29500, 29563)] == ["", ""]
    assert probe(last, first, 29564) == "TimeoutError: timed out"


def test_a_job_of_other_labels_cannot_reach_the_pods(simulate):
    listen = "import socket, time\ns = socket.create_server(('', 29500))\nprint('up', flush=True)\ntime.sleep(60)"
    stranger = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "stranger", "labels": {"app": "other"}},
                "spec": {"containers": [{"name": "main", "command": ["sleep", "60"]}]}}  # fmt: skip
    sim = simulate([*builders.indexed_job(1, ["python3", "-I", "-S", "-c", listen]), stranger, policy()])
    sim.wait(20, lambda: "up" in sim.pod("train-0").output and sim.pod("stranger").main.pid)
    assert probe(sim.pod("stranger"), sim.pod("train-0"), 29500) == "TimeoutError: timed out"


def test_with_the_range_closed_a_job_fails_at_the_deadline_and_names_the_missing_rank(simulate):
    sim = simulate([*job(timeout=4), policy(first=1, last=2)])
    begin = time.monotonic()
    sim.wait(40, lambda: all(pod.code is not None for pod in sim.pods))
    assert time.monotonic() - begin < 20 and all(pod.code != 0 for pod in sim.pods)
    assert "ranks 2 and 3 of 4 have not arrived after 4 s" in sim.pod("train-0").output, sim.logs()
    assert "train-0.train:29500" in sim.pod("train-1").output, sim.logs()
