// Tests of ControlChannel over a transport that changes, repeats and swaps what it sends.
#include "runtime/named/control_channel.h"

#include <gmock/gmock.h>

#include <deque>
#include <functional>

#include "tests/support/thread_ranks.h"

namespace fdl::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Passes each sent slice of channel 1 through `edit`, with its number. The rest is loopback's.
class EditingTransport final : public Transport {
 public:
  using Edit = std::function<void(int number, std::vector<std::byte>& bytes)>;
  EditingTransport(std::unique_ptr<Transport> inner, Edit edit) : inner_(std::move(inner)), edit_(std::move(edit)) {}
  std::string_view name() const override { return inner_->name(); }
  std::optional<Ticket> send(Channel channel, uint32_t tag, ConstBytes bytes) override {
    if (channel.index != 1) return inner_->send(channel, tag, bytes);
    auto& copy = kept_.emplace_back(bytes.begin(), bytes.end());
    edit_(static_cast<int>(kept_.size()) - 1, copy);
    auto ticket = inner_->send(channel, tag, copy);
    if (!ticket) kept_.pop_back();
    return ticket;
  }
  std::optional<Ticket> recv(Channel channel, uint32_t tag, Bytes bytes) override {
    return inner_->recv(channel, tag, bytes);
  }
  bool done(Ticket ticket) const override { return inner_->done(ticket); }
  bool progress() override { return inner_->progress(); }
  Status peer_status(int peer) const override { return inner_->peer_status(peer); }
  Status status() const override { return inner_->status(); }
  int wake_fd() const override { return inner_->wake_fd(); }
  bool prepare_to_sleep() override { return inner_->prepare_to_sleep(); }
  void finish_sleep() override { inner_->finish_sleep(); }

 private:
  std::unique_ptr<Transport> inner_;
  Edit edit_;
  std::deque<std::vector<std::byte>> kept_;
};

// Rank 1 sends to rank 0. Both have the session key, and `edit` sees what rank 1 sends.
class ControlChannelTest : public testing::Test {
 protected:
  void connect(const EditingTransport::Edit& edit, std::vector<bool> by_memory = {},
               std::string key = "a session key") {
    const std::string id = unique_id();
    run_ranks(2, [&](int rank) {
      const Membership membership = make_membership(id, rank, 2, config_);
      Communicator::Parts parts{.id = "all", .rank = rank, .members = membership.members, .config = &config_};
      parts.session_key = key;
      parts.peers_by_memory = by_memory;
      parts.shape = {.ranks = 2, .hosts = 1, .ranks_per_host = 2};
      parts.transport = require(connect_loopback(membership));
      if (rank == 1) parts.transport = std::make_unique<EditingTransport>(std::move(parts.transport), edit);
      comms_[static_cast<std::size_t>(rank)] = require(Communicator::make(std::move(parts)));
    });
    for (std::size_t rank = 0; rank < 2; ++rank)
      channels_[rank] = std::make_unique<ControlChannel>(*comms_[rank], std::vector<int>{1 - static_cast<int>(rank)});
  }
  void TearDown() override { end(); }
  // The communicators first: they use the memory of a channel until its messages have ended.
  void end() {
    for (auto& comm : comms_) {
      if (!comm) continue;
      comm->interrupt(Status(Code::shut_down, "the test has ended"));
      comm->progress();
    }
    for (auto& channel : channels_) channel.reset();
  }
  void send(std::size_t bytes, char fill = 'm') {
    channels_[1]->send(0, std::vector<std::byte>(bytes, static_cast<std::byte>(fill)));
  }
  // Drives both ends until nothing moves.
  void drive() {
    for (int idle = 0; idle < 100; ++idle) {
      bool moved = false;
      for (std::size_t rank = 0; rank < 2; ++rank) {
        moved |= comms_[rank]->progress();
        moved |= channels_[rank]->progress([&](int, ConstBytes bytes) { received_.emplace_back(text_of(bytes)); },
                                           [&](int peer, const Status& why) { gone_.emplace_back(peer, why); });
      }
      if (moved) idle = 0;
    }
  }

