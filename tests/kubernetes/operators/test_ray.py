"""Tests of the Ray integration on real Ray: most on one cluster on this machine, one on two nodes in simulated pods."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import builders
import pytest

SCENARIOS = str(Path(__file__).resolve().parents[1] / "support" / "ray_scenarios.py")
# Ray gets a network namespace of its own: it finds its address through a route to the internet, which it must not use.
ALONE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
RAY = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1", "HOME": "/root"}


def why_not():
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed: bash tests/kubernetes/setup.sh"
    if shutil.which("unshare") is None or subprocess.run([*ALONE, "true"], capture_output=True).returncode != 0:
        return "a Ray cluster for tests needs root: unshare --net, and ip of iproute2"
    return ""


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """play(name) runs that scenario of ray_scenarios.py on the cluster of this module."""
    if why_not():
        pytest.skip(why_not())
    folder = tmp_path_factory.mktemp("ray")
    with open(folder / "stderr", "w") as log:
        process = subprocess.Popen([*ALONE, sys.executable, SCENARIOS, str(folder)],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)  # fmt: skip

    def answer():
        line = process.stdout.readline()
        assert line, f"the cluster has ended: {(folder / 'stderr').read_text()[-5000:]}"
        return line

    assert answer() == "ready\n"

    def ask(name):
        process.stdin.write(name + "\n")
        process.stdin.flush()
        failed = json.loads(answer())
        assert failed is None, failed

    yield ask
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()


def test_k4_the_workers_of_an_executor_are_one_world_with_a_secret_key(play):
    play("an_executor_makes_one_world")


def test_k4_a_worker_that_raises_is_named_and_the_workers_stay_if_all_returned(play):
    play("an_exception_is_named_and_workers_that_returned_stay")


def test_k4_a_worker_that_dies_is_named_nothing_is_left_and_start_begins_anew(play):
    play("a_dead_worker_is_named_and_start_begins_anew")


def test_k4_callbacks_get_all_that_rank_0_logs_while_it_runs(play):
    play("callbacks_get_all_that_rank_0_logs_while_it_runs")


def test_k4_without_resources_for_the_workers_the_error_lists_free_resources(play):
    play("without_resources_the_error_lists_free_resources")


def test_k4_horovods_name_is_an_alias(play):
    play("horovods_name_is_an_alias")


def test_k4_k19_an_elastic_job_continues_without_lost_and_with_new_workers(play):
    play("an_elastic_job_continues_without_lost_and_with_new_workers")


def test_k4_an_elastic_worker_that_keeps_the_others_waiting_is_ended(play):
    play("an_elastic_worker_that_keeps_the_others_waiting_is_ended")


def test_k4_an_elastic_job_in_which_all_fail_ends_with_the_first_cause(play):
    play("an_elastic_job_in_which_all_fail_ends_with_the_first_cause")


def test_k4_ray_train_begins_again_with_a_new_key_and_names_the_rank_that_was_lost_last(play):
    play("ray_train_begins_again_with_a_new_key_and_then_names_the_lost_rank")


def test_k4_the_program_of_the_rayjob_trains(play):
    play("the_program_of_the_rayjob_trains")


def test_k4_torch_distributed_with_our_backend_trains_under_ray_train(play):
    play("torch_distributed_under_ray_train")


def test_k4_a_torch_trainer_with_our_config_is_one_world_and_trains(play):
    play("a_torch_trainer_with_our_config_is_one_world")


# ---- Two nodes -------------------------------------------------------------------------------------------------------

NODE = """
import os, subprocess, sys, time
start = [os.path.join(os.path.dirname(sys.executable), "ray"), "start", "--num-cpus", "2",
         "--object-store-memory", "100000000", "--disable-usage-stats"]
if os.uname().nodename.endswith("-0"):
    head = [*start, "--head", "--port", "6379", "--include-dashboard=false"]
    subprocess.run(head, check=True, stdout=subprocess.DEVNULL)
    os.execv(sys.executable, [sys.executable, "/app/ray_driver.py"])
end = time.monotonic() + 60
while subprocess.run([*start, "--address", "train-0.train:6379"], stdout=subprocess.DEVNULL).returncode != 0:
    assert time.monotonic() < end
    time.sleep(0.5)
print("joined", flush=True)
time.sleep(600)
"""

DRIVER = """
import sys, time
sys.path.insert(0, "/app")
import ray, farandole
from farandole.integrations.ray import RayExecutor
from ray_scenarios import ranks_add_up, places_of
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
end = time.monotonic() + 60
while len([one for one in ray.nodes() if one["Alive"]]) < 2:
    assert time.monotonic() < end
    time.sleep(0.1)
with RayExecutor(min_workers=2, max_workers=2, cpus_per_worker=2) as one:
    one.start()
    said = one.run(ranks_add_up)
    hosts = sorted(rank["host"] for rank in said)
    print("elastic", hosts, places_of(said), said[0]["rendezvous"][:6], said[0]["total"], flush=True)
one = RayExecutor(num_hosts=2, num_workers_per_host=2)
one.start()
results = one.run(ranks_add_up)
print("places", places_of(results), "total", {rank["total"] for rank in results}, [rank["host"] for rank in results],
flush=True)
print("rendezvous at", results[0]["rendezvous"], flush=True)


def wait_for_ever():
    import numpy, farandole
    print("waiting", flush=True)
    open("/tmp/waiting", "w").close()
    while True:
        farandole.allreduce(numpy.ones(4), name="step")
        time.sleep(0.05)


try:
    one.run(wait_for_ever)
except farandole.RankError as error:
    print("lost:", error.rank, str(error), flush=True)
"""


def test_k4_two_pods_of_a_ray_cluster_are_one_world_and_a_lost_node_is_named(simulate, tmp_path):
    if why_not():
        pytest.skip(why_not())
    (tmp_path / "node.py").write_text(NODE)
    (tmp_path / "driver.py").write_text(DRIVER)
    image = {"/app/ray_node.py": str(tmp_path / "node.py"), "/app/ray_driver.py": str(tmp_path / "driver.py"),
             "/app/ray_scenarios.py": SCENARIOS}  # fmt: skip
    options = {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "512Mi"}}],
            "container_volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}  # fmt: skip
    documents = builders.stateful_set(
        2, ["python", "/app/ray_node.py"], env={**RAY, "FARANDOLE_PORT_BASE": 29500}, **options
    )
    sim = simulate(documents, image=image)
    head, other = sim.pods
    sim.wait(150, lambda: "places" in head.output or head.code is not None)
    assert "elastic ['train-0', 'train-1'] [(0, 2, 0, 1, 0, 2), (1, 2, 0, 1, 1, 2)] tcp:// 1.0" in head.output, (
        sim.logs()
    )
    assert (
        "places [(0, 4, 0, 2, 0, 2), (1, 4, 1, 2, 0, 2), (2, 4, 0, 2, 1, 2), (3, 4, 1, 2, 1, 2)] total {6.0}"
        in head.output
    ), sim.logs()
    sim.wait(30, lambda: "rendezvous at" in head.output)
    assert re.search(rf"rendezvous at tcp://({head.addresses[0]}|{other.addresses[0]}):295\d\d", head.output), (
        sim.logs()
    )
    sim.wait(30, lambda: head.exec("test", "-e", "/tmp/waiting").returncode == 0 or head.code is not None)
    other.kill()
    sim.wait(60, lambda: "lost:" in head.output or head.code is not None)
    assert re.search(r"lost: [0-3] rank [0-3] of 4 on train-1 \(", head.output), sim.logs()
