// Tests of repeated steps through the C API: no message is sent for them, and unexpected submissions still work. Each
// test runs over shared memory, with readiness flags, and over TCP, with an optimistic order.
#include <chrono>
#include <cmath>
#include <latch>
#include <numeric>
#include <random>

#include "tests/support/worlds.h"

namespace {

using world_test::Knobs;
using world_test::run_ranks;
using world_test::World;

constexpr int kLockAfter = 4;
constexpr int kWarmUp = kLockAfter + 2;

fdl_operation sum_of(const char* name, std::vector<float>& tensor, const int64_t* shape, int ndim = 1) {
  fdl_operation operation;
  fdl_operation_init(&operation);
  operation.kind = FDL_NAMED_ALLREDUCE;
  operation.name = name;
  operation.input.data = tensor.data();
  operation.input.shape = shape;
  operation.input.ndim = ndim;
  operation.op = FDL_SUM;
  operation.output = tensor.data();
  return operation;
}

struct Tensor {
  std::string name;
  std::vector<float> values;
  int64_t shape = 0;
};

class Tensors {
 public:
  explicit Tensors(const std::vector<std::size_t>& sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      tensors_.push_back(
          {"gradient " + std::to_string(i), std::vector<float>(sizes[i]), static_cast<int64_t>(sizes[i])});
    }
  }
  Tensor& operator[](std::size_t i) { return tensors_[i]; }
  std::size_t size() const { return tensors_.size(); }

  void fill(int rank, int step) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      std::fill(tensors_[i].values.begin(), tensors_[i].values.end(),
                static_cast<float>(step % 8 + rank + static_cast<int>(i % 5)));
    }
  }
  fdl_handle* submit(World& world, std::size_t i) {
    fdl_handle* handle = nullptr;
    const fdl_operation operation = sum_of(tensors_[i].name.c_str(), tensors_[i].values, &tensors_[i].shape);
    EXPECT_EQ(fdl_submit(world.all, &operation, 1, &handle), FDL_OK) << fdl_last_error()->text;
    return handle;
  }
  // Tensors are reduced in place, so every element must be the sum of what all ranks had in this very step.
  void check(int size, int step) const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      float expected = 0;
      for (int rank = 0; rank < size; ++rank) expected += static_cast<float>(step % 8 + rank + static_cast<int>(i % 5));
      const auto& values = tensors_[i].values;
      ASSERT_EQ(std::count(values.begin(), values.end(), expected), static_cast<std::ptrdiff_t>(values.size()))
          << tensors_[i].name << " in step " << step;
    }
  }

 private:
  std::vector<Tensor> tensors_;
};

void wait_for(std::vector<fdl_handle*>& handles) {
  for (fdl_handle* handle : handles) {
    FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
    fdl_handle_free(handle);
  }
  handles.clear();
}

// Submits all, in this order, and waits.
void run_step(World& world, Tensors& tensors, int step, const std::vector<std::size_t>& order) {
  tensors.fill(world.rank, step);
  std::vector<fdl_handle*> handles;
  for (const std::size_t i : order) handles.push_back(tensors.submit(world, i));
  wait_for(handles);
  tensors.check(world.size, step);
}

std::vector<std::size_t> in_order(std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

void run_one(World& world, const char* name, std::vector<float> values, float expected) {
  const auto shape = static_cast<int64_t>(values.size());
  fdl_operation operation = sum_of(name, values, &shape);
  fdl_handle* handle = nullptr;
  FDL_ASSERT_OK(fdl_submit(world.all, &operation, 1, &handle));
  FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
  fdl_handle_free(handle);
  for (const float value : values) EXPECT_EQ(value, expected) << name;
}

class LockedSteps : public testing::TestWithParam<const char*> {
 protected:
  Knobs over(Knobs knobs) const {
    knobs.emplace_back("transport", GetParam());
    return knobs;
  }
  // A rank that another one waits for leaves the order after a quarter of the time of a warning.
  Knobs with_long_timeout() const { return over({{"lock_patience_s", "60"}, {"stall_warning_s", "240"}}); }
  bool sees() const { return GetParam() == std::string("shm"); }
};
INSTANTIATE_TEST_SUITE_P(Over, LockedSteps, testing::Values("shm", "tcp"),
                         [](const auto& tested) { return std::string(tested.param); });

// The number of tensors of a residual network, none of them large.
std::vector<std::size_t> many_sizes() {
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 161; ++i) sizes.push_back(std::size_t{1} << (i % 11));
  return sizes;
}

