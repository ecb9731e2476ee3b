// Tests of named operations on devices that cannot share a bucket and so share one launch. Ranks are threads, on the
// fakes.
#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <numeric>

#include "tests/fakes/device/own_device.h"
#include "tests/fakes/nccl/fake_nccl.h"
#include "tests/support/trace_events.h"

namespace world_test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

constexpr int kSize = 3;
constexpr int64_t kCount = 300;

Knobs with(std::string name, std::string value) {
  return {{"cuda_library", FDL_FAKE_CUDA}, {"nccl_library", FDL_FAKE_NCCL}, {std::move(name), std::move(value)}};
}

constexpr std::size_t kDeviceBytes = std::size_t{64} << 20;
const bool kSmallDevices = ::setenv("FAKE_CUDA_MEMORY", std::to_string(kDeviceBytes).c_str(), 1) == 0;

// Allocates all memory of a device except one block of `left` bytes.
class Filling {
 public:
  void fill(int device, std::size_t left) {
    void* const kept = fake_cuda_new(device, left);
    for (std::size_t size = kDeviceBytes; size >= 4096; size /= 2) {
      while (void* one = fake_cuda_new(device, size)) blocks_.push_back(one);
    }
    fake_cuda_delete(kept);
  }
  ~Filling() {
    for (void* block : blocks_) fake_cuda_delete(block);
  }

 private:
  std::vector<void*> blocks_;
};

template <typename T>
std::vector<T> counted(T from, int64_t count = kCount) {
  std::vector<T> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), from);
  return values;
}

// One step of an application: operations that it submits together, of which only two can be fused, and their results.
class Step {
 public:
  explicit Step(const World& me) : me_(me), device_(me.rank) {}

  // `only_sums`: while another rank has joined.
  fdl_result run(bool only_sums = false) {
    operations_.clear();
    begin_sums();
    if (!only_sums) begin_others();
    fdl_handle* handle = nullptr;
    const fdl_result result = fdl_run(me_.all, operations_.data(), operations_.size(), -1, &handle);
    if (result == FDL_OK && !only_sums) gathered_ = output(handle, 4);
    if (result == FDL_OK && !only_sums) scattered_ = output(handle, 6);
    fdl_handle_free(handle);
    return result;
  }

  void expect_sums(int of_ranks) {
    for (float* sum : {first_, second_}) {
      const float from = sum == first_ ? 0 : 7;
      std::vector<float> expected = counted(from);
      for (float& value : expected) value = value * static_cast<float>(of_ranks) + sum_of_ranks(of_ranks);
      EXPECT_EQ(device_.get(sum, kCount), expected);
    }
    std::vector<double> wide = counted(0.5);
    for (double& value : wide) value = (value * of_ranks + sum_of_ranks(of_ranks)) / 4;
    EXPECT_EQ(device_.get(wide_, kCount), wide) << "with a prescale";
    std::vector<int32_t> whole = counted(1);
    for (int32_t& value : whole) value = value * of_ranks + static_cast<int32_t>(sum_of_ranks(of_ranks));
    EXPECT_EQ(device_.get(whole_, kCount), whole);
  }
  void expect_others() {
    std::vector<int32_t> rows;
    for (int rank = 0; rank < kSize; ++rank) rows.insert(rows.end(), static_cast<std::size_t>(rank) + 1, 10 * rank);
    EXPECT_EQ(device_.get(static_cast<int32_t*>(gathered_), rows.size()), rows);
    EXPECT_EQ(device_.get(broadcast_, kCount), counted<int32_t>(1000));
    std::vector<float> part;
    for (int64_t i = me_.rank * kCount / kSize; i < (me_.rank + 1) * kCount / kSize; ++i) {
      part.push_back(static_cast<float>(i) * kSize);
    }
    EXPECT_EQ(device_.get(static_cast<float*>(scattered_), part.size()), part);
    EXPECT_EQ(device_.get(greatest_, kCount), counted<float>(kSize - 1));
    fdl_output_free(gathered_);
    fdl_output_free(scattered_);
    device_.synchronize();
  }

 private:
  static float sum_of_ranks(int of_ranks) { return static_cast<float>(of_ranks * (of_ranks - 1) / 2); }

  fdl_operation& add(const char* name, fdl_kind kind, void* memory, fdl_dtype dtype, const int64_t* shape = &kCount) {
    operations_.emplace_back();
    fdl_operation_init(&operations_.back());
    operations_.back().name = name;
    operations_.back().kind = kind;
    operations_.back().input = device_.tensor(memory, dtype, shape);
    operations_.back().output = memory;
    return operations_.back();
  }
  static void* output(fdl_handle* handle, std::size_t index) {
    fdl_output output{};
    output.struct_size = sizeof output;
    FDL_EXPECT_OK(fdl_handle_output(handle, index, &output));
    return output.data;
  }

