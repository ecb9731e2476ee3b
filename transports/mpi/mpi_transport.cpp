// Each slice begins with a message that has its tag and size, and the bytes too if they are few. The bytes of a larger
// slice follow in a message of their own, straight between the buffers of sender and receiver. MPI delivers the
// messages of one channel (one tag) in the order in which they were sent, and receives match in the order in which they
// were posted.
#include "transports/mpi/mpi_transport.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "base/thread_role.h"
#include "contract/slice_ledger.h"
#include "system/poll_timer.h"
#include "system/process/processor.h"
#include "transports/mpi/mpi_user.h"

namespace fdl {
namespace {

constexpr std::size_t kDepth = 32;          // slices in flight of one channel and direction
constexpr std::size_t kInline = 4096;       // bytes that travel with the header: one copy costs less than a message
constexpr int kGoodbyeTag = kChannelCount;  // the tags before it are the channels
constexpr int32_t kOtherHost = -1;
constexpr int64_t kFarewell_ns = 2'000'000'000;  // at the end, for slices that are still in flight
constexpr int64_t kPoliteness_ns = 200'000'000;  // at the end, for the goodbyes of the peers

struct Header {
  uint64_t bytes = 0;
  uint32_t tag = 0;
  int32_t processor = 0;  // on which the sender ran, plus 1; 0: it is on another host
};

struct Slot {
  uint32_t tag = 0;
  Bytes bytes;  // of the user; of a send they are only read
  MpiRequest header = 0;
  MpiRequest data = 0;
};

// One channel of one peer in one direction.
struct Stream {
  bool busy = false;
  std::unique_ptr<std::array<Slot, kDepth>> slots;  // made at the first slice
  std::unique_ptr<std::byte[]> buffers;             // kDepth of kBuffer bytes: header and few bytes
};
constexpr std::size_t kBuffer = sizeof(Header) + kInline;

// What this rank tells a peer when it leaves, while MPI sends it.
struct Goodbye {
  Farewell mine;
  MpiRequest request = 0;
};

class MpiTransport final : public Transport, private MpiUser {
 public:
  MpiTransport(std::shared_ptr<MpiGroup> group, const Membership& membership, const std::vector<bool>& peers,
               PollTimer timer)
      : group_(std::move(group)),
        mpi_(group_->mpi),
        comm_(group_->comm),
        ledger_("mpi", membership, peers),
        goodbyes_(membership.members.size()),
        processors_(membership.members.size(), kOtherHost),
        streams_(ledger_.streams()),
        timer_(std::move(timer)) {
    busy_.reserve(streams_.size());
    for (std::size_t peer = 0; peer < processors_.size(); ++peer) {
      if (membership.members[peer].host_id == membership.me().host_id) processors_[peer] = 0;
    }
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
    return post(channel, true, {tag, Bytes(const_cast<std::byte*>(bytes.data()), bytes.size())});
  }
  std::optional<Ticket> recv(Channel channel, uint32_t tag, Bytes bytes) override {
    return post(channel, false, {tag, bytes});
  }
  bool done(Ticket ticket) const override { return ledger_.done(ticket); }

  bool progress() override {
    if (!may_move()) return false;
    if (!enter()) return note_end();
    const bool moved = move();
    exit();
    return moved;
  }

  Status channel_status(Channel channel) const override { return ledger_.error_of(channel); }
  Status peer_status(int peer) const override { return ledger_.peer_status(peer); }
  Status status() const override { return ledger_.status(); }

  int wake_fd() const override { return timer_.fd(); }
  bool prepare_to_sleep() override {
    // A message may have come since the last progress(); the first interval is short, so it is not looked for here.
    timer_.begin(!busy_.empty() || leaving_);
    return true;
  }
  void finish_sleep() override { timer_.end(); }
  PeerActivity peer_activity() override;

 private:
  // MPI may allow one thread alone. The progress thread then moves nothing, until a thread that may waits.
  bool may_move() {
    if (mpi_.may_call()) [[likely]]
      return true;
    if (!is_library_thread) ledger_.fail_all(mpi_.wrong_thread());
    return false;
  }

