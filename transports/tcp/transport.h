// TcpTransport has the streams of one communicator: one or more for each channel with each peer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "contract/membership.h"
#include "contract/transport.h"
#include "system/poller.h"
#include "transports/tcp/connector.h"
#include "transports/tcp/deliveries.h"
#include "transports/tcp/stream.h"
#include "transports/tcp/stripes.h"

namespace fdl {

class TcpTransport final : public Transport {
 public:
  // `endpoint` is null if all streams are connected at set-up.
  TcpTransport(const Membership& membership, std::vector<int> streams, Poller poller,
               std::shared_ptr<TcpEndpoint> endpoint);
  ~TcpTransport() override;
  // Call one of these once, before any other function.
  Status attach_all(std::vector<TcpConnection> connections);
  Status await_arrivals();

  std::string_view name() const override { return "tcp"; }
  std::optional<Ticket> send(Channel channel, uint32_t tag, ConstBytes bytes) override;
  std::optional<Ticket> recv(Channel channel, uint32_t tag, Bytes bytes) override;
  bool done(Ticket ticket) const override;
  Status check_connections() override;
  std::vector<int> awaited_peers() const override;
  SliceCounts sent_to(int peer) override;
  void note_sent_by(int peer, const SliceCounts& sent) override;
  bool progress() override;
  Status peer_status(int peer) const override;
  Status channel_status(Channel channel) const override;
  Status status() const override;
  double round_trip_s(int peer) const override;

  int wake_fd() const override { return poller_.fd(); }
  bool prepare_to_sleep() override;
  void finish_sleep() override {}
  PeerActivity peer_activity() override;

 private:
  // Streams are numbered by peer, then by place; see Assembly::connect() for the places of a peer.
  using Outcome = TcpStream::Outcome;

  // The index in streams_ of the i-th stream of a channel.
  std::size_t index_of(Channel channel, int i) const {
    return static_cast<std::size_t>(channel.peer) * places_ +
           static_cast<std::size_t>(i * kChannelCount + channel.index);
  }
  int peer_of(std::size_t index) const { return static_cast<int>(index / places_); }
  Channel channel_of(std::size_t index) const {
    return {peer_of(index), static_cast<int>(index % places_) % kChannelCount};
  }
  int streams_of(Channel channel) const { return stream_counts_[static_cast<std::size_t>(channel.peer)]; }
  // There is one line for each direction of a channel. A ticket's stream is the index of its line.
  static uint32_t line_of(Channel channel, bool incoming) {
    return static_cast<uint32_t>(2 * (channel.peer * kChannelCount + channel.index) + (incoming ? 1 : 0));
  }
  // Null if the stream has not been used and is not connected.
  TcpStream* stream_at(std::size_t index) const { return streams_[index].get(); }
  // The stream for a slice. Makes it and demands its connection at its first use.
  TcpStream& use(Channel channel, int i);
  bool connected(std::size_t index) const { return streams_[index] && streams_[index]->fd() >= 0; }
  Status attach(std::size_t index, TcpConnection connection);
  bool take_arrivals();
  bool refuse_unconnected(const Status& why);
  // A failed stream is closed; its failure stays in failures_.
  bool failed(std::size_t index) const { return !failures_[index].ok(); }

  void mark_busy(std::size_t index) { busy_[index / 64] |= uint64_t{1} << (index % 64); }
  void mark_idle(std::size_t index) { busy_[index / 64] &= ~(uint64_t{1} << (index % 64)); }

  // Whether all streams of the channel that the parts need accept another slice.
  bool may_send(Channel channel, int parts);
  bool may_receive(Channel channel, int parts) const;
  // Moves the lines of a channel on after bytes of one of its streams have moved.
  void advance(Channel channel);
  bool goes_on(Channel channel) const;
  // Parts done on the i-th stream of a channel since the beginning.
  uint64_t sent(Channel channel, int i) const {
    const TcpStream* stream = stream_at(index_of(channel, i));
    return stream == nullptr ? 0 : stream->sent();
  }
  uint64_t received(Channel channel, int i) const {
    const TcpStream* stream = stream_at(index_of(channel, i));
    return stream == nullptr ? 0 : stream->received();
  }
  bool advance_stream(std::size_t index);
  bool handle_outcome(std::size_t index, Outcome outcome);
  // A peer that ends the communicator while its call is being taken can only close the connection.
  static Outcome meaning_of(const TcpStream& stream, Outcome outcome) {
    const bool was_given_up = outcome == Outcome::closed && stream.was_accepted && !stream.has_received_anything();
    return was_given_up ? Outcome::left : outcome;
  }
  // How long ago bytes of a channel for which receives wait have arrived; nothing if none wait, or none can arrive.
  std::optional<int64_t> quiet_time_of(Channel channel) const;
  bool poll_hang_ups();
  void handle_hang_up(std::size_t index);
  void ignore_data(std::size_t index);
  bool watch(std::size_t index);
  // Ends all streams with a peer.
  void fail(int peer, const Status& why);
  // Ends one stream; the first failure stays.
  void end_stream(std::size_t index, const Status& why);
  Status failure_of(std::size_t index, Outcome outcome) const;
  Status lost(int peer, std::string_view what) const;
  Status undelivered(int peer) const;

  const Membership membership_;  // a copy, for names in errors
  const double lost_after_s_;
  const std::vector<int> stream_counts_;  // streams per channel, by peer
  const std::size_t places_;              // entries per peer in the vectors below: kChannelCount * largest stream count
  const std::shared_ptr<TcpEndpoint> endpoint_;
  std::vector<std::unique_ptr<TcpStream>> streams_;
  std::vector<std::size_t> attached_;  // indexes of the streams that have, or had, a connection
  std::vector<Status> failures_;       // by stream
  std::vector<uint64_t> busy_;         // one bit per stream: it has outstanding slices
  ZeroedLines lines_;
  Deliveries deliveries_;
  Poller poller_;
  bool has_failures_ = false;
  bool unreported_failure_ = false;  // a failure that progress() has not returned true for yet
  bool slept_ = false;               // prepare_to_sleep() was called since the last progress()
  uint32_t calls_ = 0;               // of progress()
};

}  // namespace fdl
