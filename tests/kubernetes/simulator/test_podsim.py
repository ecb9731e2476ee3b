"""Tests of simulated pods without ranks: names, network, files, limits and ends."""

import os
import re
import signal
import subprocess
import sys
import time
import types

import builders
import podsim
import pytest
from pod import Pod

HERE = os.path.dirname(os.path.abspath(__file__))
SUPPORT = os.path.join(os.path.dirname(HERE), "support")
HANDLES = ["sh", "-c", "trap 'echo saved; exit 143' TERM; echo up; while :; do sleep 0.05; done"]
DEAF = ["sh", "-c", "echo up; while :; do sleep 0.05; done"]
LISTEN = """
import socket, sys
server = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
print("up", flush=True)
while True:
    peer, address = server.accept()
    peer.sendall(b"hello from " + socket.gethostname().encode())
    peer.close()
"""


def listen(port):
    return ["python3", "-I", "-S", "-c", LISTEN, str(port)]


def ask(pod, name, port):
    code = ("import socket, sys\ns = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1.5)\n"
            "print(s.recv(100).decode(), 'from', s.getpeername()[0])")  # fmt: skip
    done = pod.exec("python3", "-I", "-S", "-c", code, name, str(port))
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def until_up(sim, *hostnames):
    names = hostnames or [pod.hostname for pod in sim.pods]
    sim.wait(20, lambda: all("up" in sim.pod(name).output for name in names))


# ---- Names and networks ----------------------------------------------------------------------------------------------


def test_pods_find_each_other_by_host_name_and_service(simulate):
    sim = simulate(builders.indexed_job(3, listen(29500)))
    until_up(sim)
    first, last = sim.pod("train-0"), sim.pod("train-2")
    assert ask(last, "train-0.train", 29500) == f"hello from train-0 from {first.addresses[0]}"
    found = last.exec("getent", "ahostsv4", "train").stdout
    assert all(pod.addresses[0] in found for pod in sim.pods)
    assert last.exec("hostname").stdout.strip() == "train-2"
    assert last.exec("ls", "/sys/class/net").stdout.split() == ["eth0", "lo"]
    # The bridge has an address of its own, which does not change when a pod ends.
    assert "02:00:c6:12:00:01" in sim.fabric.sandbox.run("ip", "link", "show", "br0")
    # The name of a deleted pod disappears at once; an unknown name does not exist.
    first.terminate(0)
    sim.wait(10, lambda: first.gone)
    begin = time.monotonic()
    assert last.exec("getent", "hosts", "train-0.train").returncode == 2
    assert last.exec("getent", "hosts", "train-9.train").returncode == 2
    assert time.monotonic() - begin < 1  # the server answered; the query did not time out


def test_the_simulated_network_has_no_route_out(simulate):
    sim = simulate(builders.indexed_job(1, DEAF))
    until_up(sim)
    pod = sim.pod("train-0")
    assert pod.exec("ip", "route", "show", "default").stdout == ""
    assert "198.18." not in subprocess.run(["ip", "-4", "addr"], capture_output=True, text=True).stdout
    assert "Network is unreachable" in ask(pod, "1.1.1.1", 53)


def test_names_of_pods_that_are_not_ready_depend_on_the_service(simulate):
    probe = {"tcpSocket": {"port": 7}}
    documents = builders.stateful_set(1, DEAF, container_readinessProbe=probe)
    sim = simulate(documents)
    until_up(sim)
    assert not sim.pod("train-0").ready
    assert "train-0.train.default.svc.cluster.local" in sim.network.published
    documents[1]["spec"]["publishNotReadyAddresses"] = False
    other = simulate(documents)
    until_up(other)
    assert other.network.published == {}


def test_pods_with_nothing_but_ipv6_reach_each_other(simulate):
    sim = simulate(builders.indexed_job(2, listen(29500)), families="6")
    until_up(sim)
    printed = ask(sim.pod("train-1"), "train-0.train", 29500)
    assert re.fullmatch(r"hello from train-0 from fd18::\w+", printed)
    assert "inet " not in sim.pod("train-1").exec("ip", "addr", "show", "eth0").stdout


