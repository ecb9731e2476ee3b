"""Tests of podsim's rules of controllers, Jobs and NetworkPolicies; they start no pod."""

import json

import builders
import controllers
import podsim
import pytest
from fabric import firewall, selects
from job_rules import JobState, action_of_policy

RUN = ["true"]


def plans(documents):
    (workload,) = controllers.workloads(podsim.read(documents))
    return workload.pods


def env_of(plan):
    return {one["name"]: one["value"] for one in plan.env}


def train_env(plan):
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in plan.template["containers"][0]["env"]}


# ---- Names, host names, variables ------------------------------------------------------------------------------------


def test_an_indexed_job_gives_each_pod_its_index_and_a_host_name_without_the_random_end():
    pods = plans(builders.indexed_job(3, RUN))
    assert [(pod.hostname, pod.subdomain, pod.random, env_of(pod)) for pod in pods] == [
        (f"train-{index}", "train", True, {"JOB_COMPLETION_INDEX": str(index)}) for index in range(3)]  # fmt: skip
    assert pods[2].annotations["batch.kubernetes.io/job-completion-index"] == "2"
    assert pods[2].labels["job-name"] == "train"


def test_a_job_that_is_not_indexed_gives_no_index():
    documents = builders.indexed_job(2, RUN)
    del documents[2]["spec"]["completionMode"]
    assert [(pod.hostname, env_of(pod)) for pod in plans(documents)] == [("", {}), ("", {})]


def test_a_stateful_set_counts_from_its_start_ordinal():
    pods = plans(builders.stateful_set(2, RUN, spec={"ordinals": {"start": 5}}))
    assert [(pod.stem, pod.hostname, pod.labels["apps.kubernetes.io/pod-index"], pod.random) for pod in pods] == [
        ("train-5", "train-5", "5", False), ("train-6", "train-6", "6", False)]  # fmt: skip


def test_the_pods_of_a_deployment_have_no_index_at_all():
    pods = plans(builders.deployment(2, RUN))
    assert all(pod.random and pod.hostname == "" and pod.env == [] for pod in pods)


def test_a_job_set_numbers_its_jobs_and_the_pods_in_each():
    pods = plans(builders.job_set(2, 2, RUN, spec={"coordinator": {"replicatedJob": "workers"}}))
    assert [pod.hostname for pod in pods] == [f"train-workers-{job}-{pod}" for job in range(2) for pod in range(2)]
    last = pods[3]
    prefix = "jobset.sigs.k8s.io/"
    known = {key.removeprefix(prefix): value for key, value in last.labels.items() if key.startswith(prefix)}
    known.pop("job-key")
    assert known == {
        "jobset-name": "train",
        "replicatedjob-name": "workers",
        "replicatedjob-replicas": "2",
        "job-index": "1",
        "job-global-index": "1",
        "global-replicas": "2",
        "restart-attempt": "0",
    }
    assert env_of(last) == {"JOB_COMPLETION_INDEX": "1"}  # within its Job
    assert last.subdomain == "train" and last.annotations[prefix + "coordinator"] == "train-workers-0-0.train"


def test_a_leader_worker_set_names_the_leader_after_its_group():
    pods = plans(builders.leader_worker_set(3, RUN))
    assert [pod.hostname for pod in pods] == ["train-0", "train-0-1", "train-0-2"]
    assert env_of(pods[2]) == {
        "LWS_LEADER_ADDRESS": "train-0.train.default",
        "LWS_GROUP_SIZE": "3",
        "LWS_WORKER_INDEX": "2",
    }


def test_a_pytorch_job_gives_the_node_rank_as_rank_and_the_processes_as_world_size():
    pods = plans(builders.pytorch_job(2, RUN, spec={"nprocPerNode": "2"}))
    assert [pod.hostname for pod in pods] == ["train-master-0", "train-worker-0", "train-worker-1"]
    assert env_of(pods[2]) == {
        "PYTHONUNBUFFERED": "1", "MASTER_PORT": "23456", "PET_MASTER_PORT": "23456", "MASTER_ADDR": "train-master-0",
        "PET_MASTER_ADDR": "train-master-0", "WORLD_SIZE": "6", "RANK": "2", "PET_NODE_RANK": "2",
        "PET_NPROC_PER_NODE": "2", "PET_NNODES": "3"}  # fmt: skip
    assert pods[1].waits_for == "train-master-0" and pods[0].waits_for == ""


