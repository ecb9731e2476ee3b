// Tests of FramedSocket: messages of any length arrive in order over a slow connection, and long ones are not copied.
#include "bootstrap/rendezvous/framed_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

namespace fdl {
namespace {

using ::testing::IsEmpty;

const std::string kKey(32, 'k');

SharedMessage message_of(std::size_t bytes, int number) {
  CoordinatorMessage message{.kind = CoordinatorMessage::Kind::reply};
  message.number = number;
  message.value = std::string(bytes, static_cast<char>('a' + number % 26));
  return std::make_shared<const EncodedMessage>(encode(message));
}

struct Ends {
  Ends() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    const int small = 4096;  // so that a long message needs many turns
    EXPECT_EQ(::setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    coordinator = std::make_unique<FramedSocket>(UniqueFd(fds[0]), kKey, Direction::to_coordinator);
    rank = std::make_unique<FramedSocket>(UniqueFd(fds[1]), kKey, Direction::from_coordinator);
  }
  std::unique_ptr<FramedSocket> coordinator;
  std::unique_ptr<FramedSocket> rank;
};

TEST(FramedSocket, SendsLongAndShortMessagesInOrder) {
  Ends ends;
  // Lengths on both sides of the one from which a message is not copied, next to each other in every way.
  std::vector<SharedMessage> messages;
  for (const std::size_t bytes : {0, 100, 300'000, 20, 16'000, 16'384, 70'000, 70'000, 1, 40'000}) {
    messages.push_back(message_of(bytes, static_cast<int>(messages.size())));
  }
  std::vector<CoordinatorMessage> received;
  std::size_t unsent = 0;
  for (int turn = 0; turn < 2; ++turn) {
    for (const SharedMessage& one : messages) {
      ends.coordinator->send_encoded(one);
      unsent += kFrameHead + one->bytes().size();
      EXPECT_LE(ends.coordinator->unsent_bytes(), unsent);
      const bool is_open = turn == 0 || ends.coordinator->flush();  // at once, or after all
      ASSERT_TRUE(is_open);
    }
    EXPECT_TRUE(turn == 1 || ends.coordinator->unsent_bytes() == unsent);
    while (ends.coordinator->unsent_bytes() > 0) {
      ASSERT_TRUE(ends.coordinator->flush());
      ASSERT_EQ(ends.rank->receive(received), FramedSocket::State::open);
    }
    ASSERT_EQ(ends.rank->receive(received), FramedSocket::State::open);
  }
  ASSERT_EQ(received.size(), 2 * messages.size());
  for (std::size_t i = 0; i < received.size(); ++i) {
    EXPECT_EQ(encode(received[i]), messages[i % messages.size()]->bytes()) << i;
  }
}

TEST(FramedSocket, KeepsALongMessageOnceForAllConnections) {
  const SharedMessage table = message_of(400'000, 1);
  const SharedMessage small = message_of(1000, 2);
  std::vector<Ends> all(20);
  for (Ends& ends : all) {
    ends.coordinator->send_encoded(table);
    ends.coordinator->send_encoded(small);
    ASSERT_TRUE(ends.coordinator->flush());
    EXPECT_GT(ends.coordinator->unsent_bytes(), 300'000u) << "the connection is slow";
  }
  EXPECT_EQ(table.use_count(), 21);
  EXPECT_EQ(small.use_count(), 1) << "it is copied behind the head of its frame";
  for (Ends& ends : all) {
    std::vector<CoordinatorMessage> received;
    while (received.size() < 2) {
      ASSERT_TRUE(ends.coordinator->flush());
      ASSERT_EQ(ends.rank->receive(received), FramedSocket::State::open);
    }
    EXPECT_EQ(encode(received[0]), table->bytes());
    EXPECT_EQ(encode(received[1]), small->bytes());
  }
  EXPECT_EQ(table.use_count(), 1);
}

TEST(FramedSocket, DropsWhatAConnectionThatHasEndedDoesNotTake) {
  Ends ends;
  const SharedMessage table = message_of(400'000, 1);
  ends.coordinator->send_encoded(table);
  ASSERT_TRUE(ends.coordinator->flush());
  ends.rank.reset();
  EXPECT_FALSE(ends.coordinator->flush());
  EXPECT_EQ(ends.coordinator->unsent_bytes(), 0u);
  EXPECT_EQ(table.use_count(), 1);
  std::vector<CoordinatorMessage> received;
  EXPECT_EQ(ends.coordinator->receive(received), FramedSocket::State::closed);
  EXPECT_THAT(received, IsEmpty());
}

}  // namespace
}  // namespace fdl