  void begin_sums() {
    const auto rank = static_cast<float>(me_.rank);
    add("first", FDL_NAMED_ALLREDUCE, first_ = device_.put(counted(rank)), FDL_FLOAT32);
    add("second", FDL_NAMED_ALLREDUCE, second_ = device_.put(counted(rank + 7)), FDL_FLOAT32);
    add("wide", FDL_NAMED_ALLREDUCE, wide_ = device_.put(counted(rank + 0.5)), FDL_FLOAT64).prescale = 0.25;
    add("whole", FDL_NAMED_ALLREDUCE, whole_ = device_.put(counted(me_.rank + 1)), FDL_INT32);
  }
  void begin_others() {
    rows_ = me_.rank + 1;
    const std::vector<int32_t> rows(static_cast<std::size_t>(rows_), 10 * me_.rank);
    add("rows", FDL_NAMED_ALLGATHER, device_.put(rows), FDL_INT32, &rows_).output = nullptr;
    add("root's", FDL_NAMED_BROADCAST, broadcast_ = device_.put(counted(1000 * me_.rank)), FDL_INT32).root = 1;
    add("parts", FDL_NAMED_REDUCE_SCATTER, device_.put(counted<float>(0)), FDL_FLOAT32).output = nullptr;
    greatest_ = device_.put(counted(static_cast<float>(me_.rank)));
    add("greatest", FDL_NAMED_ALLREDUCE, greatest_, FDL_FLOAT32).op = FDL_MAX;
  }

  const World& me_;
  OwnDevice device_;
  std::vector<fdl_operation> operations_;
  int64_t rows_ = 0;
  float *first_ = nullptr, *second_ = nullptr, *greatest_ = nullptr;
  double* wide_ = nullptr;
  int32_t *whole_ = nullptr, *broadcast_ = nullptr;
  void *gathered_ = nullptr, *scattered_ = nullptr;
};

uint64_t locked_steps(const World& me) { return counters_of(me).locked_steps; }

class GroupLaunch : public testing::Test {
 protected:
  void SetUp() override { fake_nccl_reset(); }
  void TearDown() override { fake_nccl_reset(); }

  // Runs steps whose order is negotiated at first and locked later. Returns the numbers of NCCL groups and of sums in
  // the last ten steps.
  std::pair<long, long> Run(const Knobs& knobs) {
    std::barrier meet(kSize);
    std::pair<long, long> before, after;
    const auto note = [&](World& me, std::pair<long, long>& counts) {
      meet.arrive_and_wait();
      if (me.rank == 0) counts = {fake_nccl_calls("GroupEnd"), fake_nccl_calls("AllReduce")};
      meet.arrive_and_wait();
    };
    run_ranks(kSize, knobs, [&](World& me) {
      Step step(me);
      for (int k = 0; k < 20; ++k) {
        if (k == 10) note(me, before);
        FDL_EXPECT_OK(step.run());
        step.expect_sums(kSize);
        step.expect_others();
      }
      note(me, after);
      EXPECT_GT(locked_steps(me), 5u);
    });
    return {after.first - before.first, after.second - before.second};
  }
};

TEST_F(GroupLaunch, BucketsThatCannotBeFusedShareALaunch) {
  const auto [groups, sums] = Run(with("lock_after", "3"));
  EXPECT_EQ(groups, 10 * kSize);
  EXPECT_EQ(sums, 10 * kSize * 3) << "one for the two fused tensors, two others; the maximum runs as a gather";
}

TEST_F(GroupLaunch, WithoutFusionThereIsNoGroupLaunch) {
  const auto [groups, sums] = Run(with("fusion_bytes", "0"));
  EXPECT_EQ(groups, 10 * kSize) << "only the gather of uneven rows uses a group";
  EXPECT_EQ(sums, 10 * kSize * 4);
}

// Backends without group launches run them one after the other, in the same memory.
TEST_F(GroupLaunch, SequentialExecutionHasTheSameResults) {
  for (const char* runner : {"staged", "auto"}) {
    Knobs knobs = with("device_collectives", runner);
    knobs.emplace_back("algorithm", "ring");
    EXPECT_EQ(Run(knobs).second, 0) << "NCCL does not run the ring";
  }
}

