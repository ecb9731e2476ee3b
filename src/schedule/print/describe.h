// describe() formats steps and schedules as text for errors, `farandole explain` and tests.
#pragma once

#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace fdl {

// "recv_reduce chunk 3 from rank 2"
std::string describe(const Step& step);
// "ring, step 9: recv_reduce chunk 3 from rank 2"
std::string describe(const Schedule& schedule, std::size_t step);
// All steps of one rank, one per line.
std::string describe(const Schedule& schedule);
// A table of all ranks: one column per rank, one row per step.
std::string describe(const std::vector<Schedule>& schedules);

}  // namespace fdl
