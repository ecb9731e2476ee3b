// AgreementTree computes the parents of all ranks, and keeps what concerns its own rank.
#include "agree/session/agreement_tree.h"

#include <algorithm>
#include <unordered_map>

#include "base/check.h"

namespace fdl {
namespace {

// The parent of each rank. It is lower than the rank itself; rank 0 has none (-1).
std::vector<int> parents_of(std::span<const int> hosts, int width) {
  std::vector<int> parents(hosts.size(), 0);
  parents[0] = -1;
  if (width == 0 || hosts.size() <= 2 * static_cast<std::size_t>(width) + 1) return parents;
  std::vector<int> leaders;
  std::unordered_map<int, std::vector<int>> ranks_of_host;
  // The i-th of a list has the parent at (i - 1) / width of the list.
  const auto parent_in = [width](const std::vector<int>& list) {
    return list[(list.size() - 2) / static_cast<std::size_t>(width)];
  };
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    std::vector<int>& host = ranks_of_host[hosts[static_cast<std::size_t>(rank)]];
    std::vector<int>& list = host.empty() ? leaders : host;
    list.push_back(rank);
    if (host.empty()) host.push_back(rank);
    if (rank > 0) parents[static_cast<std::size_t>(rank)] = parent_in(list);
  }
  return parents;
}

}  // namespace

AgreementTree::AgreementTree(int rank, std::span<const int> hosts, int width) : rank_(rank) {
  FDL_CHECK(rank >= 0 && static_cast<std::size_t>(rank) < hosts.size() && width >= 0);
  const std::vector<int> parents = parents_of(hosts, width);
  const auto parent_of = [&](int of) { return parents[static_cast<std::size_t>(of)]; };
  for (int above = parent_of(rank); above >= 0; above = parent_of(above)) ancestors_.push_back(above);
  for (int other = rank + 1; other < static_cast<int>(hosts.size()); ++other) {
    if (parent_of(other) == rank) children_.push_back(other);
  }
  if (children_.empty()) return;
  child_above_.assign(hosts.size(), -1);
  for (int other = rank + 1; other < static_cast<int>(hosts.size()); ++other) {
    const int above = parent_of(other);
    const int child = above == rank ? other : child_above_[static_cast<std::size_t>(above)];
    child_above_[static_cast<std::size_t>(other)] = child;
    if (child >= 0 && child != other && !relays(child)) relaying_children_.push_back(child);
  }
}

bool AgreementTree::has_ancestor(int rank) const {
  return std::find(ancestors_.begin(), ancestors_.end(), rank) != ancestors_.end();
}

bool AgreementTree::is_below(int child, int rank) const {
  return rank >= 0 && static_cast<std::size_t>(rank) < child_above_.size() &&
         child_above_[static_cast<std::size_t>(rank)] == child;
}

bool AgreementTree::relays(int child) const {
  return std::find(relaying_children_.begin(), relaying_children_.end(), child) != relaying_children_.end();
}

}  // namespace fdl
