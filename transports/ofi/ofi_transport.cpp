// Short slices travel as packets into buffers of the receiver. A long slice is written into the receiver's memory, once
// the receiver has said where; each write carries the number of that memory, so that the receiver can count.
//
// A rank never has more packets under way to a peer than the peer expects: eager slices stop kOfiWindow positions after
// the last one that the peer has reported as received, and a channel has at most kOfiDepth offers and receives.
#include "transports/ofi/ofi_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "contract/delivery_watch.h"
#include "system/poll_timer.h"
#include "transports/ofi/ofi_agreement.h"
#include "transports/ofi/ofi_devices.h"
#include "transports/ofi/ofi_receiver.h"
#include "transports/ofi/ofi_sender.h"

namespace fdl {
namespace {

constexpr int64_t kFarewell_ns = 2'000'000'000;    // at the end, for what is still in flight
constexpr int64_t kDoubt_ns = 50'000'000;          // from an error of a packet until its peer has failed
constexpr int64_t kSilence_ns = 500'000'000;       // at the start, until a peer without a greeting is looked up
constexpr int64_t kPoliteness_ns = 1'000'000'000;  // at the end, without a move, for the goodbyes of the peers

class OfiTransport final : public Transport, private OfiLink::Events {
 public:
  OfiTransport(std::unique_ptr<OfiLink> link, const Membership& membership, const std::vector<bool>& peers,
               PollTimer timer)
      : post_(std::make_unique<OfiPost>(std::move(link), membership, peers)),
        link_(*post_->link),
        ledger_(post_->ledger),
        sender_(std::make_unique<OfiSender>(*post_)),
        receiver_(*post_),
        deliveries_(ledger_, membership.config->lost_after_s),
        greeted_(membership.members.size()),
        settled_(membership.members.size()),
        timer_(std::move(timer)),
        wake_fd_(link_.wake_fd()) {
    const std::string_view provider = link_.rail(0).provider();
    name_ = provider.starts_with("efa") ? "efa" : fmt::format("ofi:{}", provider.substr(0, provider.find(';')));
  }

  Status start(const Membership& membership) { return greet(membership); }

  ~OfiTransport() override { leave(); }

  std::string_view name() const override { return name_; }

  std::optional<Ticket> send(Channel channel, uint32_t tag, ConstBytes bytes) override {
    const std::size_t at = SliceLedger::stream_of(channel, true);
    if (!may_post(at)) return std::nullopt;
    sender_->append(at, tag, bytes);
    const Ticket ticket = post(at, bytes.size());
    sender_->push(at);
    deliveries_.note_progress(at);
    return ticket;
  }

  std::optional<Ticket> recv(Channel channel, uint32_t tag, Bytes bytes) override {
    const std::size_t at = SliceLedger::stream_of(channel, false);
    if (!may_post(at)) return std::nullopt;
    receiver_.append(at, tag, bytes);
    const Ticket ticket = post(at, bytes.size());
    receiver_.accept(at, ticket.position);
    return ticket;
  }

  bool done(Ticket ticket) const override { return ledger_.done(ticket); }

  void keep(const std::shared_ptr<void>& memory, std::size_t bytes) override { link_.memory().keep(memory, bytes); }

  bool progress() override {
    bool moved = link_.poll(*this);
    deliveries_.note_driven();
    for (std::size_t i = 0; i < post_->active.size();) {
      const std::size_t at = post_->active[i];
      moved |= SliceLedger::is_outgoing(at) ? sender_->push(at) : receiver_.settle(at);
      deliveries_.note_progress(at);
      const bool is_over = (ledger_[at].is_idle() && !receiver_.owes(at)) || !ledger_.error_of(at).ok();
      is_over ? post_->deactivate(i) : void(++i);
    }
    moved |= ledger_.end_channels();
    if (!suspects_.empty()) moved |= judge_suspects();
    close_failed();
    if (!unsettled_.empty()) moved |= answer_goodbyes();
    if (moved) timer_.note_move();
    return moved;
  }

