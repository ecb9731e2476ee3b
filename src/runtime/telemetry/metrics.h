// Metrics: what a rank counts of its collectives, by group and kind; atomics that are read when somebody asks.
//
// Written by whoever drives or calls, without a lock, an allocation or a format; read by the thread that answers. There
// are none while nobody may ask: who counts then has a null pointer and looks at no clock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agree/negotiation/message.h"
#include "base/mutex.h"
#include "schedule/schedule.h"

namespace fdl {

// How long things took: how many of them took at most so long, and all of them together.
class DurationCounts {
 public:
  static constexpr std::array<int64_t, 13> kBounds_ns{
      10'000,     30'000,      100'000,     300'000,       1'000'000,     3'000'000,     10'000'000,
      30'000'000, 100'000'000, 300'000'000, 1'000'000'000, 3'000'000'000, 10'000'000'000};

  void add(int64_t ns) {
    std::size_t bucket = 0;
    while (bucket < kBounds_ns.size() && ns > kBounds_ns[bucket]) ++bucket;
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_ns_.fetch_add(ns, std::memory_order_relaxed);
  }
  uint64_t count(std::size_t bucket) const { return counts_[bucket].load(std::memory_order_relaxed); }
  int64_t sum_ns() const { return sum_ns_.load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<uint64_t>, kBounds_ns.size() + 1> counts_{};  // the last one: longer than all bounds
  std::atomic<int64_t> sum_ns_{0};
};

// The counts of one group.
class GroupMetrics {
 public:
  // Rows are the collectives, and joining.
  static constexpr int kJoin = kCollectiveCount;
  static constexpr int kRowCount = kCollectiveCount + 1;
  static int row_of(Collective collective) { return static_cast<int>(collective); }
  static int row_of(RequestKind kind);

  struct Row {
    std::atomic<uint64_t> operations{0};
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> errors{0};
    DurationCounts took;
    DurationCounts waited;
  };

  // An operation ended: what it took from its call or submission on. A failed one counts as an error besides.
  void ended(int row, uint64_t bytes, int64_t took_ns, bool failed) {
    Row& counts = rows_[static_cast<std::size_t>(row)];
    counts.operations.fetch_add(1, std::memory_order_relaxed);
    counts.bytes.fetch_add(bytes, std::memory_order_relaxed);
    if (failed) counts.errors.fetch_add(1, std::memory_order_relaxed);
    counts.took.add(took_ns);
  }
  // A named operation began so long after it was submitted: others were not ready, or something else was under way.
  void began(int row, int64_t waited_ns) { rows_[static_cast<std::size_t>(row)].waited.add(waited_ns); }
  // Where the group's root is: so many tensors were reported as stalled; or, on the rank that reports it, a collective
  // on devices.
  void stalled(uint64_t tensors) { stalls_.fetch_add(tensors, std::memory_order_relaxed); }

  const Row& row(int number) const { return rows_[static_cast<std::size_t>(number)]; }
  uint64_t stalls() const { return stalls_.load(std::memory_order_relaxed); }

 private:
  std::array<Row, kRowCount> rows_;
  std::atomic<uint64_t> stalls_{0};
};

// The counts of a world. Those of a group stay when it ends, and a group of the same ranks goes on with them.
class Metrics {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // `rank`: what there is to say of this rank.
  explicit Metrics(Labels rank);

  // "all", or "{0,2}"; of many ranks the first and last, and how many.
  static std::string label_of(const std::vector<int>& world_ranks, int world_size);

  std::shared_ptr<GroupMetrics> group(const std::string& label);

  // For the thread that answers; here, because its module has nothing of the library but this header.
  const Labels& rank() const { return rank_; }
  const std::string& name_of_row(int row) const { return row_names_[static_cast<std::size_t>(row)]; }
  std::vector<std::pair<std::string, std::shared_ptr<GroupMetrics>>> groups() const {
    MutexLock lock(mutex_);
    return groups_;
  }

 private:
  const Labels rank_;
  std::array<std::string, GroupMetrics::kRowCount> row_names_;
  mutable Mutex mutex_;
  std::vector<std::pair<std::string, std::shared_ptr<GroupMetrics>>> groups_ FDL_GUARDED_BY(mutex_);
};

}  // namespace fdl
