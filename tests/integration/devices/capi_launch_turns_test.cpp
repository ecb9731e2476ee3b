// Tests that named operations of several groups are launched in one order on the devices of all ranks. The fake NCCL
// runs one kernel at a time on each device, in the order of the launches, so different orders would hang. Ranks are
// threads.
#include <barrier>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>

#include "tests/fakes/device/own_device.h"
#include "tests/fakes/nccl/fake_nccl.h"

namespace world_test {
namespace {

constexpr int64_t kShape = 300;
constexpr auto kCount = static_cast<std::size_t>(kShape);

Knobs knobs_with(std::string name, std::string value) {
  return {{"cuda_library", FDL_FAKE_CUDA}, {"nccl_library", FDL_FAKE_NCCL}, {std::move(name), std::move(value)}};
}

// Groups of one rank's world, by split, so that the caller chooses their order of ranks.
class Parts {
 public:
  ~Parts() {
    for (fdl_group* part : parts_) fdl_group_destroy(part);
  }
  fdl_group* add(const World& me, int color, int key) {
    fdl_group* part = nullptr;
    FDL_EXPECT_OK(fdl_group_split(me.all, color, key, &part));
    if (part != nullptr) parts_.push_back(part);
    return part;
  }
  void end() {
    for (fdl_group* part : std::exchange(parts_, {})) fdl_group_destroy(part);
  }

 private:
  std::vector<fdl_group*> parts_;
};

// A sum of this rank's tensor in one group. The tensor of rank r has the value r + 1 + salt everywhere.
class Sum {
 public:
  // `ranks`: of the world, those of the group.
  Sum(fdl_group* group, std::vector<int> ranks, std::string name, OwnDevice* device)
      : group_(group), ranks_(std::move(ranks)), name_(std::move(name)), device_(device) {
    if (device_ != nullptr) memory_ = device_->put(std::vector<int32_t>(kCount, 0));
  }

  void submit(int rank, int salt) {
    salt_ = salt;
    const std::vector<int32_t> values(kCount, rank + 1 + salt);
    if (device_ != nullptr) {
      fake_cuda_write(memory_, values.data(), kCount * 4);
    } else {
      on_host_ = values;
    }
    fdl_operation operation;
    fdl_operation_init(&operation);
    operation.name = name_.c_str();
    if (device_ != nullptr) {
      operation.input = device_->tensor(memory_, FDL_INT32, &kShape);
      operation.input.stream = device_->stream();
    } else {
      operation.input.data = on_host_.data();
      operation.input.dtype = FDL_INT32;
      operation.input.shape = &kShape;
      operation.input.ndim = 1;
    }
    operation.output = device_ != nullptr ? static_cast<void*>(memory_) : on_host_.data();
    FDL_ASSERT_OK(fdl_submit(group_, &operation, 1, &handle_));
  }

