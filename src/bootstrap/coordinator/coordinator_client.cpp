// This file has the life of a SocketClient, from the hello to its end, and what its driving thread does.
#include <fmt/core.h>

#include <array>
#include <chrono>
#include <thread>

#include "bootstrap/coordinator/socket_client.h"
#include "system/socket.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

constexpr uint64_t kSocketToken = 0;
constexpr uint64_t kSenderToken = 1;
constexpr int64_t kPause_ns = 20'000'000;  // before the next attempt to connect
constexpr double kLeaveFlush_s = 0.5;      // for a leave message that did not fit into the socket at once

}  // namespace

std::string process_name(const CoordinatorClient::Hello& hello) {
  return fmt::format("rank {} on {} (process {})", hello.rank, hello.host_name, hello.process_id);
}

// The text is equal to that of agree/negotiation: either may report the departure first.
Status departure_of(int rank, const std::string& host_name) {
  return Status::blame(rank, host_name, Code::shut_down, fmt::format("rank {} ({}) has shut down", rank, host_name));
}

Status silence_warning(const std::string& name, double silence_warning_s, double lost_after_s) {
  return Status(Code::transport, fmt::format("{} has not answered for {:g} s (stopped, swapped out or cut off); after "
                                             "{:g} s it is lost (FARANDOLE_LOST_AFTER_S)",
                                             name, silence_warning_s, lost_after_s));
}

SocketClient::~SocketClient() {
  // For callers that do not wait_until_left(): the message has at least left this process. The wait is bounded, because
  // a stopped coordinator reads nothing.
  MutexLock lock(mutex_);
  const Deadline deadline = Deadline::after_seconds(kLeaveFlush_s);
  while (left_ && coordinator_lost_.ok() && socket_.flush() && socket_.unsent_bytes() > 0) {
    if (!wait_writable(socket_.fd(), deadline)) break;
  }
}

// Sends the hello and waits for the welcome. The calling thread drives the connection meanwhile.
Status SocketClient::start(Deadline deadline) {
  // Both descriptors are in one epoll set, whose descriptor is wake_fd(): the progress thread watches a single one.
  survive_outages(socket_.fd(), limits_.lost_after_s);
  FDL_RETURN_IF_ERROR(poller_.add(socket_.fd(), kSocketToken));
  FDL_RETURN_IF_ERROR(poller_.add(sender_.fd(), kSenderToken));
  CoordinatorMessage hello{.kind = Kind::hello};
  hello.members = {hello_};
  hello.number = CoordinatorMessage::kMessages;
  {
    MutexLock lock(mutex_);
    send(hello);
  }
  FDL_RETURN_IF_ERROR(wait_for_welcome(deadline));
  // Events may have arrived together with the welcome, so wake the driver.
  sender_.ring();
  return {};
}

Status SocketClient::wait_for_welcome(Deadline deadline) {
  while (true) {
    progress();
    {
      MutexLock lock(mutex_);
      // A refusal comes first: the coordinator closes the connection behind it, and its text has the reason.
      if (!refusal_.ok()) return refusal_;
      if (welcome_) return {};
      if (!coordinator_lost_.ok()) return coordinator_lost_.while_doing("sending the hello");
    }
    if (!wait_readable(poller_.fd(), deadline)) {
      return Status(Code::timeout,
                    fmt::format("the coordinator did not answer the hello of {} in time", process_name(hello_)));
    }
  }
}

// ---- The driving thread ----

void SocketClient::progress() {
  std::array<Poller::Ready, 4> ready;
  // A deadline in the past: this call does not block, because the driving thread has other work.
  const std::size_t count = poller_.wait(ready, Deadline::at_ns(0));
  for (std::size_t i = 0; i < count; ++i) {
    if (ready[i].token == kSenderToken) sender_.clear();
    if (ready[i].token == kSocketToken && ready[i].readable) receive();
  }
  MutexLock lock(mutex_);
  if (!coordinator_lost_.ok()) return;
  if (is_silent_) return give_up();
  socket_.flush();
  // Level-triggered write events are watched only while data is left, else each wait would return at once.
  const bool more = socket_.unsent_bytes() > 0;
  if (more != watches_writing_ && poller_.change(socket_.fd(), kSocketToken, true, more).ok()) watches_writing_ = more;
}

