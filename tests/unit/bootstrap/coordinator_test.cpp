// Tests of the coordinator: the start of a job, and the store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "bootstrap/client/ended_rank.h"
#include "system/socket.h"
#include "tests/support/coordinator_job.h"

namespace fdl {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using namespace test;

// ---- Arriving ----

class EveryRendezvous : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryRendezvous, ConnectsAllRanks) {
  RunningCoordinator coordinator(options_for(4, GetParam()));
  auto ranks = join_all(coordinator->address(), 4);
  on_all(ranks, [](int, Rank& rank) {
    const auto all = rank->wait_for_all(Deadline::after_seconds(20));
    ASSERT_TRUE(all.ok()) << all.status().text();
    ASSERT_EQ(all->size(), 4u);
    EXPECT_EQ((*all)[2].host_name, "host-c");
    EXPECT_EQ((*all)[2].process_id, 102);
    EXPECT_EQ((*all)[2].numa_node, 1);
    EXPECT_EQ((*all)[2].efa, 2);
  });
  EXPECT_EQ(coordinator->strangers(), 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryRendezvous,
                         ::testing::Values("unix", "tcp://127.0.0.1:0", "tcp://0.0.0.0:0", "memory://here",
                                           "unix:@farandole-test-of-the-coordinator",
                                           "file:///tmp/farandole-coordinator-test"),
                         [](const auto& one) { return "Number" + std::to_string(one.index); });

TEST(Coordinator, RemovesTheFileOfTheRendezvousAtItsEnd) {
  const std::string path = "/tmp/farandole-coordinator-file-" + std::to_string(::getpid());
  {
    RunningCoordinator coordinator(options_for(1, "file://" + path));
    EXPECT_TRUE(std::filesystem::exists(path));
    EXPECT_EQ(coordinator->address(), "file://" + path);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Coordinator, MayStartAfterItsRanks) {
  std::unique_ptr<Rank> rank;
  std::thread early([&] { rank = join("memory://later", 0, 1); });
  RunningCoordinator coordinator(options_for(1, "memory://later"));
  early.join();
  ASSERT_NE(rank, nullptr);
  EXPECT_TRUE((*rank)->wait_for_all(Deadline::after_seconds(10)).ok());
}

TEST(Coordinator, IsFoundAmongOtherServersOfAPortRange) {
  // A silent server has the first port of the range, and the coordinator of another job has the second.
  auto silent = listen_tcp("lo");
  ASSERT_TRUE(silent.ok());
  const std::string text = silent->addresses.front().text;
  const int port = std::stoi(text.substr(text.rfind(':') + 1));
  if (port + 3 > 65535) return;
  const std::string range = "tcp://127.0.0.1:" + std::to_string(port) + "-" + std::to_string(port + 3);
  CoordinatorOptions another = options_for(1, range);
  another.job_key = "the key of another job";
  RunningCoordinator other(another);
  RunningCoordinator coordinator(options_for(2, range));
  EXPECT_NE(coordinator->address(), other->address());
  auto ranks = join_all(range, 2);
  ASSERT_TRUE(ranks[0] && ranks[1]);
  EXPECT_TRUE((*ranks[1])->wait_for_all(Deadline::after_seconds(10)).ok());
}

// Whether something listens at a rendezvous tcp://host:port.
bool listens_at(const std::string& rendezvous) {
  const Address address{rendezvous.substr(std::string("tcp://").size())};
  return connect_any(std::span(&address, 1), Deadline::after_seconds(10)).ok();
}

TEST(Coordinator, ClosesThePortWhenAllRanksHaveArrivedIfOnlyTheyKnowIt) {
  CoordinatorOptions options = options_for(2, "tcp://127.0.0.1:0");
  options.closes_when_complete = true;
  RunningCoordinator coordinator(options);
  auto first = join(coordinator->address(), 0, 2);
  EXPECT_TRUE(listens_at(coordinator->address())) << "rank 1 has not come";
  auto second = join(coordinator->address(), 1, 2);
  const Deadline deadline = Deadline::after_seconds(10);
  while (listens_at(coordinator->address()) && !deadline.passed()) std::this_thread::yield();
  EXPECT_FALSE(listens_at(coordinator->address()));
  // The connections remain.
  EXPECT_TRUE((*first)->publish("a", "b").ok());
  const auto value = (*second)->fetch("a", Deadline::after_seconds(10));
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(*value, "b");
  second->disconnect();
  EXPECT_THAT(first_text(first->next_event()), HasSubstr("rank 1 on host-b (process 101) was lost"));
}

TEST(Coordinator, KeepsItsPortForOthersThatKnowIt) {
  RunningCoordinator coordinator(options_for(1, "tcp://127.0.0.1:0"));
  auto rank = join(coordinator->address(), 0, 1);
  ASSERT_TRUE((*rank)->wait_for_all(Deadline::after_seconds(10)).ok());
  EXPECT_TRUE(listens_at(coordinator->address()));
}

TEST(Coordinator, NamesTheMissingRanks) {
  CoordinatorOptions options = options_for(8);
  options.start_timeout_s = 0.3;
  RunningCoordinator coordinator(options);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (const int rank : {0, 1, 3, 4, 6, 7}) ranks.push_back(join(coordinator->address(), rank, 8));
  on_all(ranks, [&](int, Rank& rank) {
    const auto all = rank->wait_for_all(Deadline::after_seconds(20));
    ASSERT_FALSE(all.ok());
    EXPECT_EQ(all.status().code(), Code::timeout);
    EXPECT_EQ(all.status().text(),
              "ranks 2 and 5 of 8 have not arrived after 0.3 s; check their logs and that they can "
              "reach " +
                  coordinator->address());
  });
  const auto late =
      CoordinatorClient::connect(coordinator->address(), kKey, hello_of(2, 8), Deadline::after_seconds(20));
  ASSERT_FALSE(late.ok());
  EXPECT_THAT(late.status().text(), HasSubstr("the job did not start: ranks 2 and 5 of 8 have not arrived"));
}

TEST(Coordinator, DeadlineOfOneRankReturnsTheMissingRanks) {
  RunningCoordinator coordinator(options_for(2));
  auto rank = join(coordinator->address(), 0, 2);
  const auto all = (*rank)->wait_for_all(Deadline::after_seconds(0.05));
  ASSERT_FALSE(all.ok());
  EXPECT_EQ(all.status().code(), Code::timeout);
  EXPECT_THAT(all.status().text(), MatchesRegex("rank 1 of 2 has not arrived after .* s; check its log and that it can "
                                                "reach unix:@farandole-.*"));
  // Only the deadline of this rank has passed; the job can still start.
  auto other = join(coordinator->address(), 1, 2);
  EXPECT_TRUE((*rank)->wait_for_all(Deadline::after_seconds(10)).ok());
}

TEST(Coordinator, LossBeforeTheStartFailsTheStart) {
  RunningCoordinator coordinator(options_for(3));
  auto rank = join(coordinator->address(), 0, 3);
  join(coordinator->address(), 1, 3)->disconnect();
  const auto all = (*rank)->wait_for_all(Deadline::after_seconds(10));
  ASSERT_FALSE(all.ok());
  EXPECT_EQ(all.status().code(), Code::peer_lost);
  EXPECT_EQ(all.status().text(), "rank 1 on host-b (process 101) was lost: its process ended or its connection broke");
}

// Of a launcher on another node, and of the one that serves the coordinator.
TEST(Coordinator, EndOfARankThatHasNotArrivedFailsTheStart) {
  for (const bool is_elsewhere : {true, false}) {
    RunningCoordinator coordinator(options_for(2));
    auto rank = join(coordinator->address(), 0, 2);
    const Status why = ended_before_joining(1, 101, "host-b", "exit code 3");
    if (is_elsewhere) {
      const Status sent = send_ended_rank(coordinator->address(), kKey, 1, why, Deadline::after_seconds(20));
      ASSERT_TRUE(sent.ok()) << sent.text();
    } else {
      coordinator->note_ended(1, why);
    }
    const auto all = (*rank)->wait_for_all(Deadline::after_seconds(20));
    ASSERT_FALSE(all.ok());
    EXPECT_EQ(all.status().code(), Code::peer_lost);
    EXPECT_EQ(all.status().error().culprit_rank, 1);
    EXPECT_EQ(all.status().text(),
              "rank 1 (process 101 on host-b) ended before it had joined the job: exit code 3; see its output");
    const Status wrong = send_ended_rank(coordinator->address(), kKey, 2, why, Deadline::after_seconds(20));
    EXPECT_EQ(wrong.code(), Code::peer_lost) << "there is no rank 2";
  }
}

TEST(Coordinator, EndOfARankIsToldWithinADeadline) {
  const Status why = ended_before_joining(1, 101, "host-b", "exit code 3");
  const Status sent = send_ended_rank("memory://nowhere", kKey, 1, why, Deadline::after_seconds(0.1));
  EXPECT_EQ(sent.code(), Code::timeout) << sent.text();
}

TEST(Coordinator, RejectsASecondProcessOfOneRankAndNamesBoth) {
  RunningCoordinator coordinator(options_for(2));
  auto rank = join(coordinator->address(), 1, 2);
  auto twin = hello_of(1, 2);
  twin.host_name = "host-z";
  twin.process_id = 999;
  const auto refused = CoordinatorClient::connect(coordinator->address(), kKey, twin, Deadline::after_seconds(10));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::invalid_argument);
  EXPECT_THAT(refused.status().text(), HasSubstr("two processes claim to be rank 1: process 101 on host-b, which was "
                                                 "first, and process 999 on host-z"));
  EXPECT_EQ(coordinator->strangers(), 0);
}

TEST(Coordinator, RejectsAnotherSize) {
  RunningCoordinator coordinator(options_for(2));
  const auto refused =
      CoordinatorClient::connect(coordinator->address(), kKey, hello_of(1, 4), Deadline::after_seconds(10));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::mismatch);
  EXPECT_EQ(refused.status().text(),
            "rank 1 (process 101 on host-b) was started for 4 ranks, but the coordinator "
            "(farandole run on host-a) was started for 2; give all ranks the same size");
}

