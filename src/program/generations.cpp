// Generations: each event changes the workers or the number of those wanted; what follows is read off them.
#include "program/generations.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace fdl {

Generations::Generations(const Limits& limits) : limits_(limits), target_(limits.ranks) {}

int Generations::start() {
  workers_.emplace(started_, Worker());
  return started_++;
}

void Generations::asked(int worker) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  found->second.asking = true;
  // A member that asks wants another generation. Better to say now that there is none than when the others have asked.
  if (is_in_order() && found->second.joined > 0 && generation_ - 1 == limits_.resets) {
    give_up(Reason::too_many_resets, fmt::format("the limit of {} resets is reached", limits_.resets));
  }
}

bool Generations::ended(int worker, bool well) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return false;
  const Worker was = found->second;
  workers_.erase(found);
  if (was.dismissed) return false;
  if (well) finished_ = true;
  if (well || give_up_) return !well;
  if (finished_) {
    give_up(Reason::failed_at_end, "it failed when others had finished already, so that nobody can take its place");
  } else {
    decide_after_loss(was.joined > 0);
  }
  return true;
}

// A member's place is taken by a new worker while that is allowed. Who failed before it ever belonged to a generation
// would fail again, so its place is given up.
void Generations::decide_after_loss(bool was_member) {
  const bool may_replace = limits_.replacements == kNoLimit || replacements_ < limits_.replacements;
  if (was_member && may_replace) {
    ++replacements_;
  } else {
    --target_;
  }
  const bool state_is_left = std::any_of(
      workers_.begin(), workers_.end(), [](const auto& one) { return one.second.joined > 0 && !one.second.dismissed; });
  if (generation_ == 0 && workers_.empty()) {
    give_up(Reason::all_failed, "no rank came as far as init()");
  } else if (generation_ > 0 && !state_is_left) {
    give_up(Reason::no_state, "no rank is left that holds the state");
  } else if (target_ < limits_.fewest) {
    give_up(Reason::too_few,
            fmt::format("{} {} left, and the job needs at least {}{}", target_, target_ == 1 ? "rank is" : "ranks are",
                        limits_.fewest, was_member && !may_replace ? "; no more may be replaced" : ""));
  } else if (was_member && generation_ - 1 == limits_.resets) {
    give_up(Reason::too_many_resets, fmt::format("the limit of {} resets is reached", limits_.resets));
  }
}

void Generations::want(int ranks) { target_ = std::clamp(ranks, limits_.fewest, limits_.most); }

void Generations::give_up(Reason reason, std::string text) { give_up_ = GiveUp{reason, std::move(text)}; }

int Generations::running() const {
  return static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(), [](const auto& one) { return !one.second.dismissed; }));
}

int Generations::to_start() const { return is_in_order() ? std::max(0, target_ - running()) : 0; }

std::vector<int> Generations::by_seniority() const {
  std::vector<int> order;
  for (const auto& [worker, facts] : workers_) {
    if (!facts.dismissed) order.push_back(worker);
  }
  // New ones last; among those who came together, as they were ranked.
  const auto key = [&](int worker) {
    const Worker& facts = workers_.at(worker);
    const bool is_new = facts.joined == 0;
    return std::tuple(is_new, facts.joined, facts.rank, worker);
  };
  std::sort(order.begin(), order.end(), [&](int a, int b) { return key(a) < key(b); });
  return order;
}

std::optional<Generations::World> Generations::begin() {
  if (!is_in_order() || to_start() > 0 || running() == 0) return std::nullopt;
  const bool all_ask = std::all_of(workers_.begin(), workers_.end(),
                                   [](const auto& one) { return one.second.asking || one.second.dismissed; });
  if (!all_ask) return std::nullopt;
  World world;
  world.generation = ++generation_;
  for (const int worker : by_seniority()) {
    Worker& facts = workers_.at(worker);
    facts.asking = false;
    if (static_cast<int>(world.workers.size()) == target_) {
      facts.dismissed = true;
      world.dismissed.push_back(worker);
      continue;
    }
    facts.rank = static_cast<int>(world.workers.size());
    if (facts.joined == 0) facts.joined = generation_;
    world.workers.push_back(worker);
  }
  return world;
}

bool Generations::somebody_waits() const {
  if (!is_in_order() || generation_ == 0 || to_start() > 0) return false;
  int waiting = 0;
  for (const auto& [worker, facts] : workers_) {
    if (facts.joined > 0) continue;
    if (!facts.asking) return false;
    ++waiting;
  }
  return waiting > 0;
}

bool Generations::somebody_must_go() const { return is_in_order() && generation_ > 0 && running() > target_; }

bool Generations::is_member(int worker) const { return rank_of(worker).has_value(); }

bool Generations::has_asked(int worker) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.asking;
}

std::optional<int> Generations::rank_of(int worker) const {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.rank < 0) return std::nullopt;
  return found->second.rank;
}

std::optional<int> Generations::worker_at(int rank) const {
  for (const auto& [worker, facts] : workers_) {
    if (facts.rank == rank && !facts.dismissed) return worker;
  }
  return std::nullopt;
}

std::vector<int> Generations::members() const {
  std::vector<int> all;
  for (const auto& [worker, facts] : workers_) {
    if (facts.joined > 0 && !facts.dismissed) all.push_back(worker);
  }
  return all;
}

}  // namespace fdl
