// renumbered() maps each number of a schedule once, and divides the steps whose chunks may be apart.
#include "schedule/renumber.h"

#include <utility>

#include "base/check.h"

namespace fdl {
namespace {

// The spaces of a collective whose chunks belong to ranks.
struct Owned {
  bool input = false;
  bool output = false;
  bool any() const { return input || output; }
  bool has(Space space) const { return (space == Space::input && input) || (space == Space::output && output); }
};

Owned owned_by_ranks(Collective collective) {
  switch (collective) {
    case Collective::allgather:
    case Collective::gather:
      return {.output = true};
    case Collective::reduce_scatter:
    case Collective::scatter:
      return {.input = true};
    case Collective::alltoall:
      return {.input = true, .output = true};
    case Collective::allreduce:
    case Collective::reduce:
    case Collective::broadcast:
    case Collective::barrier:
      return {};
  }
  return {};
}

// Chunk `i` of a run, with its rank's number in an owned space.
ChunkRange one_of(ChunkRange run, int32_t i, const Owned& owned, std::span<const int> rank_at) {
  const int32_t chunk = run.first + i;
  return {run.space, owned.has(run.space) ? rank_at[static_cast<std::size_t>(chunk)] : chunk, 1};
}

}  // namespace

Schedule renumbered(Schedule schedule, std::span<const int> rank_at) {
  FDL_CHECK(rank_at.size() == static_cast<std::size_t>(schedule.size));
  const auto rank_of = [&](int32_t position) { return rank_at[static_cast<std::size_t>(position)]; };
  const Owned owned = owned_by_ranks(schedule.collective);
  schedule.rank = rank_of(schedule.rank);
  schedule.root = rank_of(schedule.root);
  if (owned.any()) {
    for (int32_t& like : schedule.scratch_sizes) like = rank_of(like);
  }
  std::vector<Step> steps;
  steps.reserve(schedule.steps.size());
  for (Step& step : schedule.steps) {
    if (step.peer >= 0) step.peer = rank_of(step.peer);
    if (!owned.any()) {
      steps.push_back(step);
      continue;
    }
    FDL_CHECK(step.kind != StepKind::reduce || !(owned.has(step.source.space) || owned.has(step.target.space)));
    const bool is_reduce = step.kind == StepKind::reduce;
    const bool has_source = step.kind == StepKind::send || step.kind == StepKind::copy;
    const int32_t count = is_reduce ? 1 : (has_source ? step.source : step.target).count;
    for (int32_t i = 0; i < count; ++i) {
      Step one = step;
      if (!is_reduce && step.kind != StepKind::send) one.target = one_of(step.target, i, owned, rank_at);
      if (has_source) one.source = one_of(step.source, i, owned, rank_at);
      steps.push_back(one);
    }
  }
  schedule.steps = std::move(steps);
  return schedule;
}

}  // namespace fdl
