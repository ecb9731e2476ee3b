// Metrics names the rows and groups, and keeps one set of counts for each group.
#include "runtime/telemetry/metrics.h"

#include <algorithm>
#include <numeric>

namespace fdl {
namespace {

// Longer lists of ranks are shortened, so that labels stay readable.
constexpr std::size_t kMostRanksInLabel = 16;

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

}  // namespace

int GroupMetrics::row_of(RequestKind kind) {
  switch (kind) {
    case RequestKind::allreduce:
      return row_of(Collective::allreduce);
    case RequestKind::allgather:
      return row_of(Collective::allgather);
    case RequestKind::broadcast:
      return row_of(Collective::broadcast);
    case RequestKind::alltoall:
      return row_of(Collective::alltoall);
    case RequestKind::reduce_scatter:
      return row_of(Collective::reduce_scatter);
    case RequestKind::barrier:
      return row_of(Collective::barrier);
    case RequestKind::join:
      break;
  }
  return kJoin;
}

Metrics::Metrics(Labels rank) : rank_(std::move(rank)) {
  for (int row = 0; row < GroupMetrics::kRowCount; ++row) {
    row_names_[static_cast<std::size_t>(row)] =
        row == GroupMetrics::kJoin ? name_of(RequestKind::join) : name_of(static_cast<Collective>(row));
  }
}

std::string Metrics::label_of(const std::vector<int>& world_ranks, int world_size) {
  std::vector<int> everyone(static_cast<std::size_t>(world_size));
  std::iota(everyone.begin(), everyone.end(), 0);
  if (world_ranks == everyone) return "all";
  if (world_ranks.size() <= kMostRanksInLabel) return "{" + list_of(world_ranks) + "}";
  return "{" + std::to_string(world_ranks.front()) + ",...," + std::to_string(world_ranks.back()) + "} of " +
         std::to_string(world_ranks.size());
}

std::shared_ptr<GroupMetrics> Metrics::group(const std::string& label) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const auto& one) { return one.first == label; });
  if (found != groups_.end()) return found->second;
  groups_.emplace_back(label, std::make_shared<GroupMetrics>());
  return groups_.back().second;
}

}  // namespace fdl