  Status check_connections() override {
    const auto overdue = deliveries_.find_overdue(now_ns());
    if (!overdue) return {};
    post_->fail(overdue->peer, overdue->why);
    return overdue->why;
  }
  std::vector<int> awaited_peers() const override { return deliveries_.awaited_peers(); }
  SliceCounts sent_to(int peer) override { return deliveries_.sent_to(peer, now_ns()); }
  void note_sent_by(int peer, const SliceCounts& sent) override { deliveries_.note_sent_by(peer, sent); }

  Status channel_status(Channel channel) const override { return ledger_.error_of(channel); }
  Status peer_status(int peer) const override { return ledger_.peer_status(peer); }
  Status status() const override { return ledger_.status(); }

  int wake_fd() const override { return wake_fd_ >= 0 ? wake_fd_ : timer_.fd(); }
  bool prepare_to_sleep() override {
    if (wake_fd_ < 0) {
      timer_.begin(!post_->active.empty() || !link_.is_idle() || !suspects_.empty() || leaving_);
      return true;
    }
    // The descriptor wakes this rank for all that completes, but not when the provider takes more again.
    return !link_.has_refused() && suspects_.empty() && link_.may_sleep();
  }
  void finish_sleep() override { timer_.end(); }

 private:
  static std::size_t index(int number) { return static_cast<std::size_t>(number); }

  bool may_post(std::size_t at) {
    return ledger_.may_post(at) && ledger_[at].posted - ledger_[at].finished < kOfiDepth;
  }

  Ticket post(std::size_t at, std::size_t bytes) {
    if (ledger_[at].is_idle()) timer_.note_move();
    post_->activate(at);
    const uint64_t position = ledger_[at].posted++;
    deliveries_.note_posted(at, bytes);
    return {static_cast<uint32_t>(at), position};
  }

  // ---- Packets from peers ----

  void on_written(std::size_t at, uint64_t position) override { sender_->on_written(at, position); }
  void on_landed(uint32_t number) override { receiver_.on_landed(number); }

  void on_packet(ConstBytes packet) override {
    OfiHead head;
    if (packet.size() < sizeof head) return reject("it is too short");
    std::memcpy(&head, packet.data(), sizeof head);
    const ConstBytes payload = packet.subspan(sizeof head);
    if (head.session != post_->session()) return reject("it is of another job or communicator");
    if (head.from >= index(ledger_.size()) || head.channel >= kChannelCount ||
        !ledger_.joins(static_cast<int>(head.from)))
      return reject("it names a rank or channel that is not there");
    const int peer = static_cast<int>(head.from);
    sender_->note_taken(peer, head);
    switch (head.kind) {
      case OfiKind::hello:
        greeted_[index(peer)] = true;
        return;
      case OfiKind::taken:
        return;
      case OfiKind::eager:
        if (payload.size() != head.bytes) break;
        return receiver_.take_slice(SliceLedger::stream_of({peer, head.channel}, false), head, payload);
      case OfiKind::offer:
        if (head.bytes <= kEagerBytes) break;
        return receiver_.take_slice(SliceLedger::stream_of({peer, head.channel}, false), head, {});
      case OfiKind::ready:
        if (head.rails != link_.rails() || payload.size() != head.rails * sizeof(OfiTarget)) break;
        return sender_->take_ready(SliceLedger::stream_of({peer, head.channel}, true), head, payload);
      case OfiKind::goodbye: {
        Farewell farewell;
        if (payload.size() != sizeof farewell) break;
        std::memcpy(&farewell, payload.data(), sizeof farewell);
        ledger_.note_left(peer, farewell);
        unsettled_.push_back(peer);
        return;
      }
      case OfiKind::settled:
        settled_[index(peer)] = true;
        return;
    }
    post_->fail(
        peer, Status(Code::transport, fmt::format("ofi: {} sent a packet that makes no sense (kind {}, {} bytes); "
                                                  "please report it",
                                                  ledger_.name_of(peer), static_cast<int>(head.kind), packet.size())));
  }

