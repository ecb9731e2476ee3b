"""Tests of the CDK app, synthesised without an account or a network. They need 472 MiB and node: see run.sh here."""

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

CDK = Path(__file__).resolve().parents[3] / "examples" / "eks" / "cdk"


@pytest.fixture(scope="module")
def template():
    os.environ["JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION"] = "1"
    import aws_cdk as cdk
    from aws_cdk.assertions import Template

    spec = importlib.util.spec_from_file_location("cdk_app", CDK / "app.py")
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    return Template.from_stack(app.ClusterStack(cdk.App(), "farandole", instance_type="p4d.24xlarge"))


def _of(template, kind):
    return [row["Properties"] for row in template.to_json()["Resources"].values() if row["Type"] == kind]


def test_h1_the_cluster_is_of_plain_resources_without_functions(template):
    kinds = Counter(row["Type"] for row in template.to_json()["Resources"].values())
    assert kinds["AWS::EKS::Cluster"] == 1 and kinds["AWS::EKS::Nodegroup"] == 2
    assert not [kind for kind in kinds if kind.startswith(("Custom::", "AWS::Lambda")) and "EKS" in kind]
    (cluster,) = _of(template, "AWS::EKS::Cluster")
    assert cluster["ComputeConfig"]["Enabled"] is False if "ComputeConfig" in cluster else True


def test_h2_the_gpu_group_has_its_sizes_taint_image_and_template(template):
    (gpu,) = [group for group in _of(template, "AWS::EKS::Nodegroup") if group.get("Taints")]
    assert gpu["ScalingConfig"] == {"MinSize": 2, "DesiredSize": 2, "MaxSize": 5}
    assert gpu["AmiType"] == "AL2023_x86_64_NVIDIA"
    assert gpu["Taints"] == [{"Key": "nvidia.com/gpu", "Value": "true", "Effect": "NO_SCHEDULE"}]
    assert "LaunchTemplate" in gpu


def test_h12_the_gpu_nodes_are_in_one_private_subnet(template):
    (gpu,) = [group for group in _of(template, "AWS::EKS::Nodegroup") if group.get("Taints")]
    (subnet,) = gpu["Subnets"]
    found = template.to_json()["Resources"][subnet["Ref"]]["Properties"]
    assert found["MapPublicIpOnLaunch"] is False


def test_h2_each_network_card_has_an_efa_interface_and_the_first_an_address(template):
    (found,) = _of(template, "AWS::EC2::LaunchTemplate")
    interfaces = found["LaunchTemplateData"]["NetworkInterfaces"]
    assert [entry["NetworkCardIndex"] for entry in interfaces] == [0, 1, 2, 3]
    assert [entry["InterfaceType"] for entry in interfaces] == ["efa", "efa-only", "efa-only", "efa-only"]
    assert found["LaunchTemplateData"]["MetadataOptions"]["HttpPutResponseHopLimit"] == 1


def test_h2_efas_security_group_lets_itself_in_and_out(template):
    (ingress,) = [rule for rule in _of(template, "AWS::EC2::SecurityGroupIngress") if rule["Description"] == "EFA"]
    (egress,) = _of(template, "AWS::EC2::SecurityGroupEgress")
    assert (
        ingress["GroupId"]
        == ingress["SourceSecurityGroupId"]
        == egress["GroupId"]
        == egress["DestinationSecurityGroupId"]
    )
    assert ingress["IpProtocol"] == egress["IpProtocol"] == "-1"


def test_h1_the_template_passes_cfn_lint(template, tmp_path):
    file = tmp_path / "template.json"
    file.write_text(json.dumps(template.to_json()))
    done = subprocess.run(
        [Path(sys.executable).parent / "cfn-lint", "--ignore-checks", "W3005", "--", str(file)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
