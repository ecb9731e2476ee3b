// Survivors is tested transition by transition, and in seeded histories in which ranks end at any moment: all survivors
// make one world, or all fail alike.
#include "bootstrap/recovery/survivors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace fdl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using State = Survivors::State;
using Kind = SurvivorMessage::Kind;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kTimeout = 30 * kSecond;

Survivors rank_of(int me, std::vector<int> members, std::set<int> gone = {}) {
  std::map<int, std::string> names;
  for (const int rank : members) names[rank] = "rank " + std::to_string(rank) + " on host";
  return Survivors({.me = me,
                    .round = 0,
                    .members = std::move(members),
                    .gone = std::move(gone),
                    .names = std::move(names),
                    .timeout_ns = kTimeout,
                    .grace_ns = 2 * kSecond},
                   0);
}

SurvivorMessage here(int from, int to, std::set<int> gone = {}, uint64_t round = 0,
                     std::vector<int> members = {0, 1, 2, 3}) {
  return {.kind = Kind::here,
          .from = from,
          .to = to,
          .round = round,
          .members = std::move(members),
          .gone = std::move(gone)};
}

std::vector<int> decided_for(Survivors& rank) {
  std::vector<int> told;
  for (const SurvivorMessage& message : rank.take_outgoing()) {
    if (message.kind == Kind::decided) told.push_back(message.to);
  }
  return told;
}

TEST(Survivors, TheLowestRankThatIsLeftDecidesWhenAllOthersAreHere) {
  Survivors one = rank_of(1, {0, 1, 2, 3}, {0});
  EXPECT_EQ(one.server(), 1);
  EXPECT_THAT(one.wanted(), ElementsAre(0, 2, 3));  // rank 0 finds there that it is excluded
  one.receive(here(2, 1, {0}), 0);
  EXPECT_EQ(one.state(), State::gathering);
  one.receive(here(3, 1), 0);
  EXPECT_EQ(one.state(), State::decided);
  EXPECT_EQ(one.round(), 1U);
  EXPECT_THAT(one.members(), ElementsAre(1, 2, 3));
  EXPECT_THAT(decided_for(one), ElementsAre(2, 3));
}

TEST(Survivors, ARankThatEndsIsNotWaitedFor) {
  Survivors zero = rank_of(0, {0, 1, 2});
  zero.receive(here(1, 0), 0);
  zero.refused(2, 0);
  EXPECT_EQ(zero.state(), State::decided);
  EXPECT_THAT(zero.members(), ElementsAre(0, 1));
}

TEST(Survivors, ARankThatWasHereAndEndedIsLeftOut) {
  Survivors zero = rank_of(0, {0, 1, 2});
  zero.receive(here(1, 0), 0);
  zero.refused(1, 0);
  zero.receive(here(2, 0), 0);
  EXPECT_THAT(zero.members(), ElementsAre(0, 2));
}

TEST(Survivors, TheNextRankServesWhenTheServingOneEnds) {
  Survivors two = rank_of(2, {0, 1, 2, 3}, {0});
  EXPECT_THAT(two.wanted(), ElementsAre(1));
  two.refused(1, 0);
  EXPECT_EQ(two.server(), 2);
  two.receive(here(3, 2), 0);
  EXPECT_THAT(two.members(), ElementsAre(2, 3));
}

TEST(Survivors, ALossThatAnotherRankKnowsCounts) {
  Survivors two = rank_of(2, {0, 1, 2, 3});
  EXPECT_EQ(two.server(), 0);
  two.receive(here(1, 2, {0}), 0);
  EXPECT_EQ(two.server(), 1);
}

TEST(Survivors, ARankThatIsGoneForAnotherOneFails) {
  Survivors three = rank_of(3, {0, 1, 2, 3});
  three.receive(here(0, 3, {3}), 0);
  EXPECT_EQ(three.state(), State::failed);
  EXPECT_EQ(three.why().code(), Code::peer_lost);
  EXPECT_EQ(three.why().error().culprit_rank, 3);
  EXPECT_THAT(three.why().text(), HasSubstr("rank 3 on host is not in the new world"));
}

TEST(Survivors, ARankThatIsNoMemberOfALaterRoundFails) {
  Survivors three = rank_of(3, {0, 1, 2, 3});
  three.receive(here(0, 3, {}, 1, {0, 1, 2}), 0);
  EXPECT_EQ(three.why().code(), Code::peer_lost);
}

TEST(Survivors, ARankThatKnowsThatItIsLostFails) { EXPECT_EQ(rank_of(1, {0, 1}, {1}).state(), State::failed); }

TEST(Survivors, AMessageToAnotherRankIsIgnored) {
  Survivors zero = rank_of(0, {0, 1});
  zero.receive(here(1, 1), 0);
  EXPECT_EQ(zero.state(), State::gathering);
}

