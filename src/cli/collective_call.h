// CollectiveCall describes one timed call of a collective: the sizes of its buffers and the call itself.
#pragma once

#include <cstddef>
#include <string>

#include "farandole/farandole.h"

namespace fdl {

// All three are numbers of elements.
struct Extent {
  std::size_t count = 0;   // the `count` argument of the call
  std::size_t input = 0;   // capacity of the input buffer
  std::size_t output = 0;  // capacity of the output buffer
};

struct CollectiveCall {
  fdl_collective collective = FDL_ALLREDUCE;
  fdl_dtype dtype = FDL_FLOAT32;
  int ranks = 1;
  fdl_compression compression = FDL_COMPRESSION_NONE;

  // The extent of a call of about `bytes` bytes. Bytes are counted as nccl-tests count them: the total output of an
  // allgather, the total input of a reduce-scatter, else the vector. Never less than one element.
  Extent extent_of(std::size_t bytes) const;
  std::size_t bytes_of(const Extent& extent) const;  // of the larger buffer
  // Blocks until the collective has completed on this rank. `algorithm`: a name that `farandole explain` lists, or
  // auto. `error_bound`: where a compressed call writes its bound; may be null.
  fdl_result run(fdl_comm* comm, void* input, void* output, std::size_t count, const std::string& algorithm,
                 double* error_bound = nullptr) const;
};

}  // namespace fdl
