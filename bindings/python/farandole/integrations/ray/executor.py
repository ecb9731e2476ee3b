"""RayExecutor: Horovod's interface for functions on the workers of a Ray cluster.

executor = RayExecutor(num_workers=4)
executor.start()
results = executor.run(train)      # in rank order; `train` calls hvd.init()
executor.shutdown()

executor -> elastic_executor -> fixed_executor      (each module imports those to its right only)
"""

from __future__ import annotations

from abc import ABCMeta
from typing import Any

from .elastic_executor import ElasticRayExecutor
from .fixed_executor import FixedRayExecutor, Settings

__all__ = ["RayExecutor", "Settings"]


class RayExecutor(FixedRayExecutor, metaclass=ABCMeta):
    """A group of Ray actors that are the ranks of one world. Options and methods are those of FixedRayExecutor.

    With `min_workers` or `max_workers` the job is elastic: the constructor returns an ElasticRayExecutor, which is an
    instance of RayExecutor too.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> RayExecutor:
        given = FixedRayExecutor.bind(*args, **kwargs)
        if cls is RayExecutor and (given.get("min_workers"), given.get("max_workers")) != (None, None):
            return ElasticRayExecutor(*args, **kwargs)
        return super().__new__(cls)


RayExecutor.register(ElasticRayExecutor)
