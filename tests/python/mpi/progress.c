// A rank that waits in a collective must let MPI move its messages on: here rank 1 comes to the collective only after a
// long message from rank 0, which MPI sends in several steps.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kLength = 8 << 20 };

int main(int argc, char** argv) {
  int rank, size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int* message = malloc(kLength * sizeof(int));
  for (int turn = 0; turn < 20; ++turn) {
    MPI_Request request;
    for (int i = 0; i < kLength; i += 1000) message[i] = rank == 0 ? turn + i : -1;
    if (rank == 0) MPI_Isend(message, kLength, MPI_INT, 1, turn, MPI_COMM_WORLD, &request);
    if (rank == 1) MPI_Recv(message, kLength, MPI_INT, 0, turn, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) MPI_Wait(&request, MPI_STATUS_IGNORE);
    if (rank == 1 && message[kLength / 1000 * 1000] != turn + kLength / 1000 * 1000) MPI_Abort(MPI_COMM_WORLD, 3);
  }
  free(message);
  if (rank == 0) printf("20 messages are right\n");
  return MPI_Finalize();
}
