// Tests of losses: their detection, the text that all ranks receive, and the end of the coordinator itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "bootstrap/topology/topology.h"
#include "system/handshake.h"
#include "tests/support/coordinator_job.h"

namespace fdl {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace test;

// ---- Losses ----

TEST(Alive, ClosedConnectionIsTheSameLossOnAllRanks) {
  RunningCoordinator coordinator(options_for(4));
  auto ranks = join_all(coordinator->address(), 4);
  ranks[2]->disconnect();
  for (const int rank : {0, 1, 3}) {
    const auto event = ranks[static_cast<std::size_t>(rank)]->next_event();
    ASSERT_TRUE(event) << "rank " << rank;
    EXPECT_EQ(event->kind, CoordinatorEvent::Kind::lost);
    EXPECT_EQ(event->rank, 2);
    EXPECT_EQ(event->why.code(), Code::peer_lost);
    EXPECT_EQ(event->why.error().culprit_rank, 2);
    EXPECT_EQ(event->why.error().culprit_host, "host-c");
    EXPECT_EQ(event->why.text(), "rank 2 on host-c (process 102) was lost: its process ended or its connection broke");
  }
  const auto back =
      CoordinatorClient::connect(coordinator->address(), kKey, hello_of(2, 4), Deadline::after_seconds(10));
  ASSERT_FALSE(back.ok()) << "a lost rank cannot reconnect";
  EXPECT_EQ(back.status().code(), Code::peer_lost);
}

TEST(Alive, LeavingIsNoLoss) {
  RunningCoordinator coordinator(options_for(2));
  auto ranks = join_all(coordinator->address(), 2);
  (*ranks[1])->leave();
  ranks[1]->disconnect();
  const auto event = ranks[0]->next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, CoordinatorEvent::Kind::left);
  EXPECT_EQ(event->rank, 1);
  EXPECT_EQ(event->why.code(), Code::shut_down);
  EXPECT_EQ(event->why.text(), "rank 1 (host-b) has shut down");
  (*ranks[0])->leave();
  EXPECT_TRUE(coordinator->wait_until_empty(Deadline::after_seconds(10)));
  EXPECT_EQ(ranks[0]->waiting_events(), 0u);
}

TEST(Alive, LateRankReceivesTheReasonOfTheFailedStart) {
  RunningCoordinator coordinator(options_for(3));
  auto first = join(coordinator->address(), 0, 3);
  auto second = join(coordinator->address(), 1, 3);
  (*second)->leave();
  ASSERT_TRUE(first->next_event());
  const auto late =
      CoordinatorClient::connect(coordinator->address(), kKey, hello_of(2, 3), Deadline::after_seconds(10));
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.status().text(), "the job did not start: rank 1 (host-b) has shut down");
}

TEST(Alive, ProbesDetectOnlyTheSilentRank) {
  CoordinatorOptions options = options_for(3);
  options.lost_after_s = 0.2;
  RunningCoordinator coordinator(options);
  auto ranks = join_all(coordinator->address(), 3);
  ranks[1]->stop_driving();
  for (int i = 0; i < 5; ++i) (*ranks[0])->probe({1, 2, 7, -1});
  for (const int rank : {0, 2}) {
    const auto event = ranks[static_cast<std::size_t>(rank)]->next_event();
    EXPECT_EQ(first_text(event),
              "rank 1 on host-b (process 101) was lost: it has not answered for 0.2 s (stopped, "
              "swapped out or cut off)");
  }
  (*ranks[2])->probe({0});
  EXPECT_TRUE((*ranks[0])->publish("still", "here").ok());
  EXPECT_EQ(ranks[2]->waiting_events(), 0u);
}

TEST(Alive, ResumedRankReadsTheSameLossAsTheOthers) {
  CoordinatorOptions options = options_for(2);
  options.lost_after_s = 0.1;
  RunningCoordinator coordinator(options);
  auto prober = join(coordinator->address(), 0, 2);
  auto client = CoordinatorClient::connect(coordinator->address(), kKey, hello_of(1, 2), Deadline::after_seconds(10));
  ASSERT_TRUE(client.ok());
  (*prober)->probe({1});
  const auto event = prober->next_event();
  ASSERT_TRUE(event);
  Rank resumed(client.take());
  EXPECT_EQ(first_text(resumed.next_event()), event->why.text());
  const auto end = resumed.next_event();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->kind, CoordinatorEvent::Kind::coordinator_lost);
  EXPECT_EQ(end->why.text(), event->why.text());
}

