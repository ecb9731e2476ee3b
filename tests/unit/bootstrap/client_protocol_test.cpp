// Tests of ClientProtocol, message by message: with what a set-up fails that begins after losses and decisions.
#include "bootstrap/client/client_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

constexpr int64_t kNow = 1'000'000'000;

CoordinatorMessage lost(int rank) {
  CoordinatorMessage message{.kind = Kind::lost};
  message.rank = rank;
  message.why = Status::blame(rank, "host", Code::peer_lost, "rank " + std::to_string(rank) + " was lost");
  return message;
}

CoordinatorMessage left(int rank) {
  CoordinatorMessage message{.kind = Kind::left};
  message.rank = rank;
  message.why = departure_of(rank, "host");
  return message;
}

CoordinatorMessage after_failure(CoordinatorMessage news) {
  news.number = CoordinatorMessage::kAfterFailure;
  return news;
}

CoordinatorMessage decided(const std::string& comm) {
  CoordinatorMessage message{.kind = Kind::comm_failed};
  message.key = comm;
  message.why = Status(Code::aborted, "a decision");
  return message;
}

class LateSetUp : public testing::Test {
 protected:
  // The error of a set-up of `comm` with ranks 0, 2 and 3 that begins now; OK if it may go on.
  Status told(const std::string& comm = "comm") {
    auto watch = SetupWatch::make({0, 2, 3}, comm);
    EXPECT_TRUE(watch.ok());
    protocol_.add_watch(*watch, kNow);
    moment_ns_ = (*watch)->interrupt().moment_ns;
    return (*watch)->why();
  }

  ClientProtocol protocol_{{.rank = 1, .size = 4, .host_name = "host", .boot_id = "boot", .process_id = 101},
                           CoordinatorClient::Limits()};
  int64_t moment_ns_ = 0;
};

TEST_F(LateSetUp, IsToldOfTheFirstLossAndNotOfTheLowestRank) {
  protocol_.receive({lost(3), lost(0)}, kNow);
  EXPECT_EQ(told().text(), "rank 3 was lost");
  EXPECT_EQ(moment_ns_, kNow);
}

TEST_F(LateSetUp, IsToldOfTheFirstOfLossesThatCameTogether) {
  CoordinatorMessage together{.kind = Kind::lost_together};
  together.ranks = {3, 0};
  together.values = {"rank 3 was lost", "rank 0 was lost"};
  together.hosts = {{.host_name = "host-a", .ranges = {{0, 1}}}, {.host_name = "host-b", .ranges = {{3, 1}}}};
  protocol_.receive({together}, kNow);
  EXPECT_EQ(told().text(), "rank 3 was lost");
  const auto events = protocol_.take_events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, CoordinatorEvent::Kind::lost);
  EXPECT_EQ(events[0].rank, 3);
  EXPECT_EQ(events[0].why.error().culprit_rank, 3);
  EXPECT_EQ(events[0].why.error().culprit_host, "host-b");
  EXPECT_EQ(events[0].why.code(), Code::peer_lost);
  EXPECT_EQ(events[1].why.text(), "rank 0 was lost");
  EXPECT_EQ(events[1].why.error().culprit_host, "host-a");
  // Of those that follow the loss of this rank itself it reads nothing.
  together.ranks = {1, 2};
  protocol_.receive({together}, kNow);
  EXPECT_EQ(protocol_.take_events().size(), 1u);
  // One that is damaged is read as far as it goes.
  together.ranks = {2};
  together.values = {};
  protocol_.receive({together}, kNow);
  EXPECT_TRUE(protocol_.take_events().empty());
}

// The rank that serves the coordinator may end because of a rank that was lost before.
TEST_F(LateSetUp, IsToldOfALossThatCameBeforeTheEndOfTheCoordinator) {
  protocol_.receive({lost(2)}, kNow);
  protocol_.closed(kNow);
  EXPECT_EQ(told().text(), "rank 2 was lost");
}

TEST_F(LateSetUp, IsToldOfTheEndOfTheCoordinatorIfAllRanksArePresent) {
  protocol_.receive({lost(1000)}, kNow);
  protocol_.closed(kNow);
  EXPECT_EQ(told().code(), Code::peer_lost);
  EXPECT_EQ(told().text(), "the coordinator () is gone");
}

