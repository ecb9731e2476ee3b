// The first lines name the rank that was behind. For each communicator follow the numbers of the ranks' last calls, and
// a table of their last operations side by side.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "base/rank_list.h"
#include "cli/inspect/history_report.h"
#include "cli/table_text.h"

namespace fdl {
namespace {

// More ranks would not fit on a line. The table then has those that are behind and the first others.
constexpr std::size_t kColumns = 8;
constexpr std::size_t kSignatureWidth = 44;

std::string time_text(int64_t ns) {
  const std::chrono::time_point<std::chrono::system_clock, std::chrono::microseconds> moment(
      std::chrono::microseconds(ns / 1000));
  return fmt::format(
      "{:%H:%M:}{:%S}",
      fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::time_point_cast<std::chrono::seconds>(moment))),
      moment.time_since_epoch());
}

std::string duration(int64_t ns) {
  const auto value = static_cast<double>(std::max<int64_t>(ns, 0));
  if (value < 1e6) return fmt::format("{:.1f} us", value / 1e3);
  return value < 1e9 ? fmt::format("{:.1f} ms", value / 1e6) : fmt::format("{:.1f} s", value / 1e9);
}

std::string cut(const std::string& text) {
  return text.size() <= kSignatureWidth ? text : text.substr(0, kSignatureWidth - 3) + "...";
}

// "allreduce of 1000 float32 (sum), 12.5 us", "..., not ended after 12.1 s", "..., PEER_LOST after 3.0 s"
std::string cell_of(const RankHistory& history, const RecordedOperation& operation) {
  const std::string text = cut(printable(operation.signature()));
  if (operation.ended_ns < 0) {
    const char* state = operation.begun_ns < 0 ? "not begun" : "not ended";
    const int64_t known_ns = history.last_ns - operation.called_ns;
    return fmt::format("{}, {}{}", text, state, known_ns > 0 ? " after " + duration(known_ns) : "");
  }
  const std::string time = duration(operation.ended_ns - operation.called_ns);
  if (operation.outcome == Code::ok) return fmt::format("{}, {}", text, time);
  return fmt::format("{}, {} after {}", text, name_of(operation.outcome), time);
}

void add_table(std::vector<std::string>& lines, const std::vector<std::vector<std::string>>& rows) {
  if (rows.size() < 2) return;
  for (std::string& line : align(rows, "  ")) lines.push_back(std::move(line));
}

// Those that are behind come first; then all in the order of their ranks.
std::vector<const RankHistory*> columns_of(const std::vector<RankHistory>& histories, const GroupReport& group) {
  std::vector<const RankHistory*> chosen;
  const auto add = [&](bool behind) {
    for (const RankHistory& history : histories) {
      const bool is_member =
          std::ranges::find(group.ranks, history.rank, &GroupReport::Rank::rank) != group.ranks.end();
      const bool is_behind =
          group.behind && std::ranges::find(group.behind->ranks, history.rank) != group.behind->ranks.end();
      if (is_member && is_behind == behind && chosen.size() < (behind ? kColumns / 2 : kColumns))
        chosen.push_back(&history);
    }
  };
  add(true);
  add(false);
  std::ranges::sort(chosen, {}, [](const RankHistory* history) { return history->rank; });
  return chosen;
}

std::vector<std::string> header_of(const std::string& first, const std::vector<const RankHistory*>& columns) {
  std::vector<std::string> row{first};
  for (const RankHistory* history : columns) row.push_back(fmt::format("rank {}", history->rank));
  return row;
}

void add_ordered(std::vector<std::string>& lines, const GroupReport& group,
                 const std::vector<const RankHistory*>& columns, std::size_t last) {
  std::map<uint64_t, std::map<int, std::string>> cells;
  for (const RankHistory* history : columns) {
    for (const RecordedOperation& one : history->operations) {
      if (one.group != group.fingerprint || one.is_named || one.is_message()) continue;
      cells[one.sequence][history->rank] = cell_of(*history, one);
    }
  }
  while (cells.size() > last) cells.erase(cells.begin());
  std::vector<std::vector<std::string>> rows{header_of("number", columns)};
  for (auto& [sequence, of_ranks] : cells) {
    std::vector<std::string>& row = rows.emplace_back(1, std::to_string(sequence));
    for (const RankHistory* history : columns) {
      const auto cell = of_ranks.find(history->rank);
      row.push_back(cell == of_ranks.end() ? "-" : cell->second);
    }
  }
  add_table(lines, rows);
}

// The last operations of each rank, the newest in the last row: their order may differ between ranks.
void add_by_rank(std::vector<std::string>& lines, const GroupReport& group,
                 const std::vector<const RankHistory*>& columns, std::size_t last, bool named) {
  std::vector<std::vector<std::string>> rows{header_of(named ? "named" : "messages", columns)};
  std::vector<std::vector<std::string>> cells;
  std::size_t height = 0;
  for (const RankHistory* history : columns) {
    std::vector<std::string>& of_rank = cells.emplace_back();
    for (const RecordedOperation& one : history->operations) {
      if (one.group == group.fingerprint && (named ? one.is_named : one.is_message() && !one.is_named))
        of_rank.push_back(cell_of(*history, one));
    }
    if (of_rank.size() > last) of_rank.erase(of_rank.begin(), of_rank.end() - static_cast<std::ptrdiff_t>(last));
    height = std::max(height, of_rank.size());
  }
  for (std::size_t i = 0; i < height; ++i) {
    std::vector<std::string>& row = rows.emplace_back(1, i + 1 == height ? "newest" : "");
    for (const std::vector<std::string>& of_rank : cells) {
      const std::size_t missing = height - of_rank.size();
      row.push_back(i < missing ? "-" : of_rank[i - missing]);
    }
  }
  add_table(lines, rows);
}

