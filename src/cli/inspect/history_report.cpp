// Operations of a communicator are matched by their number, named ones by their name.
#include "cli/inspect/history_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

namespace fdl {
namespace {

using Operations = std::vector<const RecordedOperation*>;

bool is_of(const RecordedOperation& operation, uint64_t group, bool is_named) {
  return operation.group == group && operation.is_named == is_named;
}

// The communicators and groups of all ranks, each once, in the order in which the ranks made them.
std::vector<RecordedGroup> all_groups(const std::vector<RankHistory>& histories) {
  std::vector<RecordedGroup> groups;
  for (const RankHistory& history : histories) {
    for (const RecordedGroup& group : history.groups) {
      if (std::ranges::find(groups, group.fingerprint, &RecordedGroup::fingerprint) == groups.end())
        groups.push_back(group);
    }
  }
  return groups;
}

bool has_group(const RankHistory& history, uint64_t fingerprint) {
  return std::ranges::find(history.groups, fingerprint, &RecordedGroup::fingerprint) != history.groups.end();
}

GroupReport::Rank rank_in(const RankHistory& history, uint64_t group) {
  GroupReport::Rank rank{.rank = history.rank, .is_known = history.count < History::kRecords};
  for (const RecordedOperation& one : history.operations) {
    if (one.group != group) continue;
    if (!one.is_finished()) ++rank.unfinished;
    if (one.is_named || one.is_message()) continue;
    rank.is_known = true;
    rank.called = std::max(rank.called, one.sequence);
  }
  return rank;
}

// The ranks that have called fewer collectives than another one.
std::optional<GroupReport::Behind> find_behind(const std::vector<RankHistory>& histories, const GroupReport& group) {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (const GroupReport::Rank& rank : group.ranks) {
    if (rank.is_known) least = std::min(least, rank.called);
  }
  GroupReport::Behind behind{.ranks = {}, .sequence = least + 1, .operation = {}};
  for (const GroupReport::Rank& rank : group.ranks) {
    if (rank.is_known && rank.called == least) behind.ranks.push_back(rank.rank);
  }
  const RecordedOperation* first = nullptr;
  for (const RankHistory& history : histories) {
    const RecordedOperation* call = history.find(group.fingerprint, behind.sequence);
    if (call == nullptr || (first != nullptr && first->called_ns <= call->called_ns)) continue;
    first = call;
    behind.first_caller = history.rank;
  }
  if (first == nullptr) return std::nullopt;
  behind.operation = first->signature();
  behind.called_ns = first->called_ns;
  return behind;
}

const RecordedOperation* find_unfinished(const RankHistory& history, uint64_t group, const std::string& name) {
  for (const RecordedOperation& one : history.operations) {
    if (is_of(one, group, true) && one.name == name && !one.is_finished()) return &one;
  }
  return nullptr;
}

// The name that has waited longest for a rank that has not submitted it.
std::optional<GroupReport::Behind> find_missing_name(const std::vector<RankHistory>& histories,
                                                     const GroupReport& group) {
  std::optional<GroupReport::Behind> found;
  std::set<std::string> seen;
  for (const RankHistory& history : histories) {
    for (const RecordedOperation& one : history.operations) {
      if (!is_of(one, group.fingerprint, true) || one.is_finished() || !seen.insert(one.name).second) continue;
      GroupReport::Behind behind{.ranks = {},
                                 .sequence = 0,
                                 .operation = one.signature(),
                                 .first_caller = history.rank,
                                 .called_ns = one.called_ns};
      for (const RankHistory& other : histories) {
        if (!has_group(other, group.fingerprint)) continue;
        const RecordedOperation* theirs = find_unfinished(other, group.fingerprint, one.name);
        if (theirs == nullptr) {
          behind.ranks.push_back(other.rank);
        } else if (theirs->called_ns < behind.called_ns) {
          behind.called_ns = theirs->called_ns;
          behind.first_caller = other.rank;
        }
      }
      if (!behind.ranks.empty() && (!found || behind.called_ns < found->called_ns)) found = std::move(behind);
    }
  }
  return found;
}

// Counts of these kinds may differ between ranks.
bool may_differ_in_count(const std::string& kind) {
  return kind == "allgather" || kind == "gather" || kind == "scatter" || kind == "alltoall" || kind == "reduce_scatter";
}

std::string comparable(const RecordedOperation& operation) {
  RecordedOperation copy = operation;
  if (may_differ_in_count(copy.kind)) copy.count = 0;
  return copy.signature();
}

std::optional<GroupReport::Mismatch> find_mismatch(const std::vector<RankHistory>& histories, uint64_t group) {
  std::map<uint64_t, std::map<std::string, std::vector<int>>> by_sequence;
  std::map<std::pair<uint64_t, std::string>, std::string> texts;
  for (const RankHistory& history : histories) {
    for (const RecordedOperation& one : history.operations) {
      if (!is_of(one, group, false) || one.is_message()) continue;
      by_sequence[one.sequence][comparable(one)].push_back(history.rank);
      texts.emplace(std::pair(one.sequence, comparable(one)), one.signature());
    }
  }
  for (const auto& [sequence, signatures] : by_sequence) {
    if (signatures.size() < 2) continue;
    GroupReport::Mismatch mismatch{.sequence = sequence, .ranks_by_signature = {}};
    for (const auto& [signature, ranks] : signatures) {
      mismatch.ranks_by_signature.emplace_back(ranks, texts[{sequence, signature}]);
    }
    return mismatch;
  }
  return std::nullopt;
}

}  // namespace

const GroupReport* HistoryReport::first_behind() const {
  const GroupReport* first = nullptr;
  for (const GroupReport& group : groups) {
    if (group.behind && (first == nullptr || group.behind->called_ns < first->behind->called_ns)) first = &group;
  }
  return first;
}

Status check_one_job(const std::vector<RankHistory>& histories) {
  std::set<int> ranks;
  for (const RankHistory& history : histories) {
    if (history.job != histories.front().job || history.size != histories.front().size) {
      return Status(Code::invalid_argument,
                    fmt::format("the files are of different jobs: {} with {} ranks, and {} with {} ranks",
                                histories.front().job, histories.front().size, history.job, history.size));
    }
    if (!ranks.insert(history.rank).second) {
      return Status(Code::invalid_argument, fmt::format("two files are of rank {}", history.rank));
    }
  }
  return {};
}

HistoryReport report_of(const std::vector<RankHistory>& histories) {
  HistoryReport report;
  for (int rank = 0; rank < histories.front().size; ++rank) {
    if (std::ranges::find(histories, rank, &RankHistory::rank) == histories.end()) report.missing_ranks.push_back(rank);
  }
  for (const RecordedGroup& one : all_groups(histories)) {
    GroupReport group{.name = one.name, .fingerprint = one.fingerprint, .ranks = {}, .behind = {}, .mismatch = {}};
    for (const RankHistory& history : histories) {
      if (has_group(history, one.fingerprint)) group.ranks.push_back(rank_in(history, one.fingerprint));
    }
    group.mismatch = find_mismatch(histories, one.fingerprint);
    group.behind = find_behind(histories, group);
    const auto name = find_missing_name(histories, group);
    if (name && (!group.behind || name->called_ns < group.behind->called_ns)) group.behind = name;
    report.groups.push_back(std::move(group));
  }
  return report;
}

}  // namespace fdl
