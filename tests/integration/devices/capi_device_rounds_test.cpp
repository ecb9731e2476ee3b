// Tests of buckets that are larger than the scratch buffer of their devices and so run in rounds. Ranks are threads, on
// the fakes. Sums are exact, and neighbouring elements differ.
#include <gmock/gmock.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#include "cuda/cuda_device.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/fakes/device/synchronize_stream.h"
#include "tests/fakes/nccl/fake_nccl.h"
#include "tests/support/worlds.h"

namespace world_test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Set before the driver is opened for the first time.
const bool kDevices = ::setenv("FAKE_CUDA_DEVICES", "3", 1) == 0 &&
                      ::setenv("FAKE_CUDA_MEMORY", std::to_string(128 * kMiB).c_str(), 1) == 0;

// Elements of 4 bytes for several rounds of 2 MiB: odd sizes, an empty tensor, and one larger than the scratch buffer.
const std::vector<int64_t> kCounts{1, 100'001, 0, 700'003, 17, 262'144};
constexpr std::size_t kElements = 1 + 100'001 + 700'003 + 17 + 262'144;

struct Sum {
  fdl_dtype dtype = FDL_INT32;
  fdl_reduce_op op = FDL_SUM;
  double prescale = 1;
  double postscale = 1;
  bool in_place = true;
};

// The values of one rank: at most 16 different ones, so that sums of three ranks are exact in bfloat16 as well.
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

// A rank's device, used as an application uses it.
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
    release();
    synchronize();
    for (void* memory : own_) fake_cuda_delete(memory);
    fdl_free(symmetric_);
    device_->end_stream(stream_);
  }

  // Allocates all memory of the device except one block of `left` bytes.
  void fill(std::size_t left) {
    void* const kept = left > 0 ? fake_cuda_new(me_.rank, left) : nullptr;
    for (std::size_t size = 64 * kMiB; size >= 4096; size /= 2) {
      while (void* one = fake_cuda_new(me_.rank, size)) filling_.push_back(one);
    }
    if (kept != nullptr) fake_cuda_delete(kept);
  }
  void release() {
    for (void* memory : std::exchange(filling_, {})) fake_cuda_delete(memory);
  }

  // Waits until all work on the stream has run.
  void synchronize() { synchronize_stream(*device_, stream_, notifier_); }

  // Submits the tensors together, so that they are fused. Compares each with the sum over the ranks that have not
  // joined.
  void sum(const Sum& how, int present) {
    synchronize();
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
    synchronize();
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
  // The first tensor lies in symmetric memory on rank 0 only, so all ranks must pack it.
  void use_symmetric_memory_on_rank_0() {
    const auto bytes = static_cast<std::size_t>(counts_[0]) * 4;
    FDL_EXPECT_OK(fdl_device_alloc(me_.all, FDL_DEVICE_CUDA, me_.rank, stream_, bytes, &symmetric_));
    if (me_.rank == 0) inputs_[0] = static_cast<std::byte*>(symmetric_);
  }
  // Runs one collective, so that the backend is negotiated while there is memory.
  void negotiate() {
    const int64_t one = 1;
    fdl_operation operation;
    fdl_operation_init(&operation);
    operation.name = "negotiation";
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
  void* symmetric_ = nullptr;
  std::vector<std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
};

// The backend of the collectives.
struct Way {
  const char* name;
  const char* setting;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class DeviceRounds : public testing::TestWithParam<Way> {
 protected:
  Knobs knobs() const {
    return {{"cuda_library", FDL_FAKE_CUDA},
            {"nccl_library", FDL_FAKE_NCCL},
            {"device_collectives", GetParam().setting},
            {"log_level", "error"}};
  }
  bool by_nccl() const { return std::string_view(GetParam().setting) == "nccl"; }
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

// Enough memory for the smallest scratch buffer and for the tables of the kernels.
constexpr std::size_t kLittle = 3 * kMiB;
constexpr long kRounds = (kElements * 4 + 2 * kMiB - 1) / (2 * kMiB);

// The number of collectives that all ranks together pass to NCCL during `work`.
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

TEST_P(DeviceRounds, SumsOfOddSizesAreExact) {
  run_ranks(3, knobs(), [this](World& me) {
    Gpu gpu(me, kCounts);
    gpu.negotiate();
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

TEST_P(DeviceRounds, AveragesOfSixteenBitFloatsAreExact) {
  run_ranks(2, knobs(), [this](World& me) {
    Gpu gpu(me, kCounts);
    gpu.negotiate();
    gpu.fill(kLittle);  // on all ranks
    const Sum average{.dtype = FDL_BFLOAT16, .op = FDL_AVERAGE, .prescale = 2, .in_place = false};
    EXPECT_EQ(given_while(me, [&] { gpu.sum(average, 2); }), by_nccl() ? 2 * ((kRounds + 1) / 2) : 0);
    gpu.sum({.dtype = FDL_FLOAT32, .op = FDL_AVERAGE}, 2);
  });
}

TEST_P(DeviceRounds, JoinedRankContributesZerosInEachRound) {
  run_ranks(3, knobs(), [](World& me) {
    Gpu gpu(me, kCounts);
    gpu.negotiate();
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

TEST_P(DeviceRounds, SingleTensorThatAllRanksMustPackIsSplitIntoRounds) {
  run_ranks(2, knobs(), [this](World& me) {
    Gpu gpu(me, {1'100'003});
    gpu.negotiate();
    gpu.use_symmetric_memory_on_rank_0();
    if (me.rank == 1) gpu.fill(kLittle);
    for (const bool in_place : {true, false}) {
      const Sum how{.prescale = 3, .postscale = 2, .in_place = in_place};
      EXPECT_EQ(given_while(me, [&] { gpu.sum(how, 2); }), by_nccl() ? 2 * 3 : 0);
    }
  });
}

// Other ranks cannot see that one rank has memory again, so the group never retries.
TEST_P(DeviceRounds, GroupDoesNotRetryARefusedScratchRequest) {
  run_ranks(2, knobs(), [this](World& me) {
    Gpu gpu(me, kCounts);
    Gpu larger(me, {500'000, 1'000'000});
    gpu.negotiate();
    if (me.rank == 1) gpu.fill(kLittle);
    gpu.sum({}, 2);
    gpu.release();
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

// A world with enough memory runs the bucket in one round.
TEST_P(DeviceRounds, OneRoundSufficesWhenTheScratchBufferFits) {
  run_ranks(2, knobs(), [this](World& me) {
    Gpu gpu(me, kCounts);
    gpu.negotiate();
    EXPECT_EQ(given_while(me, [&] { gpu.sum({}, 2); }), by_nccl() ? 2 : 0);
  });
}

TEST_P(DeviceRounds, SumsAreExactIfOneRankHasNoScratchMemory) {
  run_ranks(3, knobs(), [](World& me) {
    Gpu gpu(me, kCounts);
    gpu.negotiate();
    if (me.rank == 1) gpu.fill(kMiB);
    if (me.rank == 2) gpu.fill(kLittle);
    gpu.sum({}, 3);
    gpu.sum({.prescale = 2, .in_place = false}, 3);
  });
}

}  // namespace
}  // namespace world_test
