// Whole worlds over a provider of libfabric that does whatever EFA may do: see tests/fakes/ofi/hostile_provider.h.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <rdma/fi_errno.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <latch>
#include <numeric>
#include <random>

#include "tests/fakes/ofi/hostile_provider.h"
#include "tests/support/sanitized.h"
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
  decltype(&hostile_offer) offer = reinterpret_cast<decltype(&hostile_offer)>(::dlsym(library, "hostile_offer"));
  decltype(&hostile_break) break_call = reinterpret_cast<decltype(&hostile_break)>(::dlsym(library, "hostile_break"));
  decltype(&hostile_lose_device) lose_device =
      reinterpret_cast<decltype(&hostile_lose_device)>(::dlsym(library, "hostile_lose_device"));
  decltype(&hostile_freeze) freeze = reinterpret_cast<decltype(&hostile_freeze)>(::dlsym(library, "hostile_freeze"));
  decltype(&hostile_counts) counts = reinterpret_cast<decltype(&hostile_counts)>(::dlsym(library, "hostile_counts"));
};
const Hostile& hostile() {
  static const Hostile only;
  return only;
}

// Devices are shared among the ranks of a host; named ones are used by each rank, so that long slices are striped.
Knobs over_all(int devices) {
  Knobs knobs = kOverEfa;
  std::string names = "hostile0";
  for (int i = 1; i < devices; ++i) names += ",hostile" + std::to_string(i);
  knobs.emplace_back("ofi_devices", names);
  return knobs;
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

// How many seeds to run: HOSTILE_SEEDS, from HOSTILE_FIRST_SEED on. tests/hostile_network.sh sets them.
struct Seeds {
  uint64_t first = 1;
  uint64_t count = static_cast<uint64_t>(fdl::test::unless_sanitized(12, 5));
};
Seeds seeds() {
  Seeds chosen;
  if (const char* count = std::getenv("HOSTILE_SEEDS")) chosen.count = std::strtoull(count, nullptr, 10);
  if (const char* first = std::getenv("HOSTILE_FIRST_SEED")) chosen.first = std::strtoull(first, nullptr, 10);
  return chosen;
}

TEST(HostileNetwork, CollectivesAreExactWhateverTheOrder) {
  HostileCounts all{};
  const auto [first, count] = seeds();
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const int devices = 1 + static_cast<int>(seed % 3);
    hostile().begin(seed, devices);
    const bool is_direct = seed % 4 == 3;
    hostile().offer(is_direct ? 0 : 1, is_direct ? 1 : 0, seed % 2 == 0);
    // Every other run shares the devices among the ranks instead of striping.
    const Knobs knobs = seed % 5 == 0 ? kOverEfa : over_all(devices);
    run_ranks(2 + static_cast<int>(seed % 3), knobs, [&](World& me) { compute(me, seed); });
    if (testing::Test::HasFailure()) break;
    const HostileCounts counts = hostile().counts();
    EXPECT_GT(counts.messages, 0u);
    EXPECT_GT(counts.writes, 0u);
    EXPECT_EQ(counts.rejected, 0u);
    all.messages += counts.messages;
    all.writes += counts.writes;
    all.overtaken += counts.overtaken;
    all.refused += counts.refused;
    all.registrations += counts.registrations;
  }
  // The provider has done what it is for.
  EXPECT_GT(all.overtaken, 80 * count);
  EXPECT_GT(all.refused, 80 * count);
  std::printf(
      "agreement: hostile provider: seeds %llu to %llu, %llu messages, %llu writes, %llu overtaken, %llu calls "
      "refused, "
      "%llu registrations\n",
      static_cast<unsigned long long>(first), static_cast<unsigned long long>(first + count - 1),
      static_cast<unsigned long long>(all.messages), static_cast<unsigned long long>(all.writes),
      static_cast<unsigned long long>(all.overtaken), static_cast<unsigned long long>(all.refused),
      static_cast<unsigned long long>(all.registrations));
}

