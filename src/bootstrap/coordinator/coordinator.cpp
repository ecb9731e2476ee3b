// Coordinator is one thread around CoordinatorRounds, which decides; this file has the sockets. A connection proves the
// job's key before any of its messages is read.
#include "bootstrap/coordinator/coordinator.h"

#include <fmt/core.h>

#include <array>
#include <atomic>
#include <unordered_map>

#include "base/log.h"
#include "base/mutex.h"
#include "bootstrap/coordinator/coordinator_listener.h"
#include "bootstrap/coordinator/coordinator_rounds.h"
#include "bootstrap/coordinator/find_coordinator.h"
#include "bootstrap/coordinator/job_view.h"
#include "bootstrap/rendezvous/framed_socket.h"
#include "bootstrap/topology/topology.h"
#include "system/event.h"
#include "system/handshake.h"
#include "system/poller.h"
#include "system/socket.h"

namespace fdl {
namespace {

using Peer = CoordinatorRounds::Peer;

// Tokens of the poller. A connection has the number of its peer.
constexpr uint64_t kWakeToken = 0;
constexpr uint64_t kListenerToken = 1;
constexpr uint64_t kQueryListenerToken = 2;
static_assert(kQueryListenerToken < CoordinatorRounds::kFirstPeer);
constexpr std::size_t kMostUnsent = 320_MiB;  // for a rank that does not read; more than the store holds

// A connection is in its handshake (`introduction`), or has a session key (`socket`).
struct Connection {
  UniqueFd fd;  // during the handshake; afterwards `socket` owns the descriptor
  std::unique_ptr<Introduction> introduction;
  std::unique_ptr<FramedSocket> socket;
  bool watches_write = false;

  int descriptor() const { return socket ? socket->fd() : fd.get(); }
  bool is_silent() const { return introduction && !introduction->received_anything(); }
};

// Describes the process of the coordinator, so that JobMembership can recognise the rank that serves it.
CoordinatorClient::Hello own_process() {
  const HostFacts facts = host_facts();
  return {
      .rank = -1, .size = 0, .host_name = facts.host_name, .boot_id = facts.boot_id, .process_id = facts.process_id};
}

class CoordinatorServer final : public Coordinator, private CoordinatorRounds::Connections {
 public:
  CoordinatorServer(const CoordinatorOptions& options, std::unique_ptr<CoordinatorListener> listener, Poller poller,
                    Event wake)
      : options_(options),
        listener_(std::move(listener)),
        poller_(std::move(poller)),
        wake_(std::move(wake)),
        rounds_(options, listener_->address(), own_process(), *this) {}

  Status watch_listener() { return listener_->watch(poller_, kListenerToken); }
  Status watch_wake() { return poller_.add(wake_.fd(), kWakeToken); }
  void listen_for_queries();

