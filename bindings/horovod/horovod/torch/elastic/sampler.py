"""ElasticSampler."""

from farandole.torch.elastic.sampler import ElasticSampler  # noqa: F401
