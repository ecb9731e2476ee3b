"""Checks every shipped manifest against every schema, and each row of the table that is about a manifest."""

import re
import sys

import pytest
from farandole.integrations.kubernetes import generate
from manifest_checks import (
    EKS,
    KUBERNETES,
    ROOT,
    SCHEMAS,
    env_of,
    faults,
    generated,
    kustomize,
    kustomized,
    need_schemas,
    only,
    pod_of,
    pods_of,
    read,
)

sys.path[:0] = [str(KUBERNETES), str(EKS)]
import regenerate  # noqa: E402
import render  # noqa: E402

VALUES = {name: example for name, (_, example) in render.FORMS.items()}
VALUES.update(
    AZ_1="us-west-2a", AZ_2="us-west-2b", SUBNET_ID_1="subnet-0123456789abcdef0", SUBNET_ID_2="subnet-0fedcba9876543210"
)
# Files that are not complete manifests: parts of kustomize, and values for Helm charts.
PARTS = {
    "kustomization.yaml",
    "efa.yaml",
    "rules.test.yaml",
    "nvidia-device-plugin-values.yaml",
    "aws-efa-k8s-device-plugin-values.yaml",
    "adapter-values.yaml",
    "clusterpolicy.yaml",  # test_cluster_policy.py
}
SHIPPED = sorted(
    path
    for path in [*KUBERNETES.rglob("*.yaml"), *(EKS / "eksctl").glob("*.yaml"), EKS / "aws-auth-cm.yaml"]
    if path.name not in PARTS and "helm" not in path.parts  # test_chart.py
)
OVERLAYS = ["generic", "eks", "eks-efa", "eks-spot", "aws-cn"]


def name_of(path):
    return str(path.relative_to(ROOT / "examples"))


def filled(path):
    """The documents with their placeholders filled."""
    from farandole.integrations.kubernetes.document import load

    text = path.read_text()
    china = "region: cn-" in text
    values = {**VALUES, "REGION": "cn-north-1", "AZ_1": "cn-north-1a", "AZ_2": "cn-north-1b"} if china else VALUES
    return list(load(render.render(text, values, "aws-cn" if china else "aws")))


@pytest.mark.parametrize("path", SHIPPED, ids=name_of)
def test_every_file_is_valid_once_it_is_filled(path):
    assert faults(filled(path), SCHEMAS.is_dir()) == []


def test_the_operators_schemas_find_a_misspelt_field():
    need_schemas()
    documents = read(KUBERNETES / "kubeflow" / "mpijob-openmpi.yaml")
    only(documents, "MPIJob")["spec"]["slotPerWorker"] = 2
    assert any("slotPerWorker" in fault for fault in faults(documents, True))


def test_no_file_was_forgotten():
    kinds = {document["kind"] for path in SHIPPED for document in filled(path)}
    assert (
        len(SHIPPED) > 45
        and {
            "Job",
            "JobSet",
            "StatefulSet",
            "Deployment",
            "LeaderWorkerSet",
            "MPIJob",
            "PyTorchJob",
            "TFJob",
            "TrainJob",
            "RayJob",
            "RayCluster",
            "Experiment",
            "NodePool",
            "EC2NodeClass",
            "PodMonitor",
            "PrometheusRule",
            "HorizontalPodAutoscaler",
            "ClusterConfig",
        }
        <= kinds
    )


@pytest.mark.parametrize(
    "path, words", list(regenerate.generated()), ids=lambda value: name_of(value) if hasattr(value, "name") else ""
)
def test_generated_files_equal_the_output_of_their_command(path, words):
    assert generate(words) == path.read_text(), "run: python examples/kubernetes/regenerate.py"


def test_regenerate_has_nothing_to_change(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["regenerate.py", "--check"])
    assert (regenerate.main(), capsys.readouterr().out) == (0, "")


def test_each_kind_of_the_generator_has_a_file():
    from farandole.integrations.kubernetes.options import KINDS

    assert {words[0] for _, words in regenerate.generated()} == set(KINDS)


@pytest.mark.parametrize("path", [path for path in SHIPPED], ids=name_of)
def test_no_file_names_an_image_that_moves_or_a_registry(path):
    for document in filled(path):
        for pod in pods_of(document):
            for box in pod["spec"]["containers"]:
                assert re.fullmatch(r"farandole(-cuda|-ray|-torch|-s3)?:\d+\.\d+\.\d+", box["image"]), box["image"]


