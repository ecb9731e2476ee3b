// CompatibilitySetting is a setting that must be equal on all ranks of a job. compare_settings() builds the error for a
// difference.
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

// Returns OK if both lists are equal; otherwise MISMATCH, which names the first difference, both ranks, and the remedy.
// `name` and `other_name` are the names of the ranks that have the lists.
Status compare_settings(std::string_view name, const std::vector<CompatibilitySetting>& settings,
                        std::string_view other_name, const std::vector<CompatibilitySetting>& other_settings);

}  // namespace fdl
