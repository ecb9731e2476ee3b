"""An EKS cluster with GPU nodes and EFA as a CDK v2 app: run `cdk deploy` in this folder.

core.Stack, as in older tutorials, is CDK v1, and aws_eks (without v2) brings Lambda functions that run kubectl. This is
aws_eks_v2: plain resources, no functions.
"""

import os

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam

# type: network cards that take an EFA interface
EFA_CARDS = {"g4dn.8xlarge": 1, "g5.8xlarge": 1, "p4d.24xlarge": 4, "p5.48xlarge": 32}


class ClusterStack(cdk.Stack):
    def __init__(self, scope, name, *, instance_type="g5.8xlarge", minimum=2, maximum=5, version="1.34", **more):
        super().__init__(scope, name, **more)
        vpc = ec2.Vpc(self, "Vpc", max_azs=2, nat_gateways=1)
        # Node groups provide the capacity. The default, Auto Mode, would choose nodes by itself.
        self.cluster = eks.Cluster(
            self,
            "Cluster",
            vpc=vpc,
            version=eks.KubernetesVersion.of(version),
            default_capacity_type=eks.DefaultCapacityType.NODEGROUP,
            default_capacity=0,
        )
        self.cluster.add_nodegroup_capacity(
            "Sys",
            instance_types=[ec2.InstanceType("m5.xlarge")],
            min_size=1,
            desired_size=1,
            max_size=3,
            labels={"role": "sys"},
        )
        self._add_gpus(vpc, instance_type, minimum, maximum)

    def _efa_group(self, vpc):
        group = ec2.SecurityGroup(self, "Efa", vpc=vpc, allow_all_outbound=True, description="EFA between GPU nodes")
        group.add_ingress_rule(group, ec2.Port.all_traffic(), "EFA")
        # 0.0.0.0/0 does not cover EFA, and add_egress_rule omits rules that "all outbound" seems to cover, so the rules
        # are Cfn resources.
        ec2.CfnSecurityGroupEgress(
            self,
            "EfaEgressSelf",
            group_id=group.security_group_id,
            ip_protocol="-1",
            destination_security_group_id=group.security_group_id,
            description="EFA",
        )
        return group

    def _add_gpus(self, vpc, instance_type, minimum, maximum):
        efa, cluster_group = self._efa_group(vpc), self.cluster.cluster_security_group
        groups = [efa.security_group_id, cluster_group.security_group_id]
        interfaces = [
            ec2.CfnLaunchTemplate.NetworkInterfaceProperty(
                network_card_index=card,
                device_index=0 if card == 0 else 1,
                interface_type="efa" if card == 0 else "efa-only",
                groups=groups,
            )
            for card in range(EFA_CARDS[instance_type])
        ]
        template = ec2.CfnLaunchTemplate(
            self,
            "GpuTemplate",
            launch_template_data={
                "instanceType": instance_type,
                "networkInterfaces": interfaces,
                "metadataOptions": {"httpTokens": "required", "httpPutResponseHopLimit": 1},
                "blockDeviceMappings": [
                    {
                        "deviceName": "/dev/xvda",
                        "ebs": {"volumeSize": 200, "volumeType": "gp3", "encrypted": True, "deleteOnTermination": True},
                    }
                ],
            },
        )
        role = iam.Role(
            self,
            "GpuRole",
            assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
            managed_policies=[
                iam.ManagedPolicy.from_aws_managed_policy_name(policy)
                for policy in (
                    "AmazonEKSWorkerNodePolicy",
                    "AmazonEKS_CNI_Policy",
                    "AmazonEC2ContainerRegistryReadOnly",
                )
            ],
        )
        self.cluster.add_nodegroup_capacity(
            "Gpu",
            min_size=minimum,
            desired_size=minimum,
            max_size=maximum,
            node_role=role,
            # AL2's GPU images are out of support.
            ami_type=eks.NodegroupAmiType.AL2023_X86_64_NVIDIA,
            launch_template_spec=eks.LaunchTemplateSpec(id=template.ref, version=template.attr_latest_version_number),
            # One zone, private: EFA does not cross zones.
            subnets=ec2.SubnetSelection(subnets=[vpc.private_subnets[0]]),
            labels={"role": "worker"},
            taints=[eks.TaintSpec(key="nvidia.com/gpu", value="true", effect=eks.TaintEffect.NO_SCHEDULE)],
        )


def main():
    app = cdk.App()
    ClusterStack(
        app,
        "farandole",
        env=cdk.Environment(account=os.environ.get("CDK_DEFAULT_ACCOUNT"), region=os.environ.get("CDK_DEFAULT_REGION")),
    )
    app.synth()


if __name__ == "__main__":
    main()
