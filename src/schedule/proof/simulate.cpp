// simulate() runs an event queue of transfers and core work. Each event that finishes may start the work that follows.
#include "schedule/proof/simulate.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <queue>

#include "schedule/lanes.h"
#include "schedule/order.h"
#include "schedule/places.h"

namespace fdl {
namespace {

// Slices of a step begin and end in order, so a count identifies the slices that have.
struct StepState {
  StepKind kind = StepKind::send;
  int64_t bytes = 0;
  int64_t slices = 1;
  int64_t arrived = 0;  // recv_reduce: staged so far
  int64_t queued = 0;   // handed to the core so far
  int64_t done = 0;
  double seconds_per_byte = 0;  // of core work
  std::size_t lane = 0;         // of a message
  std::vector<Dependency> follows;
  std::vector<int32_t> followers;
};

struct RankState {
  std::vector<StepState> steps;
  std::vector<std::size_t> lanes_out, lanes_in;
  // One core for each rank: reductions and copies of a rank run one after the other, as in the executor.
  std::deque<int32_t> core_queue;  // the step of each slice that waits for the core; the first one is in work
  // A rank sends one slice at a time and receives one at a time, over whichever lanes: a full-duplex port.
  bool out_busy = false;
  bool in_busy = false;
  double finished_s = 0;
};

struct LaneState {
  std::size_t next = 0;       // index of the message that moves next
  bool moving = false;        // its next slice is on the wire
  int staged = 0;             // slices accepted and not yet reduced
  double ready_since_s = -1;  // negative: its next slice cannot move yet
};

struct Event {
  double at_s;
  // Makes the result independent of the order in which the heap keeps equal times.
  int64_t number;  // order among equal times
  bool core;       // true: core work of rank `index`; false: a transfer on lane `index`
  std::size_t index;
  bool operator>(const Event& other) const { return at_s != other.at_s ? at_s > other.at_s : number > other.number; }
};

class Simulation {
 public:
  Simulation(const std::vector<Schedule>& schedules, int64_t bytes, const CostModel& model, bool in_place)
      : model_(model), lanes_(schedules), lane_states_(lanes_.all().size()) {
    for (const Schedule& schedule : schedules) add_rank(schedule, bytes, in_place);
    for (std::size_t lane = 0; lane < lanes_.all().size(); ++lane) {
      rank_at(lanes_.all()[lane].from).lanes_out.push_back(lane);
      rank_at(lanes_.all()[lane].to).lanes_in.push_back(lane);
    }
  }

  SimulatedRun run() {
    // What needs no other step begins at time 0.
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (std::size_t step = 0; step < ranks_[rank].steps.size(); ++step) queue_core_work(rank, step);
    }
    for (std::size_t lane = 0; lane < lane_states_.size(); ++lane) touched_.push_back(lane);
    start_transfers();
    while (!events_.empty()) {
      now_s_ = events_.top().at_s;
      // All events of one moment come before the next transfers, which then see the whole state.
      while (!events_.empty() && events_.top().at_s <= now_s_) {
        const Event event = events_.top();
        events_.pop();
        event.core ? finish_core_work(event.index) : finish_transfer(event.index);
      }
      start_transfers();
    }
    // A step that never ended is a deadlock of the schedule. Its rank then takes for ever.
    SimulatedRun result;
    for (const RankState& rank : ranks_) {
      const bool done = std::all_of(rank.steps.begin(), rank.steps.end(),
                                    [](const StepState& step) { return step.done == step.slices; });
      result.rank_seconds.push_back(done ? rank.finished_s : std::numeric_limits<double>::infinity());
      result.seconds = std::max(result.seconds, result.rank_seconds.back());
    }
    result.bytes_sent = bytes_sent_;
    return result;
  }

