// ElasticJob and ElasticMember are tested over sockets and without processes; the test plays the other end of each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <deque>
#include <map>

#include "cli/elastic/elastic_member.h"
#include "cli/elastic/job/elastic_job.h"
#include "cli/elastic/succession.h"
#include "cli/elastic/worker_listener.h"
#include "system/socket.h"
#include "tests/support/processes/other_user.h"

namespace fdl {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Action = WorkerGroup::Action;
using Kind = CoordinatorMessage::Kind;

constexpr const char* kKey = "0123456789abcdef";

std::string fresh_rendezvous() { return "unix:@farandole-test-" + random_hex(8); }

// Drives a worker group as the supervisor does, and collects its actions.
class Driven {
 public:
  explicit Driven(std::unique_ptr<WorkerGroup> workers) : workers_(std::move(workers)), poller_(Poller::make().take()) {
    EXPECT_TRUE(workers_->watch(poller_, 1000).ok());
    turn();
  }
  void turn() {
    std::array<Poller::Ready, 16> ready;
    const std::size_t count = poller_.wait(ready, Deadline::after_seconds(0.005));
    for (std::size_t i = 0; i < count; ++i) workers_->serve(ready[i].token);
    workers_->tick();
    for (Action& action : workers_->take_actions()) actions.push_back(std::move(action));
  }
  WorkerGroup& operator*() { return *workers_; }
  const Action* first(Action::Kind kind) const {
    const auto found =
        std::find_if(actions.begin(), actions.end(), [&](const Action& action) { return action.kind == kind; });
    return found == actions.end() ? nullptr : &*found;
  }
  std::vector<Action> actions;

 private:
  std::unique_ptr<WorkerGroup> workers_;
  Poller poller_;
};

template <typename Done>
bool turn_until(Driven& driven, Done done) {
  const Deadline deadline = Deadline::after_seconds(10);
  while (!done()) {
    if (deadline.passed()) return false;
    driven.turn();
  }
  return true;
}

// A rank that connects to the listener that its variables name.
class Worker {
 public:
  explicit Worker(const Action& start) : number_(start.variables.at("FARANDOLE_WORKER")) {
    const std::vector<Address> addresses = {{start.variables.at("FARANDOLE_ELASTIC")}};
    fd_ = connect_any(addresses, Deadline::after_seconds(5)).take();
    send("join " + number_ + " -1\n");
  }
  void send(const std::string& words) { ::send(fd_.get(), words.data(), words.size(), MSG_NOSIGNAL); }
  std::string received(Driven& driven) {
    turn_until(driven, [&] { return read() == 0 || text_.ends_with('\n'); });
    return std::exchange(text_, {});
  }
  std::string received_now() {
    read();
    return std::exchange(text_, {});
  }

 private:
  ssize_t read() {
    std::array<char, 512> bytes;
    const ssize_t count = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) text_.append(bytes.data(), static_cast<std::size_t>(count));
    return count;
  }

  std::string number_;
  UniqueFd fd_;
  std::string text_;
};

// Lines of workers need no proof of a key, so the kernel's word for their user is all that protects the launcher.
TEST(WorkerListeners, DisconnectAnotherUser) {
  if (!test::OtherUser::is_possible()) return;
  const auto listener = WorkerListener::open().take();
  listener->expect(0);
  test::expect_another_user_is_disconnected({listener->address()}, "join 0 -1\n", [&] { listener->serve(); });
  EXPECT_TRUE(listener->take_requests().empty());
}