  std::string address() const override { return listener_->address(); }
  int64_t strangers() const override { return rounds_.strangers(); }
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
  void note_ended(int rank, const Status& why) override {
    {
      MutexLock lock(mutex_);
      ended_.emplace_back(rank, why);
    }
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
  void end_by_exception(const std::exception& error);
  void accept_all(CoordinatorListener& listener, bool may_only_query);
  void take_in(UniqueFd fd, bool may_only_query);
  void close_listener_if_complete();

  void serve(Peer peer, const Poller::Ready& ready);
  bool introduce(Peer peer, Connection& connection);
  void receive(Peer peer, Connection& connection);

  // ---- CoordinatorRounds::Connections ----
  void queue(Peer peer, const SharedMessage& message) override;
  void flush(Peer peer) override;
  void close(Peer peer) override;
  bool is_silent(Peer peer) const override;
  void note_own(const CoordinatorMessage& message) override;

  bool flush(Peer peer, Connection& connection);
  void watch(Peer peer, Connection& connection, bool write);
  std::vector<std::pair<int, Status>> take_ended() {
    MutexLock lock(mutex_);
    return std::exchange(ended_, {});
  }
  void publish_emptiness(bool empty);
  void announce_end();

  // stop(), query_states(), note_ended(), strangers() and wait_until_empty() may be called from any thread; all else
  // belongs to the thread in run().
  const CoordinatorOptions options_;
  const std::unique_ptr<CoordinatorListener> listener_;
  Poller poller_;
  Event wake_;
  std::unique_ptr<CoordinatorListener> query_listener_;  // null if it could not be opened
  std::atomic<bool> stopping_{false};
  std::atomic<double> patience_s_{kAnnounceEnd_s};
  std::atomic<bool> query_requested_{false};

  // These belong to the thread in run().
  CoordinatorRounds rounds_;
  std::unordered_map<Peer, Connection> connections_;
  JobViewReader own_query_;  // the answer to the query of this process, as far as it has come

  Mutex mutex_;
  CondVar emptied_;
  bool empty_ FDL_GUARDED_BY(mutex_) = false;
  std::vector<std::pair<int, Status>> ended_ FDL_GUARDED_BY(mutex_);  // of note_ended()
};

void CoordinatorServer::run() {
  try {
    while (!stopping_.load()) serve_once(Deadline::never());
    announce_end();
  } catch (const std::exception& error) {
    end_by_exception(error);
  }
}

// The state is unknown, so nothing is sent any more: the ranks see the end of their connections, and report the loss of
// the coordinator. Ranks that arrive later find no listener.
void CoordinatorServer::end_by_exception(const std::exception& error) {
  connections_.clear();
  listener_->close(poller_);
  if (query_listener_) query_listener_->close(poller_);
  publish_emptiness(true);
  log_error("coordinator: {}; the job ends, and its ranks report that the coordinator was lost",
            status_of_exception(error).text());
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
  listener_->resume(poller_);
  if (query_listener_) query_listener_->resume(poller_);
  if (query_requested_.exchange(false)) rounds_.query_states(now_ns());
  for (const auto& [rank, why] : take_ended()) rounds_.note_ended(rank, why);
  close_listener_if_complete();
  rounds_.finish(now_ns());
  publish_emptiness(rounds_.membership().is_empty());
}

Deadline CoordinatorServer::next_deadline() const {
  const Deadline next = rounds_.next().earlier(listener_->pause_ends());
  return query_listener_ ? next.earlier(query_listener_->pause_ends()) : next;
}

// ---- Strangers ----

// Accepts all pending connections. Unix connections of other users are closed at once.
void CoordinatorServer::accept_all(CoordinatorListener& listener, bool may_only_query) {
  while (UniqueFd fd = listener.accept(poller_, "coordinator")) {
    if (is_of_another_user(fd.get())) {
      rounds_.count_stranger();
    } else {
      take_in(std::move(fd), may_only_query);
    }
  }
  if (const Status shortage = listener.lasting_shortage(); !shortage.ok()) rounds_.note_shortage(shortage);
}

// No rank connects twice, so a port that only ranks can know has served its purpose.
void CoordinatorServer::close_listener_if_complete() {
  if (options_.closes_when_complete && rounds_.membership().absent_ranks() == 0) listener_->close(poller_);
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
  const Peer peer = rounds_.add(may_only_query, now_ns());
  if (!poller_.add(fd.get(), peer).ok()) return rounds_.closed(peer);
  Connection connection;
  if (may_only_query) {
    connection.socket = std::make_unique<FramedSocket>(std::move(fd), kQuerySocketKey, Direction::to_coordinator);
  } else {
    connection.fd = std::move(fd);
    connection.introduction = std::make_unique<Introduction>(Introduction::Role::server, options_.job_key,
                                                             kCoordinatorPurpose, options_.server_name.substr(0, 256));
  }
  connections_.emplace(peer, std::move(connection));
  // The greeting is sent at once. A process on this host may have written already, too.
  serve(peer, {.token = peer, .readable = true, .writable = false, .hung_up = false});
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
    rounds_.drop(peer);
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
  const FramedSocket::State state = connection.socket->receive(messages);
  const auto end = state == FramedSocket::State::open     ? CoordinatorRounds::End::none
                   : state == FramedSocket::State::closed ? CoordinatorRounds::End::closed
                                                          : CoordinatorRounds::End::broken;
  rounds_.receive(peer, std::move(messages), end, now_ns());
}

void CoordinatorServer::queue(Peer peer, const SharedMessage& message) {
  const auto found = connections_.find(peer);
  if (found != connections_.end() && found->second.socket) found->second.socket->send_encoded(message);
}

void CoordinatorServer::flush(Peer peer) {
  const auto found = connections_.find(peer);
  if (found != connections_.end() && found->second.socket) flush(peer, found->second);
}

bool CoordinatorServer::is_silent(Peer peer) const {
  const auto found = connections_.find(peer);
  return found != connections_.end() && found->second.is_silent();
}

// A message for the process itself.
void CoordinatorServer::note_own(const CoordinatorMessage& message) {
  const auto complete = own_query_.take(message);
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
  poller_.remove(found->second.descriptor());
  connections_.erase(found);
  rounds_.closed(peer);
}

// Publishes whether all ranks have gone to the threads in wait_until_empty().
void CoordinatorServer::publish_emptiness(bool empty) {
  MutexLock lock(mutex_);
  if (empty_ == empty) return;
  empty_ = empty;
  emptied_.notify_all();
}

// Announces the end to all members. A connection that is closed with unread data is reset, and a reset discards what is
// on its way in both directions: the announcement here, a leave message there.
void CoordinatorServer::announce_end() {
  // Members that do not read within the limit see the end of the connection instead.
  rounds_.end();
  const Deadline deadline = Deadline::after_seconds(patience_s_.load());
  while (!rounds_.membership().all_know_of_end() && !deadline.passed()) serve_once(deadline);
  for (auto& [peer, connection] : connections_) {
    while (connection.socket && connection.socket->unsent_bytes() > 0 && connection.socket->flush() &&
           connection.socket->unsent_bytes() > 0) {
      if (!wait_writable(connection.descriptor(), deadline)) break;
    }
  }
  connections_.clear();
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
