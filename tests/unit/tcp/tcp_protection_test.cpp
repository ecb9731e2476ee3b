// Tests of protected TcpStreams: the test carries their bytes itself, and changes, repeats, drops and reorders them.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/participant.h"
#include "transports/tcp/stream.h"

namespace fdl {
namespace {

using namespace fdl::test;
using Outcome = TcpStream::Outcome;

std::unique_ptr<StreamProtection> protection(Security security, char sends, char receives) {
  return std::make_unique<StreamProtection>(StreamProtection{security, Seal(std::string(32, sends), Seal::End::sender),
                                                             Seal(std::string(32, receives), Seal::End::receiver)});
}

// A sender and a receiver. Bytes between them pass through carry().
class Cable {
 public:
  explicit Cable(Security security, char receiver_sends = 'b', char receiver_receives = 'a')
      : sender(end(near_), protection(security, 'a', 'b')),
        receiver(end(far_), protection(security, receiver_sends, receiver_receives)) {}

  // All that the sender has sent and carry() has not taken yet.
  std::string take() {
    std::string bytes;
    char some[65536];
    for (ssize_t count; (count = ::recv(near_.get(), some, sizeof some, MSG_DONTWAIT)) > 0;) {
      bytes.append(some, static_cast<std::size_t>(count));
    }
    return bytes;
  }
  void give(std::string_view bytes) {
    ASSERT_EQ(::send(far_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT), static_cast<ssize_t>(bytes.size()));
  }
  void close() { far_.reset(); }
  // Sends all posted slices and returns their bytes on the wire.
  std::string send_all() {
    std::string bytes;
    while (sender.sending()) {
      sender.push();
      bytes += take();
    }
    return bytes;
  }
  // Receives until the stream ends or nothing is left.
  Outcome receive() {
    Outcome outcome = Outcome::moved;
    while (outcome == Outcome::moved && receiver.receiving()) outcome = receiver.pull();
    return outcome;
  }

 private:
  static UniqueFd end(UniqueFd& other) {
    int fds[2];
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0, "socketpair");
    const int size = 4 << 20;
    for (const int fd : fds) ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    other = UniqueFd(fds[1]);
    return UniqueFd(fds[0]);
  }

  UniqueFd near_;
  UniqueFd far_;

 public:
  TcpStream sender;
  TcpStream receiver;
};

// Slices of these sizes, posted at both ends.
class Slices {
 public:
  Slices(Cable& cable, const std::vector<std::size_t>& sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      sent.push_back(pattern(sizes[i], i + 1));
      received.emplace_back(sizes[i]);
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      cable.sender.post_send(7, sizes[i], sent[i]);
      cable.receiver.post_recv(7, sizes[i], received[i]);
    }
  }
  bool first_are_equal(uint64_t count) const {
    for (uint64_t i = 0; i < count; ++i) {
      if (!same_bytes(sent[i], received[i])) return false;
    }
    return true;
  }
  std::vector<std::vector<std::byte>> sent, received;
};

