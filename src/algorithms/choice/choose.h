// Choose: which algorithm runs, from facts alone: the same on every rank.
#pragma once

#include <cstdint>
#include <string>

#include "algorithms/catalog.h"
#include "algorithms/choice/tuning_table.h"

namespace fdl {

// The group as bootstrap/topology saw it.
struct GroupShape {
  int ranks = 1;
  int hosts = 1;
  int ranks_per_host = 1;      // 0 where hosts hold different numbers, or where a host's ranks are not neighbours
  double alpha_s = 5e-6;       // per message between the slowest pair
  double latency_s = 0;        // until its first byte arrives; messages that are sent at once share it
  double beta_s = 1.0 / 2e9;   // per byte
  std::string transport = {};  // what joins them: "tcp"
  const TuningTable* table = nullptr;  // what was measured, if anything was; outlives the shape
};

// Whether nobody asks for a particular algorithm.
inline bool is_auto(std::string_view algorithm) { return algorithm.empty() || algorithm == "auto"; }

struct Choice {
  const Algorithm* algorithm = nullptr;
  std::string why;        // one sentence, for the log and `farandole explain`
  bool measured = false;  // from the table
};

// The quickest that was measured for this group, where its table has any that can run; else the cheapest by the model.
// `bytes` as in simulate(). `wanted` is "auto" or a name; a name that does not exist, or cannot run on this group, is
// an error that lists what can. `deterministic` and a non-commutative operation restrict the choice to rank order;
// rows that need chunks of one size are possible only where the caller says `even_chunks`.
Result<Choice> choose(Collective collective, const GroupShape& shape, int64_t bytes, std::string_view wanted = "auto",
                      bool deterministic = false, bool commutative = true, bool even_chunks = false);

}  // namespace fdl
