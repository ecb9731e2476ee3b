// SliceLedger counts the slices of each channel for a transport. It keeps the errors of channels, and what peers have
// told when they left.
//
// A rank that leaves tells each peer how many slices it has sent and accepted (Farewell). A channel of such a peer ends
// only when this rank needs more from it than that, and not before everything has arrived that the peer had sent.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "contract/membership.h"
#include "contract/transport.h"

namespace fdl {

// Slices that a rank has sent to a peer and posted receives for, by channel.
struct Farewell {
  std::array<uint64_t, kChannelCount> sent{};
  std::array<uint64_t, kChannelCount> received{};
};

class SliceLedger {
 public:
  // The slices of one channel and direction. They finish in order.
  struct Counts {
    uint64_t posted = 0;
    uint64_t finished = 0;
    bool is_idle() const { return posted == finished; }
  };

  // `peers`: the ranks that the transport reaches. `transport` begins the texts of errors.
  SliceLedger(std::string_view transport, const Membership& membership, const std::vector<bool>& peers);

  // A stream is one direction of a channel. Streams are numbered from 0, by peer.
  std::size_t streams() const { return counts_.size(); }
  static std::size_t stream_of(Channel channel, bool outgoing) {
    return static_cast<std::size_t>((channel.peer * kChannelCount + channel.index) * 2 + (outgoing ? 1 : 0));
  }
  static Channel channel_of(std::size_t stream) {
    const int at = static_cast<int>(stream) / 2;
    return {at / kChannelCount, at % kChannelCount};
  }
  static bool is_outgoing(std::size_t stream) { return stream % 2 == 1; }
  Counts& operator[](std::size_t stream) { return counts_[stream]; }
  const Counts& operator[](std::size_t stream) const { return counts_[stream]; }
  bool done(Ticket ticket) const { return ticket.position < counts_[ticket.stream].finished; }

  const std::string& transport() const { return transport_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  bool joins(int peer) const { return peers_[index(peer)].joined; }
  const std::string& name_of(int member) const { return names_[index(member)]; }
  const Member& member(int number) const { return members_[index(number)]; }

  // ---- Errors ----

  const Status& error_of(Channel channel) const { return peers_[index(channel.peer)].errors[index(channel.index)]; }
  const Status& error_of(std::size_t stream) const { return error_of(channel_of(stream)); }
  Status peer_status(int peer) const;
  Status status() const;
  bool has_failed(int peer) const;  // on all channels
  // Ends all channels of a peer, or of all peers; the first error of each channel stays. Returns whether any was new.
  bool fail(int peer, const Status& why);
  bool fail_all(const Status& why);
  // `why`, with the peer as its cause.
  Status blame(int peer, const Status& why) const;
  Status mismatch(int peer, uint64_t sent_bytes, uint32_t sent_tag, uint64_t expected_bytes,
                  uint32_t expected_tag) const;

  // ---- Leaving ----

  Farewell farewell_to(int peer) const;
  void note_left(int peer, const Farewell& farewell);
  bool has_left(int peer) const { return peers_[index(peer)].left; }
  bool all_have_left() const;
  // 0 if it has not left.
  uint64_t sent_before_it_left(Channel channel) const {
    return peers_[index(channel.peer)].farewell.sent[index(channel.index)];
  }
  // Whether the next slice of a stream may be posted. Ends the channel of a peer that has left and cannot take part in
  // it; false without an error means that something is still to arrive: try again.
  bool may_post(std::size_t stream);
  // Ends the channels that peers that have left keep waiting. Returns whether there was one.
  bool end_channels();

 private:
  struct Peer {
    bool joined = false;
    bool left = false;
    Farewell farewell;  // valid if it has left
    std::array<Status, kChannelCount> errors;
  };

  static std::size_t index(int number) { return static_cast<std::size_t>(number); }
  // Whether all that a peer had sent before it left has arrived, as far as receives for it are posted.
  bool has_all(Channel channel) const;
  void lose(Channel channel);

  std::string transport_;
  int rank_;
  Members members_;
  std::vector<std::string> names_;
  std::vector<Peer> peers_;
  std::vector<Counts> counts_;
  std::vector<int> leavers_;
};

}  // namespace fdl