def test_the_processes_of_a_pytorch_job_are_auto_by_default_and_count_once():
    pods = plans(builders.pytorch_job(1, RUN))
    assert (env_of(pods[0])["PET_NPROC_PER_NODE"], env_of(pods[0])["WORLD_SIZE"]) == ("auto", "2")


def test_an_elastic_pytorch_job_gives_no_rank():
    pods = plans(
        builders.pytorch_job(2, RUN, master=False, spec={"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3}})
    )
    found = env_of(pods[1])
    assert "RANK" not in found and "WORLD_SIZE" not in found
    assert (found["PET_NNODES"], found["PET_RDZV_ENDPOINT"]) == ("1:3", "train-worker-0:23456")


def test_a_tf_job_gives_the_cluster_as_json():
    pods = plans(builders.tf_job({"Worker": 2, "Chief": 1}, RUN))
    expected = json.loads(env_of(pods[2])["TF_CONFIG"])
    assert expected["cluster"]["chief"] == ["train-chief-0.default.svc:2222"]
    assert expected["cluster"]["worker"] == ["train-worker-0.default.svc:2222", "train-worker-1.default.svc:2222"]
    assert expected["task"] == {"type": "worker", "index": 1}


def test_a_tf_job_with_dynamic_workers_describes_to_each_worker_only_itself():
    pods = plans(builders.tf_job({"Worker": 2}, RUN, spec={"enableDynamicWorker": True}))
    assert json.loads(env_of(pods[1])["TF_CONFIG"])["sparseCluster"]["worker"] == {
        "1": "train-worker-1.default.svc:2222"
    }


def test_a_train_job_becomes_a_job_set_with_the_variables_of_torchrun():
    pods = plans(builders.train_job(2, RUN, trainer={"numProcPerNode": 2, "command": ["late"]}))
    assert [pod.hostname for pod in pods] == ["train-node-0-0", "train-node-0-1"]
    found = train_env(pods[1])
    assert (found["PET_NNODES"], found["PET_NPROC_PER_NODE"], found["PET_MASTER_ADDR"], found["PET_MASTER_PORT"]) == (
        "2", "2", "train-node-0-0.train", "29500")  # fmt: skip
    assert "RANK" not in found and pods[0].template["containers"][0]["command"] == ["late"]


@pytest.mark.parametrize(
    "resources, expected",
    [
        ({}, "auto"),
        ({"limits": {"cpu": "3"}}, "3"),
        ({"requests": {"cpu": "2500m"}}, "2"),
        ({"limits": {"cpu": "3", "nvidia.com/gpu": 8}}, "auto"),
    ],
)
def test_a_train_job_counts_processes_by_the_cores_where_there_is_no_gpu(resources, expected):
    pods = plans(builders.train_job(1, RUN, trainer={"resourcesPerNode": resources}))
    assert train_env(pods[0])["PET_NPROC_PER_NODE"] == expected


def test_a_train_job_without_its_runtime_is_refused():
    documents = builders.train_job(1, RUN)
    with pytest.raises(ValueError, match="its runtime farandole is in none of the manifests"):
        plans([documents[0], documents[2]])


@pytest.mark.parametrize("implementation, line, variable", [
    ("OpenMPI", "pi-worker-1.pi.default.svc slots=2", "OMPI_MCA_orte_default_hostfile"),
    ("Intel", "pi-worker-1.pi.default.svc:2", "I_MPI_HYDRA_HOST_FILE"),
    ("MPICH", "pi-worker-1.pi.default.svc:2", "HYDRA_HOST_FILE")])  # fmt: skip
def test_an_mpi_job_writes_its_host_file_as_its_implementation_reads_it(implementation, line, variable):
    pods = plans(builders.mpi_job(2, RUN, spec={"mpiImplementation": implementation}))
    assert pods[0].files["/etc/mpi/hostfile"][0].splitlines()[1] == line
    launcher, worker = env_of(pods[-1]), env_of(pods[0])
    assert launcher[variable] == "/etc/mpi/hostfile" and launcher["K_MPI_JOB_ROLE"] == "launcher"
    assert variable not in worker and worker["K_MPI_JOB_ROLE"] == "worker"
    assert pods[0].default_command == ("/usr/sbin/sshd", "-De")
    assert "PRTE_MCA_prte_default_hostfile" not in launcher  # which Open MPI 5 would read


# ---- Jobs whose pods fail --------------------------------------------------------------------------------------------

POLICY = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 64, 78]}},
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
                    {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [202, 203]}}]}  # fmt: skip


