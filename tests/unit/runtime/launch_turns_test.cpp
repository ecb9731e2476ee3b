// Tests LaunchTurns with seeded histories: ranks with devices that run one kernel at a time, groups that overlap, and
// exchanges of proposals that arrive at any time.
#include "runtime/progress/launch_turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fdl {
namespace {

// One history. All ranks run the same launches of each group, in the group's order.
class History {
 public:
  explicit History(unsigned seed) : random_(seed) {
    const int size = pick(2, 6);
    ranks_ = std::vector<Rank>(static_cast<std::size_t>(size));
    for (int id = pick(2, 5); id > 0; --id) {
      std::set<std::size_t> members;
      for (int count = pick(1, size); count > 0; --count) members.insert(static_cast<std::size_t>(pick(0, size - 1)));
      groups_.push_back({members, std::vector<std::vector<int64_t>>(kLaunches)});
    }
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      for (const std::size_t rank : groups_[group].members) {
        Member& member = ranks_[rank].members[group];
        member.line = std::make_unique<LaunchTurns::Line>(ranks_[rank].turns, "group " + std::to_string(group));
        member.line->use_device();
      }
    }
  }

  // Returns false if the devices wait for each other, or if no rank can go on.
  bool run() {
    while (!is_over()) {
      bool moved = false;
      for (int attempt = 0; attempt < 50; ++attempt) moved |= advance_one();
      if (!moved) moved = advance_all();
      if (!moved) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kLaunches = 5;
  enum class Step { idle, proposed, agreed };
  struct Member {
    std::unique_ptr<LaunchTurns::Line> line;
    std::size_t launch = 0;
    Step step = Step::idle;
  };
  using Kernel = std::pair<std::size_t, std::size_t>;  // the group, and the launch
  struct Rank {
    std::shared_ptr<LaunchTurns> turns = std::make_shared<LaunchTurns>();
    std::map<std::size_t, Member> members;  // by group
    std::deque<Kernel> device;
  };
  struct Group {
    std::set<std::size_t> members;
    std::vector<std::vector<int64_t>> proposals;  // by launch
  };

  int pick(int least, int greatest) { return std::uniform_int_distribution<int>(least, greatest)(random_); }

  bool is_over() const {
    for (const Rank& rank : ranks_) {
      for (const auto& [group, member] : rank.members) {
        if (member.launch < kLaunches) return false;
      }
      if (!rank.device.empty()) return false;
    }
    return true;
  }
  bool advance_one() {
    Rank& rank = ranks_[static_cast<std::size_t>(pick(0, static_cast<int>(ranks_.size()) - 1))];
    if (rank.members.empty()) return false;
    auto chosen = rank.members.begin();
    std::advance(chosen, pick(0, static_cast<int>(rank.members.size()) - 1));
    const bool moved = advance(rank, chosen->first, chosen->second);
    return run_kernels() || moved;
  }
  bool advance_all() {
    bool moved = run_kernels();
    for (Rank& rank : ranks_) {
      for (auto& [group, member] : rank.members) moved |= advance(rank, group, member);
    }
    return moved;
  }
  bool advance(Rank& rank, std::size_t group, Member& member) {
    if (member.launch == kLaunches) return false;
    if (!member.line->takes_turns()) {
      member.line->take_turns();
      return true;
    }
    std::vector<int64_t>& proposals = groups_[group].proposals[member.launch];
    switch (member.step) {
      case Step::idle:
        if (!member.line->may_propose()) return false;
        proposals.push_back(member.line->propose());
        member.step = Step::proposed;
        return true;
      case Step::proposed:
        if (proposals.size() < groups_[group].members.size()) return false;
        member.line->agree(*std::max_element(proposals.begin(), proposals.end()));
        member.step = Step::agreed;
        return true;
      case Step::agreed:
        if (!member.line->is_first()) return false;
        rank.device.emplace_back(group, member.launch++);
        member.line->leave();
        member.step = Step::idle;
        return true;
    }
    return false;
  }
  // A kernel ends when all its ranks run it. A device runs the one that was launched first.
  bool run_kernels() {
    bool moved = false;
    for (const Rank& rank : ranks_) {
      if (rank.device.empty()) continue;
      const Kernel kernel = rank.device.front();
      const std::set<std::size_t>& members = groups_[kernel.first].members;
      const auto runs_it = [&](std::size_t one) {
        return !ranks_[one].device.empty() && ranks_[one].device.front() == kernel;
      };
      if (!std::all_of(members.begin(), members.end(), runs_it)) continue;
      for (const std::size_t one : members) ranks_[one].device.pop_front();
      moved = true;
    }
    return moved;
  }

  std::mt19937 random_;
  std::vector<Group> groups_;
  std::vector<Rank> ranks_;
};

TEST(LaunchTurns, NoDevicesWaitForEachOther) {
  for (unsigned seed = 1; seed <= 3000; ++seed) ASSERT_TRUE(History(seed).run()) << "seed " << seed;
}

class TwoGroups : public testing::Test {
 protected:
  TwoGroups() {
    one_.use_device();
    two_.use_device();
  }
  void take_turns() {
    one_.take_turns();
    two_.take_turns();
  }
  const std::shared_ptr<LaunchTurns> turns_ = std::make_shared<LaunchTurns>();
  LaunchTurns::Line one_{turns_, "one"};
  LaunchTurns::Line two_{turns_, "two"};
};

TEST_F(TwoGroups, ShareTheDeviceOnceBothUseIt) {
  LaunchTurns::Line third(turns_, "three");
  EXPECT_TRUE(one_.is_shared());
  EXPECT_FALSE(third.is_shared());
  two_.end();
  EXPECT_FALSE(one_.is_shared());
}

TEST_F(TwoGroups, ProposeOnlyOnceBothTakeTurns) {
  one_.take_turns();
  EXPECT_FALSE(one_.may_propose());
  two_.take_turns();
  EXPECT_TRUE(one_.may_propose());
}

TEST_F(TwoGroups, WaitForAProposalThatMayBecomeASmallerNumber) {
  take_turns();
  EXPECT_EQ(one_.propose(), 1);
  EXPECT_EQ(two_.propose(), 2);
  two_.agree(2);
  EXPECT_FALSE(two_.is_first());
  one_.agree(7);
  EXPECT_TRUE(two_.is_first());
  EXPECT_FALSE(one_.is_first());
  two_.leave();
  EXPECT_TRUE(one_.is_first());
  EXPECT_EQ(two_.propose(), 8);
}

TEST_F(TwoGroups, WithEqualNumbersAreOrderedByTheirIds) {
  take_turns();
  static_cast<void>(two_.propose());
  static_cast<void>(one_.propose());
  one_.agree(5);
  two_.agree(5);
  EXPECT_TRUE(one_.is_first());
  EXPECT_FALSE(two_.is_first());
}

TEST_F(TwoGroups, DoNotWaitForOneThatHasEnded) {
  take_turns();
  static_cast<void>(one_.propose());
  static_cast<void>(two_.propose());
  two_.agree(2);
  EXPECT_FALSE(two_.is_first());
  one_.end();
  EXPECT_TRUE(two_.is_first());
}

}  // namespace
}  // namespace fdl
