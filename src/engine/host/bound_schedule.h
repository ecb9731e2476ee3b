// BoundSchedule: a schedule with its dependencies and, once bound to counts, the bytes and slices of every step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contract/collectives.h"
#include "engine/host/layout.h"
#include "schedule/order.h"
#include "schedule/schedule.h"

namespace fdl {

// A schedule as it is cached: ordered once, its steps sorted by lane.
struct OrderedSchedule {
  struct Lane {
    int32_t peer = 0;
    bool outgoing = false;
  };

  OrderedSchedule(Schedule written, bool in_place);

  Schedule schedule;
  std::vector<Dependency> dependencies;   // those of step s: [dependency_ends[s - 1], dependency_ends[s])
  std::vector<uint32_t> dependency_ends;  // one more than steps; starts with 0
  std::vector<Lane> lanes;                // that the schedule uses
  std::vector<std::vector<int32_t>> lane_steps;
  std::vector<int32_t> local_steps;  // copy and reduce
  // For each step: -1, or the copy that a recv_reduce does on the way (target = source op what arrives), which is then
  // no step of its own and costs no pass over the memory.
  std::vector<int32_t> carries_out;

 private:
  void find_carried_copies(const std::vector<std::vector<Dependency>>& edges);
};

// One step as bytes. Addresses are offsets into the three spaces, so that a binding serves any buffers.
struct BoundStep {
  StepKind kind = StepKind::send;
  Space source_space = Space::input;
  Space target_space = Space::output;
  int32_t source_count = 1;  // of reduce
  int32_t peer = -1;
  bool has_source = false;  // of recv_reduce: target = source op what arrives, else target = target op what arrives
  uint32_t slices = 0;      // 0: a step of no bytes, which is nothing (but in a barrier)
  std::size_t source = 0;
  std::size_t target = 0;
  std::size_t bytes = 0;
};

struct SlicingLimits {
  std::size_t slice_bytes = 256 << 10;
  std::size_t staging_bytes = 4 << 20;
};

struct BoundSchedule {
  explicit BoundSchedule(const OrderedSchedule& what) : ordered(&what) {}

  // Allocates only when it was never bound before.
  void bind(const CollectiveSpec& spec, const SlicingLimits& limits);

  const OrderedSchedule* ordered;
  Layout layout;
  Dtype dtype = Dtype::float32;
  std::size_t slice_bytes = 1;  // whole elements
  std::vector<BoundStep> steps;
  std::size_t slot_bytes = 0;  // of staging: what this schedule wants
  std::size_t slot_count = 0;
  std::size_t widest_reduce = 1;  // sources of the widest reduce step

 private:
  void bind_step(std::size_t index);
  void carry_out(BoundStep& copy, BoundStep& sum);
  void plan_staging(const SlicingLimits& limits);
};

}  // namespace fdl
