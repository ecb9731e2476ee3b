// BoundSchedule sorts the steps by lane once, and computes bytes, slices and slots for each new count.
#include "engine/host/bound_schedule.h"

#include <algorithm>

#include "base/check.h"

namespace fdl {
namespace {

bool is_local(StepKind kind) { return kind == StepKind::copy || kind == StepKind::reduce; }

bool depends_on(const std::vector<Dependency>& edges, std::size_t step) {
  return std::any_of(edges.begin(), edges.end(),
                     [&](const Dependency& edge) { return edge.step == static_cast<int32_t>(step); });
}

}  // namespace

// Finds each copy right before a recv_reduce into the same chunks, where every step that waits for the copy also waits
// for the recv_reduce. The reduction can then write its result instead of the copy.
void OrderedSchedule::find_carried_copies(const std::vector<std::vector<Dependency>>& edges) {
  carries_out.assign(schedule.steps.size(), -1);
  for (std::size_t i = 0; i + 1 < schedule.steps.size(); ++i) {
    const Step& copy = schedule.steps[i];
    const Step& next = schedule.steps[i + 1];
    if (copy.kind != StepKind::copy || next.kind != StepKind::recv_reduce || copy.target != next.target) continue;
    carries_out[i + 1] = static_cast<int32_t>(i);
  }
  for (std::size_t later = 0; later < edges.size(); ++later) {
    for (const Dependency& edge : edges[later]) {
      const auto sum = static_cast<std::size_t>(edge.step) + 1;
      if (later > sum && carries_out[sum] == edge.step && !depends_on(edges[later], sum)) carries_out[sum] = -1;
    }
  }
}

OrderedSchedule::OrderedSchedule(Schedule written, bool in_place) : schedule(std::move(written)) {
  dependency_ends.push_back(0);
  auto edges = order(schedule, in_place);
  find_carried_copies(edges);
  for (std::size_t i = 0; i < edges.size(); ++i) {
    if (carries_out[i] < 0) continue;
    // The reduction inherits the dependencies of the copy that it carries out.
    const auto& of_copy = edges[static_cast<std::size_t>(carries_out[i])];
    edges[i].insert(edges[i].end(), of_copy.begin(), of_copy.end());
  }
  // By peer * 2 + outgoing: the index of the lane, or -1.
  std::vector<int32_t> lane_of(static_cast<std::size_t>(schedule.size) * 2, -1);
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    for (Dependency edge : edges[i]) {
      // Rounds hold back what is sent. Arriving data is still reduced slice by slice: holding that back as well would
      // need staging for a whole exchange and gain nothing.
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
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const int32_t copy = ordered->carries_out[i];
    if (copy >= 0) carry_out(steps[static_cast<std::size_t>(copy)], steps[i]);
  }
  plan_staging(limits);
}

// The copy becomes a step without slices, and the reduction reads the copy's source.
void BoundSchedule::carry_out(BoundStep& copy, BoundStep& sum) {
  copy.slices = 0;
  sum.source_space = copy.source_space;
  sum.source = copy.source;
  sum.has_source = true;
  widest_reduce = std::max(widest_reduce, std::size_t{2});
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
    // A source that is larger than its target would overrun it. The proof of schedules excludes this.
    FDL_CHECK(step.kind != StepKind::copy || bound.bytes == range.bytes);
    FDL_CHECK(step.kind != StepKind::reduce ||
              bound.bytes == range.bytes * static_cast<std::size_t>(step.source.count));
    bound.bytes = range.bytes;
  }
  if (step.kind == StepKind::reduce)
    widest_reduce = std::max(widest_reduce, static_cast<std::size_t>(step.source.count));
  // A barrier's messages carry no bytes but must be sent: each has one empty slice.
  const bool empty_message = ordered->schedule.collective == Collective::barrier && !is_local(step.kind);
  bound.slices = empty_message ? 1 : static_cast<uint32_t>((bound.bytes + slice_bytes - 1) / slice_bytes);
}

// Plans as many slots as staging_bytes holds, but at least one for each lane that reduces. A step that must be received
// whole before a send of this rank releases its memory needs all its slots, because its peer may wait for the same.
void BoundSchedule::plan_staging(const SlicingLimits& limits) {
  std::size_t largest = 0;
  std::size_t requested = 0;
  std::size_t least = 0;
  for (std::size_t lane = 0; lane < ordered->lanes.size(); ++lane) {
    std::size_t in_lane = 0;
    for (const int32_t index : ordered->lane_steps[lane]) {
      const auto at = static_cast<std::size_t>(index);
      if (steps[at].kind != StepKind::recv_reduce) continue;
      in_lane += steps[at].slices;
      largest = std::max(largest, std::min(steps[at].bytes, slice_bytes));
    }
    requested += in_lane;
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
  slot_count = largest == 0 ? requested : std::min(requested, std::max(least, limits.staging_bytes / largest));
}

}  // namespace fdl
