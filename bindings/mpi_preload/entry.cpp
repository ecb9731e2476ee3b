// The functions of MPI that the loader finds here before those of the MPI library. A collective that farandole does not
// run goes on to the library.
#include "collectives.h"
#include "host_world.h"
#include "real_mpi.h"

using namespace fdl::mpi_preload;

// One row a collective: name, our function, parameters, arguments.
#define FDL_COLLECTIVE(name, function, parameters, arguments)  \
  int MPI_##name parameters {                                  \
    if (const Outcome code = function arguments) return *code; \
    return real().name arguments;                              \
  }

extern "C" {

int MPI_Init(int* argc, char*** argv) {
  const int code = real().Init(argc, argv);
  if (code == MPI_SUCCESS) start_host_world();
  return code;
}

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  const int code = real().Init_thread(argc, argv, required, provided);
  if (code == MPI_SUCCESS) start_host_world();
  return code;
}

int MPI_Finalize() {
  stop_host_world();
  return real().Finalize();
}

#define FDL_REDUCTION const void *input, void *output, int count, MPI_Datatype datatype, MPI_Op op
#define FDL_BLOCKS \
  const void *input, int send_count, MPI_Datatype send_type, void *output, int recv_count, MPI_Datatype recv_type
#define FDL_BLOCKS_GIVEN input, send_count, send_type, output, recv_count, recv_type

// clang-format off
FDL_COLLECTIVE(Allreduce, allreduce, (FDL_REDUCTION, MPI_Comm comm), (input, output, count, datatype, op, comm))
FDL_COLLECTIVE(Reduce, reduce, (FDL_REDUCTION, int root, MPI_Comm comm),
               (input, output, count, datatype, op, root, comm))
FDL_COLLECTIVE(Reduce_scatter_block, reduce_scatter_block, (FDL_REDUCTION, MPI_Comm comm),
               (input, output, count, datatype, op, comm))
FDL_COLLECTIVE(Reduce_scatter, reduce_scatter,
               (const void* input, void* output, const int* counts, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm),
               (input, output, counts, datatype, op, comm))
FDL_COLLECTIVE(Barrier, barrier, (MPI_Comm comm), (comm))
FDL_COLLECTIVE(Bcast, broadcast, (void* buffer, int count, MPI_Datatype datatype, int root, MPI_Comm comm),
               (buffer, count, datatype, root, comm))
FDL_COLLECTIVE(Gather, gather, (FDL_BLOCKS, int root, MPI_Comm comm), (FDL_BLOCKS_GIVEN, root, comm))
FDL_COLLECTIVE(Scatter, scatter, (FDL_BLOCKS, int root, MPI_Comm comm), (FDL_BLOCKS_GIVEN, root, comm))
FDL_COLLECTIVE(Allgather, allgather, (FDL_BLOCKS, MPI_Comm comm), (FDL_BLOCKS_GIVEN, comm))
FDL_COLLECTIVE(Alltoall, alltoall, (FDL_BLOCKS, MPI_Comm comm), (FDL_BLOCKS_GIVEN, comm))
FDL_COLLECTIVE(Gatherv, gatherv,
               (const void* input, int send_count, MPI_Datatype send_type, void* output, const int* recv_counts,
                const int* places, MPI_Datatype recv_type, int root, MPI_Comm comm),
               (input, send_count, send_type, output, recv_counts, places, recv_type, root, comm))
FDL_COLLECTIVE(Scatterv, scatterv,
               (const void* input, const int* send_counts, const int* places, MPI_Datatype send_type, void* output,
                int recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm),
               (input, send_counts, places, send_type, output, recv_count, recv_type, root, comm))
FDL_COLLECTIVE(Allgatherv, allgatherv,
               (const void* input, int send_count, MPI_Datatype send_type, void* output, const int* recv_counts,
                const int* places, MPI_Datatype recv_type, MPI_Comm comm),
               (input, send_count, send_type, output, recv_counts, places, recv_type, comm))
FDL_COLLECTIVE(Alltoallv, alltoallv,
               (const void* input, const int* send_counts, const int* send_places, MPI_Datatype send_type, void* output,
                const int* recv_counts, const int* recv_places, MPI_Datatype recv_type, MPI_Comm comm),
               (input, send_counts, send_places, send_type, output, recv_counts, recv_places, recv_type, comm))
// clang-format on

}  // extern "C"
