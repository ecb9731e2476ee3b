// Tests of Adasum against the formula applied to whole vectors, pair by pair; over loopback, with ranks as threads.
#include "engine/host/adasum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <thread>

#include "data/half.h"
#include "tests/support/thread_ranks.h"

namespace fdl::test {
namespace {

using Vector = std::vector<double>;

Vector pair_of(const Vector& a, const Vector& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  Vector result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    result[i] = (aa > 0 ? 1 - ab / (2 * aa) : 1) * a[i] + (bb > 0 ? 1 - ab / (2 * bb) : 1) * b[i];
  }
  return result;
}

// Combines neighbours first, then pairs of pairs.
Vector reference(std::vector<Vector> vectors) {
  while (vectors.size() > 1) {
    std::vector<Vector> next;
    for (std::size_t i = 0; i < vectors.size(); i += 2) next.push_back(pair_of(vectors[i], vectors[i + 1]));
    vectors = std::move(next);
  }
  return vectors.front();
}

// Runs Adasum on the calling rank's `values`, whose tensors have these lengths.
template <class T>
std::vector<T> run_adasum(Communicator& comm, std::vector<T> values, const std::vector<std::size_t>& lengths) {
  std::vector<T> scratch(values.size());
  std::vector<std::size_t> ends;
  for (const std::size_t length : lengths) ends.push_back((ends.empty() ? 0 : ends.back()) + length);
  Adasum adasum(comm, sizeof(T) == 8 ? Dtype::float64 : Dtype::float32, ends,
                reinterpret_cast<std::byte*>(values.data()), reinterpret_cast<std::byte*>(scratch.data()));
  const Deadline deadline = Deadline::after_seconds(60);
  while (!adasum.done()) {
    require(!deadline.passed(), "Adasum did not end in time");
    if (!adasum.progress() && !comm.progress()) std::this_thread::yield();
  }
  require(adasum.status());
  return values;
}

template <class T>
std::vector<std::vector<T>> random_vectors(int size, std::size_t count, unsigned seed) {
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<std::vector<T>> all(static_cast<std::size_t>(size), std::vector<T>(count));
  for (auto& one : all) {
    for (T& value : one) value = static_cast<T>(normal(random));
  }
  return all;
}

template <class T>
void expect_the_formula(int size, const std::vector<std::size_t>& lengths, double tolerance) {
  const std::size_t count = std::accumulate(lengths.begin(), lengths.end(), std::size_t{0});
  const auto inputs = random_vectors<T>(size, count, 7);
  std::vector<std::vector<T>> results(inputs.size());
  run_thread_ranks(size, make_config(), [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    results[rank] = run_adasum(comm, inputs[rank], lengths);
  });
  std::size_t begin = 0;
  for (const std::size_t length : lengths) {
    std::vector<Vector> parts;
    for (const auto& input : inputs) parts.emplace_back(input.begin() + begin, input.begin() + begin + length);
    const Vector expected = reference(parts);
    for (std::size_t i = 0; i < length; ++i) {
      ASSERT_NEAR(results[0][begin + i], expected[i], tolerance) << "element " << i << " of " << length;
    }
    begin += length;
  }
  for (const auto& result : results) EXPECT_EQ(result, results[0]) << "ranks have different bits";
}

TEST(Adasum, MatchesTheFormulaForEachTensor) {
  for (const int size : {1, 2, 4, 8, 16}) {
    SCOPED_TRACE(size);
    expect_the_formula<double>(size, {100, 1, 0, 37, 1000}, 1e-12);
    expect_the_formula<float>(size, {100, 1, 0, 37, 1000}, 2e-5);
    expect_the_formula<double>(size, {3}, 1e-12);
    expect_the_formula<double>(size, {0}, 0);
  }
}

TEST(Adasum, AddsOrthogonalAndAveragesParallelVectors) {
  run_thread_ranks(4, make_config(), [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    std::vector<float> values(12, 0);
    values[rank] = 3;                           // tensor 0: orthogonal vectors, one direction for each rank
    for (int i = 4; i < 8; ++i) values[i] = 2;  // tensor 1: the same vector on all ranks
    if (rank == 2) values[8] = 5;               // tensor 2: zeros except on one rank
    const std::vector<float> expected = {3, 3, 3, 3, 2, 2, 2, 2, 5, 0, 0, 0};
    require(run_adasum(comm, values, {4, 4, 4}) == expected, "not the expected values");
  });
}

TEST(Adasum, RepeatedRunsGiveTheSameBits) {
  const auto inputs = random_vectors<float>(4, 500, 11);
  std::vector<std::vector<float>> first(4), second(4);
  run_thread_ranks(4, make_config(), [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    first[rank] = run_adasum(comm, inputs[rank], {500});
    second[rank] = run_adasum(comm, inputs[rank], {500});
  });
  EXPECT_EQ(first, second);
}

TEST(Adasum, EndsWithTheErrorOfItsCommunicator) {
  run_thread_ranks(2, make_config(), [&](Communicator& comm) {
    comm.interrupt(Status(Code::peer_lost, "rank 11 is gone"));
    std::vector<float> values(8, 1), scratch(8);
    Adasum adasum(comm, Dtype::float32, {8}, reinterpret_cast<std::byte*>(values.data()),
                  reinterpret_cast<std::byte*>(scratch.data()));
    while (!adasum.done()) {
      if (!adasum.progress()) comm.progress();
    }
    require(adasum.status().code() == Code::peer_lost, "expected the failure, got " + adasum.status().text());
  });
}

TEST(Adasum, LoadsAndStoresSmallFloats) {
  const std::vector<uint16_t> halves = {float_to_bfloat16(1.5F), float_to_bfloat16(-3.0F)};
  std::vector<float> work(2);
  adasum_load(Dtype::bfloat16, reinterpret_cast<std::byte*>(work.data()), halves.data(), 2, 2.0);
  EXPECT_THAT(work, testing::ElementsAre(3.0F, -6.0F));
  std::vector<uint16_t> back(2);
  adasum_store(Dtype::bfloat16, back.data(), reinterpret_cast<const std::byte*>(work.data()), 2, 0.5);
  EXPECT_EQ(back, halves);
}

// ---- Error paths ----

TEST(Adasum, SupportsRealTypesOnly) {
  EXPECT_TRUE(adasum_takes(Dtype::float16));
  EXPECT_TRUE(adasum_takes(Dtype::float64));
  EXPECT_FALSE(adasum_takes(Dtype::int32));
  EXPECT_FALSE(adasum_takes(Dtype::bool_));
}

}  // namespace
}  // namespace fdl::test
