"""Tests of the errors of `farandole kubernetes gen`, and of its built-in checks of manifests."""

import copy
import os
import subprocess
import sys

import pytest
from farandole.integrations.kubernetes import WrongCombination, checks, generate
from farandole.integrations.kubernetes.__main__ import main
from farandole.integrations.kubernetes.document import load
from kinds_of_jobs import AFTER
from manifest_checks import faults, generated, only, pod_of

WRONG = [
    ("job --device-class gpu.nvidia.com", "--device-class without --gpus"),
    ("job --gpus 4 --device-class GPU", "is no name such as gpu.nvidia.com"),
    ("job --gpus 4 --compute-domain", "--compute-domain with one pod"),
    ("rayjob --gpus 4 --device-class gpu.nvidia.com", "KubeRay reads the number of GPUs"),
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
    ("job --instance-type zz.big", "is not in the table of instance types. For a type that is newer"),
    ("job --instance-type g4dn.xlarge --gpus 2", "a g4dn.xlarge has 1"),
    ("job --gpu-resource gpu", "no resource such as nvidia.com/gpu"),
    ("job --toleration a=\u00e4:NoExecute", "is no value of a taint"),
    ("job --toleration a=b:", "is not KEY[=VALUE][:NoSchedule|PreferNoSchedule|NoExecute]"),
    ("job --max-runtime 10000000h", "--max-runtime 10000000h is longer than 2147483647 s"),
    ("job --pvc x:/a --config-map x:/b", "--config-map x:/b: a claim is mounted as 'x' already"),
    ("job --gpus 4 --nproc-per-node 8", "ranks would share a GPU"),
    ("job --nproc-per-node gpu", "the pods request no GPU"),
    ("job --nproc-per-node cpu", "needs --cpus N"),
    ("job --nproc-per-node 0", "neither a number nor auto, gpu or cpu"),
    ("job --nproc-per-node 64", "at most 63 ranks"),
    ("job --hugepages-2mi 512Mi", "give --memory"),
    ("job --hugepages-2mi 3Ki --memory 1Gi", "no multiple of 2Mi"),
    ("job --memory 16", "--memory 16 is less than 1 MiB; write 16Gi for GiB"),
    ("job --memory 500m", "--memory 500m is less than 1 MiB; give a size such as 16Gi"),
    ("job --new-pvc c:/c:10", "--new-pvc c: 10 is less than 1 MiB; write 10Gi for GiB"),
    ("job --shm 4", "--shm 4 is less than 1 MiB; write 4Gi for GiB"),
    ("job --memory 4gb", "no quantity above 0"),
    ("job --memory 1Gi --shm 1Gi", "memory; give more --memory, or less --shm"),
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
    ("job --monitoring --nproc-per-node 8 --metrics-port 65530", "--metrics-port 65530: local rank 7 would serve its"),
    ("job --network-policy --allow-egress 70000", "--allow-egress 70000 is not within 1 to 65535"),
    ("job --queue a --label kueue.x-k8s.io/queue-name=b", "with --queue a: both name a queue; leave the label out"),
    ("job --nnodes 2 --new-pvc a:/a:1Gi --access-mode ReadWriteOnce", "can be mounted on one node only"),
    ("job --new-pvc c:/c:1Gi --access-mode Mine", "is none of ReadWriteMany"),
    ("job --storage-class fsx", "without --new-pvc"),
    ("job --pvc data", "is not CLAIM:/PATH[:ro]"),
    ("job --pvc data:/a --pvc more:/a", "mount path '/a' stands there twice"),
    ("job --pvc dshm:/a", "volume 'dshm' stands there twice"),
    ("job --name Train", "only have small letters"),
    ("job --name 7-runs", "--name '7-runs' begins with a digit"),
    ("katib --parameter lr:double:0:1 --name 7-runs", "--name '7-runs' begins with a digit"),
    ("job --name " + "a" * 62, "has 62 characters and may have 61"),
    ("statefulset --name " + "a" * 53, "has 53 characters and may have 52"),
    ("lws --name " + "a" * 51, "has 51 characters and may have 50"),
    ("rayjob --name " + "a" * 48, "has 48 characters and may have 47"),
    ("katib --nnodes 11 --parameter lr:double:0:1 --name " + "a" * 45, "has 45 characters and may have 44"),
    ("katib --parameter batch:int:1.5:3", "'1.5' is no whole number"),
    ("katib --parameter lr:double:0:inf", "'inf' is no number"),
    ("katib --parameter lr:double:0:1 --parameter lr:double:0:2", "lr is given twice"),
    ("katib --parameter trialName:int:1:3", "trialName is Katib's own name"),
    ("katib --parameter o:categorical:a;b,c", "'a;b': Katib gives the command to a shell without quotes"),
    ("katib --parameter lr:double:0:1 --metric val/loss", "may only have letters, digits, '_', '|' and '-'"),
    ("jobset --nnodes 4 --name " + "a" * 49, "has 49 characters and may have 48"),
    ("trainjob --nnodes 4 --name " + "a" * 49, "has 49 characters and may have 48"),
    ("katib --trial trainjob --parameter lr:double:0:1 --name " + "a" * 40, "has 40 characters and may have 39"),
    ("job --namespace a.b", "may only have small letters"),
    ("job --allow-egress 443", "without --network-policy"),
    ("job --network-policy --host-network", "does not apply to pods in the node's network"),
    ("rayjob --network-policy", "use KubeRay's own field"),
    ("mpijob --read-only-root", "sshd and mpirun write"),
    ("job --parameter lr:double:0:1", "use `gen katib`"),
    ("katib", "needs something to search"),
    ("katib --parameter lr:double:1:0", "1 is not below 0"),
    ("katib --parameter lr:double:1:0", "gen: --parameter lr:double:1:0: 1 is not below 0"),
    ("katib --parameter lr:double:x:1", "gen: --parameter lr:double:x:1: 'x' is no number"),
    ("katib --parameter lr:double:0:1 --trials 4 --parallel-trials 5", "--parallel-trials 5 with 4 trials"),
    ("katib --parameter lr:text:1:0", "is not NAME:double:MIN:MAX"),
    ("katib --parameter opt:categorical:sgd", "give at least two values, each once"),
    ("katib --parameter opt:categorical:sgd,sgd", "give at least two values, each once"),
    ("katib --parameter size:discrete:8,x", "'x' is no number"),
    ("job --ttl -5", "--ttl -5 is not within 0 to"),
    ("job --service-account Bad_Name", "--service-account 'Bad_Name' may only have small letters"),
    ("job --job-key-secret a/b", "--job-key-secret 'a/b' may only have small letters"),
    ("job --priority-class High", "--priority-class 'High' may only have small letters"),
    ("job --queue Team", "--queue 'Team' may only have small letters"),
    ("job --label app.kubernetes.io/instance=x", "the job's objects find its pods by this label; use --name"),
    ("job --label app.kubernetes.io/component=x", "the job's objects find its pods by this label"),
    ("job --set Job.spec.x={", "--set Job.spec.x: '{' is no YAML: "),
    ("job --set Job.spec.template=null", "--set Job.spec.template: the manifest would have a value of another type"),
    ("job --set Job.spec=1", "--set Job.spec: the manifest would have a value of another type"),
    ("job --set Job.spec.maxFailedIndexes=abc", "--set Job.spec.maxFailedIndexes: the manifest would have a value"),
    ("job --system-selector role=sys", "all of its pods are ranks"),
    ("job --spot --capacity-label spot", "is not KEY=VALUE"),
    ("job --env A", "is not KEY=VALUE"),
    ("job --env A=1 --env A=2", "is given twice"),
    ("job --env FARANDOLE_PORT_BASE=1", "the manifest sets this variable itself; use --port-base"),
    (
        "job --env FARANDOLE_POD_NAME=x",
        "--env FARANDOLE_POD_NAME: the manifest sets this variable itself; leave it out",
    ),
    ("mpijob --env PRTE_MCA_prte_default_hostfile=x", "variable 'PRTE_MCA_prte_default_hostfile' stands there twice"),
    (
        "job --zone a --node-selector topology.kubernetes.io/zone=b",
        "--node-selector topology.kubernetes.io/zone=b: another option wants topology.kubernetes.io/zone=a",
    ),
    ("job --spot --node-selector karpenter.sh/capacity-type=on-demand", "wants karpenter.sh/capacity-type=spot"),
    ("job --label a=b/c", "no value of a label"),
    ("job --toleration a=b:Never", "NoSchedule|PreferNoSchedule|NoExecute"),
    ("job --set Pod.spec.x=1", "begin with one of the kinds Service, ServiceAccount, Job"),
    ("job --set Job.spec.completions.x=1", "there is no 'x' to enter"),
    ("job --set Job.apiVersion=batch/v1beta1", "must be batch/v1"),
    ("job --set Job.spec.template.spec.restartPolicy=OnFailure", "podFailurePolicy needs restartPolicy Never"),
    ("job --set Job.spec.template.spec.volumes=[]", "mounts 'dshm', and there is no such volume"),
    ("job --locations nodes", "--locations nodes without --namespace: a ClusterRoleBinding names the namespace"),
    ("job --locations zone --zone a", "--locations zone with --zone: all pods run in that zone"),
    ("job --locations zone --location-labels a", "--location-labels with --locations zone: Kubernetes copies"),
    ("job --locations nodes --namespace ml --location-labels a,,b", "--location-labels: '' is no label of nodes"),
    ("job --locations nodes --namespace ml --location-labels a,b/", "--location-labels: 'b/' is no label of nodes"),
    ("job --locations nodes --namespace ml --location-labels a,a", "give each label once, and at most 16"),
    ("job --locations rack", "invalid choice: 'rack'"),
    ("job --locations zone --env FARANDOLE_LOCATION=a", "use --locations nodes, or leave --locations out"),
    ("mpijob --locations zone --env FARANDOLE_TOPOLOGY=/a", "this variable itself; use --location-labels, or leave"),
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
        (["gen", "job", "--image", "x", "--zone", "", "--", "train"], "--zone has no value; give one, or leave"),
        (["gen", "job", "--image", "", "--", "train"], "--image has no value; give one, or leave"),
        (
            ["gen", "katib", "--image", "x", "--parameter", "lr:int:1:3", "--", "python", "-c", "print(1)"],
            "'print(1)': Katib gives the command to a shell without quotes",
        ),
        (["gen", "job", "--image", "x", "--pvc", "", "--", "train"], "--pvc has no value; give one, or leave"),
        (["gen", "job", "--image", "x y", "--", "train"], "--image 'x y' contains a space"),
        (["gen", "job", "--image", "x", "--", "train", "\udc80"], r"'\udc80' is not UTF-8"),
        (["gen", "job", "--image", "x"], "no command: end with --"),
        (["gen", "job", "--", "python"], "--image"),
        (["apply"], "none of gen, chart, logs, status and topology"),
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
        (lambda box, _: box["args"].append(4), "must be text, in quotes"),
        (lambda _, all_of: all_of.append(copy.deepcopy(all_of[0])), "Service train: stands there twice"),
        (lambda _, all_of: all_of[0].update(apiVersion="v1beta1"), "must be v1"),
        (lambda _, all_of: all_of[0].update(kind="Servce"), "kind 'Servce' is not known"),
        (lambda _, all_of: all_of[0]["metadata"].update(name="a_b"), "is no name"),
        (lambda _, all_of: all_of[0]["metadata"]["labels"].update(team=7), "must be text, in quotes"),
    ],
)
def test_a_planted_fault_is_found_without_any_schema(change, fault):
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


@pytest.mark.parametrize("place, code, said", [("/dev/full", 74, "standard output cannot be written"), (None, 141, "")])
def test_an_output_that_cannot_be_written_is_no_traceback(place, code, said):
    """None: a pipe that nothing reads, as that of `gen ... | head`."""
    line = [sys.executable, "-m", "farandole.integrations.kubernetes", "gen", "job", "--image", "i", "--", "t"]
    reading, writing = os.pipe()
    os.close(reading)
    with open(place, "wb") if place else os.fdopen(writing, "wb") as out:
        done = subprocess.run(line, stdout=out, stderr=subprocess.PIPE, text=True)
    assert done.returncode == code and said in done.stderr and done.stderr.count("\n") == (1 if said else 0)
