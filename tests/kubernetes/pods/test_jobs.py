"""Tests that each kind of workload starts ranks that train on real digits with the same training command."""

import json

import builders
import efa_devices
import podsim
import pytest
from farandole.integrations.kubernetes import generate
from training_jobs import assert_trained, field, starter, train

SHM = {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}}],
       "container_volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}  # fmt: skip


def test_an_indexed_job_of_4_pods_with_2_ranks_each_trains_as_one_world(simulate):
    run = starter(4, "$(JOB_COMPLETION_INDEX)", "train-0.train:29500")
    loss = train(simulate, builders.indexed_job(4, run, **SHM), 8, [f"train-{index}" for index in range(4)])
    # The global batches and the learned weights do not depend on the number of ranks.
    alone = train(simulate, builders.indexed_job(1, starter(1, "0", "train-0.train:29500", 1)), 1, ["train-0"], 1)
    assert loss == pytest.approx(alone, abs=2e-3)


@pytest.mark.parametrize("transport", ["ofi:tcp", "ofi:udp;ofi_rxd"])
def test_libfabric_carries_the_data_between_pods_and_shared_memory_inside_them(simulate, transport):
    env = {"FARANDOLE_TRANSPORT": f"shm,{transport}", "FARANDOLE_LOG_LEVEL": "info"}
    sim = simulate(
        builders.indexed_job(2, starter(2, "$(JOB_COMPLETION_INDEX)", "train-0.train:29500"), env=env, **SHM)
    )
    sim.wait(60)
    assert set(sim.results.values()) == {"Complete"}, sim.logs()
    assert_trained(sim, 4, ["train-0", "train-1"])
    assert f"; {transport}+shm;" in sim.pods[0].output, sim.logs()


def begin_with_efa(simulate, tmp_path, words="", **more):
    """Runs the output of `gen job --efa 2`. A provider of libfabric and a tree in place of /sys imitate the devices."""
    tree = efa_devices.make_tree(tmp_path / "sys", 2, model="p4d.24xlarge")  # which users may enter
    variables = {"FARANDOLE_LOG_LEVEL": "info", **efa_devices.efa("/imitated-sys", 2), **more}
    line = f"job --nnodes 2 --nproc-per-node 2 --max-restarts 0 --efa 2 {words} --image any".split()
    line += [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    sim = simulate(podsim.read(generate([*line, "--", *builders.TRAIN])), image={"/imitated-sys": str(tree)})
    sim.wait(60)
    return sim


def test_k7_pods_with_efa_devices_use_them_between_each_other(simulate, tmp_path):
    sim = begin_with_efa(simulate, tmp_path)
    assert set(sim.results.values()) == {"Complete"}, sim.logs()
    assert_trained(sim, 4, ["train-0", "train-1"])
    for pod in sim.pods:
        assert "transport: efa+shm; 2 of 2 EFA devices (FARANDOLE_EXPECT_EFA)" in pod.output, sim.logs()
        assert "ofi: efa on efa_0-rdm (1 of 2 devices; " in pod.output, sim.logs()


def test_k7_a_job_that_cannot_use_efa_does_not_start_unless_tcp_is_allowed(simulate, tmp_path):
    """The pods have the devices, and a libfabric that has no provider for them."""
    sim = begin_with_efa(simulate, tmp_path / "must", FAKE_EFA_DEVICES="0")
    assert sim.result("train").startswith("Failed: BackoffLimitExceeded"), sim.logs()
    assert "trained" not in sim.logs() and "offers no provider efa" in sim.logs()
    sim = begin_with_efa(simulate, tmp_path / "may", "--tcp-fallback", FAKE_EFA_DEVICES="0")
    assert sim.result("train") == "Complete" and "EFA not used: " in sim.logs(), sim.logs()
    assert_trained(sim, 4, ["train-0", "train-1"])


def test_a_stateful_set_trains_with_the_ordinal_as_node(simulate):
    documents = builders.stateful_set(2, starter(2, "$(ORDINAL)", "train-0.train:29500"))
    documents[2]["spec"]["template"]["spec"]["containers"][0]["env"].append(
        field("ORDINAL", "metadata.labels['apps.kubernetes.io/pod-index']")
    )
    train(simulate, documents, 4, ["train-0", "train-1"])


def test_a_job_set_trains_over_the_pods_of_all_its_jobs(simulate):
    run = starter(2, "$(JOB)", "train-workers-0-0.train:29500")
    documents = builders.job_set(2, 1, run)
    pod = documents[1]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    pod["spec"]["containers"][0]["env"].append(field("JOB", "metadata.labels['jobset.sigs.k8s.io/job-global-index']"))
    train(simulate, documents, 4, ["train-workers-0-0", "train-workers-1-0"])


def test_a_leader_worker_set_trains_with_the_leader_as_first_node(simulate):
    run = starter("$(LWS_GROUP_SIZE)", "$(LWS_WORKER_INDEX)", "$(LWS_LEADER_ADDRESS):29500")
    # By default the end of one pod, even with 0, recreates the group, so that all pods restart for ever.
    train(simulate, builders.leader_worker_set(2, run, group={"restartPolicy": "None"}), 4, ["train-0", "train-0-1"])


def test_a_pytorch_job_trains_with_the_master_as_first_node(simulate):
    run = starter("$(PET_NNODES)", "$(PET_NODE_RANK)", "$(MASTER_ADDR):$(MASTER_PORT)")
    train(simulate, builders.pytorch_job(1, run, spec={"nprocPerNode": "2"}), 4, ["train-master-0", "train-worker-0"])


def test_a_train_job_trains_with_its_runtimes_settings(simulate):
    run = starter("$(PET_NNODES)", "$(PET_NODE_RANK)", "$(PET_MASTER_ADDR):$(PET_MASTER_PORT)")
    train(simulate, builders.train_job(2, run), 4, ["train-node-0-0", "train-node-0-1"])


def test_h15_every_line_of_a_pod_is_json_with_its_rank(simulate):
    words = "job --nnodes 2 --nproc-per-node 2 --json-logs --image farandole:0.1.0 -- sh -c"
    sim = simulate(
        generate(
            [*words.split(), "echo out $FARANDOLE_RANK; echo err $FARANDOLE_RANK >&2; exit $((FARANDOLE_RANK == 3))"]
        )
    )
    sim.wait_for_ends(30)
    for node, pod in enumerate(sim.pods[:2]):
        lines = [json.loads(line) for line in pod.output.splitlines()]
        assert {(line["pod"], line["node"]) for line in lines} == {(pod.name, f"node-of-{pod.hostname}")}, pod.output
        printed = sorted((line["rank"], line["stream"], line["text"]) for line in lines if line["source"] == "rank")
        assert printed == [(rank, *what) for rank in (2 * node, 2 * node + 1)
                        for what in (("stderr", f"err {rank}"), ("stdout", f"out {rank}"))], pod.output  # fmt: skip
        assert ("failed" in [line.get("event") for line in lines]) == (node == 1), pod.output
