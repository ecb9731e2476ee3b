"""A short form of `tests/chaos.sh --nodes`: elastic jobs whose nodes come and go at random moments."""

import node_chaos
import pytest


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_job_goes_on_whatever_nodes_come_and_go(seed):
    faults, _ = node_chaos.run(node_chaos.Trial(seed))
    assert not faults, "\n".join(faults)