  const Config config_ = make_config();
  std::array<std::unique_ptr<Communicator>, 2> comms_;
  std::array<std::unique_ptr<ControlChannel>, 2> channels_;
  std::vector<std::string> received_;
  std::vector<std::pair<int, Status>> gone_;
};

TEST_F(ControlChannelTest, ShortAndLongMessagesArrive) {
  connect([](int, std::vector<std::byte>&) {});
  for (const std::size_t size : {0, 1, 231, 232, 233, 5000}) send(size);
  drive();
  ASSERT_EQ(received_.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(received_[i].size(), (std::array{0, 1, 231, 232, 233, 5000})[i]);
  EXPECT_TRUE(gone_.empty());
}

// A frame of a short message, and frame and rest of a long one.
TEST_F(ControlChannelTest, EveryChangedByteEndsTheChannel) {
  for (std::size_t at = 0; at < 256 + 256 + 300 + kTagBytes; at += at == 0 ? 1 : 7) {
    received_.clear();
    gone_.clear();
    end();
    connect([at](int number, std::vector<std::byte>& bytes) {
      const std::size_t first = static_cast<std::size_t>(std::min(number, 2)) * 256;
      if (at >= first && at - first < bytes.size() && (number == 2 || at < first + 256)) {
        bytes[at - first] ^= std::byte{4};
      }
    });
    send(40);
    send(300);
    drive();
    ASSERT_EQ(gone_.size(), 1u) << "byte " << at;
    EXPECT_EQ(gone_[0].second.code(), Code::authentication);
    EXPECT_THAT(gone_[0].second.text(),
                AllOf(HasSubstr("from rank 11 (host-1) to rank 10 (host-0)"), HasSubstr("is not what was sent")));
    EXPECT_EQ(gone_[0].second.error().culprit_rank, -1);
    EXPECT_EQ(received_.size(), at < 256 ? 0u : 1u) << "byte " << at;
  }
}

TEST_F(ControlChannelTest, ARepeatedMessageEndsTheChannel) {
  std::vector<std::byte> first;
  connect([&first](int number, std::vector<std::byte>& bytes) {
    if (number == 0) first = bytes;
    if (number == 1) bytes = first;
  });
  send(10, 'a');
  send(10, 'b');
  send(10, 'c');
  drive();
  EXPECT_EQ(received_, std::vector<std::string>{std::string(10, 'a')});
  ASSERT_EQ(gone_.size(), 1u);
  EXPECT_EQ(gone_[0].second.code(), Code::authentication);
}

// The frames of another world of the same job key have another session key.
TEST_F(ControlChannelTest, AMessageOfAnotherWorldEndsTheChannel) {
  std::vector<std::byte> recorded;
  connect([&recorded](int, std::vector<std::byte>& bytes) { recorded = bytes; }, {}, "the session before");
  send(10);
  drive();
  ASSERT_EQ(received_.size(), 1u);
  end();
  connect([&recorded](int, std::vector<std::byte>& bytes) { bytes = recorded; });
  send(10);
  drive();
  EXPECT_EQ(received_.size(), 1u);
  ASSERT_EQ(gone_.size(), 1u);
  EXPECT_EQ(gone_[0].second.code(), Code::authentication);
}

// The cost of a seal is spent only on messages that leave the memory of the two ranks.
TEST_F(ControlChannelTest, MessagesInSharedMemoryHaveNoTag) {
  std::vector<std::byte> frame;
  connect([&frame](int, std::vector<std::byte>& bytes) { frame = bytes; }, {true, true});
  send(10);
  drive();
  EXPECT_EQ(received_.size(), 1u);
  ASSERT_EQ(frame.size(), 256u);
  EXPECT_TRUE(std::all_of(frame.begin() + 8, frame.begin() + 24, [](std::byte byte) { return byte == std::byte{0}; }));
}

}  // namespace
}  // namespace fdl::test
