// Starts long collectives without waiting, between blocking ones and messages, and waits for them in every way that MPI
// has. The results are compared with those of PMPI's blocking collectives.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kCount = 40000, kKinds = 10, kTurns = 60 };

static int rank, size;
static MPI_Datatype gappy;  // an int in 8 bytes

static void check(int right, const char* what, int turn) {
  if (right) return;
  printf("wrong on rank %d in turn %d: %s\n", rank, turn, what);
  fflush(stdout);
  MPI_Abort(MPI_COMM_WORLD, 3);
}

typedef struct {
  int *input, *ours, *theirs;
  size_t ints;
} Buffers;
static Buffers buffers[kKinds];
// Of the ranks' blocks: one behind the other, and in another order with gaps.
static int counts[16], packed[16], spread[16];

static void fill(int turn) {
  for (int kind = 0; kind < kKinds; ++kind) {
    Buffers* all = &buffers[kind];
    for (size_t i = 0; i < all->ints; ++i) {
      all->input[i] = (int)(i % 13) + rank * 3 + turn + kind;
      all->ours[i] = all->theirs[i] = kind == 1 && rank == turn % size ? (int)(i % 7) + turn : -1;
    }
  }
}

// Starts all kinds; `has_gaps` differs between ranks.
static void start(int turn, int has_gaps, MPI_Comm comm, MPI_Request* requests) {
  const int root = turn % size;
  const MPI_Datatype type = has_gaps ? gappy : MPI_INT;
  Buffers* all = buffers;
  MPI_Iallreduce(all[0].input, all[0].ours, kCount, MPI_INT, MPI_SUM, comm, &requests[0]);
  MPI_Ibcast(all[1].ours, kCount, type, root, comm, &requests[1]);
  MPI_Ireduce(all[2].input, all[2].ours, kCount, MPI_INT, MPI_MAX, root, comm, &requests[2]);
  MPI_Iallgather(all[3].input, kCount, MPI_INT, all[3].ours, kCount, type, comm, &requests[3]);
  MPI_Ialltoall(all[4].input, kCount, type, all[4].ours, kCount, MPI_INT, comm, &requests[4]);
  MPI_Ireduce_scatter_block(all[5].input, all[5].ours, kCount, MPI_INT, MPI_SUM, comm, &requests[5]);
  MPI_Ireduce_scatter(all[6].input, all[6].ours, counts, MPI_INT, MPI_SUM, comm, &requests[6]);
  MPI_Igather(all[7].input, kCount, type, all[7].ours, kCount, MPI_INT, root, comm, &requests[7]);
  MPI_Iscatter(all[8].input, kCount, MPI_INT, all[8].ours, kCount, type, root, comm, &requests[8]);
  // MPICH 4.0.2 by itself fails in a long allgatherv of a type with gaps.
  MPI_Iallgatherv(all[9].input, counts[rank], MPI_INT, all[9].ours, counts, turn % 2 == 0 ? packed : spread, MPI_INT,
                  comm, &requests[9]);
}
static void repeat(int turn, int has_gaps, MPI_Comm comm) {
  const int root = turn % size;
  const MPI_Datatype type = has_gaps ? gappy : MPI_INT;
  Buffers* all = buffers;
  PMPI_Allreduce(all[0].input, all[0].theirs, kCount, MPI_INT, MPI_SUM, comm);
  PMPI_Bcast(all[1].theirs, kCount, type, root, comm);
  PMPI_Reduce(all[2].input, all[2].theirs, kCount, MPI_INT, MPI_MAX, root, comm);
  PMPI_Allgather(all[3].input, kCount, MPI_INT, all[3].theirs, kCount, type, comm);
  PMPI_Alltoall(all[4].input, kCount, type, all[4].theirs, kCount, MPI_INT, comm);
  PMPI_Reduce_scatter_block(all[5].input, all[5].theirs, kCount, MPI_INT, MPI_SUM, comm);
  PMPI_Reduce_scatter(all[6].input, all[6].theirs, counts, MPI_INT, MPI_SUM, comm);
  PMPI_Gather(all[7].input, kCount, type, all[7].theirs, kCount, MPI_INT, root, comm);
  PMPI_Scatter(all[8].input, kCount, MPI_INT, all[8].theirs, kCount, type, root, comm);
  PMPI_Allgatherv(all[9].input, counts[rank], MPI_INT, all[9].theirs, counts, turn % 2 == 0 ? packed : spread, MPI_INT,
                  comm);
  for (int kind = 0; kind < kKinds; ++kind) {
    check(memcmp(all[kind].ours, all[kind].theirs, all[kind].ints * sizeof(int)) == 0, "a result", turn);
  }
}

