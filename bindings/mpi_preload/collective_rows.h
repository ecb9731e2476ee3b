// This list has one row for each collective: name, our function, parameters, arguments. It is included once for each
// kind of counts, with FDL_ROW, Count and Place defined: ints, or the long numbers of the functions *_c.
//
// It has no guard, because it is included several times.

#define FDL_REDUCTION const void *input, void *output, Count count, MPI_Datatype datatype, MPI_Op op
#define FDL_BLOCKS \
  const void *input, Count send_count, MPI_Datatype send_type, void *output, Count recv_count, MPI_Datatype recv_type
#define FDL_BLOCKS_GIVEN input, send_count, send_type, output, recv_count, recv_type

// clang-format off
FDL_ROW(Allreduce, allreduce, (FDL_REDUCTION, MPI_Comm comm), (input, output, count, datatype, op, comm))
FDL_ROW(Reduce, reduce, (FDL_REDUCTION, int root, MPI_Comm comm), (input, output, count, datatype, op, root, comm))
FDL_ROW(Reduce_scatter_block, reduce_scatter_block, (FDL_REDUCTION, MPI_Comm comm),
        (input, output, count, datatype, op, comm))
FDL_ROW(Reduce_scatter, reduce_scatter,
        (const void* input, void* output, const Count* counts, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm),
        (input, output, counts, datatype, op, comm))
FDL_ROW(Scan, scan, (FDL_REDUCTION, MPI_Comm comm), (input, output, count, datatype, op, comm))
FDL_ROW(Exscan, exscan, (FDL_REDUCTION, MPI_Comm comm), (input, output, count, datatype, op, comm))
FDL_ROW(Bcast, broadcast, (void* buffer, Count count, MPI_Datatype datatype, int root, MPI_Comm comm),
        (buffer, count, datatype, root, comm))
FDL_ROW(Gather, gather, (FDL_BLOCKS, int root, MPI_Comm comm), (FDL_BLOCKS_GIVEN, root, comm))
FDL_ROW(Scatter, scatter, (FDL_BLOCKS, int root, MPI_Comm comm), (FDL_BLOCKS_GIVEN, root, comm))
FDL_ROW(Allgather, allgather, (FDL_BLOCKS, MPI_Comm comm), (FDL_BLOCKS_GIVEN, comm))
FDL_ROW(Alltoall, alltoall, (FDL_BLOCKS, MPI_Comm comm), (FDL_BLOCKS_GIVEN, comm))
FDL_ROW(Gatherv, gatherv,
        (const void* input, Count send_count, MPI_Datatype send_type, void* output, const Count* recv_counts,
         const Place* places, MPI_Datatype recv_type, int root, MPI_Comm comm),
        (input, send_count, send_type, output, recv_counts, places, recv_type, root, comm))
FDL_ROW(Scatterv, scatterv,
        (const void* input, const Count* send_counts, const Place* places, MPI_Datatype send_type, void* output,
         Count recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm),
        (input, send_counts, places, send_type, output, recv_count, recv_type, root, comm))
FDL_ROW(Allgatherv, allgatherv,
        (const void* input, Count send_count, MPI_Datatype send_type, void* output, const Count* recv_counts,
         const Place* places, MPI_Datatype recv_type, MPI_Comm comm),
        (input, send_count, send_type, output, recv_counts, places, recv_type, comm))
FDL_ROW(Alltoallv, alltoallv,
        (const void* input, const Count* send_counts, const Place* send_places, MPI_Datatype send_type, void* output,
         const Count* recv_counts, const Place* recv_places, MPI_Datatype recv_type, MPI_Comm comm),
        (input, send_counts, send_places, send_type, output, recv_counts, recv_places, recv_type, comm))

// Nonblocking.
FDL_ROW(Iallreduce, start_allreduce, (FDL_REDUCTION, MPI_Comm comm, MPI_Request* request),
        (input, output, count, datatype, op, comm, request))
FDL_ROW(Ireduce, start_reduce, (FDL_REDUCTION, int root, MPI_Comm comm, MPI_Request* request),
        (input, output, count, datatype, op, root, comm, request))
FDL_ROW(Ireduce_scatter_block, start_reduce_scatter_block, (FDL_REDUCTION, MPI_Comm comm, MPI_Request* request),
        (input, output, count, datatype, op, comm, request))
FDL_ROW(Ireduce_scatter, start_reduce_scatter,
        (const void* input, void* output, const Count* counts, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
         MPI_Request* request),
        (input, output, counts, datatype, op, comm, request))
FDL_ROW(Ibcast, start_broadcast,
        (void* buffer, Count count, MPI_Datatype datatype, int root, MPI_Comm comm, MPI_Request* request),
        (buffer, count, datatype, root, comm, request))
FDL_ROW(Igather, start_gather, (FDL_BLOCKS, int root, MPI_Comm comm, MPI_Request* request),
        (FDL_BLOCKS_GIVEN, root, comm, request))
FDL_ROW(Iscatter, start_scatter, (FDL_BLOCKS, int root, MPI_Comm comm, MPI_Request* request),
        (FDL_BLOCKS_GIVEN, root, comm, request))
FDL_ROW(Iallgatherv, start_allgatherv,
        (const void* input, Count send_count, MPI_Datatype send_type, void* output, const Count* recv_counts,
         const Place* places, MPI_Datatype recv_type, MPI_Comm comm, MPI_Request* request),
        (input, send_count, send_type, output, recv_counts, places, recv_type, comm, request))
FDL_ROW(Iallgather, start_allgather, (FDL_BLOCKS, MPI_Comm comm, MPI_Request* request),
        (FDL_BLOCKS_GIVEN, comm, request))
FDL_ROW(Ialltoall, start_alltoall, (FDL_BLOCKS, MPI_Comm comm, MPI_Request* request),
        (FDL_BLOCKS_GIVEN, comm, request))
// clang-format on

#undef FDL_REDUCTION
#undef FDL_BLOCKS
#undef FDL_BLOCKS_GIVEN
#undef FDL_ROW
