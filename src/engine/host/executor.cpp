// In each pass Executor collects finished slices from the transport, reduces what has arrived, and posts what is ready.
#include "engine/host/executor.h"

#include <algorithm>
#include <cstring>

#include "schedule/print/describe.h"

namespace fdl {
namespace {

// Bytes of local work between two polls of the transport.
constexpr std::size_t kWorkPerPass = 256_KiB;

}  // namespace

void Executor::start(const BoundSchedule& bound, const Spaces& spaces, const Reduction& reduction, uint32_t tag) {
  const OrderedSchedule& ordered = *bound.ordered;
  bound_ = &bound;
  spaces_[0] = const_cast<std::byte*>(spaces.input);  // no step writes to input: Builder and verify() ensure that
  spaces_[1] = spaces.output;
  spaces_[2] = spaces.scratch;
  reduction_ = reduction;
  tag_ = tag;
  element_bytes_ = size_of(bound.dtype);
  sources_.resize(std::max(sources_.size(), bound.widest_reduce));

  states_.assign(bound.steps.size(), {});
  unfinished_ = 0;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    states_[i].waits = ordered.dependency_ends[i];
    unfinished_ += bound.steps[i].slices > 0 ? 1 : 0;
  }
  local_left_.clear();
  for (const int32_t step : ordered.local_steps) {
    if (step_at(step).slices > 0) local_left_.push_back(step);
  }

  // Each lane with reductions is promised one slot, so plan_staging() provides at least as many as there are lanes.
  if (staging_.reserve(bound.slot_bytes, bound.slot_count)) transport_.keep(staging_.memory(), staging_.capacity());
  promised_slots_ = 0;
  lanes_.resize(std::max(lanes_.size(), ordered.lanes.size()));
  open_lanes_.clear();
  for (std::size_t lane = 0; lane < ordered.lanes.size(); ++lane) {
    LaneState& state = lanes_[lane];
    state.posted = state.finished = {};
    state.outstanding = state.oldest = state.reduce_from = state.slots = state.slots_to_take = 0;
    for (const int32_t step : ordered.lane_steps[lane]) {
      if (step_at(step).kind == StepKind::recv_reduce) state.slots_to_take += step_at(step).slices;
    }
    promised_slots_ += state.slots_to_take > 0 ? 1 : 0;
    skip_empty(state.posted, ordered.lane_steps[lane]);
    skip_empty(state.finished, ordered.lane_steps[lane]);
    open_lanes_.push_back(static_cast<uint32_t>(lane));
  }
}

bool Executor::progress() {
  bool moved = transport_.progress();
  work_left_ = kWorkPerPass;
  moved |= run_local();
  for (std::size_t i = 0; i < open_lanes_.size();) {
    const std::size_t lane = open_lanes_[i];
    moved |= run_lane(lane);
    const LaneState& state = lanes_[lane];
    const std::size_t step_count = bound_->ordered->lane_steps[lane].size();
    // A lane stays open until its last arrived slice is reduced. Closing one swaps it with the last.
    const bool reduces = state.slots > 0 || state.slots_to_take > 0;
    if (state.finished.step == step_count && !reduces) {
      open_lanes_[i] = open_lanes_.back();
      open_lanes_.pop_back();
    } else {
      ++i;
    }
  }
  return moved;
}

// Finishing comes first, because it frees slots and makes dependent slices ready.
bool Executor::run_lane(std::size_t lane) {
  LaneState& state = lanes_[lane];
  const auto& steps = bound_->ordered->lane_steps[lane];
  bool moved = finish_slices(state, steps);
  if (state.slots > 0) moved |= reduce_arrived(state, steps);
  moved |= post_slices(state, lane);
  return moved;
}

// The tickets of a lane finish in the order in which they were posted.
bool Executor::finish_slices(LaneState& state, const std::vector<int32_t>& steps) {
  bool moved = false;
  while (state.outstanding > 0 && transport_.done(state.tickets[state.oldest % kOutstanding])) {
    ++state.oldest;
    --state.outstanding;
    const int32_t step = steps[state.finished.step];
    if (step_at(step).kind == StepKind::recv_reduce) {
      ++state_of(step).arrived;
    } else {
      finish_slice(step);
    }
    ++state.finished.slice;
    skip_empty(state.finished, steps);
    moved = true;
  }
  return moved;
}

