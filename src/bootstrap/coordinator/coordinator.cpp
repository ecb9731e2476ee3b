// Coordinator is one thread around a JobMembership. A connection is a stranger until it has proved the job's key and
// sent its hello.
#include "bootstrap/coordinator/coordinator.h"

#include <fmt/core.h>

#include <array>
#include <atomic>
#include <map>
#include <unordered_map>

#include "base/log.h"
#include "base/mutex.h"
#include "bootstrap/coordinator/coordinator_listener.h"
#include "bootstrap/coordinator/find_coordinator.h"
#include "bootstrap/coordinator/job_membership.h"
#include "bootstrap/coordinator/job_view.h"
#include "bootstrap/rendezvous/framed_socket.h"
#include "bootstrap/topology/topology.h"
#include "system/event.h"
#include "system/handshake.h"
#include "system/poller.h"
#include "system/socket.h"

namespace fdl {
namespace {

using Peer = JobMembership::Peer;

// Tokens of the poller. A connection has the number of its peer, and numbers below kFirstPeer are no connections.
constexpr uint64_t kWakeToken = 0;
constexpr uint64_t kListenerToken = 1;
constexpr uint64_t kQueryListenerToken = 2;
constexpr Peer kFirstPeer = 3;
static_assert(JobMembership::kOwnPeer < kFirstPeer);
constexpr std::size_t kMostStrangers = 128;   // connections that are of no rank; see most_strangers()
constexpr double kStrangerTimeout_s = 5;      // time until a stranger must have become a member
constexpr std::size_t kMostUnsent = 320_MiB;  // for a rank that does not read; more than the store holds

// A connection passes through three states: stranger in its handshake (`introduction`), stranger with a session key
// (`socket`, before the hello), and member. It has a deadline until it is a member. A client that only asks what the
// ranks do stays a stranger.
struct Connection {
  UniqueFd fd;  // during the handshake; afterwards `socket` owns the descriptor
  std::unique_ptr<Introduction> introduction;
  std::unique_ptr<FramedSocket> socket;
  bool is_member = false;
  bool may_only_query = false;  // it has not proved the job's key, but its user
  bool watches_write = false;
  bool has_output = false;  // something was queued in this round

  int descriptor() const { return socket ? socket->fd() : fd.get(); }
  bool is_silent() const { return introduction && !introduction->received_anything(); }
};

// Describes the process of the coordinator, so that JobMembership can recognise the rank that serves it.
CoordinatorClient::Hello own_process() {
  const HostFacts facts = host_facts();
  return {
      .rank = -1, .size = 0, .host_name = facts.host_name, .boot_id = facts.boot_id, .process_id = facts.process_id};
}

class CoordinatorServer final : public Coordinator {
 public:
  CoordinatorServer(const CoordinatorOptions& options, std::unique_ptr<CoordinatorListener> listener, Poller poller,
                    Event wake)
      : options_(options),
        listener_(std::move(listener)),
        poller_(std::move(poller)),
        wake_(std::move(wake)),
        membership_(options, listener_->address(), own_process()) {}

  Status watch_listener() { return listener_->watch(poller_, kListenerToken); }
  Status watch_wake() { return poller_.add(wake_.fd(), kWakeToken); }
  void listen_for_queries();

  std::string address() const override { return listener_->address(); }
  int64_t strangers() const override { return strangers_.load(std::memory_order_relaxed); }
  // May be called from any thread.
  void stop(double patience_s) override {
    patience_s_.store(patience_s);
    stopping_.store(true);
    wake_.ring();
  }
  void query_states() override {
    query_requested_.store(true);
    wake_.ring();
  }
  bool wait_until_empty(Deadline deadline) override {
    MutexLock lock(mutex_);
    return emptied_.wait(mutex_, deadline, [&]() FDL_REQUIRES(mutex_) { return empty_; });
  }
  void run() override;

 private:
  Deadline next_deadline() const;
  void serve_once(Deadline deadline);
  void accept_all(CoordinatorListener& listener, bool may_only_query);
  void take_in(UniqueFd fd, bool may_only_query);
  void close_listener_if_complete();
  void note_own(CoordinatorMessage message);
  std::size_t most_strangers() const;
  void evict_if_full();
  void drop_expired_strangers();
  void drop_stranger(Peer peer);

  void serve(Peer peer, const Poller::Ready& ready);
  bool introduce(Peer peer, Connection& connection);
  void receive(Peer peer, Connection& connection);
  bool handle(Peer peer, Connection& connection, CoordinatorMessage message);