// The driving thread comes only when the limit has passed, as on a machine that is short of processors.
TEST(Alive, AnswerThatWaitsInTheSocketIsNoSilence) {
  RunningCoordinator coordinator(options_for(1));
  auto client = CoordinatorClient::connect(coordinator->address(), kKey, hello_of(0, 1), Deadline::after_seconds(10),
                                           {.silence_warning_s = 0.01, .lost_after_s = 0.05, .suspect_after_s = 0.01})
                    .take();
  client->progress();
  client->probe({});
  ASSERT_TRUE(wait_readable(client->wake_fd(), Deadline::after_seconds(20))) << "the answer";
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  client->probe({});
  client->progress();
  for (const CoordinatorEvent& event : client->take_events()) {
    EXPECT_NE(event.kind, CoordinatorEvent::Kind::coordinator_lost) << event.why.text();
  }
  client->leave();
}

// ---- Failed communicators ----

const Status kStuck = Status::blame(2, "host-c", Code::transport, "rank 2 on host-c closed its channel");

std::string name_and_text(const Status& why) { return std::string(name_of(why.code())) + ": " + why.text(); }

std::vector<std::string> decisions(std::vector<std::unique_ptr<Rank>>& ranks, const std::vector<int>& of) {
  std::vector<std::string> texts;
  for (const int rank : of) {
    while (true) {
      const auto event = ranks[static_cast<std::size_t>(rank)]->next_event();
      if (event && event->kind != CoordinatorEvent::Kind::comm_failed) continue;
      texts.push_back(event ? event->comm + ": " + name_and_text(event->why) : "no event");
      break;
    }
  }
  return texts;
}

TEST(Reports, PresentReportedRankGivesOneDecisionForAllRanks) {
  RunningCoordinator coordinator(options_for(3));
  auto ranks = join_all(coordinator->address(), 3);
  (*ranks[0])->report("all/1", kStuck);
  (*ranks[1])->report("all/1", Status(Code::timeout, "another failure, which arrives second or first"));
  const auto texts = decisions(ranks, {0, 1, 2});
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
  EXPECT_TRUE(texts[0] == "all/1: TRANSPORT: rank 2 on host-c closed its channel; both processes are alive" ||
              texts[0] == "all/1: TIMEOUT: another failure, which arrives second or first")
      << texts[0];
  for (auto& rank : ranks) {
    for (const auto& again : rank->take_events()) EXPECT_EQ("all/1: " + name_and_text(again.why), texts[0]);
  }
}

TEST(Reports, LostReportedRankIsTheDecision) {
  RunningCoordinator coordinator(options_for(3));
  auto ranks = join_all(coordinator->address(), 3);
  ranks[2]->disconnect();
  (*ranks[0])->report("all/1", kStuck);
  const std::string lost =
      "all/1: PEER_LOST: rank 2 on host-c (process 102) was lost: its process ended or its connection broke";
  EXPECT_THAT(decisions(ranks, {0, 1}), ElementsAre(lost, lost));
}

TEST(Reports, SilentReportedRankIsLost) {
  CoordinatorOptions options = options_for(3);
  options.lost_after_s = 0.2;
  RunningCoordinator coordinator(options);
  auto ranks = join_all(coordinator->address(), 3);
  ranks[2]->stop_driving();
  (*ranks[1])->report("all/1", kStuck);
  const std::string lost =
      "all/1: PEER_LOST: rank 2 on host-c (process 102) was lost: it has not answered for 0.2 s "
      "(stopped, swapped out or cut off)";
  EXPECT_THAT(decisions(ranks, {0, 1}), ElementsAre(lost, lost));
}

