// ClusterSimulation keeps its events in a heap by time, and handles all events of one moment in an order that depends
// on ranks' own lanes only.
#include "simulate/cluster_simulation.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <tuple>

#include "base/check.h"

namespace fdl {
namespace {

// splitmix64: one step of a random sequence, and its value.
uint64_t next_random(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// A number above 0 and at most 1.
double next_fraction(uint64_t& state) { return (static_cast<double>(next_random(state) >> 11) + 1) * 0x1p-53; }

}  // namespace

ClusterSimulation::ClusterSimulation(const Cluster& cluster, const GroupProgram& group)
    : cluster_(cluster), group_(group), ranks_(group.ranks.size()) {
  std::size_t steps = 0;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    RankState& rank = ranks_[i];
    rank.program = &group.programs[static_cast<std::size_t>(group.ranks[i].program)];
    rank.first_step = steps;
    rank.random = cluster.seed * 0x2545f4914f6cdd1dull + i;
    rank.steps_left = static_cast<std::size_t>(
        std::ranges::count_if(rank.program->steps, [](const RankProgram::Step& step) { return step.slices > 0; }));
    steps += rank.program->steps.size();
  }
  steps_.resize(steps);
  for (RankState& rank : ranks_) {
    for (std::size_t i = 0; i < rank.program->steps.size(); ++i) {
      steps_[rank.first_step + i].waits = rank.program->dependency_ends[i];
    }
  }
  add_lanes();
  choose_stragglers();
}

// Lanes are numbered by their senders. The receiving lane is found by the number that the sender has where the receiver
// is one of the simulated ranks.
void ClusterSimulation::add_lanes() {
  const ClusterLinks links(cluster_);
  LinkPaths paths;
  std::map<std::pair<int32_t, int32_t>, int32_t> incoming;  // by simulated receiver and the sender that it sees
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const auto& lanes = ranks_[i].program->lanes;
    ranks_[i].lane_of.assign(lanes.size(), -1);
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      if (!lanes[lane].outgoing)
        incoming[{static_cast<int32_t>(i), group_.ranks[i].peers[lane]}] = static_cast<int32_t>(lane);
    }
  }
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const auto from = static_cast<int32_t>(i);
    for (std::size_t out = 0; out < ranks_[i].lane_of.size(); ++out) {
      if (!ranks_[i].program->lanes[out].outgoing) continue;
      const int32_t peer = group_.ranks[i].peers[out];
      const int32_t to = group_.symmetry.stand_for(peer);
      const auto in = incoming.find({to, group_.symmetry.seen_from(peer, from)});
      FDL_CHECK(in != incoming.end());
      const auto number = static_cast<int32_t>(lanes_.size());
      ranks_[i].lane_of[out] = number;
      rank_at(to).lane_of[static_cast<std::size_t>(in->second)] = number;
      lanes_.push_back({.from = from,
                        .to = to,
                        .out_lane = static_cast<int32_t>(out),
                        .in_lane = in->second,
                        .link = &cluster_.link(from, peer),
                        .latency_s = cluster_.latency_s(from, peer)});
      paths.add(links.path(from, peer, from, to));
    }
  }
  links_.emplace_back(links, std::move(paths));
}

// Late ranks are chosen by a shuffle, so that more stragglers include those of a smaller number.
void ClusterSimulation::choose_stragglers() {
  uint64_t random = cluster_.seed ^ 0x9d39247e33776d41ull;
  std::vector<int32_t> order(ranks_.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::swap(order[i], order[i + next_random(random) % (order.size() - i)]);
    const bool is_late = static_cast<int>(i) < cluster_.stragglers;
    add_task(order[i], {Work::begin, -1, is_late ? cluster_.straggler_delay_s : 0});
  }
}

