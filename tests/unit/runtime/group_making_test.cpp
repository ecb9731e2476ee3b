// Tests of the exchange by which a group is split, and of the ids of groups.
#include "runtime/group/group_making.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "tests/support/exchange.h"

namespace fdl {
namespace {

using test::SharedExchange;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<Member> members_of(int count) {
  std::vector<Member> members(static_cast<std::size_t>(count));
  for (int rank = 0; rank < count; ++rank) members[static_cast<std::size_t>(rank)].world_rank = 10 + rank;
  return members;
}

using Outcome = Result<std::vector<int>>;

// Each rank but those without a choice calls exchange_colors() in a thread of its own.
std::vector<Outcome> split(const std::vector<std::optional<ColorAndKey>>& choices, Exchange& exchange,
                           Deadline deadline = Deadline::after_seconds(60)) {
  const auto members = members_of(static_cast<int>(choices.size()));
  std::vector<Outcome> outcomes(choices.size(), Outcome(std::vector<int>()));
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    if (!choices[rank]) continue;
    ranks.emplace_back([&, rank] {
      outcomes[rank] = exchange_colors(members, static_cast<int>(rank), *choices[rank], exchange, deadline);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return outcomes;
}

TEST(Split, RanksAreOrderedByKeyAndRank) {
  SharedExchange exchange;
  exchange.drop_read_facts();
  const auto outcomes =
      split({{{1, 5}}, {{0, 0}}, {{1, 5}}, {{1, -7}}, {{0, -2'000'000'000}}, {{2'000'000'000, 0}}}, exchange);
  for (const std::size_t rank : {0, 2, 3}) EXPECT_THAT(*outcomes[rank], ElementsAre(3, 0, 2)) << rank;
  for (const std::size_t rank : {1, 4}) EXPECT_THAT(*outcomes[rank], ElementsAre(4, 1)) << rank;
  EXPECT_THAT(*outcomes[5], ElementsAre(5));
  EXPECT_EQ(exchange.unread_facts(), 0);
}

TEST(Split, RanksWithANegativeColorJoinNoGroup) {
  SharedExchange exchange;
  exchange.drop_read_facts();
  const auto outcomes = split({{{-3, 0}}, {{4, 0}}, {{-1, 0}}, {{4, 0}}, {{-2'000'000'000, 0}}}, exchange);
  for (const std::size_t rank : {0, 2, 4}) EXPECT_THAT(*outcomes[rank], IsEmpty()) << rank;
  for (const std::size_t rank : {1, 3}) EXPECT_THAT(*outcomes[rank], ElementsAre(1, 3)) << rank;
  EXPECT_EQ(exchange.unread_facts(), 0);
}

TEST(Split, OneRankNeedsNoExchange) {
  class Silent final : public Exchange {
    Status publish(std::string_view, std::string_view) override { return Status(Code::internal, "published"); }
    Result<std::string> fetch(std::string_view, Deadline) override { return Status(Code::internal, "fetched"); }
  } exchange;
  EXPECT_THAT(*split({{{7, 1}}}, exchange)[0], ElementsAre(0));
  EXPECT_THAT(*split({{{-7, 1}}}, exchange)[0], IsEmpty());
}

// Rank 0 tells the others, of every color, whom it has missed.
TEST(Split, RankThatDoesNotCallIsNamedOnAllRanks) {
  SharedExchange exchange;
  const auto outcomes =
      split({{{0, 0}}, {{1, 0}}, std::nullopt, {{-1, 0}}, {{0, 0}}}, exchange, Deadline::after_seconds(0.2));
  for (const std::size_t rank : {0, 1, 3, 4}) {
    EXPECT_EQ(outcomes[rank].status().code(), Code::timeout) << rank;
    EXPECT_EQ(outcomes[rank].status().text(), "rank 12 has not called split in time") << rank;
  }
}

// Without rank 0 the missing rank is not known, so no rank is accused.
TEST(Split, WithoutRankZeroNoRankIsNamed) {
  SharedExchange exchange;
  const auto outcomes = split({std::nullopt, {{1, 0}}, {{1, 0}}}, exchange, Deadline::after_seconds(0.1));
  for (const std::size_t rank : {1, 2}) {
    EXPECT_EQ(outcomes[rank].status().code(), Code::timeout) << rank;
    EXPECT_EQ(outcomes[rank].status().text(), "some rank has not called split in time") << rank;
  }
}

// Each rank fetches one fact, whatever the number of ranks, and publishes one; rank 0 answers each color once.
TEST(Split, CostsEachRankOneFactAndOneAnswer) {
  class Counting final : public Exchange {
   public:
    explicit Counting(Exchange& inner) : inner_(inner) {}
    Status publish(std::string_view key, std::string_view value) override { return publish_for(0, key, value); }
    Status publish_for(int readers, std::string_view key, std::string_view value) override {
      ++published;
      bytes += value.size();
      return inner_.publish_for(readers, key, value);
    }
    Result<std::string> fetch(std::string_view key, Deadline deadline) override {
      ++fetched;
      return inner_.fetch(key, deadline);
    }
    std::atomic<int> published{0};
    std::atomic<int> fetched{0};
    std::atomic<std::size_t> bytes{0};

   private:
    Exchange& inner_;
  };
  SharedExchange shared;
  shared.drop_read_facts();
  Counting exchange(shared);
  constexpr int kRanks = 48;
  std::vector<std::optional<ColorAndKey>> choices;
  for (int rank = 0; rank < kRanks; ++rank) choices.push_back(ColorAndKey{rank / 24, 0});
  const auto outcomes = split(choices, exchange);
  for (int rank = 0; rank < kRanks; ++rank) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    ASSERT_EQ(outcome->size(), 24U);
    for (int i = 0; i < 24; ++i) EXPECT_EQ((*outcome)[static_cast<std::size_t>(i)], rank / 24 * 24 + i);
  }
  EXPECT_EQ(exchange.published, kRanks - 1 + 2);
  EXPECT_EQ(exchange.fetched, 2 * (kRanks - 1));  // of all others by rank 0, as one request, and one by each of them
  EXPECT_EQ(exchange.bytes, 3U * (kRanks - 1) + 4 + 5);  // "1 0" of each, and "0-23" and "24-47"
}

TEST(Split, InvalidWordsAreErrors) {
  for (const char* word : {"", "1", "1 ", " 1 2", "1 2 3", "x 1", "1 x", "99999999999 1"}) {
    SharedExchange exchange;
    ASSERT_TRUE(exchange.publish("1", word).ok());
    const auto outcome = exchange_colors(members_of(2), 0, {1, 1}, exchange, Deadline::after_seconds(60));
    EXPECT_EQ(outcome.status().code(), Code::internal) << word;
  }
  for (const char* answer : {"", "x", "0", "1,1", "1,2", "0-2", "-1,1", "!", "!2", "!x", "1,"}) {
    SharedExchange exchange;
    ASSERT_TRUE(exchange.publish("color 1", answer).ok());
    const auto outcome = exchange_colors(members_of(2), 1, {1, 1}, exchange, Deadline::after_seconds(60));
    EXPECT_EQ(outcome.status().code(), Code::internal) << answer;
  }
}

TEST(Split, FailureOfTheExchangeIsReturned) {
  class Broken final : public Exchange {
   public:
    explicit Broken(bool publishes) : publishes_(publishes) {}
    Status publish(std::string_view, std::string_view) override { return publishes_ ? Status() : gone(); }
    Result<std::string> fetch(std::string_view, Deadline) override { return gone(); }

   private:
    static Status gone() { return Status(Code::peer_lost, "gone"); }
    bool publishes_;
  };
  for (const bool publishes : {false, true}) {
    Broken exchange(publishes);
    for (const int rank : {0, 1}) {
      const auto outcome = exchange_colors(members_of(2), rank, {0, 0}, exchange, Deadline::after_seconds(60));
      EXPECT_EQ(outcome.status().code(), Code::peer_lost) << rank;
    }
  }
}

TEST(GroupIds, AreTheRanksInTheirOrder) {
  EXPECT_EQ(id_of_ranks({3}), "{3}");
  EXPECT_EQ(id_of_ranks({0, 1}), "{0,1}");
  EXPECT_EQ(id_of_ranks({0, 1, 2, 5, 4, 3}), "{0-2,5,4,3}");
  std::vector<int> many(32'768);
  std::iota(many.begin(), many.end(), 0);
  EXPECT_EQ(id_of_ranks(many), "{0-32767}");
}

// The store takes keys of 4096 bytes.
TEST(GroupIds, OfManyScatteredRanksAreShortAndDiffer) {
  std::vector<int> even(10'000);
  for (std::size_t i = 0; i < even.size(); ++i) even[i] = static_cast<int>(2 * i);
  const std::string id = id_of_ranks(even);
  EXPECT_LT(id.size(), 150U);
  EXPECT_THAT(id, HasSubstr("{0,2,4,"));
  EXPECT_THAT(id, HasSubstr(",... 10000 ranks, "));
  EXPECT_EQ(id_of_ranks(even), id);
  std::swap(even[9000], even[9001]);
  EXPECT_NE(id_of_ranks(even), id);
}

}  // namespace
}  // namespace fdl
