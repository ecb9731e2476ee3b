// Scan and exscan: an allgather of farandole, whose blocks each rank then adds up by MPI's own operation.
#include <algorithm>
#include <cstring>

#include "collectives.h"
#include "communicators.h"
#include "datatypes.h"
#include "real_mpi.h"
#include "report.h"
#include "views.h"

namespace fdl::mpi_preload {
namespace {

constexpr std::size_t kPartBytes = 256 << 10;  // of each rank at a time, so that the copies stay in the cache

struct Part {
  const std::byte* input;
  std::byte* output;
  int count;
  std::size_t bytes;
};

// `blocks` has the input of each rank. The last rank whose block counts comes first, because MPI_Reduce_local puts the
// other operand on the left.
int add_up(const Part& part, const std::byte* blocks, int ranks, MPI_Datatype datatype, MPI_Op op) {
  if (ranks == 0) return MPI_SUCCESS;
  std::memcpy(part.output, blocks + static_cast<std::size_t>(ranks - 1) * part.bytes, part.bytes);
  for (int rank = ranks - 2; rank >= 0; --rank) {
    const int code = real().Reduce_local(blocks + static_cast<std::size_t>(rank) * part.bytes, part.output, part.count,
                                         datatype, op);
    if (code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

Outcome run(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
            bool is_exclusive) {
  static thread_local Scratch scratch;
  const auto fold = fold_of(datatype, op);
  if (count <= 0 || !fold) return std::nullopt;
  const std::size_t each = fdl_dtype_size(fold->dtype);
  const auto elements = static_cast<std::size_t>(count);
  const Communicator* entry = ours(comm, Family::scan, elements * each);
  if (entry == nullptr) return std::nullopt;
  const auto* from = static_cast<const std::byte*>(input == MPI_IN_PLACE ? output : input);
  auto* to = static_cast<std::byte*>(output);
  const std::size_t most = std::min(elements, kPartBytes / each);
  std::byte* const blocks = scratch.reserve(most * each * static_cast<std::size_t>(entry->size));
  const int ranks = entry->rank + (is_exclusive ? 0 : 1);
  int code = MPI_SUCCESS;
  for (std::size_t done = 0; done < elements && code == MPI_SUCCESS; done += most) {
    const std::size_t now = std::min(most, elements - done);
    const Part part{from + done * each, to + done * each, static_cast<int>(now), now * each};
    code = code_of(fdl_allgather(entry->ordered, part.input, blocks, part.bytes, FDL_UINT8), comm);
    if (code == MPI_SUCCESS) code = add_up(part, blocks, ranks, datatype, op);
  }
  scratch.finish();
  return code;
}

}  // namespace

Outcome scan(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
  return run(input, output, count, datatype, op, comm, false);
}

Outcome exscan(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
  return run(input, output, count, datatype, op, comm, true);
}

}  // namespace fdl::mpi_preload
