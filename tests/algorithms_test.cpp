// Algorithms: every row of the catalog proved for every size in range, the verifier itself tested by mutation, and the
// choice among rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "algorithms/catalog.h"
#include "algorithms/choose.h"
#include "schedule/describe.h"
#include "schedule/order.h"
#include "schedule/places.h"
#include "schedule/simulate.h"
#include "schedule/verify.h"

namespace fdl {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<Schedule> write_all(const Algorithm& algorithm, int size, int root = 0, int ranks_per_host = 1) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < size; ++rank) {
    schedules.push_back(algorithm.write({.collective = algorithm.collective,
                                         .rank = rank,
                                         .size = size,
                                         .root = root,
                                         .ranks_per_host = ranks_per_host}));
  }
  return schedules;
}

std::string label(const Algorithm& algorithm, int size) {
  return std::string(name_of(algorithm.collective)) + " by " + std::string(algorithm.name) + ", " +
         std::to_string(size) + " ranks";
}

bool has_root(Collective collective) {
  return collective == Collective::reduce || collective == Collective::broadcast || collective == Collective::gather ||
         collective == Collective::scatter;
}

std::vector<int> roots_of(const Algorithm& algorithm, int size) {
  if (!has_root(algorithm.collective)) return {0};
  std::vector<int> roots;
  const int stride = size <= 17 ? 1 : size / 4;
  for (int root = 0; root < size; root += stride) roots.push_back(root);
  if (size > 17) roots.push_back(size - 1);
  return roots;
}

std::vector<int> host_sizes_of(const Algorithm& algorithm, int size) {
  std::vector<int> host_sizes{1};
  for (int per_host = 2; algorithm.name == "two_level" && per_host <= size; ++per_host) {
    if (size % per_host == 0) host_sizes.push_back(per_host);
  }
  return host_sizes;
}

void prove(const Algorithm& algorithm, int size, int root, int ranks_per_host, bool in_place) {
  const auto schedules = write_all(algorithm, size, root, ranks_per_host);
  const auto report = verify(schedules, in_place);
  ASSERT_TRUE(report.ok()) << label(algorithm, size) << ", root " << root << ", in place " << in_place << ": "
                           << report.status().text();
  if (!algorithm.needs_commutative) {
    ASSERT_TRUE(report->folds_in_rank_order) << label(algorithm, size);
  }
  for (const Schedule& schedule : schedules) ASSERT_EQ(schedule.name, algorithm.name);
}

// ---- Proofs
// ----------------------------------------------------------------------------------------------------------

TEST(Catalog, EveryRowComputesWhatItsCollectivePromises) {
  std::vector<int> sizes;
  for (int size = 1; size <= 33; ++size) sizes.push_back(size);
  for (const int size : {48, 63, 64, 65}) sizes.push_back(size);
  const auto start = std::chrono::steady_clock::now();
  int pairs = 0;
  int runs = 0;
  for (const Algorithm& algorithm : catalog()) {
    for (const int size : sizes) {
      if (!fits(algorithm, size)) continue;
      ++pairs;
      for (const int root : roots_of(algorithm, size)) {
        for (const int per_host : host_sizes_of(algorithm, size)) {
          for (const bool in_place : {false, true}) {
            if (in_place && !algorithm.in_place) continue;
            ASSERT_NO_FATAL_FAILURE(prove(algorithm, size, root, per_host, in_place));
            ++runs;
          }
        }
      }
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("verifier: %d (algorithm, ranks) pairs proved in %.1f s (%d runs: roots, hosts, in place)\n", pairs,
              took.count(), runs);
}

}  // namespace
}  // namespace fdl
