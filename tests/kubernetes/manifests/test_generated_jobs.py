"""Tests of the parts that all manifests of `farandole kubernetes gen` have: pods, hardware, safety and storage."""

import re

import pytest
from farandole.integrations.kubernetes import checks, instances
from kinds_of_jobs import AFTER, KINDS
from manifest_checks import ROOT, env_of, generated, only, pod_of, pods_of


def test_ranks_have_nearly_all_of_the_pods_grace_to_save_in():
    for kind in KINDS.values():
        for grace, left in ((110, "105"), (30, "25"), (3, "1")):
            for pod in pods_of(generated(f"{kind} --grace {grace} {AFTER}")):
                assert pod["spec"]["terminationGracePeriodSeconds"] == grace
                for box in pod["spec"]["containers"]:
                    assert {one["name"]: one.get("value") for one in box["env"]}["FARANDOLE_TERM_GRACE_S"] == left


def test_a_pod_of_any_kind_has_the_defaults_that_keep_a_job_alive():
    for kind in KINDS.values():
        for pod in pods_of(generated(f"{kind} --spot {AFTER}")):
            spec, about = pod["spec"], pod["metadata"]
            assert spec["terminationGracePeriodSeconds"] == 110
            assert spec["enableServiceLinks"] is False and spec["automountServiceAccountToken"] is False
            assert (
                about["annotations"]["sidecar.istio.io/inject"] == "false" == about["labels"]["sidecar.istio.io/inject"]
            )
            assert about["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
            assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 1000
            box = spec["containers"][0]
            assert box["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            if box["name"] in ("launcher", "ray-job-submitter"):
                continue  # a pod without ranks
            assert spec["volumes"][0] == {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
            assert {"name": "dshm", "mountPath": "/dev/shm"} in box["volumeMounts"]
            if box["name"] != "ray-head":
                assert spec["nodeSelector"]["karpenter.sh/capacity-type"] == "spot"


def test_karpenter_may_evict_ranks_from_spot_nodes_and_from_no_others():
    for kind in KINDS.values():
        for spot in ("", "--spot"):
            documents = generated(f"{kind} {spot} {AFTER}")
            for pod in pods_of(documents):
                is_on_spot = "karpenter.sh/capacity-type" in pod["spec"].get("nodeSelector", {})
                stays = pod["metadata"]["annotations"].get("karpenter.sh/do-not-disrupt")
                assert stays == (None if is_on_spot else "true"), kind
            budgets = [one for one in documents if one["kind"] == "PodDisruptionBudget"]
            assert not (spot and budgets), kind
    own = "--spot --annotation karpenter.sh/do-not-disrupt=30m"
    assert pod_of(generated(f"job {own} {AFTER}"))["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "30m"


def test_a_job_of_known_length_is_kept_by_versions_of_karpenter_that_know_no_duration_too():
    documents = generated(f"job --max-runtime 1h30m {AFTER}")
    assert only(documents, "Job")["spec"]["activeDeadlineSeconds"] == 5400
    assert pod_of(documents)["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"


def test_a_failure_policy_counts_failures_of_the_job_only():
    for kind in ("job --nnodes 4", "jobset --nnodes 4"):
        spec = next(job for job in _job_specs(generated(f"{kind} {AFTER}")))
        assert spec["template"]["spec"]["restartPolicy"] == "Never" and spec["podReplacementPolicy"] == "Failed"
        disrupted, permanent, collateral = spec["podFailurePolicy"]["rules"]
        assert disrupted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        assert permanent == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 64, 70, 78]}}
        assert collateral == {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [202, 203]}}


def test_a_job_set_is_not_restarted_for_what_a_restart_cannot_cure():
    """Nor after --max-runtime: a restarted JobSet has the time again."""
    for kind in ("jobset --nnodes 2 --max-runtime 1h", "trainjob --nnodes 2"):
        made = generated(f"{kind} {AFTER}")
        spec = only(made, "JobSet")["spec"] if kind.startswith("jobset") else _of_runtime(made)
        (rule,) = spec["failurePolicy"]["rules"]
        assert rule["action"] == "FailJobSet" and spec["failurePolicy"]["maxRestarts"] == 3
        assert rule["onJobFailureReasons"] == ["PodFailurePolicy", "DeadlineExceeded"]


def _of_runtime(documents):
    return only(documents, "TrainingRuntime")["spec"]["template"]["spec"]


def _job_specs(documents):
    for document in documents:
        yield from checks._job_specs(document)


def test_an_elastic_job_forgives_each_index_and_keeps_its_minimum():
    documents = generated(f"job --nnodes 2:4 {AFTER}")
    spec = only(documents, "Job")["spec"]
    assert (spec["completions"], spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (4, 3, 2)
    assert "backoffLimit" not in spec
    assert only(documents, "PodDisruptionBudget")["spec"]["minAvailable"] == 2
    assert env_of(pod_of(spec))["FARANDOLE_NNODES"] == "2:4"


@pytest.mark.parametrize(
    "kind, first_pod",
    [
        ("job --nnodes 2", "train-0.train"),  # <job>-<index>.<subdomain>
        ("jobset --nnodes 2", "train-node-0-0.train"),  # <jobset>-<replicated job>-<job>-<pod>.<subdomain>
        ("statefulset --nnodes 2", "train-0.train"),
        ("lws --nnodes 2", "$(LWS_LEADER_ADDRESS)"),
        ("deployment --nnodes 1:2", "dns://train"),  # the headless Service of all pods
    ],
)
def test_the_rendezvous_is_the_name_that_the_controller_gives_the_first_pod(kind, first_pod):
    words = pod_of(generated(f"{kind} {AFTER}"))["spec"]["containers"][0]["args"]
    assert words[words.index("--rendezvous") + 1] == f"{first_pod}:29500"
    assert words[words.index("--") :] == ["--", "python", "train.py"]


def test_the_headless_service_chooses_the_pods_and_names_them_before_they_are_ready():
    documents = generated(f"job --nnodes 2 {AFTER}")
    service = only(documents, "Service")
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= pod_of(only(documents, "Job"))["metadata"]["labels"].items()
    assert pod_of(only(documents, "Job"))["spec"]["subdomain"] == service["metadata"]["name"]


def test_k14_a_network_policy_opens_the_fixed_ports_dns_and_nothing_else():
    spec = only(generated(f"job --nnodes 2 --network-policy --port-base 30000 {AFTER}"), "NetworkPolicy")["spec"]
    own = [{"podSelector": {"matchLabels": {"app.kubernetes.io/instance": "train"}}}]
    ports = [{"protocol": "TCP", "port": 30000, "endPort": 30063}]
    assert spec["ingress"] == [{"from": own, "ports": ports}]
    dns = {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
    assert spec["egress"] == [{"to": own, "ports": ports}, dns]
    assert env_of(pod_of(generated(f"job --port-base 30000 {AFTER}")))["FARANDOLE_PORT_BASE"] == "30000"


def test_k13_a_job_needs_no_token_and_no_right():
    documents = generated(f"job --nnodes 2 {AFTER}")
    assert only(documents, "ServiceAccount")["automountServiceAccountToken"] is False
    assert not [document for document in documents if document["kind"] in ("Role", "RoleBinding")]


def test_c10_an_existing_service_account_is_named_and_not_made():
    documents = generated(f"job --service-account s3-reader {AFTER}")
    assert pod_of(documents)["spec"]["serviceAccountName"] == "s3-reader"
    assert not [document for document in documents if document["kind"] == "ServiceAccount"]


def test_c10_the_key_is_the_jobs_uid_or_a_secret_and_never_a_word_in_the_file():
    uid = env_of(pod_of(generated(f"job {AFTER}")))["FARANDOLE_JOB_KEY"]
    assert uid == {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}}
    for line in (f"job --job-key-secret mine {AFTER}", f"pytorchjob --job-key-secret mine {AFTER}"):
        assert env_of(pod_of(generated(line)))["FARANDOLE_JOB_KEY"] == {"secretKeyRef": {"name": "mine", "key": "key"}}
    assert env_of(pod_of(generated(f"tfjob {AFTER}")))["FARANDOLE_JOB_KEY"]["secretKeyRef"]["name"] == "train-key"


def test_h14_taints_of_gpu_and_efa_nodes_are_tolerated():
    spec = pod_of(generated(f"job --instance-type p5.48xlarge --efa all --nproc-per-node gpu {AFTER}"))["spec"]
    assert {entry["key"] for entry in spec["tolerations"]} == {"nvidia.com/gpu", "aws.amazon.com/efa"}
    assert spec["nodeSelector"]["node.kubernetes.io/instance-type"] == "p5.48xlarge"


def test_e7_e14_pods_without_ranks_run_on_system_nodes_and_ranks_on_workers():
    places = "--node-selector role=worker --system-selector role=sys"
    launcher, worker = pods_of(only(generated(f"mpijob --nnodes 2 {places} {AFTER}"), "MPIJob"))
    assert (launcher["spec"]["nodeSelector"], worker["spec"]["nodeSelector"]) == ({"role": "sys"}, {"role": "worker"})
    submitter, head, worker = pods_of(only(generated(f"rayjob --gpus 1 {places} {AFTER}"), "RayJob"))
    assert submitter["spec"]["nodeSelector"] == {"role": "sys"} and "tolerations" not in submitter["spec"]
    assert (head["spec"]["nodeSelector"], worker["spec"]["nodeSelector"]) == ({"role": "sys"}, {"role": "worker"})
    assert "tolerations" not in head["spec"] and worker["spec"]["tolerations"]


def test_h3_gpus_are_a_limit_of_the_container_and_equal_to_the_request():
    box = pod_of(generated(f"job --gpus 2 --nproc-per-node gpu {AFTER}"))["spec"]["containers"][0]
    assert box["resources"]["limits"]["nvidia.com/gpu"] == box["resources"]["requests"]["nvidia.com/gpu"] == 2
    assert box["resources"]["requests"]["cpu"] == 2 and "cpu" not in box["resources"]["limits"]


def test_k9_another_resource_name_of_gpus_is_a_parameter():
    spec = pod_of(generated(f"job --gpus 2 --gpu-resource amd.com/gpu {AFTER}"))["spec"]
    assert spec["containers"][0]["resources"]["limits"]["amd.com/gpu"] == 2
    assert spec["tolerations"] == [{"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


def test_h12_all_pods_are_in_one_zone_named_or_not():
    (term,) = pod_of(generated(f"job --nnodes 2 {AFTER}"))["spec"]["affinity"]["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["topologyKey"] == "topology.kubernetes.io/zone"
    spec = pod_of(generated(f"job --nnodes 2 --zone us-east-1a {AFTER}"))["spec"]
    assert "affinity" not in spec and spec["nodeSelector"] == {"topology.kubernetes.io/zone": "us-east-1a"}


def test_h17_the_library_expects_the_devices_that_the_generator_requests():
    rows = re.findall(r'\{"([\w.-]+)", (\d+)\}', (ROOT / "src/bootstrap/topology/efa_instances.cpp").read_text())
    assert len(rows) > 40
    for name, count in rows:
        types = [other for other in instances.TABLE if other == name or (name.endswith(".") and other.startswith(name))]
        assert types or name in ("hpc8a.", "inf1.24xlarge", "dl2q.24xlarge"), f"{name} is not in the generator's table"
        assert {instances.TABLE[other].efa for other in types} <= {int(count)}, name
    listed = [name for name, _ in rows]
    for name, row in instances.TABLE.items():
        efa = row.efa
        assert (name in listed or any(row.endswith(".") and name.startswith(row) for row in listed)) == (efa > 0), name


def test_h17_e13_the_table_of_instances_has_gpus_and_efa():
    efa = {name: row.efa for name, row in instances.TABLE.items()}
    assert (
        efa["p3.2xlarge"] == 0 and efa["p3dn.24xlarge"] == 1 and efa["g4dn.4xlarge"] == 0 and efa["g4dn.8xlarge"] == 1
    )
    assert [
        efa[name]
        for name in (
            "p4d.24xlarge",
            "p4de.24xlarge",
            "p5.48xlarge",
            "p5en.48xlarge",
            "p6-b200.48xlarge",
            "trn1.32xlarge",
            "trn2.48xlarge",
            "m5.xlarge",
        )
    ] == [4, 4, 32, 16, 8, 8, 16, 0]
    limits = pod_of(generated(f"job --instance-type p5.48xlarge --efa all {AFTER}"))["spec"]["containers"][0][
        "resources"
    ]["limits"]
    assert (limits["nvidia.com/gpu"], limits["vpc.amazonaws.com/efa"]) == (8, 32)
    limits = pod_of(generated(f"job --instance-type trn1.32xlarge --efa 2 {AFTER}"))["spec"]["containers"][0][
        "resources"
    ]["limits"]
    assert (limits["aws.amazon.com/neuron"], limits["vpc.amazonaws.com/efa"]) == (16, 2)


def test_k5_k6_claims_and_their_storage_class_are_parameters():
    documents = generated(f"job --nnodes 2 --pvc data:/data:ro --new-pvc ckpt:/ckpt:1Ti --storage-class cephfs {AFTER}")
    claim = only(documents, "PersistentVolumeClaim")
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "cephfs",
        "resources": {"requests": {"storage": "1Ti"}},
    }
    mounts = pod_of(only(documents, "Job"))["spec"]["containers"][0]["volumeMounts"]
    assert {"name": "data", "mountPath": "/data", "readOnly": True} in mounts and {
        "name": "ckpt",
        "mountPath": "/ckpt",
    } in mounts


def test_k10_each_rank_has_its_port_of_metrics_and_prometheus_finds_all():
    documents = generated(f"job --nnodes 2 --nproc-per-node 3 --monitoring {AFTER}")
    pod = pod_of(only(documents, "Job"))
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    assert [ports[f"metrics-{n}"] for n in range(3)] == [9400, 9401, 9402]
    monitor = only(documents, "PodMonitor")["spec"]
    assert {end["port"] for end in monitor["podMetricsEndpoints"]} == {"metrics-0", "metrics-1", "metrics-2"}
    assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_h15_logs_are_lines_of_json_with_the_option():
    assert env_of(pod_of(generated(f"job --json-logs {AFTER}")))["FARANDOLE_RUN_JSON_LOGS"] == "1"
    assert "FARANDOLE_RUN_JSON_LOGS" not in env_of(pod_of(generated(f"job {AFTER}")))


def test_c8_c11_autoscalers_and_sidecars_leave_the_pods_alone():
    about = pod_of(generated(f"job {AFTER}"))["metadata"]
    assert about["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert about["labels"]["sidecar.istio.io/inject"] == "false"


def test_names_with_dots_and_one_claim_in_several_places_are_mounted():
    """Names of claims and ConfigMaps may have dots, those of volumes may not."""
    words = "--pvc data.v1:/a --pvc data.v1:/b:ro --config-map kube-root-ca.crt:/ca"
    spec = pod_of(generated(f"job {words} {AFTER}"))["spec"]
    assert spec["volumes"][1:] == [
        {"name": "data-v1", "persistentVolumeClaim": {"claimName": "data.v1"}},
        {"name": "kube-root-ca-crt", "configMap": {"name": "kube-root-ca.crt"}},
    ]
    assert spec["containers"][0]["volumeMounts"][1:] == [
        {"name": "data-v1", "mountPath": "/a"},
        {"name": "data-v1", "mountPath": "/b", "readOnly": True},
        {"name": "kube-root-ca-crt", "mountPath": "/ca", "readOnly": True},
    ]