static void wait_in_some_way(int way, int count, MPI_Request* requests) {
  int flag = 0, done = 0, index, indices[kKinds + 1];
  if (way == 0) MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
  for (int i = count - 1; way == 1 && i >= 0; --i) MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
  for (int i = 0; way == 2 && i < count; ++i) MPI_Waitany(count, requests, &index, MPI_STATUS_IGNORE);
  for (int got; way == 3 && done < count; done += got)
    MPI_Waitsome(count, requests, &got, indices, MPI_STATUSES_IGNORE);
  while (way == 4 && !flag) MPI_Testall(count, requests, &flag, MPI_STATUSES_IGNORE);
  for (int i = 0; way == 5 && i < count; ++i) {
    for (flag = 0; !flag;) MPI_Test(&requests[i], &flag, MPI_STATUS_IGNORE);
  }
  for (int i = 0; way == 6 && i < count; ++i) {
    for (flag = 0; !flag;) MPI_Testany(count, requests, &index, &flag, MPI_STATUS_IGNORE);
  }
  for (int got; way == 7 && done < count; done += got) {
    MPI_Testsome(count, requests, &got, indices, MPI_STATUSES_IGNORE);
  }
  for (int i = 0; way == 8 && i < count; ++i) {
    for (flag = 0; !flag;) MPI_Request_get_status(requests[i], &flag, MPI_STATUS_IGNORE);
    MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
  }
}

int main(int argc, char** argv) {
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Type_create_resized(MPI_INT, 0, 8, &gappy);
  MPI_Type_commit(&gappy);
  for (int kind = 0; kind < kKinds; ++kind) {
    Buffers* all = &buffers[kind];
    all->ints = (size_t)kCount * 2 * (size_t)(size + 1);
    all->input = malloc(all->ints * sizeof(int));
    all->ours = malloc(all->ints * sizeof(int));
    all->theirs = malloc(all->ints * sizeof(int));
  }
  for (int i = 0, before = 0; i < size; before += counts[i++]) {
    counts[i] = kCount - 100 * i;
    packed[i] = before;
    spread[i] = kCount * (size - 1 - i) + 10;
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    MPI_Request requests[kKinds + 1];
    int sent = turn, got = -1;
    const int has_gaps = (turn + rank) % 3 == 0;
    if (turn % 20 == 0) MPI_Comm_dup(MPI_COMM_WORLD, &part);
    MPI_Barrier(part);
    fill(turn);
    start(turn, has_gaps, part, requests);
    MPI_Irecv(&got, 1, MPI_INT, (rank + size - 1) % size, 7, part, &requests[kKinds]);
    MPI_Send(&sent, 1, MPI_INT, (rank + 1) % size, 7, part);
    const MPI_Comm started = part;
    // MPI allows a communicator to be freed while its operations are in flight. Open MPI 4.1 by itself crashes.
    if (turn % 20 == 19)
      MPI_Comm_free(&part);
    else
      MPI_Allreduce(MPI_IN_PLACE, &sent, 1, MPI_INT, MPI_MAX, started);
    wait_in_some_way(turn % 9, kKinds + 1, requests);
    check(got == turn, "a message", turn);
    for (int i = 0; i <= kKinds; ++i) check(requests[i] == MPI_REQUEST_NULL, "a request is left", turn);
    repeat(turn, has_gaps, MPI_COMM_WORLD);
  }
  MPI_Type_free(&gappy);
  if (rank == 0) printf("%d turns are right\n", kTurns);
  return MPI_Finalize();
}