void SocketClient::receive() {
  std::vector<CoordinatorMessage> messages;
  // Without the lock, so that a rank that sends much does not delay the senders of this rank. Messages that came before
  // the end of the connection are handled first: the last one often tells why it ended.
  const FramedSocket::State state = socket_.receive(messages);
  MutexLock lock(mutex_);
  if (!messages.empty()) note_answer();
  for (CoordinatorMessage& message : messages) handle(std::move(message));
  if (state != FramedSocket::State::open) lose_coordinator("its connection closed");
}

void SocketClient::handle(CoordinatorMessage message) {
  switch (message.kind) {
    case Kind::welcome:
      welcome_ = true;
      server_name_ = message.key;
      coordinator_messages_ = message.number;
      break;
    case Kind::refused:
      refusal_ = message.why.ok() ? Status(Code::transport, "the coordinator refused the hello") : message.why;
      break;
    case Kind::server:
      server_ = std::move(message.members);
      break;
    case Kind::reply:
      if (const auto waiting = pending_.find(message.id); waiting != pending_.end()) {
        waiting->second->message = std::move(message);
        waiting->second->is_here = true;
        answered_.notify_all();
      }
      break;
    case Kind::ping: {
      // Answered by the driving thread: the reply proves that this rank makes progress, and not only that its process
      // runs.
      CoordinatorMessage pong{.kind = Kind::pong};
      pong.id = message.id;
      send(pong);
      break;
    }
    case Kind::lost:
      note_gone(CoordinatorEvent::Kind::lost, message);
      break;
    case Kind::left:
      if (message.rank == hello_.rank) {
        leave_confirmed_ = true;
        break;
      }
      note_gone(CoordinatorEvent::Kind::left, message);
      break;
    case Kind::departed:
      note_departed(message.hosts);
      break;
    case Kind::comm_failed:
      note_decision(message);
      add_event(
          {.kind = CoordinatorEvent::Kind::comm_failed, .rank = message.rank, .comm = message.key, .why = message.why});
      break;
    case Kind::coordinator_ends:
      coordinator_ends_ = true;
      break;
    default:
      handle_event(std::move(message));
  }
}

// Messages that become events as they are. A newer coordinator may send further kinds, which are optional.
void SocketClient::handle_event(CoordinatorMessage message) {
  switch (message.kind) {
    case Kind::relayed_query:
      add_event({.kind = CoordinatorEvent::Kind::progress_query,
                 .rank = message.rank,
                 .comm = std::move(message.key),
                 .why = {},
                 .query = message.id});
      break;
    case Kind::answer:
      add_event({.kind = CoordinatorEvent::Kind::progress_reply,
                 .rank = message.rank,
                 .comm = std::move(message.key),
                 .why = {},
                 .query = message.id,
                 .begun = message.number,
                 .waiting = message.value == kWaiting});
      break;
    case Kind::state_query:
      add_event({.kind = CoordinatorEvent::Kind::state_query, .comm = {}, .why = {}, .query = message.id});
      break;
    case Kind::relayed_sends_query:
      add_event({.kind = CoordinatorEvent::Kind::sends_query,
                 .rank = message.rank,
                 .comm = std::move(message.key),
                 .why = {}});
      break;
    case Kind::sends_answer:
      add_event({.kind = CoordinatorEvent::Kind::sends_reply,
                 .rank = message.rank,
                 .comm = std::move(message.key),
                 .why = {},
                 .sent = {message.id, static_cast<uint64_t>(message.number)}});
      break;
    case Kind::silent:
    case Kind::answers_again:
      add_event({.kind = message.kind == Kind::silent ? CoordinatorEvent::Kind::silent
                                                      : CoordinatorEvent::Kind::answers_again,
                 .rank = message.rank,
                 .comm = {},
                 .why = message.why});
      break;
    case Kind::stalled:
      add_event({.kind = CoordinatorEvent::Kind::stalled,
                 .rank = message.rank,
                 .comm = {},
                 .why = Status(Code::timeout, std::move(message.value))});
      break;
    default:
      break;
  }
}

void SocketClient::note_departed(const std::vector<HostRanks>& hosts) {
  for (const HostRanks& host : hosts) {
    for (const RankRange& range : host.ranges) {
      for (int rank = range.first; rank < range.first + range.count; ++rank) {
        CoordinatorMessage event{.kind = Kind::left, .rank = rank};
        event.why = departure_of(rank, host.host_name);
        note_gone(CoordinatorEvent::Kind::left, event);
      }
    }
  }
}

