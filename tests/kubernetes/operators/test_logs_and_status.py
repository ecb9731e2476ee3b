"""Tests of `farandole kubernetes logs` and `status` with real kubectl and a stub API server, which serves watches and
logs, breaks connections and forgets versions; and of the ways to start the command."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from api_pods import pod, with_sidecar
from farandole import launcher
from farandole.integrations.kubernetes.__main__ import main
from live_commands import NO_SUCH_JOB, RUNNING, SUSPENDED, UNREACHABLE, end_job, end_pod, follow_pod_1

# ---- One look --------------------------------------------------------------------------------------------------------


def test_h8_logs_come_in_order_of_rank_each_behind_its_number(api, capsys):
    api.put_job("Complete")
    for index, lines in ((1, "c"), (10, "d"), (0, "ab")):
        end_pod(api, index, 0)
        api.write(f"train-{index}-x1", *lines)
    assert main(["logs", "train", "-n", "ml"]) == 0
    assert capsys.readouterr().out == "0| a\n0| b\n1| c\n10| d\n"
    assert ("/api/v1/namespaces/ml/pods", {"labelSelector": "app.kubernetes.io/instance=train"}) in api.requests


def test_status_shows_the_state_of_each_pod_and_why_it_waits(api, capsys):
    api.put_job()
    for one in (
        pod(0),
        pod(1, waiting={"reason": "ContainerCreating"}),
        pod(2, code=137, reason="OOMKilled"),
        pod(3, waiting={"reason": "CreateContainerConfigError", "message": 'secret "train-key" not found'}),
        pod(4, code=143),
    ):
        api.put_pod(one)
    api.events += [{"type": "Normal", "message": "pulled"}, {"type": "Warning", "message": "MountVolume failed"}]
    assert main(["status", "train"]) == RUNNING
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "rank  pod         node    state           why",
        "0     train-0-x1  node-0  running",
        "1     train-1-x1  node-1  waiting         MountVolume failed",
        "2     train-2-x1  node-2  ended with 137  out of memory: give more --memory",
        '3     train-3-x1  node-3  waiting         CreateContainerConfigError: secret "train-key" not found',
        "4     train-4-x1  node-4  ended with 143  preempted, state saved",
    ]


@pytest.mark.parametrize(
    "conditions, spec, code",
    [
        (["SuccessCriteriaMet"], {}, RUNNING),  # its pods are still being ended
        (["SuccessCriteriaMet", "Complete"], {}, 0),
        (["FailureTarget", "Failed"], {}, 137),
        (["Suspended"], {"suspend": True}, SUSPENDED),
        ([], {}, RUNNING),
    ],
)
@pytest.mark.parametrize("command", ["logs", "status"])
def test_the_exit_code_is_the_state_of_the_job_and_not_of_its_pods(api, command, conditions, spec, code):
    api.put_job(*conditions, **spec)
    end_pod(api, 0, 202)
    end_pod(api, 1, 137)
    assert main([command, "train"]) == code


@pytest.mark.parametrize(
    "collection, status, code",
    [
        ("pytorchjobs", {"conditions": [{"type": "Succeeded", "status": "True"}]}, 0),
        ("pytorchjobs", {"conditions": [{"type": "Running", "status": "True"}]}, RUNNING),
        ("pytorchjobs", {"conditions": [{"type": "Suspended", "status": "True"}]}, SUSPENDED),
        ("jobsets", {"conditions": [{"type": "Completed", "status": "True"}]}, 0),
        ("jobsets", {"conditions": [{"type": "Failed", "status": "True"}]}, 1),
        ("rayjobs", {"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"}, 0),
        ("rayjobs", {"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Running"}, RUNNING),
        ("rayjobs", {"jobStatus": "FAILED", "jobDeploymentStatus": "Failed"}, 1),
        ("rayjobs", {"jobStatus": "FAILED", "jobDeploymentStatus": "Running"}, RUNNING),
        ("rayjobs", {"jobStatus": "FAILED", "jobDeploymentStatus": "Retrying"}, RUNNING),
        ("rayjobs", {"jobStatus": "STOPPED", "jobDeploymentStatus": "Complete"}, 1),
        ("rayjobs", {"jobDeploymentStatus": "ValidationFailed"}, 1),
        ("rayjobs", {"jobDeploymentStatus": "Suspended"}, SUSPENDED),
    ],
)
def test_every_operators_conditions_are_read(api, collection, status, code):
    kind = {"pytorchjobs": "PyTorchJob", "jobsets": "JobSet", "rayjobs": "RayJob"}[collection]
    api.put(collection, {"kind": kind, "metadata": {"name": "train"}, "status": status})
    assert main(["status", "train"]) == code


def test_k20_a_failed_job_has_the_code_of_the_pod_that_failed_first(api):
    api.put_job("Failed")
    for index, code, when in ((0, 202, "01"), (1, 78, "03"), (2, 3, "04"), (3, 203, "00")):
        one = pod(index, code=code)
        one["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = f"2026-01-01T00:00:{when}Z"
        api.put_pod(one)
    ended = pod(4, code=143)  # by the controller, after the failure
    ended["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:02Z"
    api.put_pod(ended)
    assert main(["status", "train"]) == 78


@pytest.mark.parametrize("first", [False, True], ids=["appended", "put first, and the annotation names ours"])
@pytest.mark.parametrize(
    "name, state", [("autoscaler", {"running": {}}), ("istio-proxy", {"terminated": {"exitCode": 0}})]
)
def test_the_state_of_a_pod_is_that_of_the_container_with_the_ranks(api, capsys, name, state, first):
    """Not of a container whose name comes before it, such as Ray's autoscaler or the sidecar of a mesh."""
    api.put_job("Failed")
    api.put_pod(with_sidecar(pod(0, code=3), name, state, first))
    assert main(["status", "train"]) == 3
    assert "ended with 3" in capsys.readouterr().out
    assert main(["logs", "train"]) == 3
    assert [query["container"] for path, query in api.requests if path.endswith("/log")] == ["trainer"]


