// Tests of Silence, which measures how long a coordinator has not answered, with a fake clock.
#include "bootstrap/coordinator/silence.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace fdl
