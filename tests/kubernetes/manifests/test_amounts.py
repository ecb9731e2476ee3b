"""Tests of the amounts that `gen` requests: from the table of instance types or for each rank, with their reasons."""

import pytest
from farandole.integrations.kubernetes import generate, instances
from farandole.integrations.kubernetes.__main__ import main
from manifest_checks import SCHEMAS, faults, generated, pod_of, pods_of
from test_options import BASES

AFTER = "--image i -- train"


def amounts(line):
    box = pod_of(generated(f"{line} {AFTER}"))["spec"]["containers"][0]["resources"]
    assert box["limits"]["memory"] == box["requests"]["memory"] and "cpu" not in box["limits"]
    return box["requests"]["cpu"], box["requests"]["memory"]


@pytest.mark.parametrize(
    "name, allocatable",
    [("m5.xlarge", (3.92, 14162)), ("p4d.24xlarge", (95.69, 1082712)), ("g5.xlarge", (3.92, 14162))],
)
def test_a_nodes_allocatable_amounts_are_those_that_karpenter_publishes(name, allocatable):
    cpus, mib = instances.TABLE[name].allocatable
    assert (round(cpus, 3), mib) == allocatable


@pytest.mark.parametrize("name", instances.TABLE)
def test_a_pod_of_a_whole_node_fits_into_it_and_leaves_little(name):
    row = instances.TABLE[name]
    cpus, memory = amounts(f"job --instance-type {name}")
    assert cpus <= row.allocatable[0] < row.vcpus and int(memory[:-2]) * 1024 <= row.allocatable[1]
    assert cpus >= row.vcpus - 3 and int(memory[:-2]) > 0.7 * row.memory_gib
    assert row.numa_nodes in (0, 1, 2) and row.network_cards >= max(1, row.efa)
    assert (row.accelerators > 0) == bool(row.resource)


def test_a_pod_with_some_of_the_gpus_requests_their_share():
    assert amounts("job --instance-type p4d.24xlarge --gpus 2") == (23, "264Gi")
    assert amounts("job --instance-type p4d.24xlarge --gpus 2 --cpus 8 --memory 64Gi") == (8, "64Gi")
    assert amounts("job --nproc-per-node 3") == (3, "6Gi")
    assert amounts("job --gpus 2 --nproc-per-node gpu") == (2, "16Gi")


def test_ranks_by_cpus_are_those_of_the_node():
    words = generate(f"job --instance-type c5n.9xlarge --nproc-per-node cpu {AFTER}".split())
    assert amounts("job --instance-type c5n.9xlarge --nproc-per-node cpu")[0] == 34
    assert "4 GiB a rank" not in words and "1 GiB a rank" in words


def test_shared_memory_grows_with_the_ranks_and_the_node():
    def size(line):
        return pod_of(generated(f"{line} {AFTER}"))["spec"]["volumes"][0]["emptyDir"]["sizeLimit"]

    assert size("job --nproc-per-node 3") == "3Gi"
    assert size("job --instance-type p5.48xlarge --nproc-per-node gpu") == "64Gi"
    assert size("job --instance-type g5.xlarge") == "1Gi"
    assert size("job --instance-type g5.8xlarge --nproc-per-node gpu --shm 3Gi") == "3Gi"


@pytest.mark.parametrize(
    "line, shm, memory",
    [
        ("--instance-type m5.xlarge --nproc-per-node 16", "6Gi", "12Gi"),
        ("--nproc-per-node 8 --memory 4Gi", "2Gi", "4Gi"),
        ("--nproc-per-node 2 --memory 3500Mi", "1750Mi", "3500Mi"),
        ("--nproc-per-node 4 --memory 8Gi", "4Gi", "8Gi"),
    ],
)
def test_shared_memory_that_was_not_given_takes_half_of_the_memory_at_most(line, shm, memory):
    words = generate(f"job {line} {AFTER}".split())
    (pod,) = pods_of(generated(f"job {line} {AFTER}"))
    assert pod["spec"]["volumes"][0]["emptyDir"]["sizeLimit"] == shm
    assert pod["spec"]["containers"][0]["resources"]["limits"]["memory"] == memory
    halved = "Half of the memory, because 1 GiB a rank would be more." in " ".join(words.replace("#", "").split())
    assert halved == (shm != "4Gi")