def test_c5_k20_what_katib_diverts_into_its_collector_is_read_there(api, begin, capsys):
    """Katib redirects the container with the ranks of a trial's first pod to a file, which its collector prints."""
    api.put_job()
    first = with_sidecar(pod(0), "metrics-logger-and-collector", {"running": {}})
    api.put_pod(first)
    api.write("train-0-x1", "I0730 08:01:02.123456      15 main.go:143] [0] loss=0.25")
    command = begin("logs", "train", "--follow")
    command.until(lambda: command.out == ["0| [0] loss=0.25"])
    assert main(["logs", "train"]) == RUNNING
    assert capsys.readouterr().out == "0| [0] loss=0.25\n"
    asked = {query["container"] for path, query in api.requests if path.endswith("/log")}
    assert asked == {"metrics-logger-and-collector"}
    ended = with_sidecar(pod(0, code=0), "metrics-logger-and-collector", {"terminated": {"exitCode": 0}})
    api.put_pod(ended)
    api.put_job("Complete")
    assert command.code() == 0 and command.out == ["0| [0] loss=0.25"]


def test_the_pods_of_a_searchs_trials_are_told_apart(api, begin, capsys):
    """Each trial numbers its pods from 0, and trials run at the same time."""
    running = {"conditions": [{"type": "Running", "status": "True"}]}
    search = {"kind": "Experiment", "metadata": {"name": "train"}, "status": running}
    pods = [(trial, index) for trial in ("train-a", "train-b") for index in (0, 1)]

    def put_pods(code=None):
        for trial, index in pods:
            labels = {"batch.kubernetes.io/job-completion-index": str(index), "katib.kubeflow.org/trial": trial}
            api.put_pod(pod(index, code=code, name=f"{trial}-{index}-x1", labels=labels))

    api.put("experiments", search)
    put_pods()
    for trial, index in pods:
        api.write(f"{trial}-{index}-x1", f"line of {trial}")
    command = begin("logs", "train", "--follow")
    command.until(lambda: len(command.out) == 4)
    assert main(["status", "train"]) == RUNNING
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["train-a/0", "train-a-0-x1"], ["train-a/1", "train-a-1-x1"],
        ["train-b/0", "train-b-0-x1"], ["train-b/1", "train-b-1-x1"],
    ]  # fmt: skip
    put_pods(code=0)
    running["conditions"].append({"type": "Succeeded", "status": "True"})
    api.put("experiments", search)
    assert command.code() == 0
    assert sorted(command.out) == [f"{trial}/{index}| line of {trial}" for trial, index in pods]
    assert command.err == ["farandole kubernetes: Experiment train is complete"]


