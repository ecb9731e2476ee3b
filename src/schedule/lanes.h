// Lanes matches each send with its receive across the schedules of all ranks. A lane is the sequence of messages from
// one rank to another.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace fdl {

// The sends from one rank to another and the receives there, as step indices in order. The k-th send matches the k-th
// receive.
struct LaneSteps {
  int32_t from = 0;
  int32_t to = 0;
  std::vector<int32_t> sends;
  std::vector<int32_t> recvs;
};

class Lanes {
 public:
  explicit Lanes(const std::vector<Schedule>& schedules);

  const std::vector<LaneSteps>& all() const { return lanes_; }
  // Returns the index in all() of the lane that a send, recv or recv_reduce of `rank` uses.
  std::size_t of(int32_t rank, const Step& step) const {
    const int32_t from = step.kind == StepKind::send ? rank : step.peer;
    const int32_t to = step.kind == StepKind::send ? step.peer : rank;
    return static_cast<std::size_t>(index_[static_cast<std::size_t>(from * size_ + to)]);
  }

 private:
  int32_t size_;
  std::vector<int32_t> index_;  // into lanes_, by from * size + to; -1 where no message is sent
  std::vector<LaneSteps> lanes_;
};

inline bool is_message(StepKind kind) {
  return kind == StepKind::send || kind == StepKind::recv || kind == StepKind::recv_reduce;
}

}  // namespace fdl
