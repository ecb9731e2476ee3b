// A rank has one row for each operation that it has in flight, and at least one row.
#include "cli/where/where_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/rank_list.h"
#include "cli/table_text.h"

namespace fdl {
namespace {

// Further operations and names of a rank, and further ranks of a list, are only counted.
constexpr std::size_t kRowsShown = 8;

constexpr std::array<const char*, kRankPresences> kPresences{"answered", "silent", "absent", "left", "lost"};

constexpr std::size_t kColumns = 7;  // in front of the last one
using Row = std::array<std::string, kColumns + 1>;

std::string duration(int64_t ns) { return ns < 0 ? "" : fmt::format("{:.1f} s", static_cast<double>(ns) / 1e9); }

// Only the root of a group knows which ranks have not submitted a name.
std::vector<int> ranks_waited_for(const JobView& view, const RankState::Wait& wait) {
  if (!wait.ranks.empty()) return wait.ranks;
  for (const RankView& rank : view.ranks) {
    for (const RankState::Wait& name : rank.state.names) {
      if (name.group == wait.group && name.operation == wait.operation) return name.ranks;
    }
  }
  return {};
}

// In place of an operation.
std::string text_of(const RankView& rank) {
  switch (rank.presence) {
    case RankPresence::answered:
      return "no operation in flight";
    case RankPresence::silent:
      return "silent: it has not answered within 2 s (stopped?)";
    case RankPresence::absent:
      return "it has not arrived yet";
    case RankPresence::left:
    case RankPresence::lost:
      return printable(rank.why.ok() ? kPresences[static_cast<std::size_t>(rank.presence)] : rank.why.text());
  }
  return "";
}

Row first_cells(const RankView& rank) {
  Row row;
  row[0] = std::to_string(rank.member.rank);
  row[1] = printable(rank.member.host_name);
  if (rank.presence != RankPresence::absent) row[2] = std::to_string(rank.member.process_id);
  if (rank.presence == RankPresence::answered) {
    row[3] = std::to_string(rank.state.begun_ordered + rank.state.begun_named);
  }
  return row;
}

void add_rows(std::vector<Row>& rows, const JobView& view, const RankView& rank) {
  Row row = first_cells(rank);
  if (rank.state.operations.empty()) {
    row[4] = "-";
    row[kColumns] = text_of(rank);
    rows.push_back(std::move(row));
    return;
  }
  const std::size_t shown = std::min(rank.state.operations.size(), kRowsShown);
  for (std::size_t i = 0; i < shown; ++i) {
    const RankState::Wait& wait = rank.state.operations[i];
    row[4] = printable(wait.operation);
    row[5] = describe_ranks(ranks_waited_for(view, wait));
    row[6] = duration(wait.waited_ns);
    row[kColumns] = printable(fmt::format("{}{}group '{}'", wait.phase, wait.phase.empty() ? "" : ", ", wait.group));
    rows.push_back(std::exchange(row, {}));
  }
  const uint64_t more = rank.state.operations.size() - shown + rank.state.left_out;
  if (more > 0) {
    row[4] = fmt::format("and {} more", more);
    rows.push_back(std::move(row));
  }
}

std::size_t count(const JobView& view, RankPresence presence) {
  return static_cast<std::size_t>(std::ranges::count(view.ranks, presence, &RankView::presence));
}

// "farandole run on train-1 (process 4711): 4 ranks, 3 answered, 1 silent"
std::string heading(const JobView& view, int process_id) {
  std::string text = printable(view.server);
  if (process_id > 0) text += fmt::format(" (process {})", process_id);
  text += fmt::format(": {} rank{}", view.ranks.size(), view.ranks.size() == 1 ? "" : "s");
  for (std::size_t i = 0; i < kPresences.size(); ++i) {
    const std::size_t ranks = count(view, static_cast<RankPresence>(i));
    if (ranks > 0) text += fmt::format(", {} {}", ranks, kPresences[i]);
  }
  return text;
}

void add_names(std::vector<std::string>& lines, const JobView& view) {
  std::size_t more = 0;
  std::size_t shown = 0;
  for (const RankView& rank : view.ranks) {
    for (const RankState::Wait& name : rank.state.names) {
      if (shown == 2 * kRowsShown) {
        ++more;
        continue;
      }
      if (shown++ == 0) lines.emplace_back("names that not all ranks have submitted:");
      lines.push_back(printable(fmt::format("  {} in group '{}' waits for {}, for {}", name.operation, name.group,
                                            describe_ranks(name.ranks), duration(name.waited_ns))));
    }
  }
  if (more > 0) lines.push_back(fmt::format("  and {} more", more));
}

// Texts, each with the ranks that have it, in the order of the first of them.
using Alike = std::vector<std::pair<std::string, std::vector<int>>>;

void add_alike(Alike& alike, const std::string& text, int rank) {
  const auto found = std::find_if(alike.begin(), alike.end(), [&](const auto& one) { return one.first == text; });
  if (found == alike.end()) {
    alike.push_back({text, {rank}});
  } else {
    found->second.push_back(rank);
  }
}

// Ranks whose agreement is alike share a line.
void add_agreements(std::vector<std::string>& lines, const JobView& view) {
  Alike alike;
  for (const RankView& rank : view.ranks) {
    for (const RankState::Agreement& agreement : rank.state.agreements) {
      const std::string text = printable(fmt::format("group '{}': {}", agreement.group, agreement.text));
      add_alike(alike, text, rank.member.rank);
    }
  }
  if (!alike.empty()) lines.emplace_back("agreement on named operations:");
  for (std::size_t i = 0; i < std::min(alike.size(), 2 * kRowsShown); ++i) {
    lines.push_back(fmt::format("  {}: {}", describe_ranks(alike[i].second), alike[i].first));
  }
  if (alike.size() > 2 * kRowsShown) lines.push_back(fmt::format("  and {} more", alike.size() - 2 * kRowsShown));
}

std::vector<JsonLine> json_of(const std::vector<RankState::Agreement>& agreements) {
  std::vector<JsonLine> lines;
  for (const RankState::Agreement& agreement : agreements) {
    lines.emplace_back().text("group", agreement.group).text("state", agreement.text);
  }
  return lines;
}

JsonLine json_of(const JobView& view, const RankState::Wait& wait) {
  JsonLine line;
  line.text("group", wait.group).text("operation", wait.operation).text("phase", wait.phase);
  line.list("waits_for", ranks_waited_for(view, wait));
  line.number("waited_s", wait.waited_ns < 0 ? -1.0 : static_cast<double>(wait.waited_ns) / 1e9);
  return line;
}

std::vector<JsonLine> json_of(const JobView& view, const std::vector<RankState::Wait>& waits) {
  std::vector<JsonLine> lines;
  for (const RankState::Wait& wait : waits) lines.push_back(json_of(view, wait));
  return lines;
}

}  // namespace

std::vector<std::string> where_lines(const JobView& view, int process_id) {
  std::vector<Row> rows{{"rank", "host", "process", "begun", "operation", "waits for", "for", "phase"}};
  for (const RankView& rank : view.ranks) add_rows(rows, view, rank);
  std::vector<std::string> lines{heading(view, process_id)};
  for (std::string& line : align(rows)) lines.push_back(std::move(line));
  add_names(lines, view);
  add_agreements(lines, view);
  return lines;
}

std::vector<std::string> stack_lines(const JobView& view) {
  Alike alike;
  for (const RankView& rank : view.ranks) {
    if (rank.presence == RankPresence::answered) add_alike(alike, rank.state.stacks, rank.member.rank);
  }
  std::vector<std::string> lines;
  for (const auto& [stacks, ranks] : alike) {
    const bool is_given = !stacks.empty();
    lines.push_back(fmt::format("{}:{}", describe_ranks(ranks), is_given ? "" : " its program gives no stacks"));
    for (std::size_t begin = 0; begin < stacks.size();) {
      const std::size_t end = std::min(stacks.find('\n', begin), stacks.size());
      lines.push_back("  " + printable(stacks.substr(begin, end - begin)));
      begin = end + 1;
    }
  }
  return lines;
}

JsonLine where_json(const JobView& view, int process_id) {
  std::vector<JsonLine> ranks;
  for (const RankView& rank : view.ranks) {
    JsonLine line;
    line.number("rank", static_cast<long long>(rank.member.rank)).text("host", rank.member.host_name);
    line.number("process", static_cast<long long>(rank.member.process_id));
    line.text("presence", kPresences[static_cast<std::size_t>(rank.presence)]).text("why", rank.why.text());
    line.number("begun_ordered", static_cast<long long>(rank.state.begun_ordered));
    line.number("begun_named", static_cast<long long>(rank.state.begun_named));
    line.list("operations", json_of(view, rank.state.operations)).list("names", json_of(view, rank.state.names));
    line.number("left_out", static_cast<long long>(rank.state.left_out));
    line.list("agreements", json_of(rank.state.agreements)).text("stacks", rank.state.stacks);
    ranks.push_back(std::move(line));
  }
  JsonLine line;
  line.text("server", view.server).number("process", static_cast<long long>(process_id));
  line.flag("all_answered", view.all_answered()).list("ranks", ranks);
  return line;
}

}  // namespace fdl
