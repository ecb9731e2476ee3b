// Tests of bind_ranks(): which processors each rank gets, and when none is bound.
#include "bootstrap/topology/binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>

namespace fdl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two nodes with three cores each; each core has two hardware threads, numbered as Linux does: n and n + 6.
UsableProcessors two_nodes() {
  UsableProcessors usable;
  for (int core = 0; core < 6; ++core) usable.by_core.push_back({core, core + 6});
  usable.by_node = {{0, 1, 2, 6, 7, 8}, {3, 4, 5, 9, 10, 11}};
  return usable;
}

Binding bound(BindTo to, int ranks, const UsableProcessors& usable) {
  auto binding = bind_ranks(to, ranks, usable);
  EXPECT_TRUE(binding.ok()) << binding.status().text();
  return binding.ok() ? *binding : Binding();
}

TEST(Binding, GivesEachRankAnEqualShareOfWholeCores) {
  for (const BindTo to : {BindTo::automatic, BindTo::core}) {
    const Binding binding = bound(to, 3, two_nodes());
    EXPECT_THAT(binding.processors,
                ElementsAre(ElementsAre(0, 6, 1, 7), ElementsAre(2, 8, 3, 9), ElementsAre(4, 10, 5, 11)));
    EXPECT_EQ(binding.text, "each rank to 2 cores");
  }
  EXPECT_EQ(bound(BindTo::core, 6, two_nodes()).text, "each rank to a core");
}

TEST(Binding, LeavesCoresFreeThatCannotBeShared) {
  const Binding binding = bound(BindTo::core, 4, two_nodes());
  EXPECT_THAT(binding.processors,
              ElementsAre(ElementsAre(0, 6), ElementsAre(1, 7), ElementsAre(2, 8), ElementsAre(3, 9)));
}

TEST(Binding, PutsRanksOnNodesInBlocks) {
  const UsableProcessors usable = two_nodes();
  const Binding binding = bound(BindTo::numa, 3, usable);
  EXPECT_THAT(binding.processors, ElementsAre(usable.by_node[0], usable.by_node[0], usable.by_node[1]));
}

TEST(Binding, IsAutomaticOnlyWhereNothingElseHasDecided) {
  UsableProcessors usable = two_nodes();
  EXPECT_THAT(bound(BindTo::automatic, 1, usable).text, HasSubstr("there is one rank"));
  EXPECT_THAT(bound(BindTo::automatic, 7, usable).text, HasSubstr("7 ranks share 6 cores"));
  EXPECT_THAT(bound(BindTo::none, 2, usable).processors, IsEmpty());
  usable.quota = 1.5;
  EXPECT_THAT(bound(BindTo::automatic, 2, usable).text, HasSubstr("quota"));
  EXPECT_THAT(bound(BindTo::automatic, 2, usable).processors, IsEmpty());
  EXPECT_THAT(bound(BindTo::core, 2, usable).processors.size(), 2u) << "asked for by name";
  usable.quota = 0;
  usable.is_restricted = true;
  EXPECT_THAT(bound(BindTo::automatic, 2, usable).text, HasSubstr("a part of the machine's processors"));
  EXPECT_THAT(bound(BindTo::automatic, 2, usable).processors, IsEmpty());
}

TEST(Binding, RefusesWhatIsImpossible) {
  UsableProcessors usable = two_nodes();
  const auto many = bind_ranks(BindTo::core, 7, usable);
  EXPECT_EQ(many.status().code(), Code::unsupported);
  EXPECT_THAT(many.status().text(), HasSubstr("--bind-to core: there are 7 ranks and 6 cores"));
  usable.by_node.resize(1);
  EXPECT_THAT(bind_ranks(BindTo::numa, 2, usable).status().text(), HasSubstr("--bind-to numa"));
}

TEST(Binding, IsDescribed) {
  UsableProcessors usable = two_nodes();
  EXPECT_EQ(describe_binding(usable), "farandole run binds 2 to 6 ranks, each to an equal share of the cores");
  usable.quota = 1.5;
  EXPECT_EQ(describe_binding(usable), "farandole run binds no ranks: a quota limits their time");
  usable.by_core.resize(1);
  EXPECT_EQ(describe_binding(usable), "farandole run binds no ranks: there is one core");
}

TEST(Binding, WordsAreThoseOfTheOption) {
  EXPECT_EQ(bind_to_from("auto"), BindTo::automatic);
  EXPECT_EQ(bind_to_from("core"), BindTo::core);
  EXPECT_EQ(bind_to_from("numa"), BindTo::numa);
  EXPECT_EQ(bind_to_from("none"), BindTo::none);
  EXPECT_FALSE(bind_to_from("socket").has_value());
}

// It runs in a process of its own, because hwloc reads the machine once.
TEST(UsableProcessorsDeathTest, AreThoseOfTheAffinityByCoreAndNode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto in_a_machine = [] {
    ::setenv("HWLOC_SYNTHETIC", "numa:2 core:512 pu:1", 1);
    const UsableProcessors before = usable_processors();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(before.by_core.back().front()), &one);
    if (::sched_setaffinity(0, sizeof one, &one) != 0) std::_Exit(2);
    const UsableProcessors after = usable_processors();
    const std::vector<std::vector<int>> last{before.by_core.back()};
    const bool is_right = after.by_core == last && after.by_node == last &&
                          after.is_restricted == (before.is_restricted || before.by_core.size() > 1);
    std::_Exit(is_right ? 0 : 1);
  };
  EXPECT_EXIT(in_a_machine(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace fdl
