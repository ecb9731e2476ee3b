"""from_mpi4py: heat in a rod with farandole. The comments have the same calls of mpi4py.

farandole run -np 2 python examples/from_mpi4py.py          # or mpirun -np 2, srun
"""

import farandole
import numpy as np

CELLS, STEPS = 41, 600


def heat_of_a_rod_alone():
    rod = np.zeros(CELLS + 2)
    rod[0] = 1.0
    for _ in range(STEPS):
        rod[1:-1] += 0.25 * (rod[:-2] - 2 * rod[1:-1] + rod[2:])
    return rod[1:-1]


def main():
    farandole.init()  #                                      from mpi4py import MPI
    comm = farandole.Communicator()  #                       comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size  #                     comm.Get_rank(), comm.Get_size()

    counts = [CELLS // size + (one < CELLS % size) for one in range(size)]
    mine = np.zeros(counts[rank] + 2)  # one more on each side: the neighbour's
    if rank == 0:
        mine[0] = 1.0

    for _ in range(STEPS):
        requests = []
        for peer, own, theirs in ((rank - 1, slice(1, 2), slice(0, 1)), (rank + 1, slice(-2, -1), slice(-1, None))):
            if 0 <= peer < size:
                requests.append(comm.irecv(mine[theirs], peer))  #  comm.Irecv(mine[theirs], source=peer)
                requests.append(comm.isend(mine[own], peer))  #     comm.Isend(mine[own], dest=peer)
        for request in requests:
            request.wait()  #                                MPI.Request.Waitall(requests)
        before = mine[1:-1].copy()
        mine[1:-1] += 0.25 * (mine[:-2] - 2 * mine[1:-1] + mine[2:])
        change = np.array([np.abs(mine[1:-1] - before).max()])
        change = comm.allreduce(change, op=farandole.Op.MAX)  #  comm.Allreduce(MPI.IN_PLACE, change, op=MPI.MAX)

    rod = comm.allgather(mine[1:-1].copy(), counts=counts)  #  comm.Allgatherv(mine, [rod, counts])
    warmest = comm.reduce(mine[1:-1].max(keepdims=True), op=farandole.Op.MAX, root=0)  #  comm.Reduce(..., root=0)

    half = farandole.world_group().split(color=rank % 2, key=rank)  #  comm.Split(color=rank % 2, key=rank)
    with farandole.Communicator(half) as part:
        members = part.allreduce(np.array([1]))[0]

    assert np.array_equal(rod, heat_of_a_rod_alone()), "the same numbers as one process computes"
    if rank == 0:
        assert warmest[0] == rod.max() and members == (size + 1) // 2
        print(
            f"from_mpi4py: {size} ranks, {CELLS} cells, {STEPS} steps, last change {change[0]:.2e}, mean heat "
            f"{rod.mean():.4f}"
        )
    comm.free()


if __name__ == "__main__":
    main()
