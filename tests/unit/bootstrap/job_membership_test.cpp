// Tests of JobMembership, the decisions of the coordinator, message by message and with a fake clock.
#include "bootstrap/coordinator/job_membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace fdl {
namespace {

using ::testing::_;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using Kind = CoordinatorMessage::Kind;

constexpr int64_t kSecond = 1'000'000'000;

// Rank r is peer 10 + r. sent() formats messages as "rank:kind", followed by the text of a failure.
class JobMembershipTest : public ::testing::Test {
 protected:
  explicit JobMembershipTest(int size = 3) : membership_(options(size), "here", {}) {}

  static CoordinatorOptions options(int size) {
    CoordinatorOptions options;
    options.size = size;
    options.start_timeout_s = 30;
    options.lost_after_s = 1;
    options.server_name = "test";
    return options;
  }
  void arrive(int rank, int64_t now = 0) {
    EXPECT_TRUE(membership_.greet(peer(rank), {rank, 3, "h" + std::to_string(rank), "boot", 100 + rank}, now));
  }
  void arrive_with(int rank, std::vector<CompatibilitySetting> settings) {
    EXPECT_TRUE(membership_.greet(peer(rank),
                                  {rank, 3, "h" + std::to_string(rank), "boot", 100 + rank, std::move(settings)}, 0));
  }
  void wait_for_all(int rank) {
    CoordinatorMessage wait{.kind = Kind::wait};
    wait.number = 1000 * kSecond;
    EXPECT_TRUE(receive(rank, wait).ok());
  }
  void all_arrive() {
    for (int rank = 0; rank < 3; ++rank) arrive(rank);
    membership_.take_outgoing();
  }
  // Ranks of this version, which answer a set_up_query.
  void all_arrive_anew() {
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(membership_.greet(peer(rank), {rank, 3, "h" + std::to_string(rank), "boot", 100 + rank}, 0,
                                    CoordinatorMessage::kMessages));
    }
    membership_.take_outgoing();
  }
  // `from` lacks `culprit` in a set-up of all ranks.
  Status late(int from, int culprit, std::vector<int> others, int64_t now = 0, Code code = Code::timeout) {
    CoordinatorMessage message{.kind = Kind::report, .ranks = std::move(others), .key = "a"};
    message.why = Status::blame(culprit, "h" + std::to_string(culprit), code,
                                "no connection with rank " + std::to_string(culprit));
    return receive(from, message, now);
  }
  void has_begun(int rank, bool yes, const std::string& comm = "a") {
    EXPECT_TRUE(receive(rank, {.kind = Kind::set_up_reply, .number = yes ? 1 : 0, .key = comm}).ok());
  }
  void lose_after(double seconds) { rebuild(seconds, {}); }
  // The process of rank 0 serves the coordinator.
  void serve_from_rank_0() { rebuild(10, {0, 3, "h0", "boot", 100}); }
  void rebuild(double lost_after_s, const CoordinatorClient::Hello& process) {
    CoordinatorOptions changed = options(3);
    changed.lost_after_s = lost_after_s;
    membership_ = JobMembership(changed, "here", process);
  }
  static JobMembership::Peer peer(int rank) { return static_cast<JobMembership::Peer>(10 + rank); }
  Status receive(int rank, CoordinatorMessage message, int64_t now = 0) {
    return membership_.receive(peer(rank), std::move(message), now);
  }
  void probe(int from, std::vector<int> ranks, int64_t now) {
    CoordinatorMessage message{.kind = Kind::probe};
    message.ranks = std::move(ranks);
    EXPECT_TRUE(receive(from, message, now).ok());
  }
  void pong(int from, uint64_t id, int64_t now) {
    CoordinatorMessage message{.kind = Kind::pong};
    message.id = id;
    EXPECT_TRUE(receive(from, message, now).ok());
  }
  void report(int from, const std::string& comm, int culprit, int64_t now, Code code = Code::transport) {
    CoordinatorMessage message{.kind = Kind::report};
    message.key = comm;
    message.why = Status::blame(culprit, "h", code, "stuck");
    EXPECT_TRUE(receive(from, message, now).ok());
  }
  Status query(int from, uint64_t id, std::vector<int> ranks, int64_t now, const std::string& comm = "c") {
    CoordinatorMessage message{.kind = Kind::progress_query};
    message.id = id;
    message.number = kSecond;  // the validity of the query
    message.ranks = std::move(ranks);
    message.key = comm;
    return receive(from, message, now);
  }
  void reply(int from, int querying_rank, uint64_t id, int64_t begun, const std::string& value = "") {
    CoordinatorMessage message{.kind = Kind::progress_reply};
    message.id = id;
    message.number = begun;
    message.rank = querying_rank;
    message.key = "c";
    message.value = value;
    EXPECT_TRUE(receive(from, message).ok());
  }
  std::vector<std::string> sent() {
    std::vector<std::string> lines;
    for (const JobMembership::Outgoing& one : membership_.take_outgoing()) {
      if (one.message->kind == Kind::probed) continue;  // EachProbeIsAnswered is about these
      std::string line = std::to_string(one.peer - 10) + ":" + name_of(one.message->kind);
      const CoordinatorMessage& message = *one.message;
      if (message.kind == Kind::relayed_query)
        line += " " + message.key + std::to_string(message.id) + " by " + std::to_string(message.rank);
      if (message.kind == Kind::answer) {
        line += " " + message.key + std::to_string(message.id) + " of " + std::to_string(message.rank) + ": " +
                std::to_string(message.number) + message.value;
      }
      if (message.kind == Kind::relayed_sends_query) line += " " + message.key + " of " + std::to_string(message.rank);
      if (message.kind == Kind::sends_answer) {
        line += " " + message.key + " of " + std::to_string(message.rank) + ": " + std::to_string(message.id) + " " +
                std::to_string(message.number);
      }
      if (message.kind == Kind::set_up_query) line += " " + message.key;
      if (message.kind == Kind::stalled) line += " " + message.value;
      if (one.message->kind == Kind::ping) line += " " + std::to_string(one.message->id);
      if (!one.message->why.ok()) line += " " + one.message->why.text();
      lines.push_back(line);
    }
    return lines;
  }
  static const char* name_of(Kind kind) {
    switch (kind) {
      case Kind::ping:
        return "ping";
      case Kind::lost:
        return "lost";
      case Kind::left:
        return "left";
      case Kind::reply:
        return "reply";
      case Kind::comm_failed:
        return "comm_failed";
      case Kind::welcome:
        return "welcome";
      case Kind::relayed_query:
        return "relayed";
      case Kind::answer:
        return "answer";
      case Kind::stalled:
        return "stalled";
      case Kind::set_up_query:
        return "set_up_query";
      case Kind::silent:
        return "silent";
      case Kind::answers_again:
        return "answers again";
      case Kind::relayed_sends_query:
        return "asks for sends";
      case Kind::sends_answer:
        return "sends";
      case Kind::job_reply:
        return "job reply";
      case Kind::coordinator_ends:
        return "coordinator ends";
      default:
        return "something else";
    }
  }

  JobMembership membership_;
};

TEST_F(JobMembershipTest, MergesProbesBeforeThePong) {
  all_arrive();
  probe(0, {1, 2}, 0);
  probe(2, {1}, kSecond / 2);
  EXPECT_THAT(sent(), ElementsAre("1:ping 1", "2:ping 1"));
  EXPECT_EQ(membership_.next().moment_ns(), kSecond * 8 / 10) << "the second probe does not extend the time";
  pong(1, 1, kSecond / 2);
  pong(2, 1, kSecond / 2);
  EXPECT_TRUE(membership_.next().is_never());
  membership_.tick(5 * kSecond);
  EXPECT_THAT(sent(), IsEmpty());
}

