// This file has the life of a simulated rank: its program, and what its thread does in each turn.
#include "tests/simulation/rank.h"

#include <algorithm>

#include "tests/simulation/job.h"

namespace fdl::simulation {

namespace {

constexpr int64_t kFarewell = 2 * kSecond;  // for other ranks that still work, as in runtime.cpp

}  // namespace

Rank::Rank(Network& network, Process& process, Job& job, int number, AfterFailure after)
    : Actor(network, process),
      job_(job),
      number_(number),
      after_failure_(after),
      driven_(*group_settings(0).config, hooks_of_groups()) {}

void Rank::begin(World& world, int rank) {
  program_ = run(&world, rank);
  wake();
}

// ---- The program ----

Task<> Rank::run(World* world, int rank) {
  world_ = world;
  rank_ = rank;
  auto delay = sleep(simulation().between(0, simulation().percent(10) ? 3 * kSecond : 20 * kMs));
  co_await delay;
  auto taking_part = take_part();
  co_await taking_part;
}

Task<> Rank::take_part() {
  auto starting = start();
  Status status = co_await starting;
  if (!status.ok()) {
    note_start_failure(status);
    auto ending = shut_down(kSecond);
    co_await ending;
    co_return;
  }
  while (true) {
    auto working = work();
    status = co_await working;
    if (status.ok()) {
      has_finished_ = true;
      finished_at_ = simulation().now();
      auto ending = shut_down(seconds_to_ns(kLimits.lost_after_s));
      co_await ending;
      simulation().tell("{} has finished", name());
      co_return;
    }
    if (after_failure_ == AfterFailure::recover) {
      auto recovering = recover();
      status = co_await recovering;
      if (status.ok()) continue;
      recovery_failure_ = status;
      simulation().tell("{} does not recover: {}", name(), status.text());
    }
    if (after_failure_ == AfterFailure::shut_down) {
      auto ending = shut_down(seconds_to_ns(kLimits.lost_after_s));
      co_await ending;
    }
    auto delay = sleep(simulation().percent(50) ? 0 : simulation().between(0, 300 * kMs));
    co_await delay;
    simulation().tell("{} exits", name());
    co_return;
  }
}

// The same on all ranks of the world.
std::vector<Step> Rank::plan() const {
  if (world_->has_groups) return named_plan();
  std::mt19937_64 dice(world_->plan);
  const auto roll = [&](uint64_t sides) { return dice() % sides; };
  const auto size = world_->members.size();
  std::vector<Step> steps;
  std::size_t comms = 1;
  for (uint64_t count = 10 + roll(40); count > 0; --count) {
    Step step{.comm = roll(comms)};
    const uint64_t what = roll(100);
    if (what < 40) {
      step.kind = Step::Kind::compute;
      step.longest = static_cast<int64_t>(roll(20) == 0 ? 3000 : 60) * kMs;
    } else if (what < 75) {
      step.kind = Step::Kind::allreduce;
    } else if (what < 90) {
      step.kind = Step::Kind::broadcast;
      step.root = static_cast<int>(roll(1000));
    } else {
      step.kind = Step::Kind::make_comm;
      for (std::size_t rank = 0; rank < size; ++rank) {
        if (roll(3) > 0) step.ranks.push_back(static_cast<int>(rank));
      }
      if (step.ranks.size() < 2) continue;
      ++comms;
    }
    steps.push_back(step);
  }
  // No rank ends long before the others: with rank 0 the coordinator would end, and no communicator can be made then.
  steps.push_back({.kind = Step::Kind::allreduce});
  return steps;
}

Task<Status> Rank::work() {
  std::size_t made = 0;
  for (const Step& step : plan()) {
    if (step.kind == Step::Kind::compute) {
      auto computing = sleep(simulation().between(0, step.longest));
      co_await computing;
      continue;
    }
    std::string id = "comm " + std::to_string(step.comm);
    int64_t began = simulation().now();
    Status status;
    if (step.kind == Step::Kind::make_comm || step.kind == Step::Kind::make_group) {
      const bool is_group = step.kind == Step::Kind::make_group;
      id = (is_group ? "group " : "comm ") + std::to_string(++made);
      if (!std::ranges::binary_search(step.ranks, rank_)) continue;
      if (const int64_t late = job_.lateness_of(*this, ++set_ups_); late > 0) {
        auto coming = sleep(late);
        co_await coming;
        began = simulation().now();
      }
      auto making = make_comm(id, step.ranks, is_group);
      status = co_await making;
    } else if (step.kind == Step::Kind::named) {
      auto running = run_named(step.seed);
      status = co_await running;
      if (!status.ok()) co_return status;  // run_named() has noted it
    } else {
      Comm* comm = comm_of(id);
      if (comm == nullptr || !comm->is_made) continue;
      auto calling = collective(*comm, step);
      status = co_await calling;
    }
    if (!status.ok()) {
      note_failure(status, world_->name + " / " + id, began);
      // A program may go on without a communicator to which some rank did not come.
      if (status.code() == Code::timeout && step.kind == Step::Kind::make_comm) continue;
      co_return status;
    }
    // The first operation of all ranks stands for the broadcast of the state.
    const bool is_of_all = step.comm == 0 && step.kind != Step::Kind::make_comm && step.kind != Step::Kind::make_group;
    holds_state_ = holds_state_ || is_of_all;
  }
  co_return Status();
}

// As Runtime::shut_down().
Task<> Rank::shut_down(int64_t patience) {
  auto ending = end_groups(Status(Code::shut_down, name() + " has shut farandole down"), kFarewell);
  co_await ending;
  if (link_) {
    link_->protocol().leave();
    link_->carry_out();
    simulation().tell("{} leaves", name());
    auto until_settled = wait([this] { return link_->protocol().is_leave_settled(); }, clock() + patience);
    const bool is_settled = co_await until_settled;
    if (!is_settled) {
      simulation().tell("{}: the coordinator has not confirmed its end", name());
      has_unconfirmed_end_ = true;
    }
  }
  say_goodbye();
  CoordinatorActor* coordinator = world_->coordinator;
  if (coordinator == nullptr || &coordinator->process() != &process()) co_return;
  auto until_empty =
      wait([coordinator] { return coordinator->is_empty() || !coordinator->is_serving(); }, clock() + kFarewell);
  co_await until_empty;
  coordinator->stop(patience);
  auto until_ended = wait([coordinator] { return !coordinator->is_serving(); }, kNever);
  co_await until_ended;
}

void Rank::note_failure(const Status& failure, const std::string& where, int64_t began) {
  simulation().tell("{}: {} has failed: {}", name(), where, failure.text());
  job_.check_blame(*this, *world_, where, failure);
  outcomes_.emplace(where, Outcome{failure, began, simulation().now()});
}

void Rank::note_start_failure(const Status& failure) {
  simulation().tell("{}: the start of {} has failed: {}", name(), world_->name, failure.text());
  job_.check_blame(*this, *world_, world_->name, failure);
  start_failures_.emplace(world_->name, failure);
}

bool Rank::has_ended_calls() const {
  return has_finished_ || !outcomes_.empty() || !start_failures_.empty() ||
         std::ranges::any_of(comms_, [](const auto& comm) { return !comm->failure.ok(); });
}

bool Rank::has_just_begun(const std::string& where) const {
  constexpr int64_t kShort = 10 * kSecond;
  return std::ranges::any_of(
      comms_, [&](const auto& comm) { return key(*comm) == where && comm->begun_ns + kShort > simulation().now(); });
}

std::string Rank::name() const { return process().name; }

// ---- The thread ----

void Rank::turn() {
  driven_.finish_sleep();
  if (!has_begun_) {
    has_begun_ = true;
    program_.start();
  }
  if (link_) {
    link_->progress(clock(), simulation());
    handle_events();
  }
  place_incoming();
  drive_comms();
  if (recovery_) drive_recovery();
  watch();
  while (awaiter_ != nullptr && awaiter_->is_over()) {
    driven_.finish_sleep();
    awaiter_ = nullptr;
    std::exchange(waiting_, nullptr).resume();
    wake();  // what the program has begun is driven in the next turn
  }
  if (program_.is_done()) return network().end(process());
  if (link_) link_->carry_out();
  wake_at(moment_of(std::min({next_watch(), driven_.next_alarm().moment_ns(), awaiter_->until()})));
}

void Rank::died() {
  driven_.finish_sleep();
  awaiter_ = nullptr;
  waiting_ = nullptr;
  program_ = {};
  link_.reset();
  comms_.clear();
  incoming_.clear();
  recovery_.reset();
  recovery_ends_.clear();
}

// As Runtime::on_event(). A connection without a welcome has no world yet, and its end is for connect() alone.
void Rank::handle_events() {
  if (!link_->protocol().is_welcome()) return;
  for (const CoordinatorEvent& event : link_->protocol().take_events()) {
    switch (event.kind) {
      case CoordinatorEvent::Kind::lost:
        simulation().tell("{} reads: {}", name(), event.why.text());
        for (const auto& comm : comms_) {
          if (std::ranges::binary_search(comm->members, event.rank)) interrupt(*comm, event.why);
        }
        break;
      case CoordinatorEvent::Kind::comm_failed:
        for (const auto& comm : comms_) {
          if (comm->id == event.comm) interrupt(*comm, event.why);
        }
        break;
      case CoordinatorEvent::Kind::coordinator_lost:
        simulation().tell("{} finds: {}", name(), event.why.text());
        if (event.why.code() != Code::shut_down) {
          for (const auto& comm : comms_) interrupt(*comm, event.why);
        } else {
          for (SimulatedGroup* group : groups()) group->named().end_decisions();
        }
        decisions_->close();
        break;
      case CoordinatorEvent::Kind::left:
        for (SimulatedGroup* group : groups()) {
          const auto& members = group->record().members;
          const auto found = std::ranges::find(members, event.rank);
          if (found != members.end()) group->named().depart(static_cast<int>(found - members.begin()), event.why);
        }
        break;
      case CoordinatorEvent::Kind::stalled:
        simulation().count("stalls that a rank reads");
        stalls_.emplace_back(event.why.text());
        for (SimulatedGroup* group : groups()) {
          if (group->id() == event.comm) group->named().note_stall(event.names, event.why.text(), 0);
        }
        break;
      case CoordinatorEvent::Kind::silent:
        simulation().count("warnings of silence");
        break;
      default:
        break;
    }
  }
}

// A collective that waits probes the others, as Runtime::on_suspect() does, and the protocol probes for set-ups.
void Rank::watch() {
  if (!link_) return;
  const int64_t now = clock();
  for (const auto& comm : comms_) {
    if (!comm->waits || now - comm->watched < kSuspectAfter) continue;
    comm->watched = now;
    std::vector<int> others = comm->members;
    std::erase(others, rank_);
    std::vector<int> probed = ranks_to_probe(others, rank_);
    probed.insert(probed.end(), comm->awaited.begin(), comm->awaited.end());
    link_->protocol().probe(probed, now);
  }
  if (now >= next_watch_ns_) next_watch_ns_ = link_->protocol().probe_watched(now);
}

int64_t Rank::next_watch() const {
  int64_t next = link_ ? next_watch_ns_ : kNever;
  for (const auto& comm : comms_) {
    if (comm->waits) next = std::min(next, comm->watched + kSuspectAfter);
  }
  return next;
}

}  // namespace fdl::simulation
