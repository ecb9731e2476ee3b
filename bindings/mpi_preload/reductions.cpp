// The reducing collectives. Whether farandole runs one depends on type, operation and count, which MPI requires to be
// equal on all ranks, and on the communicator.
#include <vector>

#include "collectives.h"
#include "communicators.h"
#include "datatypes.h"
#include "report.h"

namespace fdl::mpi_preload {

Outcome allreduce(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
  if (count <= 0) return std::nullopt;
  const auto fold = fold_of(datatype, op);
  if (!fold) return std::nullopt;
  const auto elements = static_cast<std::size_t>(count);
  const Communicator* entry = ours(comm, elements * fdl_dtype_size(fold->dtype));
  if (entry == nullptr) return std::nullopt;
  const void* const source = input == MPI_IN_PLACE ? output : input;
  return code_of(fdl_allreduce(entry->ordered, source, output, elements, fold->dtype, fold->op), comm);
}

Outcome reduce(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op, int root,
               MPI_Comm comm) {
  if (count <= 0) return std::nullopt;
  const auto fold = fold_of(datatype, op);
  if (!fold) return std::nullopt;
  const auto elements = static_cast<std::size_t>(count);
  const Communicator* entry = ours(comm, elements * fdl_dtype_size(fold->dtype));
  if (entry == nullptr || root < 0 || root >= entry->size) return std::nullopt;
  const void* const source = input == MPI_IN_PLACE ? output : input;
  return code_of(fdl_reduce(entry->ordered, source, output, elements, fold->dtype, fold->op, root), comm);
}

Outcome reduce_scatter_block(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                             MPI_Comm comm) {
  if (count <= 0) return std::nullopt;
  const auto fold = fold_of(datatype, op);
  if (!fold) return std::nullopt;
  const auto elements = static_cast<std::size_t>(count);
  const Communicator* entry = ours(comm, elements * fdl_dtype_size(fold->dtype));
  if (entry == nullptr) return std::nullopt;
  const void* const source = input == MPI_IN_PLACE ? output : input;
  return code_of(fdl_reduce_scatter(entry->ordered, source, output, elements, fold->dtype, fold->op), comm);
}

// The counts of all ranks are known to all of them.
Outcome reduce_scatter(const void* input, void* output, Counts counts, MPI_Datatype datatype, MPI_Op op,
                       MPI_Comm comm) {
  static thread_local std::vector<std::size_t> elements;
  const auto fold = fold_of(datatype, op);
  if (!fold) return std::nullopt;
  const Communicator* entry = ours(comm, 0);
  if (entry == nullptr) return std::nullopt;
  elements.resize(static_cast<std::size_t>(entry->size));
  for (int rank = 0; rank < entry->size; ++rank) {
    if (counts[rank] < 0) return std::nullopt;
    elements[static_cast<std::size_t>(rank)] = static_cast<std::size_t>(counts[rank]);
  }
  const void* const source = input == MPI_IN_PLACE ? output : input;
  return code_of(fdl_reduce_scatterv(entry->ordered, source, output, elements.data(), fold->dtype, fold->op), comm);
}

}  // namespace fdl::mpi_preload
