"""The notice for releases of PyTorch with which the tests have not been run."""

import os
import tempfile

import farandole.torch as hvd
import torch
import torch.distributed as dist
from farandole.torch import versions
from launch import launch


def test_this_release_has_been_tried():
    """The tests run with it: where this fails, packages.py needs the new release."""
    assert versions.notice() is None


def an_untried_release():
    torch.__version__ = "2.99.0a0+git"
    rank, size = int(os.environ["FARANDOLE_RANK"]), int(os.environ["FARANDOLE_SIZE"])
    store = os.path.join(tempfile.gettempdir(), f"farandole-versions-{os.environ['FARANDOLE_JOB_KEY']}")
    hvd.init()
    model = torch.nn.Linear(2, 1)
    hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
    dist.init_process_group("farandole", init_method=f"file://{store}", rank=rank, world_size=size)
    dist.new_group([0])
    dist.destroy_process_group()
    hvd.shutdown()


def test_rank_0_names_the_range_once():
    outputs = launch(2, an_untried_release)
    line = "farandole: PyTorch 2.99.0a0+git has not been tried with this version, only 2.9 to 2.15\n"
    assert outputs[0].count(line) == 1 and outputs[0].count("has not been tried") == 1
    assert "has not been tried" not in outputs[1]
