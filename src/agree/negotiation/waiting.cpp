// Waiting keeps the requests that are not decided and finds out when a name, a group or a join is ready.
#include "agree/negotiation/waiting.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <tuple>

namespace fdl {
namespace {

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

// The sort key of ready units. A join sorts behind everything that it made ready.
std::tuple<uint64_t, int, uint64_t> standing(const Unit& unit) {
  if (unit.members.empty()) return {unit.moment, std::numeric_limits<int>::max(), 0};
  return {unit.moment, unit.members.front().first_rank, unit.members.front().place};
}

}  // namespace

std::vector<Vote> Pending::votes() const {
  std::vector<Vote> votes;
  std::vector<bool> seen(variants.size(), false);
  for (std::size_t rank = 0; rank < variant_of.size() && votes.size() < variants.size(); ++rank) {
    if (variant_of[rank] < 0 || seen[at(variant_of[rank])]) continue;
    seen[at(variant_of[rank])] = true;
    votes.push_back({static_cast<int>(rank), &variants[at(variant_of[rank])]});
  }
  return votes;
}

Waiting::Waiting(int size) : size_(size), places_(at(size), 0), joined_(at(size), false) { FDL_CHECK(size >= 1); }

void Waiting::add(int from, std::span<const Request* const> requests, int64_t now_ns) {
  FDL_CHECK(from >= 0 && from < size_);
  ++moment_;
  const int joined_before = joined_count_;
  for (const Request* request : requests) {
    if (request->kind == RequestKind::join) {
      note_join(from, *request);
    } else {
      note(from, *request, now_ns);
    }
  }
  if (joined_count_ != joined_before) {
    collect_all_ready();
  } else {
    for (const Request* request : requests) collect_if_ready(request->name);
  }
  if (joined_count_ == size_) finish_join();
}

void Waiting::note(int from, const Request& request, int64_t now_ns) {
  auto [found, is_new] = pending_.try_emplace(request.name);
  Pending& pending = found->second;
  if (is_new) {
    pending.name = request.name;
    pending.variant_of.assign(at(size_), -1);
    pending.since_ns = pending.reported_ns = now_ns;
    pending.first_rank = from;
  }
  FDL_CHECK(!pending.submitted_by(from));
  // Comparing with the first and the last variant is enough where ranks agree, and keeps the cost constant where every
  // rank's request differs (the rows of an allgather).
  const auto last = static_cast<int32_t>(pending.variants.size()) - 1;
  int32_t variant = last + 1;
  if (last >= 0 && pending.variants.back() == request) variant = last;
  if (last > 0 && pending.variants.front() == request) variant = 0;
  if (variant > last) pending.variants.push_back(request);
  pending.variant_of[at(from)] = variant;
  ++pending.submitted;
  const uint64_t place = places_[at(from)]++;
  // The place of a name comes from its lowest rank, so it does not depend on the order of arrival.
  if (from <= pending.first_rank) {
    pending.first_rank = from;
    pending.place = place;
  }
  if (!request.group.empty()) note_member(from, request, variant > last);
}

void Waiting::note_member(int from, const Request& request, bool is_new_variant) {
  Group& group = groups_[request.group];
  if (group.counts.empty()) {
    group.counts.assign(at(size_), 0);
    group.sizes.assign(at(size_), 0);
  }
  // Only a new variant can carry a name that the group does not have yet; this keeps the search rare.
  if (is_new_variant && std::ranges::find(group.names, request.name) == group.names.end()) {
    group.names.push_back(request.name);
  }
  const bool was_whole = group.whole_at(from);
  group.sizes[at(from)] = request.group_size;
  ++group.counts[at(from)];
  group.whole_ranks += group.whole_at(from) - was_whole;
}

void Waiting::note_join(int rank, const Request& request) {
  FDL_CHECK(!joined_[at(rank)]);
  joined_[at(rank)] = true;
  ++joined_count_;
  last_joined_ = rank;
  // The name of the lowest joined rank stands for all of them.
  if (join_name_.empty() || std::find(joined_.begin(), joined_.end(), true) - joined_.begin() == rank) {
    join_name_ = request.name;
  }
}

// Every rank has submitted the name or has joined.
bool Waiting::is_complete(const Pending& pending) const {
  int there = pending.submitted;
  for (int rank = 0; joined_count_ > 0 && rank < size_; ++rank)
    there += joined_[at(rank)] && !pending.submitted_by(rank);
  return there == size_;
}

// Every rank has submitted as many members as it announced, or has joined.
bool Waiting::is_whole(const Group& group) const {
  int there = group.whole_ranks;
  for (int rank = 0; joined_count_ > 0 && rank < size_; ++rank) there += joined_[at(rank)] && !group.whole_at(rank);
  return there == size_;
}

bool Waiting::is_ready(const Pending& pending) const {
  // A group that all ranks have submitted as whole is ready even if its members differ between ranks, for no further
  // member would arrive. The same is true of a name that ranks assign to different groups. failure_of() reports both.
  for (const Request& request : pending.variants) {
    if (!request.group.empty() && is_whole(groups_.at(request.group))) return true;
  }
  if (!is_complete(pending)) return false;
  return pending.variants.front().group.empty() || same_group(pending.votes()).has_value();
}

void Waiting::collect_if_ready(const std::string& name) {
  const auto found = pending_.find(name);
  if (found == pending_.end() || !is_ready(found->second)) return;
  add_ready(take(name));
}

// Copies the names first, because collecting one removes it and its group from pending_.
void Waiting::collect_all_ready() {
  std::vector<std::string> names;
  names.reserve(pending_.size());
  for (const auto& [name, pending] : pending_) names.push_back(name);
  for (const std::string& name : names) collect_if_ready(name);
}

void Waiting::finish_join() {
  add_ready(join_unit());
  joined_.assign(at(size_), false);
  joined_count_ = 0;
  join_name_.clear();
}

Unit Waiting::join_unit() {
  Unit unit;
  unit.moment = moment_;
  unit.joined = joined_;
  unit.is_join = true;
  unit.join_name = join_name_;
  unit.last_joined = last_joined_;
  return unit;
}

// Collects the name and, transitively, all names that share a group with it.
Unit Waiting::take(const std::string& name) {
  Unit unit;
  unit.moment = moment_;
  if (joined_count_ > 0) unit.joined = joined_;
  std::vector<std::string> names{name};
  while (!names.empty()) {
    auto node = pending_.extract(names.back());
    names.pop_back();
    if (node.empty()) continue;
    for (const Request& request : node.mapped().variants) {
      const auto group = groups_.find(request.group);
      if (request.group.empty() || group == groups_.end()) continue;
      names.insert(names.end(), group->second.names.begin(), group->second.names.end());
      groups_.erase(group);
    }
    unit.members.push_back(std::move(node.mapped()));
  }
  std::ranges::sort(unit.members, {},
                    [](const Pending& pending) { return std::pair(pending.first_rank, pending.place); });
  return unit;
}

std::vector<Unit> Waiting::take_ready() {
  ready_names_.clear();
  std::ranges::stable_sort(ready_, {}, standing);
  return std::exchange(ready_, {});
}

void Waiting::put_back(std::vector<Unit> units) {
  ready_names_.clear();
  std::ranges::move(units, std::back_inserter(ready_));
}

std::vector<Unit> Waiting::take_all() {
  ++moment_;
  while (!pending_.empty()) add_ready(take(std::string(pending_.begin()->first)));
  if (joined_count_ > 0) finish_join();
  return take_ready();
}

std::size_t Waiting::count() const {
  std::size_t count = pending_.size() + (joined_count_ > 0);
  for (const Unit& unit : ready_) count += unit.members.size() + unit.is_join;
  return count;
}

bool Waiting::has_submitted(int rank, const Request& request) const {
  if (request.kind == RequestKind::join) return joined_[at(rank)];
  const auto found = pending_.find(request.name);
  if (found != pending_.end()) return found->second.submitted_by(rank);
  return !ready_.empty() && is_ready_with(rank, request.name);
}

// A message may ask for many names while many are ready, so a search of ready_ for each would take too long.
bool Waiting::is_ready_with(int rank, const std::string& name) const {
  if (ready_names_.empty()) {
    for (const Unit& unit : ready_) {
      for (const Pending& pending : unit.members) ready_names_.emplace(pending.name, &pending);
    }
  }
  const auto [first, last] = ready_names_.equal_range(name);
  return std::any_of(first, last, [&](const auto& one) { return one.second->submitted_by(rank); });
}

bool Waiting::is_done(const Pending& pending, int rank) const {
  if (!pending.submitted_by(rank)) return joined_[at(rank)];
  const std::string& group = pending.request_of(rank).group;
  return group.empty() || joined_[at(rank)] || groups_.at(group).whole_at(rank);
}

}  // namespace fdl