TEST(WorkerListeners, ReadRequests) {
  const auto listener = WorkerListener::open().take();
  for (int worker = 0; worker < 4; ++worker) listener->expect(worker);
  const auto request = [&](const std::string& line) {
    const std::vector<Address> addresses = {{listener->address()}};
    const UniqueFd fd = connect_any(addresses, Deadline::after_seconds(5)).take();
    ::send(fd.get(), line.data(), line.size(), MSG_NOSIGNAL);
    for (int i = 0; i < 3; ++i) listener->serve();  // accepts, reads the line, finds the end
    return listener->take_requests();
  };
  const auto plain = request("join 2 -1\n");
  ASSERT_EQ(plain.size(), 1u);
  EXPECT_EQ(plain.front().worker, 2);
  EXPECT_EQ(plain.front().lost_rank, -1);
  EXPECT_FALSE(plain.front().lacks_state);
  const auto stateless = request("join 3 1 stateless\n");
  ASSERT_EQ(stateless.size(), 1u);
  EXPECT_EQ(stateless.front().lost_rank, 1);
  EXPECT_TRUE(stateless.front().lacks_state);
  for (const char* malformed : {"join 1\n", "join 1 -1 state\n", "join 1 -1stateless\n", "join 9 -1\n", "join\n"}) {
    EXPECT_TRUE(request(malformed).empty()) << malformed;
  }
}

// ---- A job on one node ----

// Two ranks; an index is the supervisor's.
class OneNode : public testing::Test {
 protected:
  void begin(double timeout_s, double start_timeout_s) {
    ElasticJob::Options options;
    options.limits = {.ranks = 2, .fewest = 1, .most = 2};
    options.coordinator.job_key = kKey;
    options.coordinator.start_timeout_s = start_timeout_s;
    options.timeout_s = timeout_s;
    auto job = ElasticJob::open(options);
    ASSERT_TRUE(job.ok()) << job.status().text();
    job_ = std::make_unique<Driven>(job.take());
    ASSERT_EQ(job_->actions.size(), 2u);
  }
  void begin_generation() {
    for (const Action& start : std::vector<Action>(job_->actions)) workers_.emplace_back(start);
    for (Worker& worker : workers_) EXPECT_THAT(worker.received(*job_), StartsWith("world 1 "));
  }
  bool is_ended(int index) {
    return turn_until(*job_, [&] {
      const Action* kill = job_->first(Action::Kind::kill);
      return kill != nullptr && kill->worker == index;
    });
  }

  std::unique_ptr<Driven> job_;
  std::deque<Worker> workers_;
};

TEST_F(OneNode, ARankThatDoesNotComeToTheFirstGenerationIsEnded) {
  begin(0.2, 30);
  const Worker first(*job_->first(Action::Kind::start));
  EXPECT_TRUE(is_ended(1));
}

TEST_F(OneNode, NoRankIsEndedBeforeOneHasCome) {
  begin(0.02, 30);
  for (int i = 0; i < 20; ++i) job_->turn();
  EXPECT_EQ(job_->first(Action::Kind::kill), nullptr);
}

TEST_F(OneNode, AReplacementThatDoesNotComeIsEnded) {
  begin(0.2, 30);
  begin_generation();
  EXPECT_TRUE((**job_).ended(1, {.by_signal = true, .number = 9}));
  EXPECT_TRUE(is_ended(2));
  EXPECT_TRUE((**job_).ended(2, {.by_signal = true, .number = 9}));
  job_->actions.clear();
  job_->turn();
  EXPECT_TRUE(job_->actions.empty());  // its place is given up
}

TEST_F(OneNode, AReplacementKeepsAFinishedJobNoLongerThanAStart) {
  begin(600, 0.1);
  begin_generation();
  EXPECT_TRUE((**job_).ended(1, {.by_signal = true, .number = 9}));
  job_->turn();
  EXPECT_FALSE((**job_).ended(0, {.by_signal = false, .number = 0}));
  EXPECT_TRUE(is_ended(2));
}

// ---- The launcher that leads; the test plays the nodes ----

