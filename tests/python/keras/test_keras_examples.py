"""The Keras script for Horovod under horovodrun: two ranks give the weights of one process with the joint batch."""

import os
import re
import subprocess
import sys

import keras_backends
import pytest
from launch import ROOT

SCRIPT = os.path.join(ROOT, "examples", "horovod_keras_digits.py")
HOROVODRUN = [sys.executable, "-m", "horovod.runner.launch"]  # where the packages are in PYTHONPATH there is no command
TOLERANCE = 2e-5  # relative: float32 sums in another order, over about 100 steps


def final(backend, ranks, *arguments, script=SCRIPT):
    command = [*HOROVODRUN, "-np", str(ranks), sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, env=keras_backends.environment(backend), capture_output=True, text=True,
                          timeout=keras_backends.DEADLINE_S)  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    (found,) = re.findall(rf"final loss ([\d.]+) accuracy ([\d.]+) weights ([\d.]+) on {ranks} ranks", done.stdout)
    return list(map(float, found))


@pytest.mark.parametrize("backend", keras_backends.INSTALLED)
def test_two_ranks_train_as_one_process_with_the_joint_batch(backend):
    options = ["--warmup-epochs", 0, "--epochs", 4]
    together = final(backend, 2, "--batch-size", 16, "--lr", 0.02, *options)
    alone = final(backend, 1, "--batch-size", 32, "--lr", 0.04, *options)
    assert together[2] == pytest.approx(alone[2], rel=TOLERANCE) and together[0] == pytest.approx(alone[0], rel=0.01)
    assert together[1] > 0.9


def test_the_script_warms_up_and_saves(tmp_path):
    """On one backend: test_keras_optimizer.py has these callbacks on each. With TensorFlow by its own module."""
    backend, script = keras_backends.INSTALLED[0], tmp_path / "script.py"
    with open(SCRIPT) as file:
        text = file.read()
    if backend == "tensorflow":
        text = text.replace("import horovod.keras as hvd", "import horovod.tensorflow.keras as hvd")
    script.write_text(text)
    loss, accuracy, _ = final(backend, 2, "--epochs", 5, "--save", tmp_path / "best.keras", script=str(script))
    assert accuracy > 0.85 and loss < 0.6 and (tmp_path / "best.keras").exists()