  // The devices of the ranks cannot be freed from a hang, so that one ends the process. The limit counts rounds, not
  // seconds, so that a process that is stopped meanwhile has all of them left.
  void expect_the_sum() {
    FDL_EXPECT_OK(fdl_wait_handle(handle_, -1));
    int done = 0;
    for (int round = 0; done == 0; ++round) {
      FDL_EXPECT_OK(fdl_poll_device(handle_, &done));
      if (round == 10'000) {
        std::fprintf(stderr, "'%s' does not end: the devices of the ranks wait for each other\n", name_.c_str());
        std::_Exit(1);
      }
      if (done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    fdl_handle_free(std::exchange(handle_, nullptr));
    int32_t expected = 0;
    for (const int rank : ranks_) expected += rank + 1 + salt_;
    std::vector<int32_t> values = on_host_;
    if (device_ != nullptr) {
      values.resize(kCount);
      fake_cuda_read(memory_, values.data(), kCount * 4);
    }
    EXPECT_EQ(values, std::vector<int32_t>(kCount, expected)) << name_;
  }
  fdl_result wait() {
    const fdl_result result = fdl_wait_handle(handle_, -1);
    fdl_handle_free(std::exchange(handle_, nullptr));
    return result;
  }

 private:
  fdl_group* const group_;
  const std::vector<int> ranks_;
  const std::string name_;
  OwnDevice* const device_;  // null: the tensor is on the CPU
  int32_t* memory_ = nullptr;
  std::vector<int32_t> on_host_;
  fdl_handle* handle_ = nullptr;
  int salt_ = 0;
};

class LaunchTurnsOf : public testing::Test {
 protected:
  void SetUp() override {
    fake_nccl_reset();
    fake_nccl_set("kernels", 1);
  }
  void TearDown() override { fake_nccl_reset(); }
};

// Both groups have all ranks. Each rank is the root of one of them, and submits and decides that one first.
void sum_in_two_groups_at_once(const Knobs& knobs, int alone_before) {
  run_ranks(2, knobs, [&](World& me) {
    OwnDevice device(me.rank);
    Parts parts;
    fdl_group* const part = parts.add(me, 0, -me.rank);
    static std::barrier both(2);
    Sum one(me.all, {0, 1}, "one", &device);
    Sum two(part, {0, 1}, "two", &device);
    for (int step = 0; step < alone_before; ++step) {
      one.submit(me.rank, step);
      one.expect_the_sum();
    }
    for (int step = 0; step < 100; ++step) {
      both.arrive_and_wait();
      if (me.rank == 0) one.submit(me.rank, step);
      two.submit(me.rank, step + 1);
      if (me.rank == 1) one.submit(me.rank, step);
      one.expect_the_sum();
      two.expect_the_sum();
    }
    both.arrive_and_wait();
  });
}

TEST_F(LaunchTurnsOf, TwoGroupsAreTheSameOnBothRanks) { sum_in_two_groups_at_once(knobs_with("lock_after", "0"), 0); }

TEST_F(LaunchTurnsOf, TwoGroupsWithLockedOrdersAreTheSameOnBothRanks) {
  sum_in_two_groups_at_once(knobs_with("lock_after", "3"), 0);
}

// The order of the first group is locked when the second group begins.
TEST_F(LaunchTurnsOf, WithAGroupThatBeginsLaterAreTheSameOnBothRanks) {
  sum_in_two_groups_at_once(knobs_with("lock_after", "3"), 20);
}

TEST_F(LaunchTurnsOf, OfSchedulesOverChannelsAreTheSameOnBothRanks) {
  sum_in_two_groups_at_once(knobs_with("algorithm", "ring"), 0);
}

TEST_F(LaunchTurnsOf, BucketsThroughTheHostAreNotNeeded) {
  sum_in_two_groups_at_once(knobs_with("device_collectives", "staged"), 3);
}

// Rows and columns of a square: no two groups share more than one rank, but four of them form a cycle. Each rank
// submits in an order of its own, with tensors on the CPU in between, and a part of the steps without some groups.
void sum_in_rows_and_columns(const std::string& lock_after) {
  constexpr int kSize = 4;
  run_ranks(kSize, knobs_with("lock_after", lock_after), [&](World& me) {
    OwnDevice device(me.rank);
    Parts parts;
    const int row = me.rank / 2;
    const int column = me.rank % 2;
    // The first rank of a group is its root: the greatest one of rows, the least one of columns.
    fdl_group* const of_row = parts.add(me, row, -me.rank);
    fdl_group* const of_column = parts.add(me, column, me.rank);
    std::vector<Sum> sums;
    sums.reserve(7);
    for (int i = 0; i < 2; ++i) {
      const std::string number = std::to_string(i);
      sums.emplace_back(of_row, std::vector<int>{2 * row, 2 * row + 1}, "row" + number, &device);
      sums.emplace_back(of_column, std::vector<int>{column, column + 2}, "column" + number, &device);
      sums.emplace_back(me.all, std::vector<int>{0, 1, 2, 3}, "all" + number, &device);
    }
    sums.emplace_back(of_row, std::vector<int>{2 * row, 2 * row + 1}, "on the host", nullptr);
    std::mt19937 own(static_cast<unsigned>(me.rank) + 1);
    std::mt19937 common(7);
    for (int step = 0; step < 60; ++step) {
      std::vector<std::size_t> chosen;
      const unsigned which = step % 3 == 0 ? common() : 0x7fu;  // the same on all ranks
      for (std::size_t i = 0; i < sums.size(); ++i) {
        if ((which >> i & 1u) != 0) chosen.push_back(i);
      }
      std::shuffle(chosen.begin(), chosen.end(), own);
      for (const std::size_t i : chosen) sums[i].submit(me.rank, step + static_cast<int>(i));
      std::shuffle(chosen.begin(), chosen.end(), own);
      for (const std::size_t i : chosen) sums[i].expect_the_sum();
    }
    static std::barrier all(kSize);
    all.arrive_and_wait();  // no rank ends a group that others still use
  });
}

TEST_F(LaunchTurnsOf, RowsAndColumnsFormNoCycle) { sum_in_rows_and_columns("0"); }

TEST_F(LaunchTurnsOf, RowsAndColumnsWithLockedOrdersFormNoCycle) { sum_in_rows_and_columns("3"); }

// A rank may submit to one group what another rank submits only after the result of the other group.
TEST_F(LaunchTurnsOf, TwoGroupsDoNotWaitForOperationsThatOtherRanksSubmitLater) {
  run_ranks(2, knobs_with("lock_after", "0"), [&](World& me) {
    OwnDevice device(me.rank);
    Parts parts;
    Sum one(me.all, {0, 1}, "one", &device);
    Sum two(parts.add(me, 0, -me.rank), {0, 1}, "two", &device);
    for (int step = 0; step < 20; ++step) {
      if (me.rank == 0) {
        one.submit(me.rank, step);
        two.submit(me.rank, step);
        two.expect_the_sum();
      } else {
        two.submit(me.rank, step);
        two.expect_the_sum();
        one.submit(me.rank, step);
      }
      one.expect_the_sum();
    }
  });
}

// The other group goes on when one ends, and when the rank that has left belonged to one of them.
TEST_F(LaunchTurnsOf, OtherGroupsGoOnAfterTheEndOfOne) {
  std::barrier rest(2);
  run_ranks(3, knobs_with("lock_after", "3"), [&](World& me) {
    OwnDevice device(me.rank);
    Parts lasting;
    Parts ending;
    fdl_group* const pair = lasting.add(me, me.rank < 2 ? 0 : -1, -me.rank);
    fdl_group* const everyone = ending.add(me, 0, me.rank);
    Sum of_all(everyone, {0, 1, 2}, "of all", &device);
    if (me.rank == 2) {
      for (int step = 0; step < 10; ++step) {
        of_all.submit(me.rank, step);
        of_all.expect_the_sum();
      }
      return;  // its world ends
    }
    Sum of_pair(pair, {0, 1}, "of the pair", &device);
    for (int step = 0; step < 10; ++step) {
      of_pair.submit(me.rank, step);
      of_all.submit(me.rank, step);
      of_all.expect_the_sum();
      of_pair.expect_the_sum();
    }
    of_all.submit(me.rank, 0);
    for (int step = 0; step < 10; ++step) {
      of_pair.submit(me.rank, step);
      of_pair.expect_the_sum();
    }
    EXPECT_EQ(of_all.wait(), FDL_SHUT_DOWN);
    rest.arrive_and_wait();
    ending.end();
    for (int step = 0; step < 10; ++step) {
      of_pair.submit(me.rank, step);
      of_pair.expect_the_sum();
    }
    rest.arrive_and_wait();
  });
}

}  // namespace
}  // namespace world_test
