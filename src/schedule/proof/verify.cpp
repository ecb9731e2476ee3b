// verify() checks each step alone and then each lane. It then runs all schedules on symbols and compares the outputs
// with what the collective promises.
#include "schedule/proof/verify.h"

#include <algorithm>

#include "schedule/lanes.h"
#include "schedule/places.h"
#include "schedule/print/describe.h"
#include "schedule/proof/promise.h"
#include "schedule/proof/symbolic_run.h"

namespace fdl {
namespace {

Status refuse(std::string text) { return Status(Code::internal, std::move(text)); }

// Sizes numbers the sizes of chunks. Two chunks must have equal sizes if and only if their numbers are equal.
class Sizes {
 public:
  explicit Sizes(const std::vector<Schedule>& schedules) : schedules_(schedules) {
    for (const Schedule& schedule : schedules) any_scratch_ = any_scratch_ || !schedule.scratch_sizes.empty();
  }

  int64_t of(int32_t rank, Space space, int32_t chunk) const {
    const Schedule& schedule = schedules_[static_cast<std::size_t>(rank)];
    if (schedule.collective != Collective::alltoall) return size_index(schedule, space, chunk);
    if (any_scratch_) return 0;
    const int64_t size = schedule.size;
    return space == Space::input ? rank * size + chunk : chunk * size + rank;
  }

  bool same(int32_t rank_a, ChunkRange a, int32_t rank_b, ChunkRange b) const {
    if (a.count != b.count) return false;
    for (int32_t i = 0; i < a.count; ++i) {
      if (of(rank_a, a.space, a.first + i) != of(rank_b, b.space, b.first + i)) return false;
    }
    return true;
  }

 private:
  const std::vector<Schedule>& schedules_;
  bool any_scratch_ = false;
};

Status check_family(const std::vector<Schedule>& schedules) {
  if (schedules.empty()) return refuse("there are no schedules");
  const Schedule& first = schedules.front();
  const auto size = static_cast<int32_t>(schedules.size());
  for (int32_t rank = 0; rank < size; ++rank) {
    const Schedule& schedule = schedules[static_cast<std::size_t>(rank)];
    const std::string where = schedule.name + ", rank " + std::to_string(rank) + ": ";
    if (schedule.rank != rank || schedule.size != size)
      return refuse(where + "the schedule is of another rank or size");
    if (schedule.collective != first.collective || schedule.root != first.root ||
        schedule.chunk_count != first.chunk_count) {
      return refuse(where + "collective, root or chunk count differ from rank 0's");
    }
    if (schedule.root < 0 || schedule.root >= size) return refuse(where + "the root is not a rank of the group");
    if (schedule.chunk_count < 1) return refuse(where + "the vector has no chunks");
    const bool one_vector = schedule.collective == Collective::allreduce || schedule.collective == Collective::reduce ||
                            schedule.collective == Collective::broadcast;
    const int32_t chunks = one_vector ? schedule.chunk_count : size;
    for (const int32_t like : schedule.scratch_sizes) {
      if (like < 0 || like >= chunks)
        return refuse(where + "a scratch chunk has the size of chunk " + std::to_string(like) +
                      ", which does not exist");
    }
  }
  return ok_status();
}

// A copy onto itself does nothing. Any other overlap would read places that the step has already overwritten.
bool overlaps_itself(const Places& places, const Step& step) {
  if (is_message(step.kind)) return false;
  const int32_t source = places.first(step.source);
  const int32_t target = places.first(step.target);
  if (step.kind == StepKind::copy && source == target) return false;
  return source < target + step.target.count && target < source + step.source.count;
}

// Returns the fault of a step that does not depend on other steps; empty if there is none.
std::string_view fault_of(const Schedule& schedule, const Places& places, const Sizes& sizes, const Step& step) {
  const bool reads = step.kind == StepKind::send || step.kind == StepKind::copy || step.kind == StepKind::reduce;
  const bool writes = step.kind != StepKind::send;
  if (is_message(step.kind)) {
    if (step.peer < 0 || step.peer >= schedule.size) return "the peer is not a rank of the group";
    if (step.peer == schedule.rank) return "a rank cannot send a message to itself";
  }
  if (reads && !places.contains(step.source)) return "the source is out of range";
  if (writes && !places.contains(step.target)) return "the target is out of range";
  if (writes && step.target.space == Space::input) return "steps never write to input";
  if (step.kind == StepKind::copy && !sizes.same(schedule.rank, step.source, schedule.rank, step.target)) {
    return "source and target differ in size";
  }
  if (overlaps_itself(places, step)) return "source and target overlap";
  if (step.kind == StepKind::reduce) {
    if (step.target.count != 1) return "the target of a reduce is one chunk";
    for (int32_t i = 0; i < step.source.count; ++i) {
      const ChunkRange one{step.source.space, step.source.first + i, 1};
      if (!sizes.same(schedule.rank, one, schedule.rank, step.target)) return "source and target differ in size";
    }
  }
  return {};
}

Status check_steps(const Schedule& schedule, const Sizes& sizes, bool in_place) {
  const Places places(schedule, in_place);
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const std::string_view fault = fault_of(schedule, places, sizes, schedule.steps[i]);
    if (fault.empty()) continue;
    return refuse("rank " + std::to_string(schedule.rank) + ", " + describe(schedule, i) + ": " + std::string(fault));
  }
  return ok_status();
}

Status check_lane(const std::vector<Schedule>& schedules, const LaneSteps& lane, const Sizes& sizes) {
  const Schedule& sender = schedules[static_cast<std::size_t>(lane.from)];
  const Schedule& receiver = schedules[static_cast<std::size_t>(lane.to)];
  if (lane.sends.size() != lane.recvs.size()) {
    return refuse(sender.name + ": rank " + std::to_string(lane.from) + " sends " + std::to_string(lane.sends.size()) +
                  " messages to rank " + std::to_string(lane.to) + ", which receives " +
                  std::to_string(lane.recvs.size()));
  }
  for (std::size_t k = 0; k < lane.sends.size(); ++k) {
    const auto send = static_cast<std::size_t>(lane.sends[k]);
    const auto recv = static_cast<std::size_t>(lane.recvs[k]);
    if (sizes.same(lane.from, sender.steps[send].source, lane.to, receiver.steps[recv].target)) continue;
    return refuse("sizes differ: rank " + std::to_string(lane.from) + " (" + describe(sender, send) +
                  ") matches rank " + std::to_string(lane.to) + " (" + describe(receiver, recv) + ")");
  }
  return ok_status();
}

}  // namespace

Result<VerifyReport> verify(const std::vector<Schedule>& schedules, bool in_place) {
  FDL_RETURN_IF_ERROR(check_family(schedules));
  VerifyReport report;
  const Sizes sizes(schedules);
  for (const Schedule& schedule : schedules) {
    FDL_RETURN_IF_ERROR(check_steps(schedule, sizes, in_place));
    report.steps += static_cast<int64_t>(schedule.steps.size());
  }
  const Lanes lanes(schedules);
  for (const LaneSteps& lane : lanes.all()) {
    FDL_RETURN_IF_ERROR(check_lane(schedules, lane, sizes));
    report.messages += static_cast<int64_t>(lane.sends.size());
  }
  SymbolicRun run(schedules, lanes, in_place);
  FDL_RETURN_IF_ERROR(run.run());
  report.rounds = run.rounds();
  const auto output_of = [&](int32_t rank, int32_t chunk) { return run.output_of(rank, chunk); };
  FDL_RETURN_IF_ERROR(check_outputs(schedules, output_of, in_place, &report));
  return report;
}

}  // namespace fdl