Result<ClusterRun> ClusterSimulation::run() {
  settle_links();
  while (!events_.empty()) {
    now_s_ = events_.front().at_s;
    now_.clear();
    while (!events_.empty() && events_.front().at_s == now_s_) {
      now_.push_back(events_.front());
      std::pop_heap(events_.begin(), events_.end(), std::greater<>());
      events_.pop_back();
    }
    std::sort(now_.begin(), now_.end(), [](const Event& a, const Event& b) {
      return std::tie(a.rank, a.what, a.order) < std::tie(b.rank, b.what, b.order);
    });
    run_.events += static_cast<int64_t>(now_.size());
    for (const Event& event : now_) handle(event);
    settle_links();
  }
  run_.first_rank_s = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].steps_left > 0)
      return Status(Code::internal, "rank " + std::to_string(i) + " never finishes: a deadlock of the schedule");
    run_.seconds = std::max(run_.seconds, ranks_[i].done_s);
    run_.first_rank_s = std::min(run_.first_rank_s, ranks_[i].done_s);
  }
  return run_;
}

void ClusterSimulation::handle(const Event& event) {
  switch (event.what) {
    case What::work_done: {
      RankState& rank = rank_at(event.rank);
      rank.is_working = false;
      const Task task = rank.running;
      complete(event.rank, task);
      return dispatch(event.rank);
    }
    case What::left: {
      LaneState& lane = lane_at(event.lane);
      // The message may have become slower since the event was queued, or faster: then it has ended already.
      if (!lane.is_moving || lane.event_s != event.at_s) return;
      const double finish_s = links_[0].finish_s(event.lane);
      if (finish_s <= event.at_s) return leave(event.lane);
      lane.event_s = finish_s;
      return push(finish_s, event.rank, What::left, event.order, event.lane);
    }
    case What::arrived:
      ++lane_at(event.lane).arrived;
      return accept(event.lane);
    case What::may_move:
      lane_at(event.lane).waits_to_move = false;
      return move(event.lane);
  }
}

void ClusterSimulation::begin(int32_t index) {
  RankState& rank = rank_at(index);
  rank.has_begun = true;
  for (std::size_t step = 0; step < rank.program->steps.size(); ++step) work(index, static_cast<int32_t>(step));
  for (std::size_t lane = 0; lane < rank.lane_of.size(); ++lane) {
    rank.program->lanes[lane].outgoing ? post(rank.lane_of[lane]) : accept(rank.lane_of[lane]);
  }
}

// As Executor::ready().
bool ClusterSimulation::is_ready(RankState& rank, int32_t step, uint32_t slice) {
  const RankProgram& program = *rank.program;
  StepState& state = state_of(rank, step);
  const uint32_t end = program.dependency_ends[static_cast<std::size_t>(step) + 1];
  for (uint32_t i = state.waits; i < end; ++i) {
    const Dependency& edge = program.dependencies[i];
    const uint32_t finished = state_of(rank, edge.step).finished;
    if (finished == step_of(rank, edge.step).slices) {
      if (i == state.waits) ++state.waits;
    } else if (edge.whole || finished <= slice) {
      return false;
    }
  }
  return true;
}

void ClusterSimulation::advance(Cursor& cursor, const RankState& rank, int32_t lane) {
  const auto& steps = steps_of(rank, lane);
  if (++cursor.slice < step_of(rank, steps[cursor.step]).slices) return;
  ++cursor.step;
  cursor.slice = 0;
}

// ---- One message: posted, moved, accepted, reduced ----

void ClusterSimulation::post(int32_t index) {
  LaneState& lane = lane_at(index);
  RankState& rank = rank_at(lane.from);
  if (!rank.has_begun) return;
  const auto& steps = steps_of(rank, lane.out_lane);
  while (lane.posted.step < steps.size() && lane.outstanding < kOutstanding &&
         is_ready(rank, steps[lane.posted.step], lane.posted.slice)) {
    ++lane.outstanding;
    advance(lane.posted, rank, lane.out_lane);
    add_task(lane.from, {Work::send, index, lane.link->overhead_s});
  }
}