  void deliver();
  bool flush(Peer peer, Connection& connection);
  void watch(Peer peer, Connection& connection, bool write);
  void close(Peer peer);
  void note_emptiness();
  void announce_end();

  // stop(), query_states(), strangers() and wait_until_empty() may be called from any thread; all else belongs to the
  // thread in run().
  const CoordinatorOptions options_;
  const std::unique_ptr<CoordinatorListener> listener_;
  Poller poller_;
  Event wake_;
  std::unique_ptr<CoordinatorListener> query_listener_;  // null if it could not be opened
  std::atomic<bool> stopping_{false};
  std::atomic<double> patience_s_{kAnnounceEnd_s};
  std::atomic<bool> query_requested_{false};
  std::atomic<int64_t> strangers_{0};

  // These belong to the thread in run().
  JobMembership membership_;
  std::unordered_map<Peer, Connection> connections_;
  std::map<Peer, Deadline> strangers_here_;  // oldest first, because peers are numbered in order
  Peer next_peer_ = kFirstPeer;
  JobViewReader own_query_;  // the answer to the query of this process, as far as it has come

  Mutex mutex_;
  CondVar emptied_;
  bool empty_ FDL_GUARDED_BY(mutex_) = false;
};

void CoordinatorServer::run() {
  while (!stopping_.load()) serve_once(Deadline::never());
  announce_end();
}

// Sleeps until something happens or the deadline passes, and handles it.
void CoordinatorServer::serve_once(Deadline deadline) {
  std::array<Poller::Ready, 64> ready;
  const std::size_t count = poller_.wait(ready, next_deadline().earlier(deadline));
  for (std::size_t i = 0; i < count; ++i) {
    if (ready[i].token == kListenerToken) {
      accept_all(*listener_, false);
    } else if (ready[i].token == kQueryListenerToken) {
      accept_all(*query_listener_, true);
    } else if (ready[i].token == kWakeToken) {
      wake_.clear();
    } else {
      serve(ready[i].token, ready[i]);
    }
  }
  // After the events, in this order: what arrived counts before time-outs are decided, and all messages of a round
  // leave together.
  listener_->resume(poller_);
  if (query_listener_) query_listener_->resume(poller_);
  // A query that is open already answers this request too.
  if (query_requested_.exchange(false)) static_cast<void>(membership_.query_job(JobMembership::kOwnPeer, now_ns()));
  membership_.tick(now_ns());
  close_listener_if_complete();
  drop_expired_strangers();
  deliver();
  note_emptiness();
}

Deadline CoordinatorServer::next_deadline() const {
  Deadline next = membership_.next().earlier(listener_->pause_ends());
  if (query_listener_) next = next.earlier(query_listener_->pause_ends());
  return strangers_here_.empty() ? next : next.earlier(strangers_here_.begin()->second);
}

// ---- Strangers ----

// Accepts all pending connections. Unix connections of other users are closed at once.
void CoordinatorServer::accept_all(CoordinatorListener& listener, bool may_only_query) {
  while (UniqueFd fd = listener.accept(poller_, "coordinator")) {
    if (is_of_another_user(fd.get())) {
      strangers_.fetch_add(1, std::memory_order_relaxed);
    } else {
      take_in(std::move(fd), may_only_query);
    }
  }
}

// No rank connects twice, so a port that only ranks can know has served its purpose.
void CoordinatorServer::close_listener_if_complete() {
  if (options_.closes_when_complete && membership_.absent_ranks() == 0) listener_->close(poller_);
}

// A job works without this socket, so a failure is only logged.
void CoordinatorServer::listen_for_queries() {
  auto listener = CoordinatorListener::open("unix:@" + make_query_socket_name());
  const Status watched = listener.ok() ? (*listener)->watch(poller_, kQueryListenerToken) : listener.status();
  if (!watched.ok()) return log_info("coordinator: farandole where needs --rendezvous here: {}", watched.text());
  query_listener_ = listener.take();
}

// Adds a stranger and begins its handshake. One that may only query has proved its user and needs none.
void CoordinatorServer::take_in(UniqueFd fd, bool may_only_query) {
  evict_if_full();
  // Numbers are not reused, so an event of this round cannot reach a connection that was made in its place.
  const Peer peer = next_peer_++;
  if (!poller_.add(fd.get(), peer).ok()) return;
  Connection connection;
  connection.may_only_query = may_only_query;
  if (may_only_query) {
    connection.socket = std::make_unique<FramedSocket>(std::move(fd), kQuerySocketKey, Direction::to_coordinator);
  } else {
    connection.fd = std::move(fd);
    connection.introduction = std::make_unique<Introduction>(Introduction::Role::server, options_.job_key,
                                                             kCoordinatorPurpose, options_.server_name.substr(0, 256));
  }
  connections_.emplace(peer, std::move(connection));
  strangers_here_.emplace(peer, Deadline::after_seconds(kStrangerTimeout_s));
  // The greeting is sent at once. A process on this host may have written already, too.
  serve(peer, {.token = peer, .readable = true, .writable = false, .hung_up = false});
}

// The limit bounds descriptors and memory that a flood of strangers can take. Ranks that have not arrived are strangers
// too until their hello, and all may connect at once: each has a place besides.
std::size_t CoordinatorServer::most_strangers() const { return kMostStrangers + membership_.absent_ranks(); }

// Closes the stranger that has been silent for longest: a rank sends its proof as soon as it has the greeting.
void CoordinatorServer::evict_if_full() {
  if (strangers_here_.size() < most_strangers()) return;
  for (const auto& [peer, timeout] : strangers_here_) {
    if (connections_.at(peer).is_silent()) return drop_stranger(peer);
  }
  drop_stranger(strangers_here_.begin()->first);
}

void CoordinatorServer::drop_expired_strangers() {
  while (!strangers_here_.empty() && strangers_here_.begin()->second.passed()) {
    drop_stranger(strangers_here_.begin()->first);
  }
}

void CoordinatorServer::drop_stranger(Peer peer) {
  strangers_.fetch_add(1, std::memory_order_relaxed);
  close(peer);
}

// ---- Connections ----

void CoordinatorServer::serve(Peer peer, const Poller::Ready& ready) {
  // Order: the handshake first, then space for output, then input, whose replies may fill that space again.
  const auto found = connections_.find(peer);
  if (found == connections_.end()) return;  // an earlier event of this round closed it
  Connection& connection = found->second;
  if (!connection.socket && !introduce(peer, connection)) return;
  if (ready.writable && !flush(peer, connection)) return;
  if (ready.readable) receive(peer, connection);
}

// Returns true when the handshake is complete; false while it is not or if the connection was dropped.
bool CoordinatorServer::introduce(Peer peer, Connection& connection) {
  // No byte of the peer is interpreted before it has proved the job key; a wrong proof ends the connection without a
  // reply, so that a stranger learns nothing.
  auto through = connection.introduction->advance(connection.fd.get());
  if (!through.ok()) {
    drop_stranger(peer);
    return false;
  }
  watch(peer, connection, connection.introduction->has_output());
  if (!*through) return false;
  survive_outages(connection.fd.get(), options_.lost_after_s);
  // From here on each frame is authenticated with the key of this session.
  connection.socket = std::make_unique<FramedSocket>(
      std::move(connection.fd), connection.introduction->introduced().session_key, Direction::to_coordinator);
  connection.introduction.reset();
  return true;
}

void CoordinatorServer::receive(Peer peer, Connection& connection) {
  std::vector<CoordinatorMessage> messages;
  // Complete frames are handled before the state: a rank that leaves sends its last message and closes at once.
  const FramedSocket::State state = connection.socket->receive(messages);
  for (CoordinatorMessage& message : messages) {
    if (!handle(peer, connection, std::move(message))) return drop_stranger(peer);
  }
  if (state == FramedSocket::State::broken) return drop_stranger(peer);
  if (state == FramedSocket::State::closed) close(peer);
}

// Returns false if the message violates the protocol.
bool CoordinatorServer::handle(Peer peer, Connection& connection, CoordinatorMessage message) {
  if (connection.is_member) return membership_.receive(peer, std::move(message), now_ns()).ok();
  if (message.kind == CoordinatorMessage::Kind::job_query) {
    return membership_.query_job(peer, now_ns(), message.number == 1).ok();
  }
  if (connection.may_only_query) return false;
  // The first message is the hello, and there is no second one.
  if (message.kind != CoordinatorMessage::Kind::hello || message.members.size() != 1) return false;
  const CoordinatorClient::Hello& hello = message.members.front();
  if (hello.host_name.size() > kMostName || hello.boot_id.size() > kMostName) return false;
  if (hello.recovery.size() > kMostKey || hello.salt.size() > kMostName) return false;
  // greet() queues the welcome or a refusal; a refused rank stays a stranger until its deadline or its own close.
  connection.is_member = membership_.greet(peer, hello, now_ns(), message.number);
  if (connection.is_member) strangers_here_.erase(peer);
  return true;
}

// Sending may close connections, and each closed connection causes further messages; repeats until there are none.
void CoordinatorServer::deliver() {
  while (true) {
    auto outgoing = membership_.take_outgoing();
    const auto hang_ups = membership_.take_hang_ups();
    if (outgoing.empty() && hang_ups.empty()) return;
    // Each connection is flushed once a round, with all of its messages: one system call for many small ones.
    std::vector<Peer> reached;
    MessageEncoder encoder;
    for (const JobMembership::Outgoing& one : outgoing) {
      if (one.peer == JobMembership::kOwnPeer) {
        note_own(*one.message);
        continue;
      }
      const auto found = connections_.find(one.peer);
      if (found == connections_.end()) continue;
      found->second.socket->send_encoded(encoder.encode(one.message));
      if (!std::exchange(found->second.has_output, true)) reached.push_back(one.peer);
    }
    for (const Peer peer : reached) {
      const auto found = connections_.find(peer);
      if (found == connections_.end()) continue;
      found->second.has_output = false;
      flush(peer, found->second);
    }
    for (const Peer peer : hang_ups) close(peer);
  }
}

// A message for the process itself: a part of the answer to its query.
void CoordinatorServer::note_own(CoordinatorMessage message) {
  const auto complete = own_query_.take(std::move(message));
  if (complete.ok() && !*complete) return;
  const JobView view = own_query_.take_view();
  own_query_ = {};
  if (complete.ok() && options_.on_states) options_.on_states(view);
}

// Returns false if the connection was closed because its unsent data exceeds the limit.
bool CoordinatorServer::flush(Peer peer, Connection& connection) {
  connection.socket->flush();
  // A rank that reads nothing, for example because it was stopped, must not fill the memory of this process.
  if (connection.socket->unsent_bytes() > kMostUnsent) {
    close(peer);
    return false;
  }
  watch(peer, connection, connection.socket->unsent_bytes() > 0);
  return true;
}

void CoordinatorServer::watch(Peer peer, Connection& connection, bool write) {
  if (connection.watches_write == write) return;
  connection.watches_write = write;
  if (!poller_.change(connection.descriptor(), peer, true, write).ok())
    log_error("coordinator: cannot watch a connection");
}

void CoordinatorServer::close(Peer peer) {
  const auto found = connections_.find(peer);
  if (found == connections_.end()) return;
  // The membership comes last: it may queue messages about this peer, which must not be sent to it.
  poller_.remove(found->second.descriptor());
  connections_.erase(found);
  strangers_here_.erase(peer);
  membership_.closed(peer);
}

// Publishes membership_.is_empty() to the threads in wait_until_empty().
void CoordinatorServer::note_emptiness() {
  MutexLock lock(mutex_);
  if (empty_ == membership_.is_empty()) return;
  empty_ = membership_.is_empty();
  emptied_.notify_all();
}

// Announces the end to all members. A connection that is closed with unread data is reset, and a reset discards what is
// on its way in both directions: the announcement here, a leave message there.
void CoordinatorServer::announce_end() {
  // Members that do not read within the limit see the end of the connection instead.
  membership_.end();
  deliver();
  const Deadline deadline = Deadline::after_seconds(patience_s_.load());
  while (!membership_.all_know_of_end() && !deadline.passed()) serve_once(deadline);
  for (auto& [peer, connection] : connections_) {
    while (connection.socket && connection.socket->unsent_bytes() > 0 && connection.socket->flush() &&
           connection.socket->unsent_bytes() > 0) {
      if (!wait_writable(connection.descriptor(), deadline)) break;
    }
  }
  connections_.clear();
  strangers_here_.clear();
}

}  // namespace

Result<std::unique_ptr<Coordinator>> Coordinator::open(const CoordinatorOptions& options) {
  if (options.size < 1 || options.size > kMostRanks) {
    return Status(Code::invalid_argument, fmt::format("a coordinator cannot serve {} ranks; from 1 to {} are possible",
                                                      options.size, kMostRanks));
  }
  if (options.job_key.size() < 16) {
    return Status(Code::invalid_argument, "the coordinator needs a job key of at least 16 characters");
  }
  FDL_ASSIGN_OR_RETURN(auto listener,
                       CoordinatorListener::open(options.address, options.interfaces, options.port_base));
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  FDL_ASSIGN_OR_RETURN(Event wake, Event::make());
  auto server = std::make_unique<CoordinatorServer>(options, std::move(listener), std::move(poller), std::move(wake));
  FDL_RETURN_IF_ERROR(server->watch_listener());
  FDL_RETURN_IF_ERROR(server->watch_wake());
  server->listen_for_queries();
  return std::unique_ptr<Coordinator>(std::move(server));
}

}  // namespace fdl
