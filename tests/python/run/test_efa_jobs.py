"""Jobs of processes on hosts with EFA devices, which a provider of libfabric and a tree in place of /sys imitate."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request

import pytest
from efa_devices import LEAST_OLD, PROVIDERS, count, efa, make_nccl_plugin, make_tree
from launch import FARANDOLE, SUPPORT, free_port
from limits import allowed
from transport_programs import COLLECTIVES, NAMED, REPORT, START

pytestmark = pytest.mark.skipif(not os.path.isdir(PROVIDERS), reason=f"{PROVIDERS} is not built")
ATTEMPT = REPORT + "import farandole\nattempt(farandole.init)\n"


def start(program, count=2, **environment):
    return subprocess.Popen(
        [FARANDOLE, "run", "-np", str(count), "--", sys.executable, "-c", program],
        env={"PATH": os.environ["PATH"], "FARANDOLE_LOG_LEVEL": "info", **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip


def run(program, count=2, **environment):
    """Runs the program on so many ranks; returns the exit code and all output."""
    job = start(program, count, **environment)
    output, _ = job.communicate(timeout=allowed(120))
    return job.returncode, output


# The driver that starts ranks on two hosts: HOSTS_OF_RANKS names the host of each, by default one rank on each.
# Variables that begin with A_ and B_ are for one host only.
TWO_HOSTS = """
import os, subprocess, sys
pids = dict(pair.split("=") for pair in os.environ["HOSTS_OF_THIS_TEST"].split(","))
ranks = []
hosts = os.environ.get("HOSTS_OF_RANKS", "host-a host-b").split()
for rank, host in enumerate(hosts):
    own = {name[2:]: value for name, value in os.environ.items() if name.startswith(host[-1].upper() + "_")}
    variables = {**os.environ, **own, "FARANDOLE_RANK": str(rank), "FARANDOLE_SIZE": str(len(hosts)),
                 "FARANDOLE_RENDEZVOUS": "tcp://198.18.77.1:29500", "FARANDOLE_JOB_KEY": "0123456789abcdef"}
    ranks.append(subprocess.Popen(["nsenter", "--target", pids[host], "--net", "--uts", sys.executable, "-c",
                                   os.environ["PROGRAM"]], env=variables))
