"""Tests of `farandole kubernetes gen`: its manifests, and its errors."""

import copy
import os
import re
import shlex
import subprocess
import sys

import pytest
from farandole.integrations.kubernetes import WrongCombination, checks, generate, instances
from farandole.integrations.kubernetes.__main__ import main
from farandole.integrations.kubernetes.document import load
from manifest_checks import ROOT, SCHEMAS, env_of, faults, generated, only, pod_of, pods_of

AFTER = "--image farandole:0.1.0 -- python train.py"
EVERYTHING = (
    "--nproc-per-node 4 --instance-type p4d.24xlarge --efa all --gpus 4 --cpus 16 --memory 64Gi --shm 8Gi "
    "--hugepages-2mi 5120Mi --spot --pvc data:/data:ro --new-pvc checkpoints:/checkpoints:100Gi --storage-class "
    "fsx --config-map scripts:/scripts --monitoring --json-logs --env A=b --label team=x --annotation n=o "
    "--node-selector a=b --toleration dedicated=x:NoSchedule --priority-class high --max-runtime 12h "
    "--namespace ml"
)
KINDS = {
    "job": "job --nnodes 4",
    "elastic job": "job --nnodes 2:4",
    "jobset": "jobset --nnodes 4",
    "statefulset": "statefulset --nnodes 4",
    "deployment": "deployment --nnodes 2:4",
    "lws": "lws --nnodes 4",
    "mpijob": "mpijob --nnodes 2",
    "mpich job": "mpijob --nnodes 2 --implementation mpich",
    "pytorchjob": "pytorchjob --nnodes 4",
    "one pytorch pod": "pytorchjob --nnodes 1",
    "elastic pytorchjob": "pytorchjob --nnodes 2:4",
    "tfjob": "tfjob --nnodes 3",
    "trainjob": "trainjob --nnodes 2",
    "rayjob": "rayjob --nnodes 2",
    "katib job": "katib --parameter lr:double:0.001:0.1",
    "katib pytorchjob": "katib --trial pytorchjob --nnodes 2 --parameter lr:double:0.001:0.1",
    "katib mpijob": "katib --trial mpijob --nnodes 2 --parameter lr:double:0.001:0.1",
    "katib trainjob": "katib --trial trainjob --nnodes 2 --parameter layers:int:1:4",
}


def everything(kind):
    """All options that the kind does not refuse; test_options.py has the others."""
    words = EVERYTHING
    if any(word in kind for word in ("mpijob", "rayjob")):
        words = words.replace("--json-logs ", "")
    if any(word in kind for word in ("statefulset", "deployment", "lws")):
        words = words.replace("--max-runtime 12h ", "")
    return words


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_valid_with_few_options_and_with_all(kind):
    custom = SCHEMAS.is_dir()
    few = generated(f"{KINDS[kind]} {AFTER}")
    assert faults(few, custom) == []
    policy = "" if "rayjob" in KINDS[kind] else "--network-policy --allow-egress 443"
    read_only = "" if any(word in KINDS[kind] for word in ("rayjob", "mpijob")) else "--read-only-root"
    assert faults(generated(f"{KINDS[kind]} {everything(KINDS[kind])} {policy} {read_only} {AFTER}"), custom) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_lines_are_the_command_that_prints_the_same_again(kind):
    text = generate(f"{KINDS[kind]} {everything(KINDS[kind])} {AFTER}".split())
    words = shlex.split(text.splitlines()[1].removeprefix("#"))
    assert words[:3] == ["farandole", "kubernetes", "gen"]
    assert generate(words[3:]) == text


