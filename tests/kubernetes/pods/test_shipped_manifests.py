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


def test_h9_the_shipped_job_makes_a_folder_of_lustre_that_ranks_may_write_to(tmp_path, simulate):
    """FSx's root belongs to root, and the ranks to user 1000: without the shipped job they cannot save."""
    root = tmp_path / "fsx"
    root.mkdir(mode=0o755)
    options = {"claims": {"fsx": str(root)}, "admission": "restricted"}
    words = "job --nnodes 2 --pvc fsx:/fsx --max-restarts 0 --image any -- python /app/train_numpy.py --steps 20"
    words = words.split() + ["--checkpoint", "/fsx/jobs/state.npz"]
    image = {"/app/train_numpy.py": str(KUBERNETES / "train_numpy.py")}
    sim = simulate(podsim.read(generate(words)), image=image, **options)
    sim.wait(60)
    assert sim.result("train").startswith("Failed") and not os.listdir(root), sim.logs()
    denied = "this process has the user 1000 and may not write to the folder, which belongs to the user 0 with mode 755"
    assert denied in sim.logs() and "'/fsx'" in sim.logs()

    sim = simulate((KUBERNETES / "storage" / "fsx-prepare.yaml").read_text(), claims=options["claims"])
    sim.wait(30)
    assert sim.result("fsx-prepare") == "Complete", sim.logs()
    folder = os.stat(root / "jobs")
    assert (folder.st_uid, folder.st_gid) == (1000, 1000)

    sim = simulate(podsim.read(generate(words)), image=image, **options)
    sim.wait(60)
    assert sim.result("train") == "Complete" and os.listdir(root / "jobs") == ["state.npz"], sim.logs()


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
