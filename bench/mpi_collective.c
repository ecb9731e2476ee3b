// Measures a collective of MPI as programs call it, for bench/mpi.sh: without a line of farandole.
//
//   mpi_collective allreduce|bcast|... BYTES...     the names are in the table `collectives`
//
// Rank 0 prints "bytes microseconds" for each size: the median of seven batches, each the slowest rank's average of a
// call. A batch of slow calls is shorter, so that it takes about kBatchS. The buffers are written before and checked
// afterwards.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBatches = 7, kFirst = 40 };
static const double kBatchS = 0.2;

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static int counts[256], places[256];  // of alike blocks

typedef struct {
  float *input, *output;
  int count;
} Data;
#define COLLECTIVE(name, ...) \
  static void name(Data d) { __VA_ARGS__; }
#define NOW MPI_COMM_WORLD
#define SUM d.input, d.output, d.count, MPI_FLOAT, MPI_SUM
#define BLOCKS d.input, d.count, MPI_FLOAT, d.output, d.count, MPI_FLOAT
#define COUNTS counts, places, MPI_FLOAT
COLLECTIVE(barrier, (void)d; MPI_Barrier(NOW))
COLLECTIVE(bcast, MPI_Bcast(d.input, d.count, MPI_FLOAT, 0, NOW))
COLLECTIVE(reduce, MPI_Reduce(SUM, 0, NOW))
COLLECTIVE(allreduce, MPI_Allreduce(SUM, NOW))
COLLECTIVE(reduce_scatter, MPI_Reduce_scatter_block(SUM, NOW))
COLLECTIVE(scan, MPI_Scan(SUM, NOW))
COLLECTIVE(exscan, MPI_Exscan(SUM, NOW))
COLLECTIVE(gather, MPI_Gather(BLOCKS, 0, NOW))
COLLECTIVE(scatter, MPI_Scatter(BLOCKS, 0, NOW))
COLLECTIVE(allgather, MPI_Allgather(BLOCKS, NOW))
COLLECTIVE(alltoall, MPI_Alltoall(BLOCKS, NOW))
COLLECTIVE(gatherv, MPI_Gatherv(d.input, d.count, MPI_FLOAT, d.output, COUNTS, 0, NOW))
COLLECTIVE(scatterv, MPI_Scatterv(d.input, COUNTS, d.output, d.count, MPI_FLOAT, 0, NOW))
COLLECTIVE(allgatherv, MPI_Allgatherv(d.input, d.count, MPI_FLOAT, d.output, COUNTS, NOW))
COLLECTIVE(alltoallv, MPI_Alltoallv(d.input, COUNTS, d.output, COUNTS, NOW))
COLLECTIVE(iallreduce, MPI_Request request; MPI_Iallreduce(SUM, NOW, &request); MPI_Wait(&request, MPI_STATUS_IGNORE))

static const struct {
  const char* name;
  void (*run)(Data);
} collectives[] = {{"barrier", barrier},       {"bcast", bcast},         {"reduce", reduce},
                   {"allreduce", allreduce},   {"scan", scan},           {"exscan", exscan},
                   {"gather", gather},         {"scatter", scatter},     {"allgather", allgather},
                   {"alltoall", alltoall},     {"gatherv", gatherv},     {"scatterv", scatterv},
                   {"allgatherv", allgatherv}, {"alltoallv", alltoallv}, {"reduce_scatter", reduce_scatter},
                   {"iallreduce", iallreduce}};

static void call(int which, float* input, float* output, int count) {
  const Data data = {input, output, count};
  collectives[which].run(data);
}

// The slowest rank's seconds of a call, the same on all ranks.
static double slowest(double mine) {
  double all;
  MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return all;
}

static double median_us(int which, float* input, float* output, int count, int calls) {
  double times[kBatches];
  const double begun = MPI_Wtime();
  for (int i = 0; i < kFirst; ++i)
    call(which, input, output, count);  // the library is at work and has measured from the 33rd on
  const double fit = kBatchS * kFirst / slowest(MPI_Wtime() - begun);
  if (fit < calls) calls = fit < 2 ? 2 : (int)fit;
  for (int batch = 0; batch < kBatches; ++batch) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (int i = 0; i < calls; ++i) call(which, input, output, count);
    times[batch] = slowest((MPI_Wtime() - start) / calls * 1e6);
  }
  qsort(times, kBatches, sizeof(double), compare);
  return times[kBatches / 2];
}

int main(int argc, char** argv) {
  int rank, size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int which = 0;
  const int known = (int)(sizeof collectives / sizeof collectives[0]);
  while (which < known && (argc < 2 || strcmp(argv[1], collectives[which].name) != 0)) ++which;
  if (which == known || size > 256) {
    fprintf(stderr, "mpi_collective: %s is none of the collectives\n", argc < 2 ? "nothing" : argv[1]);
    MPI_Abort(MPI_COMM_WORLD, 64);
  }
  for (int i = 2; i < argc; ++i) {
    const long bytes = atol(argv[i]);
    const int count = (int)(bytes / (long)sizeof(float));
    const size_t elements = (size_t)count * (size_t)size + 1;  // alltoall and allgather have one block for each rank
    float *input = malloc(elements * sizeof(float)), *output = calloc(elements, sizeof(float));
    for (int k = 0; k < size; ++k) counts[k] = count, places[k] = k * count;
    for (size_t k = 0; k < elements; ++k) input[k] = (float)(k % 5) + (float)rank;
    const int calls = bytes < 16384 ? 2000 : bytes < 1048576 ? 200 : bytes < 16777216 ? 20 : 4;
    const double time = median_us(which, input, output, count, calls);
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