void ClusterSimulation::move(int32_t index) {
  LaneState& lane = lane_at(index);
  if (lane.is_moving || lane.queued == 0 || lane.waiting >= kLaneWindow || lane.waits_to_move) return;
  RankState& rank = rank_at(lane.from);
  if (rank.next_injection_s > now_s_) {
    lane.waits_to_move = true;
    return push(rank.next_injection_s, lane.from, What::may_move, lane.out_lane, index);
  }
  rank.next_injection_s = now_s_ + lane.link->gap_s;
  --lane.queued;
  ++lane.waiting;
  lane.is_moving = true;
  lane.event_s = std::numeric_limits<double>::infinity();
  const int32_t step = steps_of(rank, lane.out_lane)[lane.moved.step];
  const int64_t bytes = rank.program->bytes_of(step_of(rank, step), lane.moved.slice);
  run_.bytes_sent += bytes;
  ++run_.slices;
  links_[0].start(index, static_cast<double>(bytes), now_s_);
}

// The last byte of a slice has left the sender.
void ClusterSimulation::leave(int32_t index) {
  LaneState& lane = lane_at(index);
  RankState& rank = rank_at(lane.from);
  links_[0].finish(index);
  lane.is_moving = false;
  --lane.outstanding;
  const int32_t step = steps_of(rank, lane.out_lane)[lane.moved.step];
  advance(lane.moved, rank, lane.out_lane);
  // Messages of a lane do not overtake each other.
  lane.last_arrival_s = std::max(lane.last_arrival_s, now_s_ + with_noise(rank, lane.latency_s));
  push(lane.last_arrival_s, lane.to, What::arrived, lane.in_lane, index);
  finish_slice(lane.from, step);
  post(index);
  move(index);
}

// A recv needs a free target; a recv_reduce is staged at once.
void ClusterSimulation::accept(int32_t index) {
  LaneState& lane = lane_at(index);
  RankState& rank = rank_at(lane.to);
  if (!rank.has_begun) return;
  while (lane.arrived > 0) {
    const int32_t step = steps_of(rank, lane.in_lane)[lane.accepting.step];
    const bool reduces = step_of(rank, step).kind == StepKind::recv_reduce;
    const uint32_t slice = lane.accepting.slice;
    if (!reduces && !is_ready(rank, step, slice)) return;
    advance(lane.accepting, rank, lane.in_lane);
    --lane.arrived;
    // The sender's next slice waits for this place. It begins in the next round, as all effects on other ranks.
    if (lane.waiting-- == kLaneWindow && !lane.waits_to_move) {
      lane.waits_to_move = true;
      push(now_s_, lane.from, What::may_move, lane.out_lane, index);
    }
    run_.bytes_received += rank.program->bytes_of(step_of(rank, step), slice);
    add_task(lane.to, {Work::accept, index, lane.link->overhead_s});
  }
}

void ClusterSimulation::reduce(int32_t index, int32_t step) {
  RankState& rank = rank_at(index);
  StepState& state = state_of(rank, step);
  while (state.queued < state.arrived && is_ready(rank, step, state.queued)) {
    add_task(index, {Work::reduce, step, reduce_seconds(rank, step, state.queued++)});
  }
}

// Begins copies and reductions whose data the rank has.
void ClusterSimulation::work(int32_t index, int32_t step) {
  RankState& rank = rank_at(index);
  const RankProgram::Step& what = step_of(rank, step);
  if (what.kind != StepKind::copy && what.kind != StepKind::reduce) return;
  StepState& state = state_of(rank, step);
  while (state.queued < what.slices && is_ready(rank, step, state.queued)) {
    const auto bytes = static_cast<double>(rank.program->bytes_of(what, state.queued++));
    const double seconds = what.kind == StepKind::copy ? bytes / cluster_.copy_bytes_per_s
                                                       : bytes * (what.sources - 1) / cluster_.reduce_bytes_per_s;
    add_task(index, {Work::local, step, seconds});
  }
}

void ClusterSimulation::finish_slice(int32_t index, int32_t step) {
  RankState& rank = rank_at(index);
  if (++state_of(rank, step).finished == step_of(rank, step).slices) {
    --rank.steps_left;
    rank.done_s = now_s_;
  }
  const RankProgram& program = *rank.program;
  for (uint32_t i = program.follower_ends[static_cast<std::size_t>(step)];
       i < program.follower_ends[static_cast<std::size_t>(step) + 1]; ++i) {
    follow(index, program.followers[i]);
  }
}

