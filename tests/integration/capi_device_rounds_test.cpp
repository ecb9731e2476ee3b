// Buckets that are larger than the room which their devices have for them go through it in rounds: ranks as threads, on
// the stand-ins. Sums are exact, and every element is another than its neighbours.
#include <gmock/gmock.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#include "cuda/cuda_device.h"
#include "system/poller.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/fakes/nccl/fake_nccl.h"
#include "tests/support/worlds.h"

namespace world_test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Before the driver is opened for the first time.
const bool kDevices = ::setenv("FAKE_CUDA_DEVICES", "3", 1) == 0 &&
                      ::setenv("FAKE_CUDA_MEMORY", std::to_string(128 * kMiB).c_str(), 1) == 0;

// Several rounds of 2 MiB of 4 bytes each: odd sizes, one of nothing, and one that is larger than the room.
const std::vector<int64_t> kCounts{1, 100'001, 0, 700'003, 17, 262'144};
constexpr std::size_t kElements = 1 + 100'001 + 700'003 + 17 + 262'144;

struct Sum {
  fdl_dtype dtype = FDL_INT32;
  fdl_reduce_op op = FDL_SUM;
  double prescale = 1;
  double postscale = 1;
  bool in_place = true;
};

// Of one rank. At most 16 values, so that sums of three ranks are exact as bfloat16, too.
int value_of(std::size_t tensor, std::size_t i, int rank) {
  return static_cast<int>((i * 7 + i / 1000 + tensor + static_cast<std::size_t>(rank) * 3) % 16);
}

template <typename Value>
std::vector<std::byte> encoded(fdl_dtype dtype, int64_t count, const Value& value) {
  const std::size_t bytes = dtype == FDL_BFLOAT16 ? 2 : 4;
  std::vector<std::byte> all(static_cast<std::size_t>(count) * bytes);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const auto real = static_cast<float>(value(i));
    const auto whole = static_cast<int32_t>(real);
    uint32_t bits = 0;
    std::memcpy(&bits, &real, 4);
    const auto upper = static_cast<uint16_t>(bits >> 16);  // as bfloat16, where the rest is zero
    const void* const from = dtype == FDL_BFLOAT16 ? static_cast<const void*>(&upper)
                             : dtype == FDL_INT32  ? static_cast<const void*>(&whole)
                                                   : static_cast<const void*>(&bits);
    std::memcpy(&all[i * bytes], from, bytes);
  }
  return all;
}

// A rank's device as its program uses it.
class Gpu {
 public:
  Gpu(const World& me, std::vector<int64_t> counts) : me_(me), counts_(std::move(counts)) {
    auto config = fdl::Config::read(fdl::Environment({}), {{"cuda_library", FDL_FAKE_CUDA}});
    device_ = fdl::open_cuda_device(me.rank, *config).take();
    stream_ = device_->make_stream().take();
    for (const int64_t count : counts_) {
      inputs_.push_back(make(static_cast<std::size_t>(count) * 4));
      outputs_.push_back(make(static_cast<std::size_t>(count) * 4));
    }
  }
  ~Gpu() {
    let_go();
    settle();
    for (void* memory : own_) fake_cuda_delete(memory);
    fdl_free(held_);
    device_->end_stream(stream_);
  }

  // All of its memory is in use but so much in one block.
  void fill(std::size_t left) {
    void* const kept = left > 0 ? fake_cuda_new(me_.rank, left) : nullptr;
    for (std::size_t size = 64 * kMiB; size >= 4096; size /= 2) {
      while (void* one = fake_cuda_new(me_.rank, size)) filling_.push_back(one);
    }
    if (kept != nullptr) fake_cuda_delete(kept);
  }
  void let_go() {
    for (void* memory : std::exchange(filling_, {})) fake_cuda_delete(memory);
  }

  // Until all that the stream has been given has run.
  void settle() {
    EXPECT_TRUE(device_->ring(stream_, notifier_).ok());
    EXPECT_TRUE(fdl::wait_readable(notifier_.fd(), fdl::Deadline::after_seconds(60))) << "the stream hangs";
    notifier_.clear();
  }

