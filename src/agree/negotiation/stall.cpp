// The stall functions report names that wait for missing ranks, and what those ranks wait for instead.
#include "agree/negotiation/stall.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "agree/negotiation/rules.h"
#include "base/rank_list.h"

namespace fdl {
namespace {

// Limits of a text: a stall of thousands of names or ranks must still fit into one line of the log.
constexpr std::size_t kNamesShown = 6;
constexpr std::size_t kNamesOfRanks = 4;  // of more ranks, ranges and hosts are named
constexpr std::size_t kHintsShown = 3;    // ranks with a hint, and names in each hint

// "a, b, c and 12 more"
template <typename TextOf>
std::string list(std::size_t count, std::size_t shown, TextOf text_of) {
  std::string text;
  for (std::size_t i = 0; i < std::min(count, shown); ++i) {
    if (i > 0) text += ", ";
    text += text_of(i);
  }
  if (count > shown) text += fmt::format(" and {} more", count - shown);
  return text;
}

std::string quoted(const std::vector<std::string>& names, std::size_t shown) {
  return list(names.size(), shown, [&](std::size_t i) { return fmt::format("'{}'", names[i]); });
}

std::string numbers_of(const std::vector<int>& ranks, const std::vector<WorldRank>& world) {
  std::vector<int> numbers;
  for (const int rank : ranks) numbers.push_back(world_rank(rank, world).number);
  return describe_ranks(numbers);
}

// "rank 1 (host-b), rank 2 (host-c)", and for many "ranks 96-127 on host-c and host-d".
std::string names_of(const std::vector<int>& ranks, const std::vector<WorldRank>& world) {
  if (ranks.size() <= kNamesOfRanks) {
    return list(ranks.size(), kNamesOfRanks, [&](std::size_t i) { return rank_name(ranks[i], world); });
  }
  std::vector<int> numbers;
  std::vector<std::string> hosts;
  for (const int rank : ranks) {
    const WorldRank one = world_rank(rank, world);
    numbers.push_back(one.number);
    if (!one.host.empty()) hosts.push_back(one.host);
  }
  return describe_ranks(numbers, hosts);
}

// The pending names in the order of submission, which does not depend on the hash map.
std::vector<const Pending*> by_submission(const Waiting& waiting) {
  std::vector<const Pending*> result;
  result.reserve(waiting.pending().size());
  for (const auto& [name, pending] : waiting.pending()) result.push_back(&pending);
  std::ranges::sort(result, {}, [](const Pending* pending) {
    return std::tuple(pending->since_ns, pending->first_rank, pending->place);
  });
  return result;
}

// Names that `missing` has submitted and `ready` has not: `missing` waits for these instead.
std::vector<std::string> waits_for(const std::vector<const Pending*>& pending, int missing, int ready) {
  std::vector<std::string> names;
  for (const Pending* other : pending) {
    if (other->submitted_by(missing) && !other->submitted_by(ready)) names.push_back(other->name);
  }
  return names;
}

std::string hints(const std::vector<const Pending*>& pending, const Stall& stall, const NegotiatorOptions& options) {
  std::string text;
  std::size_t hinted = 0;
  for (const int missing : stall.missing) {
    if (hinted == kHintsShown || stall.ready.empty()) break;
    const auto names = waits_for(pending, missing, stall.ready.front());
    if (names.empty()) continue;
    ++hinted;
    text += fmt::format("; {} waits for {} instead", numbers_of({missing}, options.world_ranks),
                        quoted(names, kHintsShown));
  }
  return text;
}

std::string text_of(const Stall& stall, RequestKind kind, const std::vector<const Pending*>& pending,
                    const NegotiatorOptions& options) {
  const bool several = stall.names.size() > 1;
  const std::string ready = stall.ready.empty() ? "no rank" : numbers_of(stall.ready, options.world_ranks);
  const auto seconds = std::max<int64_t>(stall.waiting_ns / 100'000'000, 0) / 10.0;
  return fmt::format("{} ({}) {} waited for {:g} s: {} submitted {}, missing: {}{}", quoted(stall.names, kNamesShown),
                     name_of(kind), several ? "have" : "has", seconds, ready, several ? "them" : "it",
                     names_of(stall.missing, options.world_ranks), hints(pending, stall, options));
}

// Sorts the ranks into those that are ready and those that are missing. A joined rank is neither.
void note_ranks(const Waiting& waiting, const Pending& pending, int size, Stall& stall) {
  for (int rank = 0; rank < size; ++rank) {
    const bool done = waiting.is_done(pending, rank);
    if (done && pending.submitted_by(rank)) stall.ready.push_back(rank);
    if (!done) stall.missing.push_back(rank);
  }
}

// The key of a stall: names of one kind that the same ranks have submitted and the same ranks are missing.
using StallLikeness = std::tuple<RequestKind, std::vector<int>, std::vector<int>>;

struct Candidate {
  std::vector<Pending*> pending;
  bool due = false;
};

}  // namespace

Stall stall_of(const Waiting& waiting, const Pending& pending, const NegotiatorOptions& options, int64_t now_ns) {
  Stall stall;
  stall.names = {pending.name};
  stall.waiting_ns = now_ns - pending.since_ns;
  note_ranks(waiting, pending, options.size, stall);
  stall.text = text_of(stall, pending.first().kind, by_submission(waiting), options);
  return stall;
}

std::vector<Stall> list_waiting(const Waiting& waiting, const NegotiatorOptions& options, std::size_t most,
                                int64_t now_ns) {
  std::vector<Stall> list;
  for (const Pending* pending : by_submission(waiting)) {
    if (list.size() == most) break;
    Stall& stall = list.emplace_back();
    stall.names = {pending->name};
    stall.kind = pending->first().kind;
    stall.waiting_ns = now_ns - pending->since_ns;
    note_ranks(waiting, *pending, options.size, stall);
  }
  return list;
}

std::vector<Stall> find_stalls(Waiting& waiting, const NegotiatorOptions& options, int64_t now_ns) {
  const int64_t limit = options.stall_warning_ns;
  if (limit <= 0) return {};
  const auto is_due = [&](const auto& entry) { return now_ns - entry.second.reported_ns >= limit; };
  // The usual case ends here: building the candidates below costs a map of vectors.
  if (std::ranges::none_of(waiting.pending(), is_due)) return {};

  std::map<StallLikeness, Candidate> candidates;
  for (auto& [name, pending] : waiting.pending()) {
    if (now_ns - pending.since_ns < limit / 2) continue;
    Stall stall;
    note_ranks(waiting, pending, options.size, stall);
    auto& candidate = candidates[{pending.first().kind, std::move(stall.ready), std::move(stall.missing)}];
    candidate.pending.push_back(&pending);
    candidate.due = candidate.due || now_ns - pending.reported_ns >= limit;
  }

  const auto order = by_submission(waiting);
  std::vector<Stall> stalls;
  for (auto& [likeness, candidate] : candidates) {
    if (!candidate.due) continue;
    std::ranges::sort(candidate.pending, {}, [](const Pending* pending) {
      return std::tuple(pending->since_ns, pending->first_rank, pending->place);
    });
    Stall stall;
    stall.ready = std::get<1>(likeness);
    stall.missing = std::get<2>(likeness);
    stall.waiting_ns = now_ns - candidate.pending.front()->since_ns;
    for (Pending* pending : candidate.pending) {
      stall.names.push_back(pending->name);
      pending->reported_ns = now_ns;
    }
    stall.text = text_of(stall, std::get<0>(likeness), order, options);
    stalls.push_back(std::move(stall));
  }
  return stalls;
}

std::vector<std::string> find_overdue(const Waiting& waiting, const NegotiatorOptions& options, int64_t now_ns) {
  if (options.stall_shutdown_ns <= 0) return {};
  const auto is_overdue = [&](const Pending& pending) {
    return now_ns - pending.since_ns >= options.stall_shutdown_ns;
  };
  const auto overdue = [&](const auto& entry) { return is_overdue(entry.second); };
  if (std::ranges::none_of(waiting.pending(), overdue)) return {};
  std::vector<std::string> names;
  for (const Pending* pending : by_submission(waiting)) {
    if (is_overdue(*pending)) names.push_back(pending->name);
  }
  return names;
}

int64_t next_stall_ns(const Waiting& waiting, const NegotiatorOptions& options) {
  int64_t next = std::numeric_limits<int64_t>::max();
  for (const auto& [name, pending] : waiting.pending()) {
    if (options.stall_warning_ns > 0) next = std::min(next, pending.reported_ns + options.stall_warning_ns);
    if (options.stall_shutdown_ns > 0) next = std::min(next, pending.since_ns + options.stall_shutdown_ns);
  }
  return next;
}

}  // namespace fdl
