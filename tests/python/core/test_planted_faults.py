"""The planted faults of the simulation can be planted: a change of the sources may have changed the words."""

import os
import sys

import pytest
from launch import ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "simulation"))
from planted_faults import FAULTS


@pytest.mark.parametrize("what, source, words, planted", FAULTS, ids=[fault[0] for fault in FAULTS])
def test_the_words_stand_once_in_the_source(what, source, words, planted):
    with open(os.path.join(ROOT, source)) as file:
        assert file.read().count(words) == 1
    assert planted != words