@pytest.mark.parametrize("code", [RUNNING, SUSPENDED, NO_SUCH_JOB])
def test_a_failed_pods_code_is_never_taken_for_another_state(api, code):
    api.put_job("Failed")
    end_pod(api, 0, code)
    assert main(["status", "train"]) == 1


def test_of_a_pod_that_was_replaced_the_newest_counts(api):
    """Without an object of the job the pods alone tell, such as after its --ttl."""
    end_pod(api, 0, 143, made="1")
    end_pod(api, 0, 0, made="2")
    end_pod(api, 1, 0)
    assert main(["status", "train"]) == 0


def test_launchers_and_masters_come_first_and_keep_their_names(api, capsys):
    replica = "training.kubeflow.org/replica-"
    for kind in ("worker", "master"):
        api.put_pod(pod(0, name=f"t-{kind}-0", labels={f"{replica}type": kind, f"{replica}index": "0"}, code=0))
        api.write(f"t-{kind}-0", kind[0])
    assert main(["logs", "train"]) == 0
    assert capsys.readouterr().out == "t-master-0| m\n0| w\n"


def test_a_job_that_is_not_there_is_an_error(api, capsys):
    assert main(["status", "train"]) == NO_SUCH_JOB
    assert main(["logs", "train"]) == NO_SUCH_JOB
    printed = capsys.readouterr().err
    assert "there is no job 'train' in namespace ml" in printed and "app.kubernetes.io/instance=train" in printed


def test_e15_without_kubectl_or_without_a_server_the_error_names_it(tmp_path, api, monkeypatch, capsys):
    api.http.shutdown()
    api.http.server_close()
    assert main(["status", "train"]) == UNREACHABLE
    assert "refused" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["status", "train"]) == 127
    assert "kubectl is not in PATH" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["status"], ["status", "--wait"], ["logs"], ["logs", "--follow"]])
def test_e15_without_a_configured_cluster_nothing_is_waited_for(tmp_path, api, monkeypatch, capsys, words):
    assert main([*words, "train", "--context", "missing"]) == UNREACHABLE
    assert 'context "missing" does not exist' in capsys.readouterr().err
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    assert main([*words, "train"]) == UNREACHABLE
    printed = capsys.readouterr().err
    assert "kubectl is configured for no cluster" in printed and "aws eks update-kubeconfig" in printed
    assert "connection is lost" not in printed


def test_a_server_that_does_not_answer_is_tried_until_the_timeout(api, begin):
    api.http.shutdown()
    api.http.server_close()
    follower = begin("logs", "train", "--follow", "--timeout", "3")
    assert follower.code() == UNREACHABLE
    assert any("the API server is not reached yet: " in line for line in follower.err), follower.err
    assert "the API server has not answered for 3 s (--timeout)" in follower.err[-1]


def test_rights_that_are_missing_are_named(api, capsys):
    api.forbidden |= {"jobs", "pods"}
    assert main(["status", "train"]) == UNREACHABLE
    assert "not readable: jobs" in capsys.readouterr().err
    api.forbidden = {"pods"}
    api.put_job()
    assert main(["logs", "train", "--follow"]) == UNREACHABLE
    assert "pods is forbidden" in capsys.readouterr().err


# ---- Following -------------------------------------------------------------------------------------------------------


def test_h8_followed_logs_begin_with_the_pods_that_run_and_name_why_others_wait(api, begin):
    """An elastic job of 2 to 3 pods: the third finds no node. Its lines follow when it has started."""
    api.put_job()
    api.put_pod(pod(0))
    api.put_pod(pod(1))
    api.put_pod(pod(2, unscheduled="0/3 nodes are available: 3 Insufficient nvidia.com/gpu."))
    api.write("train-0-x1", "loss=1")
    command = begin("logs", "train", "--follow")
    command.until(lambda: "0| loss=1" in command.out and any("train-2-x1 waits" in line for line in command.err))
    api.put_pod(pod(2))
    api.write("train-2-x1", "joined")
    command.until(lambda: "2| joined" in command.out)
    for index in range(3):
        end_pod(api, index, 0)
    time.sleep(0.3)
    assert command.process.poll() is None  # all pods have ended, and the controller has not decided yet
    api.put_job("SuccessCriteriaMet", "Complete")
    assert command.code() == 0
    assert command.err == [
        "farandole kubernetes: train-2-x1 waits: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        "farandole kubernetes: Job train is complete: R",
    ]


