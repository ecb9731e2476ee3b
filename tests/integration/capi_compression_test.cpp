// Tests of compression through the C API: ordered calls, requests, submitted calls and named operations, over shared
// memory and TCP.
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include "tests/support/worlds.h"

namespace world_test {
namespace {

class Compression : public testing::TestWithParam<const char*> {
 protected:
  Knobs knobs() const { return {{"transport", GetParam()}, {"timeout_s", "60"}}; }
};
INSTANTIATE_TEST_SUITE_P(Over, Compression, testing::Values("shm", "tcp"));

constexpr fdl_compression kAll[] = {FDL_COMPRESSION_INT8, FDL_COMPRESSION_INT4, FDL_COMPRESSION_FLOAT8_E4M3,
                                    FDL_COMPRESSION_FLOAT8_E5M2, FDL_COMPRESSION_BFLOAT16};

std::vector<float> contribution(int rank, std::size_t count) {
  std::mt19937_64 random(static_cast<uint64_t>(rank) + 7 * count);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<double> mean_of(int size, std::size_t count) {
  std::vector<double> sums(count);
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> values = contribution(rank, count);
    for (std::size_t i = 0; i < count; ++i) sums[i] += double{values[i]} / size;
  }
  return sums;
}

double largest_error(const std::vector<float>& result, const std::vector<double>& exact) {
  double largest = 0;
  for (std::size_t i = 0; i < result.size(); ++i) largest = std::max(largest, std::abs(result[i] - exact[i]));
  return largest;
}

fdl_call_options compressed(fdl_compression compression, double* bound) {
  fdl_call_options options;
  fdl_call_options_init(&options);
  options.compression = compression;
  options.error_bound = bound;
  return options;
}

// ---- Ordered calls ----

TEST_P(Compression, OfAnAverageStaysWithinItsBound) {
  run_ranks(3, knobs(), [](World& me) {
    for (const fdl_compression compression : kAll) {
      for (const std::size_t count : {std::size_t{5}, std::size_t{3000}, std::size_t{100'000}}) {
        const std::vector<float> input = contribution(me.rank, count);
        std::vector<float> output(count);
        double bound = -1;
        const fdl_call_options options = compressed(compression, &bound);
        FDL_ASSERT_OK(
            fdl_allreduce_ex(me.comm, input.data(), output.data(), count, FDL_FLOAT32, FDL_AVERAGE, &options));
        EXPECT_GT(bound, 0);
        EXPECT_LT(bound, 2);
        EXPECT_LE(largest_error(output, mean_of(3, count)), bound) << fdl_compression_name(compression) << count;
      }
    }
  });
}

TEST_P(Compression, OfSubmittedCallsGivesTheSameBits) {
  run_ranks(3, knobs(), [](World& me) {
    constexpr std::size_t kCount = 100'000;
    const std::vector<float> input = contribution(me.rank, kCount);
    std::vector<float> blocking(kCount), as_request(kCount), submitted(kCount);
    double bounds[3] = {};
    fdl_call call;
    fdl_call_init(&call);
    call.input = input.data();
    call.count = kCount;
    fdl_call_options options = compressed(FDL_COMPRESSION_INT8, &bounds[0]);
    call.output = blocking.data();
    FDL_ASSERT_OK(fdl_call_ex(me.comm, &call, &options, nullptr));
    options.error_bound = &bounds[1];
    call.output = as_request.data();
    fdl_request* request = nullptr;
    FDL_ASSERT_OK(fdl_call_ex(me.comm, &call, &options, &request));
    FDL_ASSERT_OK(fdl_wait(request));
    options.error_bound = &bounds[2];
    call.output = submitted.data();
    fdl_handle* handle = nullptr;
    FDL_ASSERT_OK(fdl_call_submit(me.comm, &call, &options, &handle));
    FDL_ASSERT_OK(fdl_wait_handle(handle, -1));
    fdl_handle_free(handle);
    EXPECT_EQ(blocking, as_request);
    EXPECT_EQ(blocking, submitted);
    EXPECT_EQ(bounds[0], bounds[1]);
    EXPECT_EQ(bounds[0], bounds[2]);
    EXPECT_GT(bounds[0], 0);
  });
}

// A program that was compiled before the options had compressions passes a shorter structure.
TEST(CompressionOptions, OfAnOlderVersionMeanNone) {
  run_ranks(2, {}, [](World& me) {
    float value = 1 + 1.0f / 4096;
    fdl_call_options options = compressed(FDL_COMPRESSION_INT4, nullptr);
    options.struct_size = offsetof(fdl_call_options, compression);
    FDL_ASSERT_OK(fdl_allreduce_ex(me.comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM, &options));
    EXPECT_EQ(value, 2 + 2.0f / 4096);
  });
}

TEST(CompressionOptions, ThatCannotWorkNameTheArgumentTheRankAndTheRemedy) {
  run_ranks(2, {}, [](World& me) {
    double bound = 0;
    double wide[2] = {};
    float narrow[2] = {1, 1};
    const std::string rank = "(rank " + std::to_string(me.rank) + ")";
    const auto expect_refused = [&](const char* part, fdl_result result) {
      EXPECT_EQ(result, FDL_INVALID_ARGUMENT);
      const std::string text = fdl_last_error()->text;
      EXPECT_NE(text.find(part), std::string::npos) << text;
      EXPECT_NE(text.find(rank), std::string::npos) << text;
    };
    fdl_call_options options = compressed(FDL_COMPRESSION_INT8, &bound);
    const auto reduce = [&](void* data, fdl_dtype dtype, fdl_reduce_op op) {
      return fdl_allreduce_ex(me.comm, data, data, 2, dtype, op, &options);
    };
    expect_refused("compression int8 takes dtype float32, not float64; convert", reduce(wide, FDL_FLOAT64, FDL_SUM));
    expect_refused("compression int8 takes op sum or average, not max", reduce(narrow, FDL_FLOAT32, FDL_MAX));
    options.algorithm = "ring";
    expect_refused("leave one out", reduce(narrow, FDL_FLOAT32, FDL_SUM));
    options.algorithm = nullptr;
    options.compression = static_cast<fdl_compression>(17);
    expect_refused("compression 17 does not exist", reduce(narrow, FDL_FLOAT32, FDL_SUM));
    options.compression = FDL_COMPRESSION_NONE;
    expect_refused("error_bound is given without a compression", reduce(narrow, FDL_FLOAT32, FDL_SUM));
    options = compressed(FDL_COMPRESSION_INT8, &bound);
    fdl_call call;
    fdl_call_init(&call);
    call.collective = FDL_BROADCAST;
    call.input = call.output = narrow;
    call.count = 2;
    expect_refused("is for allreduce, reduce_scatter and allgather", fdl_call_ex(me.comm, &call, &options, nullptr));
    // Nothing was sent, so the communicator is still usable.
    FDL_ASSERT_OK(fdl_barrier(me.comm));
  });
}

TEST_P(Compression, ThatDiffersIsAMismatchOnAllRanks) {
  for (const fdl_compression other : {FDL_COMPRESSION_BFLOAT16, FDL_COMPRESSION_NONE}) {
    // The ranks are threads: all are connected before the failure, which would end a rank's connecting, too.
    std::atomic<int> connected{0};
    run_ranks(3, knobs(), [&](World& me) {
      ++connected;
      for (int i = 0; i < 30'000 && connected < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::vector<float> values(1000, 1);
      const fdl_call_options options = compressed(me.rank == 1 ? FDL_COMPRESSION_INT8 : other, nullptr);
      EXPECT_EQ(fdl_allreduce_ex(me.comm, values.data(), values.data(), values.size(), FDL_FLOAT32, FDL_SUM, &options),
                FDL_MISMATCH);
      const std::string text = fdl_last_error()->text;
      EXPECT_NE(text.find("int8"), std::string::npos) << text;
      if (other != FDL_COMPRESSION_NONE) {
        EXPECT_NE(text.find("bfloat16"), std::string::npos) << text;
      }
    });
  }
}

// ---- Named operations ----

struct Named {
  std::vector<float> input;
  std::vector<float> output;
  int64_t shape = 0;
};

// `name` must live until the operation is done.
fdl_operation operation_of(const char* name, Named& tensor, fdl_compression compression) {
  fdl_operation operation;
  fdl_operation_init(&operation);
  operation.name = name;
  tensor.shape = static_cast<int64_t>(tensor.input.size());
  operation.input.data = tensor.input.data();
  operation.input.ndim = 1;
  operation.input.shape = &tensor.shape;
  operation.output = tensor.output.data();
  operation.op = FDL_AVERAGE;
  operation.compression = compression;
  return operation;
}

// Fused or not, in a plan or in a locked order, a tensor has the same bits: its blocks begin with it.
TEST_P(Compression, OfNamedOperationsDoesNotDependOnTheBucket) {
  constexpr std::size_t kCounts[] = {1, 70, 64, 3001, 20'000};
  std::mutex mutex;
  std::map<std::size_t, std::vector<float>> bits;
  for (const char* fusion : {"0", "64M"}) {
    Knobs all = knobs();
    all.emplace_back("fusion_bytes", fusion);
    run_ranks(3, all, [&](World& me) {
      for (int step = 0; step < 8; ++step) {
        std::vector<Named> tensors(std::size(kCounts));
        std::vector<fdl_handle*> handles(std::size(kCounts));
        std::vector<std::string> names(std::size(kCounts));
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          tensors[i].input = contribution(me.rank, kCounts[i]);
          tensors[i].output.resize(kCounts[i]);
          names[i] = "tensor_" + std::to_string(i);
          const fdl_operation operation = operation_of(names[i].c_str(), tensors[i], FDL_COMPRESSION_INT8);
          FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handles[i]));
        }
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          FDL_ASSERT_OK(fdl_wait_handle(handles[i], -1));
          fdl_output output{};
          output.struct_size = sizeof output;
          FDL_ASSERT_OK(fdl_handle_output(handles[i], 0, &output));
          EXPECT_GT(output.error_bound, 0);
          EXPECT_LE(largest_error(tensors[i].output, mean_of(3, kCounts[i])), output.error_bound);
          fdl_handle_free(handles[i]);
          const std::lock_guard lock(mutex);
          const auto& first = bits.try_emplace(i, tensors[i].output).first->second;
          EXPECT_EQ(first, tensors[i].output) << "tensor " << i << ", step " << step << ", fusion_bytes " << fusion;
        }
      }
    });
  }
}

TEST_P(Compression, OfNamedOperationsThatDiffersFailsOnlyThese) {
  run_ranks(2, knobs(), [](World& me) {
    Named tensor{contribution(me.rank, 100), std::vector<float>(100)};
    const auto run = [&](const char* name, fdl_compression compression) {
      const fdl_operation operation = operation_of(name, tensor, compression);
      return fdl_run(me.all, &operation, 1, -1, nullptr);
    };
    EXPECT_EQ(run("x", me.rank == 0 ? FDL_COMPRESSION_INT8 : FDL_COMPRESSION_NONE), FDL_MISMATCH);
    const std::string text = fdl_last_error()->text;
    EXPECT_NE(text.find("has compression int8, rank 1"), std::string::npos) << text;
    EXPECT_NE(text.find("has compression none; all ranks must submit the same"), std::string::npos) << text;
    EXPECT_EQ(run("x", FDL_COMPRESSION_INT4), FDL_OK);
    tensor.input[3] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(run("y", FDL_COMPRESSION_INT4), FDL_OK);
    EXPECT_TRUE(std::isnan(tensor.output[3]));
    Named wide = tensor;
    fdl_operation operation = operation_of("z", wide, FDL_COMPRESSION_INT8);
    operation.op = FDL_MAX;
    EXPECT_EQ(fdl_run(me.all, &operation, 1, -1, nullptr), FDL_INVALID_ARGUMENT);
  });
}

// A rank that has joined contributes zeros.
TEST_P(Compression, OfNamedOperationsWorksWithRanksThatHaveJoined) {
  run_ranks(2, knobs(), [](World& me) {
    if (me.rank == 0) {
      Named tensor{std::vector<float>(100, 127), std::vector<float>(100)};
      const fdl_operation operation = operation_of("x", tensor, FDL_COMPRESSION_INT8);
      FDL_ASSERT_OK(fdl_run(me.all, &operation, 1, -1, nullptr));
      EXPECT_EQ(tensor.output, std::vector<float>(100, 63.5f));
    }
    fdl_handle* handle = nullptr;
    FDL_ASSERT_OK(fdl_join(me.all, &handle));
    FDL_ASSERT_OK(fdl_wait_handle(handle, -1));
    fdl_handle_free(handle);
  });
}

// ---- Round trip ----

TEST(CompressionRoundTrip, IsWhatOtherRanksRead) {
  std::vector<float> values = contribution(0, 1000), read(1000);
  double bound = 0;
  FDL_ASSERT_OK(fdl_compression_round_trip(FDL_COMPRESSION_INT4, values.data(), read.data(), 1000, &bound));
  run_ranks(2, {}, [&](World& me) {
    // reduce_scatter does not quantise the sum; rank 1 contributes zeros.
    std::vector<float> input = me.rank == 0 ? values : std::vector<float>(1000);
    std::vector<float> output(1000);
    const std::size_t counts[] = {0, 1000};
    fdl_call call;
    fdl_call_init(&call);
    call.collective = FDL_REDUCE_SCATTER;
    call.input = input.data();
    call.output = output.data();
    call.counts = counts;
    double of_call = 0;
    const fdl_call_options options = compressed(FDL_COMPRESSION_INT4, &of_call);
    FDL_ASSERT_OK(fdl_call_ex(me.comm, &call, &options, nullptr));
    if (me.rank == 1) {
      EXPECT_EQ(output, read);
    }
    EXPECT_GE(of_call, bound);
  });
  EXPECT_EQ(fdl_compression_round_trip(FDL_COMPRESSION_NONE, values.data(), read.data(), 1000, nullptr),
            FDL_INVALID_ARGUMENT);
  EXPECT_EQ(fdl_compression_round_trip(FDL_COMPRESSION_INT8, nullptr, read.data(), 1000, nullptr),
            FDL_INVALID_ARGUMENT);
  FDL_ASSERT_OK(fdl_compression_round_trip(FDL_COMPRESSION_INT8, nullptr, nullptr, 0, &bound));
  EXPECT_EQ(bound, 0);
}

}  // namespace
}  // namespace world_test
