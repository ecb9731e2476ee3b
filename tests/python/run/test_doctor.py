"""`farandole doctor` and `farandole sshd-init`: their findings, actions and exit codes."""

import json
import os
import signal
import subprocess
import sys

import efa_devices
from launch import FARANDOLE
from limits import allowed


def variables(environment=None):
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_", "PET_"))
    }
    return {**kept, **(environment or {})}


def doctor(*arguments, environment=None, run=()):
    done = subprocess.run([FARANDOLE, *run, "doctor", *arguments], env=variables(environment), capture_output=True,
                          text=True, timeout=allowed(60))  # fmt: skip
    assert done.returncode in (0, 78), done.stderr
    return done


def findings(environment=None):
    done = doctor("--json", environment=environment)
    result = {one["what"]: one for one in json.loads(done.stdout)["findings"]}
    assert (done.returncode == 78) == any(one["verdict"] == "bad" for one in result.values()), done.stdout
    return result


# ---- One pod ---------------------------------------------------------------------------------------------------------


def test_each_finding_has_a_verdict_and_bad_ones_exit_with_78():
    result = findings()
    assert {
        "rank",
        "ports",
        "listeners",
        "kernel",
        "cores",
        "/dev/shm",
        "memlock",
        "open files",
        "hugepages",
        "clock",
        "EFA",
    } <= set(result)
    assert all(list(one) == ["what", "verdict", "text", "remedy"] for one in result.values())
    assert result["rank"]["verdict"] == "good" and any(what.startswith("interface ") for what in result)
    text = doctor().stdout
    assert "single process" in text and "EFA not used" in text, text


def test_unresolved_names_and_a_silent_rendezvous_have_a_remedy():
    result = findings({"FARANDOLE_NODE_RANK": "1", "FARANDOLE_NNODES": "2", "FARANDOLE_JOB_KEY": "0123456789abcdef",
                     "FARANDOLE_RENDEZVOUS": "tcp://no-such-pod.invalid:29500"})  # fmt: skip
    name = result["name no-such-pod.invalid"]
    assert name["verdict"] == "bad" and "publishNotReadyAddresses" in name["remedy"]
    assert result["rendezvous no-such-pod.invalid:29500"]["verdict"] == "bad"
    result = findings(
        {"FARANDOLE_NODE_RANK": "1", "FARANDOLE_NNODES": "2", "FARANDOLE_RENDEZVOUS": "tcp://127.0.0.1:1"}
    )
    assert result["rendezvous 127.0.0.1:1"]["verdict"] == "note", "a host that answers is no fault"


def test_incomplete_pairs_are_bad_and_harmful_variables_are_warnings():
    result = findings({"PET_NODE_RANK": "1", "RDMAV_FORK_SAFE": "1", "FARANDOLE_PORT": "tcp://10.0.0.1:80",
                     "FARANDOLE_JOB_KEY": "a-secret-of-sixteen"})  # fmt: skip
    assert result["rank"]["verdict"] == "bad" and "PET_NNODES is not set" in result["rank"]["text"]
    assert result["RDMAV_FORK_SAFE"]["verdict"] == "warning"
    assert result["FARANDOLE_PORT"]["remedy"] == "enableServiceLinks: false"
    assert "a-secret-of-sixteen" not in json.dumps(result)


def test_misspelt_variables_are_warnings_that_name_the_right_one():
    result = findings({"FARANDOLE_TRANSPROT": "shm", "HOROVOD_CYCLE_TIME": "5", "OMP_NUM_THREADS": ""})
    assert result["FARANDOLE_TRANSPROT"]["verdict"] == result["HOROVOD_CYCLE_TIME"]["verdict"] == "warning"
    assert "do you mean FARANDOLE_TRANSPORT?" in result["FARANDOLE_TRANSPROT"]["text"]
    assert "OMP_NUM_THREADS" not in result, "one rank may use all cores"


