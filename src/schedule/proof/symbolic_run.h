// SymbolicRun executes the schedules of all ranks on symbols instead of bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "schedule/lanes.h"
#include "schedule/order.h"
#include "schedule/places.h"

namespace fdl {

struct Contribution {
  int32_t rank;
  int32_t chunk;
  auto operator<=>(const Contribution&) const = default;
};

// The value of one chunk: its contributions in the order of folding. left_fold is true for ((a op b) op c) op d, which
// has no brackets on the right. Values with equal `shape` differ at most in the operand order of single folds. Since op
// commutes bit for bit, they are the same bits.
struct SymbolicValue {
  std::vector<Contribution> parts;
  bool left_fold = true;
  uint64_t shape = 0;
};

// The schedules must have passed verify's checks of single steps and of lanes. `lanes` must outlive the run.
class SymbolicRun {
 public:
  SymbolicRun(const std::vector<Schedule>& schedules, const Lanes& lanes, bool in_place);

  // Runs until nothing can move. Fails on a read of unwritten memory or on a deadlock.
  Status run();

  // Returns the value of an output chunk; nullptr if it was never written.
  const SymbolicValue* output_of(int32_t rank, int32_t chunk) const;
  int32_t rounds() const { return rounds_; }

 private:
  static constexpr int32_t kUnwritten = -1;

  struct StepState {
    int32_t waits_for = 0;  // steps that it must follow and that are not done
    int32_t rounds = 0;     // length of the longest chain of messages that leads here
    bool ready = false;     // all steps that it must follow are done
    bool arrived = false;   // recv_reduce: its message is staged
    bool done = false;
    std::vector<int32_t> followers;
    std::vector<int32_t> staged;  // values of the message, while arrived and not done
  };
  struct RankState {
    RankState(const Schedule& schedule_, bool in_place) : schedule(&schedule_), places(schedule_, in_place) {}
    const Schedule* schedule;
    Places places;
    std::vector<int32_t> held;  // by place: an index into values_, or kUnwritten
    std::vector<StepState> steps;
  };
  struct LaneState {
    std::size_t next = 0;     // index of the message that moves next
    bool slot_taken = false;  // the lane's one staging slot is in use
  };
  struct Ready {
    int32_t rank;
    int32_t step;
  };

  void prepare(int32_t rank, bool in_place);
  void start(Ready at);
  void move_messages(std::size_t lane);
  void deliver(const LaneSteps& lane, int32_t send, int32_t recv);
  void finish_recv_reduce(int32_t rank, int32_t step);
  void finish(int32_t rank, int32_t step);
  int32_t read(int32_t rank, int32_t step, int32_t place);
  int32_t fold(int32_t left, int32_t right);
  const Step& step_at(int32_t rank, int32_t step) const;
  StepState& state_of(int32_t rank, int32_t step);
  Status deadlock() const;

  const Lanes& lanes_;
  std::vector<RankState> ranks_;
  std::vector<LaneState> lane_states_;
  std::vector<SymbolicValue> values_;
  std::vector<Ready> ready_;
  int32_t rounds_ = 0;
  Status failure_;
};

}  // namespace fdl
