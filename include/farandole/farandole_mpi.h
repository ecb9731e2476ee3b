/* farandole_mpi.h makes a world of the ranks of an MPI communicator. It contains inline functions only: compile it with
 * the compiler of the program's own MPI (mpicc), whose <mpi.h> it includes. farandole itself is linked against no MPI.
 *
 *   fdl_world* world;
 *   if (fdl_world_create_mpi(MPI_COMM_WORLD, NULL, &world) != FDL_OK) fprintf(stderr, "%s\n", fdl_last_error()->text);
 */
#ifndef FARANDOLE_FARANDOLE_MPI_H_
#define FARANDOLE_FARANDOLE_MPI_H_

#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "farandole.h"

#ifdef __cplusplus
extern "C" {
#endif

/* For fdl_world_options.share: passes the text of rank 0 to all ranks of the MPI communicator that `comm` points to. */
static inline int fdl_mpi_share(char* text, size_t capacity, void* comm) {
  return MPI_Bcast(text, (int)capacity, MPI_CHAR, 0, *(MPI_Comm*)comm);
}

/* Sets *one_host to 1 if all ranks of `comm` can meet in one abstract socket, else to 0. Collective over its ranks.
 * Returns a code of MPI. */
static inline int fdl_mpi_is_one_host(MPI_Comm comm, int* one_host) {
  char own[256] = {0};
  char first[256];
  int same;
  int code;
  fdl_host_identity(own, sizeof own);
  memcpy(first, own, sizeof first);
  code = MPI_Bcast(first, (int)sizeof first, MPI_CHAR, 0, comm);
  if (code != MPI_SUCCESS) return code;
  same = memcmp(own, first, sizeof own) == 0;
  return MPI_Allreduce(&same, one_host, 1, MPI_INT, MPI_MIN, comm);
}

/* Joins the ranks of an intracommunicator of MPI: each has the same rank in the world. Collective over these ranks, and
 * blocks as MPI does, without a limit, until all have called it. MPI must have been started, and is not needed by the
 * world afterwards, unless MPI is its transport. Rank 0's address and a fresh job key travel over MPI: no variable is
 * needed, and ranks of one host open no port. `options` may be NULL; its rank, size, local_rank, local_size,
 * rendezvous, job_key and share are ignored. Errors are those of fdl_world_create. FDL_INVALID_ARGUMENT: `comm` has two
 * groups, or is MPI_COMM_NULL; or options->struct_size is not that of a structure. FDL_TRANSPORT: MPI has reported an
 * error to the error handler of `comm`, and the handler has returned. */
static inline fdl_result fdl_world_create_mpi(MPI_Comm comm, const fdl_world_options* options, fdl_world** world) {
  fdl_world_options wanted;
  int is_inter = 0;
  int one_host = 0;
  fdl_world_options_init(&wanted);
  if (options != NULL) {
    /* The bounds are those of fdl_world_create, which gets `wanted` and so cannot check them. */
    if (options->struct_size <= sizeof options->struct_size || options->struct_size > 65536) {
      char text[192];
      snprintf(
          text, sizeof text,
          "fdl_world_create_mpi: fdl_world_options.struct_size is %zu: set it to the size of the structure, or call "
          "its fdl_..._init function first",
          options->struct_size);
      return fdl_fail(FDL_INVALID_ARGUMENT, text);
    }
    memcpy(&wanted, options, options->struct_size < sizeof wanted ? options->struct_size : sizeof wanted);
    wanted.struct_size = sizeof wanted;
  }
  if (comm == MPI_COMM_NULL) {
    return fdl_fail(FDL_INVALID_ARGUMENT,
                    "fdl_world_create_mpi: comm is MPI_COMM_NULL; pass a communicator of which "
                    "this rank is a member, such as MPI_COMM_WORLD");
  }
  if (MPI_Comm_test_inter(comm, &is_inter) != MPI_SUCCESS) {
    return fdl_fail(FDL_TRANSPORT, "fdl_world_create_mpi: MPI has refused comm; was it freed?");
  }
  if (is_inter) {
    return fdl_fail(FDL_INVALID_ARGUMENT,
                    "fdl_world_create_mpi: comm is an intercommunicator, which has two groups of "
                    "ranks; make one of them by MPI_Intercomm_merge, and pass that");
  }
  if (MPI_Comm_rank(comm, &wanted.rank) != MPI_SUCCESS || MPI_Comm_size(comm, &wanted.size) != MPI_SUCCESS ||
      fdl_mpi_is_one_host(comm, &one_host) != MPI_SUCCESS) {
    return fdl_fail(FDL_TRANSPORT, "fdl_world_create_mpi: MPI has failed on comm; its error handler has the reason");
  }
  wanted.local_rank = one_host ? wanted.rank : -1;
  wanted.local_size = one_host ? wanted.size : -1;
  wanted.rendezvous = NULL;
  wanted.job_key = NULL;
  wanted.share = fdl_mpi_share;
  wanted.share_context = &comm;
  return fdl_world_create(&wanted, world);
}

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* FARANDOLE_FARANDOLE_MPI_H_ */
