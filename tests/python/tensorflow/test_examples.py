"""The quick start and the example for TensorFlow, as a reader starts them."""

import os
import re
import subprocess
import sys

import farandole
import numpy as np
import pytest
from launch import ROOT
from limits import allowed

FARANDOLE = os.path.join(os.path.dirname(farandole.__file__), "bin", "farandole")
EXAMPLE = os.path.join(ROOT, "examples", "tensorflow_digits.py")


def run(ranks, *command):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
    variables.update(OMP_NUM_THREADS="1", TF_CPP_MIN_LOG_LEVEL="3", FARANDOLE_START_TIMEOUT_S="100")
    done = subprocess.run([FARANDOLE, "run", "-np", str(ranks), sys.executable, *command], env=variables,
                          capture_output=True, text=True, timeout=allowed(180))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_quick_start_prints_what_its_page_says(tmp_path):
    with open(os.path.join(ROOT, "docs", "quickstart", "tensorflow.md")) as file:
        page = file.read()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.S)
    (console,) = re.findall(r"```console\n\$ .*?\n(.*?)```", page, re.S)
    (tmp_path / "train.py").write_text(program)
    printed = [line for line in run(2, str(tmp_path / "train.py")).splitlines() if " of 2: " in line]
    assert sorted(printed) == console.splitlines()


@pytest.mark.parametrize("options", [(), ("--fp16-allreduce",)])
def test_two_ranks_train_what_one_process_trains(tmp_path, options):
    weights = []
    for ranks in (1, 2):
        path = tmp_path / f"{ranks}.npz"
        printed = run(ranks, EXAMPLE, "--epochs", "2", "--save", str(path), *options)
        assert f"on {ranks} ranks" in printed
        with np.load(path) as file:
            weights.append([file[name] for name in file])
    difference = max(np.abs(one - two).max() for one, two in zip(*weights))
    assert difference < (1e-3 if options else 1e-6), difference
    if options:
        assert difference > 1e-6, "gradients were not sent as float16"
