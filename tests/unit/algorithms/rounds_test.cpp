// Tests of rounds: every algorithm of the catalog is lowered to groups of messages and verified for many sizes. Damaged
// rounds must be refused.
#include "schedule/proof/rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>

#include "algorithms/catalog.h"
#include "schedule/builder.h"
#include "schedule/print/describe.h"
#include "schedule/proof/verify.h"

namespace fdl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<Schedule> write_all(const Algorithm& algorithm, int size, int root, int ranks_per_host = 1) {
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

std::string label(const Algorithm& algorithm, int size, bool in_place) {
  return std::string(name_of(algorithm.collective)) + " by " + std::string(algorithm.name) + ", " +
         std::to_string(size) + " ranks" + (in_place ? ", in place" : "");
}

std::string fault(const std::vector<Schedule>& schedules, bool in_place = false) {
  const auto rounds = lower_to_rounds(schedules, in_place);
  if (!rounds.ok()) return rounds.status().text();
  return verify_rounds(schedules, *rounds, in_place).text();
}

TEST(Rounds, EveryRowOfTheCatalogVerifiesAndFinishes) {
  std::vector<int> sizes;
  for (int size = 1; size <= 33; ++size) sizes.push_back(size);
  sizes.push_back(48);
  sizes.push_back(64);
  const auto start = std::chrono::steady_clock::now();
  int runs = 0;
  for (const Algorithm& algorithm : catalog()) {
    for (const int size : sizes) {
      if (!fits(algorithm, size)) continue;
      for (const int root : {0, size / 2, size - 1}) {
        for (const int per_host : {1, size % 2 == 0 ? 2 : size}) {
          if (per_host != 1 && algorithm.name != "two_level") continue;
          for (const bool in_place : {false, true}) {
            if (in_place && !algorithm.in_place) continue;
            ASSERT_EQ(fault(write_all(algorithm, size, root, per_host), in_place), "")
                << label(algorithm, size, in_place) << ", root " << root;
            ++runs;
          }
        }
      }
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("rounds: %d runs proved in %.1f s\n", runs, took.count());
}

// The number of groups is the length of the longest chain of messages.
TEST(Rounds, RingHasOneRoundPerStep) {
  const auto schedules = write_all(**find_algorithm(Collective::allreduce, "ring"), 5, 0);
  const auto rounds = lower_to_rounds(schedules);
  ASSERT_TRUE(rounds.ok());
  for (const Rounds& one : *rounds) {
    int groups = 0;
    for (const Round& round : one.rounds) groups += round.messages.empty() ? 0 : 1;
    EXPECT_EQ(groups, 8);
    EXPECT_EQ(one.slot_count, 1);
  }
}

// Two ranks send and then fold the message of the other. Both messages must be in one group, else the ranks would wait
// for each other.
TEST(Rounds, ExchangeIsOneGroup) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 2; ++rank) {
    Builder step("hand", Collective::allreduce, rank, 2, 1);
    step.copy(output(0), input(0)).send(1 - rank, output(0)).recv_reduce(1 - rank, output(0));
    schedules.push_back(step.take());
  }
  const auto rounds = lower_to_rounds(schedules);
  ASSERT_TRUE(rounds.ok());
  const Rounds& one = rounds->front();
  ASSERT_EQ(one.rounds.size(), 2u);
  EXPECT_THAT(one.rounds[0].messages, ElementsAre());
  EXPECT_THAT(one.rounds[0].work, ElementsAre(0));
  EXPECT_THAT(one.rounds[1].messages, ElementsAre(1, 2));
  EXPECT_THAT(one.rounds[1].work, ElementsAre(2));
  EXPECT_EQ(fault(schedules), "");
}

// ---- Damaged rounds ----

struct Damaged {
  std::vector<Rounds> rounds;
  std::string what;
};

// The rounds of one rank without one step.
std::vector<Damaged> without_one(const std::vector<Schedule>& schedules, const std::vector<Rounds>& right) {
  std::vector<Damaged> all;
  for (std::size_t rank = 0; rank < right.size(); ++rank) {
    for (std::size_t r = 0; r < right[rank].rounds.size(); ++r) {
      for (const bool message : {true, false}) {
        const Round& round = right[rank].rounds[r];
        for (std::size_t i = 0; i < (message ? round.messages : round.work).size(); ++i) {
          Damaged damaged{right, ""};
          auto& steps = message ? damaged.rounds[rank].rounds[r].messages : damaged.rounds[rank].rounds[r].work;
          damaged.what = "rank " + std::to_string(rank) + " without " +
                         describe(schedules[rank], static_cast<std::size_t>(steps[i])) + (message ? "" : " (work)");
          steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(i));
          all.push_back(std::move(damaged));
        }
      }
    }
  }
  return all;
}

