"""The examples for users of other libraries, run with the commands of their first lines."""

import os
import re
import sys

import pytest
from launch import ROOT
from mpi_launch import run_launcher

EXAMPLES = os.path.join(ROOT, "examples")
FARANDOLE = os.path.join(os.path.dirname(sys.executable), "farandole")


def output_of(command, may_abort_at_exit=False):
    """The line that the example itself prints."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
    variables.update(OMP_NUM_THREADS="1", FARANDOLE_START_TIMEOUT_S="100")
    code, output = run_launcher(command, variables, deadline_s=120)
    assert code == 0 or may_abort_at_exit, output
    lines = re.findall(r"from_\w+: .*", output)
    assert len(lines) == 1, output
    return lines[0]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_mpi4py_example_runs_under_farandole_run(ranks):
    line = output_of([FARANDOLE, "run", "-np", str(ranks), sys.executable, os.path.join(EXAMPLES, "from_mpi4py.py")])
    assert line.startswith(f"from_mpi4py: {ranks} ranks, 41 cells, 600 steps"), line


def test_the_mpi4py_example_runs_under_mpirun():
    launcher = ["mpirun.openmpi", "-np", "2", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    line = output_of([*launcher, sys.executable, os.path.join(EXAMPLES, "from_mpi4py.py")])
    assert line.startswith("from_mpi4py: 2 ranks"), line


def test_a_gloo_script_gives_the_same_bits_with_this_backend():
    """Two ranks, so each sum has one order. A thread of Gloo's may abort its process while it ends (PyTorch's issue
    190489), once its line is printed; ours may not."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = os.path.join(EXAMPLES, "from_torch_distributed.py")
    theirs = output_of([*launcher, script, "--backend", "gloo"], may_abort_at_exit=True)
    ours = output_of([*launcher, script, "--backend", "farandole"])
    assert theirs == ours and ours.startswith("from_torch_distributed: 2 ranks, loss "), (theirs, ours)