TEST(Reports, DepartedReportedRankHasShutDown) {
  RunningCoordinator coordinator(options_for(3));
  auto ranks = join_all(coordinator->address(), 3);
  (*ranks[2])->leave();
  (*ranks[1])->report("all/1", kStuck);
  const std::string left = "all/1: SHUT_DOWN: rank 2 (host-c) has shut down";
  EXPECT_THAT(decisions(ranks, {0, 1}), ElementsAre(left, left));
}

TEST(Reports, WithoutACulpritAreDecidedUnchanged) {
  RunningCoordinator coordinator(options_for(2));
  auto ranks = join_all(coordinator->address(), 2);
  (*ranks[1])->report("all/1", Status(Code::aborted, "rank 1 was interrupted"));
  (*ranks[1])->report("all/2", Status(Code::aborted, "and once more"));
  EXPECT_THAT(decisions(ranks, {0, 1}),
              ElementsAre("all/1: ABORTED: rank 1 was interrupted", "all/1: ABORTED: rank 1 was interrupted"));
  EXPECT_THAT(decisions(ranks, {0, 1}), ElementsAre("all/2: ABORTED: and once more", "all/2: ABORTED: and once more"));
}

TEST(Reports, KeepOperationPhaseAndGroup) {
  RunningCoordinator coordinator(options_for(2));
  auto ranks = join_all(coordinator->address(), 2);
  (*ranks[1])->report("c", Status(Code::timeout, "late").during("allreduce 'grad'", "ring, step 1", "all"));
  const auto event = ranks[0]->next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->why.error().operation, "allreduce 'grad'");
  EXPECT_EQ(event->why.error().phase, "ring, step 1");
  EXPECT_EQ(event->why.error().group, "all");
}

// ---- Queries for late ranks ----

TEST(Queries, ReturnOneAnswerOfEachQueriedRank) {
  RunningCoordinator coordinator(options_for(3));
  auto ranks = join_all(coordinator->address(), 3);
  (*ranks[2])->query_progress("all comm 0", 5, {0, 1}, 60'000'000'000);
  for (const std::size_t replying : {0, 1}) {
    const auto query = ranks[replying]->next_event();
    ASSERT_TRUE(query);
    EXPECT_EQ(query->kind, CoordinatorEvent::Kind::progress_query);
    EXPECT_EQ(query->rank, 2);
    EXPECT_EQ(query->comm, "all comm 0");
    (*ranks[replying])->reply_progress(*query, replying == 0 ? -1 : 41, replying == 1);
    const auto answer = ranks[2]->next_event();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->kind, CoordinatorEvent::Kind::progress_reply);
    EXPECT_EQ(answer->rank, static_cast<int>(replying));
    EXPECT_EQ(answer->comm, "all comm 0");
    EXPECT_EQ(answer->query, 5u);
    EXPECT_EQ(answer->begun, replying == 0 ? -1 : 41);
    EXPECT_EQ(answer->waiting, replying == 1);
  }
}

