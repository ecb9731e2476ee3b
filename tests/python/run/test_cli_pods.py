"""`farandole run` in pods: what starts where, its output, and its exit code."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from launch import FARANDOLE, free_port
from limits import allowed

KEY = {"FARANDOLE_JOB_KEY": "sixteen-characters"}
SAY = "echo $FARANDOLE_RANK/$FARANDOLE_SIZE local $FARANDOLE_LOCAL_RANK node $FARANDOLE_NODE_RANK/$FARANDOLE_NODE_COUNT"


def variables(environment=None):
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_", "PET_"))
    }
    return {**kept, **(environment or {})}


def run(*arguments, environment=None, **more):
    return subprocess.run([FARANDOLE, "run", *arguments], env=variables(environment), capture_output=True, text=True,
                          timeout=allowed(60), **more)  # fmt: skip


def start(*arguments, environment=None):
    return subprocess.Popen([FARANDOLE, "run", *arguments], env=variables(environment), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)  # fmt: skip


def printed(text):
    """The output of the ranks of node 1 of the two in the pod's variables."""
    return sorted(text.splitlines())


POD_1_OF_2 = {
    "JOB_COMPLETION_INDEX": "1",
    "FARANDOLE_NNODES": "2",
    "FARANDOLE_RENDEZVOUS": "tcp://nowhere:29500",
    **KEY,
}


# ---- Processes and ranks ---------------------------------------------------------------------------------------------


def test_the_pods_variables_number_its_ranks():
    done = run("--nproc-per-node", "2", "--", "sh", "-c", SAY, environment=POD_1_OF_2)
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == ["[2] 2/4 local 0 node 1/2", "[3] 3/4 local 1 node 1/2"]
    assert "node 1/2" in done.stderr and "ranks 2 to 3 of 4, source=indexed-job" in done.stderr, done.stderr


PET = {
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "2",
    "PET_MASTER_ADDR": "m",
    "PET_MASTER_PORT": "1",
}


@pytest.mark.parametrize(
    ("environment", "arguments"),
    [
        ({**POD_1_OF_2, "FARANDOLE_RUN_NPROC_PER_NODE": "2"}, []),
        ({**PET, **KEY}, []),
        ({**PET, "RANK": "1", "WORLD_SIZE": "4", **KEY}, []),
        ({"FARANDOLE_NODE_RANK": "1", "FARANDOLE_NNODES": "2", **KEY}, ["-np", "2", "--rendezvous", "m"]),
        ({"JOB_COMPLETION_INDEX": "1", **KEY}, ["-np", "2", "--nnodes", "2", "--rendezvous", "m:1"]),
        ({"JOB_COMPLETION_INDEX": "1", **KEY}, ["--nproc_per_node=2", "--nnodes=2", "--rdzv_endpoint=m:1"]),
        (
            KEY,
            [
                "--nproc_per_node",
                "2",
                "--nnodes",
                "2",
                "--node_rank",
                "1",
                "--master_addr",
                "m",
                "--rdzv-backend",
                "c10d",
            ],
        ),
    ],
)
def test_torchruns_options_environment_and_launchers_are_equivalent(environment, arguments):
    done = run(*arguments, "--", "sh", "-c", SAY, environment=environment)
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == ["[2] 2/4 local 0 node 1/2", "[3] 3/4 local 1 node 1/2"], done.stderr


def test_the_command_line_wins_over_the_environment_and_standalone_over_the_launcher():
    done = run("-np", "1", "--standalone", "--", "sh", "-c", SAY,
               environment={**POD_1_OF_2, "FARANDOLE_RUN_NPROC_PER_NODE": "3"})  # fmt: skip
    assert done.stdout == "[0] 0/1 local 0 node 0/1\n", done.stderr


