"""Tests of the Pulumi program with mocks: no account, no network, no pulumi command. They need 414 MiB: see run.sh."""

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

SETTINGS = {
    "image": "111122223333.dkr.ecr.us-west-2.amazonaws.com/farandole:0.1.0",
    "bucket": "my-data",
    "vpc_id": "vpc-0123456789abcdef0",
    "worker_zone": "us-west-2a",
    "subnet_ids": '["subnet-0123456789abcdef0", "subnet-0fedcba9876543210"]',
    "nodes": "4",
    "epochs": "3",
}


@pytest.fixture(scope="module")
def made():
    """{(type, name): inputs} of every resource that the program registers, and its outputs."""
    import pulumi
    from pulumi.runtime import mocks
    from pulumi.runtime.proto import resource_pb2

    FEATURE_REFERENCES = resource_pb2.RESOURCE_MONITOR_FEATURE_RESOURCE_REFERENCES
    resources, outputs = {}, {}

    class Mocks(pulumi.runtime.Mocks):
        def new_resource(self, args):
            resources[(args.typ, args.name)] = args.inputs
            state = dict(args.inputs)
            if args.typ == "eks:index:Cluster":
                state.update(kubeconfig={"clusters": []}, kubeconfigJson="{}")
            if args.typ == "aws:iam/role:Role":
                state.update(arn=f"arn:aws:iam::111122223333:role/{args.name}")
            return f"{args.name}-id", state

        def call(self, args):
            return {"partition": "aws", "id": "aws", "dnsSuffix": "amazonaws.com", "reverseDnsPrefix": "com.amazonaws"}

    class Monitor(mocks.MockMonitor):
        # References to resources are deserialised on another thread, where a different event loop runs. Without the
        # feature resources are passed as ids and names, which need no loop.
        def GetDeploymentInfo(self, request):
            answer = super().GetDeploymentInfo(request)
            kept = [feature for feature in answer.supportedFeatures if feature != FEATURE_REFERENCES]
            del answer.supportedFeatures[:]
            answer.supportedFeatures.extend(kept)
            return answer

    mine = Mocks()
    pulumi.runtime.set_mocks(mine, project="farandole-eks", stack="test", preview=False, monitor=Monitor(mine))
    pulumi.runtime.set_all_config({f"farandole-eks:{name}": value for name, value in SETTINGS.items()})
    original = pulumi.export
    pulumi.export = lambda name, value: outputs.__setitem__(name, value)
    try:
        pulumi.runtime.test(_run)()
    finally:
        pulumi.export = original
    return resources, outputs


def _run():
    runpy.run_path(str(ROOT / "examples" / "eks" / "pulumi" / "__main__.py"))


def _of(made, kind):
    return {name: inputs for (found, name), inputs in made[0].items() if found == kind}


def test_p1_the_cluster_is_made_and_its_kubeconfig_exported(made):
    (cluster,) = _of(made, "eks:index:Cluster").values()
    assert cluster["skipDefaultNodeGroup"] is True and len(cluster["subnetIds"]) == 2
    assert set(made[1]) == {"kubeconfig", "cluster"}


def test_p2_the_trainer_may_read_and_write_one_bucket_and_nothing_else(made):
    (policy,) = _of(made, "aws:iam/rolePolicy:RolePolicy").values()
    statements = json.loads(policy["policy"])["Statement"]
    assert [(statement["Action"], statement["Resource"]) for statement in statements] == [
        (["s3:ListBucket"], "arn:aws:s3:::my-data"),
        (["s3:GetObject", "s3:PutObject"], "arn:aws:s3:::my-data/*"),
    ]
    attached = {
        inputs["policyArn"].rpartition("/")[2]
        for inputs in _of(made, "aws:iam/rolePolicyAttachment:RolePolicyAttachment").values()
    }
    assert attached == {"AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryReadOnly"}


def test_p3_the_gpu_nodes_have_efa_a_taint_and_one_subnet(made):
    groups = _of(made, "eks:index:ManagedNodeGroup")
    assert set(groups) == {"sys", "gpu"} and not _of(made, "eks:index:NodeGroup")
    gpu = groups["gpu"]
    assert gpu["instanceTypes"] == ["g5.8xlarge"] and gpu["enableEfaSupport"] is True and len(gpu["subnetIds"]) == 1
    assert gpu["taints"] == [{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}]
    assert gpu["scalingConfig"] == {"minSize": 1, "desiredSize": 4, "maxSize": 4}


def test_p4_the_first_pod_runs_the_doctor(made):
    (pod,) = _of(made, "kubernetes:core/v1:Pod").values()
    assert pod["spec"]["containers"][0]["command"] == ["farandole", "doctor"]


def test_p5_the_job_equals_the_generators_output(made):
    from farandole.integrations.kubernetes import generate
    from farandole.integrations.kubernetes.document import load

    words = [
        "job",
        "--name",
        "training",
        "--namespace",
        "default",
        "--nnodes",
        "4",
        "--nproc-per-node",
        "gpu",
        "--gpus",
        "1",
        "--instance-type",
        "g5.8xlarge",
        "--efa",
        "all",
        "--max-restarts",
        "4",
        "--service-account",
        "trainer",
        "--image",
        SETTINGS["image"],
        "--",
        "python",
        "/app/train_torch.py",
        "--epochs",
        "3",
    ]
    meant = {document["kind"]: document for document in load(generate(words))}
    for kind, token in (("Job", "kubernetes:batch/v1:Job"), ("Service", "kubernetes:core/v1:Service")):
        ((name, inputs),) = _of(made, token).items()
        assert name == "training" and inputs["spec"] == _numbers(meant[kind]["spec"])


def _numbers(place):
    """Copies a value. Mocks turn every number into a float, which compares equal."""
    return json.loads(json.dumps(place))


def test_p7_the_pods_have_the_trainers_role_by_their_service_account(made):
    (link,) = _of(made, "aws:eks/podIdentityAssociation:PodIdentityAssociation").values()
    (account,) = _of(made, "kubernetes:core/v1:ServiceAccount").values()
    assert link["serviceAccount"] == account["metadata"]["name"] == "trainer"
    assert link["roleArn"].endswith("role/trainer") and account["automountServiceAccountToken"] is False
    (job,) = _of(made, "kubernetes:batch/v1:Job").values()
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "trainer"
