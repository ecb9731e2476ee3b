// Runs one collective through the C API, with FDL_SUM as the operation and rank 0 as the root.
#include "cli/collective_call.h"

#include <algorithm>

namespace fdl {

Extent CollectiveCall::extent_of(std::size_t bytes) const {
  const std::size_t elements = std::max<std::size_t>(1, bytes / fdl_dtype_size(dtype));
  const auto size = static_cast<std::size_t>(ranks);
  const std::size_t share = std::max<std::size_t>(1, elements / size);
  switch (collective) {
    case FDL_ALLGATHER:
    case FDL_GATHER:
      return {share, share, share * size};
    case FDL_REDUCE_SCATTER:
    case FDL_SCATTER:
      return {share, share * size, share};
    case FDL_ALLTOALL:
      return {share, share * size, share * size};
    case FDL_BARRIER:
      return {0, 0, 0};
    default:
      return {elements, elements, elements};
  }
}

std::size_t CollectiveCall::bytes_of(const Extent& extent) const {
  return std::max(extent.input, extent.output) * fdl_dtype_size(dtype);
}

fdl_result CollectiveCall::run(fdl_comm* comm, void* input, void* output, std::size_t count,
                               const std::string& algorithm, double* error_bound) const {
  fdl_call requested;  // init sets the sum and root 0
  fdl_call_init(&requested);
  requested.collective = collective;
  requested.input = collective == FDL_BROADCAST ? output : input;  // a broadcast works in place
  requested.output = output;
  requested.count = count;
  requested.dtype = dtype;
  fdl_call_options how;
  fdl_call_options_init(&how);
  how.algorithm = algorithm.c_str();
  how.compression = compression;
  if (compression != FDL_COMPRESSION_NONE) how.error_bound = error_bound;
  return fdl_call_ex(comm, &requested, &how, nullptr);
}

}  // namespace fdl
