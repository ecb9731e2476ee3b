// Each slice begins with a message that has its tag and size, and the bytes too if they are few. The bytes of a larger
// slice follow in a message of their own, straight between the buffers of sender and receiver. MPI delivers the
// messages of one channel (one tag) in the order in which they were sent, and receives match in the order in which they
// were posted.
#include "transports/mpi/mpi_transport.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "transports/mpi/mpi_user.h"

namespace fdl {
namespace {

constexpr std::size_t kDepth = 32;          // slices in flight of one channel and direction
constexpr std::size_t kInline = 4096;       // bytes that travel with the header: one copy costs less than a message
constexpr int kGoodbyeTag = kChannelCount;  // the tags before it are the channels
constexpr int64_t kFarewell_ns = 2'000'000'000;  // at the end, for slices that are still in flight
constexpr int64_t kPoliteness_ns = 200'000'000;  // at the end, for the goodbyes of the peers

struct Header {
  uint64_t bytes = 0;
  uint32_t tag = 0;
  uint32_t reserved = 0;
};

// What a leaving rank tells each peer: how many slices it has sent to it and posted receives for, by channel.
struct Goodbye {
  std::array<uint64_t, kChannelCount> sent{};
  std::array<uint64_t, kChannelCount> received{};
};

struct Slot {
  uint32_t tag = 0;
  Bytes bytes;  // of the user; of a send they are only read
  MpiRequest header = 0;
  MpiRequest data = 0;
};

// One channel of one peer in one direction. Slices finish in order.
struct Stream {
  uint64_t posted = 0;
  uint64_t finished = 0;
  bool busy = false;
  std::unique_ptr<std::array<Slot, kDepth>> slots;  // made at the first slice
  std::unique_ptr<std::byte[]> buffers;             // kDepth of kBuffer bytes: header and few bytes
};
constexpr std::size_t kBuffer = sizeof(Header) + kInline;

struct Peer {
  bool joined = false;  // this transport reaches it
  bool left = false;
  Goodbye goodbye;  // valid if it has left
  std::array<Status, kChannelCount> errors;  // by channel
  Goodbye mine;  // sent when this transport ends
  MpiRequest farewell = 0;

  bool has_failed() const {
    return std::ranges::all_of(errors, [](const Status& error) { return !error.ok(); });
  }
};

class MpiTransport final : public Transport, private MpiUser {
 public:
  MpiTransport(std::shared_ptr<MpiGroup> group, const Membership& membership, const std::vector<bool>& peers,
               MpiRest rest)
      : group_(std::move(group)),
        mpi_(group_->mpi),
        comm_(group_->comm),
        rank_(membership.rank),
        members_(membership.members),
        peers_(members_.size()),
        streams_(members_.size() * kChannelCount * 2),
        rest_(std::move(rest)) {
    for (int member = 0; member < membership.size(); ++member) {
      names_.push_back(membership.name_of(member));
      peers_[index(member)].joined = member != rank_ && peers[index(member)];
    }
    busy_.reserve(streams_.size());
    leavers_.reserve(members_.size());
  }

  Status start() {
    FDL_RETURN_IF_ERROR(mpi_.start_recv(comm_, kFromAnyRank, kGoodbyeTag, goodbye_bytes(), goodbye_request_));
    open();
    mpi_.before_finalize(leave_all);
    return {};
  }

  ~MpiTransport() override { close(); }

  std::string_view name() const override { return "mpi"; }
  const std::shared_ptr<MpiGroup>& group() const { return group_; }

  std::optional<Ticket> send(Channel channel, uint32_t tag, ConstBytes bytes) override {
    if (peers_[index(channel.peer)].left) return refuse(channel);
    return post(channel, true, {tag, Bytes(const_cast<std::byte*>(bytes.data()), bytes.size())});
  }
  std::optional<Ticket> recv(Channel channel, uint32_t tag, Bytes bytes) override {
    const Peer& peer = peers_[index(channel.peer)];
    const uint64_t position = streams_[stream_of(channel, false)].posted;
    if (peer.left && position >= peer.goodbye.sent[index(channel.index)]) return refuse(channel);
    return post(channel, false, {tag, bytes});
  }
  bool done(Ticket ticket) const override { return ticket.position < streams_[ticket.stream].finished; }