TEST(Coordinator, ReportsADifferentSettingToAllRanks) {
  RunningCoordinator coordinator(options_for(2));
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    CoordinatorClient::Hello hello = hello_of(rank, 2);
    hello.settings = {{"version", "1", "install one"}, {"slices", std::to_string(rank * 7), "set SLICES alike"}};
    auto client = CoordinatorClient::connect(coordinator->address(), kKey, hello, Deadline::after_seconds(20));
    ASSERT_TRUE(client.ok()) << client.status().text();
    ranks.push_back(std::make_unique<Rank>(client.take()));
  }
  on_all(ranks, [](int, Rank& rank) {
    const auto all = rank->wait_for_all(Deadline::after_seconds(20));
    ASSERT_FALSE(all.ok());
    EXPECT_EQ(all.status().code(), Code::mismatch);
    EXPECT_EQ(all.status().text(),
              "all ranks must have the same slices, but rank 0 on host-a (process 100) has 0 and rank 1 on host-b "
              "(process 101) has 7; set SLICES alike");
  });
}

TEST(Coordinator, RejectsARankOutsideOfTheJob) {
  RunningCoordinator coordinator(options_for(2));
  const auto refused =
      CoordinatorClient::connect(coordinator->address(), kKey, hello_of(2, 2), Deadline::after_seconds(10));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().text(), "process 102 on host-c claims to be rank 2 of 2");
}

