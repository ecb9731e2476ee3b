// BoundSchedule holds the bytes and slices of every step of a schedule for given counts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contract/collectives.h"
#include "engine/host/layout.h"
#include "schedule/order.h"
#include "schedule/schedule.h"

namespace fdl {

// A schedule as it is cached: its dependencies are computed once, and its steps are sorted by lane. A lane is one
// direction of the traffic with one peer.
struct OrderedSchedule {
  struct Lane {
    int32_t peer = 0;
    bool outgoing = false;
  };

  OrderedSchedule(Schedule written, bool in_place);

  Schedule schedule;
  std::vector<Dependency> dependencies;          // those of step s: [dependency_ends[s], dependency_ends[s + 1])
  std::vector<uint32_t> dependency_ends;         // has one entry more than there are steps, and starts with 0
  std::vector<Lane> lanes;                       // the lanes that the schedule uses
  std::vector<std::vector<int32_t>> lane_steps;  // by lane: its steps in program order
  std::vector<int32_t> local_steps;              // copies and reductions
  // By step: -1, or the copy that a recv_reduce performs on the way (target = source op arrived data). Such a copy is
  // not executed as a step, which saves one pass over the memory.
  std::vector<int32_t> carries_out;

 private:
  void find_carried_copies(const std::vector<std::vector<Dependency>>& edges);
};

// One step in bytes. Addresses are offsets into the three spaces, so that one binding serves any buffers.
struct BoundStep {
  StepKind kind = StepKind::send;
  Space source_space = Space::input;
  Space target_space = Space::output;
  int32_t source_count = 1;  // reduce: number of sources
  int32_t peer = -1;
  bool has_source = false;  // recv_reduce: target = source op arrived data, instead of target = target op arrived data
  uint32_t slices = 0;      // 0: the step moves no bytes and is skipped; in a barrier a message has one empty slice
  std::size_t source = 0;
  std::size_t target = 0;
  std::size_t bytes = 0;
};

// slice_bytes is the unit of pipelining; staging_bytes limits the memory for slices that wait to be reduced.
struct SlicingLimits {
  std::size_t slice_bytes = 256 << 10;
  std::size_t staging_bytes = 4 << 20;
};

struct BoundSchedule {
  explicit BoundSchedule(const OrderedSchedule& what) : ordered(&what) {}

  // Computes steps and slots for these counts. Allocates only on the first call.
  void bind(const CollectiveSpec& spec, const SlicingLimits& limits);

  const OrderedSchedule* ordered;
  Layout layout;
  Dtype dtype = Dtype::float32;
  std::size_t slice_bytes = 1;  // a multiple of the element size
  std::vector<BoundStep> steps;
  std::size_t slot_bytes = 0;     // size of one staging slot
  std::size_t slot_count = 0;     // number of staging slots
  std::size_t widest_reduce = 1;  // number of sources of the widest reduction

 private:
  void bind_step(std::size_t index);
  void carry_out(BoundStep& copy, BoundStep& sum);
  void plan_staging(const SlicingLimits& limits);
};

}  // namespace fdl