// Two packed buckets: each fits into the memory that is left on the devices, but both together do not.
TEST_F(GroupLaunch, RunsOneByOneIfTheScratchBufferIsTooSmall) {
  for (const bool fits : {true, false}) {
    std::barrier meet(kSize);
    std::atomic<long> groups{0};
    run_ranks(kSize, with("lock_after", "0"), [&](World& me) {
      constexpr int64_t kMany = 150'000;
      OwnDevice device(me.rank);
      Filling filling;
      if (!fits) filling.fill(me.rank, kMany * (2 * 8 + 2 * 4) + (3 << 20));
      for (int step = 0; step < 3; ++step) {
        float* single[] = {device.put(counted<float>(0, kMany)), device.put(counted<float>(1, kMany))};
        double* wide[] = {device.put(counted<double>(0, kMany)), device.put(counted<double>(1, kMany))};
        std::vector<fdl_operation> operations(4);
        for (std::size_t i = 0; i < 4; ++i) {
          static constexpr const char* kNames[] = {"s0", "s1", "w0", "w1"};
          fdl_operation_init(&operations[i]);
          operations[i].name = kNames[i];
          void* memory = i < 2 ? static_cast<void*>(single[i]) : wide[i - 2];
          operations[i].input = device.tensor(memory, i < 2 ? FDL_FLOAT32 : FDL_FLOAT64, &kMany);
          operations[i].output = memory;
        }
        meet.arrive_and_wait();
        if (step == 2 && me.rank == 0) groups = -fake_nccl_calls("GroupEnd");
        meet.arrive_and_wait();
        FDL_EXPECT_OK(fdl_run(me.all, operations.data(), 4, -1, nullptr));
        meet.arrive_and_wait();
        if (step == 2 && me.rank == 0) groups += fake_nccl_calls("GroupEnd");
        for (std::size_t i = 0; i < 2; ++i) {
          const auto last = static_cast<double>(static_cast<int64_t>(i) + kMany - 1) * kSize;
          EXPECT_EQ(device.get(single[i] + kMany - 1, 1)[0], static_cast<float>(last));
          EXPECT_EQ(device.get(wide[i] + kMany - 1, 1)[0], last);
        }
        device.release();
      }
    });
    EXPECT_EQ(groups, fits ? kSize : 0);
  }
}

// A joined rank contributes zeros to each tensor, in separate parts of its scratch memory.
TEST_F(GroupLaunch, JoinedRankContributesZerosToAllTensors) {
  run_ranks(kSize, with("lock_after", "3"), [&](World& me) {
    Step step(me);
    FDL_EXPECT_OK(step.run());
    step.expect_sums(kSize);
    step.expect_others();
    if (me.rank < kSize - 1) {
      for (int k = 0; k < 3; ++k) {
        FDL_EXPECT_OK(step.run(true));
        step.expect_sums(kSize - 1);
      }
    }
    fdl_handle* handle = nullptr;
    FDL_EXPECT_OK(fdl_join(me.all, &handle));
    FDL_EXPECT_OK(fdl_wait_handle(handle, -1));
    fdl_handle_free(handle);
  });
}

// The timeline shows each tensor's own activities, although their collectives overlap.
TEST_F(GroupLaunch, TimelineShowsEachTensorSeparately) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("group-launch-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const std::string file = (folder / "t.json").string();
  run_ranks(kSize, with("lock_after", "0"), [&](World& me) {
    Step step(me);
    for (const bool traced : {false, true}) {
      if (traced) {
        FDL_EXPECT_OK(fdl_timeline_start(me.world, file.c_str(), 0));
      }
      FDL_EXPECT_OK(fdl_barrier(me.comm));
      FDL_EXPECT_OK(step.run());
      step.expect_sums(kSize);
      step.expect_others();
      FDL_EXPECT_OK(fdl_barrier(me.comm));
    }
    FDL_EXPECT_OK(fdl_timeline_stop(me.world));
  });
  const auto events = trace_test::events_of(trace_test::text_of_file(file));
  std::filesystem::remove_all(folder);
  trace_test::expect_sound(events);
  for (const char* packed : {"first", "second"}) {
    EXPECT_THAT(trace_test::summary_of(events, packed),
                EndsWith("QUEUE( ) MEMCPY_IN_FUSION_BUFFER( ) NCCL_ALLREDUCE( ) MEMCPY_OUT_FUSION_BUFFER( ) )"));
  }
  EXPECT_THAT(trace_test::summary_of(events, "wide"), EndsWith("QUEUE( ) NCCL_ALLREDUCE( ) )"));
  EXPECT_THAT(trace_test::summary_of(events, "rows"), EndsWith("QUEUE( ) NCCL_ALLGATHER( ) )"));
}

// All operations end with the one that fails: on its rank at once, on the other ranks soon after.
TEST_F(GroupLaunch, OneFailureEndsAllOperationsOfTheLaunch) {
  std::barrier meet(kSize);
  std::atomic<int> in_its_words{0};
  run_ranks(kSize, with("lock_after", "3"), [&](World& me) {
    Step step(me);
    FDL_EXPECT_OK(step.run());
    step.expect_sums(kSize);
    step.expect_others();
    meet.arrive_and_wait();
    if (me.rank == 0) fake_nccl_fail("AllReduce", 5, 2);
    meet.arrive_and_wait();
    while (step.run() == FDL_OK) {
    }
    const std::string words = fdl_last_error()->text;
    EXPECT_THAT(words, HasSubstr("nccl: several collectives failed on rank"));
    in_its_words += words.find("unhandled system error") != std::string::npos ? 1 : 0;
    EXPECT_NE(step.run(), FDL_OK) << "the group has ended";
    meet.arrive_and_wait();
  });
  EXPECT_EQ(in_its_words, kSize);
}

}  // namespace
}  // namespace world_test
