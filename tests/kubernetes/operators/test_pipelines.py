"""Tests of a step of Kubeflow Pipelines: compiled by kfp, then run as Pipelines runs it, with a stub API server."""

import importlib.util
import os
import re
import subprocess
import sys
import threading

import pytest
import yaml
from api_pods import pod
from api_server import INSTANCE, ApiServer
from manifest_checks import KUBERNETES, faults, kubectl, only

if not importlib.util.find_spec("kfp"):
    pytest.skip("needs kfp: bash tests/kubernetes/setup.sh", allow_module_level=True)

FOLDER = KUBERNETES / "pipelines"
RUN = "0f3b8d1e-4b7a-4a1e-9d53-2f5e6c7a8b90"
NAME = f"train-{RUN}"
# Applies into a file, and passes all that reads the cluster to real kubectl.
KUBECTL = """#!/bin/sh
echo "$@" >>"$STUB/calls"
case "$1" in
  delete) ;;
  apply) cat "$3" >"$STUB/applied.yaml" ;;
  *) exec "$KUBECTL" "$@" ;;
esac
"""


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    path = tmp_path_factory.mktemp("pipeline") / "train_pipeline.yaml"
    done = subprocess.run([sys.executable, FOLDER / "train_pipeline.py", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(path.read_text())


def command_of(compiled, given):
    """The command of the step's container, with Pipelines' placeholders replaced by the values of a run."""
    values = {name: one.get("defaultValue") for name, one in compiled["root"]["inputDefinitions"]["parameters"].items()}
    values = {name: int(value) if isinstance(value, float) else value for name, value in {**values, **given}.items()}
    task = compiled["root"]["dag"]["tasks"]["train"]
    inputs = {}
    for name, one in task["inputs"]["parameters"].items():
        constant = one.get("runtimeValue", {}).get("constant")
        inputs[name] = (
            values[one["componentInputParameter"]]
            if constant is None
            else constant.replace("{{$.pipeline_job_uuid}}", RUN)
        )
    container = compiled["deploymentSpec"]["executors"]["exec-train"]["container"]
    return [
        re.sub(r"\{\{\$\.inputs\.parameters\['(\w+)'\]\}\}", lambda found: str(inputs[found[1]]), word)
        for word in [*container["command"], *container["args"]]
    ]


def play(compiled, folder, pods, condition, **given):
    """Runs the step; its pods run first, and end as given. Returns (exit code, output, applied manifests)."""
    program = kubectl()
    if not program or not program.endswith("kubectl"):
        pytest.skip("needs kubectl: bash tests/kubernetes/setup.sh")
    (folder / "bin").mkdir()
    (folder / "bin" / "kubectl").write_text(KUBECTL)
    (folder / "bin" / "kubectl").chmod(0o755)
    api = ApiServer(folder)

    def put(one):
        one["metadata"]["labels"][INSTANCE] = NAME
        api.put("pods", one)

    def end():
        for one in pods:
            put(one)
        api.put_job(condition, name=NAME)

    api.put_job(name=NAME)
    for number in range(len(pods)):
        put(pod(number))
        api.write(pods[number]["metadata"]["name"], f"says {number}")
    later = threading.Timer(4, end)
    later.start()
    env = {
        "PATH": f"{folder / 'bin'}:{os.path.dirname(sys.executable)}:/usr/bin:/bin",
        "STUB": str(folder),
        "KUBECTL": program,
        "KUBECONFIG": str(api.config),
        "KUBECACHEDIR": str(folder / "cache"),
    }
    try:
        done = subprocess.run(command_of(compiled, given), capture_output=True, text=True, env=env, timeout=60)
        assert not later.is_alive(), f"the step ended before its job: {done}"
    finally:
        later.cancel()
        api.end()
    calls = [line for line in (folder / "calls").read_text().splitlines() if line.startswith(("apply", "delete"))]
    assert [line.split()[0] for line in calls] == ["delete", "apply"], done.stderr
    return done.returncode, done.stdout, (folder / "applied.yaml").read_text()


def test_c6_a_pipelines_step_applies_the_generated_job_and_follows_it(compiled, tmp_path):
    code, printed, applied = play(
        compiled,
        tmp_path,
        [pod(0, code=0), pod(1, code=0)],
        "Complete",
        checkpoint="s3://bucket/a run; echo no",
        nodes=3,
        per_node=2,
    )
    assert code == 0 and "says 0" in printed and "says 1" in printed
    documents = list(yaml.safe_load_all(applied))
    job = only(documents, "Job")
    assert not faults(documents, custom=False)
    assert job["metadata"]["name"] == f"train-{RUN}" and job["spec"]["completions"] == 3
    args = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[-2:] == ["--checkpoint", "s3://bucket/a run; echo no"]  # a value that the shell does not interpret
    assert args[args.index("--nproc-per-node") + 1] == "2"


def test_c6_the_step_does_not_succeed_before_its_job(compiled, tmp_path):
    """All pods have ended with 0, as after the first of two attempts, and the job has not: it fails later."""
    code, _, _ = play(compiled, tmp_path, [pod(0, code=0), pod(1, code=0)], "Failed", checkpoint="s3://bucket/run")
    assert code == 1


def test_c6_the_step_fails_as_its_job_fails_and_is_tried_again(compiled, tmp_path):
    code, _, _ = play(compiled, tmp_path, [pod(0, code=202), pod(1, code=137)], "Failed", checkpoint="s3://bucket/run")
    assert code == 137
    task = compiled["root"]["dag"]["tasks"]["train"]
    assert task["retryPolicy"]["maxRetryCount"] == 2 and not task["cachingOptions"].get("enableCache")


def test_c6_the_steps_rights_are_those_that_it_uses():
    documents = list(yaml.safe_load_all((FOLDER / "step-role.yaml").read_text()))
    assert not faults(documents, custom=False)
    rights = {resource for rule in only(documents, "Role")["rules"] for resource in rule["resources"]}
    assert rights == {"jobs", "poddisruptionbudgets", "services", "pods", "pods/log", "events"}