def test_a_stateful_set_in_order_starts_the_next_pod_when_the_last_is_ready(simulate):
    probe = {"tcpSocket": {"port": 29500}}
    late = ["sh", "-c", 'echo up; until [ -e /tmp/go ]; do sleep 0.05; done; exec "$@"', "sh", *listen(29500)]
    sim = simulate(
        builders.stateful_set(2, late, spec={"podManagementPolicy": "OrderedReady"}, container_readinessProbe=probe)
    )
    until_up(sim, "train-0")
    end = time.monotonic() + 0.5
    sim.wait(5, lambda: time.monotonic() > end)
    assert len(sim.pods) == 1 and not sim.pods[0].ready
    assert sim.pod("train-0").exec("touch", "/tmp/go").returncode == 0
    sim.wait(20, lambda: len(sim.pods) == 2)
    assert sim.pods[0].ready


def test_a_pod_that_is_replaced_has_the_same_name_and_a_new_address(simulate):
    sim = simulate(builders.stateful_set(1, listen(29500)))
    until_up(sim)
    first = sim.pod("train-0")
    first.terminate(0.2)
    sim.wait(10, lambda: sim.pod("train-0") is not first)
    assert first.addresses != sim.pod("train-0").addresses and first.name == sim.pod("train-0").name


def test_a_signal_to_a_container_that_is_being_started_arrives(simulate, monkeypatch):
    """Its process is not known yet, as on a slow machine."""
    with monkeypatch.context() as slow:
        slow.setattr(Pod, "take_ends", lambda pod: [])
        sim = simulate(builders.indexed_job(1, DEAF))
        sim.wait(10, lambda: sim.pods and sim.pods[0].main.running)
        first = sim.pods[0]
        assert not first.main.pid
        first.signal(signal.SIGKILL)
    sim.wait(20, lambda: first.main.codes == [137])


def test_services_with_an_address_leave_variables_that_look_like_ports(simulate):
    plain = {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {"name": "master"},
        "spec": {"ports": [{"port": 23456}]},
    }
    sim = simulate([*builders.indexed_job(1, ["sh", "-c", "echo $MASTER_PORT"]), plain])
    sim.wait(10)
    assert sim.pods[0].output == "tcp://10.96.7.7:23456\n"
    sim = simulate([*builders.indexed_job(1, ["sh", "-c", "echo $MASTER_PORT"], enableServiceLinks=False), plain])
    sim.wait(10)
    assert sim.pods[0].output == "\n"


# ---- Ends ------------------------------------------------------------------------------------------------------------


def test_a_handler_runs_on_sigterm_and_its_code_is_the_pods(simulate):
    sim = simulate(builders.indexed_job(1, HANDLES))
    until_up(sim)
    sim.evict(sim.pod("train-0"))
    sim.wait(10)
    assert (sim.pods[0].code, sim.pods[0].output) == (143, "up\nsaved\n")
    assert sim.result("train") == "Failed: BackoffLimitExceeded: index 0 ended with 143"


def test_process_one_without_a_handler_ignores_sigterm_and_is_killed_after_the_grace(simulate):
    sim = simulate(builders.indexed_job(1, DEAF))
    until_up(sim)
    begin = time.monotonic()
    sim.evict(sim.pod("train-0"), grace=0.6)
    sim.wait(10)
    assert sim.pods[0].code == 137 and time.monotonic() - begin >= 0.6


