// Ranks give unequal counts. Argument: "return" for MPI_ERRORS_RETURN, "handler" for a handler of the program, or
// "fatal" for what MPI does by itself.
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static int handled = 0;
static void handler(MPI_Comm* comm, int* code, ...) {
  char text[MPI_MAX_ERROR_STRING];
  int length;
  (void)comm;
  MPI_Error_string(*code, text, &length);
  printf("handler: %s\n", text);
  ++handled;
}

int main(int argc, char** argv) {
  int rank, length, numbers[16] = {0}, sums[16];
  char text[MPI_MAX_ERROR_STRING];
  MPI_Errhandler own;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int turn = 0; turn < 4; ++turn) MPI_Allreduce(numbers, sums, 8, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (strcmp(argv[1], "return") == 0) MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (strcmp(argv[1], "handler") == 0) {
    MPI_Comm_create_errhandler(handler, &own);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, own);
  }
  const int code = MPI_Allreduce(numbers, sums, rank == 0 ? 4 : 8, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Error_string(code, text, &length);
  printf("rank %d: %s, handled %d\n", rank, code == MPI_SUCCESS ? "success" : text, handled);
  const int again = MPI_Barrier(MPI_COMM_WORLD);
  MPI_Error_string(again, text, &length);
  printf("rank %d again: %s, handled %d\n", rank, again == MPI_SUCCESS ? "success" : text, handled);
  fflush(stdout);
  return MPI_Finalize();
}
