// NodePort is tested over real sockets: it drops connections without the key, and those that stay silent or send
// invalid data.
#include "cli/elastic/node_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "bootstrap/coordinator/find_coordinator.h"
#include "cli/elastic/node_search.h"
#include "system/socket.h"
#include "tests/support/processes/other_user.h"

namespace fdl {
namespace {

using testing::HasSubstr;
using Kind = CoordinatorMessage::Kind;

constexpr const char* kKey = "0123456789abcdef";

class NodePorts : public testing::Test {
 protected:
  void SetUp() override { open(5); }
  void open(double stranger_timeout_s) {
    auto port = NodePort::open({.address = "tcp://127.0.0.1:0",
                                .job_key = kKey,
                                .name = "the leader",
                                .stranger_timeout_s = stranger_timeout_s});
    ASSERT_TRUE(port.ok()) << port.status().text();
    port_ = port.take();
  }

  // Serves until `done`, within some seconds.
  template <typename Done>
  bool serve_until(Done done) {
    const Deadline deadline = Deadline::after_seconds(10);
    while (!done()) {
      if (deadline.passed()) return false;
      wait_readable(port_->fd(), Deadline::after_seconds(0.01));
      port_->serve();
      port_->tick();
      for (NodePort::Received& one : port_->take_received()) received_.push_back(std::move(one));
    }
    return true;
  }

  UniqueFd connect() {
    const std::vector<Address> addresses = {{port_->address().substr(6)}};
    auto fd = connect_any(addresses, Deadline::after_seconds(5));
    EXPECT_TRUE(fd.ok()) << fd.status().text();
    return fd.take();
  }

  // Connects and authenticates while the port is served; null if the port refuses.
  std::unique_ptr<FramedSocket> join(const char* key = kKey, std::string_view purpose = kNodePurpose) {
    UniqueFd fd = connect();
    Introduction introduction(Introduction::Role::client, key, purpose, "a node");
    bool through = false;
    bool failed = false;
    serve_until([&] {
      auto advanced = introduction.advance(fd.get());
      failed = !advanced.ok();
      through = advanced.ok() && *advanced;
      return through || failed;
    });
    if (!through) return nullptr;
    return std::make_unique<FramedSocket>(std::move(fd), introduction.introduced().session_key,
                                          Direction::from_coordinator);
  }

  static void send(FramedSocket& socket, const CoordinatorMessage& message) {
    socket.send(message);
    socket.flush();
  }
  static CoordinatorMessage hello() {
    CoordinatorMessage message{.kind = Kind::node_hello, .key = "train-1"};
    message.members = {{.rank = 1, .size = 2, .host_name = "train-1", .boot_id = "b", .process_id = 5}};
    return message;
  }
  bool is_closed(FramedSocket& socket) {
    std::vector<CoordinatorMessage> messages;
    return serve_until([&] { return socket.receive(messages) != FramedSocket::State::open; });
  }

  NodeSearch::Result search(NodeSearch::Options options) {
    options.job_key = kKey;
    options.mine = "a node";
    options.timeout_s = 0;
    auto search = NodeSearch::start(std::move(options));
    std::optional<NodeSearch::Result> found;
    EXPECT_TRUE(search.ok() && serve_until([&] { return (found = (*search)->take()).has_value(); }));
    return found ? std::move(*found) : NodeSearch::Result();
  }
  std::string own() const { return port_->address().substr(6); }  // without tcp://

