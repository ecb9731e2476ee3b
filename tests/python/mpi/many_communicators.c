// Makes 20 communicators and frees them, then 300 at a time, calls collectives on each, and counts what they leave
// behind.
#include <dirent.h>
#include <mpi.h>
#include <stdio.h>

enum { kAtOnce = 300, kRounds = 2 };

static int descriptors(void) {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != NULL) ++count;
  closedir(folder);
  return count;
}

int main(int argc, char** argv) {
  int rank, size;
  MPI_Comm comms[kAtOnce];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int before = descriptors();
  for (int round = 0; round < kRounds; ++round) {
    const int count = round == 0 ? 20 : kAtOnce;
    for (int i = 0; i < count; ++i) {
      if (i % 2 == 0)
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
      else
        MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comms[i]);
      for (int turn = 0; turn < 5; ++turn) {
        int number = rank + turn, sum = 0, own;
        MPI_Allreduce(&number, &sum, 1, MPI_INT, MPI_SUM, comms[i]);
        if (sum != size * (size - 1) / 2 + turn * size) MPI_Abort(MPI_COMM_WORLD, 3);
        MPI_Comm_rank(comms[i], &own);
        number = own;
        MPI_Bcast(&number, 1, MPI_INT, size - 1, comms[i]);
        if (number != size - 1) MPI_Abort(MPI_COMM_WORLD, 4);
      }
    }
    for (int i = 0; i < count; ++i) MPI_Comm_free(&comms[(i * 7) % count]);
    if (round == 0) before = descriptors();
  }
  const int left = descriptors() - before;
  printf("rank %d: %d descriptors are left\n", rank, left);
  fflush(stdout);
  if (left > 20) MPI_Abort(MPI_COMM_WORLD, 5);
  return MPI_Finalize();
}