def test_the_output_has_no_secret_and_is_the_same_in_every_run():
    words = shlex.split(f"{KINDS['pytorchjob']} {AFTER}")
    texts = {
        subprocess.run(
            [sys.executable, "-m", "farandole.integrations.kubernetes", "gen", *words],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    (text,) = texts
    assert "kind: Secret" not in text
    assert "kubectl create secret generic train-key --from-literal=key=$(openssl rand -hex 16)" in text


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
            assert about["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
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


def test_a_job_of_known_length_lets_karpenter_go_after_it():
    documents = generated(f"job --max-runtime 1h30m {AFTER}")
    assert only(documents, "Job")["spec"]["activeDeadlineSeconds"] == 5400
    assert pod_of(documents)["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "1h30m"


def test_a_failure_policy_counts_failures_of_the_job_only():
    for kind in ("job --nnodes 4", "jobset --nnodes 4"):
        spec = next(job for job in _job_specs(generated(f"{kind} {AFTER}")))
        assert spec["template"]["spec"]["restartPolicy"] == "Never" and spec["podReplacementPolicy"] == "Failed"
        disrupted, permanent, collateral = spec["podFailurePolicy"]["rules"]
        assert disrupted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        assert permanent == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 64, 70, 78]}}
        assert collateral == {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [202, 203]}}


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


def test_the_first_lines_explain_elastic_jobs():
    for kind in ("job", "deployment", "pytorchjob"):
        first = " ".join(generate(f"{kind} --nnodes 2:4 {AFTER}".split()).split("\n---")[0].replace("#", "").split())
        assert "Elastic: 2 to 4 pods. After the loss of a pod the job continues from the last commit" in first
    assert "Elastic" not in generate(f"job --nnodes 4 {AFTER}".split())


