// Tests of Silence, which measures how long a coordinator has not answered, with a fake clock, and of which ranks a
// waiting rank probes.
#include "bootstrap/client/silence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "bootstrap/coordinator/setup_watch.h"

namespace fdl {
namespace {

using Finding = Silence::Finding;

// A warning after 10, a loss after 30, steps of at most 5.
Silence make() { return Silence(10, 30, 5); }

TEST(Silence, IsFoundAsOneWarningAndThenAsALoss) {
  Silence silence = make();
  EXPECT_EQ(silence.query(100), Finding::none);
  EXPECT_EQ(silence.query(105), Finding::none);
  EXPECT_EQ(silence.query(110), Finding::warning);
  for (int64_t now = 115; now < 130; now += 5) EXPECT_EQ(silence.query(now), Finding::none);
  EXPECT_EQ(silence.query(130), Finding::lost);
  EXPECT_EQ(silence.query(135), Finding::lost);
}

TEST(Silence, EndsWithAnAnswer) {
  Silence silence = make();
  silence.query(0);
  silence.query(4);
  EXPECT_EQ(silence.answered(), 0) << "a silence without a warning is not reported";
  for (int64_t now = 5; now <= 15; now += 5) silence.query(now);
  EXPECT_EQ(silence.answered(), 10);
  EXPECT_EQ(silence.query(16), Finding::none);
  EXPECT_EQ(silence.query(21), Finding::none);
  EXPECT_EQ(silence.query(26), Finding::warning) << "a later silence begins anew";
}

TEST(Silence, DoesNotCountTimeInWhichThisProcessDidNotRun) {
  Silence silence = make();
  silence.query(0);
  EXPECT_EQ(silence.query(1000), Finding::none) << "one step of 5";
  EXPECT_EQ(silence.query(1005), Finding::warning);
  EXPECT_EQ(silence.query(9999), Finding::none);
}

TEST(Silence, DoesNotCountTimeWithoutAQuery) {
  Silence silence = make();
  silence.query(0);
  silence.answered();
  EXPECT_EQ(silence.query(1000), Finding::none);
  EXPECT_EQ(silence.query(1009), Finding::none);
}

// ---- Which ranks a rank probes ----

TEST(RanksToProbe, AreAllOthersOfASmallGroup) {
  EXPECT_EQ(ranks_to_probe({0, 1, 3}, 2), (std::vector<int>{0, 1, 3}));
  EXPECT_EQ(ranks_to_probe({}, 0), std::vector<int>());
}

TEST(RanksToProbe, AreFewOfALargeGroupAndTogetherAll) {
  for (const int size : {34, 35, 1000}) {
    std::vector<int> members;
    for (int rank = 0; rank < size; ++rank) members.push_back(3 * (size - rank));  // world ranks in another order
    std::map<int, int> probes;
    for (const int me : members) {
      std::vector<int> others = members;
      std::erase(others, me);
      const std::vector<int> few = ranks_to_probe(others, me);
      EXPECT_EQ(few.size(), 3u);
      EXPECT_EQ(std::ranges::count(few, me), 0);
      for (const int rank : few) ++probes[rank];
    }
    for (const int rank : members) EXPECT_GE(probes[rank], 2) << "rank " << rank << " of " << size;
  }
}

// The ranks of a large group together send about as many probes in a second as those of a group of 128.
TEST(ProbeInterval, GrowsWithTheGroupUpToALimit) {
  EXPECT_EQ(probe_interval_ns(0, 400, 10'000), 400);
  EXPECT_EQ(probe_interval_ns(255, 400, 10'000), 400);
  EXPECT_EQ(probe_interval_ns(512, 400, 10'000), 1600);
  EXPECT_EQ(probe_interval_ns(65'536, 400, 10'000), 2500) << "several probes within lost_after_s";
  EXPECT_EQ(probe_interval_ns(65'536, 400, 100), 400);
}

}  // namespace
}  // namespace fdl
