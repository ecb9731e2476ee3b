// CoordinatorClient uses one framed socket. Only the driving thread receives; any thread sends under the lock.
#include "bootstrap/coordinator/coordinator_client.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <unordered_map>

#include "base/mutex.h"
#include "bootstrap/coordinator/find_coordinator.h"
#include "bootstrap/rendezvous/framed_socket.h"
#include "system/event.h"
#include "system/poller.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

constexpr uint64_t kSocketToken = 0;
constexpr uint64_t kSenderToken = 1;
constexpr double kAnswer_s = 30;  // limit for the coordinator's answer to a publish
constexpr double kGrace_s = 2;    // for the coordinator's own timeout error, which is more precise than a local one
constexpr int64_t kPause_ns = 20'000'000;  // before the next attempt to connect
constexpr double kLeaveFlush_s = 0.5;      // for a leave message that did not fit into the socket at once

std::string describe(const CoordinatorClient::Hello& hello) {
  return fmt::format("rank {} on {} (process {})", hello.rank, hello.host_name, hello.process_id);
}

class SocketClient final : public CoordinatorClient {
 public:
  SocketClient(FoundCoordinator found, const Hello& hello, Poller poller, Event sender)
      : hello_(hello),
        poller_(std::move(poller)),
        sender_(std::move(sender)),
        socket_(std::move(found.fd), found.introduced.session_key, Direction::from_coordinator) {}
  ~SocketClient() override;

  Status start(Deadline deadline);

  int wake_fd() const override { return poller_.fd(); }
  void progress() override;
  std::vector<CoordinatorEvent> take_events() override;

  Result<std::vector<Hello>> wait_for_all(Deadline deadline) override;
  Status publish(std::string_view key, std::string_view value) override;
  Result<std::string> fetch(std::string_view key, Deadline deadline) override { return fetch_from({}, key, deadline); }
  Result<std::string> fetch_from(const std::vector<int>& world_ranks, std::string_view key, Deadline deadline) override;
  void probe(const std::vector<int>& world_ranks) override;
  void report(const std::string& comm, const Status& why) override;
  void query_progress(const std::string& comm, uint64_t query, const std::vector<int>& world_ranks,
                      int64_t timeout_ns) override;
  void reply_progress(const CoordinatorEvent& query, int64_t begun, bool waiting) override;
  void leave() override;

 private:
  // The reply to a request. The caller that waits in send_request() owns it. That caller leaves only after it has
  // removed its entry from pending_, so the pointer stays valid for as long as the driving thread can find it.
  struct Answer {
    bool is_here = false;
    CoordinatorMessage message;
  };

  Status wait_for_welcome(Deadline deadline);
  void receive() FDL_EXCLUDES(mutex_);
  void handle(CoordinatorMessage message) FDL_REQUIRES(mutex_);
  void add_event(CoordinatorEvent event) FDL_REQUIRES(mutex_);
  void note_gone(CoordinatorEvent::Kind kind, const CoordinatorMessage& message) FDL_REQUIRES(mutex_);
  void lose_coordinator() FDL_REQUIRES(mutex_);
  void send(const CoordinatorMessage& message) FDL_REQUIRES(mutex_);
  void send_and_wake(const CoordinatorMessage& message) FDL_REQUIRES(mutex_);
  const Status* first_gone_of(const std::vector<int>& ranks) const FDL_REQUIRES(mutex_);
  Result<CoordinatorMessage> send_request(CoordinatorMessage request, const std::vector<int>& of, Deadline deadline)
      FDL_EXCLUDES(mutex_);

  const Hello hello_;
  Poller poller_;
  Event sender_;  // rung by a sender that could not send everything at once
  bool watches_writing_ = false;

