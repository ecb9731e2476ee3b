// Makes worlds of communicators of MPI by farandole_mpi.h: of all ranks in reverse order, then of halves.
#include <farandole/farandole_mpi.h>
#include <stdio.h>

static void use(MPI_Comm comm, const char* name) {
  int rank, size;
  fdl_world* world;
  fdl_comm* ordered;
  fdl_world_facts facts = {sizeof facts};
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  if (fdl_world_create_mpi(comm, NULL, &world) != FDL_OK) {
    printf("no world: %s\n", fdl_last_error()->text);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 3);
  }
  fdl_world_info(world, &facts);
  if (facts.rank != rank || facts.size != size) MPI_Abort(MPI_COMM_WORLD, 4);
  double sum = rank;
  if (fdl_comm_create(fdl_group_all(world), &ordered) != FDL_OK ||
      fdl_allreduce(ordered, &sum, &sum, 1, FDL_FLOAT64, FDL_SUM) != FDL_OK || sum != size * (size - 1) / 2) {
    MPI_Abort(MPI_COMM_WORLD, 5);
  }
  printf("%s: rank %d of %d over %s at %.6s, local %d of %d\n", name, rank, size, facts.transports, facts.rendezvous,
         facts.local_rank, facts.local_size);
  fdl_comm_destroy(ordered);
  fdl_world_destroy(world);
}

/* An option that does not exist would be refused if it were read. */
static void refuse_sizes(void) {
  const size_t sizes[] = {0, 1, sizeof(size_t), (size_t)1 << 40};
  const char* const unread[] = {"no_such_option", "1"};
  for (int i = 0; i < 4; ++i) {
    fdl_world* none = NULL;
    fdl_world_options options;
    fdl_world_options_init(&options);
    options.options = unread;
    options.option_count = 1;
    options.struct_size = sizes[i];
    if (fdl_world_create_mpi(MPI_COMM_WORLD, &options, &none) != FDL_INVALID_ARGUMENT) MPI_Abort(MPI_COMM_WORLD, 8);
    printf("refused: %s\n", fdl_last_error()->text);
  }
}

int main(int argc, char** argv) {
  int rank;
  fdl_world* none = NULL;
  MPI_Comm reversed, half, inter;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  refuse_sizes();
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
  use(reversed, "reversed");
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
  use(half, "half");
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 5, &inter);
  if (fdl_world_create_mpi(inter, NULL, &none) != FDL_INVALID_ARGUMENT) MPI_Abort(MPI_COMM_WORLD, 6);
  printf("refused: %s\n", fdl_last_error()->text);
  if (fdl_world_create_mpi(MPI_COMM_NULL, NULL, &none) != FDL_INVALID_ARGUMENT) MPI_Abort(MPI_COMM_WORLD, 7);
  printf("refused: %s\n", fdl_last_error()->text);
  MPI_Comm_free(&inter);
  MPI_Comm_free(&half);
  MPI_Comm_free(&reversed);
  return MPI_Finalize();
}