TEST_F(JobMembershipTest, SilentRankIsLostExactlyAfterItsTime) {
  all_arrive();
  probe(0, {1}, 0);
  sent();
  membership_.tick(kSecond - 1);
  EXPECT_THAT(sent(), IsEmpty());
  membership_.tick(kSecond);
  const std::string lost =
      "lost rank 1 on h1 (process 101) was lost: it has not answered for 1 s (stopped, swapped out or cut off)";
  EXPECT_THAT(sent(), ElementsAre("0:" + lost, "2:" + lost, "1:" + lost));
  EXPECT_THAT(membership_.take_hang_ups(), ElementsAre(peer(1)));
  EXPECT_TRUE(membership_.next().is_never());
  // Later messages of the lost rank and the end of its connection have no effect.
  pong(1, 1, 2 * kSecond);
  membership_.closed(peer(1));
  EXPECT_THAT(sent(), IsEmpty());
  EXPECT_TRUE(membership_.next().is_never());
}

TEST_F(JobMembershipTest, EachProbeIsAnswered) {
  all_arrive();
  for (const std::vector<int>& ranks : {std::vector<int>{}, std::vector<int>{1}, std::vector<int>{1}}) {
    probe(0, ranks, 0);
    int answers = 0;
    for (const auto& [to, message] : membership_.take_outgoing()) {
      if (message->kind == Kind::probed && to == peer(0)) ++answers;
    }
    EXPECT_EQ(answers, 1);
  }
}

// As after a pause of the coordinator, in which the ranks that wait have probed on.
TEST_F(JobMembershipTest, TheProbesOfOneRankInOneRoundHaveOneAnswer) {
  all_arrive();
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 25; ++i) probe(0, {}, 0);
    probe(1, {}, 0);
    std::map<JobMembership::Peer, int> answers;
    for (const auto& [to, message] : membership_.take_outgoing()) {
      if (message->kind == Kind::probed) ++answers[to];
    }
    EXPECT_THAT(answers, ElementsAre(Pair(peer(0), 1), Pair(peer(1), 1)));
  }
}

TEST_F(JobMembershipTest, AllRanksAreWarnedOfASilentRankOnceAndOfItsReturn) {
  lose_after(10);
  all_arrive();
  probe(0, {1}, 0);
  sent();
  EXPECT_EQ(membership_.next().moment_ns(), kSecond);
  membership_.tick(kSecond);
  const std::string silent =
      "silent rank 1 on h1 (process 101) has not answered for 1 s (stopped, swapped out or cut off); after 10 s it is "
      "lost (FARANDOLE_LOST_AFTER_S)";
  EXPECT_THAT(sent(), ElementsAre("0:" + silent, "1:" + silent, "2:" + silent));
  EXPECT_EQ(membership_.next().moment_ns(), kSecond * 98 / 10) << "shortly before the limit";
  membership_.tick(5 * kSecond);
  EXPECT_THAT(sent(), IsEmpty());
  pong(1, 1, 5 * kSecond + kSecond / 2);
  const std::string back = "answers again rank 1 on h1 (process 101) answers again after 5.5 s";
  EXPECT_THAT(sent(), ElementsAre("0:" + back, "1:" + back, "2:" + back));
  EXPECT_TRUE(membership_.next().is_never());
  probe(0, {1}, 6 * kSecond);
  membership_.tick(7 * kSecond);
  EXPECT_THAT(sent(), ElementsAre("1:ping 2", "0:" + silent, "1:" + silent, "2:" + silent));
  membership_.tick(kSecond * 158 / 10);
  EXPECT_EQ(membership_.next().moment_ns(), 16 * kSecond);
  membership_.tick(16 * kSecond);
  EXPECT_EQ(sent().size(), 3u) << "it is lost";
}