  Mutex mutex_;
  CondVar answered_;
  // Only the driving thread receives, without the lock: receiving shares no state with sending, which needs the lock.
  FramedSocket socket_;
  bool welcome_ FDL_GUARDED_BY(mutex_) = false;
  Status refusal_ FDL_GUARDED_BY(mutex_);
  std::string server_name_ FDL_GUARDED_BY(mutex_);
  std::vector<Hello> server_ FDL_GUARDED_BY(mutex_);  // the rank that serves the coordinator, if one does
  bool left_ FDL_GUARDED_BY(mutex_) = false;
  bool coordinator_ends_ FDL_GUARDED_BY(mutex_) = false;  // in good order
  Status coordinator_lost_ FDL_GUARDED_BY(mutex_);
  std::unordered_map<int, Status> gone_ FDL_GUARDED_BY(mutex_);
  uint64_t last_id_ FDL_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, Answer*> pending_ FDL_GUARDED_BY(mutex_);
  std::vector<CoordinatorEvent> events_ FDL_GUARDED_BY(mutex_);
};

SocketClient::~SocketClient() {
  // Without the leave message the coordinator would take the end of the connection for a loss. The wait is bounded,
  // because a stopped coordinator reads nothing.
  MutexLock lock(mutex_);
  const Deadline deadline = Deadline::after_seconds(kLeaveFlush_s);
  while (left_ && coordinator_lost_.ok() && socket_.flush() && socket_.unsent_bytes() > 0) {
    if (!wait_writable(socket_.fd(), deadline)) break;
  }
}

// Sends the hello and waits for the welcome. The calling thread drives the connection meanwhile.
Status SocketClient::start(Deadline deadline) {
  // Both descriptors are in one epoll set, whose descriptor is wake_fd(): the progress thread watches a single one.
  FDL_RETURN_IF_ERROR(poller_.add(socket_.fd(), kSocketToken));
  FDL_RETURN_IF_ERROR(poller_.add(sender_.fd(), kSenderToken));
  CoordinatorMessage hello{.kind = Kind::hello};
  hello.members = {hello_};
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
                    fmt::format("the coordinator did not answer the hello of {} in time", describe(hello_)));
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
  for (CoordinatorMessage& message : messages) handle(std::move(message));
  if (state != FramedSocket::State::open) lose_coordinator();
}

void SocketClient::handle(CoordinatorMessage message) {
  switch (message.kind) {
    case Kind::welcome:
      welcome_ = true;
      server_name_ = message.key;
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
      note_gone(CoordinatorEvent::Kind::left, message);
      break;
    case Kind::comm_failed:
      add_event(
          {.kind = CoordinatorEvent::Kind::comm_failed, .rank = message.rank, .comm = message.key, .why = message.why});
      break;
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
    case Kind::coordinator_ends:
      coordinator_ends_ = true;
      break;
    default:
      break;  // a newer coordinator may send further kinds, which are optional
  }
}

void SocketClient::note_gone(CoordinatorEvent::Kind kind, const CoordinatorMessage& message) {
  // The first reason stays: a rank that was lost cannot leave afterwards.
  gone_.emplace(message.rank, message.why);
  add_event({.kind = kind, .rank = message.rank, .comm = {}, .why = message.why});
  answered_.notify_all();
}

void SocketClient::add_event(CoordinatorEvent event) {
  // After leave() the world has ended, and no thread takes events any more.
  if (!left_) events_.push_back(std::move(event));
}

// Each rank builds the same error text locally, because no coordinator is left to send it.
void SocketClient::lose_coordinator() {
  if (!coordinator_lost_.ok()) return;
  poller_.remove(socket_.fd());  // it would report a closed socket for ever
  // It is no failure if the coordinator ended in good order or its rank has left: only the rendezvous service has
  // ended.
  const bool in_order = coordinator_ends_ || (!server_.empty() && gone_.contains(server_.front().rank));
  coordinator_lost_ = Status(in_order ? Code::shut_down : Code::peer_lost,
                             fmt::format("the coordinator ({}) {}", server_name_, in_order ? "has ended" : "is gone"));
  // The coordinator has declared this rank lost, for example because its process was stopped for too long: that text is
  // the cause here too.
  if (const auto mine = gone_.find(hello_.rank); mine != gone_.end()) {
    coordinator_lost_ = mine->second;
  } else if (!coordinator_ends_ && !server_.empty() && !gone_.contains(server_.front().rank)) {
    const Hello& server = server_.front();
    CoordinatorMessage lost{.kind = Kind::lost};
    lost.rank = server.rank;
    lost.why = Status::blame(server.rank, server.host_name, Code::peer_lost,
                             describe(server) + " was lost: it served the rendezvous and its connection closed");
    note_gone(CoordinatorEvent::Kind::lost, lost);
  }
  add_event({.kind = CoordinatorEvent::Kind::coordinator_lost, .comm = {}, .why = coordinator_lost_});
  answered_.notify_all();
}