def test_auto_is_one_rank_per_gpu_or_core_and_is_printed():
    done = run("--nproc-per-node", "auto", "--", "sh", "-c", SAY, environment={"CUDA_VISIBLE_DEVICES": "0,1,2"})
    assert printed(done.stdout) == [f"[{r}] {r}/3 local {r} node 0/1" for r in range(3)], done.stderr
    assert "3 processes a node: 'auto', and this one has 3 GPUs" in done.stderr
    done = run("--nproc-per-node", "gpu", "--", "true", environment={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 64 and "has no GPU" in done.stderr


def test_a_script_and_a_module_are_given_to_python_as_torchrun_does(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys; print(sys.argv[1:])")
    path = {"PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]}
    assert run("--standalone", str(script), "--lr", "1", environment=path).stdout == "[0] ['--lr', '1']\n"
    done = run("-m", "timeit", "-n", "1", "-r", "1", "pass", environment=path)
    assert done.returncode == 0 and "loop" in done.stdout, done.stderr
    script.chmod(0o755)
    done = run("--no-python", str(script), environment=path)
    assert done.returncode != 0, "a script without a first line that names Python is no program"


@pytest.mark.parametrize(
    ("environment", "arguments", "code", "words"),
    [
        ({"JOB_COMPLETION_INDEX": "4", "FARANDOLE_NNODES": "4"}, [], 78, "not below the 4 nodes"),
        ({"PET_NODE_RANK": "1"}, [], 78, "PET_NNODES is not set"),
        ({"FARANDOLE_NODE_RANK": "1", "FARANDOLE_NNODES": "2"}, [], 78, "nothing gives the address of node 0"),
        ({}, ["--nnodes", "2", "--node-rank", "1", "--rendezvous", "m:1"], 78, "FARANDOLE_JOB_KEY_FILE"),
        ({"FARANDOLE_JOB_KEY_FILE": "/no/such"}, [], 78, "cannot be read from FARANDOLE_JOB_KEY_FILE"),
        ({"FARANDOLE_PORT_BASE": "65535"}, [], 78, "FARANDOLE_PORT_BASE = '65535'"),
        ({}, ["--nnodes", "2", "--node-rank", "2"], 64, "--node-rank 2 must be below --nnodes 2"),
        ({"FARANDOLE_RUN_NPROC_PER_NODE": "some"}, [], 64, "'some'"),
    ],
)  # fmt: skip
def test_errors_have_an_exit_code_that_shows_whether_a_retry_can_help(environment, arguments, code, words):
    done = run(*arguments, "--", "true", environment=environment)
    assert done.returncode == code, done.stderr
    assert words in done.stderr, done.stderr


# ---- Output ---------------------------------------------------------------------------------------------------------


def test_lines_of_json_name_rank_stream_pod_and_node():
    here = {"FARANDOLE_POD_NAME": "train-0", "FARANDOLE_NODE_NAME": "ip-10-0-1-7", "FARANDOLE_RUN_JSON_LOGS": "1"}
    done = run("-np", "1", "--", "sh", "-c", 'echo "a \\"b\\""; echo oops >&2; exit 3', environment=here)
    assert done.returncode == 3
    (line,) = [json.loads(text) for text in done.stdout.splitlines()]
    assert list(line) == ["time", "source", "pod", "node", "rank", "stream", "text"]
    assert (line["pod"], line["node"], line["rank"], line["stream"], line["text"]) == (
        "train-0",
        "ip-10-0-1-7",
        0,
        "stdout",
        'a "b"',
    )
    errors = [json.loads(text) for text in done.stderr.splitlines()]
    assert [one["text"] for one in errors if one["source"] == "rank"] == ["oops"]
    (failed,) = [one for one in errors if one.get("event") == "failed"]
    assert "rank 0 (process " in failed["text"] and "on pod train-0 (node ip-10-0-1-7) failed first" in failed["text"]


def test_lines_of_json_are_valid_where_a_rank_prints_other_bytes_than_utf_8():
    program = r"printf 'caf\351 \342\202\254\n'"
    done = run("-np", "1", "--json-logs", "--", "sh", "-c", program)
    assert done.returncode == 0, done.stderr
    (line,) = [json.loads(text) for text in done.stdout.splitlines()]
    assert line["text"] == "caf? \u20ac"


def test_the_first_failure_is_named_with_its_pod():
    here = {"FARANDOLE_POD_NAME": "train-0", "FARANDOLE_NODE_NAME": "n7"}
    script = "if [ $FARANDOLE_RANK = 1 ]; then exit 7; else trap 'exit 9' TERM; while true; do sleep 0.05; done; fi"
    done = run("-np", "2", "--", "bash", "-c", script, environment=here)
    assert done.returncode == 7
    assert "on pod train-0 (node n7) failed first: exit code 7" in done.stderr, done.stderr
    assert "rank 0 ended with exit code 9: collateral of the first failure" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("sentence", "consequence"),
    [("rank 0 on train-0 (process 7) was lost: its process ended", True), ("nothing of the kind", False)],
)
def test_a_report_names_its_rank_and_whether_the_cause_was_elsewhere(tmp_path, sentence, consequence):
    here = {**POD_1_OF_2, "FARANDOLE_POD_NAME": "train-1", "FARANDOLE_NODE_NAME": "n7"}
    run(
        "--report",
        str(tmp_path / "report"),
        "-np",
        "1",
        "--",
        "sh",
        "-c",
        f'echo "{sentence}" >&2; exit 1',
        environment=here,
    )
    printed = json.loads((tmp_path / "report").read_text())
    assert list(printed) == ["rank", "process", "exit_code", "ending", "pod", "node", "consequence"]
    assert (printed["rank"], printed["exit_code"], printed["ending"]) == (1, 1, "exit code 1")
    assert (printed["pod"], printed["node"], bool(printed["consequence"])) == ("train-1", "n7", consequence), printed


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("{}/no/such/report", "No such file or directory"),
        ("{}", "it is a folder"),
        ("", "its name is empty"),
        ("/etc/passwd/report", "Not a directory"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_before_ranks_start(tmp_path, path, why):
    path = path.format(tmp_path)
    done = run("--report", path, "-np", "1", "--", "touch", str(tmp_path / "started"))
    assert done.returncode == 64, done.stderr
    assert f"--report '{path}' cannot be written: {why}; name a file in a folder in which" in done.stderr, done.stderr
    assert not (tmp_path / "started").exists()


def test_a_report_that_is_lost_is_said(tmp_path):
    (tmp_path / "place").mkdir()
    report = tmp_path / "place" / "report"
    done = run("--report", str(report), "-np", "1", "--", "sh", "-c", f"rmdir {tmp_path}/place; exit 3")
    assert done.returncode == 3, done.stderr
    assert f"--report '{report}' cannot be written: No such file or directory" in done.stderr, done.stderr
    os.mkfifo(tmp_path / "pipe")
    done = run("--report", str(tmp_path / "pipe"), "-np", "1", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3, done.stderr
    assert f"--report '{tmp_path}/pipe' cannot be written: No such device or address" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("sentence", "code"),
    [
        ("farandole.Error: allreduce 'x': rank 1 on train-1 (process 7) was lost: its process ended", 202),
        (
            "farandole.Error: ranks 2 and 3 of 4 have not arrived after 30 s (expected on train-1); check their logs",
            200,
        ),
        ("farandole.Error: rank 2 did not find the coordinator at tcp://train-0:29500 within 30 s (...)", 200),
        ("ValueError: nothing of the kind", 1),
    ],
)
def test_a_failure_of_another_pod_gives_a_retryable_exit_code(sentence, code):
    done = run("-np", "1", "--", "sh", "-c", f'echo "{sentence}" >&2; exit 1', environment=POD_1_OF_2)
    assert done.returncode == code, done.stderr
    assert ("as a consequence" in done.stderr) == (code != 1), done.stderr
    alone = run("-np", "1", "--", "sh", "-c", f'echo "{sentence}" >&2; exit 1')
    assert alone.returncode == 1, "on one host the rank's own code is the news"


def test_missing_pods_are_named_by_their_pods():
    host = socket.gethostname()
    port = free_port()
    pod = {**KEY, "FARANDOLE_NODE_RANK": "0", "FARANDOLE_NNODES": "3", "FARANDOLE_RENDEZVOUS": f"tcp://127.0.0.1:{port}",
           "FARANDOLE_START_TIMEOUT_S": "0.5"}  # fmt: skip
    code = "import farandole as f; f.init()"
    done = run("-np", "1", "--", sys.executable, "-c", code, environment=pod)
    assert done.returncode == 200, done.stderr
    assert "ranks 1 and 2 of 3 have not arrived after 0.5 s" in done.stderr, done.stderr
    assert ("(expected on" in done.stderr) == (host.rsplit("-", 1)[-1] == "0" and "-" in host)


# ---- How it ends -----------------------------------------------------------------------------------------------------


def test_sigterm_waits_for_the_grace_period_and_exits_with_143():
    script = "trap 'sleep 0.3; echo saved; exit 0' TERM; echo ready; while true; do sleep 0.02; done"
    with start("-np", "2", "--", "bash", "-c", script, environment={"FARANDOLE_TERM_GRACE_S": "20"}) as job:
        assert {job.stdout.readline() for _ in range(2)} == {"[0] ready\n", "[1] ready\n"}
        job.send_signal(signal.SIGTERM)
        output, errors = job.communicate(timeout=allowed(30))
    assert printed(output) == ["[0] saved", "[1] saved"] and job.returncode == 143
    assert "SIGTERM: the ranks have 20 s" in errors and "failed first" not in errors, errors


@pytest.mark.parametrize(("grace", "signals"), [("0.3", 1), ("60", 2)])
def test_ranks_are_killed_after_the_grace_period_or_a_second_signal(grace, signals):
    script = "trap '' TERM; echo ready; while true; do sleep 0.02; done"
    with start("-np", "1", "--", "bash", "-c", script, environment={"FARANDOLE_TERM_GRACE_S": grace}) as job:
        job.stdout.readline()
        begin = time.monotonic()
        job.send_signal(signal.SIGTERM)
        if signals == 2:
            assert "SIGTERM: the ranks have 60 s" in job.stderr.readline()
            job.send_signal(signal.SIGTERM)
        job.communicate(timeout=allowed(30))
    assert job.returncode == 143 and time.monotonic() - begin < 20


def test_ranks_are_restarted_max_restarts_times(tmp_path):
    count = "echo again >> $0; [ $(wc -l < $0) = 3 ] || exit 5; echo restart $FARANDOLE_RESTART"
    done = run("-np", "1", "--max-restarts", "4", "--", "sh", "-c", count, str(tmp_path / "a"))
    assert (done.returncode, done.stdout) == (0, "[0] restart 2\n"), done.stderr
    done = run("-np", "1", "--", "sh", "-c", count, str(tmp_path / "b"), environment={"PET_MAX_RESTARTS": "1"})
    assert done.returncode == 5 and "restart 1 of 1" in done.stderr and "restart 2" not in done.stderr


def test_orphans_are_reaped_while_the_ranks_run():
    # Two generations of children without a wait; the rank continues and then looks for zombies of its launcher.
    script = (
        "for i in 1 2 3 4 5; do (sh -c 'exit 0' & ) ; done; "
        "for try in $(seq 100); do "
        "zombies=$(cat /proc/$PPID/task/$PPID/children | tr ' ' '\\n' | grep -cv \"^$$\\?$\"); "
        "[ $zombies = 1 ] && break; sleep 0.05; done; echo others $zombies"
    )
    done = run("-np", "1", "--", "bash", "-c", script)
    assert done.stdout == "[0] others 1\n" or done.stdout == "[0] others 0\n", (done.stdout, done.stderr)


# ---- env --explain ---------------------------------------------------------------------------------------------------


def explain(environment, *arguments):
    return subprocess.run([FARANDOLE, "env", "--explain", *arguments], env=variables(environment), capture_output=True,
                          text=True, timeout=allowed(60))  # fmt: skip


def test_env_explains_its_choice():
    pod = {**POD_1_OF_2, "SLURM_PROCID": "3", "MASTER_PORT": "tcp://10.0.0.1:80"}
    done = explain(pod, "--json")
    assert done.returncode == 0, done.stdout
    result = json.loads(done.stdout)
    verdicts = {row["row"]: row["verdict"] for row in result["rows"]}
    assert (result["rank"], result["size"], result["source"]) == (1, 2, "indexed-job")
    assert verdicts["indexed-job"] == "chosen" and verdicts["slurm"] == "ignored" and verdicts["pet"] == "absent"
    assert any("MASTER_PORT = 'tcp://10.0.0.1:80' is a service's" in note for note in result["notes"])
    text = explain(pod).stdout
    assert "indexed-job  node     chosen" in text and "note: MASTER_PORT" in text, text


def test_env_explains_an_error_and_the_behaviour_of_run():
    done = explain({**PET, "PET_NPROC_PER_NODE": "8"}, "--json")
    assert done.returncode == 78
    result = json.loads(done.stdout)
    assert "start with `farandole run` in each pod" in result["error"]
    assert result["node"].startswith("node 1/2 of 8 processes source=pet")