class Leader : public testing::Test {
 protected:
  void SetUp() override { begin(false); }
  void begin(bool has_successors) {
    leader_.reset();
    ElasticJob::Options options;
    options.limits.ranks = 1;
    options.coordinator.job_key = kKey;
    options.coordinator.server_name = "the leader";
    options.own.number = 0;
    options.own.host = "train-0";
    ElasticJob::Several& several = options.several.emplace();
    several.limits.fewest = 2;
    several.limits.most = 3;
    several.limits.arrival_period_s = 0;
    several.limits.lost_after_s = 0.2;
    several.limits.has_successors = has_successors;
    several.rendezvous = rendezvous_;
    several.coordinator_address = "unix";
    auto job = ElasticJob::open(options);
    ASSERT_TRUE(job.ok()) << job.status().text();
    leader_ = std::make_unique<Driven>(job.take());
  }

  // A connection of a node that has proved the job's key.
  std::unique_ptr<FramedSocket> connect() {
    const std::vector<Address> addresses = {{rendezvous_}};
    UniqueFd fd = connect_any(addresses, Deadline::after_seconds(5)).take();
    Introduction introduction(Introduction::Role::client, kKey, kNodePurpose, "a node");
    EXPECT_TRUE(turn_until(*leader_, [&] {
      auto through = introduction.advance(fd.get());
      return !through.ok() || *through;
    }));
    return std::make_unique<FramedSocket>(std::move(fd), introduction.introduced().session_key,
                                          Direction::from_coordinator);
  }

  std::unique_ptr<FramedSocket> join(int number, int slots = 1, const std::string& pod = "train-1") {
    auto node = connect();
    CoordinatorMessage hello{.kind = Kind::node_hello, .key = pod};
    hello.members = {{.rank = number, .size = slots, .host_name = "h", .boot_id = "b", .process_id = 5}};
    add_to_hello(hello, "unix:@" + pod, {}, {});
    send(*node, hello);
    return node;
  }
  static void send(FramedSocket& node, const CoordinatorMessage& message) {
    node.send(message);
    node.flush();
  }
  // The next message of that kind; earlier ones are skipped. Nothing if the connection ends first.
  std::optional<CoordinatorMessage> receive(FramedSocket& node, Kind kind) {
    std::deque<CoordinatorMessage>& inbox = inboxes_[&node];
    std::optional<CoordinatorMessage> found;
    turn_until(*leader_, [&] {
      std::vector<CoordinatorMessage> messages;
      const auto state = node.receive(messages);
      inbox.insert(inbox.end(), messages.begin(), messages.end());
      while (!found && !inbox.empty()) {
        if (inbox.front().kind == kind) found = inbox.front();
        inbox.pop_front();
      }
      return found.has_value() || state != FramedSocket::State::open;
    });
    return found;
  }
  // Whether the leader closes the connection.
  bool is_closed(FramedSocket& node) {
    return turn_until(*leader_, [&] {
      std::vector<CoordinatorMessage> messages;
      return node.receive(messages) != FramedSocket::State::open;
    });
  }

  const std::string rendezvous_ = fresh_rendezvous();
  std::unique_ptr<Driven> leader_;
  std::map<FramedSocket*, std::deque<CoordinatorMessage>> inboxes_;
};

// The worker waits for its world and knows that the launcher runs.
TEST_F(Leader, AnswersAWorkerThatAsks) {
  Worker own(*leader_->first(Action::Kind::start));
  own.send("ping\n");
  EXPECT_EQ(own.received(*leader_), "pong\n");
  own.send("pings\n");
  EXPECT_EQ(own.received(*leader_), "") << "the connection is closed";
}

TEST_F(Leader, StartsRanksOnANodeAndSendsThemTheirWorld) {
  Worker own(*leader_->first(Action::Kind::start));
  auto node = join(1, 2);
  EXPECT_EQ(receive(*node, Kind::node_welcome)->rank, 1);
  const auto first = receive(*node, Kind::node_start);
  const auto second = receive(*node, Kind::node_start);
  ASSERT_TRUE(first && second);
  send(*node, {.kind = Kind::node_requests, .id = first->id, .rank = -1});
  send(*node, {.kind = Kind::node_requests, .id = second->id, .rank = -1});
  EXPECT_THAT(own.received(*leader_), StartsWith("world 1 0 3 0 1 unix:@"));
  EXPECT_THAT(receive(*node, Kind::node_input)->key, StartsWith("world 1 1 3 0 2 unix:@"));
  EXPECT_THAT(receive(*node, Kind::node_input)->key, StartsWith("world 1 2 3 1 2 unix:@"));
  send(*node, {.kind = Kind::node_leaving});
  EXPECT_EQ(own.received(*leader_), "hosts removed\n");
}

