// NumaReport: what the NUMA nodes of a host mean for the ranks on it, for `farandole explain` and `farandole config`.
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
  std::string placed;  // how the nodes of the ranks are known
};

// `nodes_text`: the node of each rank of a host, "0,0,1,1", or "-" for a rank bound to none; empty: this machine's
// nodes, in blocks. `is_whole`: shared memory runs the collective, not a schedule.
Result<NumaReport> numa_report(const std::string& nodes_text, Collective collective, const GroupShape& shape,
                               int64_t bytes, bool is_whole, const Config& config);
std::string text_of(const NumaReport& report);  // lines
void add_to(JsonLine& line, const NumaReport& report);

// One line: this machine's nodes, and which this process is bound to.
std::string numa_nodes_line();

}  // namespace fdl
