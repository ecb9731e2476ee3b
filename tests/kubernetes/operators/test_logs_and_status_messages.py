"""Tests of the messages of `farandole kubernetes logs` and `status` on standard error, with real kubectl and a stub of
the API server: each fact is printed once, with its remedy, and none is wrong."""

import json
import time

import pytest
from api_pods import pod
from farandole.integrations.kubernetes.__main__ import main
from live_commands import NO_SUCH_JOB, RUNNING, SUSPENDED, UNREACHABLE, end_job, end_pod, follow_pod_1

SAYS = "farandole kubernetes: "


@pytest.mark.parametrize("words", [["status", "--wait"], ["logs", "--follow"]])
def test_a_job_that_never_comes_is_not_said_to_run(api, begin, words):
    command = begin(*words, "train", "--timeout", "1")
    assert command.code() == NO_SUCH_JOB
    assert command.err == [
        f"{SAYS}there is no job 'train' yet",
        f"{SAYS}no pod has run for 1 s (--timeout): there is no job 'train'",
        f"{SAYS}there is no job 'train' in namespace ml, and no pod with the label app.kubernetes.io/instance=train; "
        "--namespace and --context choose others",
    ]


@pytest.mark.parametrize("command", ["status", "logs"])
def test_one_look_at_a_job_that_does_not_run_says_why(api, capsys, command):
    """A suspended job has no pods: without this the command would print nothing."""
    api.put_job("Suspended", suspend=True)
    assert main([command, "train"]) == SUSPENDED
    assert capsys.readouterr() == ("", f"{SAYS}Job train is suspended: R\n")
    end_pod(api, 0, 3)
    api.put_job("Failed")
    assert main([command, "train"]) == 3
    assert capsys.readouterr().err == f"{SAYS}Job train is failed: R\n"
    api.put_job("Complete")
    assert main([command, "train"]) == 0
    assert capsys.readouterr().err == f"{SAYS}Job train is complete: R\n"
    api.put_job()
    assert main([command, "train"]) == RUNNING
    assert capsys.readouterr().err == ""


def test_a_pod_that_its_node_evicted_says_why_and_is_not_said_to_lack_memory(api, capsys):
    """Its container ends with 137, as without memory: here its files in /dev/shm have exceeded --shm."""
    full = 'Usage of EmptyDir volume "dshm" exceeds the limit "1Gi".'
    evicted = pod(0, code=137, reason="Error")
    evicted["status"].update(reason="Evicted", message=f"{full} ")
    refused = {**pod(1), "status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device"}}
    api.put_job("Failed")
    api.put_pod(evicted)
    api.put_pod(refused)
    assert main(["status", "train"]) == 137
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert first.endswith(f"ended with 137  Evicted: {full}")
    assert second.endswith("failed          UnexpectedAdmissionError: no device")


def test_pods_without_an_object_above_them_are_a_job_too(api, capsys):
    end_pod(api, 0, 0)
    assert main(["status", "train"]) == 0
    assert capsys.readouterr().err == f"{SAYS}job train is complete\n"


def test_status_that_waits_prints_each_reason_and_each_end_once(api, begin):
    api.put_job()
    api.put_pod(pod(0))
    api.put_pod(pod(1, unscheduled="no room"))
    command = begin("status", "train", "--wait")
    command.until(lambda: "1| train-1-x1 waiting: no room" in command.out)
    api.put_pod(pod(1, waiting={"reason": "ImagePullBackOff", "message": "no such image"}))
    command.until(lambda: command.err)
    end_pod(api, 0, 3)
    api.put_job("Failed")
    assert command.code() == 3
    assert command.out[:3] == ["0| train-0-x1 running", "1| train-1-x1 waiting: no room", "0| train-0-x1 ended with 3"]
    assert command.out[3].startswith("rank  pod")
    assert command.err == [f"{SAYS}train-1-x1 waits: ImagePullBackOff: no such image", f"{SAYS}Job train is failed: R"]


