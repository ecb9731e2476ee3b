"""Tests that each kind of workload starts ranks that train on real digits with the same training command."""

import json
import re

import pytest
import short
from farandole.integrations.kubernetes import generate

ACCURACY = 0.9
SHM = {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}}],
       "container_volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}  # fmt: skip


def starter(nodes, rank, place, per_node=2):
    """`farandole run` in a pod with all of its options given."""
    return ["farandole", "run", "--nnodes", str(nodes), "--node-rank", rank, "--rendezvous", place,
            "--nproc-per-node", str(per_node), "--", *short.TRAIN]  # fmt: skip


def field(name, path):
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def ranks_of(pods):
    """{host name: [(rank, size, local rank, local size)...]} as printed by the ranks."""
    printed = re.compile(r"rank (\d+) of (\d+) local (\d+)/(\d+) on (\S+)")
    found = {}
    for pod in pods:
        for line in printed.findall(pod.output):
            assert line[4] == pod.hostname
            found.setdefault(pod.hostname, []).append(tuple(int(word) for word in line[:4]))
    return {name: sorted(ranks) for name, ranks in found.items()}


def assert_trained(sim, size, hostnames, per_node=2):
    """Checks that all pods are one world, ranks follow the order of pods, weights are equal, and training succeeded."""
    assert ranks_of(sim.pods) == {
        name: [(node * per_node + local, size, local, per_node) for local in range(per_node)]
        for node, name in enumerate(hostnames)}, sim.logs()  # fmt: skip
    words = [
        re.search(r"trained: accuracy ([\d.]+) loss ([\d.]+) on (\d+) ranks, 1 version", pod.output) for pod in sim.pods
    ]
    (word,) = [one for one in words if one]
    assert int(word.group(3)) == size and float(word.group(1)) > ACCURACY
    return float(word.group(2))


def train(simulate, documents, size, hostnames, per_node=2, **options):
    sim = simulate(documents, **options)
    try:
        if any(one["kind"] in ("StatefulSet", "LeaderWorkerSet", "Deployment") for one in sim.documents):
            sim.wait_for_ends(60)
        else:
            sim.wait(60)
            assert set(sim.results.values()) == {"Complete"}, sim.logs()
        return assert_trained(sim, size, hostnames, per_node)
    except AssertionError:
        print(sim.logs())
        raise


def test_an_indexed_job_of_4_pods_with_2_ranks_each_trains_as_one_world(simulate):
    run = starter(4, "$(JOB_COMPLETION_INDEX)", "train-0.train:29500")
    loss = train(simulate, short.indexed_job(4, run, **SHM), 8, [f"train-{index}" for index in range(4)])
    # The global batches and the learned weights do not depend on the number of ranks.
    alone = train(simulate, short.indexed_job(1, starter(1, "0", "train-0.train:29500", 1)), 1, ["train-0"], 1)
    assert loss == pytest.approx(alone, abs=2e-3)


def test_a_stateful_set_trains_with_the_ordinal_as_node(simulate):
    documents = short.stateful_set(2, starter(2, "$(ORDINAL)", "train-0.train:29500"))
    documents[2]["spec"]["template"]["spec"]["containers"][0]["env"].append(
        field("ORDINAL", "metadata.labels['apps.kubernetes.io/pod-index']")
    )
    train(simulate, documents, 4, ["train-0", "train-1"])


def test_a_job_set_trains_over_the_pods_of_all_its_jobs(simulate):
    run = starter(2, "$(JOB)", "train-workers-0-0.train:29500")
    documents = short.job_set(2, 1, run)
    pod = documents[1]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    pod["spec"]["containers"][0]["env"].append(field("JOB", "metadata.labels['jobset.sigs.k8s.io/job-global-index']"))
    train(simulate, documents, 4, ["train-workers-0-0", "train-workers-1-0"])


def test_a_leader_worker_set_trains_with_the_leader_as_first_node(simulate):
    run = starter("$(LWS_GROUP_SIZE)", "$(LWS_WORKER_INDEX)", "$(LWS_LEADER_ADDRESS):29500")
    # By default the end of one pod, even with 0, recreates the group, so that all pods restart for ever.
    train(simulate, short.leader_worker_set(2, run, group={"restartPolicy": "None"}), 4, ["train-0", "train-0-1"])


def test_a_pytorch_job_trains_with_the_master_as_first_node(simulate):
    run = starter("$(PET_NNODES)", "$(PET_NODE_RANK)", "$(MASTER_ADDR):$(MASTER_PORT)")
    train(simulate, short.pytorch_job(1, run, spec={"nprocPerNode": "2"}), 4, ["train-master-0", "train-worker-0"])


def test_a_train_job_trains_with_its_runtimes_settings(simulate):
    run = starter("$(PET_NNODES)", "$(PET_NODE_RANK)", "$(PET_MASTER_ADDR):$(PET_MASTER_PORT)")
    train(simulate, short.train_job(2, run), 4, ["train-node-0-0", "train-node-0-1"])


def test_h15_every_line_of_a_pod_is_json_with_its_rank(simulate):
    words = "job --nnodes 2 --nproc-per-node 2 --json-logs --image farandole:0.1.0 -- sh -c"
    sim = simulate(
        generate(
            [*words.split(), "echo out $FARANDOLE_RANK; echo err $FARANDOLE_RANK >&2; exit $((FARANDOLE_RANK == 3))"]
        )
    )
    sim.wait_for_ends(30)
    for node, pod in enumerate(sim.pods[:2]):
        lines = [json.loads(line) for line in pod.output.splitlines()]
        assert {(line["pod"], line["node"]) for line in lines} == {(pod.name, f"node-of-{pod.hostname}")}, pod.output
        printed = sorted((line["rank"], line["stream"], line["text"]) for line in lines if line["source"] == "rank")
        assert printed == [(rank, *what) for rank in (2 * node, 2 * node + 1)
                        for what in (("stderr", f"err {rank}"), ("stdout", f"out {rank}"))], pod.output  # fmt: skip
        assert ("failed" in [line.get("event") for line in lines]) == (node == 1), pod.output