 private:
  RankState& rank_at(int32_t rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  StepState& step_at(int32_t rank, int32_t step) { return rank_at(rank).steps[static_cast<std::size_t>(step)]; }

  void add_rank(const Schedule& schedule, int64_t bytes, bool in_place) {
    // The chunks of these divide one vector of `bytes`. The other collectives divide it among the ranks.
    const bool one_vector = schedule.collective == Collective::allreduce || schedule.collective == Collective::reduce ||
                            schedule.collective == Collective::broadcast;
    const int64_t chunks = one_vector ? schedule.chunk_count : schedule.size;
    const auto bytes_of = [&](ChunkRange range) {
      int64_t sum = 0;
      for (int32_t i = range.first; i < range.first + range.count; ++i) {
        const int64_t index = size_index(schedule, range.space, i);
        sum += bytes / chunks + (index < bytes % chunks ? 1 : 0);
      }
      return schedule.collective == Collective::barrier ? 0 : sum;
    };
    const bool streams = schedule.pipelining == Pipelining::stream;
    auto follows = order(schedule, in_place);
    RankState rank;
    for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
      const Step& step = schedule.steps[i];
      StepState state;
      state.kind = step.kind;
      if (is_message(step.kind)) state.lane = lanes_.of(schedule.rank, step);
      state.bytes = bytes_of(step.kind == StepKind::send ? step.source : step.target);
      state.slices = std::max<int64_t>(1, (state.bytes + model_.slice_bytes - 1) / model_.slice_bytes);
      if (step.kind == StepKind::copy) state.seconds_per_byte = model_.copy_s;
      if (step.kind == StepKind::recv_reduce) state.seconds_per_byte = model_.gamma_s;
      if (step.kind == StepKind::reduce) state.seconds_per_byte = model_.gamma_s * (step.source.count - 1);
      state.follows = std::move(follows[i]);
      // Without streaming each step waits for the whole of the steps before it.
      for (Dependency& dependency : state.follows) {
        dependency.whole = dependency.whole || !streams;
        rank.steps[static_cast<std::size_t>(dependency.step)].followers.push_back(static_cast<int32_t>(i));
      }
      rank.steps.push_back(std::move(state));
    }
    ranks_.push_back(std::move(rank));
  }

  int64_t slice_bytes(const StepState& step, int64_t slice) const {
    return std::min(model_.slice_bytes, step.bytes - slice * model_.slice_bytes);
  }

  // Returns whether the steps that `step` follows are far enough for its slice number `slice`.
  bool may_start(const RankState& rank, const StepState& step, int64_t slice) const {
    if (slice >= step.slices) return false;
    return std::all_of(step.follows.begin(), step.follows.end(), [&](const Dependency& dependency) {
      const StepState& earlier = rank.steps[static_cast<std::size_t>(dependency.step)];
      return dependency.whole ? earlier.done == earlier.slices : earlier.done > slice;
    });
  }

  void queue_core_work(std::size_t rank_index, std::size_t step_index) {
    RankState& rank = ranks_[rank_index];
    StepState& step = rank.steps[step_index];
    if (step.kind == StepKind::send || step.kind == StepKind::recv) return;
    // A received slice is reduced when it has arrived and its target is free; other work needs its steps only.
    while ((step.kind != StepKind::recv_reduce || step.arrived > step.queued) && may_start(rank, step, step.queued)) {
      ++step.queued;
      rank.core_queue.push_back(static_cast<int32_t>(step_index));
      if (rank.core_queue.size() == 1) start_core_work(rank_index);
    }
  }

  void start_core_work(std::size_t rank_index) {
    const RankState& rank = ranks_[rank_index];
    const StepState& step = rank.steps[static_cast<std::size_t>(rank.core_queue.front())];
    const double seconds = step.seconds_per_byte * static_cast<double>(slice_bytes(step, step.done));
    events_.push({now_s_ + seconds, event_count_++, true, rank_index});
  }

  void finish_core_work(std::size_t rank_index) {
    RankState& rank = ranks_[rank_index];
    const int32_t step = rank.core_queue.front();
    rank.core_queue.pop_front();
    if (!rank.core_queue.empty()) start_core_work(rank_index);
    const StepState& worked = rank.steps[static_cast<std::size_t>(step)];
    // Its staging slot is free, so that the lane may accept one more slice.
    if (worked.kind == StepKind::recv_reduce) --lane_states_[worked.lane].staged;
    finish_slice(static_cast<int32_t>(rank_index), step);
  }

