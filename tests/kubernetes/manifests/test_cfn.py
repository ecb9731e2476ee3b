"""Tests of the CloudFormation template of a capacity block's nodes, and of the config map that admits them.

cfn-lint reads the other templates too.
"""

import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import yaml
from farandole.integrations.kubernetes.instances import TABLE
from manifest_checks import EKS

TEMPLATE = EKS / "cfn" / "capacity-block-nodegroup.yaml"


@pytest.fixture(scope="module")
def resources():
    class Loader(yaml.SafeLoader):
        pass

    # !Ref a becomes {"Ref": "a"}, which is enough to check references.
    Loader.add_multi_constructor(
        "!",
        lambda loader, tag, node: {tag: loader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else None},
    )
    return yaml.load(TEMPLATE.read_text(), Loader)["Resources"]


def test_e10_efas_security_group_lets_itself_in_and_out(resources):
    mine = {"Ref": "EfaSecurityGroup"}
    ingress, egress = (resources[name]["Properties"] for name in ("EfaIngressSelf", "EfaEgressSelf"))
    assert ingress["GroupId"] == ingress["SourceSecurityGroupId"] == mine and ingress["IpProtocol"] == "-1"
    assert egress["GroupId"] == egress["DestinationSecurityGroupId"] == mine and egress["IpProtocol"] == "-1"


def test_e10_each_network_card_has_an_interface_and_only_the_first_an_address(resources):
    data = resources["LaunchTemplate"]["Properties"]["LaunchTemplateData"]
    interfaces = data["NetworkInterfaces"]
    assert len(interfaces) == TABLE[data["InstanceType"]].efa == 32
    assert [card["NetworkCardIndex"] for card in interfaces] == list(range(32))
    assert [card["InterfaceType"] for card in interfaces] == ["efa"] + ["efa-only"] * 31
    assert [card["DeviceIndex"] for card in interfaces] == [0] + [1] * 31
    assert {"Ref": "EfaSecurityGroup"} in interfaces[7]["Groups"]


def test_e6_e10_the_nodes_are_of_the_block_and_may_join(resources):
    data = resources["LaunchTemplate"]["Properties"]["LaunchTemplateData"]
    assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert data["CapacityReservationSpecification"]["CapacityReservationTarget"] == {
        "CapacityReservationId": {"Ref": "CapacityReservationId"}
    }
    assert resources["NodeAccess"]["Properties"]["Type"] == "EC2_LINUX"
    assert "NodeAccess" in resources["Nodes"]["DependsOn"]


def test_e10_the_config_map_keeps_the_words_that_nodes_need():
    (document,) = yaml.safe_load_all((EKS / "aws-auth-cm.yaml").read_text())
    (role,) = yaml.safe_load(document["data"]["mapRoles"])
    assert role["username"] == "system:node:{{EC2PrivateDNSName}}"
    assert role["groups"] == ["system:bootstrappers", "system:nodes"]


def test_c4_no_arn_of_the_template_is_of_one_partition():
    text = TEMPLATE.read_text().replace("# With the partition: arn:aws:", "")
    assert "arn:aws:" not in text and "amazonaws.com" not in text


def test_e10_cfn_lint_finds_nothing():
    program = shutil.which("cfn-lint", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin")
    if not program:
        warnings.warn("the CloudFormation template was not linted: pip install cfn-lint (152 MiB)", stacklevel=2)
        pytest.skip("no cfn-lint")
    done = subprocess.run([program, *map(str, (EKS / "cfn").glob("*.yaml"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