// The other ranks have waited for an answer as long.
TEST_F(LateSetUp, IsToldThatACoordinatorIsCutOffAsThoseThatWaitedAreTold) {
  protocol_.cut_off(kNow);
  EXPECT_EQ(told().code(), Code::peer_lost);
  EXPECT_EQ(told().text(), "the coordinator () has not answered for 10 s (stopped, swapped out or cut off)");
}

TEST_F(LateSetUp, IsToldThatTheRankThatServesTheCoordinatorIsCutOff) {
  CoordinatorMessage server{.kind = Kind::server};
  server.members = {{.rank = 0, .size = 4, .host_name = "host", .boot_id = "boot", .process_id = 100}};
  protocol_.receive({server}, kNow);
  protocol_.cut_off(kNow);
  EXPECT_EQ(told().text(),
            "rank 0 on host (process 100) was lost: it served the rendezvous and has not answered for 10 s (stopped, "
            "swapped out or cut off)");
}

TEST_F(LateSetUp, IsToldThatTheCoordinatorHasEndedIfItsRankLeftBeforeTheNetworkWasCut) {
  CoordinatorMessage server{.kind = Kind::server};
  server.members = {{.rank = 0, .size = 4, .host_name = "host", .boot_id = "boot", .process_id = 100}};
  protocol_.receive({server, left(0)}, kNow);
  protocol_.cut_off(kNow);
  EXPECT_EQ(protocol_.coordinator_lost().code(), Code::shut_down);
  EXPECT_EQ(protocol_.coordinator_lost().text(), "the coordinator () has ended");
}

TEST_F(LateSetUp, IsToldOfALossRatherThanOfADepartureBeforeIt) {
  protocol_.receive({left(0), lost(3)}, kNow);
  EXPECT_EQ(told().text(), "rank 3 was lost");
}

TEST_F(LateSetUp, HasMoreTimeAfterADeparture) {
  protocol_.receive({left(0)}, kNow);
  EXPECT_EQ(told().code(), Code::shut_down);
  EXPECT_EQ(moment_ns_, kNow + SetupWatch::kLeftGrace_ns);
}

TEST_F(LateSetUp, IsToldOfTheDecisionOrTheLossWhicheverCameFirst) {
  protocol_.receive({decided("early"), after_failure(lost(0)), decided("late")}, kNow);
  EXPECT_EQ(told("early").text(), "a decision");
  EXPECT_EQ(told("late").text(), "rank 0 was lost; shortly before, communicator 'early' had failed: a decision");
}

// ---- A program that ends its processes because a communicator has failed ----

