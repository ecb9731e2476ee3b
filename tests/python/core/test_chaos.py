"""A short form of tests/chaos.sh: seeded jobs in which one process is killed, stopped or ends at a random moment."""

import chaos
import pytest
from launch import FARANDOLE

# They cover each phase, an elastic reset, each way to end, both transports, rank 0 that serves the coordinator, and the
# launcher.
SEEDS = (3, 5, 6, 7, 28, 36, 38, 42, 48, 67)


@pytest.mark.parametrize("seed", SEEDS)
def test_survivors_of_a_seeded_loss_name_it_alike(seed):
    trial = chaos.Trial.of(seed)
    faults, _ = chaos.run(trial, FARANDOLE)
    assert not faults, "\n".join([str(trial), *faults])