def test_h15_no_shipped_manifest_requests_a_load_balancer_or_admits_the_internet():
    for path in SHIPPED:
        for document in filled(path):
            assert document["kind"] not in ("Ingress", "Gateway", "HTTPRoute"), path
            if document["kind"] == "Service":
                assert document["spec"].get("type", "ClusterIP") == "ClusterIP", path
                assert not document["spec"].get("externalIPs"), path


def test_every_file_begins_with_a_comment():
    for path in [*KUBERNETES.rglob("*.yaml"), *EKS.rglob("*.yaml")]:
        if path.name == "Chart.yaml":
            continue  # written by Helm's own tools too
        assert path.read_text().startswith("# "), path


# --- P, H: a Job in the place of single pods -------------------------------------------------------------------------


def _job(name):
    return only(read(KUBERNETES / "k8s" / name), "Job")


def test_p5_arguments_reach_the_program_and_all_pods_are_one_world():
    job = _job("job-model-dir.yaml")
    words = pod_of(job)["spec"]["containers"][0]["args"]
    assert words[-5:] == ["/app/train_torch.py", "--epochs", "10", "--model-dir", "/models"]
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (
        "Indexed",
        2,
        2,
        4,
    )


def _leader_and_workers():
    documents = read(KUBERNETES / "k8s" / "deployment-elastic.yaml")
    return [document for document in documents if document["kind"] == "Deployment"]


def test_p6_continuous_training_is_elastic_and_one_pod_of_it_leads():
    leader, workers = _leader_and_workers()
    for deployment in (leader, workers):
        pod = pod_of(deployment)
        assert env_of(pod)["FARANDOLE_NNODES"] == "2:4" and "JOB_COMPLETION_INDEX" not in env_of(pod)
        assert pod["spec"]["restartPolicy"] == "Always"
        assert deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert (leader["spec"]["replicas"], workers["spec"]["replicas"]) == (1, 3)
    service = only(read(KUBERNETES / "k8s" / "deployment-elastic.yaml"), "Service")["spec"]["selector"]
    for one in (leader, workers):  # each can be found when it has taken over
        assert service.items() <= pod_of(one)["metadata"]["labels"].items()
    args = [pod_of(one)["spec"]["containers"][0]["args"] for one in (leader, workers)]
    assert "--node-rank" in args[0] and "--node-rank" not in args[1]
    assert {one[one.index("--rendezvous") + 1] for one in args} == {"dns://continuous:29500"}


def test_p7_the_service_account_and_the_models_place_are_parameters():
    pod = pod_of(_job("job-model-dir.yaml"))
    assert pod["spec"]["serviceAccountName"] == "s3-trainer"
    assert {"name": "models", "mountPath": "/models"} in pod["spec"]["containers"][0]["volumeMounts"]


def test_h7_two_gpus_in_two_pods_are_one_world_and_mpirun_has_its_twin():
    job = _job("job-gpu.yaml")
    box = pod_of(job)["spec"]["containers"][0]
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (2, 2) and env_of(pod_of(job))[
        "FARANDOLE_NNODES"
    ] == "2"
    assert box["resources"]["limits"]["nvidia.com/gpu"] == 1 and "mpirun" not in box["command"] + box["args"]
    mpi = only(read(KUBERNETES / "kubeflow" / "mpijob-openmpi.yaml"), "MPIJob")
    assert pod_of(mpi)["spec"]["containers"][0]["args"][2:4] == ["-np", "4"]


def test_h8_one_number_of_an_overlay_changes_the_size_everywhere():
    documents = kustomized(KUBERNETES / "k8s" / "overlays" / "generic")
    job = only(documents, "Job")
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (4, 4)
    assert env_of(pod_of(job))["FARANDOLE_NNODES"] == "4"
    assert only(documents, "PodDisruptionBudget")["spec"]["minAvailable"] == 4


def test_h9_k5_volumes_are_mounted_by_name_and_survive_their_claims():
    volume, claim = filled(KUBERNETES / "storage" / "fsx-static.yaml")
    assert volume["spec"]["storageClassName"] == claim["spec"]["storageClassName"] == ""
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain" and claim["spec"]["volumeName"] == "fsx"
    assert volume["spec"]["csi"]["volumeAttributes"]["dnsname"] == "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com"
    gpu = pod_of(_job("job-gpu-efa.yaml"))["spec"]
    assert {"name": "fsx", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}} in gpu["volumes"]
    (storage, dynamic) = filled(KUBERNETES / "storage" / "fsx-dynamic.yaml")
    assert dynamic["spec"]["storageClassName"] == storage["metadata"]["name"]


