// TuneRank: one rank of `farandole tune`: times every way of every collective over the sizes within its time.
#pragma once

#include <string>
#include <vector>

#include "farandole/farandole.h"

namespace fdl {

struct TuneOptions {
  std::vector<fdl_collective> collectives;
  std::vector<std::size_t> sizes;  // bytes, ascending
  std::string transport = "shm";
  int ranks = 2;
  double seconds = 20;  // about how long this rank measures
  bool launched = false;
  std::string rendezvous;
  std::string output;  // a file; "-": the table goes to standard output
};

// Runs as rank `rank` (-1: as launched). Rank 0 draws how far it is, prints the result and saves it.
int tune_rank(const TuneOptions& options, int rank);

}  // namespace fdl
