// Whole worlds over a provider of libfabric that does whatever EFA may do: see tests/fakes/ofi/hostile_provider.h.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <latch>
#include <numeric>
#include <random>

#include "tests/fakes/ofi/hostile_provider.h"
#include "tests/support/worlds.h"

namespace world_test {
namespace {

using testing::HasSubstr;

const std::string kFolder = FDL_HOSTILE_PROVIDER;
// libfabric reads this variable when it is used first.
[[maybe_unused]] const int kIsSet = ::setenv("FI_PROVIDER_PATH", kFolder.c_str(), 1);
const Knobs kOverEfa = {{"transport", "efa"}, {"log_level", "error"}};

// The functions of the provider, in the same instance that libfabric opens.
struct Hostile {
  void* library = ::dlopen((kFolder + "/hostile-fi.so").c_str(), RTLD_NOW);
  decltype(&hostile_begin) begin = reinterpret_cast<decltype(&hostile_begin)>(::dlsym(library, "hostile_begin"));
  decltype(&hostile_fail) fail = reinterpret_cast<decltype(&hostile_fail)>(::dlsym(library, "hostile_fail"));
  decltype(&hostile_counts) counts = reinterpret_cast<decltype(&hostile_counts)>(::dlsym(library, "hostile_counts"));
};
const Hostile& hostile() {
  static const Hostile only;
  return only;
}

// Random allreduces, allgathers and alltoalls, whose results are exact.
void compute(World& me, uint64_t seed) {
  std::mt19937_64 random(seed);  // the same numbers on every rank
  const auto size = static_cast<std::size_t>(me.size);
  for (int round = 0; round < 12; ++round) {
    const std::size_t count = random() % (random() % 3 == 0 ? 200'000 : 3'000) + 1;
    std::vector<float> mine(count), sum(count), all(count * size);
    for (std::size_t i = 0; i < count; ++i) mine[i] = static_cast<float>(i % 13 + static_cast<std::size_t>(me.rank));
    FDL_ASSERT_OK(fdl_allreduce(me.comm, mine.data(), sum.data(), count, FDL_FLOAT32, FDL_SUM));
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(sum[i], static_cast<float>(i % 13 * size + size * (size - 1) / 2)) << "round " << round << ", " << i;
    }
    FDL_ASSERT_OK(fdl_allgather(me.comm, mine.data(), all.data(), count, FDL_FLOAT32));
    std::vector<float> back(count * size);
    FDL_ASSERT_OK(fdl_alltoall(me.comm, all.data(), back.data(), count, FDL_FLOAT32));
    for (std::size_t from = 0; from < size; ++from) {
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(all[from * count + i], static_cast<float>(i % 13 + from));
        ASSERT_EQ(back[from * count + i], static_cast<float>(i % 13 + static_cast<std::size_t>(me.rank)));
      }
    }
  }
}

TEST(HostileNetwork, CollectivesAreExactWhateverTheOrder) {
  HostileCounts all{};
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    hostile().begin(seed, 1 + static_cast<int>(seed % 3));
    run_ranks(2 + static_cast<int>(seed % 3), kOverEfa, [&](World& me) { compute(me, seed); });
    const HostileCounts counts = hostile().counts();
    EXPECT_GT(counts.messages, 0u);
    EXPECT_GT(counts.writes, 0u);
    EXPECT_EQ(counts.rejected, 0u);
    all.messages += counts.messages;
    all.writes += counts.writes;
    all.overtaken += counts.overtaken;
    all.refused += counts.refused;
  }
  // The provider has done what it is for.
  EXPECT_GT(all.overtaken, 1000u);
  EXPECT_GT(all.refused, 1000u);
  std::printf("agreement: hostile provider: 12 seeds, %llu messages, %llu writes, %llu overtaken, %llu calls refused\n",
              static_cast<unsigned long long>(all.messages), static_cast<unsigned long long>(all.writes),
              static_cast<unsigned long long>(all.overtaken), static_cast<unsigned long long>(all.refused));
}

TEST(HostileNetwork, NamedOperationsComeInAnyOrder) {
  for (uint64_t seed = 20; seed < 26; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    hostile().begin(seed, 2);
    run_ranks(3, kOverEfa, [&](World& me) {
      constexpr std::size_t kTensors = 8;
      std::mt19937_64 random(seed * 10 + static_cast<uint64_t>(me.rank));  // another order on every rank
      for (int step = 0; step < 10; ++step) {
        std::vector<std::vector<float>> tensors(kTensors);
        std::vector<std::size_t> order(kTensors);
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::shuffle(order.begin(), order.end(), random);
        std::vector<fdl_handle*> handles;
        for (const std::size_t i : order) {
          tensors[i].assign(1 + i * i * 997, static_cast<float>(me.rank + 1));
          const std::string name = "tensor " + std::to_string(i);
          fdl_operation operation;
          fdl_operation_init(&operation);
          const auto shape = static_cast<int64_t>(tensors[i].size());
          operation.kind = FDL_NAMED_ALLREDUCE;
          operation.name = name.c_str();
          operation.input.data = operation.output = tensors[i].data();
          operation.input.shape = &shape;
          operation.input.ndim = 1;
          operation.op = FDL_SUM;
          handles.push_back(nullptr);
          FDL_ASSERT_OK(fdl_submit(me.all, &operation, 1, &handles.back()));
        }
        for (fdl_handle* handle : handles) {
          FDL_ASSERT_OK(fdl_wait_handle(handle, -1));
          fdl_handle_free(handle);
        }
        for (const auto& tensor : tensors) {
          for (const float value : tensor) ASSERT_EQ(value, 6);
        }
      }
    });
  }
}

// A rank that cannot send ends the operation on all ranks, and the text says what EFA's code means.
TEST(HostileNetwork, AnErrorOfEfaSaysWhatToDo) {
  for (const auto& [code, meaning] : std::vector<std::pair<int, std::string>>{
           {13, "the peer does not respond"}, {15, "never reached"}, {4124, "is gone"}, {4126, "outgoing traffic"}}) {
    SCOPED_TRACE(meaning);
    hostile().begin(static_cast<uint64_t>(code), 2);
    std::mutex mutex;
    std::string texts;
    std::latch all_done(3);
    run_ranks(3, kOverEfa, [&](World& me) {
      std::vector<float> values(100'000, 1);
      FDL_ASSERT_OK(fdl_allreduce(me.comm, values.data(), values.data(), values.size(), FDL_FLOAT32, FDL_SUM));
      all_done.arrive_and_wait();
      if (me.rank == 1) hostile().fail(1000, code);
      fdl_result result = FDL_OK;
      for (int i = 0; i < 1000 && result == FDL_OK; ++i) {
        result = fdl_allreduce(me.comm, values.data(), values.data(), values.size(), FDL_FLOAT32, FDL_MAX);
      }
      EXPECT_NE(result, FDL_OK);
      const std::lock_guard lock(mutex);
      texts += std::string(fdl_last_error()->text) + "\n";
    });
    EXPECT_THAT(texts, HasSubstr("EFA " + std::to_string(code) + ": "));
    EXPECT_THAT(texts, HasSubstr(meaning));
  }
}

}  // namespace
}  // namespace world_test