class LossAfterADecision : public LateSetUp {
 protected:
  // With which text a rank is lost after a decision that names rank 2; `number` is that of the news.
  std::string text_of(int rank, int64_t number = CoordinatorMessage::kAfterFailure) {
    CoordinatorMessage decision = decided("all comm 1");
    decision.why = Status::blame(2, "host", Code::peer_lost, "rank 2 is cut off");
    protocol_.receive({decision}, kNow);
    static_cast<void>(protocol_.take_events());
    CoordinatorMessage loss = lost(rank);
    loss.number = number;
    // A rank that was stopped receives the news late by its own clock. That must not change the text.
    protocol_.receive({loss}, kNow + 60'000'000'000);
    const auto events = protocol_.take_events();
    EXPECT_EQ(events.size(), 1u);
    EXPECT_EQ(events.front().why.error().culprit_rank, rank);
    return events.front().why.text();
  }
};

TEST_F(LossAfterADecision, NamesIt) {
  EXPECT_EQ(text_of(0), "rank 0 was lost; shortly before, communicator 'all comm 1' had failed: rank 2 is cut off");
}

// A program that has got the failure ends in good order; one that waits in another communicator has not got it.
TEST_F(LossAfterADecision, IsNamedByADepartureToo) {
  CoordinatorMessage decision = decided("all comm 1");
  decision.why = Status::blame(2, "host", Code::peer_lost, "rank 2 is cut off");
  CoordinatorMessage departed{.kind = Kind::departed};
  departed.hosts = {{.host_name = "h"}};
  append_rank(departed.hosts.front().ranges, 0);
  protocol_.receive({decision, after_failure(left(3)), after_failure(departed)}, kNow);
  std::vector<std::string> texts;
  for (const CoordinatorEvent& event : protocol_.take_events()) texts.emplace_back(event.why.text());
  EXPECT_THAT(
      texts, ::testing::ElementsAre(
                 "rank 2 is cut off",
                 "rank 3 (host) has shut down; shortly before, communicator 'all comm 1' had failed: rank 2 is cut off",
                 "rank 0 (h) has shut down; shortly before, communicator 'all comm 1' had failed: rank 2 is cut off"));
}

TEST_F(LossAfterADecision, NamesItForEachOfSeveralRanksThatAreLostTogether) {
  CoordinatorMessage decision = decided("all comm 1");
  decision.why = Status::blame(2, "host", Code::peer_lost, "rank 2 is cut off");
  CoordinatorMessage together{.kind = Kind::lost_together};
  together.ranks = {3, 0};
  together.values = {"rank 3 was lost", "rank 0 was lost"};
  protocol_.receive({decision, after_failure(together)}, kNow);
  std::vector<std::string> texts;
  for (const CoordinatorEvent& event : protocol_.take_events()) texts.emplace_back(event.why.text());
  EXPECT_THAT(texts, ::testing::ElementsAre(
                         "rank 2 is cut off",
                         "rank 3 was lost; shortly before, communicator 'all comm 1' had failed: rank 2 is cut off",
                         "rank 0 was lost; shortly before, communicator 'all comm 1' had failed: rank 2 is cut off"));
}

TEST_F(LossAfterADecision, IsTheSameFailureIfTheDecisionNamesThatRank) { EXPECT_EQ(text_of(2), "rank 2 was lost"); }

TEST_F(LossAfterADecision, HasNothingToDoWithOneLongBefore) { EXPECT_EQ(text_of(0, 0), "rank 0 was lost"); }

TEST_F(LossAfterADecision, NamesItIfTheRankServedTheCoordinatorToo) {
  CoordinatorMessage server{.kind = Kind::server};
  server.members = {{.rank = 0, .size = 4, .host_name = "host", .boot_id = "boot", .process_id = 100}};
  CoordinatorMessage decision = decided("all comm 1");
  protocol_.receive({server, decision}, kNow);
  protocol_.closed(kNow);
  EXPECT_EQ(
      told().text(),
      "rank 0 on host (process 100) was lost: it served the rendezvous and its connection closed; shortly before, "
      "communicator 'all comm 1' had failed: a decision");
}

// The coordinator may have ended before it had sent the decision to all, but the loss came before.
TEST_F(LossAfterADecision, NamesTheLossThatWasTheReasonOfTheEndOfTheCoordinator) {
  CoordinatorMessage server{.kind = Kind::server};
  server.members = {{.rank = 0, .size = 4, .host_name = "host", .boot_id = "boot", .process_id = 100}};
  for (const bool has_decision : {false, true}) {
    ClientProtocol protocol({.rank = 1, .size = 4, .host_name = "host", .boot_id = "boot", .process_id = 101},
                            CoordinatorClient::Limits());
    std::vector<CoordinatorMessage> news = {server, lost(2)};
    if (has_decision) news.push_back(decided("all comm 1"));
    protocol.receive(news, kNow);
    protocol.closed(kNow);
    const auto events = protocol.take_events();
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(
        events.back().why.text(),
        "rank 0 on host (process 100) was lost: it served the rendezvous and its connection closed; shortly before, "
        "rank 2 was lost");
  }
}

// ---- The end of this rank's world ----

TEST_F(LateSetUp, EndsWithTheWorldOfThisRank) {
  const auto before = *SetupWatch::make({0, 2, 3}, "comm");
  protocol_.add_watch(before, kNow);
  EXPECT_TRUE(before->why().ok());
  protocol_.end_set_ups(Status(Code::shut_down, "the end"), kNow + 1);
  EXPECT_TRUE(protocol_.take_change()) << "a thread may wait in the set-up";
  EXPECT_EQ(before->why().text(), "the end");
  EXPECT_EQ(before->interrupt().moment_ns, kNow + 1);
  EXPECT_EQ(told("another").text(), "the end");
}

TEST_F(LateSetUp, RequestsWithoutAReplyEndWhenThisRankLeaves) {
  const auto request = protocol_.request({.kind = Kind::fetch});
  ASSERT_TRUE(request.ok());
  EXPECT_FALSE(protocol_.is_settled(*request, {}));
  protocol_.take_change();
  protocol_.leave();
  EXPECT_TRUE(protocol_.take_change());
  EXPECT_TRUE(protocol_.is_settled(*request, {}));
  EXPECT_EQ(protocol_.take_reply(*request, {}).status().code(), Code::shut_down);
  EXPECT_EQ(protocol_.request({.kind = Kind::fetch}).status().code(), Code::shut_down);
}

// A rank that is gone may have finished its part of the set-up before; a decision ends it for all.
TEST_F(LateSetUp, TellsADecisionFromARankThatIsGone) {
  auto watch = SetupWatch::make({0, 2, 3}, "comm").take();
  protocol_.add_watch(watch, kNow);
  protocol_.receive({left(0), decided("another")}, kNow);
  EXPECT_EQ(watch->why().code(), Code::shut_down);
  EXPECT_TRUE(watch->decision().ok());
  protocol_.receive({decided("comm")}, kNow);
  EXPECT_EQ(watch->why().code(), Code::shut_down);
  EXPECT_EQ(watch->decision().text(), "a decision");
  auto later = SetupWatch::make({0, 2, 3}, "comm").take();
  protocol_.add_watch(later, kNow);
  EXPECT_EQ(later->why().code(), Code::shut_down);
  EXPECT_EQ(later->decision().text(), "a decision");
}

// ---- Set-ups that this rank is asked about ----

class AskedSetUp : public testing::Test {
 protected:
  std::shared_ptr<SetupWatch> begin(const std::string& comm) {
    auto watch = SetupWatch::make({0, 2}, comm);
    EXPECT_TRUE(watch.ok());
    protocol_.add_watch(*watch, kNow);
    return watch.take();
  }
  bool has_begun(const std::string& comm) {
    protocol_.receive({{.kind = Kind::set_up_query, .key = comm}}, kNow);
    const auto replies = protocol_.take_outgoing();
    EXPECT_EQ(replies.size(), 1U);
    EXPECT_EQ(replies.front().kind, Kind::set_up_reply);
    EXPECT_EQ(replies.front().key, comm);
    return replies.front().number == 1;
  }