def test_h13_k11_the_hpa_scales_a_scalable_object_by_an_existing_metric():
    (hpa,) = read(KUBERNETES / "k8s" / "hpa.yaml")
    target = hpa["spec"]["scaleTargetRef"]
    _, deployment = _leader_and_workers()
    assert (hpa["apiVersion"], target["kind"], target["name"]) == (
        "autoscaling/v2",
        "Deployment",
        deployment["metadata"]["name"],
    )
    nodes = f"{hpa['spec']['minReplicas'] + 1}:{hpa['spec']['maxReplicas'] + 1}"  # with the pod that leads
    assert env_of(pod_of(deployment))["FARANDOLE_NNODES"] == nodes
    (metric,) = hpa["spec"]["metrics"]
    assert metric["type"] == "Pods"
    (rules,) = read(KUBERNETES / "monitoring" / "rules.yaml")
    recorded = {rule.get("record") for group in rules["spec"]["groups"] for rule in group["rules"]}
    assert metric["pods"]["metric"]["name"] in recorded
    (adapter,) = read(KUBERNETES / "monitoring" / "adapter-values.yaml")
    (rule,) = adapter["rules"]["custom"]
    assert rule["name"]["as"] == rule["seriesQuery"].split("{")[0] == metric["pods"]["metric"]["name"]
    assert {name: one["resource"] for name, one in rule["resources"]["overrides"].items()} == {
        "namespace": "namespace",
        "pod": "pod",
    }


def test_h16_k12_k19_spot_is_elastic_forgiving_and_marked():
    documents = kustomized(KUBERNETES / "k8s" / "overlays" / "eks-spot")
    job = only(documents, "Job")["spec"]
    assert (job["backoffLimitPerIndex"], job["maxFailedIndexes"]) == (3, 1) and "backoffLimit" not in job
    assert pod_of(job)["spec"]["nodeSelector"] == {"karpenter.sh/capacity-type": "spot"}
    assert env_of(pod_of(job))["FARANDOLE_NNODES"] == "1:2"
    assert not [one for one in documents if one["kind"] == "PodDisruptionBudget"]
    assert "karpenter.sh/do-not-disrupt" not in pod_of(job)["metadata"]["annotations"]
    elastic = _job("job-elastic.yaml")
    assert pod_of(elastic)["spec"]["terminationGracePeriodSeconds"] == 110


def test_k8_serving_is_a_service_of_its_own_and_training_has_a_headless_one():
    service = only(read(KUBERNETES / "k8s" / "serving.yaml"), "Service")
    assert "clusterIP" not in service["spec"]
    assert only(read(KUBERNETES / "k8s" / "base" / "job.yaml"), "Service")["spec"]["clusterIP"] == "None"


def test_k7_e13_an_efa_overlay_requests_the_devices_and_mounts_no_host_path():
    pod = pod_of(only(kustomized(KUBERNETES / "k8s" / "overlays" / "eks-efa"), "Job"))
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert limits["vpc.amazonaws.com/efa"] == 4 and limits["nvidia.com/gpu"] == 8
    assert (env_of(pod)["FARANDOLE_EXPECT_EFA"], env_of(pod)["FARANDOLE_TRANSPORT"]) == ("4", "shm,efa")
    for path in SHIPPED:
        for document in filled(path):
            for any_pod in pods_of(document):
                assert not [volume for volume in any_pod["spec"].get("volumes", []) if "hostPath" in volume]


def test_k13_the_optional_role_reads_pods_and_endpoints_and_nothing_else():
    role = only(read(KUBERNETES / "k8s" / "components" / "rbac-watch" / "role.yaml"), "Role")
    assert {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]} == {
        (resource, verb) for resource in ("pods", "endpointslices") for verb in ("get", "list", "watch")
    }
    assert pod_of(_job("base/job.yaml"))["spec"]["automountServiceAccountToken"] is False


