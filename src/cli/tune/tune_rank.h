// TuneRank is one rank of `farandole tune`: it measures every way of every collective for all sizes in a given time.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "farandole/farandole.h"

namespace fdl {

struct TuneOptions {
  std::vector<fdl_collective> collectives;
  std::vector<std::size_t> sizes;  // bytes, ascending
  std::string transport = "shm";
  int ranks = 2;
  double seconds = 20;  // the approximate duration of the measurement
  bool launched = false;
  std::string rendezvous;
  std::string output;  // a file; "-": the table goes to standard output
};

// Returns why the table cannot be saved, or OK. Call it before measurements that take minutes.
Status check_output(const TuneOptions& options);

// Runs as rank `rank` (-1: as launched) and returns an exit code. Rank 0 draws the progress, prints the result and
// saves it.
int tune_rank(const TuneOptions& options, int rank);

}  // namespace fdl
