"""Tests of `farandole kubernetes gen`: its output is valid, complete, and the same in every run."""

import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml
from farandole.integrations.kubernetes import generate
from farandole.integrations.kubernetes.__main__ import main
from kinds_of_jobs import AFTER, KINDS, everything
from manifest_checks import ROOT, SCHEMAS, faults, generated, only, pod_of


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_valid_with_few_options_and_with_all(kind):
    custom = SCHEMAS.is_dir()
    few = generated(f"{KINDS[kind]} {AFTER}")
    assert faults(few, custom) == []
    policy = "" if "rayjob" in KINDS[kind] else "--network-policy --allow-egress 443"
    read_only = "" if any(word in KINDS[kind] for word in ("rayjob", "mpijob")) else "--read-only-root"
    assert faults(generated(f"{KINDS[kind]} {everything(KINDS[kind])} {policy} {read_only} {AFTER}"), custom) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_lines_are_the_command_that_prints_the_same_again(kind):
    text = generate(f"{KINDS[kind]} {everything(KINDS[kind])} {AFTER}".split())
    words = shlex.split(text.splitlines()[1].removeprefix("#"))
    assert words[:3] == ["farandole", "kubernetes", "gen"]
    assert generate(words[3:]) == text


def test_the_output_has_no_secret_and_is_the_same_in_every_run():
    words = shlex.split(f"{KINDS['pytorchjob']} {AFTER}")
    texts = {
        subprocess.run(
            [sys.executable, "-m", "farandole.integrations.kubernetes", "gen", *words],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    (text,) = texts
    assert "kind: Secret" not in text
    assert "kubectl create secret generic train-key --from-literal=key=$(openssl rand -hex 16)" in text


def test_the_first_lines_explain_elastic_jobs():
    for kind in ("job", "deployment", "pytorchjob"):
        first = " ".join(generate(f"{kind} --nnodes 2:4 {AFTER}".split()).split("\n---")[0].replace("#", "").split())
        assert "Elastic: 2 to 4 pods. After the loss of a pod the job continues from the last commit" in first
    assert "Elastic" not in generate(f"job --nnodes 4 {AFTER}".split())


def test_h8_set_overrides_generated_values():
    documents = generated(
        f"job --set Job.spec.backoffLimit=0 --set Job.metadata.annotations.a\\.b/c=d --set "
        f"Job.spec.template.spec.containers.0.imagePullPolicy=Always {AFTER}"
    )
    made = only(documents, "Job")
    assert made["spec"]["backoffLimit"] == 0 and made["metadata"]["annotations"] == {"a.b/c": "d"}
    assert pod_of(made)["spec"]["containers"][0]["imagePullPolicy"] == "Always"


WORDS = [
    "", "on", "1e3", "null", "~", "- a", "a: b", "a #b", " lead", "trail ", "new\nline", "two\n", "tab\t", "\x7f",
    "\x1b[0m", "\u2028", "\x85", "\ufeff", "\xe9", "'q'", '"q"', "{a: 1}", "2024-01-01", "12:30", "\U0001f389", "\\",
]  # fmt: skip


@pytest.mark.parametrize("word", WORDS, ids=ascii)
def test_every_text_of_the_command_line_reaches_the_manifest_unchanged(word):
    given = ["--env", f"A={word}", "--annotation", f"a.b/c={word}"]
    text = generate(["job", "--image", "i", *given, "--", "python", word])
    pod = pod_of(only(list(yaml.safe_load_all(text)), "Job"))
    box = pod["spec"]["containers"][0]
    assert box["args"][-2:] == ["python", word]
    assert {"name": "A", "value": word} in box["env"] and pod["metadata"]["annotations"]["a.b/c"] == word


def test_set_gives_numbers_dates_and_nothing():
    words = " ".join(f"--set Job.spec.{word}" for word in ("a=1.5", "b=2024-01-01", "c=", "d=false", "e=[1,x]"))
    made = only(generated(f"job {words} {AFTER}"), "Job")["spec"]
    assert [made[key] for key in "abcde"] == [1.5, "2024-01-01", None, False, [1, "x"]]


def test_a_discrete_or_categorical_parameter_has_a_list():
    words = "--parameter batch:discrete:16,32 --parameter opt:categorical:sgd,adam --parameter lr:double:0.1:1"
    documents = generated(f"katib {words} {AFTER}")
    assert faults(documents, SCHEMAS.is_dir()) == []
    made = only(documents, "Experiment")["spec"]
    assert made["parameters"] == [
        {"name": "batch", "parameterType": "discrete", "feasibleSpace": {"list": ["16", "32"]}},
        {"name": "opt", "parameterType": "categorical", "feasibleSpace": {"list": ["sgd", "adam"]}},
        {"name": "lr", "parameterType": "double", "feasibleSpace": {"min": "0.1", "max": "1"}},
    ]
    args = pod_of(made["trialTemplate"]["trialSpec"])["spec"]["containers"][0]["args"]
    assert args[-3:] == [f"--{name}=${{trialParameters.{name}}}" for name in ("batch", "opt", "lr")]


def _shown():
    """(command, shown output) of every example in the documentation."""
    for block in re.findall(
        r"^```console\n(\$ farandole kubernetes gen .*?)^```$",
        (ROOT / "docs" / "kubernetes.md").read_text(),
        re.S | re.M,
    ):
        for example in block.replace("\\\n", " ").split("$ farandole kubernetes ")[1:]:
            command, _, shown = example.partition("\n")
            yield command, shown


def test_the_documentation_has_examples():
    assert len(list(_shown())) >= 4


@pytest.mark.parametrize(
    "command, shown", list(_shown()), ids=[" ".join(command.split()[:4]) for command, _ in _shown()]
)
def test_the_documentation_shows_the_output(command, shown, capsys):
    main(shlex.split(command))
    printed = capsys.readouterr()
    whole = printed.out or printed.err
    for part in shown.split("...\n"):
        assert part in whole
    assert shown.strip()