// The leader may end as soon as it has started the ranks, and the node takes over then.
TEST_F(Leader, TellsANodeWhoTakesOverBeforeItStartsRanksThere) {
  begin(true);
  auto node = join(1);
  const auto nodes = receive(*node, Kind::node_list);  // skips what came before
  ASSERT_TRUE(nodes.has_value());
  EXPECT_THAT(nodes->values, testing::Contains("unix:@train-1"));
  EXPECT_TRUE(receive(*node, Kind::node_start).has_value());
}

TEST_F(Leader, ClosesANodeThatActsForAnotherNodesWorker) {
  auto node = join(1);
  ASSERT_TRUE(receive(*node, Kind::node_start).has_value());
  send(*node, {.kind = Kind::node_requests, .id = 0, .rank = -1});  // the leader's worker
  EXPECT_TRUE(is_closed(*node));
  auto successor = join(1);
  EXPECT_TRUE(receive(*successor, Kind::node_start).has_value());  // the number is free again
  send(*successor, {.kind = Kind::node_ended, .id = ~uint64_t{0}, .number = 1});
  EXPECT_TRUE(is_closed(*successor));
}

TEST_F(Leader, ClosesANodeThatSendsALeadersMessage) {
  auto node = join(1);
  ASSERT_TRUE(receive(*node, Kind::node_start).has_value());
  send(*node, {.kind = Kind::node_kill, .id = 1});
  EXPECT_TRUE(is_closed(*node));
}

TEST_F(Leader, RefusesAnInvalidHello) {
  for (const auto& [number, slots] : std::vector<std::pair<int, int>>{{-2, 1}, {1, 0}, {1, 1 << 30}}) {
    EXPECT_TRUE(is_closed(*join(number, slots))) << number << " " << slots;
  }
  EXPECT_TRUE(is_closed(*join(1, 1, std::string(300, 'x'))));
  auto node = join(3);  // of at most 3: 0, 1 and 2
  EXPECT_THAT(receive(*node, Kind::refused)->why.text(), HasSubstr("has at most 3"));
}

TEST_F(Leader, GivesTheNumberOfASilentNodeToItsSuccessor) {
  auto silent = join(1);
  ASSERT_TRUE(receive(*silent, Kind::node_start).has_value());
  auto successor = join(1);
  EXPECT_TRUE(receive(*successor, Kind::node_welcome).has_value());
  EXPECT_TRUE(is_closed(*silent));
}

TEST_F(Leader, RefusesASecondNodeWithTheNumberOfALiveOne) {
  auto node = join(1);
  ASSERT_TRUE(receive(*node, Kind::node_start).has_value());
  auto other = join(1);
  ASSERT_TRUE(receive(*node, Kind::ping).has_value());
  send(*node, {.kind = Kind::pong});
  EXPECT_THAT(receive(*other, Kind::refused)->why.text(), HasSubstr("two nodes claim to be node 1"));
}

TEST_F(Leader, EndsANodeWhoseRanksAllFailWithTheirCode) {
  auto node = join(1);
  const auto start = receive(*node, Kind::node_start);
  ASSERT_TRUE(start.has_value());
  send(*node, {.kind = Kind::node_ended, .id = start->id, .number = 3});
  EXPECT_EQ(receive(*node, Kind::node_ends)->number, 3);
  EXPECT_EQ(leader_->first(Action::Kind::give_up), nullptr);
}