// Posts slices in program order until one is not ready or the lane has kOutstanding tickets.
bool Executor::post_slices(LaneState& state, std::size_t lane) {
  const auto& steps = bound_->ordered->lane_steps[lane];
  bool moved = false;
  while (state.posted.step < steps.size() && state.outstanding < kOutstanding) {
    const std::optional<Ticket> ticket = post(state, steps[state.posted.step], state.posted.slice);
    if (!ticket) break;
    state.tickets[(state.oldest + state.outstanding) % kOutstanding] = *ticket;
    ++state.outstanding;
    ++state.posted.slice;
    skip_empty(state.posted, steps);
    moved = true;
  }
  return moved;
}

// Posts one slice. Returns no ticket if it is not ready, if no slot is free, or if the transport's queue is full.
std::optional<Ticket> Executor::post(LaneState& state, int32_t index, uint32_t slice) {
  const BoundStep& step = step_at(index);
  const Channel channel{step.peer, 0};
  const std::size_t offset = slice_offset(slice);
  const std::size_t bytes = slice_size(step, slice);
  if (step.kind == StepKind::recv_reduce) {
    if (!may_take_slot(state)) return std::nullopt;
    const int32_t slot = staging_.take();
    const auto ticket = transport_.recv(channel, tag_, {staging_.at(slot), bytes});
    if (!ticket) {
      staging_.give_back(slot);
      return std::nullopt;
    }
    if (state.slots++ == 0) --promised_slots_;
    --state.slots_to_take;
    StepState& progress = state_of(index);
    // Append the slot to the step's chain; slices arrive in the order of the chain.
    (progress.last_slot == Staging::kNone ? progress.first_slot : staging_.next(progress.last_slot)) = slot;
    progress.last_slot = slot;
    return ticket;
  }
  if (!ready(index, slice)) return std::nullopt;
  if (step.kind == StepKind::send) {
    return transport_.send(channel, tag_, {address(step.source_space, step.source + offset), bytes});
  }
  return transport_.recv(channel, tag_, {address(step.target_space, step.target + offset), bytes});
}

// A lane that holds no slot may take the last one; others must leave one for each such lane.
bool Executor::may_take_slot(const LaneState& state) const {
  return staging_.free_count() > (state.slots == 0 ? 0 : promised_slots_);
}

// Steps of one lane may be reduced out of order, because an earlier step can depend on a later one.
bool Executor::reduce_arrived(LaneState& state, const std::vector<int32_t>& steps) {
  bool moved = false;
  for (uint32_t i = state.reduce_from; i <= state.finished.step && i < steps.size(); ++i) {
    const int32_t index = steps[i];
    const StepState& progress = state_of(index);
    while (progress.finished < progress.arrived && work_left_ > 0 && ready(index, progress.finished)) {
      reduce_slot(state, index);
      moved = true;
    }
    // reduce_from skips steps that are fully reduced, and steps of other kinds, at the front of the lane.
    const bool over = progress.finished == step_at(index).slices || step_at(index).kind != StepKind::recv_reduce;
    if (over && i == state.reduce_from && i < state.finished.step) ++state.reduce_from;
  }
  return moved;
}

// Reduces the oldest slice in staging and frees its slot.
void Executor::reduce_slot(LaneState& state, int32_t index) {
  const BoundStep& step = step_at(index);
  StepState& progress = state_of(index);
  const int32_t slot = progress.first_slot;
  const std::size_t bytes = slice_size(step, progress.finished);
  const std::size_t offset = slice_offset(progress.finished);
  std::byte* target = address(step.target_space, step.target + offset);
  const std::byte* source = step.has_source ? address(step.source_space, step.source + offset) : target;
  if (source == target) {
    reduce(bound_->dtype, reduction_, target, staging_.at(slot), bytes / element_bytes_);
  } else {
    sources_[0] = source;
    sources_[1] = staging_.at(slot);
    reduce_many(bound_->dtype, reduction_, target, std::span(sources_.data(), 2), bytes / element_bytes_);
  }
  work_left_ -= std::min(work_left_, bytes);
  progress.first_slot = staging_.next(slot);
  if (progress.first_slot == Staging::kNone) progress.last_slot = Staging::kNone;
  staging_.give_back(slot);
  if (--state.slots == 0 && state.slots_to_take > 0) ++promised_slots_;
  finish_slice(index);
}

