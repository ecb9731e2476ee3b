"""HorovodBasics: init, ranks and built-in features, as methods."""

from farandole import basics as _basics


class HorovodBasics:
    """An object with the functions of `farandole.basics`; its arguments, the path of the library, are ignored."""

    Average, Sum, Adasum = _basics.Average, _basics.Sum, _basics.Adasum
    Min, Max, Product = _basics.Min, _basics.Max, _basics.Product

    def __init__(self, *_):
        pass


for _name in (
    "init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size",
    "is_homogeneous", "mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built", "nccl_built",
    "ddl_built", "ccl_built", "cuda_built", "rocm_built", "start_timeline", "stop_timeline",
):  # fmt: skip
    setattr(HorovodBasics, _name, staticmethod(getattr(_basics, _name)))
