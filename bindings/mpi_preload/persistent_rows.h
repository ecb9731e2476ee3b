// This list has one row for each function that makes a persistent request of a collective: name, our function,
// parameters, arguments, arguments of our function. FDL_PERSISTENT, Count and Place are defined by who includes it.
//
// It has no guard, because it is included several times.

#define FDL_REDUCTION const void *input, void *output, Count count, MPI_Datatype datatype, MPI_Op op
#define FDL_REDUCTION_GIVEN input, output, count, datatype, op
#define FDL_BLOCKS \
  const void *input, Count send_count, MPI_Datatype send_type, void *output, Count recv_count, MPI_Datatype recv_type
#define FDL_BLOCKS_GIVEN input, send_count, send_type, output, recv_count, recv_type
#define FDL_MADE MPI_Comm comm, MPI_Info info, MPI_Request *request
#define FDL_MADE_GIVEN comm, info, request
#define FDL_OURS comm, request, true

// clang-format off
FDL_PERSISTENT(Allreduce_init, start_allreduce, (FDL_REDUCTION, FDL_MADE),
               (FDL_REDUCTION_GIVEN, FDL_MADE_GIVEN), (FDL_REDUCTION_GIVEN, FDL_OURS))
FDL_PERSISTENT(Reduce_init, start_reduce, (FDL_REDUCTION, int root, FDL_MADE),
               (FDL_REDUCTION_GIVEN, root, FDL_MADE_GIVEN), (FDL_REDUCTION_GIVEN, root, FDL_OURS))
FDL_PERSISTENT(Reduce_scatter_block_init, start_reduce_scatter_block, (FDL_REDUCTION, FDL_MADE),
               (FDL_REDUCTION_GIVEN, FDL_MADE_GIVEN), (FDL_REDUCTION_GIVEN, FDL_OURS))
FDL_PERSISTENT(Reduce_scatter_init, start_reduce_scatter,
               (const void* input, void* output, const Count* counts, MPI_Datatype datatype, MPI_Op op, FDL_MADE),
               (input, output, counts, datatype, op, FDL_MADE_GIVEN), (input, output, counts, datatype, op, FDL_OURS))
FDL_PERSISTENT(Bcast_init, start_broadcast, (void* buffer, Count count, MPI_Datatype datatype, int root, FDL_MADE),
               (buffer, count, datatype, root, FDL_MADE_GIVEN), (buffer, count, datatype, root, FDL_OURS))
FDL_PERSISTENT(Gather_init, start_gather, (FDL_BLOCKS, int root, FDL_MADE),
               (FDL_BLOCKS_GIVEN, root, FDL_MADE_GIVEN), (FDL_BLOCKS_GIVEN, root, FDL_OURS))
FDL_PERSISTENT(Scatter_init, start_scatter, (FDL_BLOCKS, int root, FDL_MADE),
               (FDL_BLOCKS_GIVEN, root, FDL_MADE_GIVEN), (FDL_BLOCKS_GIVEN, root, FDL_OURS))
FDL_PERSISTENT(Allgather_init, start_allgather, (FDL_BLOCKS, FDL_MADE),
               (FDL_BLOCKS_GIVEN, FDL_MADE_GIVEN), (FDL_BLOCKS_GIVEN, FDL_OURS))
FDL_PERSISTENT(Allgatherv_init, start_allgatherv,
               (const void* input, Count send_count, MPI_Datatype send_type, void* output, const Count* recv_counts,
                const Place* places, MPI_Datatype recv_type, FDL_MADE),
               (input, send_count, send_type, output, recv_counts, places, recv_type, FDL_MADE_GIVEN),
               (input, send_count, send_type, output, recv_counts, places, recv_type, FDL_OURS))
FDL_PERSISTENT(Alltoall_init, start_alltoall, (FDL_BLOCKS, FDL_MADE),
               (FDL_BLOCKS_GIVEN, FDL_MADE_GIVEN), (FDL_BLOCKS_GIVEN, FDL_OURS))
// clang-format on

#undef FDL_REDUCTION
#undef FDL_REDUCTION_GIVEN
#undef FDL_BLOCKS
#undef FDL_BLOCKS_GIVEN
#undef FDL_MADE
#undef FDL_MADE_GIVEN
#undef FDL_OURS
#undef FDL_PERSISTENT
