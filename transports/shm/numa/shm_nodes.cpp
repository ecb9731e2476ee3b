// ShmNodes numbers the nodes by their lowest rank and groups the ranks by node.
#include "transports/shm/numa/shm_nodes.h"

#include <fmt/format.h>

#include <algorithm>

namespace fdl {
namespace {

// Whether the ranks are consecutive.
bool are_neighbours(RankMask ranks) {
  const RankMask from_zero = ranks >> first_of(ranks);
  return (from_zero & (from_zero + 1)) == 0;
}

// "0-3", "0,2,4-6"
std::string text_of(RankMask ranks) {
  std::string text;
  while (ranks != 0) {
    const int first = first_of(ranks);
    int last = first;
    while (last + 1 < kMaxShmRanks && (ranks & bit_of(last + 1)) != 0) ++last;
    if (!text.empty()) text += ",";
    text += first == last ? std::to_string(first) : fmt::format("{}-{}", first, last);
    for (int rank = first; rank <= last; ++rank) ranks &= ~bit_of(rank);
  }
  return text;
}

}  // namespace

ShmNodes::ShmNodes(std::span<const int> node_of_rank) {
  const int ranks = static_cast<int>(node_of_rank.size());
  if (ranks > kMaxShmRanks || std::ranges::any_of(node_of_rank, [](int node) { return node < 0; })) return;
  // The system's node numbers, in the order of their first rank.
  std::array<int, kMaxShmRanks> names{};
  for (int rank = 0; rank < ranks; ++rank) {
    const int name = node_of_rank[at(rank)];
    const auto known = std::find(names.begin(), names.begin() + count_, name);
    const int node = static_cast<int>(known - names.begin());
    if (node == count_) names[at(count_++)] = name;
    node_of_[at(rank)] = node;
    masks_[at(node)] |= bit_of(rank);
  }
  fewest_ = ranks;
  for (int node = 0; node < count_; ++node) {
    fewest_ = std::min(fewest_, ranks_on(node));
    in_rank_order_ = in_rank_order_ && are_neighbours(ranks_of(node));
  }
  // As many nodes as ranks means one rank per node.
  are_levels_ = count_ > 1 && count_ < ranks;
}

std::string ShmNodes::ranks_text(int node) const { return text_of(ranks_of(node)); }

std::string ShmNodes::text() const {
  std::string text = fmt::format("{} NUMA nodes, ranks ", count_);
  for (int node = 0; node < count_; ++node) {
    if (node > 0) text += node + 1 < count_ ? ", " : " and ";
    text += ranks_text(node);
  }
  return text;
}

}  // namespace fdl
