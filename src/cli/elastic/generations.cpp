// Each event changes the workers or the target number of them; the decisions are computed from that state.
#include "cli/elastic/generations.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace fdl {

Generations::Generations(const Limits& limits) : limits_(limits) { places_[limits.place].slots = limits.ranks; }

// ---- Taking over ----

void Generations::continue_from(const Counts& counts, int first_worker) {
  generation_ = counts.generation;
  completions_ = counts.completions;
  replacements_ = counts.replacements;
  restarts_ = counts.restarts;
  state_since_ = counts.state_since;
  finished_ = finished_ || counts.has_finished;
  state_is_held_ = generation_ > 0;
  awaits_places_ = generation_ > 0;
  // The former launcher was lost, so the next generation is a reset.
  lost_since_ = generation_ > 0;
  started_ = first_worker;
}

void Generations::adopt(int worker, int place, const Held& held) {
  // A first generation after the present one is not possible, and would make the worker a newcomer for ever.
  workers_[worker] = {.place = place,
                      .joined = std::clamp(held.joined, 0, generation_),
                      .rank = held.joined > 0 ? held.rank : -1,
                      .requesting = held.requesting,
                      .lacks_state = held.lacks_state};
}

void Generations::check_state() {
  awaits_places_ = false;
  check_state_now();
}

void Generations::check_state_now() {
  if (is_in_order() && state_is_held_ && !state_is_left()) handle_lost_state();
}

bool Generations::state_is_left() const {
  return awaits_places_ || std::ranges::any_of(workers_, [](const auto& one) { return holds_state(one.second); });
}

// ---- Places ----

void Generations::set_target(int ranks) {
  places_[limits_.place].slots = std::clamp(ranks, limits_.fewest, limits_.most);
}

void Generations::open_place(int place, int slots) { places_[place] = {.slots = slots, .closing = false}; }

void Generations::close_place(int place) {
  const auto found = places_.find(place);
  // Its workers stay until they request the next generation: they leave at a commit.
  if (found != places_.end()) found->second = {.slots = 0, .closing = true};
}

bool Generations::lose_place(int place) {
  // Closed first, so that ended() does not plan replacements on a node that is gone.
  close_place(place);
  bool had_members = false;
  for (const int worker : workers_at(place)) {
    had_members = had_members || is_member(worker);
    ended(worker, false);
  }
  places_.erase(place);
  return had_members;
}

int Generations::target() const {
  int all = 0;
  for (const auto& [number, place] : places_) all += place.slots;
  return all;
}

int Generations::slots_at(int place) const {
  const auto found = places_.find(place);
  return found == places_.end() ? 0 : found->second.slots;
}

std::vector<int> Generations::workers_at(int place) const {
  std::vector<int> all;
  for (const auto& [worker, facts] : workers_) {
    if (facts.place == place) all.push_back(worker);
  }
  return all;
}

int Generations::staying_at(int place) const {
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(), [&](const auto& one) {
    return one.second.place == place && !one.second.dismissed;
  }));
}

// ---- Events ----

int Generations::start(int place) {
  // Numbers are not reused. Ranks change with each generation, workers keep their number.
  workers_[started_].place = place;
  return started_++;
}

void Generations::requested(int worker, bool lacks_state) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  found->second.requesting = true;
  // The holders may have been lost while they sent it the state, before or after this request.
  found->second.lacks_state = lacks_state && found->second.joined > state_since_;
  check_state_now();
  // A member's request means that the current generation has failed. If the limit is reached, the job ends now rather
  // than after the other members' requests.
  if (is_in_order() && found->second.joined > 0 && is_last_reset() && !only_completes()) {
    give_up(Reason::too_many_resets, fmt::format("the limit of {} resets is reached", limits_.resets));
  }
}

bool Generations::ended(int worker, bool well) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return false;
  const Worker was = found->second;
  workers_.erase(found);
  // Its end was requested, so it is no loss whatever its exit code.
  if (was.dismissed) return false;
  // A node that arrived when others had finished already: its ranks have no part in the job, and their end is no loss.
  if (finished_ && was.joined == 0) return false;
  // Ranks end well together, at the end of training. From then on nothing is replaced.
  const bool is_early = well && !finished_ && ends_early(was);
  finished_ = finished_ || (well && !is_early);
  if (give_up_ || (well && !is_early)) return !well;
  if (finished_) {
    give_up(Reason::failed_at_end, "it failed when others had finished already, so that no rank can take its place");
  } else {
    decide_after_loss(was);
  }
  return !well || was.joined == 0;
}

