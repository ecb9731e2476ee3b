// The loopback transport copies a slice when its second side is posted, in the posting thread, under the mutex of the
// pair.
#include "transports/loopback/loopback_transport.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "contract/tags.h"
#include "system/event.h"

namespace fdl {
namespace {

// Outstanding slices in each direction: the fewest that the contract allows, so that tests reach the "would block"
// case.
constexpr uint64_t kDepth = 16;

struct Slice {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  uint32_t tag = 0;
};

// One direction of a channel. The k-th send and the k-th receive complete together, so one counter serves both.
struct Stream {
  std::array<Slice, kDepth> sends;
  std::array<Slice, kDepth> recvs;
  uint64_t sent = 0;
  uint64_t received = 0;
  std::atomic<uint64_t> matched{0};
};

// The state shared by two ranks; side 0 is the lower rank. The mutex guards everything except the atomics.
struct Pair {
  Mutex mutex;
  Stream streams[2][kChannelCount];  // by sending side
  bool gone[2] = {false, false};
  Status mismatch;
  std::atomic<bool> has_error{false};  // gone or mismatched; lets peer_status() skip the lock
};

// A rank's notification: `changes` counts announcements, and the event is rung only while the rank sleeps.
struct Doorbell {
  explicit Doorbell(Event made) : event(std::move(made)) {}
  void announce() {
    changes.fetch_add(1);
    if (asleep.load()) event.ring();
  }
  Event event;
  std::atomic<uint64_t> changes{0};
  std::atomic<bool> asleep{false};
};

// The state of one communicator in this process. The registry in find_group() holds it weakly; its members own it.
class LoopbackGroup {
 public:
  // Makes a group with a doorbell for each rank and a pair for each two ranks.
  static Result<std::shared_ptr<LoopbackGroup>> make(int size) {
    auto group = std::shared_ptr<LoopbackGroup>(new LoopbackGroup(size));
    for (int i = 0; i < size; ++i) {
      FDL_ASSIGN_OR_RETURN(Event event, Event::make());
      group->doorbells_.push_back(std::make_unique<Doorbell>(std::move(event)));
    }
    return group;
  }

  // Blocks until all members have joined or the deadline passes.
  Status join(const Membership& membership) {
    MutexLock lock(mutex_);
    const auto me = static_cast<std::size_t>(membership.rank);
    if (static_cast<int>(joined_.size()) != membership.size() || joined_[me]) {
      return Status(Code::invalid_argument,
                    fmt::format("loopback: {} cannot join '{}': it has other members or has joined already",
                                membership.name_of(membership.rank), membership.id));
    }
    joined_[me] = true;
    ++present_;
    arrival_.notify_all();
    if (arrival_.wait(mutex_, membership.deadline, [this] { return present_ == joined_.size(); })) return {};
    std::string missing;
    for (std::size_t i = 0; i < joined_.size(); ++i) {
      if (!joined_[i]) missing += (missing.empty() ? "" : ", ") + membership.name_of(static_cast<int>(i));
    }
    return Status(Code::timeout, fmt::format("loopback: {} did not join '{}' in time", missing, membership.id));
  }

  // Pairs are stored as a triangle: those of rank 1, then those of rank 2 with lower ranks, and so on.
  Pair& pair(int a, int b) {
    return *pairs_[static_cast<std::size_t>(std::max(a, b) * (std::max(a, b) - 1) / 2 + std::min(a, b))];
  }
  Doorbell& doorbell(int rank) { return *doorbells_[static_cast<std::size_t>(rank)]; }

 private:
  explicit LoopbackGroup(int size) : joined_(static_cast<std::size_t>(size)) {
    for (int i = 0; i < size * (size - 1) / 2; ++i) pairs_.push_back(std::make_unique<Pair>());
  }

  Mutex mutex_;
  CondVar arrival_;
  std::vector<bool> joined_;
  std::size_t present_ = 0;
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::vector<std::unique_ptr<Doorbell>> doorbells_;
};

Result<std::shared_ptr<LoopbackGroup>> find_group(const Membership& membership) {
  static Mutex mutex;
  // Intentionally leaked, because threads may run while the process exits.
  static auto& groups = *new std::map<std::string, std::weak_ptr<LoopbackGroup>>;
  MutexLock lock(mutex);
  // Groups whose members have all left are forgotten, so that an id can be used again.
  std::erase_if(groups, [](const auto& entry) { return entry.second.expired(); });
  if (auto known = groups[membership.id].lock()) return known;
  FDL_ASSIGN_OR_RETURN(auto made, LoopbackGroup::make(membership.size()));
  groups[membership.id] = made;
  return made;
}

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<LoopbackGroup> group, const Membership& membership)
      : group_(std::move(group)),
        doorbell_(group_->doorbell(membership.rank)),
        rank_(membership.rank),
        members_(membership.members) {
    for (int i = 0; i < membership.size(); ++i) names_.push_back(membership.name_of(i));
  }

