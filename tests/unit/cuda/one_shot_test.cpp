// These tests cover the one-shot kernels: the bits of their results, the memory of other processes, and their end when
// a rank does not come. Ranks are threads or processes, each with a device of the fake driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <barrier>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "cuda/cuda_device.h"
#include "cuda/driver_api.h"
#include "cuda/kernels/one_shot_math.h"
#include "data/half.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/support/collective_case.h"
#include "tests/support/processes/processes.h"

extern "C" int cuStreamSynchronize(void* stream);

namespace fdl {
namespace {

using test::Blob;

constexpr std::size_t kMost = 40'000;  // bytes of a vector

std::shared_ptr<Device> open_device(int index) {
  Config config;
  config.cuda_library = FDL_FAKE_CUDA;
  auto opened = open_cuda_device(index, config);
  EXPECT_TRUE(opened.ok()) << opened.status().text();
  return opened.take();
}

// What the ranks exchange. It lies in memory that processes share.
struct Board {
  std::atomic<int> arrived{0};
  OneShotSums::Address addresses[8];

  void meet(int size) {
    const int mine = arrived.fetch_add(1);
    while (arrived.load() < (mine / size + 1) * size) std::this_thread::yield();
  }
};

// A rank with its device and the opened blocks of all ranks.
class Rank {
 public:
  Rank(int rank, int size, Board& board) : rank_(rank), size_(size), board_(board), device_(open_device(rank)) {
    sums_ = device_->one_shot_sums();
    stop_ = static_cast<uint32_t*>(*device_->allocate_pinned(sizeof *stop_));
    *stop_ = 0;
    stream_ = *device_->make_stream();
    auto own = sums_->allocate(kMost, board.addresses[rank]);
    EXPECT_TRUE(own.ok()) << own.status().text();
    board.meet(size);
    for (int r = 0; r < size; ++r) {
      auto block = r == rank ? own : sums_->open(board.addresses[r]);
      EXPECT_TRUE(block.ok()) << block.status().text();
      blocks_.push_back(*block);
    }
  }
  ~Rank() {
    cuStreamSynchronize(stream_);
    board_.meet(size_);
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) {
        sums_->release(blocks_[static_cast<std::size_t>(r)]);
      } else {
        sums_->close(blocks_[static_cast<std::size_t>(r)]);
      }
    }
    device_->end_stream(stream_);
    device_->release_pinned(stop_);
  }

  OneShotSums::Sum sum_of(const void* input, void* output, std::size_t count, Dtype dtype, Op op, double factor) const {
    return {input, output, count, dtype, op, factor, rank_, blocks_, kMost, stop_};
  }
  Status queue(const OneShotSums::Sum& sum) { return sums_->sum(stream_, sum); }

  // The sum of a case, whose tensors begin `shift` bytes behind a multiple of 16.
  void expect_sum(const test::CollectiveCase& c, std::size_t shift) {
    const std::size_t bytes = c.count * size_of(c.dtype);
    auto* const memory = static_cast<std::byte*>(*device_->allocate(2 * bytes + 64));
    std::byte* const input = memory + shift;
    std::byte* const output = c.in_place ? input : memory + (bytes + 31) / 16 * 16 + shift;
    const Blob mine = test::make_input(c, rank_, c.count);
    Blob guard(8, std::byte{0x5a});
    fake_cuda_write(output + bytes, guard.data(), guard.size());
    fake_cuda_write(input, mine.data(), bytes);
    const Status queued = queue(sum_of(input, output, c.count, c.dtype, c.reduction.op, c.postscale));
    ASSERT_TRUE(queued.ok()) << queued.text();
    ASSERT_EQ(cuStreamSynchronize(stream_), 0);
    Blob result(bytes);
    fake_cuda_read(output, result.data(), bytes);
    EXPECT_EQ(result, expected(c)) << c.text() << " shift " << shift;
    fake_cuda_read(output + bytes, guard.data(), guard.size());
    EXPECT_EQ(guard, Blob(8, std::byte{0x5a})) << "wrote behind the output: " << c.text();
    device_->release(memory);
  }

