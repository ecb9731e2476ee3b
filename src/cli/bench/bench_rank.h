// BenchRank is one rank of `farandole bench`: it checks the result of each size and times it, and rank 0 prints.
#pragma once

#include <string>
#include <vector>

#include "farandole/farandole.h"

namespace fdl {

struct BenchOptions {
  fdl_collective collective = FDL_ALLREDUCE;
  std::string collective_name = "allreduce";
  int ranks = 2;
  std::string transport = "auto";
  std::string algorithm = "auto";
  std::vector<std::size_t> sizes;  // bytes, as nccl-tests count them
  fdl_dtype dtype = FDL_FLOAT32;
  fdl_compression compression = FDL_COMPRESSION_NONE;
  bool json = false;
  bool launched = false;  // rank, ranks and rendezvous come from the launcher's environment
  std::string rendezvous;
  bool several_hosts = false;  // set by bench_rank()
};

// Runs as rank `rank` (-1: as launched). Returns an exit code, 0 when all results were correct.
int bench_rank(const BenchOptions& options, int rank);

}  // namespace fdl
