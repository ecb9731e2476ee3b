// The reducing collectives. Whether farandole runs one depends on type, operation and count, which MPI requires to be
// equal on all ranks, and on the communicator.
#include <optional>
#include <vector>

#include "collectives.h"
#include "communicators.h"
#include "datatypes.h"
#include "report.h"

namespace fdl::mpi_preload {
namespace {

const void* source_of(const void* input, const void* output) { return input == MPI_IN_PLACE ? output : input; }

// What farandole needs for a reduction of equal counts.
struct Reduced {
  const Communicator* entry;
  std::size_t elements;
  Fold fold;
};

// Empty: MPI runs it.
std::optional<Reduced> reduced(Family family, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
  if (count <= 0) return std::nullopt;
  const auto fold = fold_of(datatype, op);
  if (!fold) return std::nullopt;
  const auto elements = static_cast<std::size_t>(count);
  const Communicator* entry = ours(comm, family, elements * fdl_dtype_size(fold->dtype));
  if (entry == nullptr) return std::nullopt;
  return Reduced{entry, elements, *fold};
}

}  // namespace

Outcome allreduce(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
  const auto call = reduced(Family::allreduce, count, datatype, op, comm);
  if (!call) return std::nullopt;
  return code_of(fdl_allreduce(call->entry->ordered, source_of(input, output), output, call->elements, call->fold.dtype,
                               call->fold.op),
                 comm);
}

Outcome reduce(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op, int root,
               MPI_Comm comm) {
  const auto call = reduced(Family::reduce, count, datatype, op, comm);
  if (!call || root < 0 || root >= call->entry->size) return std::nullopt;
  return code_of(fdl_reduce(call->entry->ordered, source_of(input, output), output, call->elements, call->fold.dtype,
                            call->fold.op, root),
                 comm);
}

Outcome reduce_scatter_block(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                             MPI_Comm comm) {
  const auto call = reduced(Family::reduce_scatter, count, datatype, op, comm);
  if (!call) return std::nullopt;
  return code_of(fdl_reduce_scatter(call->entry->ordered, source_of(input, output), output, call->elements,
                                    call->fold.dtype, call->fold.op),
                 comm);
}

// The counts of all ranks are known to all of them.
Outcome reduce_scatter(const void* input, void* output, Counts counts, MPI_Datatype datatype, MPI_Op op,
                       MPI_Comm comm) {
  static thread_local std::vector<std::size_t> elements;
  const auto fold = fold_of(datatype, op);
  const Communicator* could = known(comm);
  if (!fold || could == nullptr) return std::nullopt;
  elements.resize(static_cast<std::size_t>(could->size));
  std::size_t all = 0;
  for (int rank = 0; rank < could->size; ++rank) {
    if (counts[rank] < 0) return std::nullopt;
    all += elements[static_cast<std::size_t>(rank)] = static_cast<std::size_t>(counts[rank]);
  }
  const Communicator* entry = ours(comm, Family::reduce_scatter, all / elements.size() * fdl_dtype_size(fold->dtype));
  if (entry == nullptr) return std::nullopt;
  return code_of(
      fdl_reduce_scatterv(entry->ordered, source_of(input, output), output, elements.data(), fold->dtype, fold->op),
      comm);
}

}  // namespace fdl::mpi_preload