def test_counts_of_one_are_in_the_singular():
    assert "(4 vCPUs, 16 GiB, 1 network card, 1 NUMA node)" in " ".join(
        generate(f"job --instance-type m5.xlarge {AFTER}".split()).replace("#", "").split()
    )


@pytest.mark.parametrize("base", BASES)
def test_each_default_stands_beside_its_reason_in_every_kind(base):
    text = " ".join(generate(f"{BASES[base]} --instance-type p4d.24xlarge {AFTER}".split()).replace("#", "").split())
    assert "(96 vCPUs, 1152 GiB, 4 network cards, 2 NUMA nodes): the kubelet leaves 95.69 CPUs and 1057 GiB" in text
    assert "8 GiB a rank, an eighth of its memory and at most 8 GiB" in text
    text = " ".join(generate(f"{BASES[base]} --cpus 3 --memory 9Gi {AFTER}".split()).replace("#", "").split())
    assert "the kubelet leaves" not in text and "a rank; --instance-type" not in text  # nothing was chosen


@pytest.mark.parametrize("base", BASES)
def test_every_kind_is_valid_for_every_instance_type(base):
    """With all GPUs and EFA devices of the type, a rank for each, by the strict schemas."""
    count = 0
    for name, row in instances.TABLE.items():
        ranks, efa = "gpu" if row.accelerators else "1", "all" if row.efa else "off"
        made = generated(f"{BASES[base]} --instance-type {name} --nproc-per-node {ranks} --efa {efa} {AFTER}")
        assert faults(made, custom=SCHEMAS.is_dir()) == [], name
        count += len(made)
    print(f"{base}: {count} documents for {len(instances.TABLE)} instance types")
    assert count >= 2 * len(instances.TABLE)


def test_pods_without_ranks_do_not_request_what_a_gpu_node_has():
    for kind in ("rayjob", "mpijob"):
        boxes = [
            pod["spec"]["containers"][0] for pod in pods_of(generated(f"{kind} --instance-type p5.48xlarge {AFTER}"))
        ]
        (small,) = [box for box in boxes if box["name"] in ("ray-head", "launcher")]
        assert small["resources"]["requests"]["cpu"] in (1, "500m")
        assert "nvidia.com/gpu" not in small["resources"]["limits"]


def test_little_memory_for_many_ranks_is_a_warning_in_the_manifest_and_on_stderr(capsys):
    assert main(f"gen job --nproc-per-node 8 --gpus 8 --memory 4Gi --shm 1Gi {AFTER}".split()) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("farandole kubernetes gen: warning: 4Gi of memory are 0.5 GiB for each of 8 ranks")
    assert "# Warning: 4Gi of memory are 0.5 GiB" in captured.out
    assert main(f"gen job --nproc-per-node 8 --gpus 8 {AFTER}".split()) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("words, why", [("--cpus 97", "has 96"), ("--memory 2Ti", "has 1152Gi")])
def test_more_than_the_node_has_is_refused(words, why, capsys):
    assert main(f"gen job --instance-type p4d.24xlarge {words} {AFTER}".split()) == 64
    assert f"a p4d.24xlarge {why}, and less for pods; the pod would stay pending" in capsys.readouterr().err


@pytest.mark.parametrize("words, left", [("--cpus 96", "95.69"), ("--memory 1100Gi", "1057Gi")])
def test_more_than_the_kubelet_leaves_is_a_warning(words, left, capsys, tmp_path):
    for command in "gen", f"chart --directory {tmp_path}":
        assert main(f"{command} job --instance-type p4d.24xlarge {words} {AFTER}".split()) == 0
        printed = capsys.readouterr().err
        assert f"warning: {words}: of a p4d.24xlarge the kubelet leaves about {left} for pods" in printed
    assert main(f"gen job --instance-type p4d.24xlarge --cpus 95 --memory 1057Gi {AFTER}".split()) == 0
    assert capsys.readouterr().err == ""