@pytest.mark.parametrize("words", [["status", "--wait"], ["logs", "--follow"]])
def test_an_error_that_every_request_would_have_is_printed_once(tmp_path, api, monkeypatch, capsys, words):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    assert main([*words, "train"]) == UNREACHABLE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"farandole kubernetes {words[0]}: kubectl is configured for no cluster")


def test_missing_rights_are_not_called_a_server_that_is_not_reached(api, capsys):
    api.put_job()
    api.forbidden = {"pods"}
    assert main(["logs", "train", "--follow"]) == UNREACHABLE
    printed = capsys.readouterr().err.splitlines()
    assert printed == ["farandole kubernetes logs: Error from server (Forbidden): pods is forbidden"]


@pytest.mark.parametrize("words", [["status", "--wait"], ["logs", "--follow"]])
def test_a_lost_connection_is_said_once_for_all_watches(api, begin, words):
    api.put_job()
    api.put_pod(pod(0))
    api.refuses = 10**6  # whichever request comes first
    command = begin(*words, "train")
    command.until(lambda: command.err, 40)
    api.requests.clear()
    api.refuses = 0
    watches = ("/api/v1/namespaces/ml/pods", "/apis/batch/v1/namespaces/ml/jobs")
    command.until(lambda: all(any(p == path and "watch" in q for p, q in list(api.requests)) for path in watches), 40)
    api.refuses = 4
    api.cut()
    command.until(lambda: command.err[-1:] == [f"{SAYS}the connection is back"] and len(command.err) > 3)
    end_job(api, command)
    (away, back, lost, again, end) = command.err
    assert away.startswith(f"{SAYS}the API server is not reached yet: ")
    assert lost.startswith(f"{SAYS}the connection is lost, and is made again: ")
    assert (back, again, end) == (*[f"{SAYS}the connection is back"] * 2, f"{SAYS}Job train is complete: R")


def test_lines_of_a_pod_that_was_deleted_while_the_connection_was_lost_are_reported_as_missing(api, begin):
    command = follow_pod_1(api, begin)
    with api.changed:  # at once: no stream sees the last line, and none is resumed before the pod is gone
        api.cut()
        api.write("train-1-x1", "last words")
        api.delete("pods", "train-1-x1")
    missing = f"{SAYS}train-1-x1 was deleted while its log could not be read: lines of 1 are missing here"
    command.until(lambda: missing in command.err)
    end_job(api, command)
    assert command.out == ["1| first"] and command.err.count(missing) == 1


def test_no_lines_are_said_to_be_missing_where_the_rest_was_read_after_a_lost_connection(api, begin):
    command = follow_pod_1(api, begin)
    with api.changed:  # at once: no stream is resumed before the pod has ended
        api.cut()
        api.write("train-1-x1", "last words")
        end_pod(api, 1, 3)
        end_pod(api, 0, 203)
        api.put_job("Failed")
    assert command.code() == 3
    assert command.out == ["1| first", "1| last words"] and not any("missing here" in line for line in command.err)


def test_the_log_of_a_pod_whose_node_is_away_hides_no_other_log(api, capsys):
    api.put_job()
    for index in (0, 1):
        api.put_pod(pod(index))
        api.write(f"train-{index}-x1", f"line of {index}")
    api.unreachable = {"train-0-x1"}
    assert main(["logs", "train"]) == RUNNING
    printed = capsys.readouterr()
    assert printed.out == "1| line of 1\n"
    assert printed.err.startswith(f"{SAYS}the log of train-0-x1 cannot be read: ") and "i/o timeout" in printed.err


def test_a_log_that_cannot_be_read_to_its_end_is_asked_for_now_and_then_and_named_at_the_end(api, begin):
    command = follow_pod_1(api, begin)
    api.write("train-1-x1", "last words")
    api.unreachable = {"train-1-x1"}
    api.cut()
    end_pod(api, 1, 1)
    api.requests.clear()
    command.until(lambda: len(_log_requests(api)) > 2)
    time.sleep(2)
    assert len(_log_requests(api)) < 12
    end_pod(api, 0, 0)
    api.put_job("Complete")
    assert command.code(60) == 0
    (line,) = [line for line in command.err if "cannot be read" in line]
    assert line.startswith(f"{SAYS}the log of train-1-x1 cannot be read to its end: ") and "i/o timeout" in line