 private:
  Blob expected(const test::CollectiveCase& c) const {
    std::vector<Blob> inputs;
    std::vector<const void*> sources;
    for (int r = 0; r < size_; ++r) inputs.push_back(test::make_input(c, r, c.count));
    for (const Blob& input : inputs) sources.push_back(input.data());
    Blob result(c.count * size_of(c.dtype));
    reduce_many(c.dtype, c.reduction, result.data(), sources, c.count);
    test::scale_plainly(c.dtype, result.data(), c.count, c.postscale);
    return result;
  }

  const int rank_, size_;
  Board& board_;
  std::shared_ptr<Device> device_;
  OneShotSums* sums_ = nullptr;
  uint32_t* stop_ = nullptr;
  std::vector<void*> blocks_;

 public:
  Stream stream_ = nullptr;
  void stop() { std::atomic_ref<uint32_t>(*stop_).store(1); }
  Device& device() { return *device_; }
};

class OneShotKernels : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("FAKE_CUDA_DEVICES", "8", 1);
    ::setenv("FAKE_CUDA_IPC", "1", 1);
  }
  // In memory that forked processes share with this one.
  OneShotKernels() {
    void* const memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    board_ = new (memory) Board;
  }
  ~OneShotKernels() override { ::munmap(board_, sizeof(Board)); }

  void run_threads(int size, const std::function<void(Rank&, int)>& work) {
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        Rank rank(r, size, *board_);
        work(rank, r);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Board* board_;
};

// The first test, because a process must not fork once it uses the driver.
TEST_F(OneShotKernels, SumVectorsOfOtherProcesses) {
  test::run_processes(3, [this](int r) {
    {
      Rank rank(r, 3, *board_);
      for (int repeat = 0; repeat < 15; ++repeat) {
        test::CollectiveCase c;
        c.count = static_cast<std::size_t>(1 + 457 * repeat);
        c.seed = static_cast<uint64_t>(repeat);
        rank.expect_sum(c, 0);
      }
      EXPECT_EQ(fake_cuda_opened(), 2u);
    }
    EXPECT_EQ(fake_cuda_opened(), 0u) << "blocks stay open";
  });
}

TEST_F(OneShotKernels, HaveTheBitsOfAFoldInRankOrderForEveryTypeAndOperation) {
  run_threads(5, [](Rank& rank, int) {
    for (int d = 0; d < kDtypeCount; ++d) {
      for (int o = 0; o < static_cast<int>(Op::user); ++o) {
        test::CollectiveCase c;
        c.dtype = static_cast<Dtype>(d);
        c.reduction.op = static_cast<Op>(o);
        if (!supports(c.dtype, c.reduction.op)) continue;
        c.count = 67;
        rank.expect_sum(c, 0);
        c.postscale = 1.0 / 3;
        rank.expect_sum(c, 0);
      }
    }
  });
}

