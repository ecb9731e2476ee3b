"""Tests every option of `farandole kubernetes gen` with every kind: it changes the documents, or is refused by name."""

import shlex

import pytest
from farandole.integrations.kubernetes import WrongCombination, generate
from farandole.integrations.kubernetes.document import load
from farandole.integrations.kubernetes.options import KINDS, TRIALS, parser
from manifest_checks import SCHEMAS, env_of, faults, pods_of

# What each kind needs, and a size of more than one pod.
BASES = {kind: f"{kind} --nnodes 2" for kind in KINDS}
BASES["deployment"] = "deployment --nnodes 2:3"
del BASES["katib"]
BASES |= {f"katib {trial}": f"katib --trial {trial} --nnodes 2 --parameter lr:double:0.1:1" for trial in TRIALS}
# option: (its words, words that both manifests have)
SAMPLES = {
    "--name": ("--name other", ""),
    "--namespace": ("--namespace ml", ""),
    "--nnodes": ("--nnodes 3", ""),
    "--nproc-per-node": ("--nproc-per-node 2", "--cpus 4 --memory 8Gi --shm 1Gi"),
    "--max-restarts": ("--max-restarts 7", ""),
    "--max-runtime": ("--max-runtime 1h", ""),
    "--ttl": ("--ttl 600", ""),
    "--grace": ("--grace 30", ""),
    "--instance-type": ("--instance-type g5.8xlarge", "--gpus 1 --cpus 4 --memory 8Gi --shm 1Gi"),
    "--gpus": ("--gpus 1", ""),
    "--gpu-resource": ("--gpu-resource amd.com/gpu", "--gpus 1"),
    "--device-class": ("--device-class gpu.nvidia.com", "--gpus 4"),
    "--compute-domain": ("--compute-domain", "--gpus 4"),
    "--efa": ("--efa 1", ""),
    "--tcp-fallback": ("--tcp-fallback", "--efa 1"),
    "--cpus": ("--cpus 3", ""),
    "--memory": ("--memory 5Gi", ""),
    "--hugepages-2mi": ("--hugepages-2mi 512Mi", "--memory 4Gi --efa 1"),
    "--shm": ("--shm 1536Mi", ""),
    "--host-network": ("--host-network", ""),
    "--spot": ("--spot", ""),
    "--capacity-label": ("--capacity-label a=b", "--spot"),
    "--zone": ("--zone z", ""),
    "--node-selector": ("--node-selector a=b", ""),
    "--system-selector": ("--system-selector a=b", ""),
    "--toleration": ("--toleration a=b:NoSchedule", ""),
    "--priority-class": ("--priority-class high", ""),
    "--queue": ("--queue q", ""),
    "--required-topology": ("--required-topology topology.k8s.aws/network-node-layer-3", "--queue q"),
    "--preferred-topology": ("--preferred-topology topology.k8s.aws/network-node-layer-3", "--queue q"),
    "--locations": ("--locations zone", ""),
    "--location-labels": ("--location-labels row,rack", "--locations nodes --namespace ml"),
    "--scheduler-name": ("--scheduler-name mine", ""),
    "--gang": ("--gang volcano", ""),
    "--pvc": ("--pvc c:/c", ""),
    "--new-pvc": ("--new-pvc c:/c:1Gi", ""),
    "--storage-class": ("--storage-class fast", "--new-pvc c:/c:1Gi"),
    "--access-mode": ("--access-mode ReadOnlyMany", "--new-pvc c:/c:1Gi"),
    "--config-map": ("--config-map c:/c", ""),
    "--service-account": ("--service-account s", ""),
    "--job-key-secret": ("--job-key-secret s", ""),
    "--run-as": ("--run-as 2000", ""),
    "--read-only-root": ("--read-only-root", ""),
    "--network-policy": ("--network-policy", ""),
    "--allow-egress": ("--allow-egress 443", "--network-policy"),
    "--port-base": ("--port-base 30000", ""),
    "--monitoring": ("--monitoring", ""),
    "--metrics-port": ("--metrics-port 9500", "--monitoring"),
    "--json-logs": ("--json-logs", ""),
    "--env": ("--env A=b", ""),
    "--label": ("--label a=b", ""),
    "--annotation": ("--annotation a=b", ""),
    "--set": ("--set {kind}.metadata.annotations.a=b", ""),
    "--implementation": ("--implementation mpich", ""),
    "--cluster-runtime": ("--cluster-runtime", ""),
    "--ray-version": ("--ray-version 2.50.0", ""),
    "--trial": ("--trial job", ""),
    "--parameter": ("--parameter wd:double:0:1", ""),
    "--metric": ("--metric accuracy", ""),
    "--maximize": ("--maximize", ""),
    "--trials": ("--trials 5", ""),
    "--parallel-trials": ("--parallel-trials 2", ""),
}


def documents(base, words=""):
    return list(load(generate([*shlex.split(f"{base} {words} --image i"), "--", "train"])))