@pytest.mark.parametrize("code, conditions, action", [
    (64, [], "FailJob"), (143, ["DisruptionTarget"], "Ignore"), (143, [], None), (137, [], None), (202, [], "Ignore"),
    (64, ["DisruptionTarget"], "FailJob")])  # fmt: skip
def test_the_first_rule_that_fits_decides(code, conditions, action):
    assert action_of_policy(POLICY, code, conditions) == action


def test_exit_codes_of_another_container_do_not_count():
    policy = {
        "rules": [{"action": "FailJob", "onExitCodes": {"containerName": "side", "operator": "NotIn", "values": [1]}}]
    }
    assert action_of_policy(policy, 3, [], "main") is None and action_of_policy(policy, 3, [], "side") == "FailJob"


def test_a_job_gives_up_when_more_pods_have_failed_than_its_limit():
    state = JobState({"backoffLimit": 1}, 2)
    assert [state.pod_ended(0, 1), state.pod_ended(1, 1)] == ["again", "failed"]
    assert state.reason == "BackoffLimitExceeded: index 1 ended with 1"


def test_what_the_policy_ignores_does_not_count_against_the_limit():
    state = JobState({"backoffLimit": 0, "podFailurePolicy": POLICY}, 1)
    assert [state.pod_ended(0, 143, ["DisruptionTarget"]) for _ in range(3)] == ["again"] * 3
    assert state.pod_ended(0, 0) == "done"


def test_a_code_for_a_permanent_failure_ends_the_job_at_once():
    state = JobState({"backoffLimit": 6, "podFailurePolicy": POLICY}, 4)
    assert state.pod_ended(3, 78) == "failed" and state.reason.startswith("PodFailurePolicy")


def test_limits_by_index_let_the_other_indexes_go_on():
    state = JobState({"backoffLimitPerIndex": 1, "maxFailedIndexes": 1}, 3)
    assert [state.pod_ended(0, 1), state.pod_ended(0, 1), state.pod_ended(1, 0), state.pod_ended(2, 0)] == [
        "again", "wait", "wait", "failed"]  # fmt: skip
    assert state.reason == "FailedIndexes: indexes [0] have failed"


@pytest.mark.parametrize("rule, succeeded, met", [
    ({"succeededIndexes": "0"}, [1, 2], False), ({"succeededIndexes": "0"}, [1, 0], True),
    ({"succeededIndexes": "0-1,3", "succeededCount": 2}, [0, 2], False),
    ({"succeededIndexes": "0-1,3", "succeededCount": 2}, [0, 2, 3], True),
    ({"succeededCount": 2}, [2], False), ({"succeededCount": 2}, [2, 3], True)])  # fmt: skip
def test_a_success_policy_ends_a_job_before_all_indexes_have_succeeded(rule, succeeded, met):
    state = JobState({"backoffLimitPerIndex": 0, "successPolicy": {"rules": [rule]}}, 5)
    answers = [state.pod_ended(index, 0) for index in succeeded]
    assert answers[:-1] == ["wait"] * (len(succeeded) - 1) and answers[-1] == ("done" if met else "wait")
    assert state.conditions == ({"SuccessCriteriaMet": "SuccessPolicy"} if met else {})


def test_a_job_with_a_success_policy_fails_when_too_many_indexes_have_failed():
    rules = {"backoffLimitPerIndex": 0, "maxFailedIndexes": 1, "successPolicy": {"rules": [{"succeededIndexes": "0"}]}}
    state = JobState(rules, 4)
    assert [state.pod_ended(1, 1), state.pod_ended(2, 1)] == ["wait", "failed"]
    state.finish()
    assert state.conditions == {"FailureTarget": "MaxFailedIndexesExceeded", "Failed": "MaxFailedIndexesExceeded"}


