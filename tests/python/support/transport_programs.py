"""Programs that tests of transports start: exact collectives, named operations, and reports of errors."""

START = """
import os
import numpy as np, farandole
farandole.init()
comm = farandole.Communicator()
r, n = comm.rank, comm.size
"""

COLLECTIVES = (
    START
    + """
for dtype in ("float32", "float64", "int32", "float16", "uint8"):
    for count in (0, 1, 7, 1000, 1 << 18):
        x = (np.arange(count) % 5 + r).astype(dtype)
        want = sum((np.arange(count) % 5 + k).astype(dtype) for k in range(n)).astype(dtype)
        assert (comm.allreduce(x, op="sum") == want).all(), (dtype, count)
for algorithm in ("ring", "recursive_doubling", "halving_doubling"):
    assert (comm.allreduce(np.full(5000, r + 1.0), op="sum", algorithm=algorithm) == n * (n + 1) / 2).all()
assert (comm.allgather(np.full(3, r)) == np.arange(n)[:, None]).all()
assert (np.asarray(comm.broadcast(np.full(5, r, "float32"), root=n - 1)) == n - 1).all()
if n > 1 and r == 0:
    comm.send(np.arange(300000, dtype="float32"), n - 1)
if n > 1 and r == n - 1:
    z = np.empty(300000, "float32")
    comm.recv(z, 0)
    assert (z == np.arange(300000)).all()
comm.barrier()
os.write(1, f"rank {r} of {n} over {farandole.info()['transports']}\\n".encode())
"""
)

NAMED = """
import os, random
import torch, farandole.torch as hvd
hvd.init()
tensors = {f"t{i}": torch.full((i * 37 + 1,), hvd.rank() + i, dtype=torch.float64) for i in range(20)}
for step in range(8):
    order = list(tensors)
    random.Random(step * 100 + hvd.rank()).shuffle(order)
    handles = {name: hvd.allreduce_async(tensors[name], op=hvd.Sum, name=name) for name in order}
    for i, name in enumerate(tensors):
        want = sum(k + i for k in range(hvd.size()))
        assert (hvd.synchronize(handles[name]) == want).all()
os.write(1, f"rank {hvd.rank()} of {hvd.size()} by name\\n".encode())
"""

REPORT = """
import os, sys
def attempt(work):
    import farandole
    try:
        work()
    except farandole.Error as error:
        os.write(1, f"{type(error).__name__}: {error}\\n".encode())
        sys.exit(3)
"""