std::string behind_text(const GroupReport& group) {
  const GroupReport::Behind& behind = *group.behind;
  const bool one = behind.ranks.size() == 1;
  const std::string what = behind.sequence == 0
                               ? fmt::format("submitted {}", printable(behind.operation))
                               : fmt::format("called number {}, {}", behind.sequence, printable(behind.operation));
  return fmt::format("{} in '{}': {} not {}, which rank {} called at {} UTC", describe_ranks(behind.ranks),
                     printable(group.name), one ? "it has" : "they have", what, behind.first_caller,
                     time_text(behind.called_ns));
}

void add_group(std::vector<std::string>& lines, const std::vector<RankHistory>& histories, const GroupReport& group,
               std::size_t last) {
  const auto is_of_group = [&](const RecordedOperation& one) { return one.group == group.fingerprint; };
  const auto is_used = [&](const RankHistory& history) { return std::ranges::any_of(history.operations, is_of_group); };
  if (std::ranges::none_of(histories, is_used)) return;
  const bool only_names = std::ranges::none_of(group.ranks, [](const auto& rank) { return rank.called > 0; });
  lines.emplace_back();
  lines.push_back(fmt::format("'{}'", printable(group.name)));
  std::map<std::string, std::vector<int>> by_state;
  for (const GroupReport::Rank& rank : group.ranks) {
    const std::string called = rank.is_known ? fmt::format("called {}", rank.called) : "last call unknown";
    by_state[fmt::format("{}{} unfinished", only_names ? "" : called + ", ", rank.unfinished)].push_back(rank.rank);
  }
  for (const auto& [state, ranks] : by_state) lines.push_back(fmt::format("  {}: {}", describe_ranks(ranks), state));
  if (group.mismatch) {
    lines.push_back(fmt::format("  number {} differs:", group.mismatch->sequence));
    for (const auto& [ranks, signature] : group.mismatch->ranks_by_signature)
      lines.push_back(fmt::format("    {}: {}", describe_ranks(ranks), printable(signature)));
  }
  const std::vector<const RankHistory*> columns = columns_of(histories, group);
  add_ordered(lines, group, columns, last);
  add_by_rank(lines, group, columns, last, true);
  add_by_rank(lines, group, columns, last, false);
}

}  // namespace

std::vector<std::string> history_lines(const std::vector<RankHistory>& histories, const HistoryReport& report,
                                       std::size_t last) {
  std::vector<std::string> lines;
  const RankHistory& first = histories.front();
  lines.push_back(fmt::format("job {}: {} of {} ranks", printable(first.job), histories.size(), first.size));
  if (!report.missing_ranks.empty())
    lines.push_back(fmt::format("without a file: {}", describe_ranks(report.missing_ranks)));
  const GroupReport* behind = report.first_behind();
  lines.push_back(behind == nullptr ? "no rank is behind" : "first behind: " + behind_text(*behind));
  for (const GroupReport& group : report.groups) add_group(lines, histories, group, last);
  return lines;
}

JsonLine history_json(const std::vector<RankHistory>& histories, const HistoryReport& report) {
  const auto behind_of = [](const GroupReport& group) {
    JsonLine line;
    if (!group.behind) return line;
    line.list("ranks", group.behind->ranks).number("number", static_cast<long long>(group.behind->sequence));
    line.text("operation", group.behind->operation);
    line.number("first_caller", static_cast<long long>(group.behind->first_caller));
    line.number("called_ns", static_cast<long long>(group.behind->called_ns));
    return line;
  };
  std::vector<JsonLine> groups;
  for (const GroupReport& group : report.groups) {
    std::vector<JsonLine> ranks;
    for (const GroupReport::Rank& rank : group.ranks) {
      JsonLine line;
      line.number("rank", static_cast<long long>(rank.rank)).flag("is_known", rank.is_known);
      line.number("called", static_cast<long long>(rank.called));
      line.number("unfinished", static_cast<long long>(rank.unfinished));
      ranks.push_back(std::move(line));
    }
    std::vector<JsonLine> differing;
    if (group.mismatch) {
      for (const auto& [of_ranks, signature] : group.mismatch->ranks_by_signature) {
        JsonLine line;
        line.list("ranks", of_ranks).text("operation", signature);
        differing.push_back(std::move(line));
      }
    }
    JsonLine line;
    line.text("group", group.name).list("ranks", ranks).object("behind", behind_of(group));
    line.number("mismatch", static_cast<long long>(group.mismatch ? group.mismatch->sequence : 0));
    line.list("differing", differing);
    groups.push_back(std::move(line));
  }
  const GroupReport* behind = report.first_behind();
  JsonLine line;
  line.text("job", histories.front().job).number("size", static_cast<long long>(histories.front().size));
  line.list("missing_ranks", report.missing_ranks);
  line.list("first_behind", behind == nullptr ? std::vector<int>() : behind->behind->ranks);
  line.text("first_behind_in", behind == nullptr ? "" : behind->name).list("groups", groups);
  return line;
}

}  // namespace fdl
