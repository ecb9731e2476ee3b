"""The planted faults of the simulation and of the code for GPUs can be planted: their words still stand there."""

import os
import sys

import pytest
from launch import ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "simulation"))
sys.path.insert(0, os.path.join(ROOT, "tests", "fakes"))
import gpu_faults
import planted_faults

FAULTS = planted_faults.FAULTS + [fault[:4] for fault in gpu_faults.FAULTS]


@pytest.mark.parametrize("what, source, words, planted", FAULTS, ids=[fault[0] for fault in FAULTS])
def test_the_words_stand_once_in_the_source(what, source, words, planted):
    with open(os.path.join(ROOT, source)) as file:
        assert file.read().count(words) == 1
    assert planted != words
