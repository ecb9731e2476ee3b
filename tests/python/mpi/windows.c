// A rank that waits in a collective must answer one-sided communication at once, as it would in a collective of MPI: it
// must not sleep while there is a window. Here rank 1 waits in a barrier until rank 0 has added to its memory.
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <sys/resource.h>

enum { kBarriers = 10, kAdditions = 400 };

static long sleeps_of_this_thread(void) {
  struct rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

// Returns how often this rank has slept.
static long add_under(MPI_Win window, int rank) {
  const double one = 1;
  const long before = sleeps_of_this_thread();
  for (int i = 0; rank == 0 && i < kAdditions; ++i) {
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, window);
    MPI_Accumulate(&one, 1, MPI_DOUBLE, 1, 0, 1, MPI_DOUBLE, MPI_SUM, window);
    MPI_Win_unlock(1, window);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return sleeps_of_this_thread() - before;
}

int main(int argc, char** argv) {
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  double *first, *second;
  MPI_Win of_first, of_second;
  MPI_Alloc_mem(sizeof *first, MPI_INFO_NULL, &first);
  MPI_Alloc_mem(sizeof *second, MPI_INFO_NULL, &second);
  *first = *second = 0;
  MPI_Win_create(first, sizeof *first, sizeof *first, MPI_INFO_NULL, MPI_COMM_WORLD, &of_first);
  MPI_Win_create(second, sizeof *second, sizeof *second, MPI_INFO_NULL, MPI_COMM_WORLD, &of_second);
  for (int i = 0; i < kBarriers; ++i) MPI_Barrier(MPI_COMM_WORLD);
  add_under(of_first, rank);  // the first wait tells farandole that there is a window
  const long slept = add_under(of_first, rank);
  MPI_Win_free(&of_first);
  const long slept_with_one = add_under(of_second, rank);
  MPI_Win_free(&of_second);
  const int right = rank == 0 || (*first == 2 * kAdditions && *second == kAdditions);
  MPI_Free_mem(first);
  MPI_Free_mem(second);
  if (!right) MPI_Abort(MPI_COMM_WORLD, 3);
  if (rank == 1) printf("the sums are right; slept %ld and %ld times\n", slept, slept_with_one);
  return MPI_Finalize();
}
