// The catalog has one row for each algorithm: its collective, the group sizes it supports and the function that writes
// its schedule.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "schedule/schedule.h"

namespace fdl {

// The input of an algorithm. An algorithm is a pure function of it.
struct ScheduleRequest {
  Collective collective = Collective::allreduce;
  int rank = 0;
  int size = 1;
  int root = 0;
  int ranks_per_host = 1;  // for two_level: consecutive ranks form hosts of this many ranks
  // For multi_level: consecutive ranks form groups of levels[0] ranks, these form groups of levels[1], and so on.
  std::vector<int> levels = {};
};

struct Algorithm {
  std::string_view name;  // "ring"
  Collective collective;
  std::string_view sentence;  // description, cost and source, for `farandole explain`
  int min_size = 1;
  int max_size = 1 << 16;
  bool power_of_two_only = false;
  bool in_place = true;           // correct when input and output are the same memory
  bool needs_commutative = true;  // false: folds in rank order
  bool even_chunks_only = false;  // Bruck: all chunks of one size
  // Rank r's schedule is that of rank 0 with r added to every rank and chunk. One rank then stands for all of them.
  bool rotates = false;
  // Written for positions in the group's order of ranks, and renumbered. False: for ranks, because it folds in their
  // order or sends runs of their chunks, or because the order makes no difference.
  bool follows_order = false;
  Schedule (*write)(const ScheduleRequest&) = nullptr;
};

std::span<const Algorithm> catalog();

// Returns the row, or an error that lists the names of the collective's algorithms.
Result<const Algorithm*> find_algorithm(Collective collective, std::string_view name);
// What a call requires of the algorithm that runs it.
struct Need {
  bool rank_order = false;  // folds in rank order
  bool uneven = false;      // chunks of different or unknown sizes
};
// Returns why the row cannot run; empty if it can.
std::string_view obstacle(const Algorithm& algorithm, int ranks, Need need);
// "34 algorithms, 9c1185a5": equal on two builds if their catalogs have the same rows.
std::string catalog_fingerprint();
// Returns whether the algorithm supports a group of `size` ranks.
bool fits(const Algorithm& algorithm, int size);

}  // namespace fdl
