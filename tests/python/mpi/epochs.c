// A rank that tests its window after a barrier must find what the other ranks completed before that barrier, as after a
// barrier of MPI: the messages of MPI that arrived before the barrier ended are taken in.
#include <mpi.h>
#include <stdio.h>

enum { kBarriers = 10, kEpochs = 200 };

// Returns whether rank 1 found the end of rank 0's access after the second barrier.
static int finds_the_end(MPI_Win window, int rank, MPI_Group other) {
  int done = 0;
  if (rank == 0) {
    MPI_Win_start(other, 0, window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_complete(window);
    MPI_Barrier(MPI_COMM_WORLD);
    return 1;
  }
  MPI_Win_post(other, 0, window);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_test(window, &done);
  if (!done) MPI_Win_wait(window);
  return done;
}

int main(int argc, char** argv) {
  int rank, found = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  double value = 0;
  MPI_Win window;
  MPI_Win_create(&value, sizeof value, sizeof value, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  MPI_Group both, other;
  MPI_Win_get_group(window, &both);
  MPI_Group_incl(both, 1, &(int){1 - rank}, &other);
  for (int i = 0; i < kBarriers; ++i) MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < kEpochs; ++i) found += finds_the_end(window, rank, other);
  MPI_Group_free(&other);
  MPI_Group_free(&both);
  MPI_Win_free(&window);
  if (rank == 1) printf("found the end of %d of %d accesses\n", found, kEpochs);
  return MPI_Finalize();
}
