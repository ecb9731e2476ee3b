// Mailbox: messages are matched by tag and sender. Contents are not copied where possible.
#include "mailbox.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace farandole_python {

namespace {
constexpr std::size_t kMostReserved = std::size_t{4} << 20;
}  // namespace

std::string Message::title() const {
  const std::string partner = peer == kAnySource ? "any rank" : "rank " + std::to_string(peer);
  return std::string(outgoing ? "send" : "recv") + " of " + std::to_string(bytes) + " bytes " +
         (outgoing ? "to " : "from ") + partner + " (tag " + std::to_string(tag) + ")";
}

void Message::take(const std::byte* contents) {
  if (on_device())
    kept.assign(contents, contents + bytes);
  else if (bytes > 0)
    std::memcpy(data, contents, bytes);
}

Mailbox::~Mailbox() {
  std::unique_lock lock(events_mutex_);
  handled_.wait(lock, [this] { return !handling_; });
}

void Mailbox::submit(fdl_world* world, std::shared_ptr<Message> message) {
  if (!open(*message)) return;
  if (fdl_handle_create(world, &message->handle) != FDL_OK) {
    refuse(*message, Failure::last());
    return leave();
  }
  // The progress thread may have to take the contents through the host. Large contents are left out: they would keep as
  // much memory pinned, and usually go by NCCL.
  if (message->on_device() && message->bytes <= kMostReserved) {
    static_cast<void>(fdl_device_reserve(world, message->device_kind, message->device_index, message->bytes));
  }
  add_event({std::move(message), nullptr, std::nullopt});
}

// In the thread that drives, or in post() if the call is done already.
void Mailbox::complete(void* flight) {
  std::unique_ptr<Flight> done(static_cast<Flight*>(flight));
  std::optional<Failure> failure;
  if (fdl_wait_handle(done->handle, 0) != FDL_OK) failure = Failure::last();
  if (done->on_device && !failure) {
    done->message->on_stream = done->handle;
  } else {
    fdl_handle_free(done->handle);
  }
  Mailbox* const mailbox = done->mailbox;
  mailbox->add_event({nullptr, std::move(done), std::move(failure)});
}

void Mailbox::add_event(Event event) {
  std::unique_lock lock(events_mutex_);
  events_.push_back(std::move(event));
  if (std::exchange(handling_, true)) return;
  while (!events_.empty()) {
    Event next = std::move(events_.front());
    events_.pop_front();
    lock.unlock();
    handle(std::move(next));
    set_limit();
    report_finished();
    lock.lock();
  }
  handling_ = false;
  handled_.notify_all();
}

void Mailbox::handle(Event event) {
  if (event.submitted != nullptr) return start(event.submitted);
  --flights_;
  if (event.failure && event.completed->may_never_come && !broken_) {
    peer_left(event.completed->peer);
  } else if (event.failure) {
    fail_all(*event.failure);
  } else if (!broken_) {
    arrived(*event.completed);
  }
  if (broken_ && flights_ == 0) end_broken();
}

// Passes on the references, because the last one must not be dropped without the GIL. After the last leave() no
// communicator may exist.
void Mailbox::report_finished() {
  for (auto& message : std::exchange(finished_, {})) {
    finish(*message);
    static_cast<void>(fdl_handle_complete(message->handle));
    leave(std::move(message));
  }
}

// The communicator ends when the first receive is late.
void Mailbox::set_limit() {
  const Message* urgent = broken_ ? nullptr : most_urgent(false);
  const int64_t moment_ns = urgent == nullptr ? 0 : urgent->last_moment_ns;
  if (std::exchange(limit_ns_, moment_ns) == moment_ns) return;
  static_cast<void>(fdl_comm_limit(comm(), moment_ns == 0 ? -1 : std::max<int64_t>(moment_ns - clock_ns(), 1)));
}

void Mailbox::start(const std::shared_ptr<Message>& message) {
  message->last_moment_ns = message->timeout_ns > 0 ? clock_ns() + message->timeout_ns : 0;
  live_.push_back(message);
  if (broken_) {
    message->failure = broken_;
    return end(message);
  }
  message->outgoing ? send(message) : receive(message);
}

void Mailbox::send(const std::shared_ptr<Message>& message) {
  Envelope& envelope = message->envelope;
  envelope.bytes = message->bytes;
  envelope.tag = message->tag;
  envelope.apart = message->on_device() && message->bytes > 0 ? 1 : 0;
  if (envelope.is_short() && message->bytes > 0) std::memcpy(envelope.contents.data(), message->data, message->bytes);
  const Flight part{Flight::Kind::part, message->peer, message, nullptr};
  message->parts = envelope.is_short() ? 1 : 2;
  if (!post(true, &envelope, sizeof envelope, part)) return;
  if (envelope.is_short()) return;
  Flight contents = part;
  contents.between_devices = envelope.apart != 0;
  post(true, message->data, message->bytes, std::move(contents));
}