def test_ranks_without_a_limit_of_threads_are_a_warning():
    run = [FARANDOLE, "run", "-np", "2", "--no-prefix", "--"]
    for command, verdict in (["env", "-u", "OMP_NUM_THREADS"], "warning"), ([], "good"):
        done = subprocess.run([*run, *command, FARANDOLE, "doctor", "--json"], env=variables({"OMP_NUM_THREADS": ""}),
                              capture_output=True, text=True, timeout=allowed(60))  # fmt: skip
        lines = [json.loads(line)["findings"] for line in done.stdout.splitlines() if line.startswith("{")]
        threads = [one for finding in lines for one in finding if one["what"] == "OMP_NUM_THREADS"]
        assert [one["verdict"] for one in threads] == [verdict], done.stdout + done.stderr


def test_missing_efa_devices_are_counted_in_the_given_tree(tmp_path):
    device = tmp_path / "class" / "infiniband" / "rdmap16s27"
    (device / "device").mkdir(parents=True)
    (device / "device" / "vendor").write_text("0x1d0f\n")
    (device / "ports" / "1" / "hw_counters").mkdir(parents=True)
    (device / "ports" / "1" / "hw_counters" / "tx_bytes").write_text("4096\n")
    result = findings({"FARANDOLE_SYSFS_ROOT": str(tmp_path), "FARANDOLE_EXPECT_EFA": "4"})
    assert result["EFA"]["verdict"] == "warning" and "1 of 4 EFA devices" in result["EFA"]["text"]
    assert "4096 bytes sent" in result["EFA rdmap16s27"]["text"]


def test_efa_that_the_transport_demands_and_the_host_lacks_is_bad():
    for settings in {}, {"FARANDOLE_EXPECT_EFA": "4"}:
        demanded = findings({"FARANDOLE_TRANSPORT": "shm,efa", **settings})["EFA"]
        assert demanded["verdict"] == "bad" and "FARANDOLE_TRANSPORT=shm,efa" in demanded["remedy"], demanded
    assert findings()["EFA"]["verdict"] == "note"


def test_the_network_plugin_of_nccl_is_looked_for_where_the_host_has_efa(tmp_path):
    host = {"FARANDOLE_SYSFS_ROOT": str(efa_devices.make_tree(tmp_path, 1))}
    assert "NCCL's plugin" not in findings(), "a host without EFA"
    none = findings({**host, "NCCL_NET_PLUGIN": "none"})["NCCL's plugin"]
    assert none["verdict"] == "warning" and none["text"] == "none: NCCL_NET_PLUGIN=none"
    missing = findings({**host, "LD_LIBRARY_PATH": str(tmp_path)})["NCCL's plugin"]
    assert (
        missing["verdict"] == "warning" and "libnccl-net.so" in missing["text"] and "aws-ofi-nccl" in missing["remedy"]
    )


# ---- Between ranks, and on a workstation -----------------------------------------------------------------------------


def test_every_pair_of_ranks_is_measured_and_the_slowest_is_named():
    done = doctor("--json", run=["run", "-np", "3", "--no-prefix", FARANDOLE])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    (result,) = [line for line in lines if line["findings"]]
    whats = [one["what"] for one in result["findings"]]
    assert sum(" - rank " in what for what in whats) == 3, whats
    assert "slowest pair" in whats and "latest pair" in whats, whats
    pair = next(one for one in result["findings"] if " - rank " in one["what"])
    assert " us, " in pair["text"] and " GB/s, clocks " in pair["text"]


