"""Tests shipped and generated manifests unchanged in simulated pods: each makes one world that reaches the same
loss."""

import os
import re

import pytest
from farandole.integrations.kubernetes import generate
from manifest_checks import KUBERNETES

podsim = pytest.importorskip("podsim", reason="simulated pods are not part of this checkout")

KEY = "apiVersion: v1\nkind: Secret\nmetadata: {name: train-key}\nstringData: {key: 0123456789abcdef0123456789abcdef}\n"
AFTER = "--image farandole:0.1.0 -- python /app/train_numpy.py"
# row, what, ranks
RECIPES = [
    ("h7", KUBERNETES / "k8s" / "base" / "job.yaml", 2),
    ("h7", "job --nnodes 2 --nproc-per-node 2", 4),
    ("k15", KUBERNETES / "k8s" / "jobset.yaml", 4),
    ("h16", KUBERNETES / "k8s" / "job-elastic.yaml", 4),
    ("k1", "pytorchjob --nnodes 2 --nproc-per-node 2", 4),
    ("k2", "tfjob --nnodes 2", 2),
    ("c5", "trainjob --nnodes 2 --nproc-per-node 2", 4),
]


def text_of(what):
    return generate(f"{what} {AFTER}".split()) if isinstance(what, str) else what.read_text()


@pytest.mark.parametrize(
    "row, what, ranks", RECIPES, ids=[f"{row}-{getattr(what, 'stem', what)}" for row, what, _ in RECIPES]
)
def test_a_manifest_as_it_is_trains_as_one_world(row, what, ranks, tmp_path):
    why_not = podsim.why_not()
    if why_not:
        pytest.skip(why_not)
    claim = tmp_path / "checkpoints"
    claim.mkdir()
    claim.chmod(0o777)
    sim = podsim.PodSim(
        f"{text_of(what)}---\n{KEY}",
        image={"/app/train_numpy.py": str(KUBERNETES / "train_numpy.py")},
        variables={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        claims={"checkpoints": str(claim)},
        admission="restricted",
    )
    try:
        sim.start()
        sim.wait(60)
        printed = "".join(pod.output for pod in sim.pods)
        assert set(sim.results.values()) == {"Complete"}, sim.logs()
        assert f"train_numpy: {ranks} ranks, from step 0" in printed
        assert re.findall(r"loss=([\d.]+)", printed) == ["0.082771"], printed  # one rank prints it
        assert os.path.exists(claim / "state.npz") == ("--checkpoint" in text_of(what))
    finally:
        sim.end()