  // Counts a slice as done. Steps that follow this one may now start their next slice.
  void finish_slice(int32_t rank_index, int32_t step_index) {
    RankState& rank = rank_at(rank_index);
    StepState& step = step_at(rank_index, step_index);
    ++step.done;
    rank.finished_s = now_s_;
    for (const int32_t follower : step.followers) {
      queue_core_work(static_cast<std::size_t>(rank_index), static_cast<std::size_t>(follower));
    }
    // All lanes of the rank, because any of them may have waited for this slice or for its port.
    touched_.insert(touched_.end(), rank.lanes_out.begin(), rank.lanes_out.end());
    touched_.insert(touched_.end(), rank.lanes_in.begin(), rank.lanes_in.end());
  }

  bool lane_is_ready(std::size_t index) {
    const LaneSteps& lane = lanes_.all()[index];
    const LaneState& state = lane_states_[index];
    if (state.moving || state.next == lane.sends.size()) return false;
    const StepState& send = step_at(lane.from, lane.sends[state.next]);
    const StepState& recv = step_at(lane.to, lane.recvs[state.next]);
    if (!may_start(rank_at(lane.from), send, send.done)) return false;
    // A plain receive writes to its target, which must be free. A reduced one is staged, and needs a slot instead.
    if (recv.kind != StepKind::recv_reduce) return may_start(rank_at(lane.to), recv, recv.done);
    return model_.staging_slices == 0 || state.staged < model_.staging_slices;
  }

  // Starts every transfer that can begin now. Only lanes in touched_ can have become ready since the last call; those
  // that have waited longest for a port go first.
  void start_transfers() {
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
    for (const std::size_t lane : touched_) {
      LaneState& state = lane_states_[lane];
      if (state.ready_since_s < 0 && lane_is_ready(lane)) state.ready_since_s = now_s_;
    }
    std::erase_if(touched_, [&](std::size_t lane) { return lane_states_[lane].ready_since_s < 0; });
    std::stable_sort(touched_.begin(), touched_.end(), [&](std::size_t a, std::size_t b) {
      return lane_states_[a].ready_since_s < lane_states_[b].ready_since_s;
    });
    for (const std::size_t lane : touched_) start_transfer(lane);
    touched_.clear();
  }

  void start_transfer(std::size_t index) {
    const LaneSteps& lane = lanes_.all()[index];
    LaneState& state = lane_states_[index];
    RankState& from = rank_at(lane.from);
    RankState& to = rank_at(lane.to);
    // It stays ready with its time, and is considered again when one of the ports becomes free.
    if (from.out_busy || to.in_busy) return;
    const StepState& send = step_at(lane.from, lane.sends[state.next]);
    const int64_t bytes = slice_bytes(send, send.done);
    from.out_busy = to.in_busy = state.moving = true;
    state.ready_since_s = -1;
    bytes_sent_ += bytes;
    // The alpha-beta model: a fixed time for each message and a time for each byte.
    events_.push({now_s_ + model_.alpha_s + model_.beta_s * static_cast<double>(bytes), event_count_++, false, index});
  }

  void finish_transfer(std::size_t index) {
    const LaneSteps& lane = lanes_.all()[index];
    LaneState& state = lane_states_[index];
    const int32_t send = lane.sends[state.next];
    const int32_t recv = lane.recvs[state.next];
    rank_at(lane.from).out_busy = rank_at(lane.to).in_busy = state.moving = false;
    finish_slice(lane.from, send);
    StepState& received = step_at(lane.to, recv);
    if (received.kind == StepKind::recv_reduce) {
      ++received.arrived;
      ++state.staged;
      queue_core_work(static_cast<std::size_t>(lane.to), static_cast<std::size_t>(recv));
      touched_.insert(touched_.end(), rank_at(lane.to).lanes_in.begin(), rank_at(lane.to).lanes_in.end());
    } else {
      finish_slice(lane.to, recv);
    }
    const StepState& sent = step_at(lane.from, send);
    if (sent.done == sent.slices) ++state.next;
  }

  CostModel model_;
  Lanes lanes_;
  std::vector<LaneState> lane_states_;
  std::vector<RankState> ranks_;
  std::vector<std::size_t> touched_;  // lanes that may be able to move
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t event_count_ = 0;
  int64_t bytes_sent_ = 0;
  double now_s_ = 0;
};

}  // namespace

SimulatedRun simulate(const std::vector<Schedule>& schedules, int64_t bytes, const CostModel& model, bool in_place) {
  return Simulation(schedules, bytes, model, in_place).run();
}

}  // namespace fdl
