// choose() selects the algorithm for a collective. It is a pure function of facts that all ranks share, so every rank
// selects the same one.
#pragma once

#include <cstdint>
#include <string>

#include "algorithms/choice/group_shape.h"

namespace fdl {

struct Choice {
  const Algorithm* algorithm = nullptr;
  std::string why;        // one sentence, for the log and `farandole explain`
  bool measured = false;  // chosen by the table, not by the model
};

// Returns the algorithm that the group's table measured as fastest, if the table has one that can run; otherwise the
// cheapest one by the model. `bytes` is as in simulate(). `requested` is "auto" or a name. A name that does not exist
// or cannot run on this group is an error that lists the names that can. `deterministic` and a non-commutative
// operation restrict the choice to rank order. Rows that need chunks of one size are candidates only with
// `even_chunks`.
Result<Choice> choose(Collective collective, const GroupShape& shape, int64_t bytes,
                      std::string_view requested = "auto", bool deterministic = false, bool commutative = true,
                      bool even_chunks = false);

// Returns the time that the model predicts, which is what choose() compares without a table. Infinite if the model has
// no formula for this algorithm on this group.
double predicted_s(const Algorithm& algorithm, const GroupShape& shape, int64_t bytes);

}  // namespace fdl