TEST(Coordinator, RejectsAWrongKeyBeforeTheDeadline) {
  RunningCoordinator coordinator(options_for(2));
  const int64_t began = now_ns();
  const auto refused = CoordinatorClient::connect(coordinator->address(), "quite another job key", hello_of(0, 2),
                                                  Deadline::after_seconds(600));
  ASSERT_FALSE(refused.ok());
  EXPECT_LT(now_ns() - began, seconds_to_ns(300));
  EXPECT_EQ(refused.status().code(), Code::authentication);
  EXPECT_THAT(
      refused.status().text(),
      HasSubstr("the job key differs from the coordinator's: rank 0 on host-a (process 100) was refused at unix:@"));
}

TEST(Coordinator, MissingCoordinatorIsATimeoutThatNamesItsAddress) {
  const auto none =
      CoordinatorClient::connect("unix:@farandole-missing", kKey, hello_of(1, 2), Deadline::after_seconds(0.1));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), Code::timeout);
  const std::string& text = none.status().text();
  const std::string before =
      "rank 1 on host-b (process 101) did not find the coordinator at unix:@farandole-missing within ";
  ASSERT_TRUE(text.starts_with(before)) << text;
  // The text gives the time that has passed. A loaded machine begins and ends the search late.
  std::size_t digits = 0;
  const double passed_s = std::stod(text.substr(before.size()), &digits);
  EXPECT_GT(passed_s, 0.05);
  EXPECT_LT(passed_s, 20);
  EXPECT_TRUE(text.substr(before.size() + digits).starts_with(" s (")) << text;
  EXPECT_THAT(none.status().text(), HasSubstr("nothing listens at that address (yet)"));
}