  std::unique_ptr<NodePort> port_;
  std::vector<NodePort::Received> received_;
};

TEST_F(NodePorts, ExchangesMessagesWithANodeThatHasTheKey) {
  auto node = join();
  ASSERT_NE(node, nullptr);
  send(*node, hello());
  ASSERT_TRUE(serve_until([&] { return !received_.empty(); }));
  EXPECT_EQ(received_[0].message.key, "train-1");
  port_->send(received_[0].peer, {.kind = Kind::node_welcome, .rank = 1, .key = "the leader"});
  std::vector<CoordinatorMessage> messages;
  ASSERT_TRUE(serve_until([&] { return node->receive(messages), !messages.empty(); }));
  EXPECT_EQ(messages[0].kind, Kind::node_welcome);
  node.reset();
  ASSERT_TRUE(serve_until([&] { return received_.size() == 2; }));
  EXPECT_TRUE(received_[1].is_closed);
  EXPECT_TRUE(port_->is_empty());
}

TEST_F(NodePorts, DeliversTheLastMessagesBeforeItCloses) {
  auto node = join();
  ASSERT_NE(node, nullptr);
  send(*node, hello());
  ASSERT_TRUE(serve_until([&] { return !received_.empty(); }));
  send(*node, {.kind = Kind::node_leaving});  // ignored after hang_up()
  port_->send(received_[0].peer, {.kind = Kind::node_ends, .number = 202, .key = "over"});
  port_->hang_up(received_[0].peer);
  port_->send(received_[0].peer, {.kind = Kind::ping});  // dropped after hang_up()
  std::vector<CoordinatorMessage> messages;
  FramedSocket::State state = FramedSocket::State::open;
  ASSERT_TRUE(serve_until([&] { return (state = node->receive(messages)) != FramedSocket::State::open; }));
  EXPECT_EQ(state, FramedSocket::State::closed);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].number, 202);
  node.reset();
  EXPECT_TRUE(serve_until([&] { return port_->is_empty(); }));
  EXPECT_EQ(received_.size(), 1u);
}

// ---- Invalid connections ----

TEST_F(NodePorts, RefusesAConnectionWithAnotherKey) {
  EXPECT_EQ(join("another key of 16+"), nullptr);
  EXPECT_TRUE(serve_until([&] { return port_->is_empty(); }));
  EXPECT_EQ(port_->strangers(), 1);
  EXPECT_TRUE(received_.empty());
}

TEST_F(NodePorts, RefusesARankThatHasTheKey) {
  EXPECT_EQ(join(kKey, kCoordinatorPurpose), nullptr);
  EXPECT_TRUE(serve_until([&] { return port_->is_empty(); }));
}

TEST_F(NodePorts, ClosesAConnectionThatSendsGarbage) {
  const UniqueFd fd = connect();
  const std::string garbage(4096, 'x');
  ::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(serve_until([&] { return port_->strangers() == 1; }));
  EXPECT_TRUE(port_->is_empty());
}

TEST_F(NodePorts, ClosesAConnectionAfterAFrameThatIsTooLongOrUnsealed) {
  for (const bool too_long : {true, false}) {
    auto node = join();
    ASSERT_NE(node, nullptr);
    send(*node, hello());
    std::string frame(kFrameHead + 64, 'z');
    const uint32_t length = too_long ? 0x7fffffff : 64;
    std::memcpy(frame.data(), &length, sizeof length);
    ::send(node->fd(), frame.data(), frame.size(), MSG_NOSIGNAL);
    EXPECT_TRUE(is_closed(*node));
  }
  EXPECT_EQ(port_->strangers(), 2);
  ASSERT_EQ(received_.size(), 4u);
  EXPECT_TRUE(received_[1].is_closed && received_[3].is_closed);
}

TEST_F(NodePorts, ClosesAConnectionWithoutExactlyOneHelloAtTheBeginning) {
  auto hasty = join();
  ASSERT_NE(hasty, nullptr);
  send(*hasty, {.kind = Kind::node_leaving});
  EXPECT_TRUE(is_closed(*hasty));
  EXPECT_TRUE(received_.empty());
  auto twice = join();
  ASSERT_NE(twice, nullptr);
  send(*twice, hello());
  send(*twice, hello());
  EXPECT_TRUE(is_closed(*twice));
  ASSERT_EQ(received_.size(), 2u);
  EXPECT_TRUE(received_[1].is_closed);
}

TEST_F(NodePorts, LimitsTheNumberOfSilentConnections) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 65; ++i) silent.push_back(connect());
  EXPECT_TRUE(serve_until([&] { return port_->strangers() == 1; }));
  EXPECT_FALSE(port_->is_empty());
}

TEST_F(NodePorts, DisconnectsAnotherUserOfItsHost) {
  if (!test::OtherUser::is_possible()) return;
  auto port =
      NodePort::open({.address = "unix:@farandole-test-" + random_hex(8), .job_key = kKey, .name = "the leader"});
  ASSERT_TRUE(port.ok()) << port.status().text();
  port_ = port.take();
  test::expect_another_user_is_disconnected({port_->address()}, "", [this] { port_->serve(); });
  EXPECT_EQ(port_->strangers(), 1);
}

