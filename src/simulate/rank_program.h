// RankProgram is one rank's schedule as the engine binds it: bytes, slices, dependencies and lanes. Ranks whose
// programs differ only in the numbers of their peers share one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/host/bound_schedule.h"

namespace fdl {

// Vectors consist of float32.
inline constexpr int64_t kSimulatedElementBytes = 4;

struct RankProgram {
  struct Step {
    StepKind kind = StepKind::send;
    int32_t lane = -1;    // of a message
    uint32_t slices = 0;  // 0: the engine skips the step
    int32_t sources = 1;  // of a reduce
    int64_t bytes = 0;
  };
  struct Lane {
    bool outgoing = false;
    std::vector<int32_t> steps;  // that have slices, in program order
  };

  std::vector<Step> steps;
  std::vector<Dependency> dependencies;  // those of step s: [dependency_ends[s], dependency_ends[s + 1])
  std::vector<uint32_t> dependency_ends;
  std::vector<int32_t> followers;  // the same edges in the other direction
  std::vector<uint32_t> follower_ends;
  std::vector<Lane> lanes;
  int64_t slice_bytes = 1;

  int64_t bytes_of(const Step& step, uint32_t slice) const {
    return std::min(slice_bytes, step.bytes - static_cast<int64_t>(slice) * slice_bytes);
  }
  bool operator==(const RankProgram& other) const;
  void add_followers();  // from the dependencies
};

// A rank's program and the ranks at the other ends of its lanes.
struct PlacedProgram {
  RankProgram program;
  std::vector<int32_t> peers;  // by lane
};

// Binds a schedule for `bytes` as in `farandole bench`: float32, chunks whose lengths differ by at most one element.
PlacedProgram compile(Schedule schedule, int64_t bytes, int64_t slice_bytes);

}  // namespace fdl
