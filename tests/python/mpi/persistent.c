// Makes persistent requests of long and short collectives, starts each several times, waits for them in several ways, and
// compares the results with those of PMPI's blocking collectives. One stays when its communicator is freed.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kKinds = 10, kTurns = 12, kMost = 40000 };

#ifdef OPEN_MPI
// Open MPI 5 has these functions, the header of Open MPI 4 does not.
int MPI_Allreduce_init(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request*);
int MPI_Reduce_init(const void*, void*, int, MPI_Datatype, MPI_Op, int, MPI_Comm, MPI_Info, MPI_Request*);
int MPI_Reduce_scatter_block_init(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request*);
int MPI_Reduce_scatter_init(const void*, void*, const int*, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Info, MPI_Request*);
int MPI_Bcast_init(void*, int, MPI_Datatype, int, MPI_Comm, MPI_Info, MPI_Request*);
int MPI_Gather_init(const void*, int, MPI_Datatype, void*, int, MPI_Datatype, int, MPI_Comm, MPI_Info, MPI_Request*);
int MPI_Scatter_init(const void*, int, MPI_Datatype, void*, int, MPI_Datatype, int, MPI_Comm, MPI_Info, MPI_Request*);
int MPI_Allgather_init(const void*, int, MPI_Datatype, void*, int, MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request*);
int MPI_Allgatherv_init(const void*, int, MPI_Datatype, void*, const int*, const int*, MPI_Datatype, MPI_Comm, MPI_Info,
                        MPI_Request*);
int MPI_Alltoall_init(const void*, int, MPI_Datatype, void*, int, MPI_Datatype, MPI_Comm, MPI_Info, MPI_Request*);
#endif

static int rank, size, count, counts[16], places[16];
static MPI_Datatype type;  // on some ranks one with gaps
static struct {
  int *input, *ours, *theirs;
} all[kKinds];
static size_t ints;

static void check(int right, const char* what, int turn, int kind) {
  if (right) return;
  printf("wrong on rank %d in turn %d, kind %d: %s\n", rank, turn, kind, what);
  fflush(stdout);
  MPI_Abort(MPI_COMM_WORLD, 3);
}

static void make(MPI_Comm comm, int root, MPI_Request* made) {
  const MPI_Info none = MPI_INFO_NULL;
  MPI_Allreduce_init(all[0].input, all[0].ours, count, MPI_INT, MPI_SUM, comm, none, &made[0]);
  MPI_Bcast_init(all[1].ours, count, type, root, comm, none, &made[1]);
  MPI_Reduce_init(all[2].input, all[2].ours, count, MPI_INT, MPI_MAX, root, comm, none, &made[2]);
  MPI_Allgather_init(all[3].input, count, MPI_INT, all[3].ours, count, type, comm, none, &made[3]);
  MPI_Alltoall_init(all[4].input, count, type, all[4].ours, count, MPI_INT, comm, none, &made[4]);
  MPI_Reduce_scatter_block_init(all[5].input, all[5].ours, count, MPI_INT, MPI_SUM, comm, none, &made[5]);
  MPI_Reduce_scatter_init(all[6].input, all[6].ours, counts, MPI_INT, MPI_SUM, comm, none, &made[6]);
  MPI_Gather_init(all[7].input, count, type, all[7].ours, count, MPI_INT, root, comm, none, &made[7]);
  MPI_Scatter_init(all[8].input, count, MPI_INT, all[8].ours, count, type, root, comm, none, &made[8]);
  // MPICH 4.0.2 by itself fails in a long allgatherv of a type with gaps.
  MPI_Allgatherv_init(all[9].input, counts[rank], MPI_INT, all[9].ours, counts, places, MPI_INT, comm, none, &made[9]);
}