void SocketClient::note_gone(CoordinatorEvent::Kind kind, const CoordinatorMessage& message) {
  // The first reason stays: a rank that was lost cannot leave afterwards.
  gone_.emplace(message.rank, message.why);
  add_event({.kind = kind, .rank = message.rank, .comm = {}, .why = message.why});
  const int64_t moment = kind == CoordinatorEvent::Kind::left ? now_ns() + SetupWatch::kLeftGrace_ns : now_ns();
  for (const std::weak_ptr<SetupWatch>& one : watches_) {
    const std::shared_ptr<SetupWatch> watch = one.lock();
    if (watch && std::ranges::binary_search(watch->ranks(), message.rank)) watch->fire(message.why, moment);
  }
  answered_.notify_all();
}

// A rank whose set-up has failed reports it, and the others fail with that decision. One of them may not have begun.
void SocketClient::note_decision(const CoordinatorMessage& message) {
  undecided_.erase(message.key);
  if (decided_.size() < kMostDecided) decided_.emplace(message.key, message.why);
  for (const std::weak_ptr<SetupWatch>& one : watches_) {
    const std::shared_ptr<SetupWatch> watch = one.lock();
    if (watch && watch->comm() == message.key) watch->fire(message.why, now_ns());
  }
  answered_.notify_all();
}

void SocketClient::add_event(CoordinatorEvent event) {
  // After leave() the world has ended, and no thread takes events any more.
  if (!left_) events_.push_back(std::move(event));
}

// ---- The loss of the coordinator ----
// Each rank builds the same error text locally, because no coordinator is left to send it.

// Whether a rank serves the coordinator that is still present, so that the end of the one is the loss of the other.
bool SocketClient::a_rank_serves() const {
  return !coordinator_ends_ && !server_.empty() && !gone_.contains(server_.front().rank);
}

std::string SocketClient::name_of_coordinator() const {
  return a_rank_serves() ? process_name(server_.front()) + ", which serves the coordinator,"
                         : fmt::format("the coordinator ({})", server_name_);
}

// Any message proves that the coordinator runs. One that waited in the socket while this process got no processor time
// takes back that the coordinator was silent for too long.
void SocketClient::note_answer() {
  is_silent_ = false;
  const int64_t silent_ns = silence_.answered();
  if (silent_ns == 0) return;
  add_event({.kind = CoordinatorEvent::Kind::answers_again,
             .comm = {},
             .why = Status(Code::transport, fmt::format("{} answers again after {:.1f} s", name_of_coordinator(),
                                                        static_cast<double>(silent_ns) / 1e9))});
}

// In the thread that sends a probe. The driving thread closes the connection, because it may be receiving.
void SocketClient::note_query() {
  switch (silence_.query(now_ns())) {
    case Silence::Finding::none:
      return;
    case Silence::Finding::warning:
      add_event({.kind = CoordinatorEvent::Kind::silent,
                 .comm = {},
                 .why = silence_warning(name_of_coordinator(), limits_.silence_warning_s, limits_.lost_after_s)});
      break;
    case Silence::Finding::lost:
      is_silent_ = true;
      break;
  }
  sender_.ring();
}

// The coordinator reads the reason if its process continues, so that the rank that serves it reports the same.
void SocketClient::give_up() {
  const std::string how =
      fmt::format("has not answered for {:g} s (stopped, swapped out or cut off)", limits_.lost_after_s);
  CoordinatorMessage message{.kind = Kind::gives_up};
  lose_coordinator(how);
  if (!server_.empty()) {
    if (const auto found = gone_.find(server_.front().rank); found != gone_.end()) message.why = found->second;
  }
  if (message.why.ok()) message.why = coordinator_lost_;
  socket_.send(message);
  socket_.flush();
  socket_.shut_down();
}