  void reject(std::string_view why) {
    if (!std::exchange(has_rejected_, true)) log_warning("ofi: a packet is ignored: {}", why);
  }

  void on_failure(int peer, const Status& why) override {
    if (peer >= 0) return suspects_.push_back({peer, Deadline::after_ns(kDoubt_ns), ledger_.blame(peer, why)});
    if (std::exchange(has_lost_device_, true)) return;
    const Member& me = ledger_.member(ledger_.rank());
    const Status lost = Status::blame(me.world_rank, me.host_name, why.code(),
                                      fmt::format("{}; the device of {} is gone, or its driver has stopped it",
                                                  why.text(), ledger_.name_of(ledger_.rank())));
    for (int each = 0; each < ledger_.size(); ++each) {
      if (ledger_.joins(each)) post_->fail(each, lost);
    }
  }

  // A packet to a peer that has just left fails, and the peer's goodbye may be found only later. Returns whether a peer
  // has failed.
  bool judge_suspects() {
    return std::erase_if(suspects_, [this](const Suspect& suspect) {
             if (!ledger_.has_left(suspect.peer) && !suspect.until.passed()) return false;
             if (!ledger_.has_left(suspect.peer)) post_->fail(suspect.peer, suspect.why);
             return true;
           }) > 0;
  }

  // Peers that have failed may still write: their targets end here.
  void close_failed() {
    for (const int peer : post_->failed) {
      for (int i = 0; i < kChannelCount; ++i) receiver_.close_landings(SliceLedger::stream_of({peer, i}, false));
    }
    post_->failed.clear();
  }

  // ---- The beginning and the end ----

  // A greeting in each direction connects providers that connect when first used.
  Status greet(const Membership& membership) {
    const Deadline deadline = membership.deadline;
    Deadline next_look = Deadline::after_ns(kSilence_ns);
    for (int peer = 0; peer < ledger_.size(); ++peer) {
      while (ledger_.joins(peer) && !post_->tell(OfiKind::hello, {peer, 0}) && !deadline.passed()) progress();
    }
    leaving_ = true;  // look for packets all the time
    while (true) {
      const bool moved = progress();
      if (!ledger_.status().ok()) {
        FDL_RETURN_IF_ERROR(ask_the_silent(membership));
        return ledger_.status();
      }
      std::string names;
      for (int peer = 0; peer < ledger_.size(); ++peer) {
        if (ledger_.joins(peer) && !greeted_[index(peer)]) names += (names.empty() ? "" : ", ") + ledger_.name_of(peer);
      }
      // This rank may make no more progress for a long time, so its own greetings must have gone, and its receives must
      // be posted: a peer that leaves meanwhile cancels what no receive takes.
      if (names.empty() && link_.is_idle() && !link_.has_refused()) break;
      if (deadline.passed()) return no_greeting(names);
      if (next_look.passed()) {
        FDL_RETURN_IF_ERROR(ask_the_silent(membership));
        next_look = Deadline::after_ns(kSilence_ns);
      }
      if (!moved) sleep_until_ready(deadline.earlier(next_look));
    }
    leaving_ = false;
    return {};
  }

  // A peer may have failed to start, after it had published its address.
  Status ask_the_silent(const Membership& membership) const {
    for (int peer = 0; peer < ledger_.size(); ++peer) {
      if (ledger_.joins(peer) && !greeted_[index(peer)]) FDL_RETURN_IF_ERROR(fetch_ofi_failure(membership, peer));
    }
    return {};
  }

  Status no_greeting(const std::string& names) const {
    const char* remedy = name_ == "efa" ? " (the security group must allow all traffic to itself, in and out; "
                                          "FARANDOLE_TRANSPORT=shm,tcp goes without EFA)"
                                        : "";
    return Status(Code::timeout, fmt::format("ofi: {} did not answer over {} in time; are its packets let through?{}",
                                             names.empty() ? "a peer" : names, name_, remedy));
  }

