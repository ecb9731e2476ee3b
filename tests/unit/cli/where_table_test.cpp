// Tests of the table, the stacks and the JSON of `farandole where` from a view that the test makes.
#include "cli/where/where_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fdl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RankView rank_of(int rank, RankPresence presence, std::string stacks = {}) {
  RankView view;
  view.presence = presence;
  view.member.rank = rank;
  view.state.stacks = std::move(stacks);
  return view;
}

JobView view_of_a_wait(int64_t waited_ns) {
  JobView view;
  view.ranks.push_back(rank_of(0, RankPresence::answered));
  view.ranks[0].state.add_operation(
      {.group = "all", .operation = "allreduce", .phase = "", .ranks = {1}, .waited_ns = waited_ns});
  return view;
}

TEST(WhereTable, PrintsAgesInSeconds) {
  EXPECT_THAT(where_lines(view_of_a_wait(12'300'000'000), 0)[2], HasSubstr(" 12.3 s "));
  EXPECT_THAT(where_json(view_of_a_wait(12'500'000'000), 0).str(), HasSubstr("\"waited_s\": 12.5"));
}

TEST(WhereTable, PrintsStacksOfRanksThatHaveAnsweredAlone) {
  JobView view;
  view.ranks.push_back(rank_of(0, RankPresence::answered, "thread a:\n  f"));
  view.ranks.push_back(rank_of(1, RankPresence::silent));
  view.ranks.push_back(rank_of(2, RankPresence::answered, "thread a:\n  f"));
  view.ranks.push_back(rank_of(3, RankPresence::lost, "thread b:"));
  view.ranks.push_back(rank_of(4, RankPresence::answered));
  EXPECT_THAT(stack_lines(view),
              ElementsAre("ranks 0 and 2:", "  thread a:", "    f", "rank 4: its program gives no stacks"));
}

// The text comes from the program of a rank, and goes to a terminal.
TEST(WhereTable, PrintsNoControlCharactersOfStacks) {
  JobView view;
  view.ranks.push_back(rank_of(0, RankPresence::answered, "thread \x1b[2J:\n  f\r"));
  for (const std::string& line : stack_lines(view))
    EXPECT_EQ(line.find_first_of("\x1b\r\n"), std::string::npos) << line;
}

}  // namespace
}  // namespace fdl
