"""Tests of the kinds of operators that `farandole kubernetes gen` prints: Kubeflow, MPI Operator, KubeRay, Katib."""

import pytest
from kinds_of_jobs import AFTER
from manifest_checks import env_of, generated, only, pod_of, pods_of


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


def test_mpirun_passes_on_what_the_ranks_of_its_workers_read():
    """A rank in a worker pod has the variables of sshd, which are not those of the pod."""
    own = {"FARANDOLE_POD_NAME", "FARANDOLE_NODE_NAME", "FARANDOLE_TERM_GRACE_S"}  # of each pod, and of process 1
    for kind in ("mpijob", "mpijob --implementation mpich"):
        spec = only(generated(f"{kind} --nnodes 2 --efa 1 --monitoring --env A=b {AFTER}"), "MPIJob")["spec"]
        replicas = spec["mpiReplicaSpecs"]
        words = replicas["Launcher"]["template"]["spec"]["containers"][0]["args"]
        passed = {word for text in words for word in text.split(",")}
        assert set(env_of(pod_of(replicas["Worker"]))) - own <= passed, kind


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


def test_k4_rays_workers_are_in_one_zone_which_need_not_be_that_of_the_head():
    """The head is made first. Where GPU nodes are in another zone, workers that had to join it would wait for ever."""
    cluster = only(generated(f"rayjob --nnodes 2 {AFTER}"), "RayJob")["spec"]["rayClusterSpec"]
    head, worker = pod_of(cluster["headGroupSpec"]), pod_of(cluster["workerGroupSpecs"])
    (term,) = worker["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    wanted = term["labelSelector"]["matchLabels"].items()
    assert wanted <= worker["metadata"]["labels"].items() and not wanted <= head["metadata"]["labels"].items()
    assert "affinity" not in head["spec"]


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


@pytest.mark.parametrize(
    "options, count, at_a_time", [("", 12, 3), ("--trials 2", 2, 2), ("--parallel-trials 5", 12, 5)]
)
def test_c5_a_search_runs_no_more_trials_at_a_time_than_there_are(options, count, at_a_time):
    """Katib's webhook refuses more."""
    spec = only(generated(f"katib --parameter lr:double:0:1 {options} {AFTER}"), "Experiment")["spec"]
    assert (spec["maxTrialCount"], spec["parallelTrialCount"]) == (count, at_a_time)


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