  bool answer_goodbyes() {
    return std::erase_if(unsettled_, [this](int peer) {
             return ledger_.has_failed(peer) ||
                    (link_.writes_to(peer) == 0 && post_->tell(OfiKind::settled, {peer, 0}));
           }) > 0;
  }

  // Whether nothing is in flight to peers that live. What goes to a lost peer may never end.
  bool is_idle_with_the_living() const {
    if (has_lost_device_ || link_.is_idle()) return true;
    for (int peer = 0; peer < ledger_.size(); ++peer) {
      if (!ledger_.has_failed(peer) && link_.sends_to(peer) + link_.writes_to(peer) > 0) return false;
    }
    return true;
  }

  // Some providers cannot end an endpoint on which writes are in flight, so both ends stop writing first.
  void leave() {
    leaving_ = true;
    sender_->stop();
    timer_.note_move();
    run_until(kFarewell_ns, [this] { return is_idle_with_the_living(); });
    std::vector<char> goodbyes(settled_.size());
    run_until(kPoliteness_ns, [&] {
      say_goodbye(goodbyes);
      for (int peer = 0; peer < ledger_.size(); ++peer) {
        if (ledger_.joins(peer) && !ledger_.has_left(peer) && !ledger_.has_failed(peer) && !settled_[index(peer)]) {
          return false;
        }
      }
      return is_idle_with_the_living();
    });
    // The end of the endpoint cancels what is in flight, before its memory is given back.
    const bool receives_end = !receiver_.may_have_unfinished() || link_.can_cancel_receives();
    if (receives_end && (link_.is_idle() || link_.can_cancel())) return link_.close();
    log_info("ofi: {} leaves while messages are in flight; its endpoint stays until the process ends",
             ledger_.name_of(ledger_.rank()));
    struct Kept {
      std::unique_ptr<OfiPost> post;
      std::unique_ptr<OfiSender> sender;  // with the registrations of what is in flight
    };
    static Mutex mutex;
    static auto& kept = *new std::vector<Kept>;
    MutexLock lock(mutex);
    receiver_.close_all();  // peers write no more into memory that is given back
    kept.push_back({std::move(post_), std::move(sender_)});
  }

  // `sent`, by peer: a goodbye for which no packet is free now is sent by a later call.
  void say_goodbye(std::vector<char>& sent) {
    for (int peer = 0; peer < ledger_.size(); ++peer) {
      if (!ledger_.joins(peer) || ledger_.has_failed(peer) || sent[index(peer)]) continue;
      OfiHead head;
      OfiPacket* packet = post_->begin(OfiKind::goodbye, {peer, 0}, head);
      if (packet == nullptr) continue;
      Farewell farewell;
      for (int i = 0; i < kChannelCount; ++i) {  // what is not finished by now never will be
        farewell.sent[index(i)] = ledger_[SliceLedger::stream_of({peer, i}, true)].finished;
        farewell.received[index(i)] = ledger_[SliceLedger::stream_of({peer, i}, false)].finished;
      }
      std::memcpy(packet->payload(), &farewell, sizeof farewell);
      post_->finish(packet, head, sizeof farewell, peer);
      sent[index(peer)] = 1;
    }
  }

  // Ends when `holds` is true, after kFarewell_ns, or when nothing has moved for `still_ns`: the peers that are left
  // make no progress then.
  void run_until(int64_t still_ns, const std::function<bool()>& holds) {
    const Deadline end = Deadline::after_ns(kFarewell_ns);
    Deadline still = Deadline::after_ns(still_ns);
    while (!holds() && !end.passed() && !still.passed()) {
      if (progress()) {
        still = Deadline::after_ns(still_ns);
      } else {
        sleep_until_ready(still.earlier(end));
      }
    }
  }