  bool progress() override {
    if (!enter()) return note_end();
    const bool moved = move();
    exit();
    return moved;
  }

  Status channel_status(Channel channel) const override {
    return peers_[index(channel.peer)].errors[index(channel.index)];
  }
  Status peer_status(int peer) const override {
    for (const Status& error : peers_[index(peer)].errors) FDL_RETURN_IF_ERROR(error);
    return {};
  }
  Status status() const override {
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) FDL_RETURN_IF_ERROR(peer_status(peer));
    return {};
  }

  int wake_fd() const override { return rest_.fd(); }
  bool prepare_to_sleep() override {
    // A message may have come since the last progress(); the first interval is short, so it is not looked for here.
    rest_.begin(!busy_.empty() || leaving_);
    return true;
  }
  void finish_sleep() override { rest_.end(); }

 private:
  // For the driving thread: everything in flight fails after leave_all(). Returns whether that is new.
  bool note_end() {
    if (!has_ended()) return false;
    bool news = false;
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
      if (peers_[index(peer)].joined) news |= fail(peer, after_end());
    }
    return news;
  }

  bool move() {
    bool moved = take_goodbyes();
    for (std::size_t i = 0; i < busy_.size();) {
      Stream& stream = streams_[busy_[i]];
      moved |= advance(busy_[i]);
      if (stream.finished == stream.posted || !error_of(busy_[i]).ok()) {
        stream.busy = false;
        busy_[i] = busy_.back();
        busy_.pop_back();
      } else {
        ++i;
      }
    }
    for (const int peer : leavers_) moved |= check_left(peer);
    if (moved) rest_.note_move();
    return moved;
  }

  static std::size_t index(int number) { return static_cast<std::size_t>(number); }
  static std::size_t stream_of(Channel channel, bool outgoing) {
    return index((channel.peer * kChannelCount + channel.index) * 2 + (outgoing ? 1 : 0));
  }
  static std::size_t peer_of(std::size_t stream) { return stream / 2 / kChannelCount; }
  static std::size_t channel_of(std::size_t stream) { return stream / 2 % kChannelCount; }
  static bool is_outgoing(std::size_t stream) { return stream % 2 == 1; }

  Bytes goodbye_bytes() { return std::as_writable_bytes(std::span(goodbye_.get(), 1)); }
  std::byte* buffer_of(Stream& stream, uint64_t position) { return stream.buffers.get() + position % kDepth * kBuffer; }

  std::optional<Ticket> post(Channel channel, bool outgoing, Slot slot) {
    if (!enter()) {
      note_end();
      return std::nullopt;
    }
    const auto ticket = post_now(channel, outgoing, slot);
    exit();
    return ticket;
  }

  std::optional<Ticket> post_now(Channel channel, bool outgoing, Slot slot) {
    const std::size_t at = stream_of(channel, outgoing);
    Stream& stream = streams_[at];
    if (!error_of(at).ok() || stream.posted - stream.finished == kDepth) return std::nullopt;
    if (!stream.slots) {
      stream.slots = std::make_unique<std::array<Slot, kDepth>>();
      stream.buffers = std::make_unique<std::byte[]>(kDepth * kBuffer);
    }
    const Status begun = outgoing ? begin_send(channel, stream, slot) : begin_recv(channel, stream, slot);
    (*stream.slots)[stream.posted % kDepth] = slot;
    if (!begun.ok()) {
      fail(channel.peer, blamed(channel.peer, begun));
      return std::nullopt;
    }
    if (!stream.busy) {
      stream.busy = true;
      busy_.push_back(at);
    }
    if (stream.posted == stream.finished) rest_.note_move();
    return Ticket{static_cast<uint32_t>(at), stream.posted++};
  }