def test_followed_logs_wait_for_a_job_that_is_not_there_yet(api, begin):
    command = begin("logs", "train", "--follow")
    command.until(lambda: command.err == ["farandole kubernetes: there is no job 'train' yet"])
    api.put_job()
    api.put_pod(pod(0))
    api.write("train-0-x1", "a")
    command.until(lambda: command.out == ["0| a"])
    time.sleep(5.5)  # until the object is looked for again
    end_job(api, command)


def test_h8_successors_are_joined_and_the_first_lines_of_both_are_shown(api, begin):
    command = follow_pod_1(api, begin)
    api.write("train-1-x1", "left at step 3")
    end_pod(api, 1, 143)
    api.put_pod(pod(1, made="2"))
    api.write("train-1-x2", "second")
    command.until(lambda: "1| second" in command.out)
    api.delete("pods", "train-1-x1")
    end_pod(api, 1, 0, made="2")
    end_job(api, command)
    assert command.out == ["1| first", "1| left at step 3", "1| second"]
    assert "farandole kubernetes: train-1-x2 takes the place of train-1-x1" in command.err


def test_a_container_that_is_started_again_in_its_pod_is_followed(api, begin):
    api.put_job()
    api.put_pod(pod(0))
    api.write("train-0-x1", "once")
    command = begin("logs", "train", "--follow")
    command.until(lambda: "0| once" in command.out)
    again = pod(0)
    again["status"]["containerStatuses"][0]["restartCount"] = 1
    api.write("train-0-x1", "its last words")
    api.put_pod(again)
    api.write("train-0-x1", "twice", start=1)
    command.until(lambda: "0| twice" in command.out)
    done = pod(0, code=0)
    done["status"]["containerStatuses"][0]["restartCount"] = 1
    api.put_pod(done)
    api.put_job("Complete")
    assert command.code() == 0
    assert sorted(command.out) == ["0| its last words", "0| once", "0| twice"]


@pytest.mark.parametrize("seen", [True, False], ids=["while the pod is away", "after it has come back"])
def test_h8_a_successor_of_the_same_name_is_followed_and_no_line_comes_twice(api, begin, seen):
    """Such as of a StatefulSet or a PyTorchJob. The watch may show the end of the old pod and the new one at once."""
    api.put_job()

    def put(uid, **more):
        one = pod(0, name="train-0", **more)
        one["metadata"]["uid"] = uid
        api.put_pod(one)

    put("old")
    api.write("train-0", "old")
    command = begin("logs", "train", "--follow")
    command.until(lambda: "0| old" in command.out)
    with api.changed:
        api.delete("pods", "train-0")
        if seen:
            api.changed.wait(1)
            time.sleep(0.3)
        put("new")
        api.write("train-0", "new")
    command.until(lambda: "0| new" in command.out)
    time.sleep(1.5)  # longer than a reader pauses before it asks again
    api.write("train-0", "newer")
    put("new", code=0)
    api.put_job("Complete")
    assert command.code() == 0
    assert command.out == ["0| old", "0| new", "0| newer"], command.err
    assert "farandole kubernetes: a new train-0 takes the place of the old one" in command.err