sys.exit(max(rank.wait() for rank in ranks))
"""


def run_on_two_hosts(program, host_a=None, host_b=None, **environment):
    own = {f"{letter}_{name}": value for letter, host in (("A", host_a), ("B", host_b))
           for name, value in (host or {}).items()}  # fmt: skip
    ended = subprocess.run(
        [sys.executable, os.path.join(SUPPORT, "two_hosts.py"), sys.executable, "-c", TWO_HOSTS],
        env={"PATH": os.environ["PATH"], "FARANDOLE_LOG_LEVEL": "info", "PROGRAM": program, **own, **environment},
        capture_output=True, text=True, timeout=allowed(120))  # fmt: skip
    return ended.returncode, ended.stdout + ended.stderr


# ---- The transport line ----------------------------------------------------------------------------------------------


def test_local_ranks_share_the_devices_and_the_line_names_them():
    code, output = run(COLLECTIVES, 2, FARANDOLE_TRANSPORT="efa", **efa(devices=4))
    assert code == 0 and len(re.findall(r"rank \d of 2 over efa", output)) == 2, output
    lines = re.findall(r"ofi: efa on ([^(]*) \(2 of 4 devices; the others are left to the other ranks of the host\), "
                       r"libfabric \d+\.\d+ \(/", output)  # fmt: skip
    assert lines == ["efa_0-rdm, efa_1-rdm"], output


def test_named_devices_are_used_by_each_rank():
    code, output = run(NAMED, 2, FARANDOLE_TRANSPORT="efa", FARANDOLE_OFI_DEVICES="efa_2,efa_0", **efa(devices=3))
    assert code == 0 and output.count("by name") == 2, output
    assert "on efa_2-rdm, efa_0-rdm (2 of 3 devices; FARANDOLE_OFI_DEVICES does not name the others)" in output, output


def test_each_rank_takes_the_device_of_its_numa_node(tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core: no two ranks can be bound to different ones")
    nodes = [cores[1], cores[0]]  # the first device is near the second rank
    bind = f'import os\nos.sched_setaffinity(0, [{cores[:2]}[int(os.environ["FARANDOLE_RANK"])]])\n'
    code, output = run(bind + COLLECTIVES, 2, FARANDOLE_TRANSPORT="efa", HWLOC_SYNTHETIC="numa:1024 pu:1",
                       FARANDOLE_LOG_LEVEL="debug", **efa(make_tree(tmp_path, 2, nodes=nodes), 2))  # fmt: skip
    assert code == 0, output
    for rank, device in ((0, "efa_1-rdm"), (1, "efa_0-rdm")):
        assert re.search(rf"\[{rank}\].*ofi: efa on {device} \(1 of 2 devices; .* NUMA node {cores[rank]}\)", output), (
            output
        )


@pytest.mark.parametrize("algorithm", ["auto", "ring"])
def test_two_hosts_with_devices_choose_efa_by_themselves(tmp_path, algorithm):
    environment = efa(make_tree(tmp_path, 1, model="c5n.18xlarge"), 1)
    code, output = run_on_two_hosts(COLLECTIVES, FARANDOLE_ALGORITHM=algorithm, **environment)
    assert code == 0 and len(re.findall(r"rank \d of 2 over efa", output)) == 2, output
    assert "transport: efa; 1 of 1 EFA devices (c5n.18xlarge)" in output, output


def test_hosts_with_gpus_say_at_the_start_whether_nccl_can_use_efa(tmp_path):
    tree = make_tree(tmp_path, 1)
    environment = {**efa(tree, 1), "LD_LIBRARY_PATH": str(tmp_path)}
    code, output = run_on_two_hosts(START, NCCL_NET_PLUGIN="ofi", **environment)
    assert code == 0 and "nccl: " not in output, "no driver of NVIDIA: " + output
    (tree / "module" / "nvidia").mkdir(parents=True)
    code, output = run_on_two_hosts(START, NCCL_NET_PLUGIN="ofi", **environment)
    assert code == 0 and output.count("nccl: no network plugin, so NCCL's bytes between hosts do not go over EFA") == 2
    assert "libnccl-net-ofi.so: cannot open shared object file" in output, output
    path = make_nccl_plugin(tmp_path)
    code, output = run_on_two_hosts(START, NCCL_NET_PLUGIN="ofi", **environment)
    assert code == 0 and output.count(f"nccl: its network plugin is {path}") == 2, output
    code, output = run(START, 2, NCCL_NET_PLUGIN="none", **environment)
    assert code == 0 and "nccl: " not in output, "one host: " + output


def test_where_efa_is_demanded_nccl_must_be_able_to_use_it(tmp_path):
    """One of the hosts lacks the plugin, and all ranks name it."""
    tree = make_tree(tmp_path, 1)
    path = make_nccl_plugin(tmp_path)
    (tree / "module" / "nvidia").mkdir(parents=True)
    environment = {**efa(tree, 1), "FARANDOLE_TRANSPORT": "shm,efa", "A_NCCL_NET_PLUGIN": str(path)}
    code, output = run_on_two_hosts(ATTEMPT, **environment, B_NCCL_NET_PLUGIN="absent")
    assert code != 0, output
    named = re.findall(r"UnsupportedError: [^\n]*shm,efa demands EFA, and NCCL's bytes between hosts would not go over "
                       r"it: rank 1 \(host-b\): its NCCL finds no network plugin; install", output)  # fmt: skip
    assert len(named) == 2, output
    for more in ({"B_NCCL_NET_PLUGIN": str(path)}, {"B_NCCL_NET_PLUGIN": "none"},
                 {"B_NCCL_NET_PLUGIN": "absent", "FARANDOLE_DEVICE_COLLECTIVES": "staged"}):  # fmt: skip
        code, output = run_on_two_hosts(START, **environment, **more)
        assert code == 0 and "transport: efa" in output, (more, output)


def test_one_host_without_devices_keeps_all_ranks_from_efa(tmp_path):
    environment = efa(make_tree(tmp_path / "with", 1), 1)
    without = {"FARANDOLE_SYSFS_ROOT": str(make_tree(tmp_path / "without", 0))}
    code, output = run_on_two_hosts(COLLECTIVES, host_b=without, **environment)
    assert code == 0 and len(re.findall(r"rank \d of 2 over tcp", output)) == 2, output
    if os.path.isdir("/dev/infiniband"):
        assert "EFA not used: rank 1 (host-b): it has no EFA device" in output, output
    else:  # the first host lacks a prerequisite of its own, which comes first
        assert "EFA not used: efa_0 is on the node, but /dev/infiniband is not in this pod" in output, output


def test_a_provider_without_the_devices_keeps_all_ranks_from_efa(tmp_path):
    environment = efa(make_tree(tmp_path, 1), 1)
    code, output = run_on_two_hosts(COLLECTIVES, host_b={"FAKE_EFA_DEVICES": "0"}, **environment)
    assert code == 0 and len(re.findall(r"rank \d of 2 over tcp", output)) == 2, output
    assert "EFA not used: ofi: libfabric" in output and "offers no provider efa" in output, output


# ---- A transport that is named is a must -----------------------------------------------------------------------------


def test_ranks_without_efa_are_named_on_all_ranks():
    program = 'import os\nif os.environ["FARANDOLE_RANK"] != "0": os.environ["FAKE_EFA_DEVICES"] = "0"\n' + ATTEMPT
    code, output = run(program, 3, FARANDOLE_TRANSPORT="efa", **efa())
    assert code != 0, output
    named = re.findall(r"\[(\d)\] UnsupportedError: [^\n]*rank 1 \([^)]*\), rank 2 \([^)]*\): ofi: [^\n]*offers no "
                       r"provider efa", output)  # fmt: skip
    assert sorted(named) == ["0", "1", "2"], output


def test_fewer_devices_than_expected_are_an_error_on_all_ranks():
    code, output = run(ATTEMPT, 2, FARANDOLE_TRANSPORT="efa", FARANDOLE_EXPECT_EFA="4", **efa(devices=2))
    assert code != 0, output
    assert len(re.findall(r"FARANDOLE_EXPECT_EFA demands 4 EFA devices, and there are 2", output)) >= 2, output


def test_fewer_devices_than_the_instance_type_has_are_reported(tmp_path):
    tree = make_tree(tmp_path, 2, model="p4d.24xlarge")
    code, output = run(COLLECTIVES, 2, FARANDOLE_TRANSPORT="efa", **efa(tree, 2))
    assert code == 0 and "transport: efa; 2 of 4 EFA devices (p4d.24xlarge)" in output, output


def test_each_candidate_is_listed_with_what_it_lacks():
    code, output = run(ATTEMPT, 2, FARANDOLE_TRANSPORT="efa", FARANDOLE_OFI_LIBRARY="libfabric.so.1")
    assert code != 0 and "shm: it reaches no other host" in output, output
    assert re.search(r"udp: only datagrams \(FI_EP_DGRAM\)", output), output


def test_a_libfabric_that_is_too_old_is_named():
    code, output = run(ATTEMPT, 2, FARANDOLE_TRANSPORT="efa", FARANDOLE_OFI_LIBRARY=LEAST_OLD)
    assert code != 0 and re.search(r"libfabric 1\.5 \(/.*fake_ofi_old\.so\) is too old; farandole needs 1\.9", output)


# ---- Counters --------------------------------------------------------------------------------------------------------

SUM = START + 'comm.allreduce(np.ones(1 << 20, "float32"), op="sum")\nfarandole.shutdown()\n'


def test_flat_counters_are_a_warning_at_the_end(tmp_path):
    code, output = run(SUM, 2, FARANDOLE_TRANSPORT="efa", **efa(make_tree(tmp_path, 1), 1))
    assert code == 0 and "less than this rank alone has sent, so the bytes took another way" in output, output
    assert re.search(r"warning.*efa: this rank gave \d{7,} bytes to libfabric; efa_0 counted 0 sent", output), output


def test_the_line_at_the_end_compares_our_bytes_with_the_devices(tmp_path):
    tree = make_tree(tmp_path, 2)
    count(tree, "efa_1", "rdma_write_bytes", 1000)
    grow = (
        'import os\nif os.environ["FARANDOLE_RANK"] == "0": '
        'open(os.environ["COUNTER"], "w").write(str(1000 + (64 << 20)))\n'
    )
    counter = tree / "class" / "infiniband" / "efa_1" / "ports" / "1" / "hw_counters" / "rdma_write_bytes"
    program = SUM.replace("farandole.shutdown()", grow + "comm.barrier()\nfarandole.shutdown()")
    code, output = run(program, 2, FARANDOLE_TRANSPORT="efa", COUNTER=str(counter), **efa(tree, 2))
    assert code == 0 and "another way" not in output, output
    assert len(re.findall(r"info.*efa: this rank gave \d{7,} bytes to libfabric; efa_0, efa_1 counted 0 sent, 0 "
                          rf"received, {64 << 20} written and 0 read remotely", output)) == 1, output  # fmt: skip


def test_metrics_have_the_counters_of_each_device(tmp_path):
    tree = make_tree(tmp_path, 2)
    count(tree, "efa_0", "tx_bytes", 12345)
    count(tree, "efa_1", "rdma_read_bytes", 678)
    port = free_port()
    program = START + "comm.barrier()\nimport sys\nprint('up', flush=True)\nsys.stdin.read()\n"
    variables = {"PATH": os.environ["PATH"], "FARANDOLE_METRICS_PORT": str(port), **efa(tree, 2)}
    with subprocess.Popen([sys.executable, "-c", program], env=variables, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as rank:  # fmt: skip
        assert rank.stdout.readline() == "up\n"
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        rank.stdin.close()
    assert 'farandole_efa_bytes_total{device="efa_0",op="tx"} 12345' in page, page
    assert 'farandole_efa_bytes_total{device="efa_1",op="rdma_read"} 678' in page, page
    assert page.count("farandole_efa_bytes_total{") == 8, page


# ---- Bad days --------------------------------------------------------------------------------------------------------

LOOP = (
    REPORT
    + START
    + """