  // For the driving thread: everything in flight fails after leave_all(). Returns whether that is new.
  bool note_end() { return has_ended() && ledger_.fail_all(after_end()); }

  bool move() {
    bool moved = take_goodbyes();
    for (std::size_t i = 0; i < busy_.size();) {
      moved |= advance(busy_[i]);
      if (ledger_[busy_[i]].is_idle() || !ledger_.error_of(busy_[i]).ok()) {
        streams_[busy_[i]].busy = false;
        busy_[i] = busy_.back();
        busy_.pop_back();
      } else {
        ++i;
      }
    }
    moved |= ledger_.end_channels();
    if (moved) timer_.note_move();
    return moved;
  }

  static std::size_t index(int number) { return static_cast<std::size_t>(number); }

  Bytes goodbye_bytes() { return std::as_writable_bytes(std::span(goodbye_.get(), 1)); }
  std::byte* buffer_of(Stream& stream, uint64_t position) { return stream.buffers.get() + position % kDepth * kBuffer; }

  std::optional<Ticket> post(Channel channel, bool outgoing, Slot slot) {
    if (!may_move()) return std::nullopt;
    if (!enter()) {
      note_end();
      return std::nullopt;
    }
    const auto ticket = post_now(channel, outgoing, slot);
    exit();
    return ticket;
  }

  std::optional<Ticket> post_now(Channel channel, bool outgoing, Slot slot) {
    const std::size_t at = SliceLedger::stream_of(channel, outgoing);
    Stream& stream = streams_[at];
    SliceLedger::Counts& counts = ledger_[at];
    if (!ledger_.may_post(at) || counts.posted - counts.finished == kDepth) return std::nullopt;
    if (!stream.slots) {
      stream.slots = std::make_unique<std::array<Slot, kDepth>>();
      stream.buffers = std::make_unique<std::byte[]>(kDepth * kBuffer);
    }
    std::byte* buffer = buffer_of(stream, counts.posted);
    const Status begun = outgoing ? begin_send(channel, buffer, slot) : begin_recv(channel, buffer, slot);
    (*stream.slots)[counts.posted % kDepth] = slot;
    if (!begun.ok()) {
      ledger_.fail(channel.peer, ledger_.blame(channel.peer, begun));
      return std::nullopt;
    }
    if (!stream.busy) {
      stream.busy = true;
      busy_.push_back(at);
    }
    if (counts.is_idle()) timer_.note_move();
    return Ticket{static_cast<uint32_t>(at), counts.posted++};
  }

  Status begin_send(Channel channel, std::byte* buffer, Slot& slot) {
    const bool on_this_host = processors_[index(channel.peer)] != kOtherHost;
    const Header header{
        .bytes = slot.bytes.size(), .tag = slot.tag, .processor = on_this_host ? this_processor() + 1 : 0};
    std::memcpy(buffer, &header, sizeof header);
    const std::size_t along = slot.bytes.size() <= kInline ? slot.bytes.size() : 0;
    if (along > 0) std::memcpy(buffer + sizeof header, slot.bytes.data(), along);
    FDL_RETURN_IF_ERROR(
        mpi_.start_send(comm_, channel.peer, channel.index, ConstBytes(buffer, sizeof header + along), slot.header));
    if (slot.bytes.size() <= kInline) return {};
    return mpi_.start_send(comm_, channel.peer, channel.index, slot.bytes, slot.data);
  }

  // The first message may always be of full length, so that one that is not expected is read whole and named.
  Status begin_recv(Channel channel, std::byte* buffer, Slot& slot) {
    FDL_RETURN_IF_ERROR(mpi_.start_recv(comm_, channel.peer, channel.index, Bytes(buffer, kBuffer), slot.header));
    if (slot.bytes.size() <= kInline) return {};
    return mpi_.start_recv(comm_, channel.peer, channel.index, slot.bytes, slot.data);
  }

