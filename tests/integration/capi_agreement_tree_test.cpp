// Tests of named operations whose requests and plans travel along a tree of ranks: the results, the errors and their
// texts are those of a star, and ranks that leave or die at any place of the tree hang no other rank.
#include <gmock/gmock.h>

#include <algorithm>
#include <latch>
#include <numeric>
#include <random>

#include "tests/support/worlds.h"

namespace world_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kLong = 30'000'000'000;  // a wait that takes as long has failed

// One tensor of a rank, reduced in place.
struct Sum {
  Sum(std::string tensor, int64_t elements, fdl_dtype type = FDL_INT64)
      : name(std::move(tensor)), count(elements), dtype(type), values(static_cast<std::size_t>(elements)) {}

  fdl_handle* submit(World& me, int64_t value) {
    std::fill(values.begin(), values.end(), value);
    fdl_operation operation;
    fdl_operation_init(&operation);
    operation.name = name.c_str();
    operation.input.data = operation.output = values.data();
    operation.input.shape = &count;
    operation.input.ndim = 1;
    operation.input.dtype = dtype;
    operation.op = FDL_SUM;
    fdl_handle* handle = nullptr;
    EXPECT_EQ(fdl_submit(me.all, &operation, 1, &handle), FDL_OK) << fdl_last_error()->text;
    return handle;
  }
  fdl_result run(World& me, int64_t value) { return finish(submit(me, value)); }

  static fdl_result finish(fdl_handle* handle) {
    const fdl_result result = fdl_wait_handle(handle, kLong);
    fdl_handle_free(handle);
    return result;
  }

  std::string name;
  int64_t count;
  fdl_dtype dtype;
  std::vector<int64_t> values;
};

int64_t sum_of_ranks(int size) { return int64_t{size} * (size - 1) / 2; }

struct Shape {
  const char* transport;
  int size;
  const char* width;
};

class AlongATree : public testing::TestWithParam<Shape> {
 protected:
  int size() const { return GetParam().size; }
  void run(Knobs knobs, const std::function<void(World&)>& body) const {
    knobs.emplace_back("transport", GetParam().transport);
    knobs.emplace_back("agreement_width", GetParam().width);
    run_ranks(size(), knobs, body);
  }
};
INSTANTIATE_TEST_SUITE_P(Over, AlongATree,
                         testing::Values(Shape{"tcp", 4, "1"}, Shape{"tcp", 9, "2"}, Shape{"shm", 5, "1"},
                                         Shape{"shm", 5, "0"}),
                         [](const auto& tested) {
                           return std::string(tested.param.transport) + std::to_string(tested.param.size) + "w" +
                                  tested.param.width;
                         });

