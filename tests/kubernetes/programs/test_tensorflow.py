"""The training script for Keras on TensorFlow, as a TFJob of two simulated pods: tests/frameworks/run.sh kubernetes."""

import importlib.util
import os
import re
import sys
from pathlib import Path

import farandole
import podsim
import pytest
from farandole.integrations.kubernetes import generate

if not importlib.util.find_spec("tensorflow"):
    pytest.skip("needs TensorFlow: bash tests/frameworks/run.sh kubernetes", allow_module_level=True)

KEY = "apiVersion: v1\nkind: Secret\nmetadata: {name: train-key}\nstringData: {key: 0123456789abcdef0123456789abcdef}\n"
COMMAND = "tfjob --nnodes 2 --image farandole:0.1.0 -- python /app/train_keras.py --epochs 3"
# The image: this Python with TensorFlow, and the package that it imports, with its command.
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(farandole.__file__)))
PROGRAMS = [os.path.join(PACKAGE, "farandole", "bin"), os.path.dirname(sys.executable), "/usr/bin:/bin"]
SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "kubernetes" / "train_keras.py"
IMAGE = {"/app/train_keras.py": str(SCRIPT)}
VARIABLES = {
    "PATH": ":".join(PROGRAMS),
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "OMP_NUM_THREADS": "1",
    "FARANDOLE_START_TIMEOUT_S": "120",  # importing takes long
}


def test_h4_h18_k2_the_script_trains_on_tensorflow_in_the_pods_of_a_tfjob(tmp_path):
    if podsim.why_not():
        pytest.skip(podsim.why_not())
    # Keras on another backend would import it.
    (tmp_path / "torch.py").write_text("raise ImportError('this image has no PyTorch')\n")
    image = {**IMAGE, "/app/without/torch.py": str(tmp_path / "torch.py")}
    variables = {**VARIABLES, "PYTHONPATH": f"/app/without:{PACKAGE}"}
    with podsim.PodSim(f"{generate(COMMAND.split())}---\n{KEY}", image=image, variables=variables) as sim:
        sim.start()
        sim.wait(200)
        assert set(sim.results.values()) == {"Complete"}, sim.logs()
        printed = "".join(pod.output for pod in sim.pods)
    # One rank prints. The loss is the average over both ranks.
    losses = re.findall(r"epoch (\d) loss=([\d.]+)", printed)
    assert [epoch for epoch, _ in losses] == ["1", "2", "3"], printed
    assert float(losses[2][1]) < 0.3 * float(losses[0][1]), printed
