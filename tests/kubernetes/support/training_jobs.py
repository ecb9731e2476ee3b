"""Builds the commands of jobs that train on digits, and checks the lines that their ranks print."""

import re

import builders

ACCURACY = 0.9
RANK_LINE = re.compile(r"rank (\d+) of (\d+) local (\d+)/(\d+) on (\S+)")  # printed by each rank


def starter(nodes, rank, place, per_node=2):
    """`farandole run` in a pod with all of its options given."""
    return ["farandole", "run", "--nnodes", str(nodes), "--node-rank", rank, "--rendezvous", place,
            "--nproc-per-node", str(per_node), "--", *builders.TRAIN]  # fmt: skip


def field(name, path):
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def ranks_of(pods):
    """{host name: [(rank, size, local rank, local size)...]} as printed by the ranks."""
    found = {}
    for pod in pods:
        for line in RANK_LINE.findall(pod.output):
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
