// BoundSchedule: sorts steps by lane once, then turns chunks into bytes, slices and slots for each new count.
#include "engine/bound_schedule.h"

#include <algorithm>

#include "base/check.h"

namespace fdl {
namespace {

bool is_local(StepKind kind) { return kind == StepKind::copy || kind == StepKind::reduce; }

}  // namespace

OrderedSchedule::OrderedSchedule(Schedule written, bool in_place) : schedule(std::move(written)) {
  dependency_ends.push_back(0);
  const auto edges = order(schedule, in_place);
  // lane_of[peer][outgoing]
  std::vector<int32_t> lane_of(static_cast<std::size_t>(schedule.size) * 2, -1);
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    for (Dependency edge : edges[i]) {
      // Rounds hold back what is sent. What arrives may still be folded slice by slice: holding that back too would
      // need staging for all of an exchange, and gain nothing.
      edge.whole |= schedule.pipelining == Pipelining::rounds && step.kind == StepKind::send;
      dependencies.push_back(edge);
    }
    dependency_ends.push_back(static_cast<uint32_t>(dependencies.size()));
    if (is_local(step.kind)) {
      local_steps.push_back(static_cast<int32_t>(i));
      continue;
    }
    const bool outgoing = step.kind == StepKind::send;
    int32_t& lane = lane_of[static_cast<std::size_t>(step.peer) * 2 + (outgoing ? 1 : 0)];
    if (lane < 0) {
      lane = static_cast<int32_t>(lanes.size());
      lanes.push_back({step.peer, outgoing});
      lane_steps.emplace_back();
    }
    lane_steps[static_cast<std::size_t>(lane)].push_back(static_cast<int32_t>(i));
  }
}

void BoundSchedule::bind(const CollectiveSpec& spec, const SlicingLimits& limits) {
  layout.assign(ordered->schedule, spec);
  dtype = spec.dtype;
  const std::size_t element = size_of(dtype);
  slice_bytes = std::max(limits.slice_bytes / element, std::size_t{1}) * element;
  steps.resize(ordered->schedule.steps.size());
  widest_reduce = 1;
  for (std::size_t i = 0; i < steps.size(); ++i) bind_step(i);
  plan_staging(limits);
}

void BoundSchedule::bind_step(std::size_t index) {
  const Step& step = ordered->schedule.steps[index];
  BoundStep& bound = steps[index];
  bound = {.kind = step.kind, .peer = step.peer};
  if (step.kind != StepKind::recv && step.kind != StepKind::recv_reduce) {
    const Layout::Range range = layout.of(step.source);
    bound.source_space = step.source.space;
    bound.source_count = step.source.count;
    bound.source = range.offset;
    bound.bytes = range.bytes;
  }
  if (step.kind != StepKind::send) {
    const Layout::Range range = layout.of(step.target);
    bound.target_space = step.target.space;
    bound.target = range.offset;
    // A reduce's sources are as large as its target, and a copy's source too, or its schedule would not have passed.
    FDL_CHECK(step.kind != StepKind::copy || bound.bytes == range.bytes);
    FDL_CHECK(step.kind != StepKind::reduce ||
              bound.bytes == range.bytes * static_cast<std::size_t>(step.source.count));
    bound.bytes = range.bytes;
  }
  if (step.kind == StepKind::reduce)
    widest_reduce = std::max(widest_reduce, static_cast<std::size_t>(step.source.count));
  const bool empty_message = ordered->schedule.collective == Collective::barrier && !is_local(step.kind);
  bound.slices = empty_message ? 1 : static_cast<uint32_t>((bound.bytes + slice_bytes - 1) / slice_bytes);
}

// As many slots as staging_bytes holds, but never fewer than lanes that reduce, and enough for the largest step that
// must be received whole before a send of this rank lets go of the memory: its peer may be waiting for the same.
void BoundSchedule::plan_staging(const SlicingLimits& limits) {
  std::size_t largest = 0;
  std::size_t wanted = 0;
  std::size_t least = 0;
  for (std::size_t lane = 0; lane < ordered->lanes.size(); ++lane) {
    std::size_t in_lane = 0;
    for (const int32_t index : ordered->lane_steps[lane]) {
      const auto at = static_cast<std::size_t>(index);
      if (steps[at].kind != StepKind::recv_reduce) continue;
      in_lane += steps[at].slices;
      largest = std::max(largest, std::min(steps[at].bytes, slice_bytes));
    }
    wanted += in_lane;
    least += in_lane > 0 ? 1 : 0;
  }
  const std::size_t lanes_that_reduce = least;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].kind != StepKind::recv_reduce) continue;
    for (uint32_t d = ordered->dependency_ends[i]; d < ordered->dependency_ends[i + 1]; ++d) {
      const Dependency& edge = ordered->dependencies[d];
      if (!edge.whole || steps[static_cast<std::size_t>(edge.step)].kind != StepKind::send) continue;
      least = std::max(least, lanes_that_reduce + steps[i].slices);
    }
  }
  slot_bytes = largest;
  slot_count = largest == 0 ? wanted : std::min(wanted, std::max(least, limits.staging_bytes / largest));
}

}  // namespace fdl