// Runs copies and reductions that are ready, within the pass's budget; keeps the unfinished steps in order.
bool Executor::run_local() {
  bool moved = false;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < local_left_.size(); ++i) {
    const int32_t index = local_left_[i];
    const BoundStep& step = step_at(index);
    const StepState& progress = state_of(index);
    while (work_left_ > 0 && progress.finished < step.slices && ready(index, progress.finished)) {
      do_local(step, progress.finished);
      finish_slice(index);
      moved = true;
    }
    if (progress.finished < step.slices) local_left_[kept++] = index;
  }
  local_left_.resize(kept);
  return moved;
}

void Executor::do_local(const BoundStep& step, uint32_t slice) {
  const std::size_t offset = slice_offset(slice);
  const std::size_t bytes = slice_size(step, slice);
  std::byte* target = address(step.target_space, step.target + offset);
  const std::byte* source = address(step.source_space, step.source + offset);
  if (step.kind == StepKind::reduce) {
    const auto count = static_cast<std::size_t>(step.source_count);
    for (std::size_t i = 0; i < count; ++i) sources_[i] = source + i * step.bytes;
    reduce_many(bound_->dtype, reduction_, target, std::span(sources_.data(), count), bytes / element_bytes_);
    work_left_ -= std::min(work_left_, bytes * count);
  } else if (target != source) {
    std::memcpy(target, source, bytes);
    work_left_ -= std::min(work_left_, bytes);
  }
}

// Whether the dependencies of a slice are finished. state.waits skips those that were found finished before.
bool Executor::ready(int32_t step, uint32_t slice) {
  const OrderedSchedule& ordered = *bound_->ordered;
  StepState& state = state_of(step);
  const uint32_t end = ordered.dependency_ends[static_cast<std::size_t>(step) + 1];
  for (uint32_t i = state.waits; i < end; ++i) {
    const Dependency& edge = ordered.dependencies[i];
    const uint32_t finished = state_of(edge.step).finished;
    if (finished == step_at(edge.step).slices) {
      if (i == state.waits) ++state.waits;
    } else if (edge.whole || finished <= slice) {
      return false;
    }
  }
  return true;
}

void Executor::finish_slice(int32_t step) {
  if (++state_of(step).finished == step_at(step).slices) --unfinished_;
}

// Moves a cursor that is past the last slice of its step to the first slice of the next non-empty step.
void Executor::skip_empty(Cursor& cursor, const std::vector<int32_t>& steps) const {
  while (cursor.step < steps.size() && cursor.slice == step_at(steps[cursor.step]).slices) {
    ++cursor.step;
    cursor.slice = 0;
  }
}

Status Executor::failure() const {
  for (const uint32_t lane : open_lanes_) {
    // A lane may be open only because arrived slices are not reduced yet. Its peer may then leave.
    if (lanes_[lane].finished.step == bound_->ordered->lane_steps[lane].size()) continue;
    FDL_RETURN_IF_ERROR(transport_.channel_status({bound_->ordered->lanes[lane].peer, 0}));
  }
  return {};
}

// The first step that is not finished, or the number of steps.
std::size_t Executor::first_unfinished() const {
  std::size_t step = 0;
  while (step < states_.size() && states_[step].finished == bound_->steps[step].slices) ++step;
  return step;
}

std::string Executor::phase() const {
  if (bound_ == nullptr) return {};
  const std::size_t step = first_unfinished();
  const Schedule& schedule = bound_->ordered->schedule;
  return step < states_.size() ? describe(schedule, step) : schedule.name;
}

int Executor::waiting_for() const {
  for (std::size_t step = first_unfinished(); step < states_.size(); ++step) {
    const BoundStep& bound = bound_->steps[step];
    if (bound.peer >= 0 && states_[step].finished < bound.slices) return bound.peer;
  }
  return -1;
}

}  // namespace fdl
