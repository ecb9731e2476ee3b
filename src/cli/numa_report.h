// NumaReport describes how the NUMA nodes of a host affect its ranks, for `farandole explain` and `farandole config`.
#pragma once

#include <string>
#include <vector>

#include "algorithms/choice/choose.h"
#include "base/config.h"
#include "cli/json_line.h"
#include "runtime/lifecycle/assemble.h"

namespace fdl {

struct NumaReport {
  LevelAnswer answer;
  std::string placed;  // where the node of each rank comes from: the machine or --nodes
};

// `nodes_text` is the node of each rank of a host, "0,0,1,1", with "-" for a rank that is bound to none. Empty means
// this machine's nodes, with ranks in blocks. `is_whole`: shared memory runs the collective instead of a schedule.
Result<NumaReport> numa_report(const std::string& nodes_text, Collective collective, const GroupShape& shape,
                               int64_t bytes, bool is_whole, const Config& config);
std::string text_of(const NumaReport& report);  // one or more lines, each ended
void add_to(JsonLine& line, const NumaReport& report);

// One line: this machine's nodes, and the node that this process is bound to.
std::string numa_nodes_line();

}  // namespace fdl