  Status begin_send(Channel channel, Stream& stream, Slot& slot) {
    const Header header{.bytes = slot.bytes.size(), .tag = slot.tag};
    std::byte* buffer = buffer_of(stream, stream.posted);
    std::memcpy(buffer, &header, sizeof header);
    const std::size_t along = slot.bytes.size() <= kInline ? slot.bytes.size() : 0;
    if (along > 0) std::memcpy(buffer + sizeof header, slot.bytes.data(), along);
    FDL_RETURN_IF_ERROR(
        mpi_.start_send(comm_, channel.peer, channel.index, ConstBytes(buffer, sizeof header + along), slot.header));
    if (slot.bytes.size() <= kInline) return {};
    return mpi_.start_send(comm_, channel.peer, channel.index, slot.bytes, slot.data);
  }

  // The first message may always be of full length, so that one that is not expected is read whole and named.
  Status begin_recv(Channel channel, Stream& stream, Slot& slot) {
    FDL_RETURN_IF_ERROR(mpi_.start_recv(comm_, channel.peer, channel.index,
                                        Bytes(buffer_of(stream, stream.posted), kBuffer), slot.header));
    if (slot.bytes.size() <= kInline) return {};
    return mpi_.start_recv(comm_, channel.peer, channel.index, slot.bytes, slot.data);
  }

  // Finishes slices in order as far as their messages are done.
  bool advance(std::size_t at) {
    Stream& stream = streams_[at];
    const int peer = static_cast<int>(peer_of(at));
    bool moved = false;
    while (stream.finished < stream.posted && error_of(at).ok()) {
      Slot& slot = (*stream.slots)[stream.finished % kDepth];
      if (slot.header != 0) {
        if (!is_done(peer, slot.header)) break;
        if (!is_outgoing(at) && !take_header(peer, stream, slot)) return true;
      }
      if (slot.data != 0 && !is_done(peer, slot.data)) break;
      ++stream.finished;
      moved = true;
    }
    return moved || !error_of(at).ok();
  }

  bool is_done(int peer, MpiRequest& request) {
    MpiArrival arrival;
    const auto done = mpi_.test(request, arrival);
    if (!done.ok()) fail(peer, blamed(peer, done.status()));
    return done.ok() && *done;
  }

  // Compares the header with what was expected, and copies bytes that came along. Returns false after an error.
  bool take_header(int peer, Stream& stream, const Slot& slot) {
    const std::byte* buffer = buffer_of(stream, stream.finished);
    Header header;
    std::memcpy(&header, buffer, sizeof header);
    if (header.bytes != slot.bytes.size() || header.tag != slot.tag) {
      fail(peer,
           Status(Code::mismatch,
                  fmt::format(
                      "mpi: {} sent {} bytes (tag {:08x}) where {} expected {} bytes (tag {:08x}); they did not call "
                      "the same operation with the same arguments",
                      names_[index(peer)], header.bytes, header.tag, names_[index(rank_)], slot.bytes.size(),
                      slot.tag)));
      return false;
    }
    if (header.bytes > 0 && header.bytes <= kInline) {
      std::memcpy(slot.bytes.data(), buffer + sizeof header, header.bytes);
    }
    return true;
  }

  Status blamed(int peer, const Status& why) const {
    const Member& member = members_[index(peer)];
    return Status::blame(member.world_rank, member.host_name, why.code(),
                         fmt::format("{}, with {}", why.text(), names_[index(peer)]));
  }

  const Status& error_of(std::size_t stream) const { return peers_[peer_of(stream)].errors[channel_of(stream)]; }

  // Ends all channels of a peer; the first error of each stays. Returns whether that is new.
  bool fail(int peer, const Status& why) {
    bool news = false;
    for (Status& error : peers_[index(peer)].errors) {
      if (!error.ok()) continue;
      error = why;
      news = true;
    }
    return news;
  }

  void lose(Channel channel) {
    Status& error = peers_[index(channel.peer)].errors[index(channel.index)];
    if (!error.ok()) return;
    const Member& member = members_[index(channel.peer)];
    error = Status::blame(member.world_rank, member.host_name, Code::peer_lost,
                          fmt::format("mpi: {} has left; see its own error", names_[index(channel.peer)]));
  }

