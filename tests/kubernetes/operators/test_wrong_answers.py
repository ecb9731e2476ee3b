"""`farandole kubernetes logs`, `status`, `topology` where what answers is no API server, or where nothing does."""

import json
import os

import pytest
from api_pods import pod
from farandole.integrations.kubernetes.__main__ import main
from live_commands import RUNNING, UNREACHABLE

SAYS = "farandole kubernetes"
WRONG = {
    "HTML": "<html>\n<body>Please log in</body></html>",
    "null": "null",
    "nothing": "",
    "truncated": '{"kind": "PodList", "items": [{"metadata": {"na',
    "number": "5",
    "nested": "[" * 100_000,
    "no list": '{"kind": "Pod"}',
    "items of another type": '{"items": "a"}',
    "items without names": '{"items": [{"metadata": {}}, null]}',
}


@pytest.fixture
def job(api):
    api.put_job()
    api.put_pod(pod(0))
    api.write("train-0-x1", "first")
    return api


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("command", ["status", "logs"])
@pytest.mark.parametrize("path", ["/apis", "/pods", "/jobs/train"])
def test_an_answer_that_is_none_of_an_api_server_is_an_error_in_one_line(job, capsys, command, path, text):
    job.answers[path] = text
    assert main([command, "train"]) == UNREACHABLE
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert line.startswith(f"{SAYS} {command}: the answer to ") and path in line and output.out == ""
    assert "is not that of an API server: " in line and "a proxy may have sent it" in line and len(line) < 400


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_topology_names_an_answer_that_is_none_of_an_api_server(api, capsys, text):
    api.answers["/nodes"] = text
    assert main(["topology"]) == UNREACHABLE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{SAYS} topology: the answer to /api/v1/nodes")


def test_null_is_no_value(job, capsys):
    """A field that one API server leaves out may be null in the answer of another one."""
    found = job.objects["pods", "train-0-x1"]
    found["metadata"]["annotations"] = found["spec"]["nodeName"] = None
    found["status"].update(conditions=None, message=None)
    job.answers["/pods"] = json.dumps({"metadata": None, "items": [found]})
    assert main(["status", "train"]) == RUNNING
    assert "0     train-0-x1  -     running" in capsys.readouterr().out
    job.answers["/pods"] = '{"kind": "PodList", "items": null}'
    assert main(["status", "train"]) == RUNNING


@pytest.mark.parametrize(
    "path, said",
    [("/pods", "the API server is not reached yet"), ("/pods?", "the connection is lost, and is made again")],
    ids=["list", "watch"],
)
def test_following_goes_on_when_the_api_server_answers_again(job, begin, path, said):
    job.answers[path] = WRONG["HTML"] + "\n"
    command = begin("logs", "train", "--follow")
    command.until(lambda: command.err)
    assert command.err[0].startswith(f"{SAYS}: {said}: the answer to ")
    job.answers.clear()
    command.until(lambda: "0| first" in command.out)
    job.put_pod(pod(0, code=0))
    job.put_job("Complete")
    assert command.code() == 0


@pytest.mark.parametrize(
    "words", [["logs"], ["status"], ["logs", "--follow"], ["status", "--wait"]], ids=lambda words: " ".join(words)
)
def test_the_limit_holds_if_the_api_server_is_silent(job, begin, words):
    job.is_silent = True
    command = begin(*words, "train", "--limit", "1")
    assert command.code(25) == UNREACHABLE  # one request takes 30 s without the limit
    reasons = ("not answered within 1 s (--limit)", "kubectl has not ended within", "Unable to connect to the server")
    assert any(reason in command.err[-1] for reason in reasons), command.err


def test_kubectl_that_does_not_end_is_ended(tmp_path, monkeypatch, begin):
    """It waits for a program that gives it credentials."""
    (tmp_path / "kubectl").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    command = begin("status", "train", "--limit", "1")
    assert command.code(25) == UNREACHABLE
    assert command.err == [f"{SAYS} status: kubectl has not ended within 4 s"]
