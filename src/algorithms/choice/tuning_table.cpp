// TuningTable parses its text line by line, names the line of an error, and writes its rows in one fixed order.
#include "algorithms/choice/tuning_table.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "algorithms/catalog.h"
#include "base/fingerprint.h"

namespace fdl {
namespace {

constexpr std::string_view kFormat = "farandole tuning 1";
constexpr int64_t kMostCutBytes = int64_t{1} << 30;

// The built-in table, in the format that `farandole tune --output -` prints.
constexpr std::string_view kBuiltIn = "farandole tuning 1\n";

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; (at = line.find_first_not_of(" \t\r", at)) != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<Collective> collective_named(std::string_view name) {
  for (int kind = 0; kind < kCollectiveCount; ++kind) {
    if (name_of(static_cast<Collective>(kind)) == name) return static_cast<Collective>(kind);
  }
  return std::nullopt;
}

// Reads "2x4", or "4", which means "1x4".
bool read_ranks(std::string_view text, TuningTable::Place& place) {
  const auto cross = text.find('x');
  const auto hosts = cross == std::string_view::npos ? std::optional(1) : number_of<int>(text.substr(0, cross));
  const auto ranks = number_of<int>(cross == std::string_view::npos ? text : text.substr(cross + 1));
  if (!hosts || !ranks || *hosts < 1 || *ranks < 1) return false;
  place.hosts = *hosts;
  place.ranks_per_host = *ranks;
  return true;
}

// Reads "buckets tcp 4 up_to=8388608 alone_above=524288". Returns the fault of the row; empty if there is none.
std::string read_cut(const std::vector<std::string_view>& words, TuningTable& table) {
  constexpr std::string_view kForm = "a row of buckets has a transport, ranks, up_to=bytes and alone_above=bytes";
  constexpr std::string_view kUpTo = "up_to=";
  constexpr std::string_view kAlone = "alone_above=";
  TuningTable::Place place;
  if (words.size() != 5 || !words[3].starts_with(kUpTo) || !words[4].starts_with(kAlone)) return std::string(kForm);
  place.transport = words[1];
  if (!read_ranks(words[2], place)) return std::string(kForm);
  const auto up_to = number_of<int64_t>(words[3].substr(kUpTo.size()));
  const auto alone = number_of<int64_t>(words[4].substr(kAlone.size()));
  if (!up_to || !alone || *up_to < 1 || *alone < 1 || *up_to > kMostCutBytes || *alone > *up_to) {
    return "the bytes of a row of buckets are from 1 to 1G, and alone_above is at most up_to";
  }
  table.set_cut(std::move(place), {static_cast<std::size_t>(*up_to), static_cast<std::size_t>(*alone)});
  return {};
}

// Adds the row to the table. Returns the fault of the row; empty if there is none.
std::string read_row(const std::vector<std::string_view>& words, TuningTable& table) {
  const auto quoted = [](std::string_view word) { return "'" + std::string(word) + "'"; };
  if (words[0] == "buckets") return read_cut(words, table);
  if (words.size() < 5) return "a row has a collective, a transport, ranks, bytes and at least one way=microseconds";
  TuningTable::Place place;
  const auto collective = collective_named(words[0]);
  if (!collective) return quoted(words[0]) + " is no collective";
  place.collective = *collective;
  place.transport = words[1];
  if (!read_ranks(words[2], place)) return quoted(words[2]) + " is no number of ranks such as 4, or 2x4";
  const auto bytes = number_of<int64_t>(words[3]);
  if (!bytes || *bytes < 0) return quoted(words[3]) + " is no number of bytes";
  TuningTable::Ways ways;
  for (std::size_t i = 4; i < words.size(); ++i) {
    const auto equals = std::min(words[i].find('='), words[i].size());
    const std::string_view way = words[i].substr(0, equals);
    const auto us = number_of<double>(words[i].substr(std::min(equals + 1, words[i].size())));
    if (!us || !(*us > 0 && *us < 1e12)) return quoted(words[i]) + " is no way=microseconds";
    if (auto known = find_algorithm(*collective, way); way != kWhole && !known.ok()) return known.status().text();
    ways[std::string(way)] = *us;
  }
  table.set(place, *bytes, std::move(ways));
  return {};
}

// Six digits exceed the precision of the measurements.
std::string time_text(double us) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", us);
  return text;
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size() + 1), ' ');
  return text;
}

}  // namespace

