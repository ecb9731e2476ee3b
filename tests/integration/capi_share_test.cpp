// Tests of fdl_world_options.share: ranks that meet by the program's own means.
#include <gmock/gmock.h>

#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/worlds.h"

namespace world_test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// What MPI_Bcast does, for ranks that are threads.
class Broadcast {
 public:
  explicit Broadcast(int code = 0) : code_(code) {}

  // One rank's argument of share().
  struct Side {
    Broadcast* all;
    int rank;
  };
  static int share(char* text, size_t capacity, void* context) {
    const Side& side = *static_cast<Side*>(context);
    return side.all->run(side.rank, text, capacity);
  }

 private:
  int run(int rank, char* text, size_t capacity) {
    std::unique_lock lock(mutex_);
    if (rank == 0) {
      word_ = text;
      is_set_ = true;
      set_.notify_all();
    }
    set_.wait(lock, [&] { return is_set_; });
    std::strncpy(text, word_.c_str(), capacity);
    return code_;
  }
  std::mutex mutex_;
  std::condition_variable set_;
  std::string word_;
  bool is_set_ = false;
  const int code_;
};

struct Outcome {
  fdl_result result = FDL_OK;
  std::string text;  // of the error, or the rendezvous
  float sum = 0;
};

Outcome start(Broadcast& broadcast, int rank, int size, bool one_host, const char* slice_bytes) {
  Broadcast::Side side{&broadcast, rank};
  const std::array<const char*, 2> knobs{"slice_bytes", slice_bytes};
  fdl_world_options options;
  fdl_world_options_init(&options);
  options.rank = rank;
  options.size = size;
  options.local_rank = one_host ? rank : -1;
  options.local_size = one_host ? size : -1;
  options.share = Broadcast::share;
  options.share_context = &side;
  options.options = knobs.data();
  options.option_count = 1;
  World me;
  Outcome outcome;
  outcome.result = fdl_world_create(&options, &me.world);
  outcome.text = fdl_last_error()->text;
  if (outcome.result != FDL_OK) return outcome;
  fdl_world_facts facts{.struct_size = sizeof(fdl_world_facts)};
  FDL_EXPECT_OK(fdl_world_info(me.world, &facts));
  outcome.text = facts.rendezvous;
  outcome.sum = static_cast<float>(rank + 1);
  FDL_EXPECT_OK(fdl_comm_create(fdl_group_all(me.world), &me.comm));
  FDL_EXPECT_OK(fdl_allreduce(me.comm, &outcome.sum, &outcome.sum, 1, FDL_FLOAT32, FDL_SUM));
  return outcome;
}

std::vector<Outcome> start_all(int size, bool one_host, const char* first_slice_bytes = "64K", int code = 0) {
  Broadcast broadcast(code);
  std::vector<Outcome> outcomes(static_cast<std::size_t>(size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      outcomes[static_cast<std::size_t>(rank)] =
          start(broadcast, rank, size, one_host, rank == 0 ? first_slice_bytes : "64K");
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return outcomes;
}

TEST(Share, RanksOfOneHostMeetWithoutAPort) {
  for (const Outcome& outcome : start_all(3, true)) {
    EXPECT_EQ(outcome.result, FDL_OK) << outcome.text;
    EXPECT_THAT(outcome.text, StartsWith("unix:@"));
    EXPECT_EQ(outcome.sum, 6);
  }
}

TEST(Share, OtherRanksMeetAtAPortOfRankZero) {
  for (const Outcome& outcome : start_all(3, false)) {
    EXPECT_EQ(outcome.result, FDL_OK) << outcome.text;
    EXPECT_THAT(outcome.text, StartsWith("tcp://"));
    EXPECT_EQ(outcome.sum, 6);
  }
}

TEST(Share, IdentityOfTheHostIsEqualForAllCallers) {
  std::array<char, 256> first{}, second{};
  const size_t bytes = fdl_host_identity(first.data(), first.size());
  EXPECT_EQ(fdl_host_identity(nullptr, 0), bytes);
  EXPECT_EQ(fdl_host_identity(second.data(), second.size()), bytes);
  EXPECT_STREQ(first.data(), second.data());
  EXPECT_GT(std::strlen(first.data()), 10u);
}

// ---- Errors ----

TEST(Share, FailureOfTheFunctionIsReportedWithItsCode) {
  for (const Outcome& outcome : start_all(2, true, "64K", 5)) {
    EXPECT_EQ(outcome.result, FDL_TRANSPORT);
    EXPECT_THAT(outcome.text, HasSubstr("its function `share` returned 5"));
  }
}

TEST(Share, FailureOfRankZeroReachesTheOthersAtOnce) {
  const std::vector<Outcome> outcomes = start_all(2, true, "nonsense");
  EXPECT_EQ(outcomes[0].result, FDL_INVALID_ARGUMENT);
  EXPECT_EQ(outcomes[1].result, FDL_PEER_LOST);
  for (const Outcome& outcome : outcomes) EXPECT_THAT(outcome.text, HasSubstr("nonsense"));
}

TEST(Share, NeedsRankAndSize) {
  Broadcast broadcast;
  EXPECT_EQ(start(broadcast, -1, 2, false, "64K").result, FDL_INVALID_ARGUMENT);
  EXPECT_THAT(fdl_last_error()->text, HasSubstr("share needs rank and size"));
}

}  // namespace
}  // namespace world_test
