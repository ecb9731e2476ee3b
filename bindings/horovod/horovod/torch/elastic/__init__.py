"""Jobs that lose and gain ranks: run, TorchState, ElasticSampler."""

from farandole.torch.elastic import ElasticSampler, ObjectState, State, TorchState, run  # noqa: F401

from . import sampler, state  # noqa: F401