TEST_F(Leader, DismissesANodeWhoseJobHasGoneOnWithoutIt) {
  auto node = connect();
  CoordinatorMessage hello{.kind = Kind::node_hello, .key = "train-1"};
  hello.members = {{.rank = 1, .size = 1, .host_name = "h", .boot_id = "b", .process_id = 5}};
  add_to_hello(hello, "unix:@there", {.term = 1, .nodes = {}}, {{.worker = 3, .held = {.joined = 1, .rank = 0}}});
  send(*node, hello);
  const auto end = receive(*node, Kind::node_ends);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->number, 202);
  EXPECT_THAT(end->key, HasSubstr("has gone on without it"));
}

TEST_F(Leader, DrainsAllNodesWhenItIsTerminated) {
  auto node = join(1);
  ASSERT_TRUE(receive(*node, Kind::node_start).has_value());
  (**leader_).stop("terminated");
  EXPECT_TRUE((**leader_).stays());  // until the other nodes have closed
  const auto end = receive(*node, Kind::node_ends);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->number, 202);
  EXPECT_EQ(end->id, 1u);
  node.reset();
  EXPECT_TRUE(turn_until(*leader_, [&] { return !(**leader_).stays(); }));
}

// ---- What nodes know of each other ----

TEST(Succession, AMessageCarriesAllThatANodeNeedsToTakeOver) {
  const NodeList list{
      .term = 3,
      .leader = 2,
      .counts =
          {.generation = 7, .completions = 1, .replacements = 4, .restarts = 2, .state_since = 5, .has_finished = true},
      .nodes = {{0, "tcp://10.0.0.1:29500", "pod train-0"}, {2, "", "pod train-2"}}};
  EXPECT_EQ(node_list_of(*decode(encode(message_of(list)))), list);
  EXPECT_EQ(list.find(1), nullptr);
  CoordinatorMessage hello{.kind = Kind::node_hello};
  add_to_hello(hello, "unix:@here", list,
               {{.worker = 9, .local = 1, .held = {.joined = 5, .rank = 3, .requesting = true, .lacks_state = true}}});
  const auto workers = workers_of(*decode(encode(hello)));
  ASSERT_TRUE(workers && workers->size() == 1);
  EXPECT_EQ(workers->front().worker, 9);
  EXPECT_EQ(workers->front().local, 1);
  EXPECT_EQ(workers->front().held.joined, 5);
  EXPECT_EQ(workers->front().held.rank, 3);
  EXPECT_TRUE(workers->front().held.requesting);
  EXPECT_TRUE(workers->front().held.lacks_state);
}

TEST(Succession, MalformedMessagesAreNothing) {
  const NodeList list{.term = 1, .leader = 0, .counts = {}, .nodes = {{0, "tcp://10.0.0.1:29500", "train-0"}}};
  const auto is_refused = [&](auto change) {
    CoordinatorMessage message = message_of(list);
    change(message);
    return !node_list_of(message).has_value();
  };
  EXPECT_FALSE(is_refused([](CoordinatorMessage&) {}));
  EXPECT_TRUE(is_refused([](CoordinatorMessage& one) { one.ranks.pop_back(); }));
  EXPECT_TRUE(is_refused([](CoordinatorMessage& one) { one.ranks[0] = -1; }));
  EXPECT_TRUE(is_refused([](CoordinatorMessage& one) { one.values.clear(); }));
  EXPECT_TRUE(is_refused([](CoordinatorMessage& one) { one.number = 0; }));
  EXPECT_TRUE(is_refused([](CoordinatorMessage& one) { one.number = kLastTerm + 1; }));
  EXPECT_TRUE(is_refused([](CoordinatorMessage& one) { one.rank = 1; }));  // a leader that is not in the list
  EXPECT_TRUE(is_refused([](CoordinatorMessage& one) { one.members[0].rank = -1; }));
  EXPECT_TRUE(is_refused([](CoordinatorMessage& one) { one.values[0] = std::string(2000, 'x'); }));
  for (const std::vector<int>& numbers : std::vector<std::vector<int>>{{1}, {-1, 0, 0, 0, 0, 0}, {1, 0, 0, -2, 0, 0}}) {
    CoordinatorMessage hello{.kind = Kind::node_hello};
    hello.ranks = numbers;
    EXPECT_FALSE(workers_of(hello).has_value());
  }
}

