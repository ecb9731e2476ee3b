// The collectives of MPI that farandole may run. Each takes the arguments of MPI's function, and returns its code, or
// nothing if MPI must run the call.
#pragma once

#include <cstddef>
#include <optional>

#include "mpi_header.h"

namespace fdl::mpi_preload {

using Outcome = std::optional<int>;

// An array with one entry for each rank: ints, or the longer numbers of the functions *_c.
template <typename Long>
class Numbers {
 public:
  Numbers(const int* shorts) : shorts_(shorts) {}  // NOLINT: arguments of MPI convert
#if MPI_VERSION >= 4
  Numbers(const Long* longs) : longs_(longs) {}  // NOLINT
#endif
  std::ptrdiff_t operator[](int rank) const {
    return shorts_ != nullptr ? shorts_[rank] : static_cast<std::ptrdiff_t>(longs_[rank]);
  }

 private:
  const int* shorts_ = nullptr;
  const Long* longs_ = nullptr;
};
using Counts = Numbers<MPI_Count>;
using Places = Numbers<MPI_Aint>;

Outcome allreduce(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm);
Outcome reduce(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op, int root,
               MPI_Comm comm);
Outcome reduce_scatter_block(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                             MPI_Comm comm);
Outcome reduce_scatter(const void* input, void* output, Counts counts, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm);

// Of the ranks up to this one, and of those before it.
Outcome scan(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm);
Outcome exscan(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm);

Outcome barrier(MPI_Comm comm);
Outcome broadcast(void* buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm comm);
Outcome gather(const void* input, MPI_Count send_count, MPI_Datatype send_type, void* output, MPI_Count recv_count,
               MPI_Datatype recv_type, int root, MPI_Comm comm);
Outcome scatter(const void* input, MPI_Count send_count, MPI_Datatype send_type, void* output, MPI_Count recv_count,
                MPI_Datatype recv_type, int root, MPI_Comm comm);
Outcome allgather(const void* input, MPI_Count send_count, MPI_Datatype send_type, void* output, MPI_Count recv_count,
                  MPI_Datatype recv_type, MPI_Comm comm);
Outcome alltoall(const void* input, MPI_Count send_count, MPI_Datatype send_type, void* output, MPI_Count recv_count,
                 MPI_Datatype recv_type, MPI_Comm comm);

Outcome gatherv(const void* input, MPI_Count send_count, MPI_Datatype send_type, void* output, Counts recv_counts,
                Places places, MPI_Datatype recv_type, int root, MPI_Comm comm);
Outcome scatterv(const void* input, Counts send_counts, Places places, MPI_Datatype send_type, void* output,
                 MPI_Count recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm);
Outcome allgatherv(const void* input, MPI_Count send_count, MPI_Datatype send_type, void* output, Counts recv_counts,
                   Places places, MPI_Datatype recv_type, MPI_Comm comm);
Outcome alltoallv(const void* input, Counts send_counts, Places send_places, MPI_Datatype send_type, void* output,
                  Counts recv_counts, Places recv_places, MPI_Datatype recv_type, MPI_Comm comm);

// Nonblocking: they also set the request, which MPI_Start starts if `is_persistent`.
Outcome start_allreduce(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                        MPI_Comm comm, MPI_Request* request, bool is_persistent = false);
Outcome start_reduce(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op, int root,
                     MPI_Comm comm, MPI_Request* request, bool is_persistent = false);
Outcome start_reduce_scatter_block(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                                   MPI_Comm comm, MPI_Request* request, bool is_persistent = false);
Outcome start_reduce_scatter(const void* input, void* output, Counts counts, MPI_Datatype datatype, MPI_Op op,
                             MPI_Comm comm, MPI_Request* request, bool is_persistent = false);
Outcome start_broadcast(void* buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm comm,
                        MPI_Request* request, bool is_persistent = false);
Outcome start_gather(const void* input, MPI_Count send_count, MPI_Datatype send_type, void* output,
                     MPI_Count recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm, MPI_Request* request,
                     bool is_persistent = false);
Outcome start_scatter(const void* input, MPI_Count send_count, MPI_Datatype send_type, void* output,
                      MPI_Count recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm, MPI_Request* request,
                      bool is_persistent = false);
Outcome start_allgather(const void* input, MPI_Count send_count, MPI_Datatype send_type, void* output,
                        MPI_Count recv_count, MPI_Datatype recv_type, MPI_Comm comm, MPI_Request* request,
                        bool is_persistent = false);
Outcome start_allgatherv(const void* input, MPI_Count send_count, MPI_Datatype send_type, void* output,
                         Counts recv_counts, Places places, MPI_Datatype recv_type, MPI_Comm comm, MPI_Request* request,
                         bool is_persistent = false);
Outcome start_alltoall(const void* input, MPI_Count send_count, MPI_Datatype send_type, void* output,
                       MPI_Count recv_count, MPI_Datatype recv_type, MPI_Comm comm, MPI_Request* request,
                       bool is_persistent = false);

}  // namespace fdl::mpi_preload