TEST(Coordinator, ACoordinatorThatWasThereAndHasEndedIsAnErrorBeforeTheDeadline) {
  // A port at which nothing listens: the one of a coordinator that has closed.
  std::string address;
  {
    CoordinatorOptions options;
    options.size = 1;
    options.address = "tcp://127.0.0.1:0";
    options.job_key = kKey;
    address = Coordinator::open(options).take()->address();
  }
  const int64_t began = now_ns();
  const auto none =
      CoordinatorClient::connect(address + "?coordinator=listens", kKey, hello_of(1, 2), Deadline::after_seconds(600));
  ASSERT_FALSE(none.ok());
  EXPECT_LT(now_ns() - began, seconds_to_ns(300));
  EXPECT_EQ(none.status().code(), Code::transport);
  EXPECT_THAT(none.status().text(), HasSubstr("has ended: rank 1 on host-b (process 101) finds no process"));
}

TEST(Coordinator, RejectsInvalidOptionsAndAddressesInUse) {
  CoordinatorOptions options = options_for(0);
  options.job_key = kKey;
  EXPECT_EQ(Coordinator::open(options).status().code(), Code::invalid_argument);
  options.size = 1;
  options.job_key = "short";
  EXPECT_EQ(Coordinator::open(options).status().code(), Code::invalid_argument);
  options.job_key = kKey;
  options.address = "nonsense";
  EXPECT_EQ(Coordinator::open(options).status().code(), Code::invalid_argument);
  options.address = "memory://twice";
  const auto first = Coordinator::open(options);
  EXPECT_TRUE(first.ok());
  EXPECT_THAT(Coordinator::open(options).status().text(), HasSubstr("already has a coordinator at memory://twice"));
  options.address = "unix:@farandole-twice";
  const auto second = Coordinator::open(options);
  EXPECT_TRUE(second.ok());
  EXPECT_THAT(Coordinator::open(options).status().text(), HasSubstr("another process uses that address"));
}

// ---- The store ----

