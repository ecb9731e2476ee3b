"""Tests of `farandole kubernetes logs` and `status` with a stub of kubectl, and of the ways to start the command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from farandole import launcher
from farandole.integrations.kubernetes.__main__ import main
from kubectl_stub import STUB, pod


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """cluster([pods], [pods later], logs={pod: text}, events=[...]) returns a function that returns kubectl's calls."""

    def answers(*moments, logs=None, events=()):
        stub = tmp_path / "bin" / "kubectl"
        stub.parent.mkdir()
        stub.write_text(STUB)
        stub.chmod(0o755)
        for number, pods in enumerate(moments, 1):
            (tmp_path / f"pods.{number}.json").write_text(json.dumps({"items": pods}))
        (tmp_path / "events.json").write_text(json.dumps({"items": list(events)}))
        for name, text in (logs or {}).items():
            (tmp_path / f"log.{name}").write_text(text)
        monkeypatch.setenv("PATH", f"{stub.parent}:/usr/bin:/bin")
        monkeypatch.setenv("STUB", str(tmp_path))
        return lambda: (tmp_path / "calls").read_text().splitlines()

    return answers


def test_h8_logs_come_in_order_of_rank_each_behind_its_number(cluster, capsys):
    calls = cluster(
        [pod(1, code=0), pod(10, code=0), pod(0, code=0)],
        logs={"train-0-x1": "a\nb\n", "train-1-x1": "c\n", "train-10-x1": "d\n"},
    )
    assert main(["logs", "train", "-n", "ml"]) == 0
    assert capsys.readouterr().out == "0| a\n0| b\n1| c\n10| d\n"
    assert calls()[0] == "get pods -l app.kubernetes.io/instance=train -o json -n ml"


def test_h8_followed_logs_wait_for_pods_print_the_reason_once_and_end_with_the_jobs_code(cluster, capsys):
    calls = cluster(
        [],
        [pod(0, unscheduled="0/3 nodes are available: 3 Insufficient nvidia.com/gpu."), pod(1)],
        [pod(0, unscheduled="0/3 nodes are available: 3 Insufficient nvidia.com/gpu."), pod(1)],
        [pod(0), pod(1)],
        [pod(0, code=3), pod(1, code=202)],
        logs={"train-0-x1": "loss=1\n", "train-1-x1": "hello\n"},
    )
    assert main(["logs", "train", "--follow", "--timeout", "5"]) == 3
    captured = capsys.readouterr()
    assert sorted(captured.out.splitlines()) == ["0| loss=1", "1| hello"]
    assert captured.err.splitlines() == [
        "farandole kubernetes: no pods of 'train' yet: if this lasts, see `kubectl get events`",
        "farandole kubernetes: train-0-x1 waits: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        "farandole kubernetes: train-0-x1 ended with 3",
        "farandole kubernetes: train-1-x1 ended with 202: another rank was lost",
    ]
    assert "logs train-0-x1 -f" in calls()


def test_k20_the_code_is_that_of_the_pod_that_failed_first(cluster):
    cluster([pod(0, code=202), pod(1, code=78), pod(2, code=203)])
    assert main(["status", "train", "--wait"]) == 78


def test_pods_that_never_start_are_an_error_after_the_timeout(cluster, capsys):
    cluster([pod(0, waiting={"reason": "ImagePullBackOff", "message": "no such image"})])
    assert main(["logs", "train", "-f", "--timeout", "0.2"]) == 1
    captured = capsys.readouterr().err
    assert "train-0-x1 waits: ImagePullBackOff: no such image" in captured and "not started within 0.2 s" in captured


def test_status_shows_the_state_of_each_pod_and_why_it_waits(cluster, capsys):
    cluster(
        [
            pod(0),
            pod(1, waiting={"reason": "ContainerCreating"}),
            pod(2, code=137, reason="OOMKilled"),
            pod(3, waiting={"reason": "CreateContainerConfigError", "message": 'secret "train-key" not found'}),
            pod(4, code=143),
        ],
        events=[{"type": "Normal", "message": "pulled"}, {"type": "Warning", "message": "MountVolume failed"}],
    )
    assert main(["status", "train"]) == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "rank  pod         node    state           why",
        "0     train-0-x1  node-0  running",
        "1     train-1-x1  node-1  waiting         MountVolume failed",
        "2     train-2-x1  node-2  ended with 137  out of memory: give more --memory",
        '3     train-3-x1  node-3  waiting         CreateContainerConfigError: secret "train-key" not found',
        "4     train-4-x1  node-4  ended with 143  preempted, state saved",
    ]


def test_of_a_pod_that_was_replaced_the_newest_counts(cluster):
    cluster([pod(0, code=143, made="1"), pod(0, code=0, made="2"), pod(1, code=0)])
    assert main(["status", "train", "--wait"]) == 0


def test_launchers_and_masters_come_first_and_keep_their_names(cluster, capsys):
    replica = "training.kubeflow.org/replica-"
    cluster(
        [
            pod(0, name="t-worker-0", labels={f"{replica}type": "worker", f"{replica}index": "0"}, code=0),
            pod(0, name="t-master-0", labels={f"{replica}type": "master", f"{replica}index": "0"}, code=0),
        ],
        logs={"t-worker-0": "w\n", "t-master-0": "m\n"},
    )
    assert main(["logs", "t"]) == 0
    assert capsys.readouterr().out == "t-master-0| m\n0| w\n"


def test_a_job_that_is_not_there_is_an_error(cluster, capsys):
    cluster([])
    assert main(["status", "train"]) == 1
    assert main(["logs", "train"]) == 1
    assert "there is no pod with the label app.kubernetes.io/instance=train" in capsys.readouterr().err


def test_e15_without_kubectl_or_without_a_server_the_error_names_it(tmp_path, cluster, monkeypatch, capsys):
    cluster([])
    (tmp_path / "pods.1.json").unlink()
    (tmp_path / "bin" / "kubectl").write_text("#!/bin/sh\necho 'connection refused' >&2\nexit 1\n")
    assert main(["status", "train"]) == 64
    assert "connection refused" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["status", "train"]) == 127
    assert "kubectl is not in PATH" in capsys.readouterr().err


# --- ways to start the command ---------------------------------------------------------------------------------------

WORDS = ["gen", "job", "--image", "x", "--", "y"]


@pytest.mark.parametrize("name", ["kubernetes", "k8s"])
def test_the_wheels_command_reaches_the_module(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["farandole", name, *WORDS])
    with pytest.raises(SystemExit) as end:
        launcher.main()
    assert end.value.code == 0 and "kind: Job" in capsys.readouterr().out


def _program(words, path, **more):
    return subprocess.run(
        [launcher.program(), *words], capture_output=True, text=True, env={**os.environ, "PATH": path, **more}
    )


def test_the_program_itself_becomes_python_with_the_same_words():
    done = _program(["kubernetes", *WORDS], f"{Path(sys.executable).parent}:/usr/bin:/bin")
    assert (done.returncode, done.stderr) == (0, "") and "kind: Job" in done.stdout
    assert "gen KIND" in _program(["k8s", "--help"], f"{Path(sys.executable).parent}:/usr/bin:/bin").stdout


def test_if_python_or_the_package_is_missing_the_error_names_it(tmp_path):
    done = _program(["kubernetes", *WORDS], str(tmp_path))
    assert done.returncode == 127 and "python3 does not start" in done.stderr
    (tmp_path / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    done = _program(["kubernetes", *WORDS], str(tmp_path))
    assert done.returncode == 1 and 'pip install "farandole[kubernetes]"' in done.stderr
