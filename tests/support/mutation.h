// mutate() damages schedules at random in small ways, to test whether the verifier detects it.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "schedule/print/describe.h"
#include "schedule/schedule.h"

namespace fdl::test {

// Changes, moves or removes one step of one rank: its kind, peer, space, chunk or count. Returns a description of the
// change.
inline std::string mutate(std::vector<Schedule>& schedules, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return static_cast<int>(random() % n); };
  auto& schedule = schedules[random() % schedules.size()];
  auto& steps = schedule.steps;
  const std::size_t at = random() % steps.size();
  Step& step = steps[at];
  const std::string what = "rank " + std::to_string(schedule.rank) + ", " + describe(schedule, at) + ": ";
  const bool message = step.peer >= 0;
  ChunkRange& range = step.kind == StepKind::send ? step.source : message || below(2) == 0 ? step.target : step.source;
  switch (below(8)) {
    case 0:
      // The ranges are adapted, so that the new kind has data to work on.
      if (message) (step.kind == StepKind::send ? step.target : step.source) = range;
      step.kind = static_cast<StepKind>((static_cast<int>(step.kind) + 1 + below(4)) % 5);
      if (step.peer < 0) step.peer = below(schedules.size());
      return what + "kind becomes " + std::string(name_of(step.kind));
    case 1:
      step.peer = below(schedules.size());
      return what + "peer becomes " + std::to_string(step.peer);
    case 2:
      range.space = static_cast<Space>(below(3));
      return what + "space changes";
    case 3:
      range.first += below(2) == 0 ? 1 : -1;
      return what + "chunk moves by one";
    case 4:
      range.count += below(2) == 0 ? 1 : -1;
      return what + "count changes by one";
    case 5: {
      const std::size_t other = random() % steps.size();
      std::swap(steps[at], steps[other]);
      return what + "swapped with step " + std::to_string(other);
    }
    case 6:
      steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(at));
      return what + "dropped";
    default:
      steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(random() % (steps.size() + 1)), Step(steps[at]));
      return what + "doubled";
  }
}

inline bool same_steps(const std::vector<Schedule>& a, const std::vector<Schedule>& b) {
  const auto equal = [](const Step& x, const Step& y) {
    return x.kind == y.kind && x.peer == y.peer && x.source == y.source && x.target == y.target;
  };
  for (std::size_t rank = 0; rank < a.size(); ++rank) {
    if (!std::equal(a[rank].steps.begin(), a[rank].steps.end(), b[rank].steps.begin(), b[rank].steps.end(), equal)) {
      return false;
    }
  }
  return true;
}

}  // namespace fdl::test