TEST_F(OneShotKernels, TakeTensorsOfEverySizeAndPlace) {
  run_threads(3, [](Rank& rank, int) {
    for (const std::size_t count : {1u, 3u, 4u, 5u, 1023u, 1024u, 1025u, 9999u, 10'000u}) {
      for (const std::size_t shift : {0u, 4u, 8u, 12u}) {
        for (const bool in_place : {false, true}) {
          test::CollectiveCase c;
          c.count = count;
          c.in_place = in_place;
          c.postscale = count % 2 == 0 ? 1.0 / 3 : 1;
          rank.expect_sum(c, shift);
        }
      }
    }
  });
}

// Ranks with tensors in different places fold the same elements in the same blocks.
TEST_F(OneShotKernels, TakeTensorsThatLieDifferentlyOnEachRank) {
  run_threads(4, [](Rank& rank, int r) {
    for (int repeat = 0; repeat < 8; ++repeat) {
      test::CollectiveCase c;
      c.count = 5000;
      c.seed = static_cast<uint64_t>(repeat);
      rank.expect_sum(c, static_cast<std::size_t>((r + repeat) % 4) * 4);
    }
  });
}

// Sums that follow each other at once: a fast rank must not overwrite what a slow one still reads. The values change
// with each sum, and one block has them all, so that a fast rank writes the next ones at once.
TEST_F(OneShotKernels, MayFollowEachOtherWithoutAWaitBetween) {
  constexpr std::size_t kCount = 512;
  constexpr int kSums = 300;
  run_threads(3, [](Rank& rank, int r) {
    std::vector<uint64_t> values(kCount, static_cast<uint64_t>(r + 1));
    auto* const memory = static_cast<uint64_t*>(*rank.device().allocate(kCount * sizeof(uint64_t)));
    fake_cuda_write(memory, values.data(), kCount * sizeof(uint64_t));
    uint64_t expected = 2;
    for (int repeat = 0; repeat < kSums; ++repeat) {
      EXPECT_TRUE(rank.queue(rank.sum_of(memory, memory, kCount, Dtype::uint64, Op::sum, 1)).ok());
      expected *= 3;  // 1 + 2 + 3 at first; it wraps around
    }
    ASSERT_EQ(cuStreamSynchronize(rank.stream_), 0);
    fake_cuda_read(memory, values.data(), kCount * sizeof(uint64_t));
    EXPECT_EQ(values, std::vector<uint64_t>(kCount, expected));
    rank.device().release(memory);
  });
}

TEST_F(OneShotKernels, EndWithoutTheOtherRanksWhenTheyAreStopped) {
  static std::barrier both(2);
  run_threads(2, [](Rank& rank, int r) {
    std::vector<float> values(10, 1.0f);
    auto* const memory = static_cast<float*>(*rank.device().allocate(40));
    fake_cuda_write(memory, values.data(), 40);
    if (r == 0) {
      EXPECT_TRUE(rank.queue(rank.sum_of(memory, memory, 10, Dtype::float32, Op::sum, 1)).ok());
      rank.stop();
      ASSERT_EQ(cuStreamSynchronize(rank.stream_), 0);
      fake_cuda_read(memory, values.data(), 40);
      EXPECT_EQ(values, std::vector<float>(10, 1.0f)) << "no result is better than a wrong one";
    }
    both.arrive_and_wait();
    rank.device().release(memory);
  });
}

// A captured kernel counts its runs itself, so that a graph may run it many times.
TEST_F(OneShotKernels, RunManyTimesInAGraph) {
  static std::barrier both(2);
  static std::mutex
      turn;  // the fake keeps only the last capture, so each rank replays its own before the next captures
  run_threads(2, [](Rank& rank, int r) {
    std::vector<float> values(100, static_cast<float>(r + 1));
    auto* const memory = static_cast<float*>(*rank.device().allocate(400));
    fake_cuda_write(memory, values.data(), 400);
    {
      const std::lock_guard lock(turn);
      ASSERT_EQ(fake_cuda_begin_capture(rank.stream_), 0);
      EXPECT_TRUE(rank.queue(rank.sum_of(memory, memory, 100, Dtype::float32, Op::sum, 1)).ok());
      EXPECT_EQ(fake_cuda_end_capture(rank.stream_), 1);
      for (int repeat = 0; repeat < 3; ++repeat) ASSERT_EQ(fake_cuda_launch_captured(rank.stream_), 0);
    }
    both.arrive_and_wait();
    ASSERT_EQ(cuStreamSynchronize(rank.stream_), 0);
    fake_cuda_read(memory, values.data(), 400);
    EXPECT_EQ(values, std::vector<float>(100, 12.0f)) << "3, 6, 12";
    rank.device().release(memory);
  });
}

TEST_F(OneShotKernels, ReportWhatTheDriverRefuses) {
  const auto device = open_device(0);
  OneShotSums& sums = *device->one_shot_sums();
  OneShotSums::Address address;
  for (const char* call : {"cuMemAlloc_v2", "cuMemsetD8Async", "cuIpcGetMemHandle"}) {
    fake_cuda_fail(call, 1, cuda::kNotSupported);
    const auto block = sums.allocate(kMost, address);
    ASSERT_FALSE(block.ok()) << call;
    EXPECT_THAT(block.status().text(), testing::HasSubstr("cuda:0"));
    fake_cuda_clear_failures();
  }
  const auto block = sums.allocate(kMost, address);
  ASSERT_TRUE(block.ok());
  address.process += 1;  // as if it were of another process
  fake_cuda_fail("cuIpcOpenMemHandle_v2", 1, cuda::kNotSupported);
  const auto opened = sums.open(address);
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().text(), testing::HasSubstr("cuIpcOpenMemHandle"));
  fake_cuda_clear_failures();
  sums.release(*block);
}

}  // namespace
}  // namespace fdl
