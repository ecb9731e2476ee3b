// Catalog: every algorithm, one row each: which collective, for which group sizes, and the function that writes it.
#pragma once

#include <span>
#include <string_view>

#include "base/status.h"
#include "schedule/schedule.h"

namespace fdl {

// What an algorithm is given. Facts only; it returns data.
struct ScheduleRequest {
  Collective collective = Collective::allreduce;
  int rank = 0;
  int size = 1;
  int root = 0;
  int ranks_per_host = 1;  // for two_level: the group is made of neighbouring blocks of so many ranks
};

struct Algorithm {
  std::string_view name;  // "ring"
  Collective collective;
  std::string_view sentence;  // what it is, its cost and its source, for `farandole explain`
  int min_size = 1;
  int max_size = 1 << 16;
  bool power_of_two_only = false;
  bool in_place = true;           // right when input and output are the same memory
  bool needs_commutative = true;  // false: folds in rank order
  bool even_chunks_only = false;  // Bruck: all chunks of one size
  Schedule (*write)(const ScheduleRequest&) = nullptr;
};

std::span<const Algorithm> catalog();

// The row, or an error that lists the names that the collective has.
Result<const Algorithm*> find_algorithm(Collective collective, std::string_view name);
// What a call asks of the algorithm that runs it.
struct Need {
  bool rank_order = false;  // folds in rank order
  bool uneven = false;      // chunks of different sizes, or nobody can tell
};
// Why the row cannot run; empty if it can.
std::string_view obstacle(const Algorithm& algorithm, int ranks, Need need);
// "34 algorithms, 9c1185a5": the same where the same rows are chosen from.
std::string catalog_fingerprint();
bool fits(const Algorithm& algorithm, int size);

}  // namespace fdl