  std::unique_ptr<OfiPost> post_;  // until leave() must keep it
  OfiLink& link_;
  SliceLedger& ledger_;
  std::unique_ptr<OfiSender> sender_;
  OfiReceiver receiver_;
  DeliveryWatch deliveries_;
  std::string name_;
  std::vector<char> greeted_;  // by peer
  std::vector<char> settled_;  // by peer: it has answered this rank's goodbye
  struct Suspect {
    int peer;
    Deadline until;
    Status why;
  };
  std::vector<Suspect> suspects_;  // peers to which something could not be sent
  std::vector<int> unsettled_;     // peers that have left and wait for that answer
  PollTimer timer_;
  const int wake_fd_;     // -1: only the timer wakes this rank
  bool leaving_ = false;  // packets are expected soon
  bool has_rejected_ = false;
  bool has_lost_device_ = false;
};

}  // namespace

namespace {

// Once in a process: the first rank of each host names what carries the data.
void log_devices(const OfiLibrary& library, const OfiChoice& choice, const OfiLink& link,
                 const Membership& membership) {
  static std::atomic<bool> done = false;
  if (done.exchange(true)) return;
  std::string devices;
  for (std::size_t i = 0; i < link.rails(); ++i) devices += (i == 0 ? "" : ", ") + std::string(link.rail(i).device());
  const auto first = std::ranges::find_if(
      membership.members, [&](const Member& member) { return member.host_id == membership.me().host_id; });
  const bool is_first = first - membership.members.begin() == membership.rank;
  log_at(is_first ? LogLevel::info : LogLevel::debug, "ofi: {} on {} ({} of {} devices{}{}), {}", link.rail(0).fabric(),
         devices, link.rails(), choice.present, choice.unused.empty() ? "" : "; ", choice.unused,
         library.description());
}

// The first word of FARANDOLE_TRANSPORT that is for this transport.
std::string_view word_in(std::string_view list) {
  while (!list.empty()) {
    std::string_view next = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), next.size() + 1));
    while (next.starts_with(' ')) next.remove_prefix(1);
    while (next.ends_with(' ')) next.remove_suffix(1);
    if (is_ofi(next)) return next;
  }
  return {};
}

// What a rank has before it meets the others.
struct Opened {
  const OfiLibrary* library = nullptr;
  OfiChoice choice;
  std::unique_ptr<OfiLink> link;
};

Status open_devices(const Membership& membership, Opened& opened) {
  const Config& config = *membership.config;
  FDL_ASSIGN_OR_RETURN(opened.library, OfiLibrary::of_process(config));
  FDL_ASSIGN_OR_RETURN(opened.choice, choose_devices(*opened.library, ofi_provider_in(word_in(config.transport)),
                                                     config, place_in(membership)));
  FDL_ASSIGN_OR_RETURN(opened.link, OfiLink::make(*opened.library, opened.choice.devices, membership.size()));
  return {};
}

}  // namespace

uint64_t bytes_over_ofi() { return OfiLink::bytes_of_process(); }

OfiDescription describe_ofi(const Config& config) {
  const auto library = OfiLibrary::of_process(config);
  if (!library.ok()) return {.library = library.status().text(), .providers = {}, .efa = library.status()};
  const auto efa = choose_devices(**library, "efa", config, {});
  return {.is_there = true,
          .library = (*library)->description(),
          .providers = list_providers(**library),
          .efa = efa.ok() ? Status() : efa.status()};
}

Result<std::unique_ptr<Transport>> connect_ofi(const Membership& membership, const std::vector<bool>& peers) {
  Opened opened;
  const Status mine = open_devices(membership, opened);
  FDL_RETURN_IF_ERROR(agree_over_ofi(mine, opened.library, opened.link.get(), membership, peers));
  log_devices(*opened.library, opened.choice, *opened.link, membership);
  auto timer = PollTimer::make();
  if (!timer.ok()) publish_ofi_failure(membership, timer.status());
  FDL_RETURN_IF_ERROR(timer.status());
  auto transport = std::make_unique<OfiTransport>(std::move(opened.link), membership, peers, timer.take());
  FDL_RETURN_IF_ERROR(transport->start(membership));
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace fdl