std::vector<CoordinatorEvent> SocketClient::take_events() {
  MutexLock lock(mutex_);
  return std::exchange(events_, {});
}

// ---- Any thread ----

void SocketClient::send(const CoordinatorMessage& message) {
  if (!coordinator_lost_.ok()) return;
  socket_.send(message);
  socket_.flush();
}

// Sends as much as the socket accepts; the driving thread sends the rest.
void SocketClient::send_and_wake(const CoordinatorMessage& message) {
  send(message);
  if (socket_.unsent_bytes() > 0) sender_.ring();
}

// Returns why the first of these ranks has left or was lost; null if all are present.
const Status* SocketClient::first_gone_of(const std::vector<int>& ranks) const {
  for (const int rank : ranks) {
    if (const auto found = gone_.find(rank); found != gone_.end()) return &found->second;
  }
  return nullptr;
}

// Sends a request and blocks until its reply. It fails early if one of the ranks `of` is gone or the coordinator is
// lost. A request without a reply is cancelled with `forget`.
Result<CoordinatorMessage> SocketClient::send_request(CoordinatorMessage request, const std::vector<int>& of,
                                                      Deadline deadline) {
  Answer answer;
  MutexLock lock(mutex_);
  if (left_) return Status(Code::shut_down, fmt::format("{} has left the coordinator", describe(hello_)));
  request.id = ++last_id_;
  pending_.emplace(request.id, &answer);
  send_and_wake(request);
  // The driving thread sets the answer. If a rank of `of` is gone, no answer will come from it.
  answered_.wait(mutex_, deadline, [&]() FDL_REQUIRES(mutex_) {
    return answer.is_here || !coordinator_lost_.ok() || first_gone_of(of) != nullptr;
  });
  pending_.erase(request.id);
  // An answer wins over a loss that was noted while this thread woke up.
  if (answer.is_here) {
    if (!answer.message.why.ok()) return answer.message.why;
    return std::move(answer.message);
  }
  if (!coordinator_lost_.ok()) return coordinator_lost_;
  // The coordinator keeps open requests, and a fetch of a key that no rank publishes would stay there until the job
  // ends.
  CoordinatorMessage forget{.kind = Kind::forget};
  forget.id = request.id;
  send_and_wake(forget);
  if (const Status* gone = first_gone_of(of)) return *gone;
  return Status(Code::timeout, "the coordinator did not answer in time");
}

Result<std::vector<CoordinatorClient::Hello>> SocketClient::wait_for_all(Deadline deadline) {
  CoordinatorMessage request{.kind = Kind::wait};
  // The coordinator has the same deadline and names the missing ranks in its error. This rank waits a little longer.
  request.number = deadline.remaining_ns();
  const Deadline grace =
      deadline.is_never() ? deadline : Deadline::after_ns(deadline.remaining_ns() + seconds_to_ns(kGrace_s));
  FDL_ASSIGN_OR_RETURN(CoordinatorMessage answer, send_request(std::move(request), {}, grace));
  return std::move(answer.members);
}

Status SocketClient::publish(std::string_view key, std::string_view value) {
  if (key.size() > kMostKey || key.size() + value.size() + 512 > most_payload(Direction::to_coordinator)) {
    return Status(Code::invalid_argument,
                  fmt::format("'{:.64}' has {} bytes, and the coordinator accepts facts of less than 1 MiB "
                              "under keys of at most {} bytes",
                              key, value.size(), kMostKey));
  }
  CoordinatorMessage request{.kind = Kind::publish};
  request.key = key;
  request.value = value;
  return send_request(std::move(request), {}, Deadline::after_seconds(kAnswer_s)).status();
}

