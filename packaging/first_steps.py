"""A first run of an installed wheel: two ranks reduce and gather exact numbers, and compare with ==."""

import farandole
import numpy

farandole.init()
rank, size = farandole.rank(), farandole.size()
assert size == 2, size
summed = farandole.allreduce(numpy.arange(1000, dtype=numpy.float32) * (rank + 1), op=farandole.SUM, name="x")
assert (summed == numpy.arange(1000, dtype=numpy.float32) * 3).all(), summed
gathered = farandole.allgather(numpy.full((rank + 1, 2), rank, dtype=numpy.int64))
assert gathered.tolist() == [[0, 0], [1, 1], [1, 1]], gathered
farandole.shutdown()
print(f"rank {rank} of {size}: {farandole.__version__}, the sums are exact", flush=True)