  // One submission, so that they are fused; then each is compared with the sum over the ranks that have not joined.
  void sum(const Sum& how, int present) {
    settle();
    std::vector<fdl_operation> operations(counts_.size());
    for (std::size_t t = 0; t < counts_.size(); ++t) {
      const auto bytes = encoded(how.dtype, counts_[t], [&](std::size_t i) { return value_of(t, i, me_.rank); });
      if (!bytes.empty()) fake_cuda_write(inputs_[t], bytes.data(), bytes.size());
      fdl_operation_init(&operations[t]);
      operations[t].name = kNames[t];
      operations[t].input = {inputs_[t], how.dtype, 1, &counts_[t], FDL_DEVICE_CUDA, me_.rank, stream_};
      operations[t].output = how.in_place ? inputs_[t] : outputs_[t];
      operations[t].op = how.op;
      operations[t].prescale = how.prescale;
      operations[t].postscale = how.postscale;
    }
    FDL_ASSERT_OK(fdl_run(me_.all, operations.data(), operations.size(), -1, nullptr));
    settle();
    const double factor = how.prescale * how.postscale / (how.op == FDL_AVERAGE ? me_.size : 1);
    for (std::size_t t = 0; t < counts_.size(); ++t) {
      const auto expected = encoded(how.dtype, counts_[t], [&](std::size_t i) {
        int all = 0;
        for (int rank = 0; rank < present; ++rank) all += value_of(t, i, rank);
        return all * factor;
      });
      std::vector<std::byte> found(expected.size());
      if (!found.empty()) fake_cuda_read(operations[t].output, found.data(), found.size());
      EXPECT_TRUE(found == expected) << kNames[t] << " of " << counts_[t] << " elements";
    }
  }
  // The first tensor lies in memory of the group's on rank 0 alone: all ranks must pack it.
  void lie_unlike_the_others() {
    const auto bytes = static_cast<std::size_t>(counts_[0]) * 4;
    FDL_EXPECT_OK(fdl_device_alloc(me_.all, FDL_DEVICE_CUDA, me_.rank, stream_, bytes, &held_));
    if (me_.rank == 0) inputs_[0] = static_cast<std::byte*>(held_);
  }
  // Settles who runs collectives here, while there is memory.
  void meet() {
    const int64_t one = 1;
    fdl_operation operation;
    fdl_operation_init(&operation);
    operation.name = "meeting";
    operation.input = {outputs_[0], FDL_INT32, 1, &one, FDL_DEVICE_CUDA, me_.rank, stream_};
    operation.output = outputs_[0];
    FDL_EXPECT_OK(fdl_run(me_.all, &operation, 1, -1, nullptr));
  }

 private:
  static constexpr const char* kNames[] = {"a", "b", "c", "d", "e", "f"};

  std::byte* make(std::size_t bytes) {
    own_.push_back(fake_cuda_new(me_.rank, std::max(bytes, std::size_t{16})));
    EXPECT_NE(own_.back(), nullptr);
    return static_cast<std::byte*>(own_.back());
  }

  const World& me_;
  const std::vector<int64_t> counts_;
  fdl::Event notifier_ = fdl::Event::make().take();  // outlives the stream
  std::shared_ptr<fdl::Device> device_;
  fdl::Stream stream_ = nullptr;
  std::vector<void*> own_;
  std::vector<void*> filling_;
  void* held_ = nullptr;
  std::vector<std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
};