static void repeat(int root, int turn) {
  const MPI_Comm comm = MPI_COMM_WORLD;
  PMPI_Allreduce(all[0].input, all[0].theirs, count, MPI_INT, MPI_SUM, comm);
  PMPI_Bcast(all[1].theirs, count, type, root, comm);
  PMPI_Reduce(all[2].input, all[2].theirs, count, MPI_INT, MPI_MAX, root, comm);
  PMPI_Allgather(all[3].input, count, MPI_INT, all[3].theirs, count, type, comm);
  PMPI_Alltoall(all[4].input, count, type, all[4].theirs, count, MPI_INT, comm);
  PMPI_Reduce_scatter_block(all[5].input, all[5].theirs, count, MPI_INT, MPI_SUM, comm);
  PMPI_Reduce_scatter(all[6].input, all[6].theirs, counts, MPI_INT, MPI_SUM, comm);
  PMPI_Gather(all[7].input, count, type, all[7].theirs, count, MPI_INT, root, comm);
  PMPI_Scatter(all[8].input, count, MPI_INT, all[8].theirs, count, type, root, comm);
  PMPI_Allgatherv(all[9].input, counts[rank], MPI_INT, all[9].theirs, counts, places, MPI_INT, comm);
  for (int kind = 0; kind < kKinds; ++kind) {
    if (kind == 7 && count < 1000) continue;  // MPICH 4.0.2 by itself leaves out the root's block
    check(memcmp(all[kind].ours, all[kind].theirs, ints * sizeof(int)) == 0, "a result", turn, kind);
  }
}

static void fill(int root, int turn) {
  for (int kind = 0; kind < kKinds; ++kind) {
    for (size_t i = 0; i < ints; ++i) {
      all[kind].input[i] = (int)(i % 13) + rank * 3 + turn + kind;
      all[kind].ours[i] = all[kind].theirs[i] = kind == 1 && rank == root ? (int)(i % 7) + turn : -1;
    }
  }
}

static void start_and_wait(int turn, MPI_Request* requests) {
  int flag = 0, index, got, indices[kKinds];
  if (turn % 2 == 0) MPI_Startall(kKinds, requests);
  for (int i = 0; turn % 2 == 1 && i < kKinds; ++i) MPI_Start(&requests[i]);
  const int way = turn % 6;
  if (way == 0) MPI_Waitall(kKinds, requests, MPI_STATUSES_IGNORE);
  for (int i = kKinds - 1; way == 1 && i >= 0; --i) MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
  for (int i = 0; way == 2 && i < kKinds; ++i) {
    MPI_Waitany(kKinds, requests, &index, MPI_STATUS_IGNORE);
    check(index >= 0 && index < kKinds, "waitany", turn, index);
  }
  for (int done = 0; way == 3 && done < kKinds; done += got) {
    MPI_Waitsome(kKinds, requests, &got, indices, MPI_STATUSES_IGNORE);
  }
  while (way == 4 && !flag) MPI_Testall(kKinds, requests, &flag, MPI_STATUSES_IGNORE);
  for (int i = 0; way == 5 && i < kKinds; ++i) {
    for (flag = 0; !flag;) MPI_Test(&requests[i], &flag, MPI_STATUS_IGNORE);
  }
}

int main(int argc, char** argv) {
  MPI_Comm comm;
  MPI_Datatype gappy;  // an int in 8 bytes
  MPI_Request requests[kKinds];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Type_create_resized(MPI_INT, 0, 8, &gappy);
  MPI_Type_commit(&gappy);
  ints = (size_t)kMost * 2 * (size_t)size;
  for (int kind = 0; kind < kKinds; ++kind) {
    all[kind].input = malloc(ints * sizeof(int));
    all[kind].ours = malloc(ints * sizeof(int));
    all[kind].theirs = malloc(ints * sizeof(int));
  }
  for (int pass = 0; pass < 3; ++pass) {
    const int root = pass % size;
    count = pass == 1 ? 100 : kMost - pass;
    type = (pass + rank) % 3 == 0 ? gappy : MPI_INT;
    for (int i = 0, before = 0; i < size; before += counts[i++]) counts[i] = count - 10 * i, places[i] = before;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    make(comm, root, requests);
    // Short ones are MPI's. Those of MPICH 4.0.2 by itself fail when they are started again.
    for (int turn = 0; turn < (pass == 1 ? 1 : kTurns); ++turn) {
      fill(root, turn);
      start_and_wait(turn, requests);
      for (int i = 0; i < kKinds; ++i) check(requests[i] != MPI_REQUEST_NULL, "a request is gone", turn, i);
      repeat(root, turn);
    }
    if (pass == 2) MPI_Comm_free(&comm);
    for (int i = 0; i < kKinds; ++i) MPI_Request_free(&requests[i]);
    if (pass != 2) MPI_Comm_free(&comm);
  }
  MPI_Type_free(&gappy);
  if (rank == 0) printf("persistent requests are right\n");
  return MPI_Finalize();
}