TEST_P(AlongATree, StepsInAnyOrderLockTheOrderAndLeaveIt) {
  run({}, [&](World& me) {
    std::vector<Sum> sums;
    for (int i = 0; i < 60; ++i) sums.emplace_back("gradient " + std::to_string(i), 1 + i % 7);
    std::mt19937 random(static_cast<unsigned>(me.rank));
    std::vector<std::size_t> order(sums.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (int step = 0; step < 40; ++step) {
      const bool alike = step % 20 > 6;  // as often as it takes to lock the order
      if (alike) std::sort(order.begin(), order.end());
      if (!alike) std::shuffle(order.begin(), order.end(), random);
      std::vector<fdl_handle*> handles;
      for (const std::size_t i : order) handles.push_back(sums[i].submit(me, me.rank + step));
      for (fdl_handle* handle : handles) FDL_EXPECT_OK(Sum::finish(handle));
      for (const Sum& sum : sums) {
        const int64_t expected = sum_of_ranks(size()) + int64_t{step} * size();
        ASSERT_TRUE(std::ranges::all_of(sum.values, [&](int64_t value) { return value == expected; }))
            << sum.name << " in step " << step << ": " << sum.values[0] << " instead of " << expected;
      }
    }
    EXPECT_GE(counters_of(me).lock_epochs, 1u);
    FDL_EXPECT_OK(fdl_barrier(me.comm));
  });
}

TEST_P(AlongATree, AMismatchNamesTheRankOnAllRanks) {
  for (int different = 1; different < size(); ++different) {
    run({}, [&](World& me) {
      Sum sum("tensor", 1, me.rank == different ? FDL_FLOAT64 : FDL_INT64);
      EXPECT_EQ(sum.run(me, 1), FDL_MISMATCH);
      EXPECT_THAT(fdl_last_error()->text, HasSubstr("rank " + std::to_string(different)));
      EXPECT_THAT(fdl_last_error()->text, HasSubstr("has float64"));
      Sum fine("another tensor", 3);
      EXPECT_EQ(fine.run(me, me.rank), FDL_OK) << "the group goes on";
      EXPECT_EQ(fine.values[2], sum_of_ranks(size()));
      FDL_EXPECT_OK(fdl_barrier(me.comm));
    });
  }
}

TEST_P(AlongATree, RanksJoinAfterDifferentNumbersOfSteps) {
  run({}, [&](World& me) {
    Sum sum("tensor", 2);
    for (int step = 0; step <= 3 * me.rank; ++step) {
      FDL_ASSERT_OK(sum.run(me, 1));
      const int joined = (step + 2) / 3;  // these ranks have had fewer steps
      EXPECT_EQ(sum.values[1], size() - joined) << "step " << step;
    }
    fdl_handle* handle = nullptr;
    FDL_ASSERT_OK(fdl_join(me.all, &handle));
    FDL_EXPECT_OK(Sum::finish(handle));
    FDL_EXPECT_OK(fdl_barrier(me.comm));
  });
}

TEST_P(AlongATree, AStallNamesTheMissingRank) {
  run({{"stall_warning_s", "0"}, {"stall_shutdown_s", "0.4"}}, [&](World& me) {
    const int missing = size() - 1;
    Sum sum("tensor", 1);
    if (me.rank != missing) {
      EXPECT_EQ(sum.run(me, 1), FDL_TIMEOUT);
      EXPECT_THAT(fdl_last_error()->text, HasSubstr("missing: rank " + std::to_string(missing)));
    }
    FDL_EXPECT_OK(fdl_barrier(me.comm));
  });
}

// Each rank in turn leaves in good order, also the root and those that relay. No other rank may hang.
TEST_P(AlongATree, ARankThatLeavesEndsWhatWaitsForIt) {
  for (int leaver = 0; leaver < size(); ++leaver) {
    std::latch done(size());
    run({}, [&](World& me) {
      Sum sum("tensor", 1);
      for (int step = 0; step < 8; ++step)
        EXPECT_EQ(sum.run(me, 1), FDL_OK)
            << fdl_last_error()->text << "; rank " << me.rank << ", step " << step << ", leaver " << leaver;
      if (me.rank == leaver) {
        fdl_comm_destroy(me.comm);
        fdl_world_destroy(me.world);
        me.comm = nullptr;
        me.world = nullptr;
      } else {
        EXPECT_EQ(sum.run(me, 1), FDL_SHUT_DOWN) << "leaver " << leaver << ", rank " << me.rank;
        EXPECT_THAT(fdl_last_error()->text, HasSubstr("rank " + std::to_string(leaver)));
      }
      done.arrive_and_wait();
    });
  }
}

// Rank 1 relays for ranks 2 and 3.
TEST(RelayThatDies, IsNamedByAllRanks) {
  for (const char* transport : {"tcp", "shm"}) {
    const Knobs knobs{{"transport", transport}, {"agreement_width", "1"}};
    const KilledRank killed(knobs, [](const std::string& place, const Knobs& set, int started) {
      World me;
      if (open_world(place, 1, 4, set, me) != FDL_OK) return;
      Sum sum("tensor", 1);
      if (sum.run(me, me.rank) != FDL_OK) return;
      [[maybe_unused]] const auto told = ::write(started, "", 1);
      ::pause();
    });
    std::vector<std::thread> threads;
    std::latch waiting(4);
    for (const int rank : {0, 2, 3}) {
      threads.emplace_back([&, rank] {
        World me;
        ASSERT_EQ(open_world(killed.place(), rank, 4, knobs, me), FDL_OK) << fdl_last_error()->text;
        Sum sum("tensor", 1);
        FDL_ASSERT_OK(sum.run(me, rank));
        EXPECT_EQ(sum.values[0], 6);
        fdl_handle* handle = sum.submit(me, rank);
        waiting.arrive_and_wait();
        EXPECT_EQ(Sum::finish(handle), FDL_PEER_LOST);
        EXPECT_EQ(fdl_last_error()->culprit_rank, 1) << fdl_last_error()->text;
      });
    }
    killed.wait_until_started();
    waiting.arrive_and_wait();
    killed.kill();
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace world_test