TEST_F(JobMembershipTest, RanksThatBecomeSilentTogetherShareAWarning) {
  lose_after(10);
  all_arrive();
  probe(0, {1, 2}, 0);
  sent();
  membership_.tick(kSecond);
  EXPECT_THAT(sent(),
              ElementsAre(EndsWith("silent ranks 1 and 2 on h1 and h2 have not answered for 1 s (stopped, swapped out "
                                   "or cut off); after 10 s they are lost (FARANDOLE_LOST_AFTER_S)"),
                          _, _));
  pong(1, 1, 2 * kSecond);
  EXPECT_THAT(sent(), ElementsAre(EndsWith("rank 1 on h1 (process 101) answers again after 2.0 s"), _, _));
  pong(2, 1, 2 * kSecond);
  EXPECT_THAT(sent(), IsEmpty()) << "so soon after an announcement";
  EXPECT_EQ(membership_.next().moment_ns(), 2 * kSecond + 3 * 200'000);
  membership_.tick(2 * kSecond + 3 * 200'000);
  EXPECT_THAT(sent(), ElementsAre(EndsWith("rank 2 on h2 (process 102) answers again after 2.0 s"), _, _));
}

TEST_F(JobMembershipTest, ASilenceThatEndsBeforeItsAnnouncementIsNone) {
  lose_after(10);
  all_arrive();
  probe(0, {1}, 0);
  probe(0, {2}, 100'000);
  sent();
  membership_.tick(kSecond);
  EXPECT_EQ(sent().size(), 3u) << "the warning of rank 1";
  membership_.tick(kSecond + 100'000);
  pong(2, 1, kSecond + 200'000);
  membership_.tick(kSecond + 3 * 200'000);
  EXPECT_THAT(sent(), IsEmpty());
}

TEST_F(JobMembershipTest, TimeInWhichTheCoordinatorDidNotRunIsNoSilence) {
  all_arrive();
  probe(0, {1}, 0);
  membership_.tick(kSecond / 4);
  sent();
  // The coordinator should have run at 1 s. It is stopped until 60 s.
  membership_.tick(60 * kSecond);
  EXPECT_THAT(sent(), IsEmpty()) << "no rank is lost";
  EXPECT_EQ(membership_.next().moment_ns(), 60 * kSecond + kSecond / 5) << "the pong may be on its way";
  membership_.tick(60 * kSecond + kSecond / 5);
  EXPECT_THAT(sent(), IsEmpty());
  membership_.tick(60 * kSecond + kSecond * 2 / 5);
  EXPECT_EQ(sent().size(), 3u) << "a rank that is silent afterwards is lost";
}

// Both are stopped from 0.1 s to 0.95 s, between two moments of the coordinator.
TEST_F(JobMembershipTest, PauseOfTheWholeMachineThatEndsShortlyBeforeTheLimitIsNoSilence) {
  rebuild(1, {});
  all_arrive();
  probe(0, {1}, 0);
  membership_.tick(kSecond / 10);
  sent();
  EXPECT_EQ(membership_.next().moment_ns(), kSecond * 8 / 10);
  membership_.tick(kSecond * 101 / 100);
  EXPECT_THAT(sent(), IsEmpty()) << "its pong is on its way";
  EXPECT_GE(membership_.next().moment_ns(), kSecond * 12 / 10);
}

TEST_F(JobMembershipTest, RankThatGivesUpOnAStoppedCoordinatorReportsTheLossOfItsRank) {
  for (const bool reads_others_first : {false, true}) {
    SCOPED_TRACE(reads_others_first);
    serve_from_rank_0();
    all_arrive();
    membership_.tick(kSecond);
    if (reads_others_first) membership_.tick(20 * kSecond - 1'000'000);
    sent();
    CoordinatorMessage message{.kind = Kind::gives_up};
    message.why = Status::blame(0, "h0", Code::peer_lost, "rank 0 was lost: silence");
    EXPECT_TRUE(receive(1, message, 20 * kSecond).ok());
    EXPECT_THAT(sent(), ElementsAre("2:left rank 0 was lost: silence", "2:lost rank 0 was lost: silence",
                                    "0:left rank 0 was lost: silence", "0:lost rank 0 was lost: silence"));
    EXPECT_THAT(membership_.take_hang_ups(), ElementsAre(peer(0)));
  }
}

TEST_F(JobMembershipTest, RankThatGivesUpOnACoordinatorThatRanWasCutOff) {
  serve_from_rank_0();
  all_arrive();
  // For other ranks.
  membership_.tick(16 * kSecond);
  membership_.tick(19 * kSecond);
  sent();
  CoordinatorMessage message{.kind = Kind::gives_up};
  message.why = Status::blame(0, "h0", Code::peer_lost, "rank 0 was lost: silence");
  EXPECT_TRUE(receive(1, message, 20 * kSecond).ok());
  const std::string lost = "lost rank 1 on h1 (process 101) was lost: it was cut off from the coordinator";
  EXPECT_THAT(sent(), ElementsAre("2:" + lost, "0:" + lost));
  EXPECT_FALSE(receive(2, {.kind = Kind::gives_up}, 20 * kSecond).ok()) << "without a reason";
}

// Its program may end the process, and the coordinator, at once.
TEST_F(JobMembershipTest, RankThatServesTheCoordinatorIsToldLast) {
  serve_from_rank_0();
  all_arrive();
  membership_.closed(peer(1));
  report(2, "c", 1, 0);
  const std::string why = "rank 1 on h1 (process 101) was lost: its process ended or its connection broke";
  EXPECT_THAT(sent(), ElementsAre("2:lost " + why, "2:comm_failed " + why, "0:lost " + why, "0:comm_failed " + why));
}

// The connection of each rank is written once, with all its messages: a ping of rank 0 that was queued before a
// decision must not take the decision along to rank 0 first.
TEST_F(JobMembershipTest, RankThatServesTheCoordinatorIsToldLastBehindItsEarlierMessages) {
  serve_from_rank_0();
  all_arrive();
  probe(1, {0}, 0);
  report(1, "c", 1, 0);
  EXPECT_THAT(sent(), ElementsAre("1:comm_failed stuck", "2:comm_failed stuck", "0:ping 1", "0:comm_failed stuck"));
}

TEST_F(JobMembershipTest, LimitOfTheStartCountsFromTheFirstArrival) {
  membership_.tick(100 * kSecond);
  EXPECT_TRUE(membership_.next().is_never()) << "no rank waits for others";
  arrive(0, 100 * kSecond);
  wait_for_all(0);
  sent();
  membership_.tick(130 * kSecond - 1);
  EXPECT_THAT(sent(), IsEmpty());
  membership_.tick(130 * kSecond);
  EXPECT_EQ(sent().size(), 1u);
}

// Rank 1 got the failure of 'a' and left. Rank 2 waits for it in 'b', and knows of it only as the rank that has left.
TEST_F(JobMembershipTest, DepartureAfterAFailureNamesIt) {
  for (int rank = 0; rank < 3; ++rank) arrive(rank);
  CoordinatorMessage report{.kind = Kind::report};
  report.key = "a";
  report.why = Status::blame(0, "h0", Code::resource, "rank 0 (h0): no descriptor is left");
  EXPECT_TRUE(receive(0, report).ok());
  EXPECT_TRUE(receive(1, {.kind = Kind::leave}).ok());
  sent();
  this->report(2, "b", 1, 0);
  EXPECT_THAT(sent(), Contains(EndsWith("rank 1 (h1) has shut down; shortly before, communicator 'a' had failed: "
                                        "rank 0 (h0): no descriptor is left")));
}

// Only the coordinator's clock decides this, so all ranks report the loss with the same text.
TEST_F(JobMembershipTest, NewsSayWhetherTheyCameShortlyAfterAFailure) {
  for (const int64_t after_ns : {int64_t{0}, kShortlyAfter_ns, kShortlyAfter_ns + 1}) {
    lose_after(10);
    all_arrive();
    CoordinatorMessage report{.kind = Kind::report};
    report.key = "a";
    report.why = Status::blame(0, "h0", Code::resource, "rank 0 (h0): no descriptor is left");
    membership_.tick(kSecond);
    EXPECT_TRUE(receive(0, report, kSecond).ok());
    membership_.tick(kSecond + after_ns);
    membership_.take_outgoing();
    membership_.closed(peer(1));
    EXPECT_TRUE(receive(2, {.kind = Kind::leave}, kSecond + after_ns).ok());
    membership_.tick(kSecond + after_ns + kSecond);
    std::map<std::pair<Kind, int>, int64_t> numbers;
    for (const JobMembership::Outgoing& one : membership_.take_outgoing()) {
      if (one.peer == peer(0)) numbers[{one.message->kind, one.message->rank}] = one.message->number;
    }
    const int64_t expected = after_ns <= kShortlyAfter_ns ? CoordinatorMessage::kAfterFailure : 0;
    EXPECT_EQ((numbers.at({Kind::lost, 1})), expected) << after_ns;
    // A departure may be announced later than it came.
    if (after_ns == kShortlyAfter_ns) continue;
    EXPECT_EQ((numbers.at({Kind::left, 2})), expected) << after_ns;
  }
}

// Without the report the others could only say that rank 1 has shut down.
TEST_F(JobMembershipTest, ReportBeforeAllHaveArrivedIsTheReasonOfTheFailedStart) {
  arrive(0);
  wait_for_all(0);
  arrive(1);
  sent();
  CoordinatorMessage report{.kind = Kind::report};
  report.key = "group all";
  report.why = Status::blame(1, "h1", Code::resource, "rank 1 (h1): no descriptor is left");
  EXPECT_TRUE(receive(1, report).ok());
  EXPECT_THAT(sent(), Contains("0:reply rank 1 (h1): no descriptor is left"));
  EXPECT_TRUE(receive(1, {.kind = Kind::leave}).ok());
  sent();
  EXPECT_FALSE(membership_.greet(peer(2), {2, 3, "h2", "boot", 102}, 0));
  EXPECT_THAT(sent(), ElementsAre("2:something else the job did not start: rank 1 (h1): no descriptor is left"));
}

// A launcher knows when the process of a rank ends that never came.
TEST_F(JobMembershipTest, EndOfAnAbsentRankFailsTheStart) {
  arrive(0);
  wait_for_all(0);
  sent();
  const Status why = Status::blame(2, "h2", Code::peer_lost, "rank 2 ended");
  EXPECT_TRUE(membership_.process_ended(2, why).ok());
  EXPECT_THAT(sent(), ElementsAre("0:reply rank 2 ended"));
  EXPECT_FALSE(membership_.greet(peer(1), {1, 3, "h1", "boot", 101}, 0));
  EXPECT_THAT(sent(), ElementsAre("1:something else the job did not start: rank 2 ended"));
}

TEST_F(JobMembershipTest, EndOfARankFailsTheStartOfThoseThatArriveLater) {
  EXPECT_TRUE(membership_.process_ended(2, Status(Code::peer_lost, "rank 2 ended")).ok());
  EXPECT_THAT(sent(), IsEmpty());
  arrive(0);
  wait_for_all(0);
  EXPECT_THAT(sent(), ElementsAre("0:welcome", "0:reply rank 2 ended"));
}

TEST_F(JobMembershipTest, EndOfARankThatHasArrivedIsLeftToItsConnection) {
  for (int rank = 0; rank < 2; ++rank) arrive(rank);
  wait_for_all(0);
  sent();
  EXPECT_TRUE(membership_.process_ended(1, Status(Code::peer_lost, "rank 1 ended")).ok());
  EXPECT_THAT(sent(), IsEmpty());
  membership_.closed(peer(1));
  const std::string lost = " rank 1 on h1 (process 101) was lost: its process ended or its connection broke";
  EXPECT_THAT(sent(), ElementsAre("0:lost" + lost, "0:reply" + lost));
}

TEST_F(JobMembershipTest, EndOfAFormerProcessOfARankThatHasArrivedIsForgotten) {
  EXPECT_TRUE(membership_.process_ended(0, Status(Code::peer_lost, "rank 0 ended")).ok());
  for (int rank = 0; rank < 3; ++rank) arrive(rank);
  sent();
  wait_for_all(1);
  EXPECT_THAT(sent(), ElementsAre("1:reply"));
}

TEST_F(JobMembershipTest, ReportOfAnEndFromAnotherNodeIsAnswered) {
  EXPECT_TRUE(membership_.process_ended(2, Status(Code::peer_lost, "rank 2 ended"), peer(1)).ok());
  EXPECT_THAT(sent(), ElementsAre("1:job reply"));
}

TEST_F(JobMembershipTest, EndThatMakesNoSenseIsRefused) {
  const Status why(Code::peer_lost, "it ended");
  for (const int rank : {-1, 3}) EXPECT_FALSE(membership_.process_ended(rank, why).ok()) << rank;
  EXPECT_FALSE(membership_.process_ended(1, {}).ok());
}

TEST_F(JobMembershipTest, OneReportOfAStallReachesAllRanksAndTheServer) {
  std::vector<std::string> printed;
  CoordinatorOptions with_printer = options(3);
  with_printer.on_stall = [&](const std::string& text) { printed.push_back(text); };
  membership_ = JobMembership(with_printer, "here", {});
  all_arrive();
  const auto stall = [&](int from, const std::string& text, int64_t now) {
    CoordinatorMessage message{.kind = Kind::stall};
    message.key = "c";
    message.value = text;
    message.number = 20 * kSecond;
    return receive(from, message, now);
  };
  EXPECT_TRUE(stall(1, "rank 1: waits for rank 2", 0).ok());
  EXPECT_TRUE(stall(0, "rank 0: waits for rank 2", 1).ok());
  EXPECT_THAT(sent(), ElementsAre("0:stalled rank 1: waits for rank 2", "1:stalled rank 1: waits for rank 2",
                                  "2:stalled rank 1: waits for rank 2"));
  EXPECT_TRUE(stall(1, "again", 10 * kSecond).ok());
  EXPECT_EQ(sent().size(), 3u);
  EXPECT_TRUE(stall(0, "another stall, later", 30 * kSecond).ok());
  EXPECT_EQ(sent().size(), 3u);
  EXPECT_THAT(printed, ElementsAre("rank 1: waits for rank 2", "again", "another stall, later"));
  EXPECT_FALSE(stall(0, std::string(kMostStall + 1, 'x'), 0).ok());
}

TEST_F(JobMembershipTest, EarlierPongDoesNotDecideAReport) {
  all_arrive();
  probe(0, {1}, 0);
  report(2, "c", 1, kSecond / 4);
  EXPECT_THAT(sent(), ElementsAre("1:ping 1", "1:ping 2"));
  pong(1, 1, kSecond / 2);
  EXPECT_THAT(sent(), IsEmpty());
  membership_.closed(peer(1));
  const std::string why = "rank 1 on h1 (process 101) was lost: its process ended or its connection broke";
  EXPECT_THAT(sent(), ElementsAre("0:lost " + why, "2:lost " + why, "0:comm_failed " + why, "2:comm_failed " + why));
}

TEST_F(JobMembershipTest, PongDecidesAllEarlierReports) {
  all_arrive();
  report(0, "a", 1, 0);
  report(2, "b", 1, 0);
  report(2, "a", 0, 0);
  EXPECT_THAT(sent(), ElementsAre("1:ping 1", "1:ping 2"));
  pong(1, 2, 1);
  const std::string why = "comm_failed stuck; both processes are alive";
  EXPECT_THAT(sent(), ElementsAre("0:" + why, "1:" + why, "2:" + why, "0:" + why, "1:" + why, "2:" + why));
  report(0, "a", 2, 2);
  EXPECT_THAT(sent(), ElementsAre("0:" + why)) << "one decision for one communicator: its reporter gets it again";
}

TEST_F(JobMembershipTest, RankThatClosedAConnectionMayStillReportWhyAfterItsPong) {
  all_arrive();
  report(0, "a", 1, 0, Code::peer_lost);
  pong(1, 1, 1);
  membership_.tick(kSecond);
  EXPECT_THAT(sent(), ElementsAre("1:ping 1"));
  report(1, "a", 1, kSecond, Code::authentication);
  EXPECT_THAT(sent(), ElementsAre("0:comm_failed stuck", "1:comm_failed stuck", "2:comm_failed stuck"));
  membership_.tick(2 * kSecond);
  EXPECT_THAT(sent(), IsEmpty());
}

TEST_F(JobMembershipTest, RankThatClosedAConnectionAndReportsNothingIsBlamedAfterASecond) {
  all_arrive();
  report(0, "a", 1, 0, Code::peer_lost);
  pong(1, 1, 1);
  EXPECT_EQ(membership_.next().moment_ns(), kSecond + 1);
  report(2, "b", 1, 2, Code::peer_lost);
  pong(1, 2, kSecond / 2);  // prolongs nothing for "a"
  membership_.tick(kSecond);
  EXPECT_THAT(sent(), ElementsAre("1:ping 1", "1:ping 2"));
  membership_.tick(kSecond + 1);
  const std::string why = "comm_failed stuck; both processes are alive";
  EXPECT_THAT(sent(), ElementsAre("0:" + why, "1:" + why, "2:" + why));
  membership_.closed(peer(1));
  EXPECT_THAT(sent(), testing::Contains(
                          "0:comm_failed rank 1 on h1 (process 101) was lost: its process ended or its connection "
                          "broke"));
}

TEST_F(JobMembershipTest, ReportedRankThatLeavesBeforeItsPongHasShutDown) {
  all_arrive();
  report(0, "a", 1, 0);
  sent();
  EXPECT_TRUE(receive(1, {.kind = Kind::leave}).ok());
  EXPECT_THAT(sent(), ElementsAre("0:left rank 1 (h1) has shut down", "2:left rank 1 (h1) has shut down",
                                  "0:comm_failed rank 1 (h1) has shut down", "2:comm_failed rank 1 (h1) has shut down",
                                  "1:left rank 1 (h1) has shut down"));
  membership_.closed(peer(1));
  EXPECT_THAT(sent(), IsEmpty());
}

TEST_F(JobMembershipTest, OwnReportOfTheReportedRankIsDecided) {
  all_arrive();
  report(0, "a", 1, 0);  // it detected the end of rank 1 before the reason
  EXPECT_THAT(sent(), ElementsAre("1:ping 1"));
  report(2, "a", 2, 0);  // not the reported rank
  report(1, "a", 0, 0);  // names another rank, not itself
  EXPECT_THAT(sent(), IsEmpty());
  CoordinatorMessage abort{.kind = Kind::report};
  abort.key = "a";
  abort.why = Status::blame(1, "h1", Code::aborted, "rank 1 aborted");
  EXPECT_TRUE(receive(1, abort).ok());
  const std::string why = "comm_failed rank 1 aborted";
  EXPECT_THAT(sent(), ElementsAre("0:" + why, "1:" + why, "2:" + why));
  pong(1, 1, 1);
  EXPECT_THAT(sent(), IsEmpty());
}

// Rank 1 ended the communicator because of rank 2. Rank 0 has only rank 1's report, so no decision may follow from its
// own.
TEST_F(JobMembershipTest, ReportThatNamesAThirdRankExaminesThatRank) {
  all_arrive();
  report(0, "a", 1, 0);
  EXPECT_THAT(sent(), ElementsAre("1:ping 1"));
  report(1, "a", 2, 0);
  EXPECT_THAT(sent(), ElementsAre("2:ping 1"));
  pong(1, 1, 1);
  EXPECT_THAT(sent(), IsEmpty()) << "rank 1 is no longer examined";
  CoordinatorMessage own{.kind = Kind::report};
  own.key = "a";
  own.why = Status::blame(2, "h2", Code::internal, "rank 2 failed");
  EXPECT_TRUE(receive(2, own).ok());
  const std::string why = "comm_failed rank 2 failed";
  EXPECT_THAT(sent(), ElementsAre("0:" + why, "1:" + why, "2:" + why));
  pong(2, 1, 1);
  EXPECT_THAT(sent(), IsEmpty());
}

// Two ranks wait for each other. Rank 1 gives up and closes its connections, which rank 0 reports first.
TEST_F(JobMembershipTest, RankThatGaveUpIsBelievedBeforeTheOneThatFoundItsConnectionClosed) {
  all_arrive();
  const auto give_up = [&](const std::string& comm) {
    CoordinatorMessage late{.kind = Kind::report};
    late.key = comm;
    late.why = Status::blame(0, "h0", Code::timeout, "rank 0 is late");
    EXPECT_TRUE(receive(1, late, 2).ok());
  };
  const std::string why = "comm_failed rank 0 is late; both processes are alive";
  report(0, "before its pong", 1, 0, Code::peer_lost);
  give_up("before its pong");
  EXPECT_THAT(sent(), ElementsAre("1:ping 1"));
  pong(1, 1, 2);
  EXPECT_THAT(sent(), ElementsAre("0:" + why, "1:" + why, "2:" + why));
  report(0, "after its pong", 1, 0, Code::peer_lost);
  pong(1, 2, 2);
  EXPECT_THAT(sent(), ElementsAre("1:ping 2"));
  give_up("after its pong");
  EXPECT_THAT(sent(), ElementsAre("0:" + why, "1:" + why, "2:" + why));
}

// The connection between them broke: each is alive, and none knows more than the other.
TEST_F(JobMembershipTest, RanksThatNameEachOtherAreDecidedByTheFirstReport) {
  all_arrive();
  report(0, "a", 1, 0, Code::peer_lost);
  report(1, "a", 0, 0, Code::peer_lost);
  pong(1, 1, 1);
  membership_.tick(kSecond + 1);
  const std::string why = "comm_failed stuck; both processes are alive";
  EXPECT_THAT(sent(), ElementsAre("1:ping 1", "0:" + why, "1:" + why, "2:" + why));
}

// Rank 1 reports rank 2, whose report came before and names rank 0.
TEST_F(JobMembershipTest, EarlierReportOfARankCountsOnceItIsNamed) {
  all_arrive();
  report(0, "a", 1, 0, Code::peer_lost);
  CoordinatorMessage late{.kind = Kind::report};
  late.key = "a";
  late.why = Status::blame(0, "h0", Code::timeout, "rank 0 is late");
  EXPECT_TRUE(receive(2, late).ok());
  report(1, "a", 2, 0, Code::peer_lost);
  EXPECT_THAT(sent(), ElementsAre("1:ping 1"));
  pong(1, 1, 1);
  const std::string why = "comm_failed rank 0 is late; both processes are alive";
  EXPECT_THAT(sent(), ElementsAre("0:" + why, "1:" + why, "2:" + why));
}

// Rank 2 lacks rank 0, which has come and waits for rank 1.
TEST_F(JobMembershipTest, RanksThatHaveNotBegunASetUpAreTheDecision) {
  all_arrive_anew();
  EXPECT_TRUE(late(2, 0, {0, 1}).ok());
  EXPECT_THAT(sent(), ElementsAre("0:set_up_query a", "0:ping 1", "1:set_up_query a", "1:ping 1"));
  has_begun(0, true);
  pong(0, 1, 0);
  pong(1, 1, 0);
  membership_.tick(kSecond / 2);
  EXPECT_THAT(sent(), IsEmpty());
  has_begun(1, false);
  const std::string why =
      "comm_failed rank 1 on h1 (process 101) has not made this call in time; see its log, or raise start_timeout_s";
  EXPECT_THAT(sent(), ElementsAre("0:" + why, "1:" + why, "2:" + why));
  EXPECT_TRUE(late(0, 1, {1, 2}).ok());
  EXPECT_THAT(sent(), ElementsAre("0:" + why));
  EXPECT_EQ(membership_.open_entries(), 0U);
}

TEST_F(JobMembershipTest, AllRanksThatHaveNotBegunASetUpAreNamed) {
  all_arrive_anew();
  EXPECT_TRUE(late(1, 0, {0, 2}).ok());
  sent();
  has_begun(2, false);
  has_begun(0, false);
  const std::string why =
      "comm_failed ranks 0 and 2 on h0 and h2 have not made this call in time; see their logs, or raise "
      "start_timeout_s";
  EXPECT_THAT(sent(), ElementsAre("0:" + why, "1:" + why, "2:" + why));
}

// The failure is one of the network: the reports count, as for a communicator that exists.
TEST_F(JobMembershipTest, SetUpThatAllHaveBegunIsDecidedByItsReports) {
  all_arrive_anew();
  EXPECT_TRUE(late(2, 0, {0, 1}).ok());
  has_begun(0, true);
  sent();
  EXPECT_TRUE(late(0, 1, {1, 2}).ok());
  EXPECT_THAT(sent(), IsEmpty());
  has_begun(1, true);
  EXPECT_THAT(sent(), ElementsAre("1:ping 2"));
  pong(1, 2, 1);
  const std::string why = "comm_failed no connection with rank 1; both processes are alive";
  EXPECT_THAT(sent(), ElementsAre("0:" + why, "1:" + why, "2:" + why));
}

// They have reported before the last answer comes, so none of them was pinged for its report.
TEST_F(JobMembershipTest, RanksOfASetUpThatNameEachOtherAreDecided) {
  all_arrive_anew();
  EXPECT_TRUE(late(2, 0, {0, 1}).ok());
  EXPECT_TRUE(late(0, 2, {1, 2}).ok());
  for (const int rank : {0, 1}) pong(rank, 1, 0);
  has_begun(0, true);
  sent();
  has_begun(1, true);
  EXPECT_THAT(sent(), ElementsAre("2:ping 1"));
  pong(2, 1, 0);
  const std::string why = "comm_failed no connection with rank 2; both processes are alive";
  EXPECT_THAT(sent(), ElementsAre("0:" + why, "1:" + why, "2:" + why));
  EXPECT_EQ(membership_.open_entries(), 0U);
}

TEST_F(JobMembershipTest, RanksOfASetUpThatFindEachOtherClosedAreDecided) {
  all_arrive_anew();
  EXPECT_TRUE(late(2, 0, {0, 1}, 0, Code::peer_lost).ok());
  EXPECT_TRUE(late(0, 2, {1, 2}, 0, Code::peer_lost).ok());
  for (const int rank : {0, 1}) pong(rank, 1, 0);
  has_begun(0, true);
  has_begun(1, true);
  sent();
  pong(2, 1, 0);
  membership_.tick(2 * kSecond);
  EXPECT_THAT(sent(), Contains("1:comm_failed no connection with rank 2; both processes are alive"));
  EXPECT_EQ(membership_.open_entries(), 0U);
}

// Rank 2 found a closed connection, which the time-out of rank 1 explains. A decision that is due waits for the
// answers.
TEST_F(JobMembershipTest, NothingIsDecidedWhileASetUpQueryIsOpen) {
  all_arrive_anew();
  report(2, "a", 1, 0, Code::peer_lost);
  pong(1, 1, 0);
  EXPECT_TRUE(late(1, 0, {0, 2}).ok());
  EXPECT_THAT(sent(), ElementsAre("1:ping 1", "0:set_up_query a", "0:ping 1"));
  pong(0, 1, 0);
  membership_.tick(2 * kSecond);
  EXPECT_THAT(sent(), Not(Contains(HasSubstr("comm_failed"))));
  EXPECT_TRUE(membership_.next().is_never());
  has_begun(0, false);
  EXPECT_THAT(sent(), Contains(HasSubstr("comm_failed rank 0 on h0 (process 100) has not made this call")));
}

// A rank that reports the failure before it answers has begun the set-up; one that reports it after its answer began
// it too late.
TEST_F(JobMembershipTest, ReportOfASetUpProvesThatItsRankHasBegun) {
  all_arrive_anew();
  EXPECT_TRUE(late(2, 0, {0, 1}).ok());
  EXPECT_TRUE(late(0, 1, {1, 2}).ok());
  has_begun(0, false);
  has_begun(1, false);
  EXPECT_TRUE(late(1, 0, {0, 2}).ok());
  sent();
  EXPECT_TRUE(late(2, 0, {0, 1}).ok());
  EXPECT_THAT(sent(), ElementsAre(HasSubstr("2:comm_failed rank 1 on h1 (process 101) has not made this call")));
}

TEST_F(JobMembershipTest, LossOfARankThatIsAskedAboutASetUpIsTheDecision) {
  all_arrive_anew();
  EXPECT_TRUE(late(2, 0, {0, 1}).ok());
  has_begun(0, true);
  sent();
  membership_.closed(peer(1));
  const std::string end = "rank 1 on h1 (process 101) was lost: its process ended or its connection broke";
  EXPECT_THAT(sent(), ElementsAre("0:lost " + end, "2:lost " + end, "0:comm_failed " + end, "2:comm_failed " + end));
  // It is gone now, so the next set-up that lacks it is not asked about.
  CoordinatorMessage other{.kind = Kind::report, .ranks = {0, 1}, .key = "b"};
  other.why = Status::blame(1, "h1", Code::timeout, "no connection with rank 1");
  EXPECT_TRUE(receive(2, other).ok());
  EXPECT_THAT(sent(), ElementsAre("0:comm_failed " + end, "2:comm_failed " + end));
}

// One that is stopped is lost by its silence.
TEST_F(JobMembershipTest, SilentRankThatIsAskedAboutASetUpIsLost) {
  all_arrive_anew();
  EXPECT_TRUE(late(2, 0, {0, 1}).ok());
  has_begun(0, true);
  pong(0, 1, 0);
  sent();
  membership_.tick(kSecond);
  EXPECT_THAT(sent(), Contains(HasSubstr("2:comm_failed rank 1 on h1 (process 101) was lost: it has not answered")));
}

TEST_F(JobMembershipTest, RanksOfAFormerVersionAreNotAskedAboutASetUp) {
  all_arrive();
  EXPECT_TRUE(late(2, 0, {0, 1}).ok());
  EXPECT_THAT(sent(), ElementsAre("0:ping 1"));
}

TEST_F(JobMembershipTest, AnswersThatNobodyAskedForChangeNothing) {
  all_arrive_anew();
  has_begun(1, false);
  EXPECT_TRUE(late(2, 0, {0, 0, 1}).ok());
  sent();
  has_begun(1, false, "b");
  has_begun(2, false);
  has_begun(1, true);
  has_begun(1, false);
  EXPECT_THAT(sent(), IsEmpty());
  EXPECT_FALSE(late(1, 0, {0, 1, 2, 3}).ok()) << "more ranks than there are";
}

TEST_F(JobMembershipTest, ReportWithoutCulpritOfTheReportedRankIsDecided) {
  all_arrive();
  report(0, "a", 1, 0);
  report(1, "a", -1, 0);
  pong(1, 1, 1);
  EXPECT_THAT(sent(), ElementsAre("1:ping 1", "0:comm_failed stuck", "1:comm_failed stuck", "2:comm_failed stuck"));
}

TEST_F(JobMembershipTest, EarlierOwnReportIsDecidedOnceItsRankIsReported) {
  all_arrive();
  report(0, "a", 1, 0);
  CoordinatorMessage own{.kind = Kind::report};
  own.key = "a";
  own.why = Status::blame(2, "h2", Code::internal, "rank 2 failed");
  EXPECT_TRUE(receive(2, own).ok());
  EXPECT_THAT(sent(), ElementsAre("1:ping 1")) << "it may be only a consequence";
  report(1, "a", 2, 0);
  const std::string why = "comm_failed rank 2 failed";
  EXPECT_THAT(sent(), ElementsAre("0:" + why, "1:" + why, "2:" + why));
}

TEST_F(JobMembershipTest, OwnReportIsDecidedEvenIfItsRankLeaves) {
  all_arrive();
  CoordinatorMessage abort{.kind = Kind::report};
  abort.key = "a";
  abort.why = Status::blame(1, "h1", Code::aborted, "rank 1 aborted");
  EXPECT_TRUE(receive(1, abort).ok());
  EXPECT_TRUE(receive(1, {.kind = Kind::leave}).ok());
  const std::string why = "comm_failed rank 1 aborted";
  const std::string left = "left rank 1 (h1) has shut down";
  EXPECT_THAT(sent(), ElementsAre("0:" + why, "1:" + why, "2:" + why, "0:" + left, "2:" + left, "1:" + left));
}

TEST_F(JobMembershipTest, ReportOfAnUnknownRankIsDecidedUnchanged) {
  all_arrive();
  report(0, "a", 77, 0);
  EXPECT_THAT(sent(), ElementsAre("0:comm_failed stuck", "1:comm_failed stuck", "2:comm_failed stuck"));
}

TEST_F(JobMembershipTest, MissingRanksAreReportedWithOneText) {
  arrive(1);
  CoordinatorMessage wait{.kind = Kind::wait};
  wait.number = 100 * kSecond;
  EXPECT_TRUE(receive(1, wait).ok());
  sent();
  EXPECT_EQ(membership_.next().moment_ns(), 30 * kSecond);
  membership_.tick(30 * kSecond);
  const std::string why =
      "1:reply ranks 0 and 2 of 3 have not arrived after 30 s; check their logs and that they can reach here";
  EXPECT_THAT(sent(), ElementsAre(why));
  EXPECT_TRUE(membership_.next().is_never());
  EXPECT_TRUE(receive(1, wait).ok());
  EXPECT_THAT(sent(), ElementsAre(why));
}

TEST_F(JobMembershipTest, DifferentSettingIsReportedToAllRanksAlsoLateOnes) {
  arrive_with(2, {{"color", "red", "paint all alike"}, {"size", "1", "cut"}});
  wait_for_all(2);
  sent();
  arrive_with(0, {{"color", "red", "paint all alike"}, {"size", "2", "cut"}});
  const std::string why =
      "all ranks must have the same size, but rank 0 on h0 (process 100) has 2 and rank 2 on h2 (process 102) has 1; "
      "cut";
  EXPECT_THAT(sent(), ElementsAre("2:reply " + why, "0:welcome"));
  wait_for_all(0);
  EXPECT_THAT(sent(), ElementsAre("0:reply " + why));
  // A rank that arrives later gets the error too, whatever its settings; the coordinator stays until then.
  EXPECT_TRUE(receive(2, {.kind = Kind::leave}).ok());
  EXPECT_TRUE(receive(0, {.kind = Kind::leave}).ok());
  sent();
  EXPECT_FALSE(membership_.is_empty());
  EXPECT_FALSE(membership_.greet(peer(1), {1, 3, "h1", "boot", 101, {}}, 0));
  EXPECT_TRUE(membership_.is_empty());
  EXPECT_THAT(sent(), ElementsAre("1:something else the job did not start: " + why));
}

TEST_F(JobMembershipTest, SettingThatOneRankLacksIsADifference) {
  arrive_with(0, {{"color", "red", "paint all alike"}});
  wait_for_all(0);
  sent();
  arrive_with(1, {{"color", "red", "paint all alike"}, {"weight", "", "weigh"}});
  EXPECT_THAT(sent(), ElementsAre("0:reply all ranks must have the same weight, but rank 0 on h0 (process 100) does "
                                  "not have this setting and rank 1 on h1 (process 101) has ''; weigh",
                                  "1:welcome"));
}

TEST_F(JobMembershipTest, EqualSettingsAreNotSentToRanks) {
  for (int rank = 0; rank < 3; ++rank) arrive_with(rank, {{"color", "red", "paint all alike"}});
  sent();
  wait_for_all(1);
  const auto replies = membership_.take_outgoing();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_TRUE(replies[0].message->why.ok()) << replies[0].message->why.text();
  ASSERT_EQ(replies[0].message->members.size(), 3u);
  for (const CoordinatorClient::Hello& member : replies[0].message->members) EXPECT_THAT(member.settings, IsEmpty());
}

TEST_F(JobMembershipTest, IsEmptyWhenAllArrivedRanksAreGone) {
  EXPECT_FALSE(membership_.is_empty());
  all_arrive();
  EXPECT_TRUE(receive(0, {.kind = Kind::leave}).ok());
  membership_.closed(peer(1));
  EXPECT_FALSE(membership_.is_empty());
  EXPECT_TRUE(receive(2, {.kind = Kind::leave}).ok());
  EXPECT_TRUE(membership_.is_empty());
}

TEST_F(JobMembershipTest, IsEmptyOnceAllHaveTheFailureOfTheStart) {
  arrive(0);
  membership_.closed(peer(0));
  EXPECT_FALSE(membership_.is_empty()) << "ranks 1 and 2 have not connected";
  EXPECT_FALSE(membership_.greet(peer(1), {1, 3, "h1", "boot", 101}, 0));
  EXPECT_FALSE(membership_.is_empty());
  EXPECT_TRUE(membership_.process_ended(1, Status(Code::peer_lost, "rank 1 ended too")).ok());
  EXPECT_FALSE(membership_.is_empty()) << "it counts once";
  EXPECT_FALSE(membership_.greet(peer(2), {2, 3, "h2", "boot", 102}, 0));
  EXPECT_TRUE(membership_.is_empty());
}

TEST_F(JobMembershipTest, IsEmptyWithoutARankWhoseProcessHasEnded) {
  EXPECT_TRUE(membership_.process_ended(0, Status(Code::peer_lost, "rank 0 ended")).ok());
  EXPECT_FALSE(membership_.is_empty());
  arrive(1);
  membership_.closed(peer(1));
  EXPECT_FALSE(membership_.is_empty()) << "rank 2 has not connected";
  EXPECT_FALSE(membership_.greet(peer(2), {2, 3, "h2", "boot", 102}, 0));
  EXPECT_TRUE(membership_.is_empty());
}

TEST_F(JobMembershipTest, IsEmptyAfterTheLimitOfTheStart) {
  arrive(0);
  membership_.tick(30 * kSecond);
  membership_.closed(peer(0));
  EXPECT_TRUE(membership_.is_empty()) << "the ranks that are missing are the reason";
}

TEST_F(JobMembershipTest, IgnoresMessagesOfALostRank) {
  all_arrive();
  probe(0, {1}, 0);
  report(0, "a", 1, 0);
  membership_.tick(kSecond);
  sent();
  pong(1, 1, kSecond);
  EXPECT_TRUE(receive(1, {.kind = Kind::leave}).ok());
  report(1, "b", 0, kSecond);
  EXPECT_THAT(sent(), IsEmpty());
  EXPECT_TRUE(membership_.next().is_never());
}

// ---- Queries for late ranks ----

TEST_F(JobMembershipTest, ForwardsAQueryAndItsAnswers) {
  all_arrive();
  EXPECT_TRUE(query(0, 7, {1, 2}, 0).ok());
  EXPECT_THAT(sent(), ElementsAre("1:relayed c7 by 0", "2:relayed c7 by 0"));
  reply(2, 0, 7, 41);
  reply(1, 0, 7, 42, "waiting");
  EXPECT_THAT(sent(), ElementsAre("0:answer c7 of 2: 41", "0:answer c7 of 1: 42waiting"));
}

TEST_F(JobMembershipTest, OneRankQueriesUntilItsQueryExpires) {
  all_arrive();
  EXPECT_TRUE(query(0, 1, {1, 2}, 0).ok());
  EXPECT_TRUE(query(1, 1, {0, 2}, kSecond / 2).ok());
  EXPECT_THAT(sent(), ElementsAre("1:relayed c1 by 0", "2:relayed c1 by 0"));
  EXPECT_TRUE(query(1, 2, {2}, kSecond / 2, "another").ok());
  EXPECT_THAT(sent(), ElementsAre("2:relayed another2 by 1"));
  EXPECT_TRUE(query(0, 2, {2}, kSecond / 2).ok());
  EXPECT_TRUE(query(1, 3, {2}, kSecond).ok());
  EXPECT_THAT(sent(), ElementsAre("2:relayed c2 by 0")) << "a repeated query is valid again";
  EXPECT_TRUE(query(1, 4, {2}, 2 * kSecond).ok());
  EXPECT_THAT(sent(), ElementsAre("2:relayed c4 by 1"));
  reply(2, 0, 2, 41);
  EXPECT_THAT(sent(), IsEmpty()) << "the query was replaced";
}

TEST_F(JobMembershipTest, AnswersForDepartedRanks) {
  all_arrive();
  EXPECT_TRUE(receive(2, {.kind = Kind::leave}).ok());
  sent();
  EXPECT_TRUE(query(0, 1, {1, 2}, 0).ok());
  EXPECT_THAT(sent(), ElementsAre("1:relayed c1 by 0", "0:answer c1 of 2: -1"));
  EXPECT_TRUE(receive(0, {.kind = Kind::leave}).ok());
  sent();
  reply(1, 0, 1, 3);
  EXPECT_THAT(sent(), IsEmpty()) << "the querying rank has left";
  EXPECT_TRUE(query(1, 1, {0}, 1).ok());
  EXPECT_THAT(sent(), ElementsAre("1:answer c1 of 0: -1")) << "and does not block other queries";
}

// ---- Error paths ----

TEST_F(JobMembershipTest, AcceptsOneAnswerOfEachQueriedRank) {
  all_arrive();
  reply(1, 0, 1, 5);
  EXPECT_TRUE(query(0, 1, {1, 77, -4}, 0).ok());
  EXPECT_THAT(sent(), ElementsAre("1:relayed c1 by 0"));
  EXPECT_TRUE(query(0, 1, {1, 1}, 0).ok());
  EXPECT_THAT(sent(), ElementsAre("1:relayed c1 by 0"));
  reply(2, 0, 1, 5);   // was not queried
  reply(1, 0, 2, 5);   // another query
  reply(1, 2, 1, 5);   // another querying rank
  reply(1, 99, 1, 5);  // a rank that does not exist
  EXPECT_THAT(sent(), IsEmpty());
  reply(1, 0, 1, 5, "something that is not defined");
  reply(1, 0, 1, 6);
  EXPECT_THAT(sent(), ElementsAre("0:answer c1 of 1: 5"));
}

TEST_F(JobMembershipTest, RejectsQueriesThatAreTooLarge) {
  all_arrive();
  EXPECT_FALSE(query(0, 1, {0, 1, 2, 0}, 0).ok()) << "more ranks than there are";
  EXPECT_FALSE(query(0, 1, {1}, 0, std::string(kMostKey + 1, 'c')).ok());
  EXPECT_THAT(sent(), IsEmpty());
  for (int i = 0; i < 2000; ++i) EXPECT_TRUE(query(0, 1, {1}, 0, std::to_string(i)).ok());
  EXPECT_EQ(sent().size(), 1024u) << "the limit of pending queries";
  EXPECT_TRUE(query(0, 1, {1}, kSecond, "later").ok());
  EXPECT_EQ(sent().size(), 1u) << "the earlier queries have expired";
}

TEST_F(JobMembershipTest, RejectsMessagesThatOnlyTheCoordinatorSends) {
  all_arrive();
  for (const Kind kind : {Kind::hello, Kind::welcome, Kind::lost, Kind::left, Kind::comm_failed, Kind::coordinator_ends,
                          Kind::relayed_query, Kind::answer}) {
    EXPECT_FALSE(receive(0, {.kind = kind}).ok());
  }
  EXPECT_FALSE(receive(0, {.kind = Kind::report}).ok()) << "a report without a failure";
  EXPECT_FALSE(receive(5, {.kind = Kind::leave}).ok()) << "there is no such peer";
  EXPECT_THAT(sent(), IsEmpty());
}

TEST_F(JobMembershipTest, RelaysWhatRanksHaveSentToEachOther) {
  all_arrive();
  CoordinatorMessage query{.kind = Kind::sends_query};
  query.key = "c";
  query.ranks = {1, 2, 99};
  EXPECT_TRUE(receive(0, query).ok());
  CoordinatorMessage reply{.kind = Kind::sends_reply};
  reply.key = "c";
  reply.rank = 0;
  reply.id = 7;
  reply.number = 8;
  EXPECT_TRUE(receive(2, reply).ok());
  EXPECT_THAT(sent(), ElementsAre("1:asks for sends c of 0", "2:asks for sends c of 0", "0:sends c of 2: 7 8"));
  EXPECT_TRUE(receive(1, {.kind = Kind::leave}).ok());
  sent();
  EXPECT_TRUE(receive(0, query).ok());
  EXPECT_THAT(sent(), ElementsAre("0:sends c of 1: 18446744073709551615 -1", "2:asks for sends c of 0"))
      << "the coordinator answers for a rank that is gone";
  query.ranks = {0, 1, 2, 0};
  EXPECT_FALSE(receive(0, query).ok()) << "more ranks than there are";
}

TEST_F(JobMembershipTest, ConfirmsALeaveMessageToItsSender) {
  all_arrive();
  EXPECT_TRUE(receive(1, {.kind = Kind::leave}).ok());
  const std::string left = ":left rank 1 (h1) has shut down";
  EXPECT_THAT(sent(), ElementsAre("0" + left, "2" + left, "1" + left));
  EXPECT_TRUE(receive(1, {.kind = Kind::leave}).ok());
  EXPECT_THAT(sent(), IsEmpty());
}

TEST_F(JobMembershipTest, ItsEndIsKnownWhenEachRankHasReadItOrLeft) {
  all_arrive();
  probe(0, {1}, 0);
  EXPECT_THAT(sent(), ElementsAre("1:ping 1"));
  membership_.end();
  EXPECT_THAT(sent(), ElementsAre("0:coordinator ends", "1:coordinator ends", "2:coordinator ends", "0:ping 1",
                                  "1:ping 2", "2:ping 1"));
  pong(0, 1, 0);
  EXPECT_TRUE(receive(2, {.kind = Kind::leave}).ok());
  pong(1, 1, 0);
  EXPECT_FALSE(membership_.all_know_of_end()) << "rank 1 has answered the earlier ping only";
  pong(1, 2, 0);
  EXPECT_TRUE(membership_.all_know_of_end());
  sent();
  EXPECT_FALSE(membership_.greet(77, {0, 3, "h0", "boot", 100}, 0));
  EXPECT_THAT(sent(), ElementsAre("67:something else the coordinator (test) is ending"));
}

TEST_F(JobMembershipTest, ItsEndDoesNotWaitForALostRank) {
  all_arrive();
  membership_.end();
  pong(0, 1, 0);
  pong(1, 1, 0);
  EXPECT_FALSE(membership_.all_know_of_end());
  membership_.closed(peer(2));
  EXPECT_TRUE(membership_.all_know_of_end());
}

TEST_F(JobMembershipTest, IgnoresUnsolicitedPongs) {
  all_arrive();
  pong(1, 9, 0);
  probe(0, {1}, 0);
  EXPECT_THAT(sent(), ElementsAre("1:ping 1"));
  membership_.tick(kSecond);
  EXPECT_EQ(sent().size(), 3u) << "a pong with a later number does not answer the ping";
}

TEST(JobMembershipOfPods, NamesThePodsOfMissingRanks) {
  CoordinatorOptions options;
  options.size = 6;
  options.start_timeout_s = 1;
  options.expected_hosts = {"train-0", "train-0", "train-1", "train-1", "train-2", "train-2"};
  JobMembership membership(options, "train-0:29500", {});
  ASSERT_TRUE(membership.greet(1, {0, 6, "train-0", "boot", 1}, 0));
  ASSERT_TRUE(membership.greet(2, {1, 6, "train-0", "boot", 2}, 0));
  ASSERT_TRUE(membership.greet(3, {3, 6, "train-1", "boot", 1}, 0));
  CoordinatorMessage wait{.kind = CoordinatorMessage::Kind::wait};
  wait.number = 100'000'000'000;
  ASSERT_TRUE(membership.receive(1, wait, 0).ok());
  membership.take_outgoing();
  membership.tick(2'000'000'000);
  const auto sent = membership.take_outgoing();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(
      sent[0].message->why.text(),
      "ranks 2, 4 and 5 of 6 have not arrived after 1 s (expected on train-1 and train-2); check their logs and that "
      "they can reach train-0:29500");
}

TEST(JobMembershipOfManyJobs, ConnectionsOfAnEarlierJobDoNotAffectTheNextOne) {
  CoordinatorOptions options;
  options.size = 2;
  options.serves_again = true;
  JobMembership membership(options, "here", {});
  const auto greet = [&](JobMembership::Peer peer, int rank) {
    EXPECT_TRUE(membership.greet(peer, {rank, 2, "h", "boot", 100 + rank}, 0));
  };
  greet(10, 0);
  greet(11, 1);
  for (const JobMembership::Peer peer : {10, 11}) EXPECT_TRUE(membership.receive(peer, {.kind = Kind::leave}, 1).ok());
  greet(20, 0);
  greet(21, 1);
  membership.take_outgoing();
  EXPECT_TRUE(membership.receive(11, {.kind = Kind::leave}, 2).ok());  // a duplicate leave
  membership.closed(10);
  membership.closed(11);
  EXPECT_TRUE(membership.take_outgoing().empty()) << "no rank of this job has left";
  membership.closed(20);
  EXPECT_EQ(membership.take_outgoing().size(), 1u) << "rank 1 gets the loss of rank 0";
}

TEST(JobMembershipOfManyJobs, RankWhoseProcessHasEndedIsMissingInTheNextOne) {
  CoordinatorOptions options;
  options.size = 2;
  options.serves_again = true;
  JobMembership membership(options, "here", {});
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(membership.greet(static_cast<JobMembership::Peer>(10 + rank), {rank, 2, "h", "boot", 100 + rank}, 0));
  }
  for (const JobMembership::Peer peer : {10, 11}) EXPECT_TRUE(membership.receive(peer, {.kind = Kind::leave}, 1).ok());
  EXPECT_TRUE(membership.process_ended(1, Status(Code::peer_lost, "rank 1 ended")).ok());
  EXPECT_TRUE(membership.greet(20, {0, 2, "h", "boot", 100}, 2));
  membership.take_outgoing();
  CoordinatorMessage wait{.kind = Kind::wait};
  wait.number = 1000 * kSecond;
  EXPECT_TRUE(membership.receive(20, wait, 2).ok());
  const auto outgoing = membership.take_outgoing();
  ASSERT_EQ(outgoing.size(), 1u);
  EXPECT_EQ(outgoing[0].message->why.text(), "rank 1 ended");
}

// A communicator of the next job has the name of the one that failed in the former job.
TEST(JobMembershipOfManyJobs, FailureOfAnEarlierJobIsNoReasonInTheNextOne) {
  CoordinatorOptions options;
  options.size = 3;
  options.serves_again = true;
  JobMembership membership(options, "here", {});
  const auto greet_all = [&](JobMembership::Peer first) {
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(
          membership.greet(first + static_cast<JobMembership::Peer>(rank), {rank, 3, "h", "boot", 100 + rank}, 0));
    }
  };
  const auto report = [&](JobMembership::Peer peer, const Status& why) {
    CoordinatorMessage message{.kind = Kind::report};
    message.key = "all";
    message.why = why;
    EXPECT_TRUE(membership.receive(peer, message, 1).ok());
  };
  greet_all(10);
  report(10, Status(Code::transport, "of the first job"));
  for (const JobMembership::Peer peer : {10, 11, 12}) {
    EXPECT_TRUE(membership.receive(peer, {.kind = Kind::leave}, 1).ok());
  }
  greet_all(20);
  membership.take_outgoing();
  EXPECT_TRUE(membership.receive(22, {.kind = Kind::leave}, 1).ok());
  membership.tick(2 * kSecond);
  for (const JobMembership::Outgoing& one : membership.take_outgoing()) EXPECT_EQ(one.message->number, 0);
  report(20, Status::blame(1, "h", Code::peer_lost, "rank 1 has closed the connection"));
  EXPECT_TRUE(membership.receive(21, {.kind = Kind::leave}, 1).ok());
  bool is_decided = false;
  for (const JobMembership::Outgoing& one : membership.take_outgoing()) {
    if (one.message->kind != Kind::comm_failed) continue;
    is_decided = true;
    EXPECT_EQ(one.message->why.text(), "rank 1 (h) has shut down");
  }
  EXPECT_TRUE(is_decided);
}

TEST(JobMembershipText, ManyMissingRanksAreRanges) {
  CoordinatorOptions options;
  options.size = 100;
  options.start_timeout_s = 1;
  JobMembership membership(options, "here", {});
  EXPECT_TRUE(membership.greet(7, {50, 100, "h", "b", 1}, 0));
  CoordinatorMessage wait{.kind = Kind::wait};
  EXPECT_TRUE(membership.receive(7, wait, 0).ok());
  membership.take_outgoing();
  membership.tick(kSecond);
  const auto outgoing = membership.take_outgoing();
  ASSERT_EQ(outgoing.size(), 1u);
  EXPECT_EQ(outgoing[0].message->why.text(),
            "ranks 0-49 and 51-99 of 100 have not arrived after 1 s; check their logs and that they can reach here");
}

}  // namespace
}  // namespace fdl