def work():
    while True:
        comm.allreduce(np.ones(300000, "float32"), op="sum")
        os.path.exists(os.environ["READY"]) or open(os.environ["READY"], "w").close()
attempt(work)
"""
)


def test_a_lost_device_is_named_with_its_rank_within_two_seconds(tmp_path):
    lost, ready = tmp_path / "lost", tmp_path / "ready"
    program = 'import os\nif os.environ["FARANDOLE_RANK"] != "1": os.environ["FAKE_EFA_LOST"] = "/nowhere"\n' + LOOP
    job = start(program, 3, FARANDOLE_TRANSPORT="efa", FAKE_EFA_LOST=str(lost), READY=str(ready), **efa())
    deadline = time.monotonic() + allowed(60)
    while not ready.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    lost.touch()
    begun = time.monotonic()
    text = re.compile(r"\[\d\] \w+Error: [^\n]*on efa_0-rdm failed: [^\n]*the device of rank 1 \([^)]*\) is gone")
    named_after, output = [], ""
    for line in job.stdout:  # ends when the last rank has ended
        output += line
        if text.match(line):
            named_after.append(time.monotonic() - begun)
    assert job.wait(allowed(60)) != 0 and len(named_after) == 3, output
    assert max(named_after) < min(allowed(2), 8), f"{named_after} s; a silent rank is lost after 10 s"


@pytest.mark.parametrize("transport", ["ofi:tcp", "efa"])
def test_a_small_limit_of_locked_memory(transport):
    """The provider over TCP locks none, so that the job runs; the text of one that does is in hostile_network_test."""
    program = "import resource\nresource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))\n" + COLLECTIVES
    code, output = run(program, 2, FARANDOLE_TRANSPORT=transport, **efa())
    assert code == 0 and len(re.findall(r"rank \d of 2 over", output)) == 2, output


@pytest.mark.parametrize("transport", ["ofi:tcp", "efa"])
def test_a_forked_child_gets_an_error_and_leaves_the_job_alone(transport):
    program = (
        START
        + """
