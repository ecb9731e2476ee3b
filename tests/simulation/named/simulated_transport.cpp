// A slice is a packet: one byte for the channel, four for the tag, then the data.
#include "tests/simulation/named/simulated_transport.h"

#include <fmt/format.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>

namespace fdl::simulation {
namespace {

constexpr std::size_t kMostWaiting = 16;
constexpr std::size_t kHead = 1 + sizeof(uint32_t);

}  // namespace

// Intentionally never closed: it lives as long as the process.
int quiet_descriptor() {
  static const int descriptor = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return descriptor;
}

// ---- The transport ----

SimulatedTransport::SimulatedTransport(std::vector<Member> members, std::map<int, Peer> peers)
    : members_(std::move(members)) {
  for (auto& [rank, peer] : peers) {
    Line& line = lines_[rank];
    line.end = std::move(peer.end);
    take(line, peer.early);
  }
}

// Peers read that this rank has left, whatever the reason, as those of TCP.
SimulatedTransport::~SimulatedTransport() {
  for (auto& [rank, line] : lines_) {
    line.end.send({.kind = kGoodbye});
    line.end.close();
  }
}

uint32_t SimulatedTransport::number_of(Channel channel, bool outgoing) {
  return static_cast<uint32_t>((channel.peer * kChannelCount + channel.index) * 2 + (outgoing ? 1 : 0));
}

std::optional<Ticket> SimulatedTransport::send(Channel channel, uint32_t tag, ConstBytes bytes) {
  Line& line = lines_.at(channel.peer);
  Stream& stream = line.streams[channel.index];
  if (!line.failure.ok() || !stream.ended.ok()) return std::nullopt;
  if (line.has_left || line.is_closed) {
    stream.ended = lost(channel.peer, "closed the connection: it has left");
    return std::nullopt;
  }
  if (line.end.unsent() >= kMostWaiting) return std::nullopt;
  std::string packed(kHead, '\0');
  packed[0] = static_cast<char>(channel.index);
  std::memcpy(packed.data() + 1, &tag, sizeof tag);
  packed.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  line.end.send({.kind = kSlice, .bytes = std::move(packed)});
  stream.leaving.push_back(line.sent++);
  note_sent(line);
  return Ticket{number_of(channel, true), stream.sent++};
}

std::optional<Ticket> SimulatedTransport::recv(Channel channel, uint32_t tag, Bytes bytes) {
  Line& line = lines_.at(channel.peer);
  Stream& stream = line.streams[channel.index];
  if (!line.failure.ok() || !stream.ended.ok()) return std::nullopt;
  stream.expected.push_back({tag, bytes});
  return Ticket{number_of(channel, false), stream.posted++};
}

bool SimulatedTransport::done(Ticket ticket) const {
  const uint32_t channel = ticket.stream / 2;
  const Line& line = lines_.at(static_cast<int>(channel / kChannelCount));
  const Stream& stream = line.streams[channel % kChannelCount];
  const bool is_send = (ticket.stream & 1) != 0;
  return ticket.position < (is_send ? stream.sent - stream.leaving.size() : stream.received);
}

// The slices of a connection leave in the order in which they were sent.
bool SimulatedTransport::note_sent(Line& line) {
  const uint64_t left = line.sent - std::min<uint64_t>(line.sent, line.end.unsent());
  bool moved = false;
  for (Stream& stream : line.streams) {
    for (; !stream.leaving.empty() && stream.leaving.front() < left; moved = true) stream.leaving.pop_front();
  }
  return moved;
}

void SimulatedTransport::take(Line& line, const std::vector<Packet>& packets) {
  for (const Packet& packet : packets) {
    if (packet.kind == kGoodbye) line.has_left = true;
    if (packet.kind != kSlice) continue;
    Slice slice;
    std::memcpy(&slice.tag, packet.bytes.data() + 1, sizeof slice.tag);
    slice.bytes = packet.bytes.substr(kHead);
    line.streams[static_cast<std::size_t>(packet.bytes[0])].arrived.push_back(std::move(slice));
  }
}

bool SimulatedTransport::progress() {
  bool moved = false;
  for (auto& [rank, line] : lines_) {
    if (!line.is_closed && line.end.has_news()) {
      std::vector<Packet> packets;
      line.is_closed = line.end.receive(packets) != End::State::open;
      take(line, packets);
      moved = true;
    }
    moved |= note_sent(line);
    moved |= match(rank, line);
  }
  return moved;
}

// What has arrived is taken first. Then a peer that has left ends the streams that wait for it, and one whose
// connection broke fails as a whole.
bool SimulatedTransport::match(int peer, Line& line) {
  bool moved = false;
  for (Stream& stream : line.streams) {
    while (line.failure.ok() && !stream.expected.empty() && !stream.arrived.empty()) {
      const Posted posted = stream.expected.front();
      const Slice slice = std::move(stream.arrived.front());
      if (slice.tag != posted.tag || slice.bytes.size() != posted.bytes.size()) {
        line.failure = mismatch(peer, slice, posted);
      } else if (!slice.bytes.empty()) {
        std::memcpy(posted.bytes.data(), slice.bytes.data(), slice.bytes.size());
      }
      stream.expected.pop_front();
      stream.arrived.pop_front();
      if (line.failure.ok()) ++stream.received;
      moved = true;
    }
    const bool is_awaited = !stream.expected.empty() && stream.ended.ok() && line.failure.ok();
    if (line.has_left && is_awaited) {
      stream.ended = lost(peer, "closed the connection: it has left");
      moved = true;
    }
  }
  if (line.is_closed && !line.has_left && line.failure.ok()) {
    line.failure = lost(peer, "closed the connection; see its log");
    moved = true;
  }
  return moved;
}

Status SimulatedTransport::peer_status(int peer) const {
  for (int channel = 0; channel < kChannelCount; ++channel) {
    if (Status status = channel_status({peer, channel}); !status.ok()) return status;
  }
  return {};
}

Status SimulatedTransport::channel_status(Channel channel) const {
  const Line& line = lines_.at(channel.peer);
  return line.failure.ok() ? line.streams[channel.index].ended : line.failure;
}

Status SimulatedTransport::status() const {
  for (const auto& [rank, line] : lines_) {
    if (Status status = peer_status(rank); !status.ok()) return status;
  }
  return {};
}

bool SimulatedTransport::prepare_to_sleep() {
  return std::ranges::none_of(lines_,
                              [](const auto& one) { return !one.second.is_closed && one.second.end.has_news(); });
}

Status SimulatedTransport::lost(int peer, const std::string& what) const {
  const Member& member = members_[static_cast<std::size_t>(peer)];
  return Status::blame(member.world_rank, member.host_name, Code::peer_lost, name_of(member) + " " + what);
}

Status SimulatedTransport::mismatch(int peer, const Slice& slice, const Posted& posted) const {
  const Member& member = members_[static_cast<std::size_t>(peer)];
  return Status::blame(member.world_rank, member.host_name, Code::mismatch,
                       fmt::format("{} sent {} bytes (tag {:08x}) where {} bytes (tag {:08x}) are expected",
                                   name_of(member), slice.bytes.size(), slice.tag, posted.bytes.size(), posted.tag));
}

// ---- The flags ----

SimulatedFlags::SimulatedFlags(std::shared_ptr<SharedWords> shared, int rank)
    : shared_(std::move(shared)), rank_(static_cast<std::size_t>(rank)), seen_(shared_->words.size()) {}

void SimulatedFlags::publish(uint64_t word) {
  shared_->words[rank_] = word;
  for (std::size_t reader = 0; reader < shared_->readers.size(); ++reader) {
    const uint64_t awaited = shared_->awaited[reader];
    const bool is_woken = awaited != 0 && ((word & kUrgent) != 0 || (awaited >> rank_ & 1) != 0);
    if (reader != rank_ && is_woken && shared_->readers[reader] != nullptr) shared_->readers[reader]->wake();
  }
}

bool SimulatedFlags::prepare_to_sleep() {
  shared_->awaited[rank_] = watched_ | uint64_t{1} << rank_;
  bool quiet = true;
  for (std::size_t other = 0; other < seen_.size(); ++other) {
    const uint64_t word = shared_->words[other];
    if (other == rank_ || std::exchange(seen_[other], word) == word) continue;
    quiet = quiet && (watched_ >> other & 1) == 0 && (word & kUrgent) == 0;
  }
  return quiet;
}

}  // namespace fdl::simulation
