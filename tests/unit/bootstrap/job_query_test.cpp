// Tests of the question what all ranks do: its messages, the decisions of JobMembership, and the socket of the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "bootstrap/coordinator/coordinator_listener.h"
#include "bootstrap/coordinator/job_membership.h"
#include "bootstrap/coordinator/job_view.h"
#include "bootstrap/rendezvous/framed_socket.h"
#include "system/socket.h"
#include "tests/support/coordinator_job.h"

namespace fdl {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = CoordinatorMessage::Kind;

constexpr int64_t kSecond = 1'000'000'000;
constexpr JobMembership::Peer kUser = 90;

RankState state_of(int rank) {
  RankState state;
  state.operations = {{"all comm 0", "allreduce", "allreduce by shared memory", {1 - rank}, 12 * kSecond}};
  state.begun_ordered = 40 + static_cast<uint64_t>(rank);
  return state;
}

// ---- Messages ----

TEST(RankStateMessage, SurvivesEncodingAndDecoding) {
  CoordinatorMessage message{.kind = Kind::state_reply};
  message.id = 7;
  message.state = state_of(1);
  message.state->names = {{"all", "allreduce 'grad'", "", {2, 3}, -1}};
  message.state->begun_named = 9;
  message.state->left_out = 2;
  message.state->add_agreement("all", "3 of 4 operations have ended; no order is locked");
  message.state->stacks = "thread MainThread:\n  train.py:1 in step";
  const auto decoded = decode(encode(message));
  ASSERT_TRUE(decoded.ok()) << decoded.status().text();
  ASSERT_TRUE(decoded->state.has_value());
  const RankState& state = *decoded->state;
  ASSERT_THAT(state.operations, SizeIs(1));
  EXPECT_EQ(state.operations[0].group, "all comm 0");
  EXPECT_EQ(state.operations[0].operation, "allreduce");
  EXPECT_EQ(state.operations[0].phase, "allreduce by shared memory");
  EXPECT_THAT(state.operations[0].ranks, ElementsAre(0));
  EXPECT_EQ(state.operations[0].waited_ns, 12 * kSecond);
  ASSERT_THAT(state.names, SizeIs(1));
  EXPECT_THAT(state.names[0].ranks, ElementsAre(2, 3));
  EXPECT_EQ(state.names[0].waited_ns, -1);
  EXPECT_EQ(state.begun_ordered, 41u);
  EXPECT_EQ(state.begun_named, 9u);
  EXPECT_EQ(state.left_out, 2u);
  ASSERT_THAT(state.agreements, SizeIs(1));
  EXPECT_EQ(state.stacks, "thread MainThread:\n  train.py:1 in step");
  EXPECT_EQ(state.agreements[0].group, "all");
  EXPECT_EQ(state.agreements[0].text, "3 of 4 operations have ended; no order is locked");
}

TEST(RankStateMessage, IsCutToItsLimits) {
  CoordinatorMessage message{.kind = Kind::state_reply};
  message.state = RankState{};
  const RankState::Wait wait{std::string(10'000, 'g'), std::string(10'000, 'o'), std::string(10'000, 'p'),
                             std::vector<int>(10'000, 1), 0};
  message.state->operations.assign(500, wait);
  message.state->names.assign(500, wait);
  message.state->stacks.assign(100'000, 's');
  message.state->agreements.assign(500, {std::string(10'000, 'g'), std::string(10'000, 't')});
  const std::string encoded = encode(message);
  EXPECT_LT(encoded.size(), 128_KiB);
  const auto decoded = decode(encoded);
  ASSERT_TRUE(decoded.ok()) << decoded.status().text();
  EXPECT_THAT(decoded->state->operations, SizeIs(RankState::kMostWaits));
  EXPECT_THAT(decoded->state->names, SizeIs(RankState::kMostWaits));
  EXPECT_THAT(decoded->state->names[0].ranks, SizeIs(RankState::kMostRanks));
  EXPECT_THAT(decoded->state->names[0].group, SizeIs(RankState::kMostText));
  EXPECT_THAT(decoded->state->stacks, SizeIs(RankState::kMostStacks));
  EXPECT_THAT(decoded->state->agreements, SizeIs(RankState::kMostWaits));
  EXPECT_THAT(decoded->state->agreements[0].text, SizeIs(RankState::kMostText));
}

// Rank 0, whose process serves the coordinator, gets the messages of a round after all others.
TEST(MessageEncoder, EncodesAMessageToManyPeersOnceInWhateverOrderTheyCome) {
  CoordinatorMessage lost{.kind = Kind::lost};
  lost.rank = 2;
  const auto first = std::make_shared<const CoordinatorMessage>(lost);
  lost.rank = 3;
  const auto second = std::make_shared<const CoordinatorMessage>(lost);
  const std::vector<std::shared_ptr<const CoordinatorMessage>> round{first, first, second, second, first, second};
  MessageEncoder encoder;
  for (const auto& message : round) EXPECT_EQ(encoder.encode(message)->bytes(), encode(*message));
  EXPECT_EQ(encoder.encoded(), 2u);
  const auto alone = std::make_shared<const CoordinatorMessage>(lost);
  EXPECT_EQ(encoder.encode(alone)->bytes(), encode(lost)) << "to one peer alone";
  EXPECT_EQ(encoder.encoded(), 3u);
}

// ---- JobMembership ----

// Rank r is peer 10 + r.
class JobQueries : public ::testing::Test {
 protected:
  JobQueries() : membership_(options(), "here", {}) {}
  static CoordinatorOptions options() {
    CoordinatorOptions options;
    options.size = 3;
    options.server_name = "farandole run on host-a";
    return options;
  }
  static JobMembership::Peer peer(int rank) { return static_cast<JobMembership::Peer>(10 + rank); }
  void arrive(int rank) {
    EXPECT_TRUE(membership_.greet(peer(rank), hello_of(rank, 3), 0));
    membership_.take_outgoing();
  }
  void answer(int rank, uint64_t id, int64_t now = 0) {
    CoordinatorMessage reply{.kind = Kind::state_reply};
    reply.id = id;
    reply.state = state_of(rank);
    EXPECT_TRUE(membership_.receive(peer(rank), reply, now).ok());
  }
  // What the user gets, as "rank:presence", and "end" for the reply.
  std::vector<std::string> answers(JobMembership::Peer user = kUser) {
    constexpr std::array kNames{"answered", "silent", "absent", "left", "lost"};
    std::vector<std::string> texts;
    for (const JobMembership::Outgoing& one : membership_.take_outgoing()) {
      if (one.message->kind == Kind::state_query) asked_.push_back(static_cast<int>(one.peer) - 10);
      if (one.peer != user) continue;
      if (one.message->kind == Kind::rank_state) {
        texts.push_back(std::to_string(one.message->rank) + ":" +
                        kNames[static_cast<std::size_t>(one.message->number)]);
        EXPECT_EQ(one.message->state.has_value(), one.message->number == 0);
      } else if (one.message->kind == Kind::job_reply) {
        texts.push_back(one.message->why.ok() ? "end" : "refused: " + one.message->why.text());
      }
    }
    return texts;
  }
  JobMembership membership_;
  std::vector<int> asked_;
};

TEST_F(JobQueries, AskEachPresentRankAndForwardItsAnswer) {
  for (int rank = 0; rank < 3; ++rank) arrive(rank);
  ASSERT_TRUE(membership_.query_job(kUser, 0).ok());
  EXPECT_THAT(answers(), IsEmpty());
  EXPECT_THAT(asked_, ElementsAre(0, 1, 2));
  answer(2, 1);
  EXPECT_THAT(answers(), ElementsAre("2:answered"));
  answer(0, 1);
  answer(1, 1);
  EXPECT_THAT(answers(), ElementsAre("0:answered", "1:answered", "end"));
}

TEST_F(JobQueries, ReportARankWithoutAnAnswerAsSilent) {
  for (int rank = 0; rank < 3; ++rank) arrive(rank);
  ASSERT_TRUE(membership_.query_job(kUser, 5).ok());
  answer(0, 1);
  answer(2, 1);
  EXPECT_THAT(answers(), ElementsAre("0:answered", "2:answered"));
  EXPECT_EQ(membership_.next().moment_ns(), 5 + JobMembership::kStateAnswer_ns);
  membership_.tick(5 + JobMembership::kStateAnswer_ns);
  EXPECT_THAT(answers(), ElementsAre("1:silent", "end"));
  answer(1, 1, 3 * kSecond);
  EXPECT_THAT(answers(), IsEmpty()) << "an answer that comes too late is ignored";
}

TEST_F(JobQueries, ReportAbsentAndEndedRanksAtOnce) {
  arrive(0);
  arrive(1);
  EXPECT_TRUE(membership_.receive(peer(0), {.kind = Kind::leave}, 0).ok());
  ASSERT_TRUE(membership_.query_job(kUser, 0).ok());
  EXPECT_THAT(answers(), ElementsAre("0:left", "2:absent"));
  membership_.closed(peer(1));
  EXPECT_THAT(answers(), ElementsAre("1:lost", "end"));
}

TEST_F(JobQueries, IgnoreAnswersThatWereNotAskedFor) {
  for (int rank = 0; rank < 3; ++rank) arrive(rank);
  answer(0, 1);
  ASSERT_TRUE(membership_.query_job(kUser, 0).ok());
  answer(0, 2);
  EXPECT_THAT(answers(), IsEmpty());
  answer(0, 1);
  answer(0, 1);
  EXPECT_THAT(answers(), ElementsAre("0:answered"));
  CoordinatorMessage empty{.kind = Kind::state_reply};
  empty.id = 1;
  EXPECT_TRUE(membership_.receive(peer(1), empty, 0).ok());
  EXPECT_THAT(answers(), IsEmpty()) << "a reply without a state";
}

TEST_F(JobQueries, AreLimitedAndEndWithTheConnectionOfTheUser) {
  for (int rank = 0; rank < 3; ++rank) arrive(rank);
  ASSERT_TRUE(membership_.query_job(kUser, 0).ok());
  EXPECT_FALSE(membership_.query_job(kUser, 0).ok()) << "a second one before the first reply";
  for (JobMembership::Peer user = kUser + 1; user < kUser + 16; ++user)
    ASSERT_TRUE(membership_.query_job(user, 0).ok());
  ASSERT_TRUE(membership_.query_job(kUser + 16, 0).ok());
  EXPECT_THAT(answers(kUser + 16), ElementsAre(HasSubstr("refused: 16 other queries of this job are open")));
  membership_.closed(kUser);
  ASSERT_TRUE(membership_.query_job(kUser + 17, 0).ok());
  answer(0, 1);
  EXPECT_THAT(answers(kUser), IsEmpty());
}

// ---- The list of sockets ----

TEST(LocalJobs, AreFoundByTheNamesOfTheirSockets) {
  const std::string sockets =
      "Num       RefCount Protocol Flags    Type St Inode Path\n"
      "0000000000000000: 00000002 00000000 00010000 0001 01 54185 @farandole-query-4711-0\n"
      "0000000000000000: 00000003 00000000 00000000 0001 03 54186 @farandole-query-4711-0\n"
      "0000000000000000: 00000002 00000000 00010000 0001 01 54187 /run/dbus/system_bus_socket\n"
      "0000000000000000: 00000002 00000000 00010000 0001 01 54188 @farandole-query-x\n"
      "0000000000000000: 00000002 00000000 00010000 0001 01 54189 @farandole-query--3-0\n"
      "0000000000000000: 00000002 00000000 00010000 0001 01 54190 @farandole-query-12-3\n"
      "0000000000000000: 00000003 00000000 00000000 0001 03 54191\n";
  const std::vector<LocalJob> jobs = local_jobs_in(sockets);
  ASSERT_THAT(jobs, SizeIs(2));
  EXPECT_EQ(jobs[0].process_id, 12);
  EXPECT_EQ(jobs[1].process_id, 4711);
  EXPECT_EQ(jobs[1].socket, "farandole-query-4711-0");
  EXPECT_THAT(local_jobs_in(""), IsEmpty());
}

// ---- With sockets ----

CoordinatorOptions options_of(int size) {
  CoordinatorOptions options;
  options.size = size;
  options.address = "unix";
  return options;
}

// Answers the next state_query of a rank.
void answer_next(Rank& rank, int number) {
  while (const auto event = rank.next_event()) {
    if (event->kind != CoordinatorEvent::Kind::state_query) continue;
    return rank->reply_state(event->query, state_of(number));
  }
  ADD_FAILURE() << "rank " << number << " was not asked";
}

// The newest socket of this process, which belongs to the coordinator that was opened last.
LocalJob newest_own_job() {
  const auto jobs = find_own_jobs(Deadline::after_seconds(10));
  const auto number = [](const LocalJob& job) { return std::stoi(job.socket.substr(job.socket.rfind('-') + 1)); };
  LocalJob newest;
  for (const LocalJob& job : jobs) {
    if (job.process_id == ::getpid() && (newest.socket.empty() || number(job) > number(newest))) newest = job;
  }
  EXPECT_FALSE(newest.socket.empty());
  return newest;
}

TEST(LocalJobs, CanBeAskedByTheirUserWithoutAKey) {
  RunningCoordinator coordinator(options_of(2));
  auto ranks = join_all(coordinator->address(), 2);
  std::thread answering([&] {
    for (int rank = 0; rank < 2; ++rank) answer_next(*ranks[static_cast<std::size_t>(rank)], rank);
  });
  const auto view = query_local_job(newest_own_job(), Deadline::after_seconds(20));
  answering.join();
  ASSERT_TRUE(view.ok()) << view.status().text();
  EXPECT_TRUE(view->all_answered());
  EXPECT_EQ(view->server, "farandole run on host-a");
  ASSERT_THAT(view->ranks, SizeIs(2));
  EXPECT_EQ(view->ranks[1].member.process_id, 101);
  EXPECT_EQ(view->ranks[1].member.host_name, "host-b");
  EXPECT_EQ(view->ranks[1].state.begun_ordered, 41u);
}

TEST(LocalJobs, AreAskedFromAfarWithTheKey) {
  CoordinatorOptions options = options_of(2);
  options.address = "tcp://127.0.0.1:0";
  RunningCoordinator coordinator(options);
  auto ranks = join_all(coordinator->address(), 2);
  std::thread answering([&] { answer_next(*ranks[0], 0); });
  ranks[1]->stop_driving();  // as if its process was stopped
  const auto view = query_job_at(coordinator->address(), kKey, Deadline::after_seconds(20));
  answering.join();
  ASSERT_TRUE(view.ok()) << view.status().text();
  EXPECT_FALSE(view->all_answered());
  EXPECT_EQ(view->ranks[0].presence, RankPresence::answered);
  EXPECT_EQ(view->ranks[1].presence, RankPresence::silent);
  const auto refused = query_job_at(coordinator->address(), "another key of a job", Deadline::after_seconds(20));
  EXPECT_EQ(refused.status().code(), Code::authentication);
}

// Through this socket no process becomes a rank, because it has not proved the key.
TEST(LocalJobs, AdmitNoRankThroughTheirSocket) {
  RunningCoordinator coordinator(options_of(1));
  const std::vector<Address> addresses{{"unix:@" + newest_own_job().socket}};
  FramedSocket socket(connect_any(addresses, Deadline::after_seconds(10)).take(), kQuerySocketKey,
                      Direction::from_coordinator);
  CoordinatorMessage hello{.kind = Kind::hello};
  hello.members = {hello_of(0, 1)};
  socket.send(hello);
  ASSERT_TRUE(socket.flush());
  ASSERT_TRUE(wait_readable(socket.fd(), Deadline::after_seconds(10)));
  std::vector<CoordinatorMessage> messages;
  EXPECT_EQ(socket.receive(messages), FramedSocket::State::closed);
  EXPECT_THAT(messages, IsEmpty());
  EXPECT_EQ(coordinator->strangers(), 1);
}

TEST(OwnQuery, IsAnsweredInTheProcessOfTheCoordinatorAndOnceAtEachStall) {
  std::atomic<int> views{0};
  CoordinatorOptions options = options_of(1);
  Event arrived = Event::make().take();
  options.on_states = [&](const JobView& view) {
    EXPECT_THAT(view.ranks, SizeIs(1));
    ++views;
    arrived.ring();
  };
  RunningCoordinator coordinator(options);
  auto ranks = join_all(coordinator->address(), 1);
  coordinator->query_states();
  answer_next(*ranks[0], 0);
  ASSERT_TRUE(wait_readable(arrived.fd(), Deadline::after_seconds(10)));
  arrived.clear();
  EXPECT_EQ(views, 1);
  (*ranks[0])->report_stall("all comm 0", "rank 0 waits", {}, 600 * kSecond);
  answer_next(*ranks[0], 0);
  ASSERT_TRUE(wait_readable(arrived.fd(), Deadline::after_seconds(10)));
  EXPECT_EQ(views, 2);
  // The same stall again, and then a publish, whose reply shows that the report has been read.
  (*ranks[0])->report_stall("all comm 0", "rank 0 waits longer", {"a", "b", std::string(kMostStallNames, 'c')},
                            600 * kSecond);
  std::optional<CoordinatorEvent> stalled;
  do {
    stalled = ranks[0]->next_event();
    ASSERT_TRUE(stalled);
    EXPECT_NE(stalled->kind, CoordinatorEvent::Kind::state_query);
  } while (stalled->why.text() != "rank 0 waits longer");
  EXPECT_EQ(stalled->kind, CoordinatorEvent::Kind::stalled);
  EXPECT_EQ(stalled->comm, "all comm 0");
  EXPECT_THAT(stalled->names, testing::ElementsAre("a", "b"));  // those that fit
  EXPECT_TRUE((*ranks[0])->publish("k", "v").ok());
  for (const CoordinatorEvent& event : ranks[0]->take_events()) {
    EXPECT_NE(event.kind, CoordinatorEvent::Kind::state_query);
  }
  EXPECT_EQ(views, 2);
}

}  // namespace
}  // namespace fdl
