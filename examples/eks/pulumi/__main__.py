"""A cluster of EKS with GPU nodes, and a training job on it: `pulumi up`.

Comments name the errors of the tutorial programs that this one replaces.
"""

import json

import pulumi
import pulumi_aws as aws
import pulumi_eks as eks
import pulumi_kubernetes as k8s
from farandole.integrations.kubernetes import generate
from farandole.integrations.kubernetes.document import load
from farandole.integrations.kubernetes.instances import find

config = pulumi.Config()
instance_type = config.get("instance_type") or "g5.8xlarge"  # p3.2xlarge, as in tutorials, has no EFA
node_count = config.get_int("nodes") or 2
image = config.require("image")  # in ECR: ACCOUNT.dkr.ecr.REGION.amazonaws.com/farandole:TAG
bucket = config.require("bucket")  # for data and models
vpc_id = config.require("vpc_id")
subnet_ids = config.require_object("subnet_ids")  # two zones, for the control plane
worker_subnet_id = config.get("worker_subnet_id") or subnet_ids[0]  # one zone: EFA does not cross zones
instance = find(instance_type)
gpus, efa = instance.accelerators, instance.efa

# --- roles -----------------------------------------------------------------------------------------------------------

partition = aws.get_partition()


def service_role(name, service, policies):
    role = aws.iam.Role(
        name,
        assume_role_policy=json.dumps(
            {
                "Version": "2012-10-17",
                "Statement": [{"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}],
            }
        ),
    )
    for policy in policies:
        aws.iam.RolePolicyAttachment(
            f"{name}-{policy}", role=role.name, policy_arn=f"arn:{partition.partition}:iam::aws:policy/{policy}"
        )
    return role


# Nodes may pull images and join the cluster. The training's rights in S3 belong to its own role, below.
nodes_role = service_role(
    "nodes",
    "ec2.amazonaws.com",
    ["AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryReadOnly"],
)
trainer_role = aws.iam.Role(
    "trainer",
    assume_role_policy=json.dumps(
        {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"Service": "pods.eks.amazonaws.com"},
                    "Action": ["sts:AssumeRole", "sts:TagSession"],
                }
            ],
        }
    ),
)
aws.iam.RolePolicy(
    "trainer-bucket",
    role=trainer_role.id,
    policy=json.dumps(
        {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Action": ["s3:ListBucket"],
                    "Resource": f"arn:{partition.partition}:s3:::{bucket}",
                },
                {
                    "Effect": "Allow",
                    "Action": ["s3:GetObject", "s3:PutObject"],
                    "Resource": f"arn:{partition.partition}:s3:::{bucket}/*",
                },
            ],
        }
    ),
)

# --- the cluster -----------------------------------------------------------------------------------------------------

# Its outputs are awsProvider, core, eksCluster, kubeconfig, nodeSecurityGroup and so on: cluster.service_role_policy,
# cluster.provider and cluster.core_v1, which tutorials use, do not exist.
name = config.get("cluster") or "farandole"
cluster = eks.Cluster(
    "farandole",
    name=name,
    vpc_id=vpc_id,
    subnet_ids=subnet_ids,
    skip_default_node_group=True,
    authentication_mode=eks.AuthenticationMode.API,
    instance_roles=[nodes_role],
    create_oidc_provider=True,
)

# eks.NodeGroup makes launch configurations, which new instance types do not support.
eks.ManagedNodeGroup(
    "sys",
    cluster=cluster,
    node_role=nodes_role,
    instance_types=["m5.xlarge"],
    subnet_ids=subnet_ids,
    scaling_config={"min_size": 1, "desired_size": 1, "max_size": 3},
    labels={"role": "sys"},
)
eks.ManagedNodeGroup(
    "gpu",
    cluster=cluster,
    node_role=nodes_role,
    instance_types=[instance_type],
    subnet_ids=[worker_subnet_id],
    # Adds all EFA interfaces, the security group's rules from and to itself, and a placement group.
    enable_efa_support=efa > 0,
    placement_group_availability_zone=config.get("worker_zone") if efa else None,
    scaling_config={"min_size": 1, "desired_size": node_count, "max_size": max(2, node_count)},
    labels={"role": "worker"},
    taints=[{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}],
)

# --- workloads -------------------------------------------------------------------------------------------------------

provider = k8s.Provider("cluster", kubeconfig=cluster.kubeconfig_json)
on_cluster = pulumi.ResourceOptions(provider=provider)
after_cluster = pulumi.ResourceOptions(depends_on=[cluster])

aws.eks.Addon("pod-identity", cluster_name=name, addon_name="eks-pod-identity-agent", opts=after_cluster)
aws.eks.PodIdentityAssociation(
    "trainer",
    cluster_name=name,
    namespace="default",
    service_account="trainer",
    role_arn=trainer_role.arn,
    opts=after_cluster,
)
k8s.core.v1.ServiceAccount(
    "trainer",
    metadata={"name": "trainer", "namespace": "default"},
    automount_service_account_token=False,
    opts=on_cluster,
)

# The first pod examines what a job would find on its node; tutorials run nginx instead.
k8s.core.v1.Pod(
    "doctor",
    opts=on_cluster,
    metadata={"name": "doctor"},
    spec={
        "restart_policy": "Never",
        "automount_service_account_token": False,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [{"name": "doctor", "image": image, "command": ["farandole", "doctor"]}],
    },
)

# One world over all nodes. A Job with one pod, as in tutorials, would use one of the paid nodes only.
words = [
    "job",
    "--name",
    "training",
    "--namespace",
    "default",
    "--nnodes",
    str(node_count),
    "--nproc-per-node",
    "gpu",
    "--gpus",
    str(gpus),
    *(["--instance-type", instance_type, "--efa", "all"] if efa else []),
    "--max-restarts",
    "4",
    "--service-account",
    "trainer",
    "--image",
    image,
    "--",
    "python",
    "/app/train_torch.py",
    "--epochs",
    config.get("epochs") or "10",
]
_kinds = {
    "Job": k8s.batch.v1.Job,
    "Service": k8s.core.v1.Service,
    "PodDisruptionBudget": k8s.policy.v1.PodDisruptionBudget,
}
for document in load(generate(words)):
    document.pop("apiVersion")
    _kinds[document.pop("kind")](document["metadata"]["name"], opts=on_cluster, **document)

pulumi.export("kubeconfig", pulumi.Output.secret(cluster.kubeconfig))
pulumi.export("cluster", name)