TEST(Survivors, ADecisionOfTheServingRankMakesAWorld) {
  Survivors two = rank_of(2, {0, 1, 2, 3});
  SurvivorMessage message = here(0, 2, {1}, 1, {0, 2, 3});
  message.kind = Kind::decided;
  two.receive(message, 0);
  EXPECT_EQ(two.state(), State::decided);
  EXPECT_THAT(two.members(), ElementsAre(0, 2, 3));
}

TEST(Survivors, ADecisionThatAnotherRankPassesOnIsOneWhoseWorldHasFailed) {
  Survivors two = rank_of(2, {0, 1, 2, 3});
  SurvivorMessage message = here(3, 2, {0}, 1, {0, 2, 3});
  message.kind = Kind::decided;
  two.receive(message, 0);
  EXPECT_EQ(two.state(), State::gathering);
  EXPECT_EQ(two.round(), 1U);
  EXPECT_EQ(two.server(), 2);
}

TEST(Survivors, ARankThatMissedADecisionGetsIt) {
  Survivors one = rank_of(1, {0, 1, 2, 3});
  SurvivorMessage message = here(0, 1, {}, 1);
  message.kind = Kind::decided;
  one.receive(message, 0);
  one.resume({0}, 0);
  static_cast<void>(one.take_outgoing());
  one.receive(here(2, 1), 0);
  const auto answers = one.take_outgoing();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].kind, Kind::decided);
  EXPECT_EQ(answers[0].to, 2);
}

TEST(Survivors, ADecisionIsRepeatedOverANewConnection) {
  Survivors zero = rank_of(0, {0, 1});
  EXPECT_EQ(zero.greeting(1).kind, Kind::here);
  zero.receive(here(1, 0), 0);
  EXPECT_EQ(zero.greeting(1).kind, Kind::decided);
  zero.resume({}, 0);
  EXPECT_EQ(zero.greeting(1).kind, Kind::here);
}

TEST(Survivors, TheServingRankNamesAllThatAreMissing) {
  Survivors zero = rank_of(0, {0, 1, 2, 3});
  zero.receive(here(2, 0), 0);
  zero.tick(kTimeout - 1);
  EXPECT_EQ(zero.state(), State::gathering);
  static_cast<void>(zero.take_outgoing());
  zero.tick(kTimeout);
  EXPECT_EQ(zero.why().code(), Code::timeout);
  EXPECT_THAT(zero.why().text(), HasSubstr("rank 1 on host, rank 3 on host did not take part within 30 s"));
  EXPECT_EQ(zero.take_outgoing().size(), 3U);  // all others get the error, also those that call later
}

TEST(Survivors, OtherRanksNameAServingRankThatDoesNotCall) {
  Survivors two = rank_of(2, {0, 1, 2});
  two.tick(kTimeout);
  EXPECT_EQ(two.state(), State::gathering);  // the text of the serving rank is better
  two.tick(kTimeout + 2 * kSecond);
  EXPECT_EQ(two.why().error().culprit_rank, 0);
  EXPECT_EQ(two.take_outgoing().back().kind, Kind::failed);
}

TEST(Survivors, ARankThatHasHeardTheServingOneLeavesTheErrorToIt) {
  Survivors two = rank_of(2, {0, 1, 2});
  two.receive(here(0, 2), 20 * kSecond);
  two.tick(kTimeout + 2 * kSecond);
  EXPECT_EQ(two.state(), State::gathering);
}

TEST(Survivors, AFailureOfAnotherRankIsTheFailureOfAll) {
  Survivors two = rank_of(2, {0, 1, 2});
  SurvivorMessage message = here(0, 2);
  message.kind = Kind::failed;
  message.why = Status(Code::timeout, "rank 1 did not take part");
  two.receive(message, 0);
  EXPECT_EQ(two.state(), State::failed);
  EXPECT_EQ(two.why().text(), "rank 1 did not take part");
}

// ---- Histories ----

// Ranks as processes: each calls at some moment, and some end. Messages travel in order over connections, which lose
// what is in flight when they close. A world is made if all members have joined it; if one has ended, it fails for the
// others, each at its own moment.
class History {
 public:
  History(uint32_t seed, int size) : dice_(seed), size_(size) {
    for (int rank = 0; rank < size; ++rank) processes_.emplace_back();
    std::vector<int> victims;
    for (int rank = 0; rank < size; ++rank) victims.push_back(rank);
    std::shuffle(victims.begin(), victims.end(), dice_);
    victims.resize(static_cast<std::size_t>(roll(size)));  // at least one is left
    for (const int victim : victims) processes_[at(victim)].dies_at = roll(120);
  }

  void run() {
    for (int step = 0; step < 4000 && !is_over(); ++step) {
      for (int rank = 0; rank < size_; ++rank) {
        if (processes_[at(rank)].dies_at == step) end(rank);
      }
      act(roll(size_));
    }
  }