def test_an_evicted_pod_is_replaced_without_counting_and_exit_zero_would_end_its_index(simulate):
    rules = {"podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}}
    sim = simulate(builders.indexed_job(1, HANDLES, rules=rules))
    until_up(sim)
    sim.evict(sim.pods[0])
    sim.wait(10, lambda: len(sim.pods) == 2 and "up" in sim.pods[1].output)
    assert sim.result("train") == "Running"
    polite = ["sh", "-c", "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"]
    sim = simulate(builders.indexed_job(1, polite, rules=rules))
    until_up(sim)
    sim.evict(sim.pods[0])
    sim.wait(10)
    assert sim.result("train") == "Complete"  # although nothing was computed


def test_a_failed_index_is_tried_again_until_the_limit(simulate):
    sim = simulate(builders.indexed_job(2, ["sh", "-c", "exit $JOB_COMPLETION_INDEX"], rules={"backoffLimit": 2}))
    sim.wait(20)
    assert [pod.code for pod in sim.pods if pod.plan.index == 1] == [1, 1, 1]
    assert sim.result("train").startswith("Failed: BackoffLimitExceeded")


def test_a_container_is_restarted_in_its_pod_if_the_policy_allows_it(simulate):
    documents = builders.stateful_set(1, ["sh", "-c", "hostname; exit 3"])
    sim = simulate(documents, crash_backoff_s=0.05)
    sim.wait(10, lambda: len(sim.pods[0].main.codes) >= 2)
    assert len(sim.pods) == 1 and sim.pods[0].main.codes[:2] == [3, 3]


def test_a_job_set_begins_all_over_when_one_job_fails(simulate):
    once = ["sh", "-c", 'echo "attempt $ATTEMPT"; [ "$ATTEMPT" = 1 ]']
    documents = builders.job_set(2, 1, once, spec={"failurePolicy": {"maxRestarts": 1}})
    pod = documents[1]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    pod["spec"]["containers"][0]["env"].append(
        {
            "name": "ATTEMPT",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"}},
        }
    )
    sim = simulate(documents)
    sim.wait(20)
    assert sim.result("train") == "Complete" and len(sim.pods) == 4


def test_the_highest_indexes_go_when_an_indexed_job_shrinks(simulate):
    sim = simulate(builders.indexed_job(3, HANDLES))
    until_up(sim)
    sim.scale("train", 2)
    sim.wait(10, lambda: sim.pod("train-2").gone)
    assert [pod.hostname for pod in sim.living()] == ["train-0", "train-1"]
    sim.scale("train", 3)
    sim.wait(10, lambda: len(sim.living()) == 3)


def test_a_command_that_does_not_exist_is_named(simulate):
    sim = simulate(builders.indexed_job(1, ["no-such-program"]))
    sim.wait(10)
    assert (sim.pods[0].code, sim.pods[0].output) == (
        127,
        "cannot start 'no-such-program': No such file or directory\n",
    )


# ---- Files and limits ------------------------------------------------------------------------------------------------


def test_shared_memory_is_64_mib_and_private_unless_a_volume_replaces_it(simulate):
    fill = ["sh", "-c", "ls /dev/shm; head -c 100M /dev/zero >/dev/shm/x && echo fits"]
    sim = simulate(builders.indexed_job(2, fill, rules={"backoffLimitPerIndex": 0}))
    sim.wait(20)
    for pod in sim.pods:
        assert pod.code == 1 and "No space left" in pod.output and "x" not in pod.output.split()
    options = {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "128Mi"}}],
            "container_volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}  # fmt: skip
    sim = simulate(builders.indexed_job(1, fill, **options))
    sim.wait(20)
    assert sim.pods[0].output == "fits\n"


def test_a_container_over_its_memory_is_killed(simulate):
    eat = ["python3", "-I", "-S", "-c", "x = bytearray(300 << 20)"]
    sim = simulate(builders.indexed_job(1, eat, container_resources={"limits": {"memory": "64Mi"}}))
    sim.wait(20)
    assert sim.pods[0].code == 137


def test_a_container_is_held_to_its_quota_of_half_a_core(simulate):
    sim = simulate(builders.indexed_job(1, DEAF, container_resources={"limits": {"cpu": "500m"}}))
    until_up(sim)
    (group,) = sim.pods[0].cgroups
    printed = {
        name: open(f"{group}/{name}").read().split()
        for name in os.listdir(group)
        if name in ("cpu.cfs_quota_us", "cpu.max", "cgroup.procs")
    }
    assert str(sim.pods[0].main.pid) in printed["cgroup.procs"]
    assert "50000" in (printed.get("cpu.cfs_quota_us") or printed["cpu.max"])  # of each 100000 microseconds


