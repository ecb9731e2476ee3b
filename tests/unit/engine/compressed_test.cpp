// Tests of compressed collectives over loopback: bounds against exact sums, equal bits on all ranks, bad values, and
// calls that differ. This program counts a thread's allocations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>
#include <random>

#include "tests/support/thread_ranks.h"
#include "tests/unit/engine/counted_allocations.h"

namespace fdl::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Compression kAll[] = {Compression::int8, Compression::int4, Compression::float8_e4m3,
                                Compression::float8_e5m2, Compression::bfloat16};

enum class Distribution { normal, heavy_tailed, adversarial, cancelling };
constexpr Distribution kDistributions[] = {Distribution::normal, Distribution::heavy_tailed, Distribution::adversarial,
                                           Distribution::cancelling};

// What rank `rank` contributes; every rank can compute every other's.
std::vector<float> contribution(Distribution distribution, int rank, std::size_t count) {
  std::mt19937_64 random(static_cast<uint64_t>(rank) * 1000 + count);
  std::normal_distribution<float> normal;
  std::cauchy_distribution<float> cauchy;
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    switch (distribution) {
      case Distribution::normal:
        values[i] = normal(random);
        break;
      case Distribution::heavy_tailed:
        values[i] = cauchy(random);
        break;
      case Distribution::adversarial:  // halfway between two codes of int8 and of int4
        values[i] = i % kBlockElements == 0 ? 127.0f : (i % 2 == 0 ? 100.5f : 9.07f);
        break;
      case Distribution::cancelling:
        values[i] = (rank % 2 == 0 ? 1e6f : -1e6f) + normal(random);
        break;
    }
  }
  return values;
}

struct Scaling {
  double prescale = 1;
  double postscale = 1;
};

// postscale * sum of prescale * x. long double has 64 bits of mantissa, enough to be exact for a bound of 2^-24.
std::vector<long double> exact(Distribution distribution, int size, std::size_t count, Scaling scaling) {
  std::vector<long double> sums(count);
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> values = contribution(distribution, rank, count);
    for (std::size_t i = 0; i < count; ++i) sums[i] += static_cast<long double>(scaling.prescale) * values[i];
  }
  for (long double& sum : sums) sum *= static_cast<long double>(scaling.postscale);
  return sums;
}

CollectiveSpec allreduce_of(Compression compression, std::size_t count, double* bound, Scaling scaling = {}) {
  return {.collective = Collective::allreduce,
          .dtype = Dtype::float32,
          .count = count,
          .prescale = scaling.prescale,
          .postscale = scaling.postscale,
          .compression = compression,
          .error_bound = bound};
}

void expect_within(const std::vector<float>& result, const std::vector<long double>& expected, std::size_t first,
                   double bound, const std::string& what) {
  long double largest = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    largest = std::max(largest, std::abs(expected[first + i] - static_cast<long double>(result[i])));
  }
  EXPECT_LE(largest, bound) << what;
}

class Compressed : public ::testing::TestWithParam<int> {};

TEST_P(Compressed, AllreduceStaysWithinItsBoundAndHasTheSameBitsOnAllRanks) {
  const int size = GetParam();
  std::mutex mutex;
  std::map<std::string, std::vector<float>> first;
  run_thread_ranks(size, make_config({{"slice_bytes", "512"}}), [&](Communicator& comm) {
    for (const Compression compression : kAll) {
      for (const Distribution distribution : kDistributions) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{63}, std::size_t{1000}, std::size_t{6011}}) {
          const Scaling scaling = count == 1000 ? Scaling{0.3, 1.0 / size} : Scaling{};
          const std::vector<float> input = contribution(distribution, comm.rank(), count);
          std::vector<float> output(count, -1);
          double bound = -1;
          require(call(comm, allreduce_of(compression, count, &bound, scaling), input.data(), output.data()));
          const std::string what = std::string(name_of(compression)) + " " +
                                   std::to_string(static_cast<int>(distribution)) + " " + std::to_string(count);
          EXPECT_LT(bound, kInfinity) << what;
          if (size > 1) {
            EXPECT_GT(bound, 0) << what;
          }
          expect_within(output, exact(distribution, size, count, scaling), 0, bound, what);
          output.push_back(static_cast<float>(bound));
          const std::lock_guard lock(mutex);
          const auto& reference = first.try_emplace(what, output).first->second;
          EXPECT_EQ(0, std::memcmp(reference.data(), output.data(), output.size() * sizeof(float))) << what;
        }
      }
    }
  });
}