TEST(Rounds, EveryMissingStepIsRefused) {
  int damaged = 0;
  for (const Algorithm& algorithm : catalog()) {
    if (algorithm.collective == Collective::barrier) continue;
    for (const int size : {2, 3, 5, 8}) {
      if (!fits(algorithm, size)) continue;
      const auto schedules = write_all(algorithm, size, size / 2);
      const auto right = lower_to_rounds(schedules);
      ASSERT_TRUE(right.ok());
      for (const Damaged& one : without_one(schedules, *right)) {
        ++damaged;
        EXPECT_FALSE(verify_rounds(schedules, one.rounds).ok()) << label(algorithm, size, false) << ": " << one.what;
      }
    }
  }
  EXPECT_GT(damaged, 1000);
}

// A rank posts messages one round early or late, or does its work before the group. A run that still verifies did not
// depend on that order.
TEST(Rounds, MostDisplacedStepsAreRefused) {
  std::mt19937_64 random(4);
  int refused = 0, all = 0;
  for (const char* name : {"ring", "recursive_doubling", "halving_doubling", "binomial_tree", "double_binary_tree"}) {
    const auto schedules = write_all(**find_algorithm(Collective::allreduce, name), 6, 0);
    const auto right = lower_to_rounds(schedules);
    ASSERT_TRUE(right.ok());
    for (int i = 0; i < 200; ++i) {
      auto rounds = *right;
      auto& mine = rounds[random() % rounds.size()].rounds;
      if (mine.size() < 2) continue;
      const std::size_t at = random() % (mine.size() - 1);
      // Swapping an empty round changes no order.
      if (mine[at].messages.empty() || mine[at + 1].messages.empty()) continue;
      if (mine[at].work.empty() && mine[at + 1].work.empty()) continue;
      switch (random() % 3) {
        case 0:
          std::swap(mine[at], mine[at + 1]);
          break;
        case 1:
          std::swap(mine[at].messages, mine[at + 1].messages);
          break;
        default:
          std::swap(mine[at].work, mine[at + 1].work);
      }
      ++all;
      refused += verify_rounds(schedules, rounds).ok() ? 0 : 1;
    }
  }
  std::printf("rounds: %d of %d displaced rounds were refused\n", refused, all);
  EXPECT_GT(refused, all * 9 / 10);
}

TEST(Rounds, NamesGroupsThatWaitForEachOther) {
  const auto schedules = write_all(**find_algorithm(Collective::allreduce, "ring"), 3, 0);
  auto rounds = *lower_to_rounds(schedules);
  // Each rank receives before it sends, so it waits for its left neighbour.
  for (Rounds& one : rounds) {
    std::vector<Round> cut;
    for (const Round& round : one.rounds) {
      for (const int32_t step : round.messages) cut.push_back({.messages = {step}, .work = {}});
      cut.push_back({.messages = {}, .work = round.work});
      std::reverse(cut.end() - 1 - static_cast<std::ptrdiff_t>(round.messages.size()), cut.end() - 1);
    }
    one.rounds = cut;
  }
  EXPECT_THAT(verify_rounds(schedules, rounds).text(), HasSubstr("deadlock: rank 0 waits in its group"));
}

TEST(Rounds, RejectsTwoMessagesOnTheSameMemoryInOneGroup) {
  const auto schedules = write_all(**find_algorithm(Collective::allreduce, "ring"), 3, 0);
  auto rounds = *lower_to_rounds(schedules);
  for (Rounds& one : rounds) {
    Round merged;
    for (const Round& round : one.rounds) {
      merged.messages.insert(merged.messages.end(), round.messages.begin(), round.messages.end());
      merged.work.insert(merged.work.end(), round.work.begin(), round.work.end());
    }
    one.rounds = {merged};
  }
  EXPECT_THAT(verify_rounds(schedules, rounds).text(), testing::AnyOf(HasSubstr("same memory"), HasSubstr("taken")));
}

}  // namespace
}  // namespace fdl