  // One world of all that are left, or of all that were left when it was made.
  void check() const {
    std::set<std::vector<int>> worlds;
    std::vector<int> left;
    for (int rank = 0; rank < size_; ++rank) {
      const Process& one = processes_[at(rank)];
      if (!one.is_alive) continue;
      left.push_back(rank);
      ASSERT_TRUE(one.is_done) << "rank " << rank << " hangs or failed: " << (one.rank ? one.rank->why().text() : "");
      worlds.insert(one.rank->members());
    }
    ASSERT_EQ(worlds.size(), 1U);
    for (const int rank : left) EXPECT_TRUE(std::ranges::binary_search(*worlds.begin(), rank)) << rank;
  }
  int failed_worlds() const { return failed_worlds_; }

 private:
  struct Process {
    bool is_alive = true;
    bool is_done = false;
    bool joined = false;  // the world of its round
    int dies_at = -1;
    std::optional<Survivors> rank;                           // once it has called
    std::map<int, std::deque<SurvivorMessage>> connections;  // open ones, by receiver: what is on its way
    std::map<int, std::deque<SurvivorMessage>> unsent;
  };
  struct World {
    std::set<int> joined;
    bool is_made = false;
  };

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  int roll(int sides) { return static_cast<int>(dice_() % static_cast<unsigned>(sides)); }
  bool is_over() const {
    return std::ranges::all_of(processes_, [](const Process& one) { return !one.is_alive || one.is_done; });
  }

  void end(int rank) {
    processes_[at(rank)].is_alive = false;
    processes_[at(rank)].connections.clear();
  }

  void act(int rank) {
    Process& one = processes_[at(rank)];
    if (!one.is_alive || one.is_done) return;
    if (!one.rank) {
      if (roll(4) == 0) call(rank);
      return;
    }
    connect(rank);
    for (const SurvivorMessage& message : one.rank->take_outgoing()) one.unsent[message.to].push_back(message);
    for (auto& [to, messages] : one.unsent) {
      if (!one.connections.contains(to)) continue;
      for (; !messages.empty(); messages.pop_front()) one.connections[to].push_back(messages.front());
    }
    // A rank reads while it gathers and while it waits for the address, and not while its world starts.
    if (!one.joined) receive(rank, roll(size_));
    if (one.rank->state() == State::decided) join(rank);
  }

  void call(int rank) {
    std::vector<int> members;
    std::set<int> gone;
    for (int other = 0; other < size_; ++other) {
      members.push_back(other);
      if (!processes_[at(other)].is_alive && roll(2) == 0) gone.insert(other);  // the failure decision names some
    }
    processes_[at(rank)].rank.emplace(rank_of(rank, std::move(members), std::move(gone)));
  }

  void connect(int rank) {
    Process& one = processes_[at(rank)];
    std::set<int> wanted = one.rank->wanted();
    for (const auto& [to, messages] : one.unsent) {
      if (!messages.empty()) wanted.insert(to);
    }
    for (const int to : wanted) {
      if (!processes_[at(to)].is_alive) {
        one.connections.erase(to);
        one.unsent.erase(to);
        one.rank->refused(to, 0);
      } else if (!one.connections.contains(to) || roll(200) == 0) {
        one.connections[to].clear();  // a connection may break between two processes that live
        one.connections[to].push_back(one.rank->greeting(to));
      }
    }
  }

  void receive(int rank, int from) {
    Process& sender = processes_[at(from)];
    const auto found = sender.connections.find(rank);
    if (!sender.is_alive || found == sender.connections.end() || found->second.empty()) return;
    const SurvivorMessage message = found->second.front();
    found->second.pop_front();
    processes_[at(rank)].rank->receive(message, 0);
  }

  void join(int rank) {
    Process& one = processes_[at(rank)];
    World& world = worlds_[one.rank->round()];
    world.joined.insert(rank);
    one.joined = true;
    const std::vector<int>& members = one.rank->members();
    world.is_made = world.is_made || std::ranges::all_of(members, [&](int member) {
                      return world.joined.contains(member) && processes_[at(member)].is_alive;
                    });
    if (world.is_made) {
      one.is_done = true;
      return;
    }
    std::set<int> lost;
    for (const int member : members) {
      if (!processes_[at(member)].is_alive) lost.insert(member);
    }
    if (lost.empty() || roll(3) > 0) return;
    if (roll(2) == 0) lost.clear();  // the coordinator of the new world was lost
    ++failed_worlds_;
    one.joined = false;
    one.rank->resume(lost, 0);
  }

  std::mt19937 dice_;
  const int size_;
  std::vector<Process> processes_;
  std::map<uint64_t, World> worlds_;
  int failed_worlds_ = 0;
};

TEST(Survivors, AllThatAreLeftMakeOneWorldWhereverOthersEnd) {
  int failed_worlds = 0;
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    History history(seed, 2 + static_cast<int>(seed % 5));
    history.run();
    history.check();
    failed_worlds += history.failed_worlds();
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(failed_worlds, 100);  // the histories have what they are about
}

}  // namespace
}  // namespace fdl
