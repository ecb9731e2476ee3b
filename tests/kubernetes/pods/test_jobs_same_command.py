"""Tests one training command in every kind of pod: each rank derives its number from the controller's variables."""

import re

import builders
import pytest
from network_policies import policy
from training_jobs import field, ranks_of, train

pytestmark = pytest.mark.usefixtures("numbering")
RUN = ["farandole", "run", "--", *builders.TRAIN]
# For controllers that do not provide the number of ranks of a node.
RUN_TWO = ["farandole", "run", "--nproc-per-node", "2", "--", *builders.TRAIN]
JOB_INDEX = "metadata.labels['jobset.sigs.k8s.io/job-index']"


def test_in_an_indexed_job(simulate):
    train(
        simulate,
        builders.indexed_job(4, RUN_TWO, env={"FARANDOLE_NNODES": 4}),
        8,
        [f"train-{index}" for index in range(4)],
    )


def test_in_a_stateful_set_whose_ordinals_begin_at_three(simulate):
    env = {"FARANDOLE_NNODES": 2, "FARANDOLE_RANK_FROM": "hostname", "FARANDOLE_ORDINAL_START": 3}
    documents = builders.stateful_set(2, RUN_TWO, env=env, spec={"ordinals": {"start": 3}})
    train(simulate, documents, 4, ["train-3", "train-4"])


def test_in_a_job_set(simulate):
    documents = builders.job_set(2, 2, RUN, env={"FARANDOLE_JOBSET_JOBS": 2, "FARANDOLE_JOBSET_PODS_PER_JOB": 2})
    pod = documents[1]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    pod["spec"]["containers"][0]["env"].append(field("FARANDOLE_JOBSET_JOB_INDEX", JOB_INDEX))
    train(simulate, documents, 4, [f"train-workers-{job}-{index}" for job in range(2) for index in range(2)], 1)


def test_in_a_leader_worker_set(simulate):
    documents = builders.leader_worker_set(2, RUN_TWO, group={"restartPolicy": "None"})
    train(simulate, documents, 4, ["train-0", "train-0-1"])


@pytest.mark.parametrize("processes", [1, 2])
def test_in_a_pytorch_job(simulate, processes):
    names = ["train-master-0", "train-worker-0"]
    documents = builders.pytorch_job(1, RUN, spec={"nprocPerNode": str(processes)})
    train(simulate, documents, 2 * processes, names, processes)


def test_in_a_pytorch_job_of_workers_alone_that_gives_no_rank(simulate):
    spec = {"nprocPerNode": "2", "elasticPolicy": {"minReplicas": 2, "maxReplicas": 2}}
    train(simulate, builders.pytorch_job(2, RUN, master=False, spec=spec), 4, ["train-worker-0", "train-worker-1"])


def test_in_a_train_job(simulate):
    train(simulate, builders.train_job(2, RUN, trainer={"numProcPerNode": 2}), 4, ["train-node-0-0", "train-node-0-1"])


def test_in_a_tf_job_the_chief_is_first(simulate):
    sim = simulate(builders.tf_job({"Worker": 1, "Chief": 1}, RUN_TWO))
    sim.wait(60, lambda: all(pod.code is not None for pod in sim.pods))
    assert [rank[0] for rank in ranks_of(sim.pods)["train-chief-0"]] == [0, 1], sim.logs()
    assert [rank[0] for rank in ranks_of(sim.pods)["train-worker-0"]] == [2, 3], sim.logs()


def test_within_the_ports_of_a_network_policy(simulate):
    documents = builders.indexed_job(2, RUN_TWO, env={"FARANDOLE_NNODES": 2, "FARANDOLE_PORT_BASE": 29500})
    train(simulate, [*documents, policy()], 4, ["train-0", "train-1"])


def test_beside_a_service_that_leaves_a_port_that_is_an_address(simulate):
    master = {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {"name": "master"},
        "spec": {"ports": [{"port": 23456}]},
    }
    documents = builders.indexed_job(2, RUN_TWO, env={"FARANDOLE_NNODES": 2})
    train(simulate, [*documents, master], 4, ["train-0", "train-1"])