// ---- A node; the test plays the leader ----

class Member : public testing::Test {
 protected:
  void start(double timeout_s = 10, bool is_led = true, double ends_after_leader_s = 0) {
    if (is_led) {
      port_ = NodePort::open({.address = rendezvous_, .job_key = kKey, .name = "the leader"}).take();
    }
    ElasticMember::Options options;
    options.own.number = 1;
    options.own.slots = 2;
    options.own.pod = "train-1";
    options.own.host = "h";
    options.rendezvous = rendezvous_;
    options.job_key = kKey;
    options.timeout_s = timeout_s;
    options.ends_after_leader_s = ends_after_leader_s;
    member_ = std::make_unique<Driven>(ElasticMember::open(options).take());
    if (is_led) {
      ASSERT_TRUE(receive(Kind::node_hello));
    }
  }
  bool receive(Kind kind) {
    return turn_until(*member_, [&] {
      port_->serve();
      for (NodePort::Received& one : port_->take_received()) {
        received_ = std::move(one);
        if (!received_.is_closed && received_.message.kind == kind) return true;
      }
      return false;
    });
  }
  bool ends_with(int code, const std::string& words) {
    const bool has_ended = turn_until(*member_, [&] {
      if (port_) port_->serve();
      return !(**member_).stays();
    });
    const Action* end = member_->first(Action::Kind::give_up);
    if (end != nullptr) {
      EXPECT_THAT(end->text, HasSubstr(words));
    }
    return has_ended && end != nullptr && end->exit_code == code;
  }
  void send(const CoordinatorMessage& message) { port_->send(received_.peer, message); }

  const std::string rendezvous_ = fresh_rendezvous();
  std::unique_ptr<NodePort> port_;
  std::unique_ptr<Driven> member_;
  NodePort::Received received_;
};

TEST_F(Member, IntroducesItselfAndForwardsLinesOfItsRanks) {
  start();
  EXPECT_EQ(received_.message.key, "train-1");
  EXPECT_EQ(received_.message.members.at(0).size, 2);
  send({.kind = Kind::node_start, .id = 7, .number = 0, .rank = 3});
  ASSERT_TRUE(turn_until(*member_, [&] { return member_->first(Action::Kind::start) != nullptr; }));
  const Action start = *member_->first(Action::Kind::start);
  EXPECT_EQ(start.variables.at("FARANDOLE_LOCAL_RANK"), "0");
  Worker worker(start);
  ASSERT_TRUE(receive(Kind::node_requests));
  EXPECT_EQ(received_.message.id, 7u);
  send({.kind = Kind::node_input, .id = 7, .key = "world 1 3 4 1 2 unix:@x?coordinator=1"});
  EXPECT_EQ(worker.received(*member_), "world 1 3 4 1 2 unix:@x?coordinator=1\n");
  send({.kind = Kind::ping});
  EXPECT_TRUE(receive(Kind::pong));
  EXPECT_TRUE((**member_).ended(0, {.by_signal = true, .number = 9}));
  ASSERT_TRUE(receive(Kind::node_ended));
  EXPECT_EQ(received_.message.number, -9);
}