  // Finishes slices in order as far as their messages are done.
  bool advance(std::size_t at) {
    Stream& stream = streams_[at];
    SliceLedger::Counts& counts = ledger_[at];
    const int peer = SliceLedger::channel_of(at).peer;
    bool moved = false;
    while (!counts.is_idle() && ledger_.error_of(at).ok()) {
      Slot& slot = (*stream.slots)[counts.finished % kDepth];
      if (slot.header != 0) {
        if (!is_done(peer, slot.header)) break;
        if (!SliceLedger::is_outgoing(at) && !take_header(peer, buffer_of(stream, counts.finished), slot)) return true;
      }
      if (slot.data != 0 && !is_done(peer, slot.data)) break;
      ++counts.finished;
      moved = true;
    }
    return moved || !ledger_.error_of(at).ok();
  }

  bool is_done(int peer, MpiRequest& request) {
    MpiArrival arrival;
    const auto done = mpi_.test(request, arrival);
    if (!done.ok()) ledger_.fail(peer, ledger_.blame(peer, done.status()));
    return done.ok() && *done;
  }

  // Compares the header with what was expected, and copies bytes that came along. Returns false after an error.
  bool take_header(int peer, const std::byte* buffer, const Slot& slot) {
    Header header;
    std::memcpy(&header, buffer, sizeof header);
    if (processors_[index(peer)] != kOtherHost) processors_[index(peer)] = header.processor;
    if (header.bytes != slot.bytes.size() || header.tag != slot.tag) {
      ledger_.fail(peer, ledger_.mismatch(peer, header.bytes, header.tag, slot.bytes.size(), slot.tag));
      return false;
    }
    if (header.bytes > 0 && header.bytes <= kInline) {
      std::memcpy(slot.bytes.data(), buffer + sizeof header, header.bytes);
    }
    return true;
  }

  // ---- Leaving ----

  // One receive waits for a goodbye of any peer.
  bool take_goodbyes() {
    bool moved = false;
    MpiArrival arrival;
    while (goodbye_request_ != 0) {
      const auto done = mpi_.test(goodbye_request_, arrival);
      if (!done.ok() || !*done) break;
      ledger_.note_left(arrival.source, *goodbye_);
      moved = true;
      if (!mpi_.start_recv(comm_, kFromAnyRank, kGoodbyeTag, goodbye_bytes(), goodbye_request_).ok()) break;
    }
    return moved;
  }

  void leave() override {
    if (!mpi_.may_call()) {
      log_info("mpi: {} leaves in a thread that may not call MPI; MPI will not be finalized",
               ledger_.name_of(ledger_.rank()));
      return abandon();
    }
    for (int peer = 0; peer < ledger_.size(); ++peer) {
      if (!ledger_.joins(peer)) continue;
      Goodbye& goodbye = goodbyes_[index(peer)];
      goodbye.mine = ledger_.farewell_to(peer);
      [[maybe_unused]] const Status told =
          mpi_.start_send(comm_, peer, kGoodbyeTag, std::as_bytes(std::span(&goodbye.mine, 1)), goodbye.request);
    }
    linger();
    const bool received = cancel_receives();
    const bool sent = !has_unfinished_sends();
    const bool told = std::ranges::all_of(goodbyes_, [](const Goodbye& goodbye) { return goodbye.request == 0; });
    const bool quiet = received && sent && told;
    if (!quiet) {
      log_info("mpi: {} leaves while {} are in flight; MPI will not be finalized", ledger_.name_of(ledger_.rank()),
               !received ? "receives"
               : !sent   ? "slices"
                         : "goodbyes");
    }
    if (!quiet) return abandon();
    // A communicator that is freed while a peer may still send on it could give its number, and that message, to
    // another.
    group_->will_end(ledger_.all_have_left() ? MpiEnd::freed : MpiEnd::kept);
    group_.reset();
  }

  void abandon() {
    keep_memory();
    group_->will_end(MpiEnd::abandoned);
    group_.reset();
  }