// Whether a worker that has ended well has not come to the end of training: it got SIGTERM with its node, and the
// program ended by itself, or it ended before it took part in a job that others are in.
bool Generations::ends_early(const Worker& was) const {
  const auto is_leaving = [this](int number) {
    const auto place = places_.find(number);
    return place != places_.end() && place->second.closing;
  };
  if (was.joined == 0) return state_is_held_ && state_is_left();
  return is_leaving(was.place) && (awaits_places_ || std::ranges::any_of(workers_, [&](const auto& one) {
                                     return holds_state(one.second) && !is_leaving(one.second.place);
                                   }));
}

// A new worker replaces a lost member while that is allowed. A worker that failed before it belonged to any generation
// would fail again, so its place is given up.
void Generations::decide_after_loss(const Worker& was) {
  const bool was_member = was.joined > 0;
  lost_since_ = lost_since_ || was_member;
  // A limit without end would restart a program for ever that always fails.
  const bool may_replace = limits_.replacements == kNoLimit || replacements_ < limits_.replacements;
  Place& place = places_[was.place];
  if (place.closing) {
    // It would have been dismissed anyway.
  } else if (was_member && may_replace) {
    ++replacements_;
  } else {
    --place.slots;
  }
  const int left = target();
  if (generation_ == 0 && workers_.empty()) {
    give_up(Reason::all_failed, "no rank came as far as init()");
  } else if (state_is_held_ && !state_is_left()) {
    handle_lost_state();
  } else if (left < limits_.fewest) {
    give_up(Reason::too_few,
            fmt::format("{} {} left, and the job needs at least {}{}", left, left == 1 ? "rank is" : "ranks are",
                        limits_.fewest, was_member && !may_replace ? "; no more may be replaced" : ""));
  } else if (was_member && is_last_reset()) {
    give_up(Reason::too_many_resets, fmt::format("the limit of {} resets is reached", limits_.resets));
  }
}

// All workers that run are replacements without the state: they may begin as at the start of the job.
void Generations::handle_lost_state() {
  if (restarts_ == limits_.restarts) {
    return give_up(Reason::no_state, limits_.restarts == 0
                                         ? "no rank is left that holds the state"
                                         : fmt::format("no rank is left that holds the state, and the ranks have begun "
                                                       "anew {} times already (--max-restarts)",
                                                       restarts_));
  }
  ++restarts_;
  state_is_held_ = false;
}

void Generations::give_up(Reason reason, std::string text) { give_up_ = GiveUp{reason, std::move(text)}; }

// ---- Decisions ----

std::optional<int> Generations::place_to_start_at() const {
  // In the order of places, one worker for each call; the caller repeats it.
  if (!is_in_order()) return std::nullopt;
  for (const auto& [number, place] : places_) {
    if (!place.closing && staying_at(number) < place.slots) return number;
  }
  return std::nullopt;
}

int Generations::to_start() const {
  int missing = 0;
  for (const auto& [number, place] : places_) {
    if (!place.closing) missing += std::max(0, place.slots - staying_at(number));
  }
  return is_in_order() ? missing : 0;
}

std::vector<int> Generations::by_seniority() const {
  // Workers without the state come last, and new ones behind those; workers of the same generation keep the order of
  // their ranks.
  using Age = std::tuple<bool, bool, int, int, int>;
  const auto age = [](int worker, const Worker& facts) {
    return Age(!holds_state(facts), facts.joined == 0, facts.joined, facts.rank, worker);
  };
  // The ranks of one place are neighbours, and the place with the eldest worker comes first. Rank 0 is therefore a
  // worker that holds the state, from which the others receive it.
  std::map<int, Age> eldest;  // of each place
  for (const auto& [worker, facts] : workers_) {
    const Age own = age(worker, facts);
    const auto [found, is_first] = eldest.emplace(facts.place, own);
    if (!is_first) found->second = std::min(found->second, own);
  }
  std::vector<int> order;
  for (const auto& [worker, facts] : workers_) {
    if (!facts.dismissed) order.push_back(worker);
  }
  const auto key = [&](int worker) {
    const Worker& facts = workers_.at(worker);
    return std::tuple(eldest.at(facts.place), facts.place, age(worker, facts));
  };
  std::sort(order.begin(), order.end(), [&](int a, int b) { return key(a) < key(b); });
  return order;
}