@pytest.mark.parametrize("fault", ["cut", "torn", "gone", "refused"])
def test_a_broken_connection_is_resumed_without_lost_or_doubled_lines(api, begin, fault):
    """Lines of which several have the same time, and others the same second; the connections break in between."""
    api.put_job()
    api.put_pod(pod(0))
    expected, number = [], 0

    def write(count, step_s):
        nonlocal number
        lines = [f"line {number + one}" for one in range(count)]
        number += count
        expected.extend(f"0| {line}" for line in lines)
        api.write("train-0-x1", *lines, step_s=step_s)

    command = begin("logs", "train", "--follow")
    for _ in range(4):
        write(3, 0)
        write(2, 0.2)
        command.until(lambda: command.out[-1:] == expected[-1:])
        write(2, 0)  # unread, perhaps, when the connection breaks
        if fault == "gone":
            api.forget()
        if fault == "torn":
            api.tears = 2
        if fault == "refused":
            api.refuses = 4
        if fault != "torn":
            api.cut()
        write(3, 0.01)
    end_pod(api, 0, 0)
    api.put_job("Complete")
    assert command.code() == 0, command.err
    assert command.out == expected, command.err
    # The command connected again. A connection that is torn twice before a line comes counts once.
    assert sum(path.endswith("/log") for path, _ in api.requests) > 2


def test_after_410_gone_pods_that_came_and_went_meanwhile_are_found(api, begin):
    command = follow_pod_1(api, begin, "old")
    with api.changed:  # at once: no watch sees these events
        api.delete("pods", "train-1-x1")
        api.put_pod(pod(1, made="2"))
        api.write("train-1-x2", "new")
        api.forget()
    api.cut()
    command.until(lambda: "1| new" in command.out)
    lists = [query for path, query in api.requests if path.endswith("/pods") and "watch" not in query]
    assert len(lists) >= 2
    for index, made in ((0, "1"), (1, "2")):
        end_pod(api, index, 0, made=made)
    api.put_job("Complete")
    assert command.code() == 0


def test_a_failed_job_ends_with_its_pods_code_and_names_them(api, begin):
    api.put_job()
    api.put_pod(pod(0))
    api.put_pod(pod(1))
    command = begin("logs", "train", "--follow")
    command.until(lambda: any(path.endswith("/log") for path, _ in api.requests))
    api.write("train-0-x1", "ValueError: the last line")
    end_pod(api, 0, 3)
    end_pod(api, 1, 202)
    api.put_job("FailureTarget", "Failed")
    assert command.code() == 3
    assert command.out == ["0| ValueError: the last line"]
    assert command.err[-3:] == [
        "farandole kubernetes: Job train is failed: R",
        "farandole kubernetes: train-0-x1 ended with 3",
        "farandole kubernetes: train-1-x1 ended with 202: another rank was lost",
    ]


def test_c6_following_never_reports_success_for_a_job_that_runs(api, begin):
    api.put_job()
    api.put_pod(pod(0))
    assert begin("logs", "train", "--follow", "--limit", "1").code() == RUNNING
    api.put_pod(pod(0, waiting={"reason": "ImagePullBackOff", "message": "no such image"}))
    command = begin("logs", "train", "--follow", "--timeout", "1")
    assert command.code() == RUNNING
    assert command.err == [
        "farandole kubernetes: train-0-x1 waits: ImagePullBackOff: no such image",
        "farandole kubernetes: no pod has run for 1 s (--timeout): the job is still running",
    ]
    api.delete("pods", "train-0-x1")
    api.put_job("Suspended", suspend=True)
    command = begin("status", "train", "--wait", "--timeout", "1")
    assert command.code() == SUSPENDED
    assert "farandole kubernetes: Job train is suspended: R" in command.err


def test_a_server_that_stays_away_is_an_error_and_no_end_of_the_job(api, begin):
    api.put_job()
    api.put_pod(pod(0))
    command = begin("logs", "train", "--follow", "--timeout", "2")
    command.until(lambda: any(path.endswith("/log") for path, _ in api.requests))
    api.refuses = 10**6
    api.cut()
    assert command.code() == UNREACHABLE
    assert "the API server has not answered for 2 s (--timeout)" in command.err[-1]


def test_status_waits_and_prints_each_change_once(api, begin):
    api.put_job()
    api.put_pod(pod(0, unscheduled="no room"))
    command = begin("status", "train", "--wait")
    command.until(lambda: len(command.out) == 1)
    api.put_pod(pod(0))
    command.until(lambda: len(command.out) == 2)
    end_job(api, command)
    assert command.out[:3] == [
        "0| train-0-x1 waiting: no room", "0| train-0-x1 running", "0| train-0-x1 ended with 0"]  # fmt: skip


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