def test_k14_the_base_has_a_policy_for_its_own_pods():
    documents = read(KUBERNETES / "k8s" / "base" / "job.yaml")
    policy = only(documents, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= pod_of(only(documents, "Job"))["metadata"]["labels"].items()
    assert policy["policyTypes"] == ["Ingress", "Egress"]


@pytest.mark.parametrize("overlay", ["../base", "generic"])
def test_k16_the_core_manifests_belong_to_no_cloud(overlay):
    text = kustomize(KUBERNETES / "k8s" / "overlays" / overlay)
    assert not re.search("amazonaws|eks\\.|azure|gke|PLACEHOLDER", text)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_renders_and_is_valid(overlay):
    from farandole.integrations.kubernetes.document import load

    china = overlay == "aws-cn"
    values = {**VALUES, "REGION": "cn-north-1"} if china else VALUES
    text = render.render(kustomize(KUBERNETES / "k8s" / "overlays" / overlay), values, "aws-cn" if china else "aws")
    assert faults(list(load(text)), False) == []


# --- C ----------------------------------------------------------------------------------------------------------------


def test_c2_c3_a_kubeflow_profile_gets_the_same_objects_and_one_rule_for_images():
    documents = kustomized(KUBERNETES / "kubeflow" / "profile")
    assert {document["metadata"]["namespace"] for document in documents} == {"kubeflow-user-example-com"}
    assert {document["kind"] for document in documents} == {
        document["kind"] for document in read(KUBERNETES / "k8s/base/job.yaml")
    }
    text = kustomize(KUBERNETES / "k8s" / "overlays" / "eks")
    assert set(re.findall(r"image: (\S+)", text)) == {
        "PLACEHOLDER_ACCOUNT.dkr.ecr.PLACEHOLDER_REGION.amazonaws.com/farandole:0.1.0"
    }


def test_c4_nothing_of_the_other_partition_is_left():
    text = (
        kustomize(KUBERNETES / "k8s" / "overlays" / "aws-cn")
        + (EKS / "aws-auth-cm.yaml").read_text()
        + (KUBERNETES / "storage" / "fsx-static.yaml").read_text()
    )
    made = render.render(text, {**VALUES, "REGION": "cn-north-1"}, "aws-cn")
    assert "image: 111122223333.dkr.ecr.cn-north-1.amazonaws.com.cn/farandole:0.1.0" in made
    assert "arn:aws:" not in made and not re.search(r"\.amazonaws\.com(?!\.cn)", made)
    assert "arn:aws-cn:iam::111122223333:role/" in made


def test_c5_the_files_of_katib_are_four_and_each_prints_its_metric_once():
    found = re.compile(r"([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?)")  # Katib's own filter
    assert found.search("[0] loss=0.123456").groups()[:2] == ("loss", "0.123456")
    trials = {path.stem for path in (KUBERNETES / "kubeflow" / "katib").glob("*.yaml")}
    assert trials == {"job", "pytorchjob", "mpijob", "trainjob"}


def test_the_runtime_for_a_whole_cluster_retries_as_the_generated_one_does():
    (shipped,) = read(KUBERNETES / "kubeflow" / "clustertrainingruntime.yaml")
    made = only(generated("trainjob --nnodes 2 --cluster-runtime --image i -- t"), "ClusterTrainingRuntime")
    policies = [_policies_of(one["spec"]["template"]["spec"]) for one in (shipped, made)]
    assert policies[0] == policies[1]


def _policies_of(job_set):
    """How a JobSet and its Job treat failures; only a Job with a deadline ends with DeadlineExceeded."""
    rules = job_set["failurePolicy"]["rules"]
    rules = [{**one, "onJobFailureReasons": one["onJobFailureReasons"][:1]} for one in rules]
    return rules, job_set["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]


POOLS = {
    "nodepool-gpu-spot.yaml": "ec2nodeclass-efa.yaml",
    "nodepool-gpu-od.yaml": "ec2nodeclass-efa-group.yaml",
    "nodepool-gpu-reserved.yaml": "ec2nodeclass-reserved.yaml",
}


def test_c7_e6_reserved_nodes_come_from_the_reservation_only():
    (pool,) = filled(KUBERNETES / "karpenter" / "nodepool-gpu-reserved.yaml")
    needs = {need["key"]: need["values"] for need in pool["spec"]["template"]["spec"]["requirements"]}
    assert needs["karpenter.sh/capacity-type"] == ["reserved"]
    (node_class,) = filled(KUBERNETES / "karpenter" / "ec2nodeclass-reserved.yaml")
    (term,) = node_class["spec"]["capacityReservationSelectorTerms"]
    assert re.fullmatch(r"cr-[0-9a-f]{17}", term["id"])


def test_c7_nodes_on_demand_are_in_one_placement_group_and_spot_nodes_in_none():
    for name, group in (
        ("ec2nodeclass-efa-group.yaml", {"name": VALUES["PLACEMENT_GROUP"]}),
        ("ec2nodeclass-efa.yaml", None),
    ):
        (node_class,) = filled(KUBERNETES / "karpenter" / name)
        assert node_class["spec"].get("placementGroupSelector") == group


def test_k6_efs_gives_its_folders_to_the_pods_user():
    """An access point acts as this user, whatever the pod's is."""
    storage_class = only(filled(KUBERNETES / "storage" / "efs.yaml"), "StorageClass")
    user = str(pod_of(_job("base/job.yaml"))["spec"]["securityContext"]["runAsUser"])
    parameters = storage_class["parameters"]
    assert (parameters["uid"], parameters["gid"], parameters["provisioningMode"]) == (user, user, "efs-ap")
    assert int(parameters["directoryPerms"], 8) & 0o700 == 0o700


def test_h9_a_folder_of_lustre_is_given_to_the_pods_user():
    """FSx's root belongs to root, and its driver does not apply fsGroup."""
    (job,) = read(KUBERNETES / "storage" / "fsx-prepare.yaml")
    spec = pod_of(job)["spec"]
    assert spec["volumes"][0]["persistentVolumeClaim"]["claimName"] == "fsx"
    job = pod_of(_job("job-gpu-efa.yaml"))["spec"]
    user = job["securityContext"]["runAsUser"]
    assert f"chown {user}:{user} /fsx/jobs" in spec["containers"][0]["command"][-1]
    assert job["containers"][0]["args"][-2:] == ["--model-dir", "/fsx/jobs"]


def test_c7_nodes_come_for_jobs_and_go_after_them():
    for name, node_class in POOLS.items():
        (pool,) = filled(KUBERNETES / "karpenter" / name)
        spec = pool["spec"]
        assert spec["disruption"]["consolidationPolicy"] == "WhenEmpty"
        # With a terminationGracePeriod do-not-disrupt keeps no node from being replaced by one with a newer image.
        assert {"nodes": "0", "reasons": ["Drifted"]} in spec["disruption"]["budgets"]
        # More than the pods' 110 s, or Karpenter cuts them off. A spot node lives for two minutes after its notice.
        wanted = "2m" if name == "nodepool-gpu-spot.yaml" else "10m"
        assert spec["template"]["spec"]["terminationGracePeriod"] == wanted
        (node_class,) = filled(KUBERNETES / "karpenter" / node_class)
        assert spec["template"]["spec"]["nodeClassRef"]["name"] == node_class["metadata"]["name"]
        assert node_class["spec"]["associatePublicIPAddress"] is False


def test_c7_the_pools_types_that_need_efa_have_it():
    from farandole.integrations.kubernetes.instances import TABLE

    for name in POOLS:
        (pool,) = filled(KUBERNETES / "karpenter" / name)
        types = next(
            need
            for need in pool["spec"]["template"]["spec"]["requirements"]
            if need["key"] == "node.kubernetes.io/instance-type"
        )["values"]
        assert all(TABLE[kind].efa > 0 for kind in types)


# --- what runs in them ------------------------------------------------------------------------------------------------


def test_h3_e11_e12_c9_the_device_plugins_are_current_and_tolerate_the_taints():
    (nvidia,) = read(KUBERNETES / "devices" / "nvidia-device-plugin-values.yaml")
    (efa,) = read(KUBERNETES / "devices" / "aws-efa-k8s-device-plugin-values.yaml")
    assert efa["image"]["tag"] == "v0.5.20"
    for values in (nvidia, efa):
        assert "nvidia.com/gpu" in [entry["key"] for entry in values["tolerations"]]
    assert "aws.amazon.com/efa" in [entry["key"] for entry in efa["tolerations"]] and nvidia["failOnInitError"] is True
    (check,) = read(KUBERNETES / "devices" / "gpu-check.yaml")
    assert check["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}


def test_p4_the_first_pod_of_a_cluster_runs_the_doctor():
    (pod,) = read(KUBERNETES / "k8s" / "doctor.yaml")
    assert (
        pod["spec"]["containers"][0]["command"] == ["farandole", "doctor"] and pod["spec"]["restartPolicy"] == "Never"
    )


def test_the_programs_that_the_manifests_start_are_in_the_image():
    docker = (KUBERNETES / "docker" / "Dockerfile").read_text()
    started = {
        word
        for path in SHIPPED
        for pod in pods_of(filled(path))
        for box in pod["spec"]["containers"]
        for word in box.get("args", [])
        if word.startswith("/app/")
    }
    entry = {only(read(KUBERNETES / "ray" / "rayjob.yaml"), "RayJob")["spec"]["entrypoint"].split()[-1]}
    for word in started | entry:
        assert word.removeprefix("/app/") in docker
    assert started == {"/app/train_numpy.py", "/app/train_torch.py"}
