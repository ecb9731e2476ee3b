// Lanes groups the message steps of all ranks by sender and receiver.
#include "schedule/lanes.h"

namespace fdl {

Lanes::Lanes(const std::vector<Schedule>& schedules)
    : size_(static_cast<int32_t>(schedules.size())), index_(schedules.size() * schedules.size(), -1) {
  for (const Schedule& schedule : schedules) {
    for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
      const Step& step = schedule.steps[i];
      if (!is_message(step.kind)) continue;
      const bool sends = step.kind == StepKind::send;
      const int32_t from = sends ? schedule.rank : step.peer;
      const int32_t to = sends ? step.peer : schedule.rank;
      int32_t& lane = index_[static_cast<std::size_t>(from * size_ + to)];
      if (lane < 0) {
        lane = static_cast<int32_t>(lanes_.size());
        lanes_.push_back({.from = from, .to = to, .sends = {}, .recvs = {}});
      }
      LaneSteps& steps = lanes_[static_cast<std::size_t>(lane)];
      (sends ? steps.sends : steps.recvs).push_back(static_cast<int32_t>(i));
    }
  }
}

}  // namespace fdl
