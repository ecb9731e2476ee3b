// SymbolicRun works off a list of ready steps. A step that finishes makes its followers ready; a message step that
// becomes ready moves its lane.
#include "schedule/proof/symbolic_run.h"

#include <algorithm>

#include "schedule/print/describe.h"

namespace fdl {

namespace {

// Spreads the bits of x (the finalizer of splitmix64), so that different sums of shapes get different numbers.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t leaf_shape(int32_t rank, int32_t chunk) {
  return mixed((static_cast<uint64_t>(rank) << 32) + static_cast<uint64_t>(chunk) + 1);
}

}  // namespace

SymbolicRun::SymbolicRun(const std::vector<Schedule>& schedules, const Lanes& lanes, bool in_place)
    : lanes_(lanes), lane_states_(lanes.all().size()) {
  for (const Schedule& schedule : schedules) ranks_.emplace_back(schedule, in_place);
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) prepare(static_cast<int32_t>(rank), in_place);
}

void SymbolicRun::prepare(int32_t rank, bool in_place) {
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  state.held.assign(static_cast<std::size_t>(state.places.total()), kUnwritten);
  for (int32_t chunk = 0; chunk < state.places.count(Space::input); ++chunk) {
    const int32_t place = state.places.first({Space::input, chunk, 1});
    state.held[static_cast<std::size_t>(place)] = static_cast<int32_t>(values_.size());
    values_.push_back({.parts = {{rank, chunk}}, .left_fold = true, .shape = leaf_shape(rank, chunk)});
  }
  const auto dependencies = order(*state.schedule, in_place);
  state.steps.resize(dependencies.size());
  for (std::size_t step = 0; step < dependencies.size(); ++step) {
    state.steps[step].waits_for = static_cast<int32_t>(dependencies[step].size());
    for (const Dependency& dependency : dependencies[step]) {
      state.steps[static_cast<std::size_t>(dependency.step)].followers.push_back(static_cast<int32_t>(step));
    }
    if (dependencies[step].empty()) ready_.push_back({rank, static_cast<int32_t>(step)});
  }
}

Status SymbolicRun::run() {
  while (!ready_.empty() && failure_.ok()) {
    const Ready at = ready_.back();
    ready_.pop_back();
    start(at);
  }
  FDL_RETURN_IF_ERROR(failure_);
  for (const RankState& rank : ranks_) {
    for (const StepState& step : rank.steps) {
      if (!step.done) return deadlock();
    }
  }
  return ok_status();
}

void SymbolicRun::start(Ready at) {
  const Step& step = step_at(at.rank, at.step);
  RankState& rank = ranks_[static_cast<std::size_t>(at.rank)];
  state_of(at.rank, at.step).ready = true;
  const int32_t source = rank.places.first(step.source);
  const int32_t target = rank.places.first(step.target);
  switch (step.kind) {
    case StepKind::send:
    case StepKind::recv:
      move_messages(lanes_.of(at.rank, step));
      return;
    case StepKind::recv_reduce:
      if (state_of(at.rank, at.step).arrived) finish_recv_reduce(at.rank, at.step);
      move_messages(lanes_.of(at.rank, step));
      return;
    case StepKind::copy: {
      std::vector<int32_t> copied;
      for (int32_t i = 0; i < step.source.count; ++i) copied.push_back(read(at.rank, at.step, source + i));
      std::copy(copied.begin(), copied.end(), rank.held.begin() + target);
      break;
    }
    case StepKind::reduce: {
      int32_t sum = read(at.rank, at.step, source);
      for (int32_t i = 1; i < step.source.count; ++i) sum = fold(sum, read(at.rank, at.step, source + i));
      rank.held[static_cast<std::size_t>(target)] = sum;
      break;
    }
  }
  finish(at.rank, at.step);
}

void SymbolicRun::move_messages(std::size_t lane_index) {
  const LaneSteps& lane = lanes_.all()[lane_index];
  LaneState& state = lane_states_[lane_index];
  while (failure_.ok() && state.next < lane.sends.size()) {
    const int32_t send = lane.sends[state.next];
    const int32_t recv = lane.recvs[state.next];
    if (!state_of(lane.from, send).ready) return;
    const bool stages = step_at(lane.to, recv).kind == StepKind::recv_reduce;
    if (stages ? state.slot_taken : !state_of(lane.to, recv).ready) return;
    ++state.next;
    deliver(lane, send, recv);
  }
}

