// OtherNodes is tested as a table: what node 0 has found at its start, and whether it may begin a job.
#include "cli/elastic/other_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fdl {
namespace {

using testing::ElementsAre;
using Outcome = NodeSearch::Outcome;
using Tried = std::map<std::string, Outcome>;

bool may_begin(int fewest, int most, const Tried& tried) {
  OtherNodes others(fewest, most);
  others.note({.tried = tried});
  return others.may_begin();
}

TEST(OtherNodes, WithoutSilentNodesAJobBegins) {
  EXPECT_TRUE(may_begin(1, 2, {}));
  EXPECT_TRUE(may_begin(1, 3, {{"tcp://a:1", Outcome::refused}, {"tcp://b:1", Outcome::absent}}));
}

TEST(OtherNodes, HalfOfAllNodesMayGoOnWhereTheyAreSilent) {
  EXPECT_FALSE(may_begin(1, 2, {{"tcp://a:1", Outcome::silent}}));
  EXPECT_FALSE(may_begin(1, 2, {{"tcp://a:1", Outcome::dropped}}));
  EXPECT_TRUE(may_begin(1, 3, {{"tcp://a:1", Outcome::silent}, {"tcp://b:1", Outcome::refused}}));
  EXPECT_FALSE(may_begin(1, 3, {{"tcp://a:1", Outcome::silent}, {"tcp://b:1", Outcome::silent}}));
  EXPECT_FALSE(may_begin(1, 4, {{"tcp://a:1", Outcome::silent}, {"tcp://b:1", Outcome::silent}}));
}

TEST(OtherNodes, FewerThanMinNodesTrainNothing) {
  EXPECT_TRUE(may_begin(2, 2, {{"tcp://a:1", Outcome::silent}}));
  EXPECT_TRUE(may_begin(3, 4, {{"tcp://a:1", Outcome::silent}, {"tcp://b:1", Outcome::silent}}));
  EXPECT_FALSE(may_begin(2, 4, {{"tcp://a:1", Outcome::silent}, {"tcp://b:1", Outcome::silent}}));
}

TEST(OtherNodes, ANodeWithTwoFamiliesOfAddressesIsOneNode) {
  EXPECT_TRUE(may_begin(1, 3, {{"tcp://10.0.0.1:1", Outcome::silent}, {"tcp://[fd18::1]:1", Outcome::silent}}));
  EXPECT_FALSE(may_begin(1, 3, {{"tcp://[fd18::2]:1", Outcome::silent}, {"tcp://[fd18::1]:1", Outcome::silent}}));
}

TEST(OtherNodes, AJobThatGoesOnIsJoinedUntilItsNodesSayOtherwise) {
  OtherNodes others(1, 3);
  others.note_job();
  EXPECT_FALSE(others.may_begin());
  others.begin_round();
  EXPECT_TRUE(others.may_begin());
}

TEST(OtherNodes, EachPlaceIsAskedOnceInARound) {
  OtherNodes others(1, 3);
  others.note({.outcome = Outcome::answered, .place = "tcp://c:1", .tried = {{"tcp://a:1", Outcome::refused}}});
  EXPECT_THAT(others.asked(), ElementsAre("tcp://a:1", "tcp://c:1"));
  EXPECT_TRUE(others.may_begin());
  others.note_silent("tcp://c:1");  // it accepted the connection, and did not reply
  others.note({.tried = {{"tcp://b:1", Outcome::silent}}});
  EXPECT_FALSE(others.may_begin());
  EXPECT_THAT(others.silent(), ElementsAre("tcp://b:1", "tcp://c:1"));
  others.begin_round();
  EXPECT_TRUE(others.asked().empty() && others.silent().empty());
}

}  // namespace
}  // namespace fdl
