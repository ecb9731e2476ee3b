"""Runs every command of docs/kubernetes/first-hour.md, and compares the outputs on the page with what is printed."""

import os
import re
import subprocess
import sys
import time

import pytest
from cluster_of_pods import Cluster, path_for
from live_commands import Limit, code_within
from manifest_checks import KUBERNETES, ROOT, kubectl

PAGE = ROOT / "docs" / "kubernetes" / "first-hour.md"
FOLDER = "/home/me/farandole"  # of the sources, on the page
RUNNING = 75
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
RECORDER = '#!/bin/sh\necho "{name} $*" >>"$STUB/calls"\n[ "$*" = "${{*#*--password-stdin}}" ] || cat >/dev/null\n'
ANSWERS = {"aws": '[ "$1" != service-quotas ] || echo 64.0\n'}
# What differs between two runs: the random part of a pod's name, and the step at which a pod leaves and joins.
RANDOM = [(r"(train-\d)-[a-z0-9]{5}\b", r"\1-#####"), (r"step \d+", "step #"), (r"loss=[\d.]+", "loss=#"),
          (r"\d+(\.\d+)? (ms|s)\b", "# s"), (r"10\.\d+\.\d+\.\d+", "10.#")]  # fmt: skip


def commands():
    """(command, the output that the page shows) of the whole page."""
    for block in BLOCK.findall(PAGE.read_text()):
        for part in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def settled(text):
    """The lines of each pod, of each of its ranks, and of the steps, in their order. Between them it varies."""
    for pattern, replacement in RANDOM:
        text = re.sub(pattern, replacement, text)
    lines = {}
    for line in text.splitlines():
        source = re.match(r"\d\| (\[\d+\] (step)?)?|", line)[0]
        lines.setdefault(source, []).append(re.sub(r" +", " ", line.rstrip()))
    return lines


@pytest.fixture
def cluster(tmp_path, simulate):
    program = kubectl()
    if not program or not program.endswith("kubectl"):
        pytest.skip("needs kubectl: bash tests/kubernetes/setup.sh")
    one = Cluster(
        tmp_path,
        program,
        lambda documents: simulate(documents, image={"/app": str(KUBERNETES)}, admission="restricted"),
    )
    for name in ("pip", "eksctl", "helm", "aws", "docker"):
        one.stub(name, RECORDER.format(name=name) + ANSWERS.get(name, ""))
    os.symlink(ROOT / "examples", tmp_path / "examples")
    yield one
    one.end()


class Shell:
    def __init__(self, cluster):
        self.cluster = cluster
        self.env = {"PATH": path_for(cluster, sys.executable), "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                    **cluster.environment}  # fmt: skip

    def begin(self, command, output):
        with open(output, "w") as file:
            pipes = {"stdout": file, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
            return subprocess.Popen(["bash", "-c", command], cwd=self.cluster.folder, env=self.env, **pipes)

    def run(self, command):
        output = self.cluster.folder / "output"
        code = code_within(self.begin(self.with_names(command), output), 60)
        printed = output.read_text().replace(f"{self.cluster.folder}/bin", "/usr/bin")
        return code, printed.replace(str(self.cluster.folder), FOLDER)

    def with_names(self, command):
        """The command with the names of this run's pods."""
        return re.sub(r"train-\d-[a-z0-9]{5}\b", lambda found: self.cluster.sim.pod(found[0][:7]).name, command)


class Follower:
    """`logs --follow` in another terminal."""

    def __init__(self, shell, command, expected):
        self.output, self.expected = shell.cluster.folder / "followed", expected
        self.process = shell.begin(command, self.output)

    def until(self, text):
        limit = Limit(40)
        while text not in self.output.read_text():
            assert not limit.is_over() and self.process.poll() is None, self.output.read_text()
            time.sleep(0.05)

    def check_end(self):
        assert code_within(self.process, 90) == 0
        printed = self.output.read_text()
        assert settled(printed) == settled(self.expected), printed


def test_every_command_of_the_first_hour_prints_what_the_page_shows(cluster):
    shell, follower, ended = Shell(cluster), None, False
    for command, output in commands():
        if "--follow" in command:
            follower = Follower(shell, command, output)
            follower.until("step 50 ")
            continue
        if follower and not ended and command.startswith("farandole"):  # the page's next command is after the end
            follower.check_end()
            ended = True
        code, printed = shell.run(command)
        assert code == (RUNNING if "status" in command and not ended else 0), f"{command}\n{printed}"
        assert settled(printed) == settled(output), f"{command}\n{printed}"
    assert ended
    calls = (cluster.folder / "calls").read_text().splitlines()
    assert [call for call in calls if call.startswith("eksctl")] == [
        "eksctl create cluster -f eks-g4dn-cluster.yaml",
        "eksctl delete cluster -f eks-g4dn-cluster.yaml --wait",
    ]
    assert calls[0] == "pip install .[kubernetes]"
    assert "PLACEHOLDER" not in (cluster.folder / "eks-g4dn-cluster.yaml").read_text()