void SocketClient::lose_coordinator(const std::string& how) {
  if (!coordinator_lost_.ok()) return;
  poller_.remove(socket_.fd());  // it would report a closed socket for ever
  // It is no failure if the coordinator ended in good order or its rank has left: only the rendezvous service has
  // ended.
  const bool in_order = !is_silent_ && (coordinator_ends_ || (!server_.empty() && !a_rank_serves()));
  const std::string end = in_order ? "has ended" : is_silent_ ? how : "is gone";
  coordinator_lost_ =
      Status(in_order ? Code::shut_down : Code::peer_lost, fmt::format("the coordinator ({}) {}", server_name_, end));
  // The coordinator has declared this rank lost, for example because its process was stopped for too long: that text is
  // the cause here too.
  if (const auto mine = gone_.find(hello_.rank); mine != gone_.end()) {
    coordinator_lost_ = mine->second;
  } else if (a_rank_serves()) {
    const Hello& server = server_.front();
    CoordinatorMessage lost{.kind = Kind::lost};
    lost.rank = server.rank;
    lost.why = Status::blame(server.rank, server.host_name, Code::peer_lost,
                             process_name(server) + " was lost: it served the rendezvous and " + how);
    note_gone(CoordinatorEvent::Kind::lost, lost);
    // One text, whether a call waits for the coordinator or for that rank.
    if (!in_order) coordinator_lost_ = lost.why;
  }
  undecided_.clear();
  add_event({.kind = CoordinatorEvent::Kind::coordinator_lost, .comm = {}, .why = coordinator_lost_});
  const int64_t now = now_ns();
  for (const std::weak_ptr<SetupWatch>& one : watches_) {
    if (const std::shared_ptr<SetupWatch> watch = one.lock()) watch->fire(coordinator_lost_, now);
  }
  answered_.notify_all();
}

// The end of the connection counts as a confirmation: the process that served the coordinator has ended, and no rank
// can be told any more that this one was lost.
bool SocketClient::wait_until_left(Deadline deadline) {
  while (true) {
    progress();
    {
      MutexLock lock(mutex_);
      if (!left_ || leave_confirmed_ || !coordinator_lost_.ok()) return true;
    }
    if (!wait_readable(poller_.fd(), deadline)) return false;
  }
}

std::vector<CoordinatorEvent> SocketClient::take_events() {
  MutexLock lock(mutex_);
  return std::exchange(events_, {});
}

std::vector<int> SocketClient::lost_ranks() {
  MutexLock lock(mutex_);
  std::vector<int> lost;
  for (const auto& [rank, why] : gone_) {
    if (why.code() == Code::peer_lost) lost.push_back(rank);
  }
  return lost;
}

// ---- Connecting ----

namespace {

// A rank that restarts at once may still reach the coordinator of the job that is ending.
bool belongs_to_the_job_before(const Status& status) {
  return (status.code() == Code::shut_down || status.code() == Code::peer_lost) && status.error().culprit_rank < 0;
}

Result<std::unique_ptr<CoordinatorClient>> connect_once(const std::string& rendezvous, const std::string& job_key,
                                                        const CoordinatorClient::Hello& hello, Deadline deadline,
                                                        const CoordinatorClient::Limits& limits) {
  FDL_ASSIGN_OR_RETURN(FoundCoordinator found,
                       find_coordinator(rendezvous, job_key, process_name(hello).substr(0, 256), deadline));
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  FDL_ASSIGN_OR_RETURN(Event sender, Event::make());
  auto client = std::make_unique<SocketClient>(std::move(found), hello, limits, std::move(poller), std::move(sender));
  FDL_RETURN_IF_ERROR(client->start(deadline));
  return std::unique_ptr<CoordinatorClient>(std::move(client));
}

}  // namespace

Result<std::unique_ptr<CoordinatorClient>> CoordinatorClient::connect(const std::string& rendezvous,
                                                                      const std::string& job_key, const Hello& hello,
                                                                      Deadline deadline, const Limits& limits) {
  if (hello.host_name.size() > kMostName || hello.boot_id.size() > kMostName) {
    return Status(Code::invalid_argument, fmt::format("the host name '{:.64}...' is too long", hello.host_name));
  }
  // The deadline bounds the whole loop, find_coordinator() included.
  while (true) {
    auto client = connect_once(rendezvous, job_key, hello, deadline, limits);
    if (client.ok() || !belongs_to_the_job_before(client.status()) || deadline.passed()) return client;
    std::this_thread::sleep_for(std::chrono::nanoseconds(kPause_ns));
  }
}

}  // namespace fdl