// Their ranks leave with callbacks if they get SIGTERM before they read that the job ends.
TEST_F(Member, ReleasesRanksOfATerminatedJobAfterTheyHaveGotTheSignal) {
  start();
  send({.kind = Kind::node_start, .id = 7, .number = 0, .rank = 0});
  ASSERT_TRUE(turn_until(*member_, [&] { return member_->first(Action::Kind::start) != nullptr; }));
  Worker worker(*member_->first(Action::Kind::start));
  ASSERT_TRUE(receive(Kind::node_requests));
  send({.kind = Kind::node_ends, .id = 1, .number = 202, .key = "the leader was requested to end"});
  ASSERT_TRUE(turn_until(*member_, [&] {
    port_->serve();
    return member_->first(Action::Kind::drain) != nullptr;
  }));
  EXPECT_EQ(worker.received_now(), "");
  // As the supervisor does, until no actions are left.
  for (const Action& action : (**member_).take_actions()) member_->actions.push_back(action);
  EXPECT_EQ(worker.received(*member_), "end the leader was requested to end\n");
}

TEST_F(Member, NotifiesItsLeaderWhenItLeaves) {
  start();
  (**member_).stop("terminated");
  EXPECT_TRUE(receive(Kind::node_leaving));
  EXPECT_FALSE((**member_).stays());
}

TEST_F(Member, EndsWithAnErrorWhenItsLeaderIsGone) {
  start();
  port_.reset();
  EXPECT_TRUE(ends_with(202, "the leader, which leads the job, is gone"));
}

TEST_F(Member, EndsWhenItsLeaderSendsAnInvalidMessage) {
  for (const CoordinatorMessage& nonsense :
       {CoordinatorMessage{.kind = Kind::node_hello}, CoordinatorMessage{.kind = Kind::node_start, .id = 7}}) {
    start();
    send({.kind = Kind::node_start, .id = 7});
    send(nonsense);
    EXPECT_TRUE(ends_with(202, "sent a message that a leader does not send"));
    port_.reset();
  }
}

TEST_F(Member, EndsWithTheLeadersCodeAndSilentlyOnSuccess) {
  start();
  send({.kind = Kind::node_ends, .number = 201, .key = "too few"});
  EXPECT_TRUE(ends_with(201, "too few"));
  port_.reset();
  start();
  send({.kind = Kind::node_ends, .number = 0});
  EXPECT_FALSE(ends_with(0, ""));
  EXPECT_TRUE(member_->actions.empty());
}

// The leader ends when all connections are closed, and this node after it.
TEST_F(Member, InAPodEndsSomeTimeAfterALeaderThatSucceeded) {
  start(10, true, 0.5);
  const Deadline earliest = Deadline::after_seconds(0.5);
  send({.kind = Kind::node_ends, .number = 0});
  port_->hang_up(received_.peer);
  EXPECT_TRUE(turn_until(*member_, [&] {
    port_->serve();
    return port_->is_empty();
  }));
  EXPECT_TRUE((**member_).stays());
  EXPECT_FALSE(ends_with(0, ""));
  EXPECT_TRUE(earliest.passed());
  EXPECT_TRUE(member_->actions.empty());
}

TEST_F(Member, InAPodEndsAtOnceWhenItIsTerminatedAfterASuccess) {
  start(10, true, 60);
  send({.kind = Kind::node_ends, .number = 0});
  EXPECT_TRUE(turn_until(*member_, [&] {
    port_->serve();
    return (**member_).has_succeeded();
  }));
  (**member_).stop("");
  EXPECT_FALSE((**member_).stays());
}

TEST_F(Member, InAPodEndsAtOnceAfterAFailure) {
  start(10, true, 60);
  send({.kind = Kind::node_ends, .number = 201, .key = "too few"});
  EXPECT_TRUE(ends_with(201, "too few"));
}

TEST_F(Member, GivesUpItsSearchAtTheTimeoutOrWhenItIsTerminated) {
  start(0.05, false);
  EXPECT_TRUE(ends_with(200, "did not find the node that leads the job at"));
  start(1000, false);
  EXPECT_TRUE((**member_).stays());
  (**member_).stop("terminated");
  EXPECT_FALSE((**member_).stays());
  const Deadline deadline = Deadline::after_seconds(8);
  member_.reset();  // joins the thread of the search
  EXPECT_FALSE(deadline.passed());
}

}  // namespace
}  // namespace fdl