  // Waits for sends, and a short time for the goodbyes of all peers: most communicators end on all ranks at once.
  void linger() {
    leaving_ = true;
    timer_.note_move();
    const Deadline farewell = Deadline::after_ns(kFarewell_ns);
    const Deadline politeness = Deadline::after_ns(kPoliteness_ns);
    MpiArrival ignored;
    while (true) {
      const bool moved = move();
      bool told = true;
      bool heard = true;
      for (int peer = 0; peer < ledger_.size(); ++peer) {
        MpiRequest& request = goodbyes_[index(peer)].request;
        if (request != 0 && !mpi_.test(request, ignored).ok()) request = 0;
        told &= request == 0 || ledger_.has_failed(peer);
        heard &= !ledger_.joins(peer) || ledger_.has_left(peer) || ledger_.has_failed(peer);
      }
      const bool sends_to_leavers = politeness.passed() && ledger_.all_have_left();
      const bool sending = has_unfinished_sends() && !sends_to_leavers;
      if ((!sending && told && (heard || politeness.passed())) || farewell.passed()) return;
      if (!moved) sleep_until_ready(farewell);
    }
  }

  // Returns whether MPI has given back the bytes of all receives.
  bool cancel_receives() {
    bool all = goodbye_request_ == 0 || mpi_.cancel_recv(goodbye_request_);
    for (std::size_t at = 0; at < streams_.size(); ++at) {
      Stream& stream = streams_[at];
      if (SliceLedger::is_outgoing(at) || !stream.slots) continue;
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
      if (!SliceLedger::is_outgoing(at) || !streams_[at].slots) continue;
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
      std::vector<Goodbye> goodbyes;
      std::unique_ptr<Farewell> goodbye;
    };
    static std::mutex mutex;
    static std::vector<Kept>& all = *new std::vector<Kept>;
    const std::lock_guard lock(mutex);
    all.push_back({std::move(streams_), std::move(goodbyes_), std::move(goodbye_)});
  }

  std::shared_ptr<MpiGroup> group_;  // until leave()
  MpiLibrary& mpi_;
  MpiComm comm_;
  SliceLedger ledger_;
  std::vector<Goodbye> goodbyes_;  // by peer
  // By peer: on which processor it sent its last slice, plus 1; 0: none has come; or kOtherHost.
  std::vector<int32_t> processors_;
  std::vector<Stream> streams_;
  std::vector<std::size_t> busy_;  // the streams with slices in flight
  // Where the next goodbye arrives.
  std::unique_ptr<Farewell> goodbye_ = std::make_unique<Farewell>();
  MpiRequest goodbye_request_ = 0;
  PollTimer timer_;
  bool leaving_ = false;  // goodbyes are expected soon
};

// MPI may start two ranks of a host without binding them, and the kernel may put both on one processor. There each
// would spin while the other could run. Of the ranks that share a processor all but the lowest leave it.
PeerActivity MpiTransport::peer_activity() {
  const int32_t here = this_processor() + 1;
  PeerActivity activity;
  for (const std::size_t at : busy_) {
    const int peer = SliceLedger::channel_of(at).peer;
    if (processors_[index(peer)] != here) continue;
    activity.on_this_processor = true;
    activity.should_leave |= peer < ledger_.rank();
  }
  return activity;
}

}  // namespace

Result<std::unique_ptr<Transport>> make_mpi_transport(std::shared_ptr<MpiGroup> group, const Membership& membership,
                                                      const std::vector<bool>& peers) {
  FDL_ASSIGN_OR_RETURN(PollTimer timer, PollTimer::make());
  auto transport = std::make_unique<MpiTransport>(std::move(group), membership, peers, std::move(timer));
  FDL_RETURN_IF_ERROR(transport->start());
  return std::unique_ptr<Transport>(std::move(transport));
}

std::shared_ptr<MpiGroup> mpi_group_of(const Transport& transport) {
  const auto* mpi = dynamic_cast<const MpiTransport*>(&transport);
  return mpi == nullptr ? nullptr : mpi->group();
}

}  // namespace fdl
