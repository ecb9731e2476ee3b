"""Tests of the examples' training programs: ranks of one host, saving and resuming, and SIGTERM."""

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from farandole import launcher
from manifests import KUBERNETES

sys.path.insert(0, str(KUBERNETES))
import train_numpy

NUMPY = [sys.executable, str(KUBERNETES / "train_numpy.py")]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def run(words, ranks=1, code=0):
    """Runs a program on `ranks` ranks and returns its output."""
    start = [launcher.program(), "run", "-np", str(ranks), "--", *words] if ranks > 1 else words
    done = subprocess.run(start, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def state(path):
    with np.load(path) as saved:
        return int(saved["step"]), saved["weights"]


def test_c5_h4_the_metric_is_printed_by_one_rank_and_does_not_depend_on_their_number(tmp_path):
    katib = re.compile(r"([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?)")
    losses = []
    for ranks in (1, 3):
        lines = run([*NUMPY, "--steps", "30"], ranks).splitlines()
        found = [katib.search(line).groups()[1] for line in lines if "loss=" in line]
        assert len(found) == 1, lines
        losses.append(float(found[0]))
    assert losses[0] < 1.0 and abs(losses[0] - losses[1]) < 2e-6  # the last printed digit


def test_k15_training_that_was_cut_in_two_ends_with_the_same_bits(tmp_path):
    whole, parts = tmp_path / "whole.npz", tmp_path / "parts.npz"
    run([*NUMPY, "--steps", "40", "--checkpoint", str(whole)], 2)
    run([*NUMPY, "--steps", "20", "--checkpoint", str(parts)], 2)
    assert "from step 20" in run([*NUMPY, "--steps", "40", "--checkpoint", str(parts)], 2)
    (step, weights), (other_step, other) = state(whole), state(parts)
    assert (step, weights.tobytes()) == (other_step, other.tobytes()) and step == 40


def test_k12_k15_sigterm_saves_the_step_and_ends_with_143_never_0(tmp_path):
    saved, whole = tmp_path / "saved.npz", tmp_path / "whole.npz"
    with subprocess.Popen(
        [*NUMPY, "--steps", "10000000", "--save-every", "10000000", "--checkpoint", str(saved)],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        assert "from step 0" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
    assert process.returncode == 143 and "requested to end" in rest
    step, weights = state(saved)
    assert f"step {step} is saved" in rest
    run([*NUMPY, "--steps", str(step), "--checkpoint", str(whole)])
    assert state(whole)[1].tobytes() == weights.tobytes()


def test_h9_a_checkpoint_is_the_old_one_or_the_new_one_even_after_sigkill(tmp_path):
    path = str(tmp_path / "state.npz")
    train_numpy.save(path, step=1, weights=np.ones((65, 10)))
    child = os.fork()
    if child == 0:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # between writing and renaming
        train_numpy.save(path, step=2, weights=np.zeros((65, 10)))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert train_numpy.resume(path)[0] == 1 and len(list(tmp_path.iterdir())) == 2
    train_numpy.save(path, step=3, weights=np.zeros((65, 10)))
    assert train_numpy.resume(path)[0] == 3


def test_k15_a_file_that_is_no_checkpoint_is_an_error_and_not_a_fresh_start(tmp_path):
    path = tmp_path / "state.npz"
    path.write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(SystemExit, match="is no checkpoint of this program"):
        train_numpy.resume(str(path))
    assert train_numpy.resume(str(tmp_path / "none.npz")) == (0, None)


def test_h4_h18_the_horovod_calls_train_with_torch_and_one_rank_prints_and_saves(tmp_path):
    out = run([sys.executable, str(KUBERNETES / "train_torch.py"), "--epochs", "3", "--model-dir", str(tmp_path)], 2)
    losses = [float(found) for found in re.findall(r"loss=([\d.]+)", out)]
    assert len(losses) == 3 and losses[-1] < 0.5 * losses[0]
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_h10_the_algorithm_can_be_chosen_and_is_shown():
    out = run([launcher.program(), "explain", "--algorithm", "ring", "--ranks", "4"])
    assert "on 4 ranks over shm: ring" in out and "recv_reduce" in out  # reduce-scatter, then allgather
    done = subprocess.run(
        [launcher.program(), "run", "-np", "2", "--", *NUMPY, "--steps", "5"],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "FARANDOLE_ALGORITHM": "spiral"},
    )
    assert done.returncode != 0 and "spiral" in done.stderr


def test_c6_a_notebook_calls_a_function_on_several_ranks(tmp_path):
    script = tmp_path / "cell.py"
    script.write_text(
        "import farandole\n\n\ndef cell():\n    farandole.init()\n    return farandole.rank()\n\n\n"
        "if __name__ == '__main__':\n    print(farandole.run(cell, np=2))\n"
    )
    assert run([sys.executable, str(script)]) == "[0, 1]\n"


def test_k17_groups_of_ranks_work_beside_each_other():
    out = run([sys.executable, str(KUBERNETES.parent / "03_groups.py")], 4)
    assert out.count("rank") >= 4