// Starts what a step can do now.
void ClusterSimulation::follow(int32_t index, int32_t step) {
  RankState& rank = rank_at(index);
  const RankProgram::Step& what = step_of(rank, step);
  if (what.slices == 0) return;
  switch (what.kind) {
    case StepKind::send:
      return post(rank.lane_of[static_cast<std::size_t>(what.lane)]);
    case StepKind::recv:
      return accept(rank.lane_of[static_cast<std::size_t>(what.lane)]);
    case StepKind::recv_reduce:
      return reduce(index, step);
    default:
      return work(index, step);
  }
}

// ---- The core of a rank ----

double ClusterSimulation::reduce_seconds(const RankState& rank, int32_t step, uint32_t slice) const {
  return static_cast<double>(rank.program->bytes_of(step_of(rank, step), slice)) / cluster_.reduce_bytes_per_s;
}

double ClusterSimulation::with_noise(RankState& rank, double seconds) {
  if (cluster_.noise == 0 || seconds == 0) return seconds;
  return seconds * (1 - cluster_.noise * std::log(next_fraction(rank.random)));
}

// Finished tasks are removed when they are most of the queue.
ClusterSimulation::Task ClusterSimulation::TaskQueue::pop() {
  const Task task = tasks[next++];
  if (next * 2 >= tasks.size()) {
    tasks.erase(tasks.begin(), tasks.begin() + static_cast<std::ptrdiff_t>(next));
    next = 0;
  }
  return task;
}

void ClusterSimulation::add_task(int32_t index, Task task) {
  RankState& rank = rank_at(index);
  if (task.work != Work::begin) task.seconds = with_noise(rank, task.seconds);
  const bool is_message = task.work == Work::send || task.work == Work::accept;
  (is_message ? rank.messages : rank.work).tasks.push_back(task);
  dispatch(index);
}

// Begins the next piece of work. Pieces that take no time end at once, in a loop instead of a recursion.
void ClusterSimulation::dispatch(int32_t index) {
  RankState& rank = rank_at(index);
  if (rank.is_working || rank.is_dispatching) return;
  rank.is_dispatching = true;
  while (!rank.is_working && !(rank.messages.empty() && rank.work.empty())) {
    const Task task = (rank.messages.empty() ? rank.work : rank.messages).pop();
    if (task.seconds > 0) {
      rank.is_working = true;
      rank.running = task;
      push(now_s_ + task.seconds, index, What::work_done, 0, -1);
    } else {
      complete(index, task);
    }
  }
  rank.is_dispatching = false;
}

void ClusterSimulation::complete(int32_t index, const Task& task) {
  if (task.work == Work::begin) return begin(index);
  if (task.work == Work::send) {
    ++lane_at(task.index).queued;
    return move(task.index);
  }
  if (task.work == Work::reduce || task.work == Work::local) return finish_slice(index, task.index);
  LaneState& lane = lane_at(task.index);
  const RankState& rank = rank_at(index);
  const int32_t step = steps_of(rank, lane.in_lane)[lane.accepted.step];
  advance(lane.accepted, rank, lane.in_lane);
  if (step_of(rank, step).kind == StepKind::recv) return finish_slice(index, step);
  ++state_of(rank, step).arrived;
  reduce(index, step);
}

// ---- Events ----

void ClusterSimulation::push(double at_s, int32_t rank, What what, int32_t order, int32_t lane) {
  events_.push_back({at_s, rank, what, order, lane});
  std::push_heap(events_.begin(), events_.end(), std::greater<>());
}

void ClusterSimulation::settle_links() {
  for (const int32_t index : links_[0].settle(now_s_)) {
    LaneState& lane = lane_at(index);
    const double finish_s = links_[0].finish_s(index);
    if (finish_s >= lane.event_s) continue;  // the pending event comes first
    lane.event_s = finish_s;
    push(finish_s, lane.from, What::left, lane.out_lane, index);
  }
}

}  // namespace fdl
