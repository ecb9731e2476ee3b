"""Tests of the reader of one container's log without any server: when it opens the log again."""

import subprocess

import pytest
from farandole.integrations.kubernetes.live.kubectl import ApiError
from farandole.integrations.kubernetes.live.log_reader import LogReader

GONE_POD = ApiError('Error from server (NotFound): pods "train-0" not found', "NotFound")


class OneLine:
    """kubectl whose every stream has one line and ends, as that of a pod that is deleted."""

    def __init__(self):
        self.opened = 0

    def path(self, resource):
        return f"/{resource}"

    def stream(self, *_, **__):
        self.opened += 1
        words = ["echo", f"2026-01-01T00:00:0{self.opened}Z line {self.opened}"]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read(answers):
    """(the lines, how often the log was opened) with these answers of is_same(), one for each time after the first."""
    kubectl, lines = OneLine(), []
    reader = LogReader(
        kubectl, "train-0", "trainer", lines.append, lambda: None, lambda: False, lambda: 0, lambda: answers.pop(0)
    )
    reader.start()
    assert reader.join(20)
    return lines, kubectl.opened


def test_a_log_is_not_opened_again_when_another_pod_has_the_name():
    """The watch has not shown it yet: the old pod seems to run."""
    assert read([False]) == (["line 1"], 1)
    assert read([True, False]) == (["line 1", "line 2"], 2)


class Rest(OneLine):
    """kubectl that answers with a whole log."""

    def text(self, *_, **__):
        return "2026-01-01T00:00:01Z a line\n"


@pytest.mark.parametrize("answer, lines, lost", [(True, ["a line"], 0), (False, [], 1), (GONE_POD, ["a line"], 0)])
def test_the_rest_of_a_log_is_that_of_the_same_pod(answer, lines, lost):
    """A successor of its name may come between the question whether the pod has ended, and the answer with its log."""

    def is_same():
        if isinstance(answer, Exception):
            raise answer
        return answer

    read_lines, losses = [], []
    reader = LogReader(
        Rest(), "train-0", "trainer", read_lines.append, lambda: losses.append(1), lambda: True, lambda: 0, is_same
    )
    reader.start()
    assert reader.join(20) and (read_lines, len(losses)) == (lines, lost)
