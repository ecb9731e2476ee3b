// simulated_cluster.h has what the tests of the cluster simulation share: clusters whose times are exact, and runs.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string_view>

#include "simulate/simulate_collective.h"

namespace fdl {

// Powers of two, so that sums and products of times are exact and can be compared with ==.
inline constexpr double kLatency_s = 0x1p-16;
inline constexpr double kOverhead_s = 0x1p-20;
inline constexpr double kBytesPerSecond = 0x1p30;

inline Cluster cluster_of(int hosts, int ranks_per_host = 1) {
  Cluster cluster{.hosts = hosts, .ranks_per_host = ranks_per_host};
  cluster.network = {.bytes_per_s = kBytesPerSecond, .latency_s = kLatency_s, .overhead_s = kOverhead_s};
  cluster.local = {.bytes_per_s = 0x1p34, .latency_s = 0x1p-20, .overhead_s = 0x1p-22};
  cluster.reduce_bytes_per_s = cluster.copy_bytes_per_s = INFINITY;
  return cluster;
}

inline const Algorithm& row(Collective collective, std::string_view name) { return **find_algorithm(collective, name); }

inline constexpr int64_t kSlice = 256 * 1024;

inline SimulatedCollective run(const Algorithm& algorithm, const Cluster& cluster, int64_t bytes,
                               bool by_symmetry = true, int64_t slice_bytes = kSlice) {
  const auto result = simulate_collective(flat_way(algorithm, cluster, bytes, slice_bytes), cluster, {}, by_symmetry);
  EXPECT_TRUE(result.ok()) << algorithm.name << ": " << result.status().text();
  return result.ok() ? *result : SimulatedCollective{};
}

inline double hop_s(double bytes) { return kLatency_s + 2 * kOverhead_s + bytes / kBytesPerSecond; }

}  // namespace fdl
