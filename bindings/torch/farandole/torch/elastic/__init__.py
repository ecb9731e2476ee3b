"""farandole.torch.elastic: PyTorch jobs that lose ranks, get replacements, and continue."""

from ...elastic import ObjectState, State, run
from .sampler import ElasticSampler
from .state import TorchState

__all__ = [
    "ElasticSampler",
    "ObjectState",
    "State",
    "TorchState",
    "run",
]
