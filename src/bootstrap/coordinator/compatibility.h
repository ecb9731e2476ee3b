// Compatibility: settings that must be alike on all ranks of a job, and the error for a difference.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fdl {

struct CompatibilitySetting {
  std::string name;    // "slice_bytes"
  std::string value;   // "262144"
  std::string remedy;  // "set FARANDOLE_SLICE_BYTES to one value on all ranks"
  bool operator==(const CompatibilitySetting&) const = default;
};

// OK if both lists are equal; otherwise MISMATCH, which names the first difference, both ranks, and the remedy.
Status compare_settings(std::string_view who, const std::vector<CompatibilitySetting>& have, std::string_view other_who,
                        const std::vector<CompatibilitySetting>& others_have);

}  // namespace fdl
