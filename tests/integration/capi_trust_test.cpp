// Tests of seals of a program's own messages through the C API.
#include <gmock/gmock.h>

#include <array>
#include <cstring>
#include <mutex>

#include "tests/support/worlds.h"

namespace world_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using SealBytes = std::array<unsigned char, FDL_SEAL_BYTES>;
const Knobs kOverTcp{{"transport", "tcp"}};

struct Sealed {
  std::string text = "a message in";
  std::string rest = " two parts";
  SealBytes seal{};

  fdl_result make(fdl_group* group, const char* purpose) {
    const auto [parts, sizes] = views();
    return fdl_group_seal(group, purpose, parts.data(), sizes.data(), 2, seal.data());
  }
  fdl_result open(fdl_group* group, int sender, const char* purpose) const {
    const auto [parts, sizes] = views();
    return fdl_group_open(group, sender, purpose, parts.data(), sizes.data(), 2, seal.data());
  }

 private:
  std::pair<std::array<const void*, 2>, std::array<size_t, 2>> views() const {
    return {{text.data(), rest.data()}, {text.size(), rest.size()}};
  }
};

// Rank 0 seals, rank 1 runs `check` with the message.
void hand_over(const Knobs& knobs, const std::function<void(World&, Sealed)>& check) {
  Sealed message;
  run_ranks(2, knobs, [&](World& me) {
    if (me.rank == 0) {
      FDL_EXPECT_OK(message.make(me.all, "a purpose"));
    }
    FDL_ASSERT_OK(fdl_barrier(me.comm));
    if (me.rank == 1) check(me, message);
    FDL_EXPECT_OK(fdl_barrier(me.comm));
  });
}

TEST(Seals, OpenForTheirSenderAndPurposeOnly) {
  hand_over(kOverTcp, [](World& me, Sealed message) {
    FDL_EXPECT_OK(message.open(me.all, 0, "a purpose"));
    EXPECT_EQ(message.open(me.all, 0, "another"), FDL_AUTHENTICATION);
    EXPECT_THAT(fdl_last_error()->text, AllOf(HasSubstr("message (another) from rank 0 ("), HasSubstr("to rank 1 ("),
                                              HasSubstr("is not what was sent")));
    EXPECT_EQ(fdl_last_error()->culprit_rank, -1);
    // What rank 1 itself would have sealed is no message of rank 0.
    Sealed own;
    FDL_EXPECT_OK(own.make(me.all, "a purpose"));
    EXPECT_EQ(own.open(me.all, 0, "a purpose"), FDL_AUTHENTICATION);
  });
}

TEST(Seals, EveryChangeIsDetected) {
  hand_over(kOverTcp, [](World& me, const Sealed& message) {
    for (std::size_t i = 0; i < message.text.size(); ++i) {
      Sealed changed = message;
      changed.text[i] = static_cast<char>(changed.text[i] ^ 1);
      EXPECT_EQ(changed.open(me.all, 0, "a purpose"), FDL_AUTHENTICATION) << i;
    }
    for (std::size_t i = 0; i < message.seal.size(); ++i) {
      Sealed changed = message;
      changed.seal[i] ^= 0x80;
      EXPECT_EQ(changed.open(me.all, 0, "a purpose"), FDL_AUTHENTICATION) << i;
    }
    Sealed moved = message;
    moved.rest.insert(moved.rest.begin(), moved.text.back());
    moved.text.pop_back();
    EXPECT_EQ(moved.open(me.all, 0, "a purpose"), FDL_AUTHENTICATION) << "the same bytes in other parts";
  });
}

// The job's key is the same in both worlds.
TEST(Seals, AMessageOfAnEarlierWorldDoesNotOpen) {
  Sealed recorded;
  hand_over(kOverTcp, [&recorded](World&, Sealed message) { recorded = std::move(message); });
  hand_over(kOverTcp, [&recorded](World& me, const Sealed&) {
    EXPECT_EQ(recorded.open(me.all, 0, "a purpose"), FDL_AUTHENTICATION);
  });
}

TEST(Seals, RanksThatShareMemoryNeedNone) {
  hand_over({{"transport", "shm"}}, [](World& me, const Sealed& message) {
    EXPECT_EQ(message.seal, SealBytes{});
    FDL_EXPECT_OK(message.open(me.all, 0, "a purpose"));
  });
}

TEST(Seals, WrongArgumentsAreRefused) {
  run_ranks(1, {}, [](World& me) {
    SealBytes seal{};
    const void* part = nullptr;
    const size_t size = 1;
    EXPECT_EQ(fdl_group_seal(me.all, nullptr, nullptr, nullptr, 0, seal.data()), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_group_seal(nullptr, "p", nullptr, nullptr, 0, seal.data()), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_group_seal(me.all, "p", nullptr, nullptr, 1, seal.data()), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_group_seal(me.all, "p", &part, &size, 1, seal.data()), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_group_seal(me.all, "p", nullptr, nullptr, 0, nullptr), FDL_INVALID_ARGUMENT);
    EXPECT_EQ(fdl_group_open(me.all, 1, "p", nullptr, nullptr, 0, seal.data()), FDL_INVALID_ARGUMENT);
    EXPECT_THAT(fdl_last_error()->text, HasSubstr("sender 1 is no rank of a group of 1"));
    EXPECT_EQ(fdl_group_trust(nullptr), FDL_INVALID_ARGUMENT);
    FDL_EXPECT_OK(fdl_group_trust(me.all));
  });
}

TEST(Security, AnUnknownValueIsRefused) {
  World world;
  EXPECT_EQ(open_world(fresh_name(), 0, 1, {{"security", "tls"}}, world), FDL_INVALID_ARGUMENT);
  EXPECT_THAT(fdl_last_error()->text, HasSubstr("'tls' is not auto, none, integrity or encrypt"));
}

TEST(Security, SumsAreRightOnProtectedConnections) {
  for (const char* security : {"integrity", "encrypt"}) {
    run_ranks(3, {{"transport", "tcp"}, {"security", security}, {"tcp_streams", "2"}}, [](World& me) {
      for (const std::size_t count : {1, 1000, 300'000}) {
        std::vector<float> mine(count, static_cast<float>(me.rank + 1)), sum(count);
        FDL_ASSERT_OK(fdl_allreduce(me.comm, mine.data(), sum.data(), count, FDL_FLOAT32, FDL_SUM));
        EXPECT_EQ(sum, std::vector<float>(count, 6));
      }
    });
  }
}

}  // namespace
}  // namespace world_test
