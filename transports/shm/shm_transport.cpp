// The shared-memory transport keeps a queue of posted slices at both ends of each ring.
//
// A rank that publishes bytes, or frees space, rings its peer only if the peer has announced that it sleeps for this
// rank. Only streams with posted slices are polled, so an idle peer costs nothing.
#include "transports/shm/shm_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "contract/tags.h"
#include "transports/shm/shm_neighbours.h"
#include "transports/shm/shm_ring.h"

namespace fdl {
namespace {

constexpr uint64_t kQueueDepth = 32;
constexpr std::size_t kLeastRingBytes = 4_KiB;

template <typename View>
struct Slice {
  uint32_t tag = 0;
  View bytes;
};

// The slices posted in one direction of a channel. Both counters count since the beginning; slice k is at k %
// kQueueDepth.
template <typename View>
struct Queue {
  std::array<Slice<View>, kQueueDepth> slices;
  uint64_t posted = 0;
  uint64_t finished = 0;

  bool is_full() const { return posted - finished == kQueueDepth; }
  bool is_empty() const { return posted == finished; }
  Slice<View>& front() { return slices[finished % kQueueDepth]; }
  // Appends a slice and returns its position, which goes into the ticket.
  uint64_t push(uint32_t tag, View bytes) {
    slices[posted % kQueueDepth] = {tag, bytes};
    return posted++;
  }
};

struct Outgoing {
  ShmRingWriter ring;
  Bytes memory;  // of the ring; it is backed at the first send
  bool is_backed = false;
  Queue<ConstBytes> queue = {};
};
struct Incoming {
  ShmRingReader ring;
  Bytes memory;
  bool is_backed = false;
  Queue<Bytes> queue = {};
};

class ShmTransport final : public Transport {
 public:
  // `local_of[r]` is the index in `neighbours` of the communicator's rank r, or -1 if r is no peer.
  ShmTransport(std::shared_ptr<Neighbours> neighbours, Bytes rings, std::vector<int> local_of);

  std::string_view name() const override { return "shm"; }
  std::optional<Ticket> send(Channel channel, uint32_t tag, ConstBytes bytes) override;
  std::optional<Ticket> recv(Channel channel, uint32_t tag, Bytes bytes) override;
  bool done(Ticket ticket) const override;
  bool progress() override;
  Status channel_status(Channel channel) const override { return errors_[stream(local(channel.peer), channel.index)]; }
  Status peer_status(int peer) const override;
  Status status() const override;

  int wake_fd() const override { return neighbours_->wake_fd(); }
  bool prepare_to_sleep() override;
  PeerActivity peer_activity() override;
  void finish_sleep() override;

 private:
  static std::size_t index(int number) { return static_cast<std::size_t>(number); }
  int local(int peer) const {
    const int local = local_of_[index(peer)];
    FDL_CHECK(local >= 0);
    return local;
  }
  // The index of a channel in outgoing_ and incoming_. `peer` is a local index.
  std::size_t stream(int peer, int channel) const { return index(peer * kChannelCount + channel); }

  // Back a ring with memory, the first time. Without memory the peer fails, and they return false.
  bool back(int peer, Outgoing& out) { return out.is_backed || back(peer, out.is_backed, out.memory); }
  bool back(int peer, Incoming& in) {
    return in.is_backed || back(peer, in.is_backed, ShmRing::counters_of(in.memory));
  }
  bool back(int peer, bool& is_backed, Bytes memory);
  // Move as many bytes as possible between posted slices and a ring. They return whether the peer must be woken.
  bool move_out(int peer, int channel, bool& moved);
  bool move_in(int peer, int channel, bool& moved);
  // Moves bytes on all channels with posted slices.
  bool move_all();
  // Peers with posted slices.
  RankMask waited_for() const;
  // Ends the channels of peers that are gone and needed. True if anything changed.
  bool check_neighbours();
  bool is_lost(int peer, int channel);
  // Ends one channel, or all channels of a peer.
  void fail(int peer, int channel, const Status& why);
  void fail(int peer, const Status& why);
  // The peers of which all channels have ended.
  RankMask all_failed() const;
  Status mismatch(int peer, const ShmRing::Header& sent, const Slice<Bytes>& expected) const;