# ---- MVAPICH ---------------------------------------------------------------------------------------------------------


def mvapich(pods, per_pod, prefix, **env):
    """Jobs whose processes get what mpirun_rsh sets. The shell is the parent of the ranks, as mpispawn is."""
    words = {"RANK": f"$((JOB_COMPLETION_INDEX * {per_pod} + local))", "SIZE": pods * per_pod,
             "LOCAL_RANK": "$local", "LOCAL_SIZE": per_pod}  # fmt: skip
    set_all = " ".join(f"{prefix}_COMM_WORLD_{word}={value}" for word, value in words.items())
    locals_ = " ".join(map(str, range(per_pod)))
    script = f'for local in {locals_}; do env {set_all} {" ".join(builders.TRAIN)} & all="$all $!"; done\n'
    script += "for one in $all; do wait $one || exit; done"
    return builders.indexed_job(pods, ["sh", "-c", script], env=env)


@pytest.mark.parametrize("prefix", ["MV2", "MVP"])
def test_ranks_of_mvapich_are_one_world_in_a_pod_and_over_pods_with_an_address(simulate, prefix):
    train(simulate, mvapich(1, 2, prefix), 2, ["train-0"])
    train(simulate, mvapich(2, 2, prefix, FARANDOLE_RENDEZVOUS="tcp://train-0.train:29500"), 4, ["train-0", "train-1"])


@pytest.mark.parametrize("prefix", ["MV2", "MVP"])
def test_ranks_of_mvapich_over_pods_without_an_address_are_no_worlds_of_their_own(simulate, prefix):
    sim = simulate(mvapich(2, 1, prefix))
    sim.wait(20, lambda: all(pod.code is not None for pod in sim.pods))
    for pod in sim.pods:
        assert pod.code and "trained" not in pod.output, sim.logs()
        assert "MVAPICH" in pod.output and "FARANDOLE_RENDEZVOUS" in pod.output, sim.logs()


# ---- Refusals --------------------------------------------------------------------------------------------------------


def refused(simulate, documents):
    sim = simulate(documents)
    sim.wait(20, lambda: all(pod.code is not None for pod in sim.pods))
    assert {pod.code for pod in sim.pods} <= {64, 78}, sim.logs()
    return sim.pods[0].output


def alone(env):
    return builders.indexed_job(1, RUN, env=env, rules={"backoffLimit": 0})


def test_half_a_pair_of_variables_names_both(simulate):
    printed = refused(simulate, alone({"PET_NODE_RANK": 0}))
    assert "PET_NODE_RANK" in printed and "PET_NNODES" in printed


def test_a_contradicting_world_size_is_an_error(simulate):
    printed = refused(
        simulate, alone({"PET_NODE_RANK": 0, "PET_NNODES": 2, "PET_NPROC_PER_NODE": 2, "RANK": 0, "WORLD_SIZE": 5})
    )
    assert re.search(r"WORLD_SIZE\D+5", printed) and "PET_NNODES" in printed


def test_a_later_job_of_a_job_set_that_nothing_numbers_is_no_second_rank_0(simulate):
    sim = simulate(builders.job_set(2, 1, RUN, env={"FARANDOLE_NNODES": 1}))
    later = sim.pod("train-workers-1-0")
    sim.wait(20, lambda: later.code is not None)
    assert later.code in (64, 78) and "rank 0 of" not in later.output, sim.logs()
    for variable in ("FARANDOLE_JOBSET_JOBS", "FARANDOLE_JOBSET_PODS_PER_JOB", "FARANDOLE_JOBSET_JOB_INDEX"):
        assert variable in later.output, sim.logs()


def test_an_indexed_job_without_a_node_count_never_becomes_a_world_of_one(simulate):
    sim = simulate(builders.indexed_job(1, ["python", "/app/train_digits.py"]))
    sim.wait(20)
    assert sim.result("train").startswith("Failed") and "JOB_COMPLETION_INDEX" in sim.pods[0].output, sim.logs()
