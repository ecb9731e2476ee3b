"""farandole.torch.elastic: PyTorch jobs that lose ranks, get others in their place, and go on."""

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
