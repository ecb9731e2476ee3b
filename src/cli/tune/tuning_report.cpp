// Draws a progress bar that overwrites itself, and prints the finished tuning as a table.
#include "cli/tune/tuning_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "algorithms/choice/measured_choice.h"

namespace fdl {
namespace {

// A range of sizes for which the same way is chosen.
struct Line {
  int64_t first_bytes = 0, last_bytes = 0;
  double first_us = 0, last_us = 0;
  std::string way, next;
  double times_next = 0;  // the smallest factor in this range by which the next one is slower
};

GroupShape shape_of_place(const TuningTable::Place& place, const TuningTable& table) {
  return {.ranks = place.hosts * place.ranks_per_host,
          .hosts = place.hosts,
          .ranks_per_host = place.ranks_per_host,
          .transport = place.transport,
          .table = &table};
}

// The way that a communicator chooses for this size.
std::string way_of(const TuningTable::Place& place, const GroupShape& shape, const Preference& preference,
                   const TuningTable::Ways& ways, int64_t bytes) {
  if (ways.contains(kWhole) && !preference.is_schedule(place.collective, bytes, {})) return std::string(kWhole);
  const TuningTable::Sizes& sizes = *measured_sizes(place.collective, shape);
  const MeasuredBest best = best_measured(sizes, place.collective, shape.ranks, bytes, {});
  return best.algorithm == nullptr ? "-" : std::string(best.algorithm->name);
}

// Consecutive sizes with the same choice become one line.
std::vector<Line> lines_of(const TuningTable& table, const TuningTable::Place& place, const TuningTable::Sizes& sizes) {
  const GroupShape shape = shape_of_place(place, table);
  const Preference preference(shape);
  std::vector<Line> lines;
  for (const auto& [bytes, ways] : sizes) {
    const std::string way = way_of(place, shape, preference, ways, bytes);
    if (!ways.contains(way)) continue;
    const double us = ways.at(way);
    const auto slower = [&](const auto& a, const auto& b) {
      return b.first == way || (a.first != way && a.second < b.second);
    };
    const auto next = std::min_element(ways.begin(), ways.end(), slower);
    const bool has_next = next->first != way;
    if (lines.empty() || lines.back().way != way) lines.push_back({bytes, bytes, us, us, way, "", 0});
    Line& line = lines.back();
    line.last_bytes = bytes;
    line.last_us = us;
    if (has_next && (line.next.empty() || next->second / us < line.times_next)) {
      line.next = next->first;
      line.times_next = next->second / us;
    }
  }
  return lines;
}

}  // namespace

std::string bytes_text(int64_t bytes) {
  constexpr int64_t kMega = int64_t{1} << 20;
  if (bytes >= kMega && bytes % kMega == 0) return fmt::format("{}M", bytes / kMega);
  if (bytes >= 1024 && bytes % 1024 == 0) return fmt::format("{}K", bytes / 1024);
  return std::to_string(bytes);
}

void draw_progress(const TuningTable::Place& place, int64_t bytes, std::size_t done, std::size_t all) {
  constexpr std::size_t kWidth = 30;
  const std::string group_name =
      fmt::format("{}, {} ranks", place.transport, ranks_text(place.hosts, place.ranks_per_host));
  if (::isatty(STDERR_FILENO) == 1) {
    const std::size_t filled = done * kWidth / std::max<std::size_t>(all, 1);
    fmt::print(stderr, "\r{} [{:#<{}}{:.<{}}] {:>3} %  {:<14} {:>6}", group_name, "", filled, "", kWidth - filled,
               done * 100 / std::max<std::size_t>(all, 1), name_of(place.collective), bytes_text(bytes));
  } else {
    static int last_shown = -1;  // the collective of the last line
    if (last_shown == static_cast<int>(place.collective)) return;
    last_shown = static_cast<int>(place.collective);
    fmt::print(stderr, "{}: {:>3} %, {}\n", group_name, done * 100 / std::max<std::size_t>(all, 1),
               name_of(place.collective));
  }
  std::fflush(stderr);
}

void end_progress() {
  if (::isatty(STDERR_FILENO) == 1) fmt::print(stderr, "\r{:90}\r", "");
}

void print_report(const TuningTable& table) {
  std::string group;
  for (const auto& [place, sizes] : table.rows()) {
    const std::string group_name =
        fmt::format("{}, {} ranks", place.transport, ranks_text(place.hosts, place.ranks_per_host));
    if (group_name != group) {
      fmt::print("{}{}\n  {:<15} {:>15}  {:<19} {:>20}  {:<19} {:>6}\n", group.empty() ? "" : "\n", group_name,
                 "collective", "bytes", "chosen", "us", "next", "times");
      group = group_name;
    }
    for (const Line& line : lines_of(table, place, sizes)) {
      const bool one = line.first_bytes == line.last_bytes;
      const std::string bytes = bytes_text(line.first_bytes) + (one ? "" : " .. " + bytes_text(line.last_bytes));
      const std::string us =
          one ? fmt::format("{:.4g}", line.first_us) : fmt::format("{:.4g} .. {:.4g}", line.first_us, line.last_us);
      fmt::print("  {:<15} {:>15}  {:<19} {:>20}", name_of(place.collective), bytes, line.way, us);
      fmt::print("{}\n", line.next.empty() ? "" : fmt::format("  {:<19} {:>5.2f}x", line.next, line.times_next));
    }
  }
}

}  // namespace fdl
