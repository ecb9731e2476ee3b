// The late-rank functions write the error texts that name the ranks an operation waits for.
#include "engine/late_ranks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/name_list.h"

namespace fdl {
namespace {

// Further ranks are only counted: ranks pass the text to each other in a field of fixed size.
constexpr std::size_t kNamed = 4;

// "rank 1 (host-a)", "rank 1 (host-a) and rank 2 (host-b)", "..., rank 4 (host-b) and 3 more ranks".
std::string names_of(const std::vector<int>& ranks, const std::vector<Member>& members) {
  if (ranks.empty()) return "another rank";
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) {
    names.push_back(name_of(members[static_cast<std::size_t>(ranks[i])]));
  }
  return first_of_names(names, ranks.size(), " ranks");
}

Error error_of(const LateRanks& waiting, const std::vector<Member>& members, std::string text) {
  Error error{.code = Code::timeout, .text = std::move(text)};
  error.operation = waiting.operation;
  error.group = waiting.group;
  error.phase = waiting.phase;
  if (waiting.ranks.empty()) return error;
  const Member& first = members[static_cast<std::size_t>(waiting.ranks.front())];
  error.culprit_rank = first.world_rank;
  error.culprit_host = first.host_name;
  return error;
}

std::string in_parentheses(const std::string& phase) { return phase.empty() ? "" : fmt::format(" ({})", phase); }

}  // namespace

Status timed_out(const LateRanks& waiting, const std::vector<Member>& members) {
  return Status(error_of(
      waiting, members,
      fmt::format("{} in group '{}' was not finished before its deadline: it waits for {}{}; see its "
                  "log, or raise the timeout",
                  waiting.operation, waiting.group, names_of(waiting.ranks, members), in_parentheses(waiting.phase))));
}

Status waits_for(const LateRanks& waiting, const std::vector<Member>& members) {
  return Status(error_of(waiting, members,
                         fmt::format("{} in group '{}' waits for {}{}", waiting.operation, waiting.group,
                                     names_of(waiting.ranks, members), in_parentheses(waiting.phase))));
}

InFlight describe(const LateRanks& waiting, const std::vector<Member>& members, bool any, int64_t waited_ns) {
  InFlight described{.operation = std::string(waiting.operation),
                     .phase = waiting.phase,
                     .ranks = {},
                     .waited_ns = waited_ns,
                     .any = any,
                     .late = waits_for(waiting, members)};
  for (const int rank : waiting.ranks) {
    described.ranks.push_back(members[static_cast<std::size_t>(rank)].world_rank);
  }
  return described;
}

std::optional<InFlight> DriverQuery::request(Event& alarm, Deadline deadline) {
  const uint64_t question = ask(alarm);
  MutexLock lock(mutex_);
  if (!answered_.wait(mutex_, deadline, [&]() FDL_REQUIRES(mutex_) { return answers_ != question; }))
    return std::nullopt;
  return answer_;
}

// The number is that of the answers so far, so several concurrent queries share one answer.
uint64_t DriverQuery::ask(Event& alarm) {
  MutexLock lock(mutex_);
  open_.store(true, std::memory_order_release);
  alarm.ring();
  return answers_;
}

std::optional<InFlight> DriverQuery::find(uint64_t question) {
  MutexLock lock(mutex_);
  if (answers_ == question) return std::nullopt;
  return answer_;
}

void DriverQuery::answer(InFlight answer) {
  MutexLock lock(mutex_);
  // Relaxed is enough: the mutex orders the answer, and the driving thread loads open_ again on its next pass.
  open_.store(false, std::memory_order_relaxed);
  ++answers_;
  answer_ = std::move(answer);
  answered_.notify_all();
}

}  // namespace fdl
