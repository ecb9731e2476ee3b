// These functions expand Slurm's compressed lists.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fdl {

// "a[1-2,07],b" -> a1 a2 a07 b. Several brackets in one name multiply.
Result<std::vector<std::string>> expand_hosts(std::string_view list);
// "2(x3),1" -> 2 2 2 1
Result<std::vector<int>> expand_counts(std::string_view list);

}  // namespace fdl
