"""03_groups: sets of ranks, from Python, with NumPy arrays.

    farandole run -np 4 python examples/03_groups.py

Even and odd ranks sum among themselves while all ranks sum together; no group waits for another. The second part uses a
communicator. It is faster, and every member must call the same operations in the same order.
"""

import farandole
import numpy as np

farandole.init()
rank, size = farandole.rank(), farandole.size()

# All members of the group make it. Operations by name run in any order, in the background:
mine = farandole.Group(range(rank % 2, size, 2))
total = farandole.allreduce_async(np.full(3, rank), name="total")
part = farandole.allreduce_async(np.full(3, rank), name="part", group=mine)
print(f"rank {rank}: group {list(mine.ranks)} sums to {part.wait()}, all ranks to {total.wait()}")

# In order, in this thread:
with farandole.Communicator(mine) as comm:
    gathered = comm.allgather(np.array([rank * 10]))
print(f"rank {rank}: gathered {gathered.ravel()} from ranks {list(mine.ranks)}")

assert total.wait()[0] == sum(range(size))
assert part.wait()[0] == sum(mine.ranks)
assert list(gathered.ravel()) == [10 * one for one in mine.ranks]