  ClientProtocol protocol_{{.rank = 1, .size = 3, .host_name = "host", .boot_id = "boot", .process_id = 101},
                           CoordinatorClient::Limits()};
};

TEST_F(AskedSetUp, IsBegunFromItsWatchOn) {
  EXPECT_FALSE(has_begun("a"));
  const auto watch = begin("a");
  EXPECT_TRUE(has_begun("a"));
  EXPECT_FALSE(has_begun("b"));
}

// Another rank may still wait in one that this rank has finished. Of many, the latest ones are known, and those that
// last.
TEST_F(AskedSetUp, StaysBegunAfterItsEnd) {
  const auto lasting = begin("lasting");
  begin("first");
  EXPECT_TRUE(has_begun("first"));
  for (int i = 0; i < 4096; ++i) begin(std::to_string(i));
  EXPECT_FALSE(has_begun("first"));
  EXPECT_TRUE(has_begun("0"));
  EXPECT_TRUE(has_begun("4095"));
  EXPECT_TRUE(has_begun("lasting"));
}

TEST_F(AskedSetUp, ReportOfATimeOutNamesItsRanks) {
  const auto watch = begin("a");
  protocol_.report(*watch, Status(Code::timeout, "late"), kNow);
  protocol_.report(*watch, Status(Code::transport, "broken"), kNow);
  std::vector<CoordinatorMessage> reports = protocol_.take_outgoing();
  std::erase_if(reports, [](const CoordinatorMessage& one) { return one.kind != Kind::report; });
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_EQ(reports[0].key, "a");
  EXPECT_EQ(reports[0].ranks, (std::vector<int>{0, 2}));
  EXPECT_TRUE(reports[1].ranks.empty());
}

}  // namespace
}  // namespace fdl
