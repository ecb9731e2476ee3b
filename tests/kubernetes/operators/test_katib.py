"""Tests trials of the shipped Experiments, created and read as Katib documents it, in simulated pods."""

import json
import re

import pytest
import yaml
from manifest_checks import KUBERNETES

FILTER = re.compile(r"([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?)")  # from Katib's documentation

SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "search-pytorch-key"},
    "stringData": {"key": 32 * "5a"},
}


def trial_of(experiment, name, values):
    """The trial's document: the Experiment's template with the values of the parameters."""
    template = experiment["spec"]["trialTemplate"]
    text = json.dumps(template["trialSpec"])
    for parameter in template["trialParameters"]:
        value = name if parameter["reference"] == "${trialSpec.Name}" else values[parameter["reference"]]
        text = text.replace(f"${{trialParameters.{parameter['name']}}}", value)
    assert "${" not in text
    return {**json.loads(text), "metadata": {"name": name}}


def metrics_of(output, name):
    return [found[2] for line in output.splitlines() for found in FILTER.finditer(line) if found[1] == name]


@pytest.mark.parametrize("kind", ["job", "pytorchjob", "trainjob"])
def test_c5_a_trial_is_made_and_run_and_its_metric_is_read_from_one_pod(kind, simulate):
    documents = list(yaml.safe_load_all((KUBERNETES / "kubeflow" / "katib" / f"{kind}.yaml").read_text()))
    (experiment,) = [one for one in documents if one["kind"] == "Experiment"]
    others = [SECRET, *(one for one in documents if one["kind"] != "Experiment")]
    losses = []
    for rate in ("0.01", "0.1"):
        sim = simulate([trial_of(experiment, f"search-{rate[2:]}", {"lr": rate}), *others],
                       image={"/app/train_numpy.py": str(KUBERNETES / "train_numpy.py")},
                       variables={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})  # fmt: skip
        sim.wait(60)
        assert set(sim.results.values()) == {"Complete"}, sim.logs()
        template = experiment["spec"]["trialTemplate"]
        wanted = template["primaryPodLabels"].items()
        (primary,) = [pod for pod in sim.pods if wanted <= pod.plan.labels.items()]
        printed = primary.log_of(template["primaryContainerName"])
        losses += metrics_of(printed, experiment["spec"]["objective"]["objectiveMetricName"])
        assert len(sim.pods) == 2 and not any(metrics_of(pod.output, "loss") for pod in sim.pods if pod is not primary)
    assert len(losses) == 2 and losses[0] != losses[1], losses  # the parameter has reached the program
