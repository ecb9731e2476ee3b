// BenchRank: one rank of `farandole bench`: checks each size's result, times it, and on rank 0 prints.
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
  bool json = false;
  bool launched = false;  // rank, ranks and rendezvous are as the launcher says
  std::string rendezvous;
  bool several_hosts = false;  // found out by bench_rank
};

// Runs as rank `rank` (-1: as launched); 0 when all results were right.
int bench_rank(const BenchOptions& options, int rank);

}  // namespace fdl