def test_users_roots_and_secrets_are_those_of_the_pod(simulate):
    look = ["sh", "-c", "id -u; cat /key/key; echo; echo x >/usr/written; echo x >/scratch/written && cat "
                        "/scratch/written; "
            "grep -c CapEff:.0000000000000000 /proc/self/status"]  # fmt: skip
    room = {
        "volumes": [{"name": "key", "secret": {"secretName": "job-key"}}, {"name": "scratch", "emptyDir": {}}],
        "container_volumeMounts": [{"name": "key", "mountPath": "/key"}, {"name": "scratch", "mountPath": "/scratch"}],
        "container_securityContext": {
            "readOnlyRootFilesystem": True,
            "runAsUser": 1000,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    sim = simulate(builders.indexed_job(1, look, **room))
    sim.wait(10)
    lines = sim.pods[0].output.splitlines()
    assert lines[0] == "1000" and lines[1] == "0123456789abcdef0123456789abcdef" and lines[-2:] == ["x", "1"]
    assert "Read-only file system" in sim.pods[0].output
    assert not os.path.exists("/usr/written") and not os.path.exists("/scratch")


@pytest.mark.parametrize("added, code", [(["CHOWN"], 0), ([], 1)])
def test_a_container_of_root_has_the_capabilities_that_it_adds_and_no_others(simulate, added, code):
    rules = {"runAsUser": 0, "capabilities": {"drop": ["ALL"], "add": added}}
    change = ["sh", "-c", "touch /tmp/own; chown 1000 /tmp/own"]
    sim = simulate(builders.indexed_job(1, change, container_securityContext=rules, rules={"backoffLimit": 0}))
    sim.wait(10)
    assert sim.pods[0].main.codes == [code], sim.logs()


def test_files_written_in_one_pod_are_not_in_another_or_on_the_machine(simulate):
    sim = simulate(builders.indexed_job(2, ["sh", "-c", "ls /opt; touch /opt/podsim-was-here-$JOB_COMPLETION_INDEX"]))
    sim.wait(10)
    assert sim.result("train") == "Complete" and "podsim-was-here" not in sim.pods[0].output + sim.pods[1].output
    assert not [name for name in os.listdir("/opt") if name.startswith("podsim-was-here")]


def test_init_containers_come_first_and_share_volumes(simulate):
    mount = [{"name": "v", "mountPath": "/v"}]
    more = {
        "initContainers": [{"name": "before", "command": ["sh", "-c", "echo prepared >/v/x"], "volumeMounts": mount}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "container_volumeMounts": mount,
    }
    sim = simulate(builders.indexed_job(1, ["cat", "/v/x"], **more))
    sim.wait(10)
    assert sim.pods[0].output == "prepared\n"


# ---- Cleaning up -----------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
sys.path[:0] = sys.argv[1:]
import podsim, builders
sim = podsim.PodSim(builders.indexed_job(2, ["sleep", "1000"], container_resources={"limits": {"memory": "64Mi"}}))
sim.start()
sim.wait(10, lambda: all(pod.main.pid for pod in sim.pods))
pids = [str(pid) for pod in sim.pods for pid in (pod.main.pid, pod.sandbox.pid)]
print(" ".join(pids), sim.fabric.dns.pid, sim.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def runs(pid):
    """A zombie does not count: the machine's init may take seconds to reap it."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("command,overloaded,factor", [
    ("sleep 100", False, 1), ("sleep 100", True, 4), ("while :; do echo up; sleep 0.05; done", False, 4)])  # fmt: skip
def test_a_wait_ends_with_its_timeout_unless_pods_print_or_the_machine_is_overloaded(
    simulate, monkeypatch, command, overloaded, factor
):
    """The clock is that of the test: each step of the simulation takes 1 s."""
    sim = simulate(builders.indexed_job(1, ["sh", "-c", command]))
    sim.wait(20, lambda: sim.pods[0].main.pid)
    seconds = iter(range(1000))
    monkeypatch.setattr(podsim, "is_overloaded", lambda: overloaded)
    clock = types.SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: time.sleep(0.02))
    monkeypatch.setattr(podsim, "time", clock)
    with pytest.raises(AssertionError, match="not within 20 s"):
        sim.wait(20, lambda: False)
    assert 20 * factor <= next(seconds) <= 30 * factor


def test_a_simulation_that_is_killed_leaves_no_process_and_the_next_one_sweeps_its_files(simulate):
    if podsim.why_not():
        simulate([])
    done = subprocess.run([sys.executable, "-c", KILLED, HERE, SUPPORT], capture_output=True, text=True, timeout=30)
    assert done.returncode == -signal.SIGKILL, done.stderr
    *pids, folder = done.stdout.split()
    end = time.monotonic() + 5
    while any(runs(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.02)
    assert [pid for pid in pids if runs(pid)] == []
    assert os.path.exists(folder)
    removed = podsim.sweep()
    assert folder in removed and not os.path.exists(folder)
    assert [path for path in removed if path.startswith("/sys/fs/cgroup")] and podsim.sweep() == []


def test_several_processes_may_sweep_the_same_files(tmp_path):
    folder = tmp_path / "podsim-1-0-killed"  # of a process that was born at another time
    for number in range(500):
        (folder / str(number) / "root").mkdir(parents=True)
    code = "import sys; sys.path.append(sys.argv[1]); import machine; machine.sweep()"
    words = [sys.executable, "-c", code, HERE]
    started = [
        subprocess.Popen(words, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [(one.communicate(timeout=120)[1], one.returncode) for one in started] == [("", 0)] * 4
    assert not folder.exists()