TEST_P(Compressed, ReduceScatterKeepsItsSumsInFloat32) {
  const int size = GetParam();
  run_thread_ranks(size, make_config(), [&](Communicator& comm) {
    std::vector<std::size_t> counts(static_cast<std::size_t>(size));
    for (std::size_t r = 0; r < counts.size(); ++r) counts[r] = r * 101 % 300;
    counts[0] = 77;
    const std::size_t all = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    const std::size_t before = std::accumulate(counts.begin(), counts.begin() + comm.rank(), std::size_t{0});
    for (const Compression compression : kAll) {
      const Scaling scaling{1, 0.125};
      std::vector<float> input = contribution(Distribution::normal, comm.rank(), all);
      std::vector<float> output(counts[static_cast<std::size_t>(comm.rank())]);
      double bound = -1;
      CollectiveSpec spec = allreduce_of(compression, 0, &bound, scaling);
      spec.collective = Collective::reduce_scatter;
      spec.counts = counts;
      require(call(comm, spec, input.data(), output.data()));
      expect_within(output, exact(Distribution::normal, size, all, scaling), before, bound,
                    std::string(name_of(compression)));
      double of_allreduce = -1;
      std::vector<float> sums(all);
      require(call(comm, allreduce_of(compression, all, &of_allreduce, scaling), input.data(), sums.data()));
      if (size > 1) {
        EXPECT_LT(bound, of_allreduce * 1.5) << name_of(compression);
      }
    }
  });
}

TEST_P(Compressed, AllgatherBoundsTheErrorOfEachRank) {
  const int size = GetParam();
  run_thread_ranks(size, make_config(), [&](Communicator& comm) {
    std::vector<std::size_t> counts(static_cast<std::size_t>(size));
    for (std::size_t r = 0; r < counts.size(); ++r) counts[r] = r * 101 % 300 + 1;
    for (const Compression compression : kAll) {
      std::vector<float> all;
      std::size_t before = 0;
      for (int r = 0; r < size; ++r) {
        if (r == comm.rank()) before = all.size();
        const auto part = contribution(Distribution::heavy_tailed, r, counts[static_cast<std::size_t>(r)]);
        all.insert(all.end(), part.begin(), part.end());
      }
      std::vector<float> output(all.size());
      double bound = -1;
      CollectiveSpec spec{.collective = Collective::allgather, .dtype = Dtype::float32, .counts = counts};
      spec.compression = compression;
      spec.error_bound = &bound;
      // In place and not, by turns.
      const float* input = all.data() + before;
      if (compression == Compression::int4) {
        const auto own =
            contribution(Distribution::heavy_tailed, comm.rank(), counts[static_cast<std::size_t>(comm.rank())]);
        std::copy(own.begin(), own.end(), output.begin() + static_cast<std::ptrdiff_t>(before));
        input = output.data() + before;
      }
      require(call(comm, spec, input, output.data()));
      if (size == 1) {
        EXPECT_EQ(bound, 0);
      }
      expect_within(output, {all.begin(), all.end()}, 0, bound, std::string(name_of(compression)));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, Compressed, ::testing::Values(1, 2, 3, 8));

// Long chunks pass in segments. The bits are those of one rank that does everything by itself.
TEST(CompressedCalls, OfLongVectorsHaveTheBitsOfTheDefinition) {
  constexpr int kSize = 3;
  constexpr std::size_t kCount = 2'000'003;
  std::vector<float> sums(kCount), results(kCount), one(kCount);
  for (int rank = 0; rank < kSize; ++rank) {
    round_trip(Compression::int4, contribution(Distribution::normal, rank, kCount).data(), one.data(), kCount);
    for (std::size_t i = 0; i < kCount; ++i) sums[i] = rank == 0 ? one[i] : sums[i] + one[i];
  }
  round_trip(Compression::int4, sums.data(), results.data(), kCount);
  run_thread_ranks(kSize, make_config(), [&](Communicator& comm) {
    const std::vector<float> input = contribution(Distribution::normal, comm.rank(), kCount);
    std::vector<float> output(kCount);
    double bound = 0;
    require(call(comm, allreduce_of(Compression::int4, kCount, &bound), input.data(), output.data()));
    EXPECT_EQ(0, std::memcmp(output.data(), results.data(), kCount * sizeof(float)));
    EXPECT_GT(bound, 0);
    // Whole blocks but for the end, so that they are the same as those of the allreduce.
    const std::vector<std::size_t> counts{0, 1'600'000, 400'003};
    CollectiveSpec spec = allreduce_of(Compression::int4, 0, &bound);
    spec.collective = Collective::reduce_scatter;
    spec.counts = counts;
    require(call(comm, spec, input.data(), output.data()));
    const std::size_t first = comm.rank() == 2 ? 1'600'000 : 0;
    EXPECT_EQ(0, std::memcmp(output.data(), sums.data() + first,
                             counts[static_cast<std::size_t>(comm.rank())] * sizeof(float)));
    spec.collective = Collective::allgather;
    require(call(comm, spec, sums.data() + first, output.data()));
    EXPECT_EQ(0, std::memcmp(output.data(), results.data(), kCount * sizeof(float)));
  });
}

TEST(CompressedCalls, WorkInPlaceAndBesideOthers) {
  run_thread_ranks(3, make_config(), [](Communicator& comm) {
    // Multiples of 127 over 127 are exact in int8.
    std::vector<float> values(300);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? 127.0f : -127.0f;
    std::vector<int> plain(300, comm.rank());
    double bound = -1;
    Operation first, second, third;
    first.spec = {.dtype = Dtype::int32, .count = 300};
    first.buffers = {plain.data(), plain.data()};
    second.spec = allreduce_of(Compression::int8, values.size(), &bound);
    second.buffers = {values.data(), values.data()};
    third.spec = {.collective = Collective::barrier};
    comm.start(first);
    comm.start(second);
    comm.start(third);
    require(comm.wait(third.completion, Deadline::after_seconds(30)));
    EXPECT_TRUE(second.completion.done && second.completion.status.ok());
    EXPECT_EQ(plain, std::vector<int>(300, 3));
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], i % 2 == 0 ? 381.0f : -381.0f);
    EXPECT_GT(bound, 0);
  });
}

TEST(CompressedCalls, ReportAnInfiniteBoundForValuesThatAreNotFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, 3e38f}) {
    run_thread_ranks(3, make_config(), [bad](Communicator& comm) {
      for (const Compression compression : kAll) {
        std::vector<float> values(1000, 1);
        // Two huge values overflow in the sum; one NaN or infinity is enough.
        if (comm.rank() < (bad < kInfinity ? 2 : 1)) values[500] = bad;
        std::vector<float> output(1000);
        double bound = -1;
        require(call(comm, allreduce_of(compression, 1000, &bound), values.data(), output.data()));
        EXPECT_EQ(bound, kInfinity) << name_of(compression);
        EXPECT_FALSE(std::isfinite(output[500])) << name_of(compression);
        EXPECT_NEAR(output[0], 3, 0.1) << name_of(compression);
        EXPECT_NEAR(output[999], 3, 0.1) << name_of(compression);
        std::vector<std::size_t> counts{500, 400, 100};
        CollectiveSpec spec = allreduce_of(compression, 0, &bound);
        spec.collective = Collective::reduce_scatter;
        spec.counts = counts;
        require(call(comm, spec, values.data(), output.data()));
        EXPECT_EQ(bound, kInfinity) << name_of(compression);
        if (comm.rank() == 1) {
          EXPECT_FALSE(std::isfinite(output[0])) << name_of(compression);
        }
      }
    });
  }
}

