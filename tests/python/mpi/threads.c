// Three threads of each rank run collectives at a time, each on communicators of its own, which it makes and frees.
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>

enum { kThreads = 3, kTurns = 400 };

static int rank, size;
static MPI_Comm comms[kThreads];

static void* work(void* argument) {
  const int number = (int)(long)argument;
  MPI_Comm own = comms[number];
  double x[100], y[100];
  for (int turn = 0; turn < kTurns; ++turn) {
    for (int i = 0; i < 100; ++i) x[i] = rank + turn + number + i;
    MPI_Allreduce(x, y, 100, MPI_DOUBLE, MPI_SUM, own);
    for (int i = 0; i < 100; ++i) {
      if (y[i] != size * (size - 1) / 2 + size * (turn + number + i)) MPI_Abort(MPI_COMM_WORLD, 3);
    }
    if (turn % 100 == 99) {
      if (own != comms[number]) MPI_Comm_free(&own);
      MPI_Comm_dup(comms[number], &own);
    }
  }
  if (own != comms[number]) MPI_Comm_free(&own);
  return NULL;
}

int main(int argc, char** argv) {
  int provided;
  pthread_t threads[kThreads];
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  if (provided != MPI_THREAD_MULTIPLE) return 2;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int i = 0; i < kThreads; ++i) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
  for (int i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, work, (void*)(long)i);
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  for (int i = 0; i < kThreads; ++i) MPI_Comm_free(&comms[i]);
  if (rank == 0) printf("threads are right\n");
  return MPI_Finalize();
}
