// Tests of the arena: its ranges, its records, the outcome of a set-up, and what a broken process may have written.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/sanitized.h"
#include "transports/shm/memory_group/arena.h"

namespace fdl {
namespace {

// The control area alone has memory: an arena does not touch its chunks.
class ArenaMemory {
 public:
  ArenaMemory(int ranks, std::size_t chunks)
      : size_(Arena::bytes_for(ranks, chunks * Arena::kChunkBytes)),
        touched_(size_ - chunks * Arena::kChunkBytes),
        memory_(static_cast<std::byte*>(::operator new[](touched_, std::align_val_t{4096}))) {
    std::memset(memory_, 0, touched_);
  }
  ~ArenaMemory() { ::operator delete[](memory_, std::align_val_t{4096}); }
  ArenaMemory(const ArenaMemory&) = delete;
  ArenaMemory& operator=(const ArenaMemory&) = delete;

  Bytes all() const { return {memory_, size_}; }
  Bytes touched() const { return {memory_, touched_}; }

 private:
  std::size_t size_, touched_;
  std::byte* memory_;
};

constexpr Arena::Key kKey{11, 12};
constexpr Arena::Key kOther{11, 13};
constexpr RankMask kThree = 0b111;

TEST(Arena, HasTheChunksThatItsSizeWasMadeFor) {
  for (int ranks = 2; ranks <= 64; ranks += test::unless_sanitized(1, 31)) {
    for (const std::size_t chunks : {1, 2, 3, 160, 1023, 1024, 1025, 5440}) {
      const ArenaMemory memory(ranks, chunks);
      const Arena arena(memory.all(), ranks);
      ASSERT_EQ(arena.chunk_count(), chunks) << ranks << " ranks";
      EXPECT_EQ(arena.offset_of(chunks), memory.all().size());
      EXPECT_EQ(arena.offset_of(0) % Arena::kChunkBytes, 0u);
      const Bytes last = arena.record_bytes(ranks - 1, Arena::kRecordsOfARank - 1);
      EXPECT_LE(last.data() + last.size(), memory.touched().data() + memory.touched().size());
      EXPECT_LE(Arena::control_bytes(ranks, chunks * Arena::kChunkBytes),
                static_cast<std::size_t>(arena.record_bytes(0, 0).data() - memory.all().data()));
      EXPECT_FALSE(Arena::fits(Arena::bytes_for(ranks, Arena::kChunkBytes) - 1, ranks));
    }
  }
}

TEST(Arena, GivesRangesThatAreFreeAndUsesThemAgain) {
  const ArenaMemory memory(2, 8);
  Arena arena(memory.all(), 2);
  const auto a = arena.claim(3, 0);
  const auto b = arena.claim(2, 1);
  const auto c = arena.claim(3, 0);
  ASSERT_TRUE(a && b && c);
  EXPECT_EQ(a->first, 0u);
  EXPECT_EQ(b->first, 3u);
  EXPECT_EQ(c->first, 5u);
  EXPECT_FALSE(arena.claim(1, 0));
  arena.free(*b);
  EXPECT_EQ(arena.free_chunks(), 2u);
  EXPECT_FALSE(arena.claim(3, 0)) << "the free chunks are two";
  EXPECT_EQ(arena.free_chunks(), 2u) << "a claim that fails keeps nothing";
  arena.free(*c);
  const auto d = arena.claim(4, 1);
  ASSERT_TRUE(d);
  EXPECT_EQ(d->first, 3u);
  EXPECT_FALSE(arena.claim(9, 1)) << "more than there are";
  EXPECT_FALSE(arena.claim(0, 1));
  EXPECT_FALSE(arena.claim(~std::size_t{0}, 1));
}

TEST(Arena, GivesNoChunkToTwoRanksThatClaimAtOnce) {
  constexpr std::size_t kChunks = 24;
  constexpr int kRounds =
      test::unless_sanitized(100'000, 3000);  // two ranks rarely claim within the same few nanoseconds
  const ArenaMemory memory(4, kChunks);
  std::array<std::atomic<int>, kChunks> users{};
  std::atomic<int> twice{0}, got{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      Arena arena(memory.all(), 4);
      std::mt19937 random(static_cast<unsigned>(rank));
      for (int round = 0; round < kRounds; ++round) {
        const auto range = arena.claim(1 + random() % 7, rank);
        if (!range) continue;
        ++got;
        for (std::size_t i = 0; i < range->count; ++i) twice += users[range->first + i].fetch_add(1) != 0 ? 1 : 0;
        for (std::size_t i = 0; i < range->count; ++i) users[range->first + i].fetch_sub(1);
        arena.free(*range);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(twice, 0);
  EXPECT_GT(got, 1000);
  EXPECT_EQ(Arena(memory.all(), 4).free_chunks(), kChunks);
}

class ArenaRecord : public testing::Test {
 protected:
  Arena::Record announce(const Arena::Key& key = kKey, uint32_t index = 0) {
    chunks_ = *arena_.claim(2, 0);
    return arena_.announce(0, index, {.key = key, .members = kThree, .chunks = chunks_, .doorbell = 3});
  }

  ArenaMemory memory_{3, 8};
  Arena arena_{memory_.all(), 3};
  Arena::Chunks chunks_;
};

TEST_F(ArenaRecord, IsFoundByTheIdentityOfItsCommunicatorAlone) {
  EXPECT_FALSE(arena_.find(0, kKey));
  announce(kOther, 0);
  announce(kKey, 1);
  const auto found = arena_.find(0, kKey);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->index, 1u);
  EXPECT_EQ(found->kind, Arena::Kind::range);
  EXPECT_FALSE(arena_.find(1, kKey)) << "another rank is the first member";
  EXPECT_FALSE(arena_.find(0, Arena::Key{12, 11}));
}

TEST_F(ArenaRecord, TakesEachMemberOnce) {
  const auto record = announce();
  EXPECT_EQ(arena_.with(record, kThree, Arena::kCame), bit_of(0)) << "the first member has come";
  EXPECT_FALSE(arena_.come(record, 0, 1));
  EXPECT_TRUE(arena_.come(record, 1, 2));
  EXPECT_FALSE(arena_.come(record, 1, 3));
  EXPECT_TRUE(arena_.come(record, 2, 1, Arena::kWantsSockets));
  EXPECT_EQ(arena_.with(record, kThree, Arena::kCame), kThree);
  EXPECT_EQ(arena_.with(record, kThree, Arena::kWantsSockets), bit_of(2));
  EXPECT_EQ(arena_.doorbell_of(record, 0), 3);
  EXPECT_EQ(arena_.doorbell_of(record, 1), 2);
}

TEST_F(ArenaRecord, HasOneOutcome) {
  const auto record = announce();
  EXPECT_EQ(arena_.outcome_of(record), Arena::Outcome::open);
  EXPECT_EQ(arena_.decide(record, Arena::Outcome::closed, 2), Arena::Outcome::closed);
  EXPECT_EQ(arena_.decide(record, Arena::Outcome::made, 1), Arena::Outcome::closed);
  EXPECT_EQ(arena_.closed_by(record), 2);
  const auto other = announce(kOther, 1);
  EXPECT_EQ(arena_.decide(other, Arena::Outcome::made, 1), Arena::Outcome::made);
  EXPECT_EQ(arena_.decide(other, Arena::Outcome::closed, 2), Arena::Outcome::made);
}

// Two members may find different ranks late, and in different steps. All members read the ranks of the first one.
TEST_F(ArenaRecord, KeepsTheLateMembersOfTheOneThatClosesIt) {
  const auto record = announce();
  EXPECT_FALSE(arena_.late_of(record, kThree));
  EXPECT_EQ(arena_.close_without(record, bit_of(1) | bit_of(2), Arena::kCame, 0), Arena::Outcome::closed);
  EXPECT_EQ(arena_.close_without(record, bit_of(2), Arena::kCame, 1), Arena::Outcome::closed);
  EXPECT_EQ(arena_.close_without(record, bit_of(0), Arena::kConfirmed, 2), Arena::Outcome::closed);
  EXPECT_EQ(arena_.outcome_of(record), Arena::Outcome::closed);
  EXPECT_EQ(arena_.closed_by(record), 0);
  ASSERT_TRUE(arena_.late_of(record, kThree));
  EXPECT_EQ(arena_.late_of(record, kThree)->ranks, bit_of(1) | bit_of(2));
  EXPECT_EQ(arena_.late_of(record, kThree)->awaited, Arena::kCame);
  EXPECT_EQ(arena_.late_of(record, bit_of(2))->ranks, bit_of(2)) << "only members count";
  EXPECT_FALSE(arena_.late_of(record, bit_of(0)));

  const auto unconfirmed = announce(kOther, 1);
  EXPECT_EQ(arena_.close_without(unconfirmed, bit_of(2), Arena::kConfirmed, 1), Arena::Outcome::closed);
  EXPECT_EQ(arena_.late_of(unconfirmed, kThree)->ranks, bit_of(2));
  EXPECT_EQ(arena_.late_of(unconfirmed, kThree)->awaited, Arena::kConfirmed);
}

TEST_F(ArenaRecord, HasNoLateMembersIfItWasClosedForAnotherReasonOrMade) {
  const auto failed = announce();
  arena_.decide(failed, Arena::Outcome::closed, 1);
  EXPECT_EQ(arena_.close_without(failed, bit_of(2), Arena::kCame, 0), Arena::Outcome::closed);
  EXPECT_FALSE(arena_.late_of(failed, kThree));
  EXPECT_EQ(arena_.closed_by(failed), 1);
  const auto made = announce(kOther, 1);
  arena_.decide(made, Arena::Outcome::made, 1);
  EXPECT_EQ(arena_.close_without(made, bit_of(2), Arena::kConfirmed, 0), Arena::Outcome::made);
  EXPECT_FALSE(arena_.late_of(made, kThree));
  // A record that is used again has none of its former ones.
  arena_.close_without(announce({5, 6}, 2), bit_of(1), Arena::kCame, 0);
  const auto again = announce({7, 8}, 2);
  EXPECT_FALSE(arena_.late_of(again, kThree));
  arena_.close_without(again, bit_of(2), Arena::kCame, 0);
  EXPECT_EQ(arena_.late_of(again, kThree)->ranks, bit_of(2));
}

TEST_F(ArenaRecord, IsRetiredOnceWhenTheLastMemberLeaves) {
  const auto record = announce();
  for (const int rank : {1, 2}) EXPECT_TRUE(arena_.come(record, rank, 0));
  arena_.decide(record, Arena::Outcome::made, 0);
  for (const int rank : {1, 0}) {
    arena_.add(record, rank, Arena::kLeft);
    EXPECT_FALSE(arena_.retire(record, kThree, 0)) << rank;
  }
  arena_.add(record, 2, Arena::kLeft);
  EXPECT_TRUE(arena_.retire(record, kThree, 0));
  EXPECT_FALSE(arena_.retire(record, kThree, 0)) << "another member has taken the end";
  arena_.release(record, chunks_);
  EXPECT_EQ(arena_.kind_of(0, 0), Arena::Kind::free);
  EXPECT_EQ(arena_.free_chunks(), 8u);
  EXPECT_FALSE(arena_.find(0, kKey));
}

TEST_F(ArenaRecord, OfAClosedSetUpShutsLateMembersOut) {
  const auto record = announce();
  arena_.add(record, 0, Arena::kLeft);
  EXPECT_FALSE(arena_.retire(record, kThree, 0)) << "it is open: the others may come";
  arena_.decide(record, Arena::Outcome::closed, 0);
  EXPECT_TRUE(arena_.come(record, 1, 0));
  EXPECT_FALSE(arena_.retire(record, kThree, 0)) << "rank 1 has come";
  arena_.add(record, 1, Arena::kLeft);
  EXPECT_TRUE(arena_.retire(record, kThree, 0));
  EXPECT_FALSE(arena_.come(record, 2, 0)) << "it was shut out";
}

TEST_F(ArenaRecord, IsRetiredWithoutMembersThatHaveEnded) {
  const auto record = announce();
  for (const int rank : {1, 2}) EXPECT_TRUE(arena_.come(record, rank, 0));
  for (const int rank : {0, 2}) arena_.add(record, rank, Arena::kLeft);
  EXPECT_FALSE(arena_.retire(record, kThree, bit_of(2)));
  EXPECT_TRUE(arena_.retire(record, kThree, bit_of(1)));
}

// A rank may stop between its look at a record and its next step, and the record is used again meanwhile.
TEST_F(ArenaRecord, OfAFormerGenerationTakesNoMemberAndEndsNothing) {
  const auto former = announce();
  arena_.decide(former, Arena::Outcome::closed, 0);
  arena_.add(former, 0, Arena::kLeft);
  ASSERT_TRUE(arena_.retire(former, kThree, 0));
  arena_.release(former, chunks_);
  const auto record = announce();
  EXPECT_NE(record.generation, former.generation);
  EXPECT_FALSE(arena_.come(former, 1, 0));
  EXPECT_FALSE(arena_.retire(former, kThree, kThree));
  EXPECT_TRUE(arena_.come(record, 1, 0));
  arena_.decide(record, Arena::Outcome::closed, 0);
  EXPECT_FALSE(arena_.retire(former, kThree, kThree));
  EXPECT_TRUE(arena_.come(record, 2, 0)) << "shut out by the end of the former generation";
}

TEST_F(ArenaRecord, TellsARangeOnlyIfItIsInsideOfTheArenaAndAsLargeAsExpected) {
  const auto record = announce();
  const std::size_t bytes = 2 * Arena::kChunkBytes - 5;
  ASSERT_TRUE(arena_.chunks_of(record, bytes));
  EXPECT_EQ(arena_.chunks_of(record, bytes)->first, chunks_.first);
  EXPECT_FALSE(arena_.chunks_of(record, bytes + 6));
  EXPECT_FALSE(arena_.chunks_of(record, 0));
  for (const std::size_t first : {std::size_t{7}, std::size_t{8}, ~std::size_t{0}, ~std::size_t{0} - 1}) {
    const auto broken = arena_.announce(0, 1, {.key = kOther, .members = kThree, .chunks = {first, 2}});
    EXPECT_FALSE(arena_.chunks_of(broken, bytes)) << first;
  }
}

// The address sanitizer sees an access outside of the memory.
TEST(Arena, StaysInsideOfMemoryThatABrokenRankHasFilled) {
  constexpr int kRounds = test::unless_sanitized(400, 40);
  std::mt19937_64 random(1);
  int found = 0, ranges = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int ranks = 2 + static_cast<int>(random() % 5);
    const ArenaMemory memory(ranks, 8);
    Arena arena(memory.all(), ranks);
    const Bytes touched = memory.touched();
    for (std::size_t at = 0; at + 8 <= touched.size(); at += 8) {
      uint64_t word = random();
      if (random() % 4 == 0) word = random() % 16;
      std::memcpy(touched.data() + at, &word, sizeof word);
    }
    const RankMask all = all_ranks(ranks);
    for (int first = 0; first < ranks; ++first) {
      for (uint32_t index = 0; index < Arena::kRecordsOfARank; index += 17) {
        Arena::Key key;
        std::memcpy(&key, arena.record_bytes(first, index).data() + 8, sizeof key);
        const auto record = arena.find(first, key);
        if (!record) continue;
        ++found;
        ASSERT_LT(record->index, Arena::kRecordsOfARank);
        arena.with(*record, all, Arena::kCame);
        for (int rank = 0; rank < ranks; ++rank) {
          ASSERT_GE(arena.doorbell_of(*record, rank), 0);
          arena.come(*record, rank, 1);
        }
        for (std::size_t count = 1; count <= 8; ++count) {
          const auto chunks = arena.chunks_of(*record, count * Arena::kChunkBytes);
          if (!chunks) continue;
          ++ranges;
          ASSERT_LE(arena.offset_of(chunks->first + chunks->count), memory.all().size());
        }
        if (const auto late = arena.late_of(*record, all)) {
          ASSERT_EQ(late->ranks & ~all, 0u);
        }
        arena.decide(*record, Arena::Outcome::closed, 1);
        ASSERT_NE(arena.outcome_of(*record), Arena::Outcome::open);
        arena.retire(*record, all, 0);
      }
    }
    if (const auto claimed = arena.claim(1, 0)) {
      ASSERT_LT(claimed->first, arena.chunk_count());
    }
  }
  EXPECT_GT(found, kRounds / 4);
  EXPECT_GT(ranges, 0);
}

}  // namespace
}  // namespace fdl