TEST(Queries, WithATooLongCommunicatorNameAreNotSent) {
  RunningCoordinator coordinator(options_for(2));
  auto ranks = join_all(coordinator->address(), 2);
  (*ranks[0])->query_progress(std::string(10'000, 'x'), 1, {1}, 0);
  (*ranks[0])->query_progress("short", 2, {1}, 0);
  const auto query = ranks[1]->next_event();
  ASSERT_TRUE(query);
  EXPECT_EQ(query->comm, "short");
}

// ---- The end of the coordinator ----

TEST(CoordinatorsEnd, InGoodOrderNamesTheServingProcess) {
  RunningCoordinator coordinator(options_for(2));
  auto ranks = join_all(coordinator->address(), 2);
  coordinator.stop();
  for (auto& rank : ranks) {
    const auto event = rank->next_event();
    ASSERT_TRUE(event);
    EXPECT_EQ(event->kind, CoordinatorEvent::Kind::coordinator_lost);
    EXPECT_EQ(event->why.text(), "the coordinator (farandole run on host-a) has ended");
  }
  EXPECT_EQ((*ranks[0])->publish("k", "v").text(), "the coordinator (farandole run on host-a) has ended");
  EXPECT_EQ((*ranks[0])->fetch("k", Deadline::never()).status().text(),
            "the coordinator (farandole run on host-a) has ended");
  (*ranks[0])->probe({1});
  (*ranks[0])->report("c", kStuck);
}

TEST(CoordinatorsEnd, IsNoEventForARankThatHasLeft) {
  RunningCoordinator coordinator(options_for(2));
  auto ranks = join_all(coordinator->address(), 2);
  (*ranks[0])->leave();
  ASSERT_TRUE(ranks[1]->next_event());
  coordinator.stop();
  const auto event = ranks[1]->next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, CoordinatorEvent::Kind::coordinator_lost);
  ranks[0]->stop_driving();
  EXPECT_EQ(ranks[0]->waiting_events(), 0u);
  EXPECT_EQ((*ranks[0])->publish("k", "v").code(), Code::shut_down);
}

TEST(CoordinatorsEnd, WaitsForARankThatHasNotReadIt) {
  RunningCoordinator coordinator(options_for(2));
  auto ranks = join_all(coordinator->address(), 2);
  ranks[1]->stop_driving();
  const int64_t began = now_ns();
  std::thread ending([&] {
    coordinator->stop(20);
    coordinator.stop();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(ranks[0]->waiting_events(), 0u) << "it has ended although rank 1 has not read that";
  ranks[1]->disconnect();
  ending.join();
  EXPECT_LT(now_ns() - began, 18'000'000'000) << "it waits for a rank whose connection is closed";
  EXPECT_EQ(first_text(ranks[0]->next_event()),
            "rank 1 on host-b (process 101) was lost: its process ended or its "
            "connection broke");
  EXPECT_EQ(first_text(ranks[0]->next_event()), "the coordinator (farandole run on host-a) has ended");
}

TEST(CoordinatorsEnd, LeavesARankThatDoesNotReadAfterItsPatience) {
  RunningCoordinator coordinator(options_for(1));
  auto rank = join(coordinator->address(), 0, 1);
  rank->stop_driving();
  coordinator->stop(0.2);
  coordinator.stop();
}

TEST(CoordinatorsEnd, WakesWaitingCalls) {
  RunningCoordinator coordinator(options_for(2));
  auto rank = join(coordinator->address(), 0, 2);
  std::thread waiting([&] { EXPECT_EQ((*rank)->wait_for_all(Deadline::never()).status().code(), Code::shut_down); });
  std::thread fetching([&] { EXPECT_EQ((*rank)->fetch("k", Deadline::never()).status().code(), Code::shut_down); });
  EXPECT_TRUE((*rank)->publish("x", "y").ok());
  coordinator.stop();
  waiting.join();
  fetching.join();
}

// ---- The end of a rank ----

TEST(Leaving, WaitsForTheConfirmation) {
  RunningCoordinator coordinator(options_for(2));
  auto zero = join(coordinator->address(), 0, 2);
  auto one = CoordinatorClient::connect(coordinator->address(), kKey, hello_of(1, 2), Deadline::after_seconds(20));
  ASSERT_TRUE(one.ok());
  (*one)->leave();
  EXPECT_TRUE((*one)->wait_until_left(Deadline::after_seconds(20)));
  one->reset();
  const auto event = zero->next_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, CoordinatorEvent::Kind::left);
}

TEST(Leaving, EndsWithTheCoordinator) {
  auto coordinator = std::make_unique<RunningCoordinator>(options_for(1));
  auto client =
      CoordinatorClient::connect((*coordinator)->address(), kKey, hello_of(0, 1), Deadline::after_seconds(20));
  ASSERT_TRUE(client.ok());
  coordinator.reset();  // after a second: the client reads nothing
  (*client)->leave();
  EXPECT_TRUE((*client)->wait_until_left(Deadline::after_seconds(20)));
}

// ---- Real processes: forked before any thread exists, so that they inherit no connections of this process ----

// Joins as a rank and answers the coordinator until it is killed or the coordinator ends.
[[noreturn]] void live_as(int rank, int size, const std::string& rendezvous, bool serves, double lost_after_s) {
  std::unique_ptr<Coordinator> coordinator;
  std::thread server;
  if (serves) {
    CoordinatorOptions options = options_for(size, rendezvous);
    options.job_key = kKey;
    options.server_name = "rank 0 on host-a";
    options.lost_after_s = lost_after_s;
    coordinator = Coordinator::open(options).take();
    server = std::thread([&] { coordinator->run(); });
  }
  const HostFacts facts = host_facts();
  CoordinatorClient::Hello hello{rank, size, "host-" + std::string(1, static_cast<char>('a' + rank)), facts.boot_id,
                                 facts.process_id};
  auto client = CoordinatorClient::connect(rendezvous, kKey, hello, Deadline::after_seconds(60));
  if (!client.ok()) ::_exit(3);
  while (wait_readable((*client)->wake_fd(), Deadline::after_seconds(60))) {
    (*client)->progress();
    for (const CoordinatorEvent& event : (*client)->take_events()) {
      if (event.kind == CoordinatorEvent::Kind::coordinator_lost) ::_exit(0);
    }
  }
  ::_exit(4);
}

class Child {
 public:
  Child(int rank, int size, const std::string& rendezvous, bool serves = false, double lost_after_s = 10)
      : pid_(::fork()) {
    if (pid_ == 0) live_as(rank, size, rendezvous, serves, lost_after_s);
  }
  ~Child() { kill_now(); }
  int pid() const { return pid_; }
  // Returns when the process has stopped.
  void stop() {
    signal(SIGSTOP);
    siginfo_t info{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED), 0);
  }
  void signal(int number) { ::kill(pid_, number); }
  int exit_code() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  void kill_now() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

std::string fresh_name() { return "unix:@farandole-test-" + random_hex(8); }

TEST(Processes, KilledProcessIsLostAtOnce) {
  const std::string rendezvous = fresh_name();
  Child child(1, 3, rendezvous);
  const int pid = child.pid();
  RunningCoordinator coordinator(options_for(3, rendezvous));
  auto zero = join(rendezvous, 0, 3);
  auto two = join(rendezvous, 2, 3);
  ASSERT_TRUE((*zero)->wait_for_all(Deadline::after_seconds(60)).ok());
  const int64_t killed = now_ns();
  child.kill_now();
  const auto event = zero->next_event();
  const double milliseconds = static_cast<double>(now_ns() - killed) / 1e6;
  ASSERT_TRUE(event);
  std::printf("the loss of a process killed with -9 was detected after %.2f ms\n", milliseconds);
  const std::string text =
      "rank 1 on host-b (process " + std::to_string(pid) + ") was lost: its process ended or its connection broke";
  EXPECT_EQ(event->kind, CoordinatorEvent::Kind::lost);
  EXPECT_EQ(event->why.text(), text);
  EXPECT_EQ(first_text(two->next_event()), text);
}

TEST(Processes, ProbeDetectsAStoppedProcess) {
  const std::string rendezvous = fresh_name();
  Child child(1, 2, rendezvous);
  CoordinatorOptions options = options_for(2, rendezvous);
  options.lost_after_s = 0.3;
  RunningCoordinator coordinator(options);
  auto zero = join(rendezvous, 0, 2);
  ASSERT_TRUE((*zero)->wait_for_all(Deadline::after_seconds(60)).ok());
  child.signal(SIGSTOP);
  const int64_t stopped = now_ns();
  (*zero)->probe({1});
  const auto event = zero->next_event();
  ASSERT_TRUE(event);
  std::printf("a stopped process was declared lost %.0f ms after the probe\n",
              static_cast<double>(now_ns() - stopped) / 1e6);
  EXPECT_EQ(event->why.text(), "rank 1 on host-b (process " + std::to_string(child.pid()) +
                                   ") was lost: it has not answered for 0.3 s (stopped, swapped out or cut off)");
}

TEST(Processes, AStoppedCoordinatorConfirmsNothing) {
  const std::string rendezvous = fresh_name();
  Child server(0, 2, rendezvous, true);
  auto client = CoordinatorClient::connect(rendezvous, kKey, hello_of(1, 2), Deadline::after_seconds(60));
  ASSERT_TRUE(client.ok());
  server.stop();
  (*client)->leave();
  EXPECT_FALSE((*client)->wait_until_left(Deadline::after_seconds(0.2)));
  server.signal(SIGCONT);
  EXPECT_TRUE((*client)->wait_until_left(Deadline::after_seconds(20)));
  client->reset();
}

TEST(Processes, AKilledCoordinatorNeedsNoGoodbye) {
  const std::string rendezvous = fresh_name();
  Child server(0, 2, rendezvous, true);
  auto client = CoordinatorClient::connect(rendezvous, kKey, hello_of(1, 2), Deadline::after_seconds(60));
  ASSERT_TRUE(client.ok());
  server.kill_now();
  (*client)->leave();
  EXPECT_TRUE((*client)->wait_until_left(Deadline::after_seconds(20)));
}

// Probes no rank, as a rank that waits does, until the next event arrives.
std::optional<CoordinatorEvent> event_while_waiting(Rank& rank) {
  for (int i = 0; i < 1000 && rank.waiting_events() == 0; ++i) {
    rank->probe({});
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return rank.next_event();
}

std::unique_ptr<Rank> join_with(const CoordinatorClient::Limits& limits, const std::string& rendezvous, int rank,
                                int size) {
  auto link = CoordinatorClient::connect(rendezvous, kKey, hello_of(rank, size), Deadline::after_seconds(20), limits);
  return link.ok() ? std::make_unique<Rank>(link.take()) : nullptr;
}

TEST(Processes, StopOfTheServingRankZeroIsAWarningThenALossWithOneText) {
  const std::string rendezvous = fresh_name();
  Child server(0, 3, rendezvous, true, 0.6);
  const std::string name = "rank 0 on host-a (process " + std::to_string(server.pid()) + ")";
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 1; rank < 3; ++rank) {
    ranks.push_back(
        join_with({.silence_warning_s = 0.2, .lost_after_s = 0.6, .suspect_after_s = 0.01}, rendezvous, rank, 3));
    ASSERT_TRUE(ranks.back());
  }
  ASSERT_TRUE((*ranks[0])->wait_for_all(Deadline::after_seconds(60)).ok());
  for (int i = 0; i < 100; ++i) (*ranks[0])->probe({});
  EXPECT_TRUE((*ranks[0])->publish("k", "v").ok()) << "a coordinator that answers is not silent";
  server.signal(SIGSTOP);
  for (auto& rank : ranks) {
    const auto silent = event_while_waiting(*rank);
    ASSERT_TRUE(silent);
    EXPECT_EQ(silent->kind, CoordinatorEvent::Kind::silent);
    EXPECT_EQ(silent->why.text(),
              name +
                  ", which serves the coordinator, has not answered for 0.2 s (stopped, swapped out "
                  "or cut off); after 0.6 s it is lost (FARANDOLE_LOST_AFTER_S)");
    const auto lost = event_while_waiting(*rank);
    ASSERT_TRUE(lost);
    EXPECT_EQ(lost->kind, CoordinatorEvent::Kind::lost);
    EXPECT_EQ(lost->rank, 0);
    EXPECT_EQ(lost->why.text(), name +
                                    " was lost: it served the rendezvous and has not answered for 0.6 s (stopped, "
                                    "swapped out or cut off)");
    const auto end = rank->next_event();
    ASSERT_TRUE(end);
    EXPECT_EQ(end->kind, CoordinatorEvent::Kind::coordinator_lost);
  }
  // When rank 0 continues, it receives the same decision and ends.
  server.signal(SIGCONT);
  EXPECT_EQ(server.exit_code(), 0);
}

// Rank 0 serves the coordinator in a process of its own, and rank 1 has joined. A silence counts soon.
struct RankAndServer {
  const std::string rendezvous = fresh_name();
  Child server{0, 2, rendezvous, true, 0.6};
  const std::unique_ptr<Rank> rank =
      join_with({.silence_warning_s = 0.2, .lost_after_s = 0.6, .suspect_after_s = 0.01}, rendezvous, 1, 2);
  bool complete() const { return rank && (*rank)->wait_for_all(Deadline::after_seconds(60)).ok(); }
};

// A rank whose communicator has failed waits for the decision and for nothing else.
TEST(Processes, RankThatWaitsForADecisionFindsTheStopOfTheServingRank) {
  RankAndServer job;
  const std::unique_ptr<Rank>& rank = job.rank;
  ASSERT_TRUE(job.complete());
  EXPECT_EQ((*rank)->probe_watched(now_ns()), kNever) << "there is nothing to wait for";
  (*rank)->report("a", Status(Code::transport, "decided"));
  ASSERT_EQ(first_text(rank->next_event()), "decided");
  EXPECT_EQ((*rank)->probe_watched(now_ns()), kNever) << "the decision has arrived";
  job.server.stop();
  (*rank)->report("b", Status(Code::transport, "a peer has left"));
  EXPECT_TRUE((*rank)->has_open_probe());
  for (int i = 0; i < 1000 && rank->waiting_events() < 2 && (*rank)->probe_watched(now_ns()) != kNever; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(rank->next_event()->kind, CoordinatorEvent::Kind::silent);
  const auto lost = rank->next_event();
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->kind, CoordinatorEvent::Kind::lost);
  EXPECT_EQ(lost->rank, 0);
  EXPECT_EQ(rank->next_event()->kind, CoordinatorEvent::Kind::coordinator_lost);
  EXPECT_EQ((*rank)->probe_watched(now_ns()), kNever);
  EXPECT_FALSE((*rank)->has_open_probe());
}

// A publish waits for no other rank, and no set-up need be watched meanwhile.
TEST(Processes, RankThatWaitsForAReplyFindsTheStopOfTheServingRank) {
  RankAndServer job;
  const std::unique_ptr<Rank>& rank = job.rank;
  ASSERT_TRUE(job.complete());
  job.server.stop();
  const Status published = (*rank)->publish("k", "v");
  EXPECT_EQ(published.code(), Code::peer_lost);
  EXPECT_EQ(published.error().culprit_rank, 0);
  EXPECT_EQ(rank->next_event()->kind, CoordinatorEvent::Kind::silent);
  EXPECT_EQ(rank->next_event()->kind, CoordinatorEvent::Kind::lost);
}

TEST(Processes, ServingRankThatContinuesInTimeIsNotLost) {
  const std::string rendezvous = fresh_name();
  Child server(0, 2, rendezvous, true);
  auto rank = join_with({.silence_warning_s = 0.2, .lost_after_s = 60, .suspect_after_s = 0.01}, rendezvous, 1, 2);
  ASSERT_TRUE(rank);
  ASSERT_TRUE((*rank)->wait_for_all(Deadline::after_seconds(60)).ok());
  server.signal(SIGSTOP);
  const auto silent = event_while_waiting(*rank);
  ASSERT_TRUE(silent);
  EXPECT_EQ(silent->kind, CoordinatorEvent::Kind::silent);
  server.signal(SIGCONT);
  const auto back = rank->next_event();
  ASSERT_TRUE(back);
  EXPECT_EQ(back->kind, CoordinatorEvent::Kind::answers_again);
  EXPECT_THAT(back->why.text(), ::testing::HasSubstr(", which serves the coordinator, answers again after "));
  EXPECT_TRUE((*rank)->publish("k", "v").ok());
}

// ---- Set-ups ----

TEST(SetUps, LossOfARankEndsTheWaitAtOnce) {
  RunningCoordinator coordinator(options_for(3));
  auto ranks = join_all(coordinator->address(), 3);
  const auto watch = (*ranks[0])->watch({1, 2}).take();
  EXPECT_NE((*ranks[0])->probe_watched(now_ns()), kNever);
  EXPECT_TRUE(watch->why().ok());
  const auto pipe = Event::make().take();  // never rung
  const Deadline deadline = Deadline::after_seconds(60).interrupted_by(watch->interrupt());
  const int64_t began = now_ns();
  std::thread fetching([&] { EXPECT_EQ((*ranks[0])->fetch("k", deadline).status().code(), Code::timeout); });
  std::thread reading([&] { EXPECT_FALSE(wait_readable(pipe.fd(), deadline)); });
  ranks[2]->disconnect();
  fetching.join();
  reading.join();
  EXPECT_LT(now_ns() - began, 30 * int64_t{1'000'000'000});
  EXPECT_EQ(watch->why().text(), "rank 2 on host-c (process 102) was lost: its process ended or its connection broke");
  // A rank that is already gone is found when a watch begins.
  EXPECT_FALSE((*ranks[0])->watch({2}).take()->why().ok());
  EXPECT_TRUE((*ranks[0])->watch({1}).take()->why().ok());
}

TEST(SetUps, RankThatLeavesGivesTheOthersTimeToFinish) {
  RunningCoordinator coordinator(options_for(2));
  auto ranks = join_all(coordinator->address(), 2);
  const auto watch = (*ranks[0])->watch({1}).take();
  const Deadline deadline = Deadline::never().interrupted_by(watch->interrupt());
  (*ranks[1])->leave();
  ASSERT_TRUE(ranks[0]->next_event());
  EXPECT_FALSE(deadline.is_never());
  EXPECT_GT(deadline.moment_ns(), now_ns() - SetupWatch::kLeftGrace_ns);
  const auto pipe = Event::make().take();
  EXPECT_FALSE(wait_readable(pipe.fd(), deadline));
  EXPECT_EQ(watch->why().text(), "rank 1 (host-b) has shut down");
}

// The other ranks leave to make a world without the lost one. A rank that is later than they must report the loss.
TEST(SetUps, ALossIsReportedAndNotARankThatLeftBecauseOfIt) {
  RunningCoordinator coordinator(options_for(3));
  auto ranks = join_all(coordinator->address(), 3);
  ranks[2]->disconnect();
  ASSERT_TRUE(ranks[0]->next_event());
  (*ranks[1])->leave();
  ASSERT_TRUE(ranks[0]->next_event());
  const auto watch = (*ranks[0])->watch({1, 2}).take();
  EXPECT_EQ(watch->why().text(), "rank 2 on host-c (process 102) was lost: its process ended or its connection broke");
  EXPECT_LE(watch->interrupt().moment_ns.load(), now_ns());  // it gets no time to finish
}

TEST(Processes, LossOfTheServingRankZeroHasTheSameTextOnAllRanks) {
  const std::string rendezvous = fresh_name();
  Child server(0, 4, rendezvous, true);
  const int pid = server.pid();
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 1; rank < 4; ++rank) ranks.push_back(join(rendezvous, rank, 4));
  ASSERT_TRUE((*ranks[2])->wait_for_all(Deadline::after_seconds(60)).ok());
  server.kill_now();
  for (auto& rank : ranks) {
    const auto lost = rank->next_event();
    ASSERT_TRUE(lost);
    EXPECT_EQ(lost->kind, CoordinatorEvent::Kind::lost);
    EXPECT_EQ(lost->rank, 0);
    EXPECT_EQ(lost->why.text(), "rank 0 on host-a (process " + std::to_string(pid) +
                                    ") was lost: it served the rendezvous and its connection closed");
    const auto coordinator = rank->next_event();
    ASSERT_TRUE(coordinator);
    EXPECT_EQ(coordinator->kind, CoordinatorEvent::Kind::coordinator_lost);
    EXPECT_EQ(coordinator->why.text(), lost->why.text());
  }
}

TEST(SetUps, FailureOfAMemberEndsTheWaitOfTheOthers) {
  RunningCoordinator coordinator(options_for(3));
  auto ranks = join_all(coordinator->address(), 3);
  const auto watch = (*ranks[0])->watch({1, 2}, "c").take();
  const auto other = (*ranks[0])->watch({1, 2}, "another").take();
  (*ranks[1])->report("c", Status::blame(1, "host-b", Code::resource, "rank 1 is short of descriptors"));
  ASSERT_TRUE(wait_readable(watch->interrupt().fd, Deadline::after_seconds(20)));
  EXPECT_EQ(watch->why().text(), "rank 1 is short of descriptors");
  EXPECT_TRUE(other->why().ok());
  // Rank 2 begins when the decision has arrived there.
  ASSERT_TRUE(ranks[2]->next_event());
  EXPECT_EQ((*ranks[2])->watch({0, 1}, "c").take()->why().text(), "rank 1 is short of descriptors");
}

}  // namespace
}  // namespace fdl
