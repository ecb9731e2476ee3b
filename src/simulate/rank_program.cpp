// compile() takes steps, slices and dependencies from the engine's own classes, OrderedSchedule and BoundSchedule.
#include "simulate/rank_program.h"

#include <algorithm>

namespace fdl {
namespace {

bool is_shared_out(Collective collective) {
  return collective != Collective::allreduce && collective != Collective::reduce &&
         collective != Collective::broadcast && collective != Collective::barrier;
}

}  // namespace

bool RankProgram::operator==(const RankProgram& other) const {
  const auto same_step = [](const Step& a, const Step& b) {
    return a.kind == b.kind && a.lane == b.lane && a.slices == b.slices && a.sources == b.sources && a.bytes == b.bytes;
  };
  const auto same_lane = [](const Lane& a, const Lane& b) { return a.outgoing == b.outgoing && a.steps == b.steps; };
  return slice_bytes == other.slice_bytes && dependency_ends == other.dependency_ends &&
         dependencies == other.dependencies && std::ranges::equal(steps, other.steps, same_step) &&
         std::ranges::equal(lanes, other.lanes, same_lane);
}

void RankProgram::add_followers() {
  const std::size_t count = steps.size();
  follower_ends.assign(count + 1, 0);
  for (const Dependency& edge : dependencies) ++follower_ends[static_cast<std::size_t>(edge.step) + 1];
  for (std::size_t i = 0; i < count; ++i) follower_ends[i + 1] += follower_ends[i];
  std::vector<uint32_t> next(follower_ends.begin(), follower_ends.end() - 1);
  followers.resize(dependencies.size());
  for (std::size_t step = 0; step < count; ++step) {
    for (uint32_t i = dependency_ends[step]; i < dependency_ends[step + 1]; ++i) {
      followers[next[static_cast<std::size_t>(dependencies[i].step)]++] = static_cast<int32_t>(step);
    }
  }
}

PlacedProgram compile(Schedule schedule, int64_t bytes, int64_t slice_bytes) {
  const auto size = static_cast<std::size_t>(schedule.size);
  const std::size_t elements = static_cast<std::size_t>(bytes / kSimulatedElementBytes);
  std::vector<std::size_t> counts;
  CollectiveSpec spec{.collective = schedule.collective, .root = schedule.root, .count = elements};
  if (is_shared_out(schedule.collective)) {
    for (std::size_t i = 0; i < size; ++i) counts.push_back(even_share(elements, size, i));
    // In an alltoall every rank sends as much to rank r as it receives from it, so that both ends of a lane agree.
    if (schedule.collective == Collective::alltoall) counts.assign(size, elements / size);
    spec.counts = spec.recv_counts = counts;
  }
  const OrderedSchedule ordered(std::move(schedule), false);
  BoundSchedule bound(ordered);
  bound.bind(spec, {.slice_bytes = static_cast<std::size_t>(slice_bytes)});

  PlacedProgram placed;
  RankProgram& program = placed.program;
  program.slice_bytes = static_cast<int64_t>(bound.slice_bytes);
  for (const BoundStep& step : bound.steps) {
    program.steps.push_back({.kind = step.kind,
                             .slices = step.slices,
                             .sources = step.source_count,
                             .bytes = static_cast<int64_t>(step.bytes)});
  }
  program.dependency_ends = ordered.dependency_ends;
  program.dependencies = ordered.dependencies;
  // The order in which edges were found depends on the numbers of chunks, which differ between ranks that are alike.
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    std::sort(program.dependencies.begin() + program.dependency_ends[i],
              program.dependencies.begin() + program.dependency_ends[i + 1],
              [](Dependency a, Dependency b) { return a.step != b.step ? a.step < b.step : a.whole < b.whole; });
  }
  for (std::size_t i = 0; i < ordered.lanes.size(); ++i) {
    RankProgram::Lane lane{.outgoing = ordered.lanes[i].outgoing, .steps = {}};
    for (const int32_t step : ordered.lane_steps[i]) {
      if (program.steps[static_cast<std::size_t>(step)].slices > 0) lane.steps.push_back(step);
    }
    if (lane.steps.empty()) continue;
    for (const int32_t step : lane.steps) {
      program.steps[static_cast<std::size_t>(step)].lane = static_cast<int32_t>(program.lanes.size());
    }
    program.lanes.push_back(std::move(lane));
    placed.peers.push_back(ordered.lanes[i].peer);
  }
  program.add_followers();
  return placed;
}

}  // namespace fdl
