// Tests of AgreementTree: the tree of the drawing, and the properties of trees of many sizes.
#include "agree/session/agreement_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace fdl {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<AgreementTree> trees_of(const std::vector<int>& hosts, int width) {
  std::vector<AgreementTree> trees;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) trees.emplace_back(rank, hosts, width);
  return trees;
}

TEST(AgreementTree, JoinsHostsByTheirLowestRanks) {
  const auto trees = trees_of({7, 7, 7, 7, 7, 3, 3, 3, 3, 3}, 2);
  EXPECT_THAT(trees[0].children(), ElementsAre(1, 2, 5));
  EXPECT_THAT(trees[1].children(), ElementsAre(3, 4));
  EXPECT_THAT(trees[5].children(), ElementsAre(6, 7));
  EXPECT_THAT(trees[6].children(), ElementsAre(8, 9));
  EXPECT_EQ(trees[9].parent(), 6);
  EXPECT_TRUE(trees[9].has_ancestor(5));
  EXPECT_TRUE(trees[9].has_ancestor(0));
  EXPECT_FALSE(trees[9].has_ancestor(1));
  EXPECT_FALSE(trees[9].has_ancestor(9));
  EXPECT_TRUE(trees[0].is_root());
  EXPECT_EQ(trees[0].parent(), -1);
  EXPECT_FALSE(trees[0].is_relay());
  EXPECT_TRUE(trees[5].is_relay());
  EXPECT_FALSE(trees[2].is_relay());
  EXPECT_TRUE(trees[0].is_below(5, 9));
  EXPECT_TRUE(trees[0].is_below(5, 5));
  EXPECT_FALSE(trees[0].is_below(1, 9));
  EXPECT_FALSE(trees[5].is_below(6, 5)) << "a rank is not below its own child";
  EXPECT_FALSE(trees[5].is_below(6, 10)) << "there is no such rank";
  EXPECT_FALSE(trees[5].is_below(6, -1));
  EXPECT_TRUE(trees[0].relays(5));
  EXPECT_FALSE(trees[0].relays(2));
}

TEST(AgreementTree, SmallGroupsHaveAStar) {
  EXPECT_EQ(trees_of({0, 0, 0, 1, 1}, 2)[0].children().size(), 4u);
  EXPECT_LT(trees_of({0, 0, 0, 0, 1, 1}, 2)[0].children().size(), 5u);
  const std::vector<int> many(1000, 0);
  EXPECT_EQ(AgreementTree(0, many, 0).children().size(), 999u) << "width 0 is always a star";
  EXPECT_THAT(AgreementTree(0, std::vector<int>{4}, 16).children(), IsEmpty());
}

// What the protocol relies on: each rank has one way to the root, and both ends of each link know it.
void expect_tree(const std::vector<int>& hosts, int width) {
  const auto trees = trees_of(hosts, width);
  const int size = static_cast<int>(hosts.size());
  const bool star = size <= 2 * width + 1;
  int between_hosts = 0;
  std::size_t deepest = 0;
  for (const AgreementTree& tree : trees) {
    ASSERT_LE(tree.children().size(), static_cast<std::size_t>(2 * width));
    for (const int child : tree.children()) {
      ASSERT_EQ(trees[static_cast<std::size_t>(child)].parent(), tree.rank());
      ASSERT_EQ(tree.relays(child), !trees[static_cast<std::size_t>(child)].children().empty());
      between_hosts += hosts[static_cast<std::size_t>(child)] != hosts[static_cast<std::size_t>(tree.rank())] ? 1 : 0;
    }
    std::size_t depth = 0;
    for (int rank = 0; rank < size; ++rank) {
      depth += tree.has_ancestor(rank) ? 1 : 0;
      int ways = 0;
      for (const int child : tree.children()) ways += tree.is_below(child, rank) ? 1 : 0;
      ASSERT_EQ(ways, trees[static_cast<std::size_t>(rank)].has_ancestor(tree.rank()) ? 1 : 0);
    }
    ASSERT_TRUE(tree.is_root() || tree.has_ancestor(0));
    ASSERT_TRUE(tree.is_root() || tree.has_ancestor(tree.parent()));
    deepest = std::max(deepest, depth);
  }
  const int host_count = static_cast<int>(std::set<int>(hosts.begin(), hosts.end()).size());
  if (!star) {
    EXPECT_EQ(between_hosts, host_count - 1);
  }
  if (width > 1 && size > 1) {
    std::size_t levels = 1;  // of a tree of this width with as many ranks; one such tree is below the other
    for (int reached = width; reached < size; reached *= width) ++levels;
    EXPECT_LE(deepest, 2 * levels);
  }
}

TEST(AgreementTree, HasOneWayToTheRootForEachRank) {
  std::mt19937_64 random(4711);
  const auto below = [&](int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random); };
  for (int size = 1; size <= 70; ++size) {
    for (int width = 1; width <= 5; ++width) {
      std::vector<int> hosts;
      const int host_count = 1 + below(size);
      for (int rank = 0; rank < size; ++rank) hosts.push_back(below(host_count));
      expect_tree(hosts, width);
      if (HasFatalFailure()) FAIL() << size << " ranks, width " << width;
    }
  }
}

TEST(AgreementTree, LargeGroupsAreShallow) {
  std::vector<int> hosts(32768);
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) hosts[rank] = static_cast<int>(rank / 8);
  const AgreementTree last(32767, hosts, 16);
  int depth = 0;
  for (int rank = 0; rank < 32768; ++rank) depth += last.has_ancestor(rank) ? 1 : 0;
  EXPECT_EQ(depth, 4);
  EXPECT_EQ(AgreementTree(0, hosts, 16).children().size(), 7u + 16u);
}

}  // namespace
}  // namespace fdl