  ~LoopbackTransport() override {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_) continue;
      Pair& pair = group_->pair(rank_, peer);
      MutexLock lock(pair.mutex);
      pair.gone[my_side(peer)] = true;
      pair.has_error.store(true);
      group_->doorbell(peer).announce();
    }
  }

  std::string_view name() const override { return "loopback"; }

  // The stream of a ticket encodes peer, channel and direction; see post().
  std::optional<Ticket> send(Channel channel, uint32_t tag, ConstBytes bytes) override {
    return post(channel, true, {const_cast<std::byte*>(bytes.data()), bytes.size(), tag});
  }
  std::optional<Ticket> recv(Channel channel, uint32_t tag, Bytes bytes) override {
    return post(channel, false, {bytes.data(), bytes.size(), tag});
  }

  bool done(Ticket ticket) const override {
    const int peer = static_cast<int>(ticket.stream / (2 * kChannelCount));
    const bool outgoing = (ticket.stream & 1) != 0;
    const int channel = static_cast<int>(ticket.stream / 2 % kChannelCount);
    const int sender = outgoing ? my_side(peer) : 1 - my_side(peer);
    return ticket.position < group_->pair(rank_, peer).streams[sender][channel].matched.load(std::memory_order_acquire);
  }

  bool progress() override {
    // Anything announced since the last call counts as progress.
    const uint64_t now = doorbell_.changes.load();
    return std::exchange(seen_, now) != now;
  }

  Status peer_status(int peer) const override {
    Pair& pair = group_->pair(rank_, peer);
    if (!pair.has_error.load()) return {};
    MutexLock lock(pair.mutex);
    if (!pair.mismatch.ok()) return pair.mismatch;
    if (!pair.gone[1 - my_side(peer)]) return {};
    const Member& lost = members_[static_cast<std::size_t>(peer)];
    return Status::blame(
        lost.world_rank, lost.host_name, Code::peer_lost,
        fmt::format("loopback: {} has left; see its own error", names_[static_cast<std::size_t>(peer)]));
  }

  Status status() const override {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_) continue;
      FDL_RETURN_IF_ERROR(peer_status(peer));
    }
    return {};
  }

  int wake_fd() const override { return doorbell_.event.fd(); }
  // Either this rank sees the new count here, or the peer sees `asleep` and rings.
  bool prepare_to_sleep() override {
    doorbell_.asleep.store(true);
    return doorbell_.changes.load() == seen_;
  }
  void finish_sleep() override {
    doorbell_.asleep.store(false);
    doorbell_.event.clear();
  }

 private:
  int size() const { return static_cast<int>(members_.size()); }
  // Index of this rank in the arrays of a Pair.
  int my_side(int peer) const { return rank_ < peer ? 0 : 1; }

  // Records a slice, and copies it if the other side has posted its part. Empty: the queue is full or the peer is lost.
  std::optional<Ticket> post(Channel channel, bool outgoing, Slice slice) {
    Pair& pair = group_->pair(rank_, channel.peer);
    MutexLock lock(pair.mutex);
    if (pair.gone[0] || pair.gone[1] || !pair.mismatch.ok()) return std::nullopt;
    const int sender = outgoing ? my_side(channel.peer) : 1 - my_side(channel.peer);
    Stream& stream = pair.streams[sender][channel.index];
    uint64_t& mine = outgoing ? stream.sent : stream.received;
    if (mine - stream.matched.load() == kDepth) return std::nullopt;
    const uint64_t position = mine++;
    (outgoing ? stream.sends : stream.recvs)[position % kDepth] = slice;
    if (position < (outgoing ? stream.received : stream.sent)) match(pair, stream, position, channel.peer, outgoing);
    return Ticket{static_cast<uint32_t>((channel.peer * kChannelCount + channel.index) * 2 + (outgoing ? 1 : 0)),
                  position};
  }

  // Copies slice `position`, or records a mismatch, and notifies both sides. Call with the mutex of the pair held.
  void match(Pair& pair, Stream& stream, uint64_t position, int peer, bool outgoing) {
    const Slice& source = stream.sends[position % kDepth];
    const Slice& target = stream.recvs[position % kDepth];
    if (source.bytes == target.bytes && source.tag == target.tag) {
      if (source.bytes > 0) std::memcpy(target.data, source.data, source.bytes);
      stream.matched.store(position + 1, std::memory_order_release);
    } else {
      const auto& sender = names_[static_cast<std::size_t>(outgoing ? rank_ : peer)];
      const auto& receiver = names_[static_cast<std::size_t>(outgoing ? peer : rank_)];
      pair.mismatch = Status(
          Code::mismatch,
          fmt::format("loopback: {} sent {} bytes (tag {:08x}) where {} expected {} bytes (tag {:08x}); they did not "
                      "call the same operation with the same arguments{}",
                      sender, source.bytes, source.tag, receiver, target.bytes, target.tag,
                      describe_compressions(sender, source.tag, receiver, target.tag)));
      pair.has_error.store(true);
    }
    doorbell_.announce();
    group_->doorbell(peer).announce();
  }

  std::shared_ptr<LoopbackGroup> group_;
  Doorbell& doorbell_;
  int rank_;
  Members members_;
  std::vector<std::string> names_;
  uint64_t seen_ = 0;
};

}  // namespace

Result<std::unique_ptr<Transport>> connect_loopback(const Membership& membership) {
  FDL_ASSIGN_OR_RETURN(auto group, find_group(membership));
  FDL_RETURN_IF_ERROR(group->join(membership));
  return std::unique_ptr<Transport>(new LoopbackTransport(std::move(group), membership));
}

}  // namespace fdl
