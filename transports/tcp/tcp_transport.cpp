// TcpTransport polls the busy streams directly in progress(). The poller is brought up to date only before a sleep.
//
// A stream exists from its first use or its connection on, whichever is earlier: slices may be queued on it before it
// is connected. All streams are connected at set-up, or each when it is first used (see connector.h).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "system/process/processor.h"
#include "system/socket.h"
#include "transports/tcp/assembly.h"
#include "transports/tcp/transport.h"

namespace fdl {
namespace {

// A caller that never sleeps checks idle connections for dead peers once in so many calls.
constexpr uint32_t kCallsBetweenPolls = 1024;
constexpr uint64_t kArrivalsToken = ~uint64_t{0};  // in the poller; the other tokens are indexes of streams

}  // namespace

TcpTransport::TcpTransport(const Membership& membership, std::vector<int> streams, Poller poller,
                           std::shared_ptr<TcpEndpoint> endpoint)
    : membership_(membership),
      lost_after_s_(membership.config->lost_after_s),
      stream_counts_(std::move(streams)),
      places_(Assembly::place_count(stream_counts_)),
      endpoint_(std::move(endpoint)),
      streams_(membership.members.size() * places_),
      failures_(streams_.size()),
      busy_((streams_.size() + 63) / 64),
      lines_(2 * kChannelCount * membership.members.size()),
      deliveries_(lost_after_s_),
      poller_(std::move(poller)) {}

TcpTransport::~TcpTransport() {
  // Before the goodbyes, so that peers that call later get the same answer.
  if (endpoint_) endpoint_->close();
  for (const std::size_t index : attached_) {
    if (connected(index)) streams_[index]->leave();
  }
}

Status TcpTransport::attach_all(std::vector<TcpConnection> connections) {
  for (std::size_t index = 0; index < connections.size(); ++index) {
    if (connections[index].fd) FDL_RETURN_IF_ERROR(attach(index, std::move(connections[index])));
  }
  return {};
}

Status TcpTransport::await_arrivals() { return poller_.add(endpoint_->fd(), kArrivalsToken); }

// Slices that were queued before are sent by the next progress().
Status TcpTransport::attach(std::size_t index, TcpConnection connection) {
  auto protection = tcp_protection(membership_, peer_of(index), connection);
  const int fd = connection.fd.get();
  survive_outages(fd, lost_after_s_);
  // A peer that computes does not read, possibly for a long time; that must not end the connection.
  let_peer_pause(fd);
  if (!streams_[index]) streams_[index] = std::make_unique<TcpStream>();
  TcpStream& stream = *streams_[index];
  stream.was_accepted = endpoint_ && !connection.called;
  stream.attach(std::move(connection.fd), std::move(protection));
  if (!stream.is_local()) use_usual_congestion_control(fd);
  attached_.push_back(index);
  FDL_RETURN_IF_ERROR(poller_.add(fd, index, false, false));
  stream.in_poller = true;
  return watch(index) ? Status() : failures_[index];
}

// Takes connections that peers or this rank have demanded, and the errors of those that could not be made.
bool TcpTransport::take_arrivals() {
  bool changed = false;
  for (TcpEndpoint::Arrival& arrival : endpoint_->take()) {
    changed = true;
    const std::size_t index = index_of({arrival.peer, 0}, 0) + static_cast<std::size_t>(arrival.number);
    if (!arrival.failure.ok()) {
      arrival.left ? end_stream(index, arrival.failure) : fail(arrival.peer, arrival.failure);
    } else if (!failed(index)) {
      const Status attached = attach(index, std::move(arrival.connection));
      if (!attached.ok()) fail(arrival.peer, attached.while_doing("connecting " + membership_.name_of(arrival.peer)));
    }
  }
  const Status ended = endpoint_->ended();
  return ended.ok() ? changed : refuse_unconnected(ended);
}

// The streams that wait for a connection get none any more.
bool TcpTransport::refuse_unconnected(const Status& why) {
  const Member& me = membership_.me();
  const Status failure =
      Status::blame(me.world_rank, me.host_name, why.code(),
                    "tcp: " + membership_.name_of(membership_.rank) + " makes no connections any more: " + why.text());
  for (std::size_t index = 0; index < streams_.size(); ++index) {
    if (streams_[index] && !connected(index) && !failed(index)) fail(peer_of(index), failure);
  }
  return true;
}

TcpStream& TcpTransport::use(Channel channel, int i) {
  const std::size_t index = index_of(channel, i);
  if (!streams_[index]) [[unlikely]] {
    FDL_CHECK(endpoint_ != nullptr && i < streams_of(channel));
    streams_[index] = std::make_unique<TcpStream>();
    // It asks for all connections of the channel.
    if (i == 0) endpoint_->demand(channel);
  }
  return *streams_[index];
}

std::optional<Ticket> TcpTransport::send(Channel channel, uint32_t tag, ConstBytes bytes) {
  const int parts = parts_of(bytes.size(), streams_of(channel));
  if (!may_send(channel, parts)) return std::nullopt;
  const uint32_t line = line_of(channel, false);
  const uint64_t position = lines_[line].begin(parts);
  for (int i = 0; i < parts; ++i) {
    const std::size_t index = index_of(channel, i);
    TcpStream& stream = use(channel, i);
    const bool first = !stream.sending() && stream.fd() >= 0;
    stream.post_send(tag, bytes.size(), part_at(bytes, parts, i));
    // Most slices fit into the socket's buffer, and are then done before the caller checks.
    if (first && handle_outcome(index, stream.push()) && failed(index)) return std::nullopt;
    if (stream.sending()) mark_busy(index);
  }
  return Ticket{line, position};
}

bool TcpTransport::may_send(Channel channel, int parts) {
  if (!lines_[line_of(channel, false)].has_space()) return false;
  for (int i = 0; i < parts; ++i) {
    const std::size_t index = index_of(channel, i);
    if (failed(index)) return false;
    // The peer's goodbye was read while no operation used it; this send is what makes it lost.
    if (streams_[index] && streams_[index]->peer_left) {
      end_stream(index, failure_of(index, Outcome::left));
      return false;
    }
  }
  return true;
}

std::optional<Ticket> TcpTransport::recv(Channel channel, uint32_t tag, Bytes bytes) {
  const int parts = parts_of(bytes.size(), streams_of(channel));
  if (!may_receive(channel, parts)) return std::nullopt;
  const uint32_t line = line_of(channel, true);
  for (int i = 0; i < parts; ++i) {
    use(channel, i).post_recv(tag, bytes.size(), part_at(bytes, parts, i));
    mark_busy(index_of(channel, i));
  }
  return Ticket{line, lines_[line].begin(parts)};
}

bool TcpTransport::may_receive(Channel channel, int parts) const {
  if (!lines_[line_of(channel, true)].has_space()) return false;
  for (int i = 0; i < parts; ++i) {
    if (failed(index_of(channel, i))) return false;
  }
  return true;
}

bool TcpTransport::done(Ticket ticket) const { return lines_[ticket.stream].is_finished(ticket.position); }

void TcpTransport::advance(Channel channel) {
  lines_[line_of(channel, false)].advance([&](int i) { return sent(channel, i); });
  lines_[line_of(channel, true)].advance([&](int i) { return received(channel, i); });
}

// Whether slices begun on the channel before one of its streams ended may still finish on the others.
bool TcpTransport::goes_on(Channel channel) const {
  const auto ended = [&](int i) { return failed(index_of(channel, i)); };
  return lines_[line_of(channel, false)].goes_on([&](int i) { return sent(channel, i); }, ended) ||
         lines_[line_of(channel, true)].goes_on([&](int i) { return received(channel, i); }, ended);
}

bool TcpTransport::progress() {
  bool moved = endpoint_ && endpoint_->has_arrivals() && take_arrivals();
  // Only streams with outstanding slices are polled.
  for (std::size_t word = 0; word < busy_.size(); ++word) {
    for (uint64_t bits = busy_[word]; bits != 0; bits &= bits - 1) {
      moved |= advance_stream(64 * word + static_cast<std::size_t>(std::countr_zero(bits)));
    }
  }
  // If bytes moved, they explain the wake-up. If there was another reason, it wakes this rank again.
  const bool woken_by_others = std::exchange(slept_, false) && !moved;
  if (woken_by_others || ++calls_ % kCallsBetweenPolls == 0) moved |= poll_hang_ups();
  moved |= std::exchange(unreported_failure_, false);
  return moved;
}

// Makes progress in both directions of one stream, once. True if anything changed.
bool TcpTransport::advance_stream(std::size_t index) {
  if (failed(index)) return false;  // another stream of this pass has failed the peer
  TcpStream& stream = *streams_[index];
  if (stream.fd() < 0) return false;  // not connected yet
  bool moved = false;
  if (stream.sending()) moved |= handle_outcome(index, stream.push());
  if (stream.receiving() && !failed(index)) moved |= handle_outcome(index, stream.pull());
  if (!stream.sending() && !stream.receiving()) mark_idle(index);
  return moved;
}

bool TcpTransport::handle_outcome(std::size_t index, Outcome outcome) {
  if (outcome == Outcome::nothing) return false;
  outcome = meaning_of(*streams_[index], outcome);
  advance(channel_of(index));
  // A goodbye instead of an expected slice ends this stream only: data that the peer sent on its other streams is still
  // valid.
  if (outcome == Outcome::left) end_stream(index, failure_of(index, outcome));
  if (outcome != Outcome::moved && outcome != Outcome::left) fail(peer_of(index), failure_of(index, outcome));
  return true;
}

Status TcpTransport::check_connections() {
  const int64_t limit_ns = seconds_to_ns(lost_after_s_);
  const int64_t now = now_ns();
  for (const std::size_t index : attached_) {
    TcpStream& stream = *streams_[index];
    if (stream.fd() < 0) continue;
    if (!stream.host.is_silent_for(limit_ns, unacknowledged_of(stream.fd()), now)) continue;
    const Status why = lost(peer_of(index), fmt::format("has acknowledged nothing for {:g} s (FARANDOLE_LOST_AFTER_S): "
                                                        "the network between the two hosts is cut",
                                                        lost_after_s_));
    fail(peer_of(index), why);
    return why;
  }
  for (const std::size_t index : attached_) {
    const Channel channel = channel_of(index);
    const auto quiet_ns = index == index_of(channel, 0) ? quiet_time_of(channel) : std::nullopt;
    if (!quiet_ns) continue;
    if (!deliveries_.is_overdue(channel, lines_[line_of(channel, true)].finished(), *quiet_ns, now)) continue;
    const Status why = undelivered(channel.peer);
    fail(channel.peer, why);
    return why;
  }
  return {};
}

std::optional<int64_t> TcpTransport::quiet_time_of(Channel channel) const {
  if (lines_[line_of(channel, true)].is_idle()) return std::nullopt;
  std::optional<int64_t> shortest;
  for (int i = 0; i < streams_of(channel); ++i) {
    const std::size_t index = index_of(channel, i);
    if (!connected(index)) continue;
    const int64_t quiet_ns = quiet_time_of_socket(streams_[index]->fd());
    shortest = std::min(shortest.value_or(quiet_ns), quiet_ns);
  }
  return shortest;
}

std::vector<int> TcpTransport::awaited_peers() const {
  std::vector<int> peers;
  for (const std::size_t index : attached_) {
    const Channel channel = channel_of(index);
    if (index != index_of(channel, 0) || std::ranges::count(peers, channel.peer) > 0) continue;
    const auto quiet_ns = quiet_time_of(channel);
    if (quiet_ns && deliveries_.is_doubtful(*quiet_ns)) peers.push_back(channel.peer);
  }
  return peers;
}

// A slice counts when the kernel has all of it.
SliceCounts TcpTransport::sent_to(int peer) {
  SliceCounts sent{};
  for (int i = 0; i < kChannelCount; ++i) {
    sent[static_cast<std::size_t>(i)] = lines_[line_of({peer, i}, false)].finished();
  }
  return sent;
}

void TcpTransport::note_sent_by(int peer, const SliceCounts& sent) { deliveries_.note_sent_by(peer, sent); }

// Streams with a posted receive find the end of their connection when they read; this checks the others.
bool TcpTransport::poll_hang_ups() {
  std::array<Poller::Ready, 64> ready;
  const std::size_t count = poller_.wait(ready, Deadline::at_ns(0));
  for (std::size_t i = 0; i < count; ++i) {
    if (ready[i].token == kArrivalsToken) continue;  // the next progress() takes them
    const auto index = static_cast<std::size_t>(ready[i].token);
    if (failed(index) || streams_[index]->receiving()) continue;
    if (ready[i].hung_up) {
      handle_hang_up(index);
    } else if (ready[i].readable) {
      ignore_data(index);
    }
  }
  return unreported_failure_;
}

void TcpTransport::handle_hang_up(std::size_t index) {
  TcpStream& stream = *streams_[index];
  const Outcome outcome = meaning_of(stream, stream.peek());
  if (outcome == Outcome::closed || outcome == Outcome::broken) {
    fail(peer_of(index), failure_of(index, outcome));
    return;
  }
  // Data that the peer sent before it left stays readable, and no more can come: a later receive finds the end at once.
  stream.peer_left = outcome == Outcome::left;
  if (stream.hung_up && !stream.sending()) {
    // A second report means that the connection is closed in both directions. epoll then always reports a hang-up, so
    // the stream is removed from it.
    poller_.remove(stream.fd());
    stream.in_poller = false;
  }
  stream.hung_up = true;
  watch(index);
}

// Reading stays watched between two receives, because the next one is usually posted before its data arrives. Here the
// data came first and woke a rank that has no use for it yet, so the watch for reading ends.
void TcpTransport::ignore_data(std::size_t index) {
  streams_[index]->watches_early = false;
  watch(index);
}

// Brings the poller up to date. False if the stream has work that the poller would not report.
bool TcpTransport::watch(std::size_t index) {
  TcpStream& stream = *streams_[index];
  if (!stream.in_poller) return !stream.sending() && !stream.receiving();
  // See ignore_data().
  stream.watches_early |= stream.receiving();
  const TcpStream::Watch needed{stream.watches_early, stream.sending(), !stream.hung_up};
  if (stream.watch == needed) return true;
  stream.watch = needed;
  const Status changed = poller_.change(stream.fd(), index, needed.read, needed.write, needed.hang_up);
  if (!changed.ok()) fail(peer_of(index), changed.while_doing("watching " + membership_.name_of(peer_of(index))));
  return changed.ok();
}

bool TcpTransport::prepare_to_sleep() {
  slept_ = true;
  // A failure that progress() has not reported must keep the caller awake.
  bool nothing_to_do = !unreported_failure_ && !(endpoint_ && endpoint_->has_arrivals());
  for (const std::size_t index : attached_) {
    if (connected(index) && !watch(index)) nothing_to_do = false;
  }
  return nothing_to_do;
}

// The kernel may put two ranks of a host that share no memory on one processor. There each would spin while the other
// could run. Of the ranks that share a processor all but the lowest leave it.
PeerActivity TcpTransport::peer_activity() {
  const int here = this_processor() + 1;
  PeerActivity activity;
  for (std::size_t word = 0; word < busy_.size(); ++word) {
    for (uint64_t bits = busy_[word]; bits != 0; bits &= bits - 1) {
      const std::size_t index = 64 * word + static_cast<std::size_t>(std::countr_zero(bits));
      const TcpStream* stream = stream_at(index);
      if (!stream->receiving() || stream->peer_processor() != here) continue;
      activity.on_this_processor = true;
      activity.should_leave |= peer_of(index) < membership_.rank;
    }
  }
  return activity;
}

Status TcpTransport::channel_status(Channel channel) const {
  for (int i = 0; i < streams_of(channel); ++i) {
    const Status& failure = failures_[index_of(channel, i)];
    if (!failure.ok()) return goes_on(channel) ? Status() : failure;
  }
  return {};
}

Status TcpTransport::peer_status(int peer) const {
  for (int channel = 0; channel < kChannelCount; ++channel) FDL_RETURN_IF_ERROR(channel_status({peer, channel}));
  return {};
}

Status TcpTransport::status() const {
  if (!has_failures_) return {};
  for (const Status& failure : failures_) FDL_RETURN_IF_ERROR(failure);
  return {};
}

double TcpTransport::round_trip_s(int peer) const {
  const std::size_t index = index_of({peer, 0}, 0);
  // Connections within a host have no round trip worth measuring.
  if (!connected(index) || streams_[index]->is_local()) return 0;
  return shortest_round_trip_s(streams_[index]->fd());
}

void TcpTransport::fail(int peer, const Status& why) {
  const std::size_t first = index_of({peer, 0}, 0);
  const auto used = static_cast<std::size_t>(kChannelCount * stream_counts_[static_cast<std::size_t>(peer)]);
  for (std::size_t index = first; index < first + used; ++index) end_stream(index, why);
}

void TcpTransport::end_stream(std::size_t index, const Status& why) {
  if (failed(index)) return;
  failures_[index] = why;
  has_failures_ = unreported_failure_ = true;
  mark_idle(index);
  if (!connected(index)) return;
  poller_.remove(streams_[index]->fd());
  streams_[index]->close();
}

}  // namespace fdl