TEST(Store, ReturnsAFactToEarlyAndLateReaders) {
  RunningCoordinator coordinator(options_for(2));
  auto ranks = join_all(coordinator->address(), 2);
  std::thread early([&] {
    const auto value = (*ranks[1])->fetch("address of 0", Deadline::after_seconds(20));
    ASSERT_TRUE(value.ok()) << value.status().text();
    EXPECT_EQ(*value, std::string("bin\0ary", 7));
  });
  EXPECT_TRUE((*ranks[0])->publish("address of 0", std::string("bin\0ary", 7)).ok());
  early.join();
  EXPECT_EQ((*ranks[0])->fetch("address of 0", Deadline::after_seconds(20)).take(), std::string("bin\0ary", 7));
}

TEST(Store, RejectsAnotherValueForAKey) {
  RunningCoordinator coordinator(options_for(2));
  auto ranks = join_all(coordinator->address(), 2);
  EXPECT_TRUE((*ranks[0])->publish("k", "one").ok());
  EXPECT_TRUE((*ranks[1])->publish("k", "one").ok());
  const Status another = (*ranks[1])->publish("k", "two");
  EXPECT_EQ(another.code(), Code::invalid_argument);
  EXPECT_EQ(another.text(), "rank 0 already published 'k' with another value");
}

TEST(Store, FetchTimeoutNamesTheKey) {
  RunningCoordinator coordinator(options_for(1));
  auto rank = join(coordinator->address(), 0, 1);
  const auto value = (*rank)->fetch("never", Deadline::after_seconds(0.05));
  ASSERT_FALSE(value.ok());
  EXPECT_EQ(value.status().code(), Code::timeout);
  EXPECT_THAT(value.status().text(), MatchesRegex(".*no rank published 'never' within 0[.][0-9]+ s.*"));
  EXPECT_TRUE((*rank)->publish("never", "after all").ok());
  EXPECT_EQ((*rank)->fetch("never", Deadline::after_seconds(10)).take(), "after all");
}

TEST(Store, IsBounded) {
  EXPECT_EQ(CoordinatorOptions{}.store_bytes, 256_MiB);
  CoordinatorOptions options = options_for(1);
  options.store_bytes = 8_MiB;
  RunningCoordinator coordinator(options);
  auto rank = join(coordinator->address(), 0, 1);
  const std::string megabyte(1'000'000, 'x');
  Status full;
  int published = 0;
  while (full.ok() && published < 20) {
    full = (*rank)->publish("key " + std::to_string(published), megabyte);
    published += full.ok() ? 1 : 0;
  }
  EXPECT_EQ(full.code(), Code::resource) << full.text();
  EXPECT_EQ(published, static_cast<int>(8_MiB / 1'000'007)) << full.text();
  EXPECT_EQ((*rank)->publish("too large", std::string(1_MiB, 'x')).code(), Code::invalid_argument);
  EXPECT_EQ((*rank)->publish(std::string(5000, 'k'), "").code(), Code::invalid_argument);
  EXPECT_EQ((*rank)->fetch(std::string(5000, 'k'), Deadline::never()).status().code(), Code::invalid_argument);
}

TEST(Store, FetchFromALostRankFails) {
  RunningCoordinator coordinator(options_for(3));
  auto ranks = join_all(coordinator->address(), 3);
  std::thread waiting([&] {
    const auto value = (*ranks[0])->fetch_from({1, 2}, "from 2", Deadline::after_seconds(60));
    ASSERT_FALSE(value.ok());
    EXPECT_EQ(value.status().code(), Code::peer_lost);
    EXPECT_THAT(value.status().text(), HasSubstr("rank 2 on host-c (process 102) was lost"));
  });
  ranks[2]->disconnect();
  waiting.join();
  EXPECT_EQ((*ranks[0])->fetch_from({2}, "from 2", Deadline::never()).status().code(), Code::peer_lost);
}

// ---- Many ----