  // ---- Leaving ----

  // One receive waits for a goodbye of any peer.
  bool take_goodbyes() {
    bool moved = false;
    MpiArrival arrival;
    while (goodbye_request_ != 0) {
      const auto done = mpi_.test(goodbye_request_, arrival);
      if (!done.ok() || !*done) break;
      Peer& peer = peers_[index(arrival.source)];
      if (!std::exchange(peer.left, true)) leavers_.push_back(arrival.source);
      peer.goodbye = *goodbye_;
      moved = true;
      if (!mpi_.start_recv(comm_, kFromAnyRank, kGoodbyeTag, goodbye_bytes(), goodbye_request_).ok()) break;
    }
    return moved;
  }

  // Whether all that a peer had sent before it left has arrived, as far as receives for it are posted.
  bool has_all(Channel channel) const {
    const Stream& in = streams_[stream_of(channel, false)];
    return in.finished >= std::min(in.posted, peers_[index(channel.peer)].goodbye.sent[index(channel.index)]);
  }

  // For a slice that a peer that has left will never send or take. The channel ends when all has arrived.
  std::optional<Ticket> refuse(Channel channel) {
    if (has_all(channel)) lose(channel);
    return std::nullopt;
  }

  // Ends the channels of a peer that has left and will never send or take what this rank waits for, but not before all
  // that it had sent has arrived. Returns whether that is new.
  bool check_left(int peer) {
    bool news = false;
    const Goodbye& goodbye = peers_[index(peer)].goodbye;
    for (int i = 0; i < kChannelCount; ++i) {
      const Channel channel{peer, i};
      const Stream& in = streams_[stream_of(channel, false)];
      const Stream& out = streams_[stream_of(channel, true)];
      const bool needed = in.posted > goodbye.sent[index(i)] ||
                          (out.posted > out.finished && out.posted > goodbye.received[index(i)]);
      if (!needed || !has_all(channel) || !peers_[index(peer)].errors[index(i)].ok()) continue;
      lose(channel);
      news = true;
    }
    return news;
  }

  bool all_peers(const std::function<bool(const Peer&)>& holds) const {
    return std::ranges::all_of(peers_, [&](const Peer& peer) { return !peer.joined || holds(peer); });
  }

  void leave() override {
    for (int member = 0; member < static_cast<int>(peers_.size()); ++member) {
      Peer& peer = peers_[index(member)];
      if (!peer.joined) continue;
      for (int channel = 0; channel < kChannelCount; ++channel) {
        peer.mine.sent[index(channel)] = streams_[stream_of({member, channel}, true)].posted;
        peer.mine.received[index(channel)] = streams_[stream_of({member, channel}, false)].posted;
      }
      [[maybe_unused]] const Status told =
          mpi_.start_send(comm_, member, kGoodbyeTag, std::as_bytes(std::span(&peer.mine, 1)), peer.farewell);
    }
    linger();
    const bool received = cancel_receives();
    const bool sent = !has_unfinished_sends();
    const bool told = all_peers([](const Peer& peer) { return peer.farewell == 0; });
    const bool quiet = received && sent && told;
    if (!quiet) {
      log_info("mpi: {} leaves while {} are in flight; MPI will not be finalized", names_[index(rank_)],
               !received ? "receives"
               : !sent   ? "slices"
                         : "goodbyes");
    }
    const bool alone = all_peers([](const Peer& peer) { return peer.left; });
    if (!quiet) keep_memory();
    // A communicator that is freed while a peer may still send on it could give its number, and that message, to
    // another.
    group_->will_end(!quiet ? MpiEnd::abandoned : alone ? MpiEnd::freed : MpiEnd::kept);
    group_.reset();
  }