def verdict(base, option):
    """honoured, refused: REASON, or dropped."""
    words, common = SAMPLES[option]
    before = None
    try:
        before = documents(base, common)
    except WrongCombination as error:
        return f"refused: {error}"  # what the option needs is refused
    if option == "--trial":
        other = next(trial for trial in TRIALS if f"--trial {trial}" not in base)
        words = f"--trial {other}"
    if option == "--nnodes" and base.startswith("deployment"):
        words = "--nnodes 2:4"
    words = words.replace("{kind}", before[-1]["kind"])
    try:
        return "honoured" if documents(base, f"{common} {words}") != before else "dropped"
    except WrongCombination as error:
        return f"refused: {error}"


def test_the_matrix_has_every_option():
    known = {action.option_strings[-1] for action in parser()._actions if action.option_strings}
    assert known - {"--help", "--image"} == set(SAMPLES)


@pytest.mark.parametrize("base", BASES)
def test_no_option_is_dropped_in_silence(base):
    verdicts = {option: verdict(BASES[base], option) for option in SAMPLES}
    counts = {
        word: sum(one.startswith(word) for one in verdicts.values()) for word in ("honoured", "refused", "dropped")
    }
    print(base, counts)
    assert [option for option, word in verdicts.items() if word == "dropped"] == []
    for option, word in verdicts.items():
        if word.startswith("refused"):
            assert any(name.split()[0] in word for name in (option, SAMPLES[option][1] or option)), word


@pytest.mark.parametrize(
    "words, needed",
    [
        ("--capacity-label a=b", "--spot"),
        ("--storage-class fast", "--new-pvc"),
        ("--access-mode ReadWriteOnce", "--new-pvc"),
        ("--metrics-port 9500", "--monitoring"),
        ("--allow-egress 443", "--network-policy"),
        ("--gpu-resource amd.com/gpu", "--gpus"),
        ("--tcp-fallback", "--efa"),
        ("--location-labels row", "--locations"),
    ],
)
def test_an_option_that_changes_nothing_without_another_names_it(words, needed):
    with pytest.raises(WrongCombination, match=f"{words.split()[0]} without {needed}: "):
        documents(BASES["job"], words)


@pytest.mark.parametrize("base", BASES)
def test_a_job_that_requests_efa_demands_it_unless_its_user_does_not(base):
    def transports(words):
        made = documents(BASES[base], words)
        ranks = [pod for pod in pods_of(made) if "amazonaws.com/efa" in str(pod["spec"]["containers"][0]["resources"])]
        assert ranks
        return made, {env_of(pod).get("FARANDOLE_TRANSPORT") for pod in ranks}

    made, found = transports("--efa 2")
    assert found == {"shm,efa"}
    if "mpijob" in base:  # mpirun passes the variables of the launcher to the ranks
        assert "'-x', 'FARANDOLE_TRANSPORT', '-x', 'FARANDOLE_EXPECT_EFA'" in str(made)
    assert transports("--efa 2 --tcp-fallback")[1] == {None}
    assert transports("--efa 2 --env FARANDOLE_TRANSPORT=auto")[1] == {"auto"}