def test_logs_that_may_not_be_read_are_named_at_once(api, begin):
    api.put_job()
    api.put_pod(pod(0))
    api.forbidden = {"log"}
    command = begin("logs", "train", "--follow")
    refused = f"{SAYS}the log of train-0-x1 cannot be read: Error from server (Forbidden): log is forbidden"
    command.until(lambda: refused in command.err)
    end_job(api, command)
    assert command.err.count(refused) == 1 and not any("to its end" in line for line in command.err)


def _log_requests(api):
    return [path for path, _ in list(api.requests) if path.endswith("train-1-x1/log")]


def test_the_table_is_shown_also_where_events_may_not_be_read(api, capsys):
    api.put_job()
    api.put_pod(pod(0))
    api.put_pod(pod(1, waiting={"reason": "ContainerCreating"}))
    api.forbidden = {"events"}
    assert main(["status", "train"]) == RUNNING
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["0", "train-0-x1", "node-0", "running"]
    assert "its events cannot be read: " in second and "events is forbidden" in second


def test_a_pod_that_is_deleted_after_its_last_line_misses_none(api, begin):
    command = follow_pod_1(api, begin)
    api.write("train-1-x1", "last words")
    end_pod(api, 1, 143)
    command.until(lambda: "1| last words" in command.out)
    api.delete("pods", "train-1-x1")
    end_job(api, command)
    assert command.out == ["1| first", "1| last words"] and not any("missing here" in line for line in command.err)


@pytest.mark.parametrize(
    "words, error",
    [
        (["logs"], "the following arguments are required: name"),
        (["status", "train", "--tail", "3"], "unrecognized arguments: --tail 3"),
        (["logs", "train", "--tail", "x"], "argument --tail: invalid int value: 'x'"),
        (["logs", "train", "--tail", "-1"], "--tail -1 is below 0"),
        (["logs", "train", "-f", "--limit", "-3"], "--limit -3 is no number of seconds"),
        (["status", "train", "--wait", "--timeout", "nan"], "--timeout nan is no number of seconds"),
    ],
)
def test_a_wrong_command_line_ends_with_64_as_everywhere(words, error, capsys):
    assert main(words) == 64
    assert capsys.readouterr().err == (
        f"farandole kubernetes {words[0]}: {error}; `farandole kubernetes {words[0]} --help` lists the options\n"
    )


@pytest.mark.parametrize("name", ["", "a/b", "train,x=y", "../pods", "train?x=1", "tr\u00e4in"])
def test_a_name_that_no_job_has_is_not_sent_to_the_server(api, capsys, name):
    """It is a part of paths and selectors, and an unset variable of the shell would name all jobs."""
    assert main(["logs", name]) == 64 and main(["status", "train", "-n", name]) == 64
    assert f"NAME '{name}' " in capsys.readouterr().err and not api.requests


@pytest.mark.parametrize(
    "change, said",
    [
        ({"exec": "no-such-program"}, "getting credentials: exec: executable no-such-program not found"),
        ({"exec": "false"}, "getting credentials: exec: executable false failed with exit code 1"),
        ({"text": "{{{"}, "error loading config file"),
    ],
    ids=["plugin missing", "plugin fails", "no YAML"],
)
def test_a_login_or_configuration_that_kubectl_cannot_use_ends_the_command_at_once(
    api, monkeypatch, begin, change, said
):
    """Such as an expired login to AWS: it is not taken for a server that will answer soon."""
    monkeypatch.setenv("NO_PROXY", "*")
    config = json.loads(api.config.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "interactiveMode": "Never",
        "command": change.get("exec"),
    }
    config["users"][0]["user"] = {"exec": plugin}
    api.config.write_text(change.get("text") or json.dumps(config))
    command = begin("logs", "train", "--follow")
    assert command.code(20) == UNREACHABLE
    assert len(command.err) == 1 and said in command.err[0]