TEST(HostileNetwork, NamedOperationsComeInAnyOrder) {
  for (uint64_t seed = 20; seed < 20 + static_cast<uint64_t>(fdl::test::unless_sanitized(6, 2)); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    hostile().begin(seed, 2);
    run_ranks(3, over_all(2), [&](World& me) {
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
    run_ranks(3, over_all(2), [&](World& me) {
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

// ---- Bad days ----

// Sums until something fails; returns the text.
std::string sum_until_it_fails(World& me, std::size_t count) {
  std::vector<float> values(count, 1);
  for (int i = 0; i < 100'000; ++i) {
    if (fdl_allreduce(me.comm, values.data(), values.data(), count, FDL_FLOAT32, FDL_MAX) != FDL_OK) {
      return fdl_last_error()->text;
    }
  }
  return "nothing failed";
}

// Opens a world on each rank and returns the texts of the ranks that cannot.
std::string texts_of_the_start(int size, const Knobs& knobs) {
  const std::string name = fresh_name();
  std::mutex mutex;
  std::string texts;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      World world;
      if (open_world(name, rank, size, knobs, world) == FDL_OK) return;
      const std::lock_guard lock(mutex);
      texts += std::string(fdl_last_error()->text) + "\n";
    });
  }
  for (std::thread& thread : threads) thread.join();
  return texts;
}

std::size_t count_of(const std::string& text, const std::string& word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

double seconds_since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

TEST(HostileNetwork, AProviderThatCannotRegisterIsNamedOnAllRanksAtTheStart) {
  hostile().begin(31, 1);
  hostile().break_call(hostile_register, 1, -FI_ENOMEM);  // one of the two ranks can still register its packets
  const std::string texts = texts_of_the_start(2, kOverEfa);
  EXPECT_EQ(count_of(texts, "fi_mr_reg of hostile0 (efa) failed"), 2u) << texts;
  EXPECT_EQ(count_of(texts, "raise the limit of locked memory (ulimit -l)"), 2u) << texts;
}

TEST(HostileNetwork, AnAddressThatIsNotTakenIsNamedOnAllRanks) {
  hostile().begin(32, 1);
  hostile().break_call(hostile_insert, 1, -FI_EADDRNOTAVAIL);
  const auto begun = std::chrono::steady_clock::now();
  const std::string texts = texts_of_the_start(2, kOverEfa);
  EXPECT_EQ(count_of(texts, "fi_av_insert of hostile0 (efa) failed"), 2u) << texts;
  EXPECT_LT(seconds_since(begun), 10);
}

TEST(HostileNetwork, AnEndpointThatDoesNotOpenIsNamedOnAllRanks) {
  hostile().begin(33, 1);
  hostile().break_call(hostile_open_endpoint, 1, -FI_ENOMEM);
  EXPECT_EQ(count_of(texts_of_the_start(3, kOverEfa), "fi_endpoint of hostile0 (efa) failed"), 3u);
}

// The limit of locked memory is reached in the middle of a collective: a long receive cannot be registered.
TEST(HostileNetwork, ARegistrationThatFailsInACollectiveEndsItOnAllRanks) {
  hostile().begin(34, 1);
  std::mutex mutex;
  std::string texts;
  std::latch warm(2);
  run_ranks(2, kOverEfa, [&](World& me) {
    std::vector<float> values(100'000, 1);
    FDL_ASSERT_OK(fdl_allreduce(me.comm, values.data(), values.data(), values.size(), FDL_FLOAT32, FDL_SUM));
    warm.arrive_and_wait();
    if (me.rank == 0) hostile().break_call(hostile_register, 0, -FI_ENOMEM);
    const std::string text = sum_until_it_fails(me, 200'000);
    const std::lock_guard lock(mutex);
    texts += text + "\n";
  });
  EXPECT_EQ(count_of(texts, "failed"), count_of(texts, "\n")) << texts;
  EXPECT_THAT(texts, HasSubstr("raise the limit of locked memory"));
}

TEST(HostileNetwork, ALostDeviceIsNamedWithItsRankWithinTwoSeconds) {
  hostile().begin(35, 3);
  std::mutex mutex;
  std::string texts;
  std::latch ready(3);
  run_ranks(3, kOverEfa, [&](World& me) {  // each rank has a device of its own
    std::vector<float> values(50'000, 1);
    FDL_ASSERT_OK(fdl_allreduce(me.comm, values.data(), values.data(), values.size(), FDL_FLOAT32, FDL_SUM));
    ready.arrive_and_wait();
    if (me.rank == 1) hostile().lose_device(1);
    const auto begun = std::chrono::steady_clock::now();
    const std::string text = sum_until_it_fails(me, 50'000);
    EXPECT_LT(seconds_since(begun), 2);
    const std::lock_guard lock(mutex);
    texts += text + "\n";
  });
  EXPECT_EQ(count_of(texts, "on hostile1 failed"), 3u) << texts;
  EXPECT_EQ(count_of(texts, "the device of rank 1 "), 3u) << texts;
}

// A rank that takes nothing any more, and a peer whose writes to it never complete: the end of the endpoint cancels
// them, so that the memory can be given back. The provider checks that no registration ends before.
TEST(HostileNetwork, WritesToAPeerThatIsGoneAreCancelled) {
  hostile().begin(36, 1);
  Knobs knobs = kOverEfa;
  knobs.emplace_back("timeout_s", fdl::test::kThreadSanitized ? "5" : "1");
  std::latch is_destroyed(1);
  run_ranks(2, knobs, [&](World& me) {
    std::vector<float> values(400'000, 1);
    FDL_ASSERT_OK(fdl_allreduce(me.comm, values.data(), values.data(), values.size(), FDL_FLOAT32, FDL_SUM));
    if (me.rank == 0) {  // one of the two is the second communicator's endpoint of rank 1
      hostile().freeze(2);
      hostile().freeze(3);
    }
    const std::string text = sum_until_it_fails(me, 400'000);
    EXPECT_NE(text, "nothing failed");
    // The endpoint of rank 1 stays: its end would complete the writes with errors.
    if (me.rank == 1) is_destroyed.wait();
    const auto begun = std::chrono::steady_clock::now();
    fdl_comm_destroy(me.comm);
    me.comm = nullptr;
    EXPECT_LT(seconds_since(begun), 5);
    if (me.rank == 0) is_destroyed.count_down();
  });
  EXPECT_GT(hostile().counts().cancelled, 0u);
}

// ---- Devices and fabrics ----

TEST(HostileNetwork, EfaDirectIsTakenByNameOrWhereThereIsNothingElse) {
  for (const bool by_name : {false, true}) {
    SCOPED_TRACE(by_name);
    hostile().begin(40, 1);
    hostile().offer(by_name ? 1 : 0, 1, 1);
    Warnings lines;
    run_ranks(2, {{"transport", by_name ? "ofi:efa-direct" : "efa"}, {"log_level", "info"}},
              [](World& me) { compute(me, 40); });
  }
  hostile().begin(41, 1);
  hostile().offer(0, 0, 1);
  const std::string texts = texts_of_the_start(2, kOverEfa);
  EXPECT_EQ(count_of(texts, "offers no provider efa with messages and remote writes"), 2u) << texts;
  EXPECT_EQ(count_of(texts, "udp: only datagrams"), 2u) << texts;
  EXPECT_EQ(count_of(texts, "rank 0 ("), 2u) << "both ranks are named on both: " << texts;
  EXPECT_EQ(count_of(texts, "rank 1 ("), 2u) << texts;
}

TEST(HostileNetwork, FewerDevicesThanDemandedAreAnError) {
  hostile().begin(42, 2);
  Knobs knobs = kOverEfa;
  knobs.emplace_back("expect_efa", "4");
  EXPECT_EQ(count_of(texts_of_the_start(2, knobs), "FARANDOLE_EXPECT_EFA demands 4 EFA devices, and there are 2"), 2u);
  knobs.back().second = "2";
  run_ranks(2, knobs, [](World& me) { compute(me, 42); });
}

// ---- Memory that is freed and used again ----

// Sums eight small tensors by name. They are submitted together, so that they are fused whatever the timing.
void sum_by_name(World& me) {
  std::vector<std::vector<float>> tensors(8, std::vector<float>(9'000, 1));
  std::vector<std::string> names;
  for (std::size_t i = 0; i < tensors.size(); ++i) names.push_back("tensor " + std::to_string(i));
  const int64_t shape = 9'000;
  std::vector<fdl_operation> operations(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    fdl_operation& operation = operations[i];
    fdl_operation_init(&operation);
    operation.kind = FDL_NAMED_ALLREDUCE;
    operation.name = names[i].c_str();
    operation.input.data = operation.output = tensors[i].data();
    operation.input.shape = &shape;
    operation.input.ndim = 1;
    operation.op = FDL_SUM;
  }
  fdl_handle* handle = nullptr;
  FDL_ASSERT_OK(fdl_submit(me.all, operations.data(), operations.size(), &handle));
  FDL_ASSERT_OK(fdl_wait_handle(handle, -1));
  fdl_handle_free(handle);
  for (const auto& tensor : tensors) ASSERT_EQ(tensor[8'999], static_cast<float>(me.size));
}

TEST(HostileNetwork, MemoryOfTheLibraryIsRegisteredOnce) {
  hostile().begin(51, 1);
  std::latch warm(2), measured(2), repeated(2);
  uint64_t before = 0;
  run_ranks(2, kOverEfa, [&](World& me) {
    for (int i = 0; i < 20; ++i) sum_by_name(me);
    warm.arrive_and_wait();
    if (me.rank == 0) before = hostile().counts().registrations;
    measured.arrive_and_wait();
    for (int i = 0; i < 20; ++i) sum_by_name(me);
    repeated.arrive_and_wait();
  });
  EXPECT_EQ(hostile().counts().registrations - before, 0u);
}

// The memory of one call is unmapped, and another file is mapped at its address for the next call. A registration that
// outlived the first call would be stale: the provider ends the process at its first use.
TEST(HostileNetwork, MemoryMayBeUnmappedAndMappedAgainAtTheSameAddress) {
  for (const int local_registration : {0, 1}) {
    SCOPED_TRACE(local_registration);
    hostile().begin(50, 1);
    hostile().offer(1, 0, local_registration);
    constexpr std::size_t kCount = 300'000;
    constexpr std::size_t kBytes = (kCount * sizeof(float) + 4095) / 4096 * 4096;
    run_ranks(2, kOverEfa, [&](World& me) {
      void* place = nullptr;
      for (int round = 0; round < 6; ++round) {
        const int file = ::memfd_create("farandole-test", 0);
        ASSERT_EQ(::ftruncate(file, kBytes), 0);
        place = ::mmap(place, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | (place != nullptr ? MAP_FIXED : 0), file, 0);
        ASSERT_NE(place, MAP_FAILED);
        ::close(file);
        auto* values = static_cast<float*>(place);
        for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(round + me.rank);
        FDL_ASSERT_OK(fdl_allreduce(me.comm, values, values, kCount, FDL_FLOAT32, FDL_SUM));
        for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(values[i], static_cast<float>(2 * round + 1));
      }
      ::munmap(place, kBytes);
    });
    EXPECT_EQ(hostile().counts().rejected, 0u);
  }
}

}  // namespace
}  // namespace world_test