Result<std::string> SocketClient::fetch_from(const std::vector<int>& world_ranks, std::string_view key,
                                             Deadline deadline) {
  if (key.size() > kMostKey) {
    return Status(Code::invalid_argument, fmt::format("the key has {} bytes, limit {}", key.size(), kMostKey));
  }
  const int64_t began = now_ns();
  CoordinatorMessage request{.kind = Kind::fetch};
  request.key = key;
  auto answer = send_request(std::move(request), world_ranks, deadline);
  if (answer.ok()) return std::move(answer->value);
  if (answer.status().code() != Code::timeout) return answer.status();
  return Status(Code::timeout, fmt::format("no rank published '{}' within {:.3g} s", key,
                                           static_cast<double>(now_ns() - began) / 1e9));
}

void SocketClient::probe(const std::vector<int>& world_ranks) {
  CoordinatorMessage request{.kind = Kind::probe};
  request.ranks = world_ranks;
  MutexLock lock(mutex_);
  send_and_wake(request);
}

void SocketClient::report(const std::string& comm, const Status& why) {
  FDL_CHECK(!why.ok());
  // The decision arrives later, as an event for all ranks; a report has no reply.
  CoordinatorMessage message{.kind = Kind::report};
  message.key = comm;
  message.why = why;
  MutexLock lock(mutex_);
  send_and_wake(message);
}

void SocketClient::query_progress(const std::string& comm, uint64_t query, const std::vector<int>& world_ranks,
                                  int64_t timeout_ns) {
  if (comm.size() > kMostKey) return;  // the coordinator would reject it
  CoordinatorMessage message{.kind = Kind::progress_query};
  message.id = query;
  message.number = timeout_ns;
  message.ranks = world_ranks;
  message.key = comm;
  MutexLock lock(mutex_);
  send_and_wake(message);
}

void SocketClient::reply_progress(const CoordinatorEvent& query, int64_t begun, bool waiting) {
  CoordinatorMessage message{.kind = Kind::progress_reply};
  message.id = query.query;
  message.number = begun;
  message.rank = query.rank;
  message.key = query.comm;
  if (waiting) message.value = kWaiting;
  MutexLock lock(mutex_);
  send_and_wake(message);
}

void SocketClient::leave() {
  MutexLock lock(mutex_);
  if (left_) return;
  // Set before the message is sent: what arrives from now on concerns a world that has ended.
  left_ = true;
  events_.clear();
  send_and_wake({.kind = Kind::leave});
}

// A rank that restarts at once may still reach the coordinator of the job that is ending.
bool belongs_to_the_job_before(const Status& status) {
  return (status.code() == Code::shut_down || status.code() == Code::peer_lost) && status.error().culprit_rank < 0;
}

Result<std::unique_ptr<CoordinatorClient>> connect_once(const std::string& rendezvous, const std::string& job_key,
                                                        const CoordinatorClient::Hello& hello, Deadline deadline) {
  FDL_ASSIGN_OR_RETURN(FoundCoordinator found,
                       find_coordinator(rendezvous, job_key, describe(hello).substr(0, 256), deadline));
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  FDL_ASSIGN_OR_RETURN(Event sender, Event::make());
  auto client = std::make_unique<SocketClient>(std::move(found), hello, std::move(poller), std::move(sender));
  FDL_RETURN_IF_ERROR(client->start(deadline));
  return std::unique_ptr<CoordinatorClient>(std::move(client));
}

}  // namespace

Result<std::unique_ptr<CoordinatorClient>> CoordinatorClient::connect(const std::string& rendezvous,
                                                                      const std::string& job_key, const Hello& hello,
                                                                      Deadline deadline) {
  if (hello.host_name.size() > kMostName || hello.boot_id.size() > kMostName) {
    return Status(Code::invalid_argument, fmt::format("the host name '{:.64}...' is too long", hello.host_name));
  }
  // The deadline bounds the whole loop, find_coordinator() included.
  while (true) {
    auto client = connect_once(rendezvous, job_key, hello, deadline);
    if (client.ok() || !belongs_to_the_job_before(client.status()) || deadline.passed()) return client;
    std::this_thread::sleep_for(std::chrono::nanoseconds(kPause_ns));
  }
}

}  // namespace fdl