// All members must have left the former generation, because both would use the same devices and ports.
bool Generations::may_begin() const {
  int holders = 0;
  bool all_request = true;
  for (const auto& [worker, facts] : workers_) {
    if (facts.dismissed) continue;
    if (facts.joined > 0 && !facts.requesting) return false;
    all_request = all_request && facts.requesting;
    holders += holds_state(facts) ? 1 : 0;
  }
  return all_request || (limits_.enough != kNoLimit && holders >= std::max(1, limits_.enough));
}

std::optional<Generations::World> Generations::begin() {
  if (!is_in_order() || to_start() > 0 || target() == 0) return std::nullopt;
  if (!may_begin()) return std::nullopt;
  World world;
  if (only_completes()) ++completions_;
  lost_since_ = is_incomplete_ = false;
  world.generation = ++generation_;
  if (!std::exchange(state_is_held_, true)) state_since_ = generation_;
  std::map<int, int> taken;  // of each place
  for (const int worker : by_seniority()) {
    Worker& facts = workers_.at(worker);
    if (!facts.requesting) {  // it is starting, and joins in the next generation
      is_incomplete_ = true;
      continue;
    }
    facts.requesting = false;
    // The youngest of a place are dismissed where it has shrunk.
    if (taken[facts.place] == slots_at(facts.place)) {
      facts.dismissed = true;
      world.dismissed.push_back(worker);
      continue;
    }
    ++taken[facts.place];
    facts.rank = static_cast<int>(world.workers.size());
    if (facts.joined == 0) facts.joined = generation_;
    world.workers.push_back(worker);
  }
  return world;
}

std::vector<int> Generations::dismiss_leaving(int last) {
  const bool all_left = std::ranges::all_of(workers_, [](const auto& one) {
    return one.second.dismissed || one.second.joined == 0 || one.second.requesting;
  });
  std::vector<int> dismissed;
  for (auto& [worker, facts] : workers_) {
    const auto place = places_.find(facts.place);
    const bool is_leaving = place != places_.end() && place->second.closing && facts.requesting;
    if (!is_leaving || facts.dismissed || (facts.place == last && !all_left)) continue;
    facts.dismissed = true;
    facts.requesting = false;
    dismissed.push_back(worker);
  }
  return dismissed;
}

bool Generations::has_waiting_newcomers() const {
  if (!is_in_order() || generation_ == 0 || to_start() > 0) return false;
  int waiting = 0;
  for (const auto& [worker, facts] : workers_) {
    if (facts.joined > 0) continue;
    // All newcomers have begun: one interruption of the others serves them all.
    if (!facts.requesting) return false;
    ++waiting;
  }
  return waiting > 0;
}

bool Generations::has_to_shrink() const {
  if (!is_in_order() || generation_ == 0) return false;
  // A worker that is starting needs no interruption of the others.
  std::map<int, int> members;  // at each place
  for (const auto& [worker, facts] : workers_) {
    if (facts.joined > 0 && !facts.dismissed) ++members[facts.place];
  }
  return std::any_of(members.begin(), members.end(), [&](const auto& one) { return one.second > slots_at(one.first); });
}

bool Generations::is_member(int worker) const { return rank_of(worker).has_value(); }

bool Generations::has_requested(int worker) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.requesting;
}

std::vector<int> Generations::awaited() const {
  std::vector<int> late_members;
  std::vector<int> starting;
  for (const auto& [worker, facts] : workers_) {
    if (!facts.dismissed && !facts.requesting) (facts.joined > 0 ? late_members : starting).push_back(worker);
  }
  return late_members.empty() ? starting : late_members;
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