TEST(Many, SixtyFourRanksConnectPublishAndFetch) {
  constexpr int kRanks = 64;
  RunningCoordinator coordinator(options_for(kRanks));
  std::vector<std::unique_ptr<Rank>> ranks(kRanks);
  const int64_t began = now_ns();
  std::vector<std::thread> arriving;
  for (int rank = 0; rank < kRanks; ++rank) {
    arriving.emplace_back(
        [&, rank] { ranks[static_cast<std::size_t>(rank)] = join(coordinator->address(), rank, kRanks); });
  }
  for (std::thread& thread : arriving) thread.join();
  std::printf("64 ranks arrived in %.1f ms\n", static_cast<double>(now_ns() - began) / 1e6);
  const int64_t exchanging = now_ns();
  on_all(ranks, [](int number, Rank& rank) {
    ASSERT_TRUE(rank->wait_for_all(Deadline::after_seconds(60)).ok());
    ASSERT_TRUE(rank->publish("of " + std::to_string(number), std::to_string(number * 7)).ok());
    for (int other = 0; other < kRanks; ++other) {
      const auto value = rank->fetch("of " + std::to_string(other), Deadline::after_seconds(60));
      ASSERT_TRUE(value.ok()) << value.status().text();
      EXPECT_EQ(*value, std::to_string(other * 7));
    }
  });
  std::printf("64 ranks published one fact and fetched 64 in %.1f ms\n",
              static_cast<double>(now_ns() - exchanging) / 1e6);
  on_all(ranks, [](int number, Rank& rank) {
    std::vector<int> everyone;
    for (int other = 0; other < kRanks; ++other) everyone.push_back(other);
    const auto facts = rank->fetch_many("of ", everyone, Deadline::after_seconds(60));
    ASSERT_TRUE(facts.ok()) << facts.status().text();
    ASSERT_EQ(facts->values.size(), everyone.size());
    EXPECT_TRUE(facts->missing.empty());
    EXPECT_EQ(facts->values[63], std::to_string(63 * 7)) << number;
  });
  ranks[17]->disconnect();
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == 17) continue;
    EXPECT_EQ(ranks[static_cast<std::size_t>(rank)]->next_event()->rank, 17);
  }
  EXPECT_EQ(coordinator->strangers(), 0);
}

TEST(Many, RanksThatLeaveTogetherAreNamedToThoseThatStay) {
  constexpr int kRanks = 48;
  RunningCoordinator coordinator(options_for(kRanks));
  auto ranks = join_all(coordinator->address(), kRanks);
  for (int rank = 2; rank < kRanks; ++rank) (*ranks[static_cast<std::size_t>(rank)])->leave();
  for (const int stays : {0, 1}) {
    std::set<int> left;
    for (int i = 2; i < kRanks; ++i) {
      const auto event = ranks[static_cast<std::size_t>(stays)]->next_event();
      ASSERT_TRUE(event) << left.size() << " departures have come";
      EXPECT_EQ(event->kind, CoordinatorEvent::Kind::left);
      const std::string host(1, static_cast<char>('a' + event->rank % 26));
      EXPECT_EQ(event->why.text(), "rank " + std::to_string(event->rank) + " (host-" + host + ") has shut down");
      EXPECT_EQ(event->why.error().culprit_rank, event->rank);
      EXPECT_TRUE(left.insert(event->rank).second) << "rank " << event->rank << " has left twice";
    }
    EXPECT_EQ(left.size(), std::size_t{kRanks - 2});
  }
}

TEST(Store, ReturnsSomeFactsAtTheDeadline) {
  RunningCoordinator coordinator(options_for(2));
  auto ranks = join_all(coordinator->address(), 2);
  ASSERT_TRUE((*ranks[0])->publish("k/1", "v").ok());
  const auto facts = (*ranks[1])->fetch_many("k/", {0, 1}, Deadline::after_seconds(0.05));
  ASSERT_TRUE(facts.ok()) << facts.status().text();
  EXPECT_EQ(facts->values, (std::vector<std::string>{"", "v"}));
  EXPECT_EQ(facts->missing, std::vector<int>{0});
  EXPECT_TRUE((*ranks[1])->fetch_many("k/", {}, Deadline::never())->values.empty());
}

}  // namespace
}  // namespace fdl