TEST(CompressedCalls, OfNothingHaveABoundOfZero) {
  run_thread_ranks(2, make_config(), [](Communicator& comm) {
    double bound = -1;
    require(call(comm, allreduce_of(Compression::int8, 0, &bound), nullptr, nullptr));
    EXPECT_EQ(bound, 0);
    std::vector<float> zeros(100), output(100, 1);
    require(call(comm, allreduce_of(Compression::int4, 100, &bound), zeros.data(), output.data()));
    EXPECT_EQ(bound, 0);
    EXPECT_EQ(output, zeros);
  });
}

TEST(CompressedCalls, AllocateNothingWhenTheyRepeat) {
  run_thread_ranks(3, make_config({{"slice_bytes", "512"}}), [](Communicator& comm) {
    std::vector<float> values(5000, 1), output(5000);
    const std::vector<std::size_t> counts{1000, 500, 3500};
    double bound = 0;
    const auto round = [&] {
      CollectiveSpec spec = allreduce_of(Compression::int8, 5000, &bound);
      require(call(comm, spec, values.data(), output.data()));
      spec.collective = Collective::reduce_scatter;
      spec.counts = counts;
      require(call(comm, spec, values.data(), output.data()));
      spec.collective = Collective::allgather;
      require(call(comm, spec, values.data(), output.data()));
    };
    round();
    EXPECT_GT(allocations, 0) << "the first round must allocate, otherwise the counter does not work";
    const int before = allocations;
    for (int i = 0; i < 10; ++i) round();
    EXPECT_EQ(allocations, before);
  });
}

// Rank 0 asks for one compression, the others for another or for none.
TEST(CompressedCalls, ThatDifferAreAMismatchThatNamesBoth) {
  for (const Compression other : {Compression::int4, Compression::float8_e4m3, Compression::none}) {
    std::atomic<int> mismatches{0};
    run_thread_ranks(3, make_config({{"timeout_s", "20"}}), [&](Communicator& comm) {
      std::vector<float> values(1000, 1), output(1000);
      double bound = 0;
      const Compression mine = comm.rank() == 0 ? Compression::int8 : other;
      const Status status = call(comm, allreduce_of(mine, 1000, &bound), values.data(), output.data());
      ASSERT_FALSE(status.ok());
      EXPECT_THAT(status.code(), AnyOf(Code::mismatch, Code::peer_lost)) << status.text();
      if (status.code() != Code::mismatch) return;
      ++mismatches;
      EXPECT_THAT(status.text(), HasSubstr("compresses to int8"));
      EXPECT_THAT(
          status.text(),
          HasSubstr(other == Compression::none ? "does not compress" : "compresses to " + std::string(name_of(other))));
    });
    EXPECT_GE(mismatches, 1) << name_of(other);
  }
}

}  // namespace
}  // namespace fdl::test