child = os.fork()
if child == 0:
    try:
        comm.allreduce(np.ones(3), op="sum")
    except farandole.Error as error:
        os._exit(0 if "was forked after farandole was initialized" in str(error) else 3)
    os._exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
for count in (10, 300000):
    assert (comm.allreduce(np.ones(count, "float32"), op="sum") == n).all()
# A child that ends as an interpreter does must not close what the parent uses.
import multiprocessing
worker = multiprocessing.get_context("fork").Process(target=print, args=("child", os.getpid()))
worker.start()
worker.join()
assert worker.exitcode == 0
assert (comm.allreduce(np.ones(300000, "float32"), op="sum") == n).all()
os.write(1, f"rank {r} goes on\\n".encode())
"""
    )
    code, output = run(program, 2, FARANDOLE_TRANSPORT=transport, **efa())
    assert code == 0 and output.count("goes on") == 2, output


@pytest.mark.parametrize("transport", ["ofi:tcp", "efa"])
def test_two_jobs_share_a_device(transport):
    jobs = [start(COLLECTIVES, 2, FARANDOLE_TRANSPORT=transport, **efa()) for _ in range(2)]
    outputs = [job.communicate(timeout=allowed(120))[0] for job in jobs]
    for job, output in zip(jobs, outputs):
        assert job.returncode == 0 and len(re.findall(r"rank \d of 2 over", output)) == 2, output
        assert "a packet is ignored" not in output, output


# ---- doctor, config and bench ----------------------------------------------------------------------------------------


def command(*words, **environment):
    return subprocess.run([FARANDOLE, *words], env={"PATH": os.environ["PATH"], **environment}, capture_output=True,
                          text=True, timeout=allowed(120))  # fmt: skip


def test_doctor_finds_libfabric_devices_and_what_is_missing(tmp_path):
    tree = make_tree(tmp_path, 2, model="p4d.24xlarge")
    limited = ["prlimit", "--memlock=65536:65536", FARANDOLE, "doctor", "--json"]
    done = subprocess.run(limited, env={"PATH": os.environ["PATH"], **efa(tree, 2)}, capture_output=True, text=True,
                          timeout=allowed(60))  # fmt: skip
    result = {one["what"]: one for one in json.loads(done.stdout)["findings"]}
    assert re.match(r"libfabric \d+\.\d+ \(/", result["libfabric"]["text"]), result["libfabric"]
    providers = result["providers"]["text"]
    assert "efa on efa_0-rdm, efa_1-rdm" in providers and "tcp;ofi_rxm on" in providers
    assert result["provider efa"]["verdict"] == "good"
    assert result["EFA"]["verdict"] == "warning" and "2 of 4 EFA devices (p4d.24xlarge)" in result["EFA"]["text"]
    assert "4 for p4d.24xlarge (table from" in result["EFA expected"]["text"]
    assert result["memlock"]["verdict"] == "bad" and "0 MiB" in result["memlock"]["text"]
    assert result["/dev/infiniband"]["verdict"] == ("good" if os.path.isdir("/dev/infiniband") else "bad")
    assert "in ingress and in egress" in result["EFA packets"]["remedy"] and "EFA efa_1" in result


def test_doctor_without_a_provider_of_the_devices(tmp_path):
    done = command("doctor", "--json", **efa(make_tree(tmp_path, 1), 0))
    result = {one["what"]: one for one in json.loads(done.stdout)["findings"]}
    assert result["provider efa"]["verdict"] == "bad" and "offers no provider efa" in result["provider efa"]["text"]
    assert done.returncode == 78


def test_config_shows_libfabric_and_whether_efa_can_be_used(tmp_path):
    text = command("config", **efa(make_tree(tmp_path, 1), 1)).stdout
    assert re.search(r"^libfabric: libfabric \d+\.\d+ \(/.*; .*efa on efa_0-rdm", text, re.M), text
    assert "\nEFA: its devices can be used\n" in text, text
    text = command("config", FARANDOLE_OFI_LIBRARY="/nowhere/libfabric.so").stdout
    assert "\nlibfabric: ofi: libfabric was not found (/nowhere/libfabric.so" in text, text


@pytest.mark.parametrize("transport", ["ofi", "ofi:tcp", "efa", "shm,efa"])
def test_bench_runs_over_each_transport(transport):
    done = command("bench", "--transport", transport, "--sizes", "4,64K", "--json", **efa())
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and [row["bytes"] for row in rows if "bytes" in row] == [4, 65536], done.stderr
    used = {row["transport"] for row in rows if "transport" in row}
    assert used == {"shm" if transport == "shm,efa" else transport}, done.stdout


@pytest.mark.parametrize("transport", ["efa", "shm+efa", "ofi:tcp", "shm+mpi"])
def test_explain_takes_each_transport(transport):
    done = command("explain", "--transport", transport, "--ranks", "8", "--hosts", "2", "--json")
    answer = json.loads(done.stdout)
    assert answer["transport"] == transport and answer["whole"] == ("shm" in transport), done.stdout
