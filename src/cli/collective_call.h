// CollectiveCall: what one call of a collective looks like when it is timed: its buffers and its bytes.
#pragma once

#include <cstddef>
#include <string>

#include "farandole/farandole.h"

namespace fdl {

// Elements a call is given, and how many its buffers hold.
struct Extent {
  std::size_t count = 0;
  std::size_t input = 0;
  std::size_t output = 0;
};

struct CollectiveCall {
  fdl_collective collective = FDL_ALLREDUCE;
  fdl_dtype dtype = FDL_FLOAT32;
  int ranks = 1;

  // For about so many bytes, as nccl-tests count them: the total output of allgather, the total input of
  // reduce-scatter, else the vector.
  Extent extent_of(std::size_t bytes) const;
  std::size_t bytes_of(const Extent& extent) const;
  fdl_result run(fdl_comm* comm, void* input, void* output, std::size_t count, const std::string& algorithm) const;
};

}  // namespace fdl