@pytest.mark.parametrize(
    "kind, first_pod",
    [
        ("job --nnodes 2", "train-0.train"),  # <job>-<index>.<subdomain>
        ("jobset --nnodes 2", "train-node-0-0.train"),  # <jobset>-<replicated job>-<job>-<pod>.<subdomain>
        ("statefulset --nnodes 2", "train-0.train"),
        ("lws --nnodes 2", "$(LWS_LEADER_ADDRESS)"),
        ("deployment --nnodes 1:2", "train"),  # the Service of the pod that leads
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


def test_k1_a_pytorchjob_names_its_container_its_port_and_its_codes():
    documents = generated(f"pytorchjob --nnodes 4 --nproc-per-node 8 {AFTER}")
    spec = only(documents, "PyTorchJob")["spec"]
    replicas = spec["pytorchReplicaSpecs"]
    assert spec["nprocPerNode"] == "8" and [replicas[role]["replicas"] for role in ("Master", "Worker")] == [1, 3]
    for role in replicas.values():
        box = role["template"]["spec"]["containers"][0]
        assert role["restartPolicy"] == "ExitCode" and box["name"] == "pytorch"
        assert {"name": "pytorchjob-port", "containerPort": 29500} in box["ports"]
        assert box["command"] + box["args"] == [
            "farandole",
            "run",
            "--nproc-per-node",
            "8",
            "--",
            "python",
            "train.py",
        ] or box["command"] + box["args"] == ["farandole", "run", "--", "python", "train.py"]


def test_k1_an_elastic_pytorchjob_has_no_master_to_lose():
    spec = only(generated(f"pytorchjob --nnodes 2:4 {AFTER}"), "PyTorchJob")["spec"]
    assert list(spec["pytorchReplicaSpecs"]) == ["Worker"] and spec["pytorchReplicaSpecs"]["Worker"]["replicas"] == 4
    assert (spec["elasticPolicy"]["minReplicas"], spec["elasticPolicy"]["maxReplicas"]) == (2, 4)


def test_k2_a_tfjob_has_a_chief_and_its_port_in_the_fixed_range():
    replicas = only(generated(f"tfjob --nnodes 3 {AFTER}"), "TFJob")["spec"]["tfReplicaSpecs"]
    assert {role: replicas[role]["replicas"] for role in replicas} == {"Chief": 1, "Worker": 2}
    box = replicas["Chief"]["template"]["spec"]["containers"][0]
    assert box["name"] == "tensorflow" and {"name": "tfjob-port", "containerPort": 29500} in box["ports"]


def test_k18_a_tfjob_has_no_parameter_server():
    assert not {"PS", "Evaluator"} & set(
        only(generated(f"tfjob --nnodes 3 {AFTER}"), "TFJob")["spec"]["tfReplicaSpecs"]
    )


def test_k3_an_mpijob_names_the_hostfile_to_open_mpi_4_and_5_and_waits_for_its_workers():
    spec = only(generated(f"mpijob --nnodes 2 --nproc-per-node 4 {AFTER}"), "MPIJob")["spec"]
    launcher, worker = (
        spec["mpiReplicaSpecs"][role]["template"]["spec"]["containers"][0] for role in ("Launcher", "Worker")
    )
    words = launcher["command"] + launcher["args"]
    assert words[:7] == ["mpirun", "--hostfile", "/etc/mpi/hostfile", "-np", "8", "--bind-to", "none"]
    assert words[-2:] == ["python", "train.py"] and "FARANDOLE_PORT_BASE" in words
    env = env_of({"spec": {"containers": [launcher]}})
    assert env["PRTE_MCA_prte_default_hostfile"] == "/etc/mpi/hostfile"
    assert "OMPI_MCA_orte_default_hostfile" not in env  # the operator's own: twice would be refused
    assert spec["launcherCreationPolicy"] == "WaitForWorkersReady" and spec["slotsPerWorker"] == 4
    assert worker["command"] == ["farandole", "sshd-init"] and worker["readinessProbe"]["tcpSocket"] == {"port": "ssh"}
    mpich = only(generated(f"mpijob --nnodes 2 --implementation mpich {AFTER}"), "MPIJob")["spec"]
    assert pod_of(mpich)["spec"]["containers"][0]["command"] == ["mpiexec"] and mpich["mpiImplementation"] == "MPICH"


def test_k4_ray_runs_no_rank_on_its_head_and_frees_its_gpus():
    spec = only(generated(f"rayjob --nnodes 2:4 --gpus 1 {AFTER}"), "RayJob")["spec"]
    assert spec["entrypoint"] == "python train.py" and spec["shutdownAfterJobFinishes"] is True
    cluster = spec["rayClusterSpec"]
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    assert "nvidia.com/gpu" not in pod_of(cluster["headGroupSpec"])["spec"]["containers"][0]["resources"]["limits"]
    (workers,) = cluster["workerGroupSpecs"]
    assert (workers["replicas"], workers["minReplicas"], workers["maxReplicas"]) == (2, 2, 4)
    assert cluster["enableInTreeAutoscaling"] is True  # or the number of workers would never change
    head = pod_of(cluster["headGroupSpec"])["spec"]
    assert "serviceAccountName" not in head and "automountServiceAccountToken" not in head  # KubeRay makes the account
    fixed = only(generated(f"rayjob --nnodes 2 {AFTER}"), "RayJob")["spec"]["rayClusterSpec"]
    assert "enableInTreeAutoscaling" not in fixed and fixed["workerGroupSpecs"][0]["replicas"] == 2
    assert pod_of(fixed["headGroupSpec"])["spec"]["automountServiceAccountToken"] is False


def test_a_trainjob_repeats_the_efa_devices_that_its_runtime_requests():
    documents = generated(f"trainjob --nnodes 2 --instance-type p4d.24xlarge --efa all {AFTER}")
    trainer = only(documents, "TrainJob")["spec"]["trainer"]
    assert trainer["resourcesPerNode"]["limits"]["vpc.amazonaws.com/efa"] == 4
    assert (
        only(documents, "TrainJob")["spec"]["runtimeRef"]["name"]
        == only(documents, "TrainingRuntime")["metadata"]["name"]
    )
    assert not [name for pod in pods_of(documents) for name in env_of(pod) if name.startswith("PET_")]


@pytest.mark.parametrize(
    "trial, primary", [("job", "trainer"), ("pytorchjob", "pytorch"), ("mpijob", "launcher"), ("trainjob", "node")]
)
def test_c5_a_katib_trial_reads_its_metric_from_one_pod(trial, primary):
    spec = only(generated(f"katib --trial {trial} --nnodes 2 --parameter lr:double:0.001:0.1 {AFTER}"), "Experiment")[
        "spec"
    ]
    template = spec["trialTemplate"]
    assert template["primaryContainerName"] == primary and len(template["primaryPodLabels"]) == 1
    assert spec["parameters"] == [
        {"name": "lr", "parameterType": "double", "feasibleSpace": {"min": "0.001", "max": "0.1"}}
    ]
    words = [word for place in (template["trialSpec"],) for word in _words(place)]
    assert "--lr=${trialParameters.lr}" in words
    assert spec["objective"] == {"type": "minimize", "objectiveMetricName": "loss"}


def _words(place):
    if isinstance(place, dict):
        for key, entry in place.items():
            if key in ("command", "args"):
                yield from entry
            else:
                yield from _words(entry)
    elif isinstance(place, list):
        for entry in place:
            yield from _words(entry)


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


def test_h8_set_overrides_generated_values():
    documents = generated(
        f"job --set Job.spec.backoffLimit=0 --set Job.metadata.annotations.a\\.b/c=d --set "
        f"Job.spec.template.spec.containers.0.imagePullPolicy=Always {AFTER}"
    )
    made = only(documents, "Job")
    assert made["spec"]["backoffLimit"] == 0 and made["metadata"]["annotations"] == {"a.b/c": "d"}
    assert pod_of(made)["spec"]["containers"][0]["imagePullPolicy"] == "Always"


def _shown():
    """(command, shown output) of every example in the documentation."""
    for block in re.findall(
        r"^```console\n(\$ farandole kubernetes gen .*?)^```$",
        (ROOT / "docs" / "kubernetes.md").read_text(),
        re.S | re.M,
    ):
        for example in block.replace("\\\n", " ").split("$ farandole kubernetes ")[1:]:
            command, _, shown = example.partition("\n")
            yield command, shown


def test_the_documentation_has_examples():
    assert len(list(_shown())) >= 4


@pytest.mark.parametrize(
    "command, shown", list(_shown()), ids=[" ".join(command.split()[:4]) for command, _ in _shown()]
)
def test_the_documentation_shows_the_output(command, shown, capsys):
    main(shlex.split(command))
    printed = capsys.readouterr()
    whole = printed.out or printed.err
    for part in shown.split("...\n"):
        assert part in whole
    assert shown.strip()


# --- why there is no manifest ---------------------------------------------------------------------------------------

WRONG = [
    (
        "job --instance-type g5.4xlarge --efa 1",
        "g5.4xlarge has no EFA device (the smallest of its family with EFA is g5.8xlarge)",
    ),
    ("job --instance-type p3.2xlarge --efa all", "the smallest of its family with EFA is p3dn.24xlarge"),
    ("job --instance-type m5.xlarge --efa 1", "none of its family has"),
    ("job --instance-type p4d.24xlarge --efa 8", "a p4d.24xlarge has 4"),
    ("job --efa all", "--efa all needs --instance-type"),
    ("job --efa some", "neither a number nor all or off"),
    ("job --instance-type p5.24xlarge", "did you mean p5.4xlarge"),
    ("job --instance-type g4dn.xlarge --gpus 2", "a g4dn.xlarge has 1"),
    ("job --gpu-resource gpu", "no resource such as nvidia.com/gpu"),
    ("job --gpus 4 --nproc-per-node 8", "ranks would share a GPU"),
    ("job --nproc-per-node gpu", "the pods request no GPU"),
    ("job --nproc-per-node cpu", "needs --cpus N"),
    ("job --nproc-per-node 0", "neither a number nor auto, gpu or cpu"),
    ("job --nproc-per-node 64", "at most 63 ranks"),
    ("job --hugepages-2mi 512Mi", "give --memory"),
    ("job --hugepages-2mi 3Ki --memory 1Gi", "no multiple of 2Mi"),
    ("job --memory 4gb", "no quantity above 0"),
    ("job --memory 4Gi --shm 4Gi", "count as the container's memory"),
    ("job --max-runtime 2days", "no duration such as 90m"),
    ("job --nnodes 4:2", "MIN is above MAX; write 2:4"),
    ("job --nnodes four", "neither a number nor MIN:MAX"),
    ("mpijob --nnodes 2:4", "an MPIJob has no scale"),
    ("trainjob --nnodes 2:4", "Trainer v2 has no elastic training"),
    ("deployment --nnodes 4", "give --nnodes MIN:MAX"),
    ("job --spot --grace 300", "120 s after its notice"),
    ("job --run-as 0", "no part of a job needs root"),
    ("job --port-base 80", "not within 1024 to"),
    ("job --monitoring --metrics-port 29510", "lies in the job's own ports"),
    ("job --nnodes 2 --new-pvc a:/a:1Gi --access-mode ReadWriteOnce", "can be mounted on one node only"),
    ("job --new-pvc c:/c:1Gi --access-mode Mine", "is none of ReadWriteMany"),
    ("job --storage-class fsx", "without --new-pvc"),
    ("job --pvc data", "is not CLAIM:/PATH[:ro]"),
    ("job --pvc data:/a --pvc more:/a", "mount path '/a' stands there twice"),
    ("job --pvc data:/a --pvc data:/b", "volume 'data' stands there twice"),
    ("job --name Train", "only have small letters"),
    ("job --name " + "a" * 62, "has 62 characters and may have 61"),
    ("job --namespace a.b", "may only have small letters"),
    ("job --allow-egress 443", "without --network-policy"),
    ("job --network-policy --host-network", "does not apply to pods in the node's network"),
    ("rayjob --network-policy", "use KubeRay's own field"),
    ("mpijob --read-only-root", "sshd and mpirun write"),
    ("job --parameter lr:double:0:1", "use `gen katib`"),
    ("katib", "needs something to search"),
    ("katib --parameter lr:double:1:0", "1 is not below 0"),
    ("katib --parameter lr:text:1:0", "is not NAME:double:MIN:MAX"),
    ("job --system-selector role=sys", "all of its pods are ranks"),
    ("job --spot --capacity-label spot", "is not KEY=VALUE"),
    ("job --env A", "is not KEY=VALUE"),
    ("job --env A=1 --env A=2", "is given twice"),
    ("job --env FARANDOLE_PORT_BASE=1", "variable 'FARANDOLE_PORT_BASE' stands there twice"),
    ("job --label a=b/c", "no value of a label"),
    ("job --toleration a=b:Never", "NoSchedule|PreferNoSchedule|NoExecute"),
    ("job --set Pod.spec.x=1", "begin with one of the kinds Service, ServiceAccount, Job"),
    ("job --set Job.spec.completions.x=1", "there is no 'x' to enter"),
    ("job --set Job.apiVersion=batch/v1beta1", "must be batch/v1"),
    ("job --set Job.spec.template.spec.restartPolicy=OnFailure", "podFailurePolicy needs restartPolicy Never"),
    ("job --set Job.spec.template.spec.volumes=[]", "mounts 'dshm', and there is no such volume"),
    ("job --nodes 4", "unrecognized arguments: --nodes 4"),
    ("cronjob", "invalid choice: 'cronjob'"),
]


@pytest.mark.parametrize("options, why", WRONG, ids=[options[:60] for options, _ in WRONG])
def test_an_impossible_combination_is_an_error_with_the_reason(options, why, capsys):
    assert main(["gen", *f"{options} {AFTER}".split()]) == 64
    captured = capsys.readouterr()
    assert why in captured.err and captured.out == ""
    assert captured.err.startswith("farandole kubernetes gen: ")


@pytest.mark.parametrize(
    "words, why",
    [
        (["gen", "job", "--image", "x"], "no command: end with --"),
        (["gen", "job", "--", "python"], "--image"),
        (["apply"], "none of gen, chart, logs and status"),
        ([], ""),
    ],
)
def test_an_incomplete_command_is_an_error_that_names_the_missing_part(words, why, capsys):
    assert main(words) == 64
    assert why in capsys.readouterr().err


def test_without_pyyaml_the_error_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main(["gen", "job", "--image", "x", "--", "y"]) == 64
    assert 'pip install "farandole[kubernetes]"' in capsys.readouterr().err


# --- the built-in checks: what a schema would let pass ---------------------------------------------------------------


def _planted(change):
    documents = copy.deepcopy(generated(f"job --nnodes 2 --gpus 1 --pvc data:/data {AFTER}"))
    change(only(documents, "Job")["spec"]["template"]["spec"]["containers"][0], documents)
    return "\n".join(checks.faults(documents))


@pytest.mark.parametrize(
    "change, fault",
    [
        (lambda box, _: box["resources"]["limits"].update({"nvidia.com/gpu": 2}), "the request must be the limit"),
        (lambda box, _: box["resources"]["requests"].update(memory="64Gi"), "requests 64Gi and is limited to 8Gi"),
        (lambda box, _: box["resources"]["requests"].update(cpu="two"), "cpu 'two' is no quantity"),
        (lambda box, _: box["env"].append({"name": "A", "value": 1}), "must be text, in quotes"),
        (lambda box, _: box["env"].append({"name": "A"}), "needs one of value and valueFrom"),
        (lambda box, _: box["ports"].append({"name": "far-too-long-a-name", "containerPort": 1}), "beyond 15 letters"),
        (
            lambda box, _: box["ports"].append({"name": "again", "containerPort": 29500}),
            "port 29500 stands there twice",
        ),
        (lambda box, _: box["volumeMounts"].append({"name": "lost", "mountPath": "/lost"}), "there is no such volume"),
        (lambda box, _: box["volumeMounts"].append({"name": "data", "mountPath": "lost"}), "is not absolute"),
        (lambda box, _: box.pop("image"), None),
        (lambda box, _: box["args"].append(4), "must be text, in quotes"),
        (lambda _, all_of: all_of.append(copy.deepcopy(all_of[0])), "Service train: stands there twice"),
        (lambda _, all_of: all_of[0].update(apiVersion="v1beta1"), "must be v1"),
        (lambda _, all_of: all_of[0].update(kind="Servce"), "kind 'Servce' is not known"),
        (lambda _, all_of: all_of[0]["metadata"].update(name="a_b"), "is no name"),
        (lambda _, all_of: all_of[0]["metadata"]["labels"].update(team=7), "must be text, in quotes"),
    ],
)
def test_a_planted_fault_is_found_without_any_schema(change, fault):
    if fault is not None:
        assert fault in _planted(change)


def test_a_key_that_stands_twice_is_an_error():
    with pytest.raises(Exception, match="'a' stands twice in one mapping, line 1"):
        list(load("a: 1\na: 2\n"))


def test_kubernetes_own_schema_finds_a_misspelt_field_in_the_pod_of_a_custom_resource():
    documents = generated(f"pytorchjob --nnodes 2 {AFTER}")
    pod_of(only(documents, "PyTorchJob"))["spec"]["restartPolcy"] = "Never"
    assert any("restartPolcy" in fault for fault in faults(documents, False))


def test_wrong_combinations_are_values_errors_for_callers_in_python():
    with pytest.raises(WrongCombination, match="no command"):
        generate(["job", "--image", "x"])
