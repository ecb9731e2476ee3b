// These functions look up entries of Slurm's compressed lists. They check the whole list in time linear in its length:
// a short text may stand for millions of hosts.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace fdl {

// "a[1-2,07],b" -> a1
Result<std::string> first_slurm_host(std::string_view list);
// The tasks of a node, counted from 0, in a list such as "2(x3),1". Nothing if the list has fewer nodes.
Result<std::optional<int>> slurm_tasks_of_node(std::string_view list, int node);

}  // namespace fdl