void SymbolicRun::deliver(const LaneSteps& lane, int32_t send, int32_t recv) {
  const Step& source = step_at(lane.from, send);
  RankState& receiver = ranks_[static_cast<std::size_t>(lane.to)];
  StepState& state = state_of(lane.to, recv);
  const int32_t first = ranks_[static_cast<std::size_t>(lane.from)].places.first(source.source);
  std::vector<int32_t> message;
  for (int32_t i = 0; i < source.source.count; ++i) message.push_back(read(lane.from, send, first + i));
  if (!failure_.ok()) return;
  state.rounds = std::max(state.rounds, state_of(lane.from, send).rounds + 1);
  rounds_ = std::max(rounds_, state.rounds);
  finish(lane.from, send);
  const Step& target = step_at(lane.to, recv);
  if (target.kind == StepKind::recv) {
    std::copy(message.begin(), message.end(), receiver.held.begin() + receiver.places.first(target.target));
    finish(lane.to, recv);
    return;
  }
  state.staged = std::move(message);
  state.arrived = true;
  lane_states_[lanes_.of(lane.to, target)].slot_taken = true;
  if (state.ready) finish_recv_reduce(lane.to, recv);
}

void SymbolicRun::finish_recv_reduce(int32_t rank, int32_t step) {
  const Step& what = step_at(rank, step);
  StepState& state = state_of(rank, step);
  RankState& holder = ranks_[static_cast<std::size_t>(rank)];
  const int32_t target = holder.places.first(what.target);
  for (int32_t i = 0; i < what.target.count; ++i) {
    const int32_t sum = fold(read(rank, step, target + i), state.staged[static_cast<std::size_t>(i)]);
    holder.held[static_cast<std::size_t>(target + i)] = sum;
  }
  state.staged.clear();
  lane_states_[lanes_.of(rank, what)].slot_taken = false;
  finish(rank, step);
}

void SymbolicRun::finish(int32_t rank, int32_t step) {
  StepState& state = state_of(rank, step);
  state.done = true;
  for (const int32_t follower : state.followers) {
    StepState& next = state_of(rank, follower);
    next.rounds = std::max(next.rounds, state.rounds);
    if (--next.waits_for == 0) ready_.push_back({rank, follower});
  }
}

int32_t SymbolicRun::read(int32_t rank, int32_t step, int32_t place) {
  const RankState& reader = ranks_[static_cast<std::size_t>(rank)];
  const int32_t value = reader.held[static_cast<std::size_t>(place)];
  if (value == kUnwritten && failure_.ok()) {
    failure_ = Status(Code::internal, "rank " + std::to_string(rank) + " reads what was never written: " +
                                          describe(*reader.schedule, static_cast<std::size_t>(step)));
  }
  return value;
}

int32_t SymbolicRun::fold(int32_t left, int32_t right) {
  if (left == kUnwritten || right == kUnwritten) return kUnwritten;
  SymbolicValue sum = values_[static_cast<std::size_t>(left)];
  const SymbolicValue& added = values_[static_cast<std::size_t>(right)];
  sum.left_fold = sum.left_fold && added.parts.size() == 1;
  sum.shape = mixed(sum.shape + added.shape);
  sum.parts.insert(sum.parts.end(), added.parts.begin(), added.parts.end());
  values_.push_back(std::move(sum));
  return static_cast<int32_t>(values_.size()) - 1;
}

const SymbolicValue* SymbolicRun::output_of(int32_t rank, int32_t chunk) const {
  const RankState& holder = ranks_[static_cast<std::size_t>(rank)];
  const int32_t value = holder.held[static_cast<std::size_t>(holder.places.first({Space::output, chunk, 1}))];
  return value == kUnwritten ? nullptr : &values_[static_cast<std::size_t>(value)];
}

const Step& SymbolicRun::step_at(int32_t rank, int32_t step) const {
  return ranks_[static_cast<std::size_t>(rank)].schedule->steps[static_cast<std::size_t>(step)];
}

SymbolicRun::StepState& SymbolicRun::state_of(int32_t rank, int32_t step) {
  return ranks_[static_cast<std::size_t>(rank)].steps[static_cast<std::size_t>(step)];
}

// Names a circle of waits. All steps that a rank's first unfinished step must follow are done, so that step waits for
// its peer. The chain of such waits ends in a circle.
Status SymbolicRun::deadlock() const {
  const auto unfinished = [](const RankState& rank) {
    return std::find_if(rank.steps.begin(), rank.steps.end(), [](const StepState& step) { return !step.done; });
  };
  std::string text = "deadlock";
  std::vector<bool> visited(ranks_.size(), false);
  std::size_t at = 0;
  while (unfinished(ranks_[at]) == ranks_[at].steps.end()) ++at;
  for (int named = 0; !visited[at]; ++named) {
    visited[at] = true;
    const RankState& rank = ranks_[at];
    const auto step = static_cast<std::size_t>(unfinished(rank) - rank.steps.begin());
    const int32_t peer = rank.schedule->steps[step].peer;
    text += (named == 0 ? ": rank " : "; rank ") + std::to_string(at) + " waits for rank " + std::to_string(peer) +
            " (" + describe(*rank.schedule, step) + ")";
    at = static_cast<std::size_t>(peer);
    if (unfinished(ranks_[at]) == ranks_[at].steps.end()) break;
  }
  return Status(Code::internal, text);
}

}  // namespace fdl