void Mailbox::receive(const std::shared_ptr<Message>& message) {
  const int count = static_cast<int>(peers_.size());
  const int first = message->peer == kAnySource ? 0 : message->peer;
  const int last = message->peer == kAnySource ? count - 1 : message->peer;
  for (int from = first; from <= last; ++from) {
    if (take_from_aside(message, from)) return;
  }
  wanted_.push_back(message);
  const auto is_wanted = [&] { return std::find(wanted_.begin(), wanted_.end(), message) != wanted_.end(); };
  for (int from = first; from <= last && is_wanted(); ++from) sort(from);
  for (int from = first; from <= last && is_wanted(); ++from) {
    if (from != rank_ || message->peer == rank_ || count == 1) request(from);
  }
}

bool Mailbox::take_from_aside(const std::shared_ptr<Message>& message, int from) {
  auto& aside = peers_[static_cast<std::size_t>(from)].aside;
  const auto found = std::find_if(aside.begin(), aside.end(), [&](const auto& one) {
    return one->taker == nullptr && one->envelope.tag == message->tag;
  });
  if (found == aside.end()) return false;
  const std::shared_ptr<Aside> kept = *found;
  if (!fits(message, from, kept->envelope)) return true;
  message->source = from;
  kept->taker = message;
  if (!kept->whole) return true;
  message->take(kept->contents.data());
  aside.erase(found);
  end(message);
  return true;
}

void Mailbox::request(int peer) {
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  if (from.requested || from.arrived || broken_) return;
  if (from.left && !is_needed(peer)) return;
  from.requested = true;
  post(false, &from.envelope, sizeof from.envelope, {Flight::Kind::envelope, peer, nullptr, nullptr});
}

// Whether a receive can only be satisfied by a message from `peer`, or, from any rank, by none that has not left.
bool Mailbox::is_needed(int peer) const {
  bool others_left = true;
  for (int other = 0; other < static_cast<int>(peers_.size()); ++other)
    others_left &= other == rank_ || peers_[static_cast<std::size_t>(other)].left;
  return std::any_of(wanted_.begin(), wanted_.end(),
                     [&](const auto& one) { return one->peer == peer || (one->peer == kAnySource && others_left); });
}

// Requests the envelope again if a receive needs it. That request fails too, and its failure is reported to all ranks.
void Mailbox::peer_left(int peer) {
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  from.requested = false;
  from.left = true;
  request(peer);
}

// Handles the envelope that has arrived from `peer`, if a receive waits for it or for a later one.
void Mailbox::sort(int peer) {
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  if (!from.arrived) return;
  const auto taker = std::find_if(wanted_.begin(), wanted_.end(),
                                  [&](const auto& one) { return one->accepts(peer, from.envelope.tag); });
  const auto waits = [&](const auto& one) { return one->peer == kAnySource || one->peer == peer; };
  if (taker != wanted_.end()) {
    const std::shared_ptr<Message> message = *taker;
    wanted_.erase(taker);
    deliver(message, peer);
  } else if (std::any_of(wanted_.begin(), wanted_.end(), waits)) {
    keep_aside(peer);
  } else {
    return;
  }
  from.arrived = false;
  if (std::any_of(wanted_.begin(), wanted_.end(), waits)) request(peer);
}

void Mailbox::deliver(const std::shared_ptr<Message>& message, int from) {
  const Envelope& envelope = peers_[static_cast<std::size_t>(from)].envelope;
  if (!fits(message, from, envelope)) return;
  message->source = from;
  if (!envelope.is_short()) {
    message->parts = 1;
    Flight part{Flight::Kind::part, from, message, nullptr};
    part.between_devices = envelope.apart != 0;
    post(false, message->data, message->bytes, std::move(part));
    return;
  }
  message->take(envelope.contents.data());
  end(message);
}

void Mailbox::keep_aside(int peer) {
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  auto kept = std::make_shared<Aside>();
  kept->envelope = from.envelope;
  const auto* contents = kept->envelope.contents.data();
  kept->whole = kept->envelope.is_short();
  if (kept->whole)
    kept->contents.assign(contents, contents + kept->envelope.bytes);
  else
    kept->contents.resize(kept->envelope.bytes);
  from.aside.push_back(kept);
  if (kept->whole) return;
  Flight rest{Flight::Kind::aside, peer, nullptr, kept};
  rest.between_devices = kept->envelope.apart != 0;
  post(false, kept->contents.data(), kept->contents.size(), std::move(rest));
}

