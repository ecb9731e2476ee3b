"""Tests of Keras 3 with Horovod's calls: fit on several ranks equals fit in one process; the examples' training
script."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from farandole import launcher
from manifest_checks import KUBERNETES

if not importlib.util.find_spec("keras"):
    pytest.skip("needs Keras: bash tests/kubernetes/setup.sh", allow_module_level=True)

RANK = str(Path(__file__).resolve().parents[1] / "support" / "keras_rank.py")
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "KERAS_BACKEND": "torch",
    "FARANDOLE_START_TIMEOUT_S": "100",
}  # importing takes long


def run(flags, *words, code=0, **more):
    command = [launcher.program(), "run", *flags.split(), "--", sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**ENVIRONMENT, **more})
    assert done.returncode == code, done.stdout + done.stderr
    return done


def rows_of(done):
    return [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '{"rank"' in line]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    rows = rows_of(run("-np 2", RANK, "all", tmp_path_factory.mktemp("models")))

    def of(check):
        found = sorted((one for one in rows if one["check"] == check), key=lambda one: one["rank"])
        assert len(found) == 2
        return found

    return of


def test_h4_h18_fit_on_two_ranks_is_fit_of_one_process_on_the_joint_batch(two_ranks):
    first, second = two_ranks("joint")
    assert first["weights"] == second["weights"] and first["far"] < 1e-6  # bit for bit between ranks
    assert (
        first["loss"] == second["loss"] == pytest.approx(first["alone"], rel=1e-5)
    )  # the metric is the average over all ranks


def test_h18_a_loaded_model_goes_on_with_its_optimizers_state(two_ranks):
    for one in two_ranks("loaded"):
        assert one["same"] and one["iterations"] == 12 and one["kind"] == "Adam" and one["far"] < 1e-6
        assert one["plain"].startswith("keras.")  # it loads without this package too


def test_h4_the_learning_rate_warms_up_from_one_ranks_to_all_ranks(two_ranks):
    for one in two_ranks("rates"):
        grown = [0.1 + 0.1 * (batch + 1) / 8 for batch in range(8)]
        assert one["rates"] == pytest.approx([*grown, *[0.1] * 4], rel=1e-6)
        assert one["lr"] == pytest.approx([grown[3], 0.2, 0.1])


def test_h18_a_gradient_that_is_infinite_on_one_rank_is_skipped_on_all(two_ranks):
    # The gradients are 4 and 8, the scale is 4: a step is 1.5. After the skipped step the scale is 2, and a step is 3.
    assert [one["steps"] for one in two_ranks("overflow")] == [[-1.5, -1.5, -4.5]] * 2


def test_h18_unsupported_calls_are_errors_that_name_an_alternative(two_ranks):
    for one in two_ranks("refused"):
        outermost, op, twice, predivide, broadcast = one["errors"]
        assert "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))" in outermost
        assert "Average or Sum" in op and "already" in twice
        assert "gradient_predivide_factor" in predivide and "BroadcastGlobalVariablesCallback(0)" in broadcast


def test_h18_values_travel_between_ranks(two_ranks):
    for one in two_ranks("values"):
        assert (one["mean"], one["sum"], one["all"], one["first"]) == (1.5, [1, 2], [0, 1, 1], 6.0)
        assert one["part"] == ([0.0, 2.0] if one["rank"] == 0 else [4.0, 6.0])
    for one in two_ranks("compressed"):
        assert one["weight"] == [-1.5, -4.5] and one["keeps"] == "SGD"


def test_h18_attributes_of_a_state_that_are_assigned_later_are_state(two_ranks):
    for one in two_ranks("state"):
        assert one["later"] == [1] and one["private"] == 2 and one["kept"] and one["same"]


def test_h18_another_backend_is_refused_with_the_remedy():
    done = subprocess.run([sys.executable, "-c", "import farandole.keras"], capture_output=True, text=True,
                          env={**ENVIRONMENT, "KERAS_BACKEND": "numpy"})  # fmt: skip
    assert done.returncode == 1 and "set KERAS_BACKEND before keras is imported" in done.stderr


def test_h18_k19_an_elastic_model_goes_on_from_its_last_commit(tmp_path):
    rows = rows_of(run("-np 2 --min-np 1 --wait-for-replacements", RANK, "elastic", tmp_path))
    entered = sorted((one["epoch"], one["iterations"]) for one in rows if one["check"] == "enters")
    # In epoch 1 both ranks had committed two of four batches; the new rank gets them from the remaining one.
    assert entered == [(0, 0), (0, 0), (1, 6), (1, 6)], rows
    ends = [one for one in rows if one["check"] == "ends"]
    assert len(ends) == 2 and ends[0]["weights"] == ends[1]["weights"] and ends[0]["epoch"] == 3


def test_h4_the_training_script_trains_resumes_and_one_rank_prints(tmp_path):
    script = KUBERNETES / "train_keras.py"
    first = run("-np 2", script, "--epochs", 2, "--checkpoint", tmp_path).stdout
    losses = re.findall(r"epoch (\d) loss=([\d.]+)", first)
    assert [epoch for epoch, _ in losses] == ["1", "2"] and float(losses[1][1]) < 0.5 * float(losses[0][1]), first
    rest = re.findall(r"epoch (\d) loss=([\d.]+)", run("-np 2", script, "--epochs", 3, "--checkpoint", tmp_path).stdout)
    assert [epoch for epoch, _ in rest] == ["3"] and float(rest[0][1]) < float(losses[1][1])