  // Waits for sends, and a short time for the goodbyes of all peers: most communicators end on all ranks at once.
  void linger() {
    leaving_ = true;
    rest_.note_move();
    const Deadline farewell = Deadline::after_ns(kFarewell_ns);
    const Deadline politeness = Deadline::after_ns(kPoliteness_ns);
    MpiArrival ignored;
    while (true) {
      const bool moved = move();
      for (Peer& peer : peers_) {
        if (peer.farewell != 0 && !mpi_.test(peer.farewell, ignored).ok()) peer.farewell = 0;
      }
      const bool said = all_peers([](const Peer& peer) { return peer.farewell == 0 || peer.has_failed(); });
      const bool heard = all_peers([](const Peer& peer) { return peer.left || peer.has_failed(); });
      const bool sends_to_nobody = politeness.passed() && all_peers([](const Peer& peer) { return peer.left; });
      const bool sending = has_unfinished_sends() && !sends_to_nobody;
      if ((!sending && said && (heard || politeness.passed())) || farewell.passed()) return;
      if (!moved) sleep_until_ready(farewell);
    }
  }

  // Returns whether MPI has given back the bytes of all receives.
  bool cancel_receives() {
    bool all = goodbye_request_ == 0 || mpi_.cancel_recv(goodbye_request_);
    for (std::size_t at = 0; at < streams_.size(); ++at) {
      Stream& stream = streams_[at];
      if (is_outgoing(at) || !stream.slots) continue;
      for (Slot& slot : *stream.slots) {
        if (slot.header != 0) all &= mpi_.cancel_recv(slot.header);
        if (slot.data != 0) all &= mpi_.cancel_recv(slot.data);
      }
    }
    return all;
  }

  // Returns whether MPI still has bytes of a send. A send to a peer that has left is tested here only; a short one ends
  // although it is not received.
  bool has_unfinished_sends() {
    bool any = false;
    MpiArrival ignored;
    for (std::size_t at = 0; at < streams_.size(); ++at) {
      if (!is_outgoing(at) || !streams_[at].slots) continue;
      for (Slot& slot : *streams_[at].slots) {
        for (MpiRequest* request : {&slot.header, &slot.data}) {
          if (*request != 0 && !mpi_.test(*request, ignored).ok()) *request = 0;
          any = any || *request != 0;
        }
      }
    }
    return any;
  }

  // MPI may still use these buffers: they stay until the process ends.
  void keep_memory() {
    struct Kept {
      std::vector<Stream> streams;
      std::vector<Peer> peers;
      std::unique_ptr<Goodbye> goodbye;
    };
    static std::mutex mutex;
    static std::vector<Kept>& all = *new std::vector<Kept>;
    const std::lock_guard lock(mutex);
    all.push_back({std::move(streams_), std::move(peers_), std::move(goodbye_)});
  }

  std::shared_ptr<MpiGroup> group_;  // until leave()
  MpiLibrary& mpi_;
  MpiComm comm_;
  int rank_;
  std::vector<Member> members_;
  std::vector<std::string> names_;
  std::vector<Peer> peers_;
  std::vector<Stream> streams_;
  std::vector<std::size_t> busy_;  // the streams with slices in flight
  std::vector<int> leavers_;       // the peers that have left
  // Where the next goodbye arrives.
  std::unique_ptr<Goodbye> goodbye_ = std::make_unique<Goodbye>();
  MpiRequest goodbye_request_ = 0;
  MpiRest rest_;
  bool leaving_ = false;  // goodbyes are expected soon
};

}  // namespace

Result<std::unique_ptr<Transport>> make_mpi_transport(std::shared_ptr<MpiGroup> group, const Membership& membership,
                                                      const std::vector<bool>& peers) {
  FDL_ASSIGN_OR_RETURN(MpiRest rest, MpiRest::make());
  auto transport = std::make_unique<MpiTransport>(std::move(group), membership, peers, std::move(rest));
  FDL_RETURN_IF_ERROR(transport->start());
  return std::unique_ptr<Transport>(std::move(transport));
}

std::shared_ptr<MpiGroup> mpi_group_of(const Transport& transport) {
  const auto* mpi = dynamic_cast<const MpiTransport*>(&transport);
  return mpi == nullptr ? nullptr : mpi->group();
}

}  // namespace fdl