// Who runs the collectives.
struct Way {
  const char* name;
  const char* wish;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class DeviceRounds : public testing::TestWithParam<Way> {
 protected:
  Knobs knobs() const {
    return {{"cuda_library", FDL_FAKE_CUDA},
            {"nccl_library", FDL_FAKE_NCCL},
            {"device_collectives", GetParam().wish},
            {"log_level", "error"}};
  }
  bool by_nccl() const { return std::string_view(GetParam().wish) == "nccl"; }
  void SetUp() override { fake_nccl_reset(); }
  void TearDown() override {
    EXPECT_EQ(fake_nccl_count("windows"), 0);
    EXPECT_EQ(fake_nccl_count("registrations"), 0);
    EXPECT_EQ(fake_nccl_count("memory"), 0);
    fake_nccl_reset();
  }
};
INSTANTIATE_TEST_SUITE_P(, DeviceRounds, testing::Values(Way{"ByNccl", "nccl"}, Way{"Staged", "staged"}),
                         [](const auto& each) { return each.param.name; });

// Room for the least fusion buffer that there is, and for the tables of the kernels.
constexpr std::size_t kLittle = 3 * kMiB;
constexpr long kRounds = (kElements * 4 + 2 * kMiB - 1) / (2 * kMiB);

// How many collectives NCCL is given meanwhile, by all ranks together.
long given_while(World& me, const std::function<void()>& work) {
  FDL_EXPECT_OK(fdl_barrier(me.comm));
  const long before = fake_nccl_calls("AllReduce");
  FDL_EXPECT_OK(fdl_barrier(me.comm));
  work();
  FDL_EXPECT_OK(fdl_barrier(me.comm));
  const long after = fake_nccl_calls("AllReduce");
  FDL_EXPECT_OK(fdl_barrier(me.comm));
  return after - before;
}

TEST_P(DeviceRounds, SumsOfOddSizesAreThoseOfOneGo) {
  run_ranks(3, knobs(), [this](World& me) {
    Gpu gpu(me, kCounts);
    gpu.meet();
    if (me.rank == 1) gpu.fill(kLittle);
    for (const bool in_place : {true, false}) {
      for (const fdl_dtype dtype : {FDL_INT32, FDL_FLOAT32}) {
        const Sum how{.dtype = dtype, .prescale = 2, .postscale = 3, .in_place = in_place};
        EXPECT_EQ(given_while(me, [&] { gpu.sum(how, 3); }), by_nccl() ? 3 * kRounds : 0);
      }
    }
    gpu.sum({}, 3);
  });
}

TEST_P(DeviceRounds, AveragesOfHalfAsManyBytesToo) {
  run_ranks(2, knobs(), [this](World& me) {
    Gpu gpu(me, kCounts);
    gpu.meet();
    gpu.fill(kLittle);  // on all ranks
    const Sum average{.dtype = FDL_BFLOAT16, .op = FDL_AVERAGE, .prescale = 2, .in_place = false};
    EXPECT_EQ(given_while(me, [&] { gpu.sum(average, 2); }), by_nccl() ? 2 * ((kRounds + 1) / 2) : 0);
    gpu.sum({.dtype = FDL_FLOAT32, .op = FDL_AVERAGE}, 2);
  });
}

TEST_P(DeviceRounds, ARankThatHasJoinedAddsZerosInEachOfThem) {
  run_ranks(3, knobs(), [](World& me) {
    Gpu gpu(me, kCounts);
    gpu.meet();
    if (me.rank == 0) gpu.fill(kLittle);
    gpu.sum({}, 3);
    if (me.rank < 2) {
      for (const bool in_place : {true, false}) gpu.sum({.prescale = 2, .postscale = 2, .in_place = in_place}, 2);
    }
    fdl_handle* joined = nullptr;
    FDL_ASSERT_OK(fdl_join(me.all, &joined));
    FDL_EXPECT_OK(fdl_wait_handle(joined, -1));
    fdl_handle_free(joined);
  });
}

TEST_P(DeviceRounds, ATensorAloneThatAllMustPackGoesInThemToo) {
  run_ranks(2, knobs(), [this](World& me) {
    Gpu gpu(me, {1'100'003});
    gpu.meet();
    gpu.lie_unlike_the_others();
    if (me.rank == 1) gpu.fill(kLittle);
    for (const bool in_place : {true, false}) {
      const Sum how{.prescale = 3, .postscale = 2, .in_place = in_place};
      EXPECT_EQ(given_while(me, [&] { gpu.sum(how, 2); }), by_nccl() ? 2 * 3 : 0);
    }
  });
}

// What is freed later on one rank is not known to the others: nobody asks again.
TEST_P(DeviceRounds, WhatWasRefusedIsNotAskedForAgainInTheGroup) {
  run_ranks(2, knobs(), [this](World& me) {
    Gpu gpu(me, kCounts);
    Gpu larger(me, {500'000, 1'000'000});
    gpu.meet();
    if (me.rank == 1) gpu.fill(kLittle);
    gpu.sum({}, 2);
    gpu.let_go();
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    const auto allocations = [] {
      return fake_nccl_calls("MemAlloc") + static_cast<long>(fake_cuda_calls("cuMemAlloc_v2"));
    };
    const long before = allocations();
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    gpu.sum({}, 2);
    larger.sum({}, 2);
    FDL_EXPECT_OK(fdl_barrier(me.comm));
    EXPECT_EQ(allocations(), before);
    EXPECT_EQ(given_while(me, [&] { larger.sum({}, 2); }), by_nccl() ? 2 * 3 : 0);
  });
}

// Another group asks anew, and has all of it in one go.
TEST_P(DeviceRounds, AreNoneWhereThereIsRoomForAll) {
  run_ranks(2, knobs(), [this](World& me) {
    Gpu gpu(me, kCounts);
    gpu.meet();
    EXPECT_EQ(given_while(me, [&] { gpu.sum({}, 2); }), by_nccl() ? 2 : 0);
  });
}

TEST_P(DeviceRounds, SumsAreRightWhereOneRankHasNoRoomAtAll) {
  run_ranks(3, knobs(), [](World& me) {
    Gpu gpu(me, kCounts);
    gpu.meet();
    if (me.rank == 1) gpu.fill(kMiB);
    if (me.rank == 2) gpu.fill(kLittle);
    gpu.sum({}, 3);
    gpu.sum({.prescale = 2, .in_place = false}, 3);
  });
}

}  // namespace
}  // namespace world_test