def test_all_completions_are_the_reason_where_no_policy_is_met():
    state = JobState({}, 2)
    assert [state.pod_ended(0, 0), state.pod_ended(1, 0)] == ["wait", "done"]
    assert state.conditions == {"SuccessCriteriaMet": "CompletionsReached"}


def test_the_back_off_doubles_with_each_failure_up_to_ten_minutes_and_begins_again_after_a_success():
    state = JobState({"backoffLimit": 99}, 3)
    delays = []
    for _ in range(8):
        state.pod_ended(0, 1)
        delays.append(state.delay(0, 10))
    assert delays == [10, 20, 40, 80, 160, 320, 600, 600]
    state.pod_ended(1, 0)
    state.pod_ended(2, 1)
    assert state.delay(2, 10) == 10


def test_with_limits_by_index_each_index_has_its_own_back_off_and_ignored_failures_count():
    state = JobState({"backoffLimitPerIndex": 9, "podFailurePolicy": POLICY}, 2)
    for _ in range(3):
        state.pod_ended(0, 202)
    state.pod_ended(1, 1)
    assert (state.failures_of, state.delay(0, 10), state.delay(1, 10)) == ({1: 1}, 40, 10)


def test_exit_zero_counts_as_success_also_of_a_deleted_pod():
    assert JobState({"backoffLimit": 0}, 1).pod_ended(0, 0, ["DisruptionTarget"]) == "done"


# ---- NetworkPolicy ---------------------------------------------------------------------------------------------------


def policy(**spec):
    return {
        "kind": "NetworkPolicy",
        "metadata": {"name": "p"},
        "spec": {"podSelector": {"matchLabels": {"app": "a"}}, **spec},
    }


def everyone():
    return [("default", {"kubernetes.io/metadata.name": "default"}, {"app": "a"}, ["198.18.0.10", "fd18::a"]),
            ("other", {"kubernetes.io/metadata.name": "other"}, {"app": "a"}, ["198.18.0.11"])]  # fmt: skip


def test_a_pod_that_no_policy_selects_has_no_firewall():
    assert firewall([policy(ingress=[])], "default", {"app": "b"}, everyone()) == ""
    assert firewall([policy(ingress=[])], "other", {"app": "a"}, everyone()) == ""


def test_an_empty_ingress_blocks_all_input_and_no_output():
    rules = firewall([policy(ingress=[])], "default", {"app": "a"}, everyone())
    assert "hook input priority 0; policy drop" in rules and "hook output" not in rules


def test_peers_are_pods_of_the_same_namespace_by_default():
    rule = {"from": [{"podSelector": {"matchLabels": {"app": "a"}}}], "ports": [{"port": 29500, "endPort": 29563}]}
    rules = firewall([policy(ingress=[rule])], "default", {"app": "a"}, everyone())
    assert "ip saddr 198.18.0.10 tcp dport 29500-29563 accept" in rules
    assert "ip6 saddr fd18::a tcp dport 29500-29563 accept" in rules and "198.18.0.11" not in rules
    rule["from"] = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}]
    assert "198.18.0.11" in firewall([policy(ingress=[rule])], "default", {"app": "a"}, everyone())


def test_egress_without_ports_is_egress_to_all_ports():
    rules = firewall(
        [policy(egress=[{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}])], "default", {"app": "a"}, everyone()
    )
    assert "ip daddr 10.0.0.0/8  accept" in rules and "hook input" in rules


@pytest.mark.parametrize(
    "expression, fits",
    [
        ({"key": "app", "operator": "In", "values": ["a"]}, True),
        ({"key": "app", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "app", "operator": "Exists"}, True),
        ({"key": "x", "operator": "DoesNotExist"}, True),
    ],
)
def test_selectors_support_expressions(expression, fits):
    assert selects({"matchExpressions": [expression]}, {"app": "a"}) is fits


# ---- Text ------------------------------------------------------------------------------------------------------------


def test_variables_in_arguments_are_expanded_and_unknown_ones_stay():
    assert podsim.expand("a $(X) $(Y) $$(X) $X", {"X": "1"}) == "a 1 $(Y) $(X) $X"


@pytest.mark.parametrize("text, size", [("64Mi", 64 << 20), ("1G", 10**9), ("512", 512), ("1.5Gi", 3 << 29)])
def test_sizes_are_read_as_kubernetes_writes_them(text, size):
    assert podsim.size_of(text) == size
