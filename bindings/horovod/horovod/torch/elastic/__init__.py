"""Jobs that lose and win ranks: run, TorchState, ElasticSampler."""

from importlib import util as _util

if not _util.find_spec("farandole.torch.elastic"):
    raise ImportError("this version of farandole has no elastic jobs; use its other operations, or wait for them")

from farandole.torch.elastic import *  # noqa: E402,F401,F403
