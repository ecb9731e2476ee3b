// This file has the messages of a split, and the ids of groups.
#include "runtime/group/group_making.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "base/rank_list.h"
#include "system/handshake.h"

namespace fdl {
namespace {

constexpr std::size_t kLongestList = 100;  // characters
constexpr int kNone = -1;
constexpr char kMissing = '!';                      // begins the answer if a rank has made no choice; the rank follows
constexpr int64_t kLaterAnswer_ns = 1'000'000'000;  // rank 0 says after the deadline which rank it has missed

using Keys = std::vector<std::pair<int, int>>;  // key and rank of those with one color

std::string text_of(ColorAndKey choice) { return fmt::format("{} {}", choice.color, choice.key); }
std::string answer_key(int color) { return fmt::format("color {}", color); }

std::optional<ColorAndKey> parse_choice(std::string_view text) {
  ColorAndKey choice;
  const char* const end = text.data() + text.size();
  const auto color = std::from_chars(text.data(), end, choice.color);
  if (color.ec != std::errc() || color.ptr == end || *color.ptr != ' ') return std::nullopt;
  const auto key = std::from_chars(color.ptr + 1, end, choice.key);
  if (key.ec != std::errc() || key.ptr != end) return std::nullopt;
  return choice;
}

Status broken(std::string_view text) { return Status(Code::internal, fmt::format("'{}' is no word of a split", text)); }

Status missing(const std::vector<Member>& members, int rank) {
  return Status(Code::timeout, name_of(members[static_cast<std::size_t>(rank)]) + " has not called split in time");
}

Result<std::vector<int>> collect(const std::vector<Member>& members, ColorAndKey mine, Exchange& exchange,
                                 Deadline deadline) {
  std::vector<int> others(members.size() - 1);
  std::iota(others.begin(), others.end(), 1);
  ManyFacts choices;
  if (!others.empty()) {
    FDL_ASSIGN_OR_RETURN(choices, exchange.fetch_many("", others, deadline));
  }
  std::map<int, Keys> colors{{mine.color, {{mine.key, 0}}}};
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (std::ranges::count(choices.missing, others[i]) > 0) continue;
    const std::optional<ColorAndKey> choice = parse_choice(choices.values[i]);
    if (!choice) return broken(choices.values[i]);
    colors[choice->color].emplace_back(choice->key, others[i]);
  }
  std::vector<int> chosen;
  for (auto& [color, keys] : colors) {
    std::ranges::sort(keys);
    std::vector<int> ranks;
    for (const auto& [key, rank] : keys) ranks.push_back(rank);
    const std::string answer =
        choices.missing.empty() ? rank_list_text(ranks) : fmt::format("{}{}", kMissing, choices.missing.front());
    const int readers = static_cast<int>(keys.size()) - (color == mine.color ? 1 : 0);
    if (readers > 0) FDL_RETURN_IF_ERROR(exchange.publish_for(readers, answer_key(color), answer));
    if (color == mine.color) chosen = std::move(ranks);
  }
  if (!choices.missing.empty()) return missing(members, choices.missing.front());
  return chosen;
}

Result<std::vector<int>> choose(const std::vector<Member>& members, int rank, ColorAndKey mine, Exchange& exchange,
                                Deadline deadline) {
  FDL_RETURN_IF_ERROR(exchange.publish_for(1, std::to_string(rank), text_of(mine)));
  const auto answer = exchange.fetch(answer_key(mine.color), deadline.shifted_by_ns(kLaterAnswer_ns));
  if (answer.status().code() == Code::timeout) return Status(Code::timeout, "some rank has not called split in time");
  if (!answer.ok()) return answer.status();
  const bool is_complete = !answer->starts_with(kMissing);
  auto ranks = parse_rank_list(std::string_view(*answer).substr(is_complete ? 0 : 1), members.size());
  const auto is_rank = [&](int one) { return one < static_cast<int>(members.size()); };
  if (!ranks || ranks->empty() || !std::ranges::all_of(*ranks, is_rank)) return broken(*answer);
  if (!is_complete) return missing(members, ranks->front());
  if (std::ranges::count(*ranks, rank) != 1) return broken(*answer);
  return std::move(*ranks);
}

}  // namespace

std::string id_of_ranks(const std::vector<int>& world_ranks) {
  const std::string list = rank_list_text(world_ranks);
  if (list.size() <= kLongestList) return "{" + list + "}";
  const std::size_t end = list.rfind(',', kLongestList);
  const Digest digest = sha256(list);
  return fmt::format("{{{},... {} ranks, {}}}", list.substr(0, end), world_ranks.size(),
                     hex(std::as_bytes(std::span(digest).first(8))));
}

Result<std::vector<int>> exchange_colors(const std::vector<Member>& members, int rank, ColorAndKey mine,
                                         Exchange& exchange, Deadline deadline) {
  mine.color = std::max(mine.color, kNone);
  auto ranks = rank == 0 ? collect(members, mine, exchange, deadline) : choose(members, rank, mine, exchange, deadline);
  if (ranks.ok() && mine.color == kNone) ranks->clear();
  return ranks;
}

}  // namespace fdl
