// Measures a collective of MPI as programs call it, for bench/mpi_preload.sh: without a line of farandole.
//
//   mpi_collective allreduce|bcast|alltoall|allgather|reduce|barrier BYTES...
//
// Rank 0 prints "bytes microseconds" for each size: the median of seven batches, each the slowest rank's average of a
// call. The buffers are written before and checked afterwards.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBatches = 7 };

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void call(const char* name, float* input, float* output, int count) {
  if (name[0] == 'b' && name[1] == 'a')
    MPI_Barrier(MPI_COMM_WORLD);
  else if (name[0] == 'b')
    MPI_Bcast(input, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
  else if (name[0] == 'r')
    MPI_Reduce(input, output, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
  else if (strcmp(name, "alltoall") == 0)
    MPI_Alltoall(input, count, MPI_FLOAT, output, count, MPI_FLOAT, MPI_COMM_WORLD);
  else if (strcmp(name, "allgather") == 0)
    MPI_Allgather(input, count, MPI_FLOAT, output, count, MPI_FLOAT, MPI_COMM_WORLD);
  else
    MPI_Allreduce(input, output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static double median_us(const char* name, float* input, float* output, int count, int calls) {
  double times[kBatches];
  for (int i = 0; i < 40; ++i) call(name, input, output, count);  // the library is at work from the 33rd on
  for (int batch = 0; batch < kBatches; ++batch) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (int i = 0; i < calls; ++i) call(name, input, output, count);
    const double mine = (MPI_Wtime() - start) / calls * 1e6;
    MPI_Allreduce(&mine, &times[batch], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  }
  qsort(times, kBatches, sizeof(double), compare);
  return times[kBatches / 2];
}

int main(int argc, char** argv) {
  int rank, size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int i = 2; i < argc; ++i) {
    const long bytes = atol(argv[i]);
    const int count = (int)(bytes / (long)sizeof(float));
    const size_t elements = (size_t)count * (size_t)size + 1;  // alltoall and allgather have one block for each rank
    float *input = malloc(elements * sizeof(float)), *output = calloc(elements, sizeof(float));
    for (size_t k = 0; k < elements; ++k) input[k] = (float)(k % 5) + (float)rank;
    const int calls = bytes < 16384 ? 2000 : bytes < 1048576 ? 200 : bytes < 16777216 ? 20 : 4;
    const double time = median_us(argv[1], input, output, count, calls);
    if (strcmp(argv[1], "allreduce") == 0 && count > 1 && output[1] != (float)(size + size * (size - 1) / 2)) {
      fprintf(stderr, "rank %d: a wrong sum\n", rank);
      MPI_Abort(MPI_COMM_WORLD, 3);
    }
    if (rank == 0) printf("%ld %.2f\n", bytes, time);
    free(input);
    free(output);
  }
  return MPI_Finalize();
}