class ProtectedStream : public testing::TestWithParam<Security> {
 protected:
  Cable cable_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(All, ProtectedStream, testing::Values(Security::integrity, Security::encrypt),
                         [](const auto& one) { return std::string(name_of(one.param)); });

TEST_P(ProtectedStream, SlicesOfAllSizesArrive) {
  const std::vector<std::size_t> sizes{0, 1, 15, 16, 17, 0, 4096, 262'144, 262'143, 600'001, 3};
  const Slices slices(cable_, sizes);
  while (cable_.receiver.receiving()) {
    if (cable_.sender.sending()) cable_.sender.push();
    // In pieces, so that headers and tags are cut.
    const std::string bytes = cable_.take();
    for (std::size_t at = 0; at < bytes.size(); at += 50'021) {
      cable_.give(std::string_view(bytes).substr(at, 50'021));
      const Outcome outcome = cable_.receiver.pull();
      ASSERT_TRUE(outcome == Outcome::moved || outcome == Outcome::nothing);
    }
    const Outcome outcome = cable_.receive();
    ASSERT_TRUE(outcome == Outcome::moved || outcome == Outcome::nothing);
  }
  EXPECT_TRUE(slices.first_are_equal(sizes.size()));
}

TEST_P(ProtectedStream, OnlyEncryptionHidesTheBytes) {
  const Slices slices(cable_, {100});
  const std::string wire = cable_.send_all();
  const bool visible = wire.find(text_of(slices.sent[0])) != std::string::npos;
  EXPECT_EQ(visible, GetParam() == Security::integrity);
}

TEST_P(ProtectedStream, EveryChangedByteIsDetected) {
  const std::vector<std::size_t> sizes{5, 0, 100};
  const std::vector<std::size_t> ends{32 + 5 + 16, 32 + 5 + 16 + 32, 32 + 5 + 16 + 32 + 32 + 100 + 16};
  for (std::size_t at = 0; at < ends.back(); ++at) {
    Cable cable(GetParam());
    const Slices slices(cable, sizes);
    std::string wire = cable.send_all();
    ASSERT_EQ(wire.size(), ends.back());
    wire[at] = static_cast<char>(wire[at] ^ 0x10);
    cable.give(wire);
    ASSERT_EQ(cable.receive(), Outcome::forged) << "byte " << at;
    const uint64_t whole = at < ends[0] ? 0 : at < ends[1] ? 1 : 2;
    EXPECT_EQ(cable.receiver.received(), whole) << "byte " << at;
    EXPECT_TRUE(slices.first_are_equal(whole));
  }
}

TEST_P(ProtectedStream, RepeatedLostAndReorderedSlicesAreDetected) {
  const std::size_t each = 32 + 40 + 16;
  const std::vector<std::vector<std::size_t>> orders{{0, 0, 1}, {0, 2, 1}, {1, 0, 2}, {1, 2, 2}, {0, 1, 0}, {2, 1, 0}};
  for (const auto& order : orders) {
    Cable cable(GetParam());
    const Slices slices(cable, {40, 40, 40});
    const std::string wire = cable.send_all();
    for (const std::size_t slice : order) cable.give(std::string_view(wire).substr(slice * each, each));
    EXPECT_EQ(cable.receive(), Outcome::forged);
    EXPECT_TRUE(slices.first_are_equal(cable.receiver.received()));
  }
}

TEST_P(ProtectedStream, DroppedAndAddedBytesAreDetected) {
  for (const std::size_t at : {3u, 20u, 40u, 80u}) {
    for (const bool adds : {false, true}) {
      Cable cable(GetParam());
      const Slices slices(cable, {40, 40});
      std::string wire = cable.send_all();
      adds ? wire.insert(at, "x") : wire.erase(at, 1);
      cable.give(wire);
      EXPECT_EQ(cable.receive(), Outcome::forged) << "byte " << at;
      EXPECT_EQ(cable.receiver.received(), 0u);
    }
  }
}

// The other direction has other keys.
TEST_P(ProtectedStream, ReflectedSlicesAreDetected) {
  const Slices slices(cable_, {40});
  const std::string wire = cable_.send_all();
  // A stream with the keys of the sender, to which its own bytes come back.
  Cable back(GetParam(), 'a', 'b');
  std::vector<std::byte> received(40);
  back.receiver.post_recv(7, 40, received);
  back.give(wire);
  EXPECT_EQ(back.receive(), Outcome::forged);
}

TEST_P(ProtectedStream, AGoodbyeIsAuthentic) {
  cable_.sender.leave();
  cable_.give(cable_.take());
  EXPECT_EQ(cable_.receiver.peek(), Outcome::left);
  std::byte byte{};
  cable_.receiver.post_recv(7, 1, {&byte, 1});
  EXPECT_EQ(cable_.receiver.pull(), Outcome::left);

  Cable forged(GetParam());
  forged.give(std::string("\0\0\0\0FDBY\0\0\0\0\0\0\0\0", 16) + std::string(16, 't'));
  EXPECT_EQ(forged.receiver.peek(), Outcome::unread);
  forged.receiver.post_recv(7, 1, {&byte, 1});
  EXPECT_EQ(forged.receiver.pull(), Outcome::forged);
}

// A rank may leave while slices are queued that the kernel has not accepted.
TEST_P(ProtectedStream, AGoodbyeTakesThePlaceOfUnsentSlices) {
  const std::vector<std::byte> unsent(10);
  const Slices slices(cable_, {100});
  cable_.give(cable_.send_all());
  ASSERT_EQ(cable_.receive(), Outcome::moved);
  cable_.sender.post_send(7, 10, unsent);
  cable_.sender.post_send(7, 10, unsent);
  cable_.sender.leave();
  cable_.give(cable_.take());
  EXPECT_EQ(cable_.receiver.peek(), Outcome::left);
}

TEST_P(ProtectedStream, AnotherSizeIsAMismatchAndNoForgery) {
  std::vector<std::byte> slice(8);
  cable_.sender.post_send(7, 8, slice);
  cable_.give(cable_.send_all());
  cable_.receiver.post_recv(7, 4, Bytes(slice).first(4));
  EXPECT_EQ(cable_.receiver.pull(), Outcome::mismatch);
  EXPECT_EQ(cable_.receiver.arrived().bytes, 8u);
}

TEST_P(ProtectedStream, ACutConnectionIsClosed) {
  const Slices slices(cable_, {40});
  cable_.give(cable_.send_all().substr(0, 60));
  cable_.close();
  EXPECT_EQ(cable_.receive(), Outcome::closed);
  EXPECT_EQ(cable_.receiver.received(), 0u);
}

}  // namespace
}  // namespace fdl