// The sender has already sent, and both sides must fail. Therefore a wrong size ends the communicator.
bool Mailbox::fits(const std::shared_ptr<Message>& message, int from, const Envelope& envelope) {
  if (envelope.bytes == message->bytes) return true;
  const std::string text = message->title() + ", but rank " + std::to_string(from) + " sent " +
                           std::to_string(envelope.bytes) + " bytes; give both sides tensors of one size";
  abort(text);
  fail_all(Failure::of(FDL_MISMATCH, text));
  return false;
}

bool Mailbox::post(bool outgoing, void* data, std::size_t bytes, Flight flight) {
  fdl_call call;
  fdl_call_init(&call);
  call.collective = outgoing ? FDL_SEND : FDL_RECV;
  call.input = call.output = data;
  call.count = bytes;
  call.dtype = FDL_UINT8;
  call.root = flight.peer;
  if (flight.message != nullptr && flight.message->on_device() && data == flight.message->data) {
    call.device_kind = flight.message->device_kind;
    call.device_index = flight.message->device_index;
    call.stream = flight.message->stream;
    flight.on_device = true;
  }
  fdl_call_options options;
  fdl_call_options_init(&options);
  // set_limit() limits receives, which may wait for an envelope that was requested before.
  options.timeout_ns =
      outgoing && flight.message->timeout_ns > 0 ? flight.message->timeout_ns : std::numeric_limits<int64_t>::max();
  if (flight.between_devices) {
    options.between_devices = 1;
    if (flight.message != nullptr) options.batch = flight.message->batch;
    // The limit of the receives holds for the communicator of the envelopes alone.
    if (!outgoing && flight.message != nullptr && flight.message->last_moment_ns != 0) {
      options.timeout_ns = std::max<int64_t>(flight.message->last_moment_ns - clock_ns(), 1);
    }
  }
  auto made = std::make_unique<Flight>(std::move(flight));
  made->may_never_come = made->kind == Flight::Kind::envelope && !peers_[static_cast<std::size_t>(made->peer)].left;
  options.may_never_come = made->may_never_come ? 1 : 0;
  if (fdl_call_submit(made->between_devices ? device_comm_ : comm(), &call, &options, &made->handle) != FDL_OK) {
    fail_all(Failure::last());
    return false;
  }
  made->mailbox = this;
  ++flights_;
  fdl_handle* const handle = made->handle;
  static_cast<void>(fdl_handle_notify(handle, &complete, made.release()));
  return true;
}

void Mailbox::arrived(const Flight& flight) {
  Peer& peer = peers_[static_cast<std::size_t>(flight.peer)];
  switch (flight.kind) {
    case Flight::Kind::part:
      if (--flight.message->parts == 0) end(flight.message);
      break;
    case Flight::Kind::envelope:
      peer.requested = false;
      peer.arrived = true;
      sort(flight.peer);
      break;
    case Flight::Kind::aside: {
      flight.aside->whole = true;
      const std::shared_ptr<Message> taker = flight.aside->taker;
      if (taker == nullptr) break;
      taker->take(flight.aside->contents.data());
      std::erase(peer.aside, flight.aside);
      end(taker);
      break;
    }
  }
}

void Mailbox::end(const std::shared_ptr<Message>& message) {
  finished_.push_back(message);
  std::erase(live_, message);
}

// The failure of one message ends all, because the communicator has ended on this rank or is about to end.
void Mailbox::fail_all(const Failure& why) {
  if (broken_) return;
  if (why.code == FDL_TIMEOUT) return time_out(why);
  end_all(why, nullptr);
}

// The text names the message whose deadline has passed first.
void Mailbox::time_out(Failure why) {
  const Message* late = most_urgent(true);
  if (late != nullptr && late->last_moment_ns > clock_ns()) late = nullptr;  // the deadline of another rank has passed
  if (late != nullptr) why.text = late->title() + " was not finished in time: " + why.text;
  end_all(why, late);
}

// The messages end with their calls, which use their memory until the communicator has ended. Without messages there is
// nothing to abort, and close() may have returned.
void Mailbox::end_all(const Failure& why, const Message* culprit) {
  broken_ = why;
  wanted_.clear();
  if (!live_.empty()) abort(why.text);
  for (const auto& message : live_) {
    message->failure = why;
    if (why.code == FDL_TIMEOUT && message.get() != culprit)
      message->failure->text = message->title() + " ended with its group: " + why.text;
  }
  if (flights_ == 0) end_broken();
}

void Mailbox::end_broken() {
  for (auto& message : std::exchange(live_, {})) finished_.push_back(std::move(message));
}

const Message* Mailbox::most_urgent(bool with_sends) const {
  const Message* first = nullptr;
  for (const auto& message : live_) {
    if (message->last_moment_ns == 0 || (message->outgoing && !with_sends)) continue;
    if (first == nullptr || message->last_moment_ns < first->last_moment_ns) first = message.get();
  }
  return first;
}

}  // namespace farandole_python