def test_katib_has_what_its_options_promise():
    """Ports for the PodMonitor, a queue for each trial, and a policy that lets the metrics collector write."""
    for trial in TRIALS:
        made = documents(BASES[f"katib {trial}"], "--monitoring --network-policy --queue q")
        experiment = next(one for one in made if one["kind"] == "Experiment")
        spec = experiment["spec"]["trialTemplate"]["trialSpec"]
        assert spec["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "q"}
        assert spec["spec"].get("suspend") or spec["spec"]["runPolicy"]["suspend"]
        ports = [
            port.get("name")
            for pod in pods_of(made)
            for box in pod["spec"]["containers"]
            for port in box.get("ports", [])
        ]
        assert "metrics-0" in ports
        policies = [one for one in made if one["kind"] == "NetworkPolicy"]
        assert len(policies) == 1
        (database,) = [
            rule for rule in policies[0]["spec"]["egress"] if {"protocol": "TCP", "port": 6789} in rule["ports"]
        ]
        (to,) = database["to"]
        assert to["podSelector"] == {"matchLabels": {"katib.kubeflow.org/component": "db-manager"}}
        assert to["namespaceSelector"] == {}


def pod_kinds():
    return [base for base in BASES if not base.startswith(("katib", "rayjob"))]


@pytest.mark.parametrize("base", pod_kinds())
@pytest.mark.parametrize(
    "gang, api, scheduler",
    [
        ("volcano", "scheduling.volcano.sh/v1beta1", "volcano"),
        ("coscheduling", "scheduling.x-k8s.io/v1alpha1", "scheduler-plugins-scheduler"),
    ],
)
def test_a_gang_is_a_pod_group_that_every_pod_names(base, gang, api, scheduler):
    made = documents(BASES[base], f"--gang {gang} --namespace ml")
    (group,) = [one for one in made if one["kind"] == "PodGroup"]
    assert group["apiVersion"] == api and group["spec"] == {"minMember": 2}
    assert group["metadata"]["namespace"] == "ml" and not faults(made, custom=False)
    for pod in pods_of(made):
        about = pod["metadata"]
        key = (
            ("annotations", "scheduling.k8s.io/group-name")
            if gang == "volcano"
            else ("labels", "scheduling.x-k8s.io/pod-group")
        )
        assert about[key[0]][key[1]] == group["metadata"]["name"] and pod["spec"]["schedulerName"] == scheduler


def test_an_elastic_gang_begins_with_its_minimum():
    made = documents("job --nnodes 2:4", "--gang volcano --scheduler-name own")
    assert next(one for one in made if one["kind"] == "PodGroup")["spec"]["minMember"] == 2
    assert next(pods_of(made))["spec"]["schedulerName"] == "own"


@pytest.mark.parametrize("base", BASES)
def test_kueue_finds_its_queue_on_every_kind_and_its_topology_on_every_pod(base):
    made = documents(BASES[base], "--queue q --required-topology topology.k8s.aws/network-node-layer-3")
    if not base.startswith("katib"):  # its trials have it: test_katib_has_what_its_options_promise
        labelled = [one["kind"] for one in made if one["metadata"]["labels"].get("kueue.x-k8s.io/queue-name") == "q"]
        assert len(labelled) == (2 if base == "deployment" else 1)
    for pod in pods_of(made):
        assert pod["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"].endswith("layer-3")


def test_an_elastic_job_in_a_queue_may_be_admitted_in_part():
    job = next(one for one in documents("job --nnodes 1:4", "--queue q") if one["kind"] == "Job")
    assert job["metadata"]["annotations"] == {
        "kueue.x-k8s.io/job-min-parallelism": "1",
        "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
    }
    for count in (1, 2, 3, 4):  # Kueue changes both fields, and the API server validates the Job again
        job["spec"].update(completions=count, parallelism=count)
        assert faults([job], custom=False) == []
    for size in ("4", "4:4"):  # nothing to reduce: Kueue refuses a minimum that is not below the number of pods
        fixed = next(one for one in documents(f"job --nnodes {size}", "--queue q") if one["kind"] == "Job")
        assert "annotations" not in fixed["metadata"]


def test_an_elastic_rayjob_has_no_queue_because_kueue_refuses_its_autoscaler():
    with pytest.raises(WrongCombination, match="--queue with an elastic rayjob: Kueue refuses"):
        documents("rayjob --nnodes 2:4", "--queue q")


def test_more_failed_indexes_than_completions_are_a_fault_as_they_are_for_the_api_server():
    job = next(one for one in documents("job --nnodes 1:4") if one["kind"] == "Job")
    assert job["spec"]["maxFailedIndexes"] == 3
    job["spec"].update(completions=2, parallelism=2)
    assert faults([job], custom=False) == ["Job train: maxFailedIndexes 3 is above completions 2"]


@pytest.mark.parametrize("base", [base for base in BASES if base != "rayjob"])
def test_gpus_of_a_device_class_are_claimed_by_the_pods_with_ranks_alone(base):
    made = documents(BASES[base], "--gpus 4 --device-class gpu.nvidia.com --compute-domain --efa 2")
    assert not faults(made, custom=SCHEMAS.is_dir())
    (template,) = [one for one in made if one["kind"] == "ResourceClaimTemplate"]
    assert template["spec"]["spec"]["devices"]["requests"] == [
        {"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 4}}
    ]
    (domain,) = [one for one in made if one["kind"] == "ComputeDomain"]
    channel = f"{domain['metadata']['name']}-channel"
    assert domain["spec"] == {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": channel}}}
    with_ranks = 0
    for pod in pods_of(made):
        (box,) = pod["spec"]["containers"]
        if box["name"] == "launcher":
            assert "resourceClaims" not in pod["spec"] and "claims" not in box["resources"]
            continue
        with_ranks += 1
        assert box["resources"]["claims"] == [{"name": "gpus"}, {"name": "channel"}]
        assert pod["spec"]["resourceClaims"] == [
            {"name": "gpus", "resourceClaimTemplateName": template["metadata"]["name"]},
            {"name": "channel", "resourceClaimTemplateName": channel},
        ]
        assert "nvidia.com/gpu" not in box["resources"]["limits"]
        assert box["resources"]["limits"]["vpc.amazonaws.com/efa"] == 2  # beside the claims, by its device plugin
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]
    assert with_ranks


def test_trainer_repeats_the_claims_because_it_replaces_the_runtimes_resources():
    made = documents("trainjob --nnodes 2", "--gpus 4 --device-class gpu.nvidia.com")
    job = next(one for one in made if one["kind"] == "TrainJob")
    assert job["spec"]["trainer"]["resourcesPerNode"]["claims"] == [{"name": "gpus"}]