TEST_F(NodePorts, ASearchRefusesAnAddressAtWhichAnotherUserListens) {
  if (!test::OtherUser::is_possible()) return;
  const std::string address = "unix:@farandole-test-" + random_hex(8);
  const auto listener = test::listen_as_another_user(address);
  const NodeSearch::Result result = search({.targets = {address}});
  EXPECT_EQ(result.outcome, NodeSearch::Outcome::silent);
  EXPECT_THAT(result.failure.text(), HasSubstr("a process of another user listens at this address"));
}

TEST_F(NodePorts, ClosesSilentConnectionsAfterATimeout) {
  open(0.1);
  const UniqueFd silent = connect();
  auto introduced = join();
  ASSERT_NE(introduced, nullptr);
  EXPECT_TRUE(serve_until([&] { return port_->strangers() == 2; }));
  EXPECT_TRUE(port_->is_empty());
  EXPECT_TRUE(port_->next().is_never());
}

TEST_F(NodePorts, ReportsAPortThatIsInUse) {
  auto other = NodePort::open({.address = "tcp://" + port_->address().substr(6), .job_key = kKey, .name = "x"});
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.status().text(), HasSubstr("in use"));
}

// ---- Searches ----

using Outcome = NodeSearch::Outcome;

TEST_F(NodePorts, ASearchFindsANodeByItsAddress) {
  const NodeSearch::Result found = search({.targets = {port_->address()}});
  EXPECT_EQ(found.outcome, Outcome::answered);
  EXPECT_EQ(found.place, port_->address());
  EXPECT_EQ(found.introduced.peer, "the leader");
}

// A node that is silent may have listed loopback too, where this node listens.
TEST_F(NodePorts, ASearchDoesNotAskThisNodeForAnotherOne) {
  const NodeSearch::Result found = search({.targets = {port_->address()}, .own = {own()}});
  EXPECT_EQ(found.outcome, Outcome::silent);
  EXPECT_EQ(found.tried.at(port_->address()), Outcome::silent);
}

TEST_F(NodePorts, ASearchAsksEachAddressOfANameThatStandsForAllNodes) {
  const std::string all = "dns://" + own();
  const NodeSearch::Result found = search({.targets = {all}});
  EXPECT_EQ(found.outcome, Outcome::answered);
  EXPECT_EQ(found.place, port_->address());
  EXPECT_THAT(found.named, testing::ElementsAre(port_->address()));
  EXPECT_FALSE(found.is_named);
  const NodeSearch::Result alone = search({.targets = {all}, .own = {own()}});
  EXPECT_EQ(alone.outcome, Outcome::silent);
  EXPECT_TRUE(alone.is_named && alone.tried.empty());
  EXPECT_THAT(alone.failure.text(), HasSubstr("has no address of another node"));
}

TEST_F(NodePorts, ASearchReportsANameThatDoesNotResolve) {
  const NodeSearch::Result found = search({.targets = {"dns://no-such-host.invalid:1"}});
  EXPECT_EQ(found.outcome, Outcome::silent);
  EXPECT_FALSE(found.is_named);
  EXPECT_THAT(found.failure.text(), HasSubstr("'no-such-host.invalid' does not resolve"));
}

TEST_F(NodePorts, ASearchTriesPlacesThatWereAskedLastOrNotAtAll) {
  auto other = NodePort::open({.address = "tcp://127.0.0.1:0", .job_key = kKey, .name = "another one"});
  ASSERT_TRUE(other.ok());
  const std::string refused = (*other)->address();
  other->reset();
  const NodeSearch::Result last = search({.targets = {port_->address(), refused}, .asked = {port_->address()}});
  EXPECT_EQ(last.outcome, Outcome::answered);
  EXPECT_EQ(last.tried.at(refused), Outcome::refused);  // it came first
  const NodeSearch::Result rest =
      search({.targets = {port_->address(), refused}, .asked = {port_->address()}, .skips_asked = true});
  EXPECT_EQ(rest.outcome, Outcome::refused);
  EXPECT_EQ(rest.tried.size(), 1u);
}

}  // namespace
}  // namespace fdl
