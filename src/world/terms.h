// Terms: what all ranks of a job must have alike, and how a difference is told.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fdl {

struct Term {
  std::string name;    // "slice_bytes"
  std::string value;   // "262144"
  std::string remedy;  // "set FARANDOLE_SLICE_BYTES to one value on all ranks"
  bool operator==(const Term&) const = default;
};

// OK where both have the same; else MISMATCH, which names the first difference, both who have it, and the remedy.
Status compare_terms(std::string_view who, const std::vector<Term>& have, std::string_view other_who,
                     const std::vector<Term>& others_have);

}  // namespace fdl
