// The where table prints what all ranks of a job do, for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/coordinator/job_view.h"
#include "cli/json_line.h"

namespace fdl {

// The lines of the table, without line ends. `process_id`: of the process that serves the coordinator, or 0.
std::vector<std::string> where_lines(const JobView& view, int process_id);
// The stacks of all ranks, below the table. Ranks with the same ones share them.
std::vector<std::string> stack_lines(const JobView& view);
// The keys are public: scripts read them.
JsonLine where_json(const JobView& view, int process_id);

}  // namespace fdl
