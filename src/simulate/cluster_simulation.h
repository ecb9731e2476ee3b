// ClusterSimulation runs the programs of all ranks over a cluster, event by event.
//
// Each rank has one core, which does one piece of work at a time: the overheads of messages at their sender and
// receiver first, then one slice of a reduction or copy, as a pass of the executor does. A slice of a send is handed to
// its lane when the steps that it follows have finished that slice, as in the executor; it then moves over its links,
// which all messages on them share equally (fair_links.h), and arrives a latency later. A lane moves its slices one at
// a time and in order. Messages that arrive before their receive is possible wait there, at most kLaneWindow slices of
// a lane.
//
// No tie is broken by the number of a rank. Events of one moment are handled together, rank by rank and, for one rank,
// in the order of its lanes; whatever they cause on other ranks takes effect in the next round of the same moment. So a
// renumbering of ranks that maps programs to programs and links to links changes nothing but the numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "simulate/cluster.h"
#include "simulate/fair_links.h"
#include "simulate/rank_program.h"
#include "simulate/symmetry.h"

namespace fdl {

// The programs of the simulated ranks, of which those that are equal are stored once.
struct GroupProgram {
  struct Rank {
    int32_t program = 0;
    std::vector<int32_t> peers;  // by lane of the program: ranks of the group
  };
  std::vector<RankProgram> programs;
  std::vector<Rank> ranks;  // the first symmetry.unit ranks of the group
  Symmetry symmetry;
};

struct ClusterRun {
  double seconds = 0;       // until the last rank is done
  double first_rank_s = 0;  // until the first rank is done
  int64_t events = 0;
  int64_t slices = 0;          // sent by the simulated ranks
  int64_t bytes_sent = 0;      // by the simulated ranks
  int64_t bytes_received = 0;  // by the simulated ranks
};

class ClusterSimulation {
 public:
  // Both arguments must outlive the simulation. The lanes of the programs must match, as verify() checks.
  ClusterSimulation(const Cluster& cluster, const GroupProgram& group);

  // Fails if a rank never finishes: a schedule that deadlocks.
  Result<ClusterRun> run();

 private:
  static constexpr uint32_t kOutstanding = 16;  // slices of a lane that a rank hands over before the first has left
  static constexpr uint32_t kLaneWindow = 16;   // slices of a lane that move or wait at the receiver

  enum class Work : uint8_t { begin, send, accept, reduce, local };
  struct Task {
    Work work;
    int32_t index;  // a lane of this simulation, or a step
    double seconds;
  };
  // Tasks in the order in which they became possible.
  struct TaskQueue {
    std::vector<Task> tasks;
    std::size_t next = 0;
    bool empty() const { return next == tasks.size(); }
    Task pop();
  };
  enum class What : uint8_t { work_done, left, arrived, may_move };
  struct Event {
    double at_s;
    int32_t rank;
    What what;
    int32_t order;  // among the events of one rank at one moment: its lane's number in the rank's program
    int32_t lane;
    bool operator>(const Event& other) const { return at_s > other.at_s; }
  };

  struct Cursor {
    uint32_t step = 0;  // position in the lane's steps
    uint32_t slice = 0;
  };
  struct StepState {
    uint32_t finished = 0;  // slices, which finish in order
    uint32_t arrived = 0;   // recv_reduce: accepted
    uint32_t queued = 0;    // handed to the core
    uint32_t waits = 0;     // the first dependency that may be unfinished
  };
  struct RankState {
    const RankProgram* program = nullptr;
    std::size_t first_step = 0;    // in steps_
    std::vector<int32_t> lane_of;  // by lane of the program: the lane of this simulation
    TaskQueue messages;            // overheads, before any other work
    TaskQueue work;
    Task running{};
    bool is_working = false;
    bool is_dispatching = false;
    bool has_begun = false;
    double next_injection_s = 0;
    uint64_t random = 0;
    std::size_t steps_left = 0;
    double done_s = 0;
  };
  struct LaneState {
    int32_t from = 0, to = 0;           // simulated ranks
    int32_t out_lane = 0, in_lane = 0;  // in the programs of the two
    const ClusterLink* link = nullptr;
    double latency_s = 0;  // of the link, and of the levels of switches that its messages cross
    Cursor posted, moved, accepting, accepted;
    uint32_t outstanding = 0;  // posted and not yet left
    uint32_t queued = 0;       // of these, with their overhead done
    uint32_t waiting = 0;      // moving, on the way, or arrived and not accepted
    uint32_t arrived = 0;      // and not accepted
    bool is_moving = false;
    bool waits_to_move = false;
    double event_s = 0;  // the earliest pending event that ends the movement
    double last_arrival_s = 0;
  };

  RankState& rank_at(int32_t rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  LaneState& lane_at(int32_t lane) { return lanes_[static_cast<std::size_t>(lane)]; }
  StepState& state_of(const RankState& rank, int32_t step) {
    return steps_[rank.first_step + static_cast<std::size_t>(step)];
  }
  static const RankProgram::Step& step_of(const RankState& rank, int32_t step) {
    return rank.program->steps[static_cast<std::size_t>(step)];
  }
  static const std::vector<int32_t>& steps_of(const RankState& rank, int32_t lane) {
    return rank.program->lanes[static_cast<std::size_t>(lane)].steps;
  }

  void add_lanes();
  void choose_stragglers();
  void begin(int32_t rank);
  void handle(const Event& event);
  bool is_ready(RankState& rank, int32_t step, uint32_t slice);
  void advance(Cursor& cursor, const RankState& rank, int32_t lane);

  void post(int32_t lane);
  void move(int32_t lane);
  void leave(int32_t lane);
  void accept(int32_t lane);
  void reduce(int32_t rank, int32_t step);
  void work(int32_t rank, int32_t step);
  void follow(int32_t rank, int32_t step);
  void finish_slice(int32_t rank, int32_t step);

  void add_task(int32_t rank, Task task);
  void dispatch(int32_t rank);
  void complete(int32_t rank, const Task& task);
  double reduce_seconds(const RankState& rank, int32_t step, uint32_t slice) const;
  double with_noise(RankState& rank, double seconds);
  void push(double at_s, int32_t rank, What what, int32_t order, int32_t lane);
  void settle_links();

  const Cluster& cluster_;
  const GroupProgram& group_;
  std::vector<RankState> ranks_;
  std::vector<LaneState> lanes_;
  std::vector<StepState> steps_;
  std::vector<FairLinks> links_;  // one; made once the lanes are known
  std::vector<Event> events_;     // a heap
  std::vector<Event> now_;        // those of this moment
  double now_s_ = 0;
  ClusterRun run_;
};

}  // namespace fdl
