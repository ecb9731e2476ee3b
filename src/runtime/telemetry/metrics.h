// Metrics counts the collectives of a rank, by group and kind, in atomics that a scrape reads.
//
// The threads that drive or call write them without a lock, an allocation or a format; the metrics server's threads
// read them. All accesses are relaxed: a scrape may read one counter of an operation and not yet another. Without a
// metrics port there is no Metrics; writers then have a null pointer and read no clock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agree/negotiation/message.h"
#include "base/mutex.h"
#include "schedule/schedule.h"

namespace fdl {

// A histogram of durations: a count for each bound, and the sum of all durations.
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
  // One row for each collective, and one for join.
  static constexpr int kJoin = kCollectiveCount;
  static constexpr int kRowCount = kCollectiveCount + 1;
  static int row_of(Collective collective) { return static_cast<int>(collective); }
  static int row_of(RequestKind kind);

  struct Row {
    std::atomic<uint64_t> operations{0};
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> errors{0};
    DurationCounts took;    // from the call or submission to the end
    DurationCounts waited;  // from the submission of a named operation to the beginning of its collective
  };

  // Counts an operation that ended; `bytes` is what this rank contributed. A failed one also counts as an error.
  void ended(int row, uint64_t bytes, int64_t took_ns, bool failed) {
    Row& counts = rows_[static_cast<std::size_t>(row)];
    counts.operations.fetch_add(1, std::memory_order_relaxed);
    counts.bytes.fetch_add(bytes, std::memory_order_relaxed);
    if (failed) counts.errors.fetch_add(1, std::memory_order_relaxed);
    counts.took.add(took_ns);
  }
  // Counts a named operation whose collective begins now. It waited for other ranks, or for operations before it.
  void began(int row, int64_t waited_ns) { rows_[static_cast<std::size_t>(row)].waited.add(waited_ns); }
  // On the group's root: counts tensors that were reported as stalled. On the rank that reports it: counts a stalled
  // collective on devices.
  void stalled(uint64_t tensors) { stalls_.fetch_add(tensors, std::memory_order_relaxed); }

  const Row& row(int number) const { return rows_[static_cast<std::size_t>(number)]; }
  uint64_t stalls() const { return stalls_.load(std::memory_order_relaxed); }

 private:
  std::array<Row, kRowCount> rows_;
  std::atomic<uint64_t> stalls_{0};
};

// The counts of a world. The counts of a group stay when it ends; a later group of the same ranks continues them.
class Metrics {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // `rank`: the labels of this rank's info metric.
  explicit Metrics(Labels rank);

  // "all", or "{0,2}"; for more than 16 ranks the first, the last and their number.
  static std::string label_of(const std::vector<int>& world_ranks, int world_size);

  std::shared_ptr<GroupMetrics> group(const std::string& label);

  // Bytes that a device of the network has counted, by what it did: "tx", "rx", "rdma_read" or "rdma_write".
  struct DeviceBytes {
    std::string device;
    std::string_view operation;
    uint64_t bytes = 0;
  };
  // Reads them at a scrape, in the metrics server's thread. Set before the server starts; empty if nothing is counted.
  std::function<std::vector<DeviceBytes>()> device_bytes;

  // For the metrics server's threads. Inline, because that module links nothing of the library.
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