Result<TuningTable> TuningTable::parse(std::string_view text, std::string_view source) {
  TuningTable table;
  bool titled = false;
  int line_number = 0;
  const auto refuse = [&](const std::string& what) {
    return Status(Code::invalid_argument, std::string(source) + ", line " + std::to_string(line_number) + ": " + what +
                                              "; `farandole tune` writes such a table anew");
  };
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    line = line.substr(0, line.find('#'));
    const auto words = words_of(line);
    if (words.empty()) continue;
    if (!titled) {
      if (words != words_of(kFormat)) return refuse("this version reads '" + std::string(kFormat) + "'");
      titled = true;
      continue;
    }
    if (const std::string wrong = read_row(words, table); !wrong.empty()) return refuse(wrong);
  }
  if (!titled) return refuse("the first line must be '" + std::string(kFormat) + "'");
  return table;
}

const TuningTable& TuningTable::built_in() {
  // Intentionally leaked, because threads may choose an algorithm while the process exits.
  static const auto& table = *[] {
    auto parsed = parse(kBuiltIn, "the built-in table");
    FDL_CHECK(parsed.ok());
    return new TuningTable(parsed.take());
  }();
  return table;
}

std::string TuningTable::text() const {
  std::string text = times_text();
  for (const auto& [place, cut] : cuts_) {
    text += padded("buckets", 15) + padded(place.transport, 10) +
            padded(ranks_text(place.hosts, place.ranks_per_host), 6) + "up_to=" + std::to_string(cut.bucket_bytes) +
            " alone_above=" + std::to_string(cut.alone_bytes) + "\n";
  }
  return text;
}

std::string TuningTable::times_text() const {
  std::string text = std::string(kFormat) + "\n# collective   transport ranks bytes       microseconds of each way\n";
  for (const auto& [place, sizes] : rows_) {
    for (const auto& [bytes, ways] : sizes) {
      text += padded(std::string(name_of(place.collective)), 15) + padded(place.transport, 10) +
              padded(ranks_text(place.hosts, place.ranks_per_host), 6) + padded(std::to_string(bytes), 11);
      for (const auto& [way, us] : ways) text += " " + way + "=" + time_text(us);
      text += "\n";
    }
  }
  return text;
}

std::string TuningTable::fingerprint() const {
  if (rows_.empty()) return "none";
  std::size_t count = 0;
  for (const auto& [place, sizes] : rows_) count += sizes.size();
  return std::to_string(count) + (count == 1 ? " row, " : " rows, ") + fingerprint_of(times_text());
}

void TuningTable::merge(const TuningTable& newer) {
  for (const auto& [place, sizes] : newer.rows_) rows_[place] = sizes;
  for (const auto& [place, cut] : newer.cuts_) cuts_[place] = cut;
}

const TuningTable::Sizes* TuningTable::sizes_of(const Place& place) const {
  const auto found = rows_.find(place);
  return found == rows_.end() ? nullptr : &found->second;
}

std::optional<double> measured_us(const TuningTable::Sizes& sizes, std::string_view way, int64_t bytes) {
  const auto time_at = [&](TuningTable::Sizes::const_iterator at) -> std::optional<double> {
    const auto found = at->second.find(way);
    return found == at->second.end() ? std::nullopt : std::optional(found->second);
  };
  if (sizes.empty()) return std::nullopt;
  const auto above = sizes.lower_bound(bytes);
  if (above == sizes.end()) {
    const auto last = std::prev(above);
    const auto us = time_at(last);
    if (!us || last->first == 0) return us;
    return *us * (static_cast<double>(bytes) / static_cast<double>(last->first));
  }
  const auto us_above = time_at(above);
  if (!us_above || above == sizes.begin() || above->first == bytes) return us_above;
  const auto below = std::prev(above);
  const auto us_below = time_at(below);
  if (!us_below) return std::nullopt;
  const double way_up = static_cast<double>(bytes - below->first) / static_cast<double>(above->first - below->first);
  return *us_below + (*us_above - *us_below) * way_up;
}

std::string ranks_text(int hosts, int ranks_per_host) {
  return (hosts == 1 ? "" : std::to_string(hosts) + "x") + std::to_string(ranks_per_host);
}

}  // namespace fdl
