// Executor runs one bound schedule over a Transport, slice by slice. All pipelining is implemented here.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "contract/transport.h"
#include "data/reduce.h"
#include "engine/host/bound_schedule.h"
#include "engine/host/staging.h"

namespace fdl {

// Slice k of a step starts when every step that it depends on has finished slice k, or all its slices where the
// dependency is marked whole. The slices of a lane are posted in program order, whichever becomes ready first. The
// class is not synchronized: the thread that drives the communicator calls it.
class Executor {
 public:
  struct Spaces {
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    std::byte* scratch = nullptr;
  };

  explicit Executor(Transport& transport) : transport_(transport) {}

  // The caller keeps the schedule, the memory and the reduction until done(). Allocates only when this schedule is
  // larger than all previous ones.
  void start(const BoundSchedule& bound, const Spaces& spaces, const Reduction& reduction, uint32_t tag);
  bool done() const { return unfinished_ == 0; }
  // Moves what can be moved and returns whether anything did. Each pass does a bounded amount of local work, so that
  // the transport is polled often enough.
  bool progress();
  // OK, or why this schedule cannot finish: a peer that it still needs has failed. Call it when nothing moves.
  Status failure() const;
  // Describes the first unfinished step, such as "ring, step 9: recv_reduce chunk 3 from rank 2".
  std::string phase() const;
  // The peer of the first unfinished step that has one, or -1.
  int waiting_for() const;

 private:
  // Every transport accepts at least this many slices of a lane. More would only lengthen its queues.
  static constexpr uint32_t kOutstanding = 16;

  struct StepState {
    uint32_t finished = 0;                // number of finished slices; slices of a step finish in order
    uint32_t arrived = 0;                 // recv_reduce: number of slices that are in staging or already reduced
    uint32_t waits = 0;                   // the first dependency that may be unfinished; those before it are finished
    int32_t first_slot = Staging::kNone;  // the chain of slots with slices that are not reduced yet
    int32_t last_slot = Staging::kNone;
  };
  // A position in a lane's steps.
  struct Cursor {
    uint32_t step = 0;
    uint32_t slice = 0;
  };
  // `posted` and `finished` move through the lane's steps; the tickets between them are a ring buffer.
  struct LaneState {
    Cursor posted;
    Cursor finished;
    uint32_t outstanding = 0;
    uint32_t oldest = 0;         // index of the oldest outstanding ticket, modulo kOutstanding
    uint32_t reduce_from = 0;    // all steps before this one are reduced
    uint32_t slots = 0;          // staging slots that the lane holds
    uint32_t slots_to_take = 0;  // slices that will still need a slot
    std::array<Ticket, kOutstanding> tickets;
  };

  bool run_lane(std::size_t lane);
  bool finish_slices(LaneState& state, const std::vector<int32_t>& steps);
  bool post_slices(LaneState& state, std::size_t lane);
  bool reduce_arrived(LaneState& state, const std::vector<int32_t>& steps);
  bool run_local();
  void do_local(const BoundStep& step, uint32_t slice);
  void reduce_slot(LaneState& state, int32_t step);

  std::optional<Ticket> post(LaneState& state, int32_t step, uint32_t slice);
  bool may_take_slot(const LaneState& state) const;
  bool ready(int32_t step, uint32_t slice);
  void finish_slice(int32_t step);
  std::size_t first_unfinished() const;
  void skip_empty(Cursor& cursor, const std::vector<int32_t>& steps) const;

  const BoundStep& step_at(int32_t step) const { return bound_->steps[static_cast<std::size_t>(step)]; }
  StepState& state_of(int32_t step) { return states_[static_cast<std::size_t>(step)]; }
  std::byte* address(Space space, std::size_t offset) const { return spaces_[static_cast<int>(space)] + offset; }
  std::size_t slice_offset(uint32_t slice) const { return slice * bound_->slice_bytes; }
  std::size_t slice_size(const BoundStep& step, uint32_t slice) const {
    return std::min(bound_->slice_bytes, step.bytes - slice_offset(slice));
  }

  Transport& transport_;
  const BoundSchedule* bound_ = nullptr;
  std::byte* spaces_[3] = {nullptr, nullptr, nullptr};
  Reduction reduction_;
  uint32_t tag_ = 0;
  std::size_t element_bytes_ = 1;

  std::size_t unfinished_ = 0;  // number of steps
  std::vector<StepState> states_;
  std::vector<LaneState> lanes_;
  std::vector<uint32_t> open_lanes_;  // lanes with something left to do
  std::vector<int32_t> local_left_;   // local steps with something left to do, in program order
  std::vector<const void*> sources_;  // arguments of one reduction, kept to avoid allocation
  std::size_t work_left_ = 0;         // bytes of local work that this pass may still do

  Staging staging_;
  std::size_t promised_slots_ = 0;  // one for each lane that needs slots and holds none, so that no lane starves
};

}  // namespace fdl
