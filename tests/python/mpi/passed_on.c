// Calls what MPI must run: operations of the program, pairs of value and place, types that farandole does not add,
// intercommunicators, communicators of one rank, and calls with nothing in them.
#include <complex.h>
#include <mpi.h>
#include <stdio.h>

static int rank, size;
static void check(int right, const char* what) {
  if (right) return;
  printf("wrong on rank %d: %s\n", rank, what);
  fflush(stdout);
  MPI_Abort(MPI_COMM_WORLD, 3);
}

// Composes two functions a*x + b. It is not commutative.
static void compose(void* input, void* output, int* count, MPI_Datatype* type) {
  int *f = input, *g = output;
  (void)type;
  for (int i = 0; i < *count; i += 1, f += 2, g += 2) {
    const int a = f[0] * g[0], b = f[1] * g[0] + g[1];
    g[0] = a, g[1] = b;
  }
}

static void operations(void) {
  MPI_Op own;
  MPI_Datatype pair;
  MPI_Op_create(compose, 0, &own);
  MPI_Type_contiguous(2, MPI_INT, &pair);
  MPI_Type_commit(&pair);
  int mine[2] = {2, rank}, all[2];
  check(MPI_Allreduce(mine, all, 1, pair, own, MPI_COMM_WORLD) == MPI_SUCCESS, "own operation");
  int a = 1, b = 0;
  for (int i = 0; i < size; ++i) a = 2 * a, b = 2 * b + i;
  check(all[0] == a && all[1] == b, "own operation");
  MPI_Type_free(&pair);
  MPI_Op_free(&own);
  struct {
    double value;
    int place;
  } here = {(rank * 7) % size, rank}, most;
  MPI_Allreduce(&here, &most, 1, MPI_DOUBLE_INT, MPI_MAXLOC, MPI_COMM_WORLD);
  check(most.value <= size - 1 && (most.place * 7) % size == most.value, "maxloc");
  long double wide = rank, widest = -1;
  MPI_Allreduce(&wide, &widest, 1, MPI_LONG_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  check(widest == size - 1, "long double");
  double complex number = rank + 2 * I, sum = 0;
  MPI_Allreduce(&number, &sum, 1, MPI_C_DOUBLE_COMPLEX, MPI_SUM, MPI_COMM_WORLD);
  check(creal(sum) == size * (size - 1) / 2 && cimag(sum) == 2 * size, "complex");
  int truth = rank != 0, any = -1;
  double complex prefix = -1, before = -1;
  MPI_Allreduce(&truth, &any, 1, MPI_INT, MPI_LOR, MPI_COMM_WORLD);
  check(any == 1, "logical or of ints");
  MPI_Scan(&number, &prefix, 1, MPI_C_DOUBLE_COMPLEX, MPI_SUM, MPI_COMM_WORLD);
  MPI_Exscan(&number, &before, 1, MPI_C_DOUBLE_COMPLEX, MPI_SUM, MPI_COMM_WORLD);
  check(creal(prefix) == rank * (rank + 1) / 2 && cimag(prefix) == 2 * (rank + 1), "scan of complex numbers");
  check(rank == 0 || creal(before) == rank * (rank - 1) / 2, "exscan of complex numbers");
}

static void communicators(void) {
  int one = 7, none = 0;
  check(MPI_Allreduce(&one, &none, 1, MPI_INT, MPI_SUM, MPI_COMM_SELF) == MPI_SUCCESS && none == 7, "self");
  check(MPI_Allreduce(NULL, NULL, 0, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS, "no elements");
  check(MPI_Bcast(NULL, 0, MPI_INT, 0, MPI_COMM_WORLD) == MPI_SUCCESS, "no elements");
  MPI_Comm half, inter, merged;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 5, &inter);
  int sum = 0, there;
  MPI_Comm_remote_size(inter, &there);
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, inter);
  check(sum == 7 * there, "intercommunicator");
  MPI_Barrier(inter);
  int mine[2] = {rank, rank + 1}, theirs[64], root = rank == 0 ? MPI_ROOT : rank % 2 == 0 ? MPI_PROC_NULL : 0;
  check(MPI_Bcast(mine, 2, MPI_INT, root, inter) == MPI_SUCCESS && (rank % 2 == 0 || mine[1] == 1), "inter bcast");
  mine[0] = rank;
  check(MPI_Allgather(mine, 1, MPI_INT, theirs, 1, MPI_INT, inter) == MPI_SUCCESS, "inter allgather");
  for (int i = 0; i < there; ++i) check(theirs[i] == 2 * i + 1 - rank % 2, "inter allgather");
  for (int i = 0; i < 64; ++i) theirs[i] = rank;
  int received[64];
  check(MPI_Alltoall(theirs, 1, MPI_INT, received, 1, MPI_INT, inter) == MPI_SUCCESS, "inter alltoall");
  for (int i = 0; i < there; ++i) check(received[i] == 2 * i + 1 - rank % 2, "inter alltoall");
  MPI_Request request;
  check(MPI_Ibarrier(inter, &request) == MPI_SUCCESS && MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS, "ibarrier");
  MPI_Intercomm_merge(inter, rank % 2, &merged);
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, merged);
  check(sum == 7 * size, "merged communicator");
  MPI_Comm_free(&merged);
  MPI_Comm_free(&inter);
  MPI_Comm_free(&half);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int turn = 0; turn < 5; ++turn) {
    operations();
    communicators();
  }
  if (rank == 0) printf("what was passed on is right\n");
  return MPI_Finalize();
}