def test_row_e15_missing_tools_are_explained_and_others_print_their_version(tmp_path):
    done = doctor("--cluster", "--json", environment={"PATH": str(tmp_path)})
    result = {one["what"]: one for one in json.loads(done.stdout)["findings"]}
    assert set(result) == {"kubectl", "aws", "eksctl", "helm"}
    assert (
        result["kubectl"]["verdict"] == "bad"
        and done.returncode == 78
        and "kubernetes.io" in result["kubectl"]["remedy"]
    )
    tool = tmp_path / "kubectl"
    tool.write_text("#!/bin/sh\necho Client Version: v1.37.1\n")
    tool.chmod(0o755)
    done = doctor("--cluster", "--json", environment={"PATH": str(tmp_path)})
    result = {one["what"]: one for one in json.loads(done.stdout)["findings"]}
    assert result["kubectl"]["text"] == "Client Version: v1.37.1" and done.returncode == 0


# ---- sshd-init -------------------------------------------------------------------------------------------------------

# A fake sshd that starts a daemon, as sshd does for mpirun; the daemon starts a rank that saves on SIGTERM.
SSHD = """#!/bin/bash
echo "sshd $@"
trap 'echo sshd ends; exit 0' TERM
OMPI_COMM_WORLD_RANK=1 setsid bash -c '
  trap "echo saving; sleep 0.3; echo saved; exit 0" TERM; echo rank $$; while true; do sleep 0.02; done' &
while true; do sleep 0.02; done
"""


def sshd_init(tmp_path, script=SSHD, **environment):
    program = tmp_path / "sshd"
    program.write_text(script)
    program.chmod(0o755)
    return subprocess.Popen(
        [FARANDOLE, "sshd-init", "--sshd", str(program), "--port", "2222"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables({"HOME": str(tmp_path), **environment}),
    )


def test_ranks_below_sshd_receive_sigterm_first_and_the_pod_exits_with_143(tmp_path):
    (tmp_path / ".sshd_config").write_text("")
    with sshd_init(tmp_path) as init:
        assert init.stdout.readline() == f"sshd -De -f {tmp_path}/.sshd_config -p 2222\n"
        assert init.stdout.readline().startswith("rank ")
        init.send_signal(signal.SIGTERM)
        output, errors = init.communicate(timeout=allowed(30))
    assert output == "saving\nsaved\nsshd ends\n", (output, errors)
    assert init.returncode == 143 and "SIGTERM: 1 ranks have" in errors, errors


def test_hanging_ranks_do_not_exceed_the_pods_grace_period(tmp_path):
    stubborn = SSHD.replace("echo saving; sleep 0.3; echo saved; exit 0", "")
    with sshd_init(tmp_path, stubborn, FARANDOLE_TERM_GRACE_S="0.3") as init:
        init.stdout.readline()
        rank = int(init.stdout.readline().removeprefix("rank "))
        init.send_signal(signal.SIGTERM)
        init.wait(allowed(30))
        os.kill(rank, signal.SIGKILL)  # in a pod the kernel does this when process 1 ends
    assert init.returncode == 143


def test_an_sshd_that_exits_is_a_failure_and_a_missing_one_names_the_package(tmp_path):
    with sshd_init(tmp_path, "#!/bin/sh\nexit 0\n") as init:
        assert init.wait(allowed(30)) == 1 and "sshd ended by itself (exit code 0)" in init.stderr.read()
    done = subprocess.run(
        [FARANDOLE, "sshd-init", "--sshd", str(tmp_path / "none")],
        env=variables(),
        capture_output=True,
        text=True,
        timeout=allowed(30),
    )
    assert done.returncode == 78 and "install openssh-server" in done.stderr


def test_orphans_of_sshd_are_reaped(tmp_path):
    script = f"""#!/bin/bash
    (setsid sh -c 'exit 0' &)
    exec {sys.executable} -c "
import os, time
parent = os.getppid()
end = time.monotonic() + 10
mine = lambda: [p for p in open(f'/proc/{{parent}}/task/{{parent}}/children').read().split() if int(p) != os.getpid()]
while mine() and time.monotonic() < end: time.sleep(0.02)
print('left', mine())
raise SystemExit(9)"
"""
    with sshd_init(tmp_path, script) as init:
        output, _ = init.communicate(timeout=allowed(30))
    assert output == "left []\n" and init.returncode == 9