TEST_P(LockedSteps, ThousandStepsOf161TensorsSendNoMessage) {
  run_ranks(2, with_long_timeout(), [](World& world) {
    Tensors tensors(many_sizes());
    int step = 0;
    for (; step < kWarmUp; ++step) run_step(world, tensors, step, in_order(tensors.size()));
    const fdl_counters before = counters_of(world);
    for (; step < kWarmUp + 1000; ++step) run_step(world, tensors, step, in_order(tensors.size()));
    const fdl_counters after = counters_of(world);
    FDL_EXPECT_OK(fdl_barrier(world.comm));  // a rank that ends its world sends messages
    EXPECT_EQ(after.control_messages, before.control_messages);
    EXPECT_EQ(after.lock_epochs, 1u);
    EXPECT_EQ(after.locked_steps - before.locked_steps, 1000u);
    EXPECT_EQ(after.named_operations - before.named_operations, 161'000u);
  });
}

TEST_P(LockedSteps, OneBlockingSumOfFourBytesIsAStep) {
  for (const int size : {2, 4}) {
    run_ranks(size, with_long_timeout(), [](World& world) {
      Tensors one({1});
      int step = 0;
      for (; step < kWarmUp; ++step) run_step(world, one, step, {0});
      const fdl_counters before = counters_of(world);
      for (; step < kWarmUp + 500; ++step) run_step(world, one, step, {0});
      const fdl_counters after = counters_of(world);
      FDL_EXPECT_OK(fdl_barrier(world.comm));
      EXPECT_EQ(after.control_messages, before.control_messages);
      EXPECT_EQ(after.lock_epochs, 1u);
    });
  }
}

TEST_P(LockedSteps, RanksMaySubmitInDifferentOrders) {
  run_ranks(3, with_long_timeout(), [](World& world) {
    Tensors tensors({5, 100'000, 7, 1, 300});
    std::mt19937 random(static_cast<unsigned>(world.rank));
    for (int step = 0; step < 100; ++step) {
      auto order = in_order(tensors.size());
      std::shuffle(order.begin(), order.end(), random);
      run_step(world, tensors, step, order);
    }
    EXPECT_GE(counters_of(world).locked_steps, 90u);
  });
}

TEST_P(LockedSteps, NewNameInTheMiddleLosesNoOperation) {
  run_ranks(3, with_long_timeout(), [](World& world) {
    Tensors tensors({3, 4, 50'000});
    for (int step = 0; step < 60; ++step) {
      tensors.fill(world.rank, step);
      std::vector<fdl_handle*> handles;
      handles.push_back(tensors.submit(world, 0));
      if (step % 20 == 13) run_one(world, ("rare " + std::to_string(step)).c_str(), {1.0f, 1.0f}, 3.0f);
      handles.push_back(tensors.submit(world, 1));
      handles.push_back(tensors.submit(world, 2));
      wait_for(handles);
      tensors.check(world.size, step);
    }
    EXPECT_GE(counters_of(world).lock_epochs, 2u);
  });
}

TEST_P(LockedSteps, ChangedShapeOrOperationIsNegotiatedAgain) {
  run_ranks(2, with_long_timeout(), [](World& world) {
    Tensors one({6});
    int step = 0;
    for (; step < kWarmUp + 5; ++step) run_step(world, one, step, {0});
    run_one(world, "gradient 0", {1, 1, 1}, 2.0f);
    for (; step < 2 * kWarmUp + 10; ++step) run_step(world, one, step, {0});
    EXPECT_GE(counters_of(world).lock_epochs, 1u);
  });
}

TEST_P(LockedSteps, ShapeChangeOnOneRankFailsOnlyThatTensor) {
  run_ranks(2, with_long_timeout(), [](World& world) {
    Tensors tensors({6, 2});
    int step = 0;
    for (; step < kWarmUp + 5; ++step) run_step(world, tensors, step, {0, 1});
    std::vector<float> values(6, 1.0f);
    const int64_t flat[] = {6};
    const int64_t square[] = {2, 3};
    const fdl_operation operation =
        world.rank == 0 ? sum_of("gradient 0", values, flat, 1) : sum_of("gradient 0", values, square, 2);
    fdl_handle* handle = nullptr;
    FDL_ASSERT_OK(fdl_submit(world.all, &operation, 1, &handle));
    EXPECT_EQ(fdl_wait_handle(handle, -1), FDL_MISMATCH);
    fdl_handle_free(handle);
    for (; step < 2 * kWarmUp + 10; ++step) run_step(world, tensors, step, {0, 1});
  });
}

TEST_P(LockedSteps, WaitingBehindAMissingTensorLeavesTheOrder) {
  run_ranks(2, over({{"lock_patience_s", "0.02"}}), [](World& world) {
    Tensors tensors({4, 8});
    int step = 0;
    for (; step < kWarmUp + 3; ++step) run_step(world, tensors, step, {0, 1});
    for (; step < kWarmUp + 6; ++step) {  // the second, alone, before the first
      tensors.fill(world.rank, step);
      for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
        std::vector<fdl_handle*> handles{tensors.submit(world, i)};
        wait_for(handles);
      }
      tensors.check(world.size, step);
    }
  });
}

TEST_P(LockedSteps, JoinWhileLockedLetsOtherRanksContinue) {
  run_ranks(3, with_long_timeout(), [](World& world) {
    Tensors one({2});
    int step = 0;
    for (; step < kWarmUp + 5; ++step) run_step(world, one, step, {0});
    fdl_handle* joined = nullptr;
    for (int more = 0; more < world.rank * 3; ++more) {  // rank 0 has none left, rank 2 the most
      std::vector<float> values(2, 1.0f);
      const int64_t shape = 2;
      const fdl_operation operation = sum_of("gradient 0", values, &shape);
      fdl_handle* handle = nullptr;
      FDL_ASSERT_OK(fdl_submit(world.all, &operation, 1, &handle));
      FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
      fdl_handle_free(handle);
      EXPECT_EQ(values[0], more < 3 ? 2.0f : 1.0f);
    }
    FDL_ASSERT_OK(fdl_join(world.all, &joined));
    FDL_EXPECT_OK(fdl_wait_handle(joined, -1));
    fdl_output output{};
    output.struct_size = sizeof output;
    FDL_EXPECT_OK(fdl_handle_output(joined, 0, &output));
    EXPECT_EQ(output.last_joined, 2);
    fdl_handle_free(joined);
    for (; step < 2 * kWarmUp + 10; ++step) run_step(world, one, step, {0});
  });
}

// Rank 0 begins a tensor that is reduced in place while rank 1 waits for another tensor first. In an optimistic order
// rank 0's sum must then end without a result and leave its input unchanged.
TEST_P(LockedSteps, PartlyBegunTensorIsRepeatedFromItsOriginalInput) {
  run_ranks(3, over({{"lock_patience_s", "60"}, {"lock_after", "2"}}), [](World& world) {
    Tensors tensors({100'000, 3});
    for (int step = 0; step < 150; ++step) {
      const bool rare = step % 30 == 29;
      const std::string name = "rare " + std::to_string(step);
      if (rare && world.rank == 1) run_one(world, name.c_str(), {1.0f}, 3.0f);
      tensors.fill(world.rank, step);
      std::vector<fdl_handle*> handles{tensors.submit(world, 0)};
      if (rare && world.rank != 1) {
        const auto moment = std::chrono::steady_clock::now() + std::chrono::milliseconds(20 * (1 - world.rank / 2));
        while (std::chrono::steady_clock::now() < moment)
          std::this_thread::yield();  // its progress thread begins what it can
        run_one(world, name.c_str(), {1.0f}, 3.0f);
      }
      handles.push_back(tensors.submit(world, 1));
      wait_for(handles);
      tensors.check(world.size, step);
    }
    EXPECT_GE(counters_of(world).lock_epochs, 3u);
  });
}

TEST_P(LockedSteps, ShutdownWhileLockedFailsTheWaitsOfOtherRanks) {
  std::latch waited(2);
  run_ranks(3, with_long_timeout(), [&](World& world) {
    Tensors one({2});
    for (int step = 0; step < kWarmUp + 5; ++step) run_step(world, one, step, {0});
    if (world.rank == 1) return;  // its world ends here
    fdl_handle* handle = one.submit(world, 0);
    EXPECT_EQ(fdl_wait_handle(handle, 20'000'000'000), FDL_SHUT_DOWN);
    EXPECT_NE(std::string(fdl_last_error()->text).find("rank 1"), std::string::npos) << fdl_last_error()->text;
    fdl_handle_free(handle);
    waited.arrive_and_wait();  // a rank that ended its world earlier could be named instead of rank 1
  });
}

TEST_P(LockedSteps, GathersLockOverSharedMemoryUntilTheirRowsChange) {
  run_ranks(2, with_long_timeout(), [&](World& world) {
    const auto gather = [&](int64_t rows) {
      std::vector<float> values(static_cast<std::size_t>(rows), static_cast<float>(world.rank));
      fdl_operation operation = sum_of("rows", values, &rows);
      operation.kind = FDL_NAMED_ALLGATHER;
      operation.output = nullptr;
      fdl_handle* handle = nullptr;
      EXPECT_EQ(fdl_submit(world.all, &operation, 1, &handle), FDL_OK);
      EXPECT_EQ(fdl_wait_handle(handle, -1), FDL_OK);
      fdl_output output{};
      output.struct_size = sizeof output;
      EXPECT_EQ(fdl_handle_output(handle, 0, &output), FDL_OK);
      const int64_t all = output.shape[0];
      fdl_output_free(output.data);
      fdl_handle_free(handle);
      return all;
    };
    for (int step = 0; step < 20; ++step) EXPECT_EQ(gather(2 + world.rank), 5);
    EXPECT_EQ(counters_of(world).lock_epochs, sees() ? 1u : 0u) << "a gather does not prove that all have begun it";
    EXPECT_EQ(gather(7), 14);
    for (int step = 0; step < 20; ++step) EXPECT_EQ(gather(world.rank), 1);
    EXPECT_GE(counters_of(world).lock_epochs, sees() ? 2u : 0u);
  });
}

TEST_P(LockedSteps, TensorOfOnlyOneRankIsReportedAsStalled) {
  run_ranks(2, over({{"lock_patience_s", "60"}, {"stall_shutdown_s", "0.4"}, {"stall_warning_s", "0"}}),
            [](World& world) {
              Tensors one({2});
              for (int step = 0; step < kWarmUp + 5; ++step) run_step(world, one, step, {0});
              if (world.rank == 0) {
                fdl_handle* handle = one.submit(world, 0);
                EXPECT_EQ(fdl_wait_handle(handle, 20'000'000'000), FDL_TIMEOUT);
                EXPECT_NE(std::string(fdl_last_error()->text).find("missing: rank 1"), std::string::npos)
                    << fdl_last_error()->text;
                fdl_handle_free(handle);
              }
              FDL_EXPECT_OK(fdl_barrier(world.comm));
            });
}

TEST_P(LockedSteps, NoOrderIsLockedIfTheOptionForbidsIt) {
  run_ranks(2, over({{"lock_after", "0"}}), [](World& world) {
    Tensors one({2});
    for (int step = 0; step < 50; ++step) run_step(world, one, step, {0});
    EXPECT_EQ(counters_of(world).lock_epochs, 0u);
  });
}

}  // namespace
