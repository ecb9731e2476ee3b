// A rank that waits in a collective must let MPI move its messages on: here rank 1 comes to the collective only after
// rank 0 has taken a long message, whose receive it has started before the collective.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kLength = 1 << 20, kTurns = 20 };

int main(int argc, char** argv) {
  int rank, size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int* message = malloc(kLength * sizeof(int));
  for (int turn = 0; turn < kTurns; ++turn) {
    MPI_Request request;
    for (int i = 0; i < kLength; ++i) message[i] = rank == 1 ? turn + i : -1;
    if (rank == 0) MPI_Irecv(message, kLength, MPI_INT, 1, turn, MPI_COMM_WORLD, &request);
    if (rank == 1) MPI_Ssend(message, kLength, MPI_INT, 0, turn, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int i = 0; i < kLength; ++i) {
      if (message[i] != turn + i) MPI_Abort(MPI_COMM_WORLD, 3);
    }
  }
  free(message);
  if (rank == 0) printf("%d messages are right\n", kTurns);
  return MPI_Finalize();
}