  const std::shared_ptr<Neighbours> neighbours_;
  const std::vector<int> local_of_;
  std::vector<Outgoing> outgoing_;  // by stream(peer, channel)
  std::vector<Incoming> incoming_;
  // The peers for which slices are posted, by channel.
  std::array<RankMask, kChannelCount> sending_{};
  std::array<RankMask, kChannelCount> receiving_{};
  std::vector<Status> errors_;  // by stream(peer, channel)
  std::array<RankMask, kChannelCount> failed_{};
  uint32_t idle_passes_ = 0;
  bool check_soon_ = false;          // the next idle progress() checks for lost peers
  bool moved_before_sleep_ = false;  // prepare_to_sleep() moved bytes that progress() has not reported yet
};

// A rank's own memory holds the rings that it writes, one per peer and channel.
// Every rank has one ring to each other rank and channel, all of equal size and aligned to 256 bytes.
std::size_t rings_of(int ranks) { return static_cast<std::size_t>((ranks - 1) * kChannelCount); }
std::size_t ring_bytes(Bytes memory, int ranks) {
  return memory.size() / (static_cast<std::size_t>(ranks) * rings_of(ranks)) & ~std::size_t{255};
}
Bytes own_memory(Bytes memory, int ranks, int rank) {
  const std::size_t bytes = rings_of(ranks) * ring_bytes(memory, ranks);
  return memory.subspan(static_cast<std::size_t>(rank) * bytes, bytes);
}

// The memory of the ring from one rank to another.
Bytes ring_memory(Bytes memory, int ranks, int from, int to, int channel) {
  const std::size_t bytes = ring_bytes(memory, ranks);
  const int peer = to < from ? to : to - 1;
  return own_memory(memory, ranks, from)
      .subspan(static_cast<std::size_t>(peer * kChannelCount + channel) * bytes, bytes);
}

ShmTransport::ShmTransport(std::shared_ptr<Neighbours> neighbours, Bytes rings, std::vector<int> local_of)
    : neighbours_(std::move(neighbours)),
      local_of_(std::move(local_of)),
      errors_(index(neighbours_->size() * kChannelCount)) {
  const int me = neighbours_->rank();
  const int ranks = neighbours_->size();
  for (int peer = 0; peer < ranks; ++peer) {
    for (int channel = 0; channel < kChannelCount; ++channel) {
      // The entry for this rank is never used; it keeps stream() a plain product.
      const int other = peer != me ? peer : (me == 0 ? 1 : 0);
      const Bytes out = ring_memory(rings, ranks, me, other, channel);
      const Bytes in = ring_memory(rings, ranks, other, me, channel);
      outgoing_.push_back({ShmRingWriter(out), out});
      incoming_.push_back({ShmRingReader(in), in});
    }
  }
}

// ---- Posting ----

bool ShmTransport::back(int peer, bool& is_backed, Bytes memory) {
  const Status status = neighbours_->back(memory);
  if (!status.ok()) fail(peer, status);
  return is_backed = status.ok();
}

std::optional<Ticket> ShmTransport::send(Channel channel, uint32_t tag, ConstBytes bytes) {
  const int peer = local(channel.peer);
  Outgoing& out = outgoing_[stream(peer, channel.index)];
  if (out.queue.is_full() || !errors_[stream(peer, channel.index)].ok() || !back(peer, out)) return std::nullopt;
  const uint64_t position = out.queue.push(tag, bytes);
  sending_[index(channel.index)] |= bit_of(peer);
  // Copying at once saves a progress() call for a slice that fits into the ring.
  if (bool moved = false; move_out(peer, channel.index, moved)) neighbours_->wake_waiters(bit_of(peer));
  // Even stream numbers are sends, odd ones receives.
  return Ticket{static_cast<uint32_t>(stream(peer, channel.index) * 2), position};
}

std::optional<Ticket> ShmTransport::recv(Channel channel, uint32_t tag, Bytes bytes) {
  const int peer = local(channel.peer);
  Incoming& in = incoming_[stream(peer, channel.index)];
  if (in.queue.is_full() || !errors_[stream(peer, channel.index)].ok() || !back(peer, in)) return std::nullopt;
  const uint64_t position = in.queue.push(tag, bytes);
  receiving_[index(channel.index)] |= bit_of(peer);
  return Ticket{static_cast<uint32_t>(stream(peer, channel.index) * 2 + 1), position};
}

bool ShmTransport::done(Ticket ticket) const {
  const std::size_t stream = ticket.stream / 2;
  const uint64_t finished =
      ticket.stream % 2 == 0 ? outgoing_[stream].queue.finished : incoming_[stream].queue.finished;
  return ticket.position < finished;
}

// ---- Moving ----

bool ShmTransport::move_out(int peer, int channel, bool& moved) {
  Outgoing& out = outgoing_[stream(peer, channel)];
  bool published = false;
  while (!out.queue.is_empty()) {
    const Slice<ConstBytes>& slice = out.queue.front();
    if (!out.ring.write(slice.tag, slice.bytes, published)) break;
    ++out.queue.finished;
  }
  if (out.queue.is_empty()) sending_[index(channel)] &= ~bit_of(peer);
  moved |= published;
  return published;
}

bool ShmTransport::move_in(int peer, int channel, bool& moved) {
  Incoming& in = incoming_[stream(peer, channel)];
  bool published = false;
  while (!in.queue.is_empty()) {
    const ShmRing::Header* header = in.ring.peek();
    if (header == nullptr) break;
    const Slice<Bytes>& slice = in.queue.front();
    // The header is checked before any byte is copied, so a mismatch overwrites no buffer.
    if (header->tag != slice.tag || header->bytes != slice.bytes.size()) {
      fail(peer, mismatch(peer, *header, slice));
      return moved = true;
    }
    if (!in.ring.read(slice.bytes, published)) break;
    ++in.queue.finished;
  }
  if (in.queue.is_empty()) receiving_[index(channel)] &= ~bit_of(peer);
  moved |= published;
  return published;
}

bool ShmTransport::move_all() {
  RankMask published = 0;
  bool moved = false;
  for (int channel = 0; channel < kChannelCount; ++channel) {
    for (const int peer : each_of(receiving_[index(channel)])) {
      if (move_in(peer, channel, moved)) published |= bit_of(peer);
    }
    for (const int peer : each_of(sending_[index(channel)])) {
      if (move_out(peer, channel, moved)) published |= bit_of(peer);
    }
  }
  if (published != 0) neighbours_->wake_waiters(published);
  return moved;
}

bool ShmTransport::progress() {
  if (move_all() || std::exchange(moved_before_sleep_, false)) return true;
  const bool due = ++idle_passes_ % kIdlePasses == 0;
  // A spinning caller checks for dead processes only now and then, because that is a system call.
  if (!due && !check_soon_) return false;
  if (due) neighbours_->find_ended();
  return check_neighbours();
}

// ---- Sleeping ----

RankMask ShmTransport::waited_for() const {
  RankMask mask = 0;
  for (int channel = 0; channel < kChannelCount; ++channel)
    mask |= sending_[index(channel)] | receiving_[index(channel)];
  return mask;
}

// The check after the announcement moves the bytes itself: finding out costs as much as moving them.
bool ShmTransport::prepare_to_sleep() {
  const RankMask ranks = waited_for();
  if (ranks == 0) return true;
  neighbours_->announce_sleep(ranks);
  moved_before_sleep_ = move_all();
  if (!moved_before_sleep_ && (ranks & neighbours_->gone()) == 0) return true;
  neighbours_->cancel_sleep();
  check_soon_ = true;
  return false;
}

PeerActivity ShmTransport::peer_activity() { return neighbours_->activity(waited_for()); }

void ShmTransport::finish_sleep() {
  neighbours_->end_sleep();
  check_soon_ = true;
}

// ---- Lost peers ----

bool ShmTransport::check_neighbours() {
  check_soon_ = false;
  const RankMask gone = neighbours_->gone() & ~all_failed();
  if (gone == 0) return false;
  bool moved = move_all();  // delivers what the peers wrote before they ended
  for (int channel = 0; channel < kChannelCount; ++channel) {
    for (const int peer : each_of(gone & ~failed_[index(channel)])) {
      if (!is_lost(peer, channel)) continue;
      fail(peer, channel, neighbours_->why_gone(peer));
      moved = true;
    }
  }
  return moved;
}

// Decides about a channel of a peer that is gone: what it wrote is still delivered.
bool ShmTransport::is_lost(int peer, int channel) {
  bool all_dry = true;
  for (int each = 0; each < kChannelCount; ++each) all_dry &= incoming_[stream(peer, each)].ring.is_dry();
  Incoming& in = incoming_[stream(peer, channel)];
  // A posted receive on an empty ring, or any unsent slice, can no longer finish.
  const bool needed = (in.ring.is_dry() && !in.queue.is_empty()) || !outgoing_[stream(peer, channel)].queue.is_empty();
  return needed || (all_dry && neighbours_->has_ended(peer));
}

void ShmTransport::fail(int peer, int channel, const Status& why) {
  if ((failed_[index(channel)] & bit_of(peer)) != 0) return;
  failed_[index(channel)] |= bit_of(peer);
  errors_[stream(peer, channel)] = why;
  sending_[index(channel)] &= ~bit_of(peer);
  receiving_[index(channel)] &= ~bit_of(peer);
}

void ShmTransport::fail(int peer, const Status& why) {
  for (int channel = 0; channel < kChannelCount; ++channel) fail(peer, channel, why);
}

RankMask ShmTransport::all_failed() const {
  RankMask all = ~RankMask{0};
  for (const RankMask failed : failed_) all &= failed;
  return all;
}

Status ShmTransport::peer_status(int peer) const {
  for (int channel = 0; channel < kChannelCount; ++channel) FDL_RETURN_IF_ERROR(channel_status({peer, channel}));
  return {};
}

Status ShmTransport::status() const {
  if (std::ranges::all_of(failed_, [](RankMask failed) { return failed == 0; })) return {};
  for (const Status& error : errors_) FDL_RETURN_IF_ERROR(error);
  return {};
}

Status ShmTransport::mismatch(int peer, const ShmRing::Header& sent, const Slice<Bytes>& expected) const {
  const Member& sender = neighbours_->member(peer);
  return Status::blame(
      sender.world_rank, sender.host_name, Code::mismatch,
      fmt::format("shm: {} sent {} bytes (tag {:08x}) where {} expected {} bytes (tag {:08x}): the ranks called "
                  "different operations or counts{}",
                  neighbours_->name_of(peer), sent.bytes, sent.tag, neighbours_->name_of(neighbours_->rank()),
                  expected.bytes.size(), expected.tag,
                  describe_compressions(neighbours_->name_of(peer), sent.tag, neighbours_->name_of(neighbours_->rank()),
                                        expected.tag)));
}

}  // namespace

std::size_t shm_ring_bytes(int ranks, std::size_t bytes_of_rank) {
  const std::size_t ring = std::max(kLeastRingBytes, bytes_of_rank / rings_of(ranks)) / 256 * 256;
  return static_cast<std::size_t>(ranks) * rings_of(ranks) * ring;
}

Result<std::unique_ptr<Transport>> make_shm_transport(std::shared_ptr<Neighbours> neighbours, Bytes rings,
                                                      std::vector<int> local_of) {
  return std::unique_ptr<Transport>(std::make_unique<ShmTransport>(std::move(neighbours), rings, std::move(local_of)));
}

}  // namespace fdl
