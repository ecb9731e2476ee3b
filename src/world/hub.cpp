// Hub: one thread around a Roster; a connection is a stranger until it has proved the key and said hello.
#include "world/hub.h"

#include <fmt/core.h>

#include <array>
#include <atomic>
#include <map>
#include <unordered_map>

#include "base/log.h"
#include "base/mutex.h"
#include "system/event.h"
#include "system/handshake.h"
#include "system/poller.h"
#include "system/socket.h"
#include "world/find_hub.h"
#include "world/framed_socket.h"
#include "world/hub_door.h"
#include "world/roster.h"
#include "world/topology.h"

namespace fdl {
namespace {

using Peer = Roster::Peer;

constexpr uint64_t kStopToken = 0;
constexpr uint64_t kDoorToken = 1;
constexpr Peer kFirstPeer = 2;
constexpr std::size_t kMostStrangers = 128;   // connections that have no seat yet
constexpr double kStrangerPatience_s = 5;     // within which they must get one
constexpr std::size_t kMostUnsent = 320_MiB;  // for a rank that does not read; more than the store holds
constexpr double kPauseWithoutDescriptors_s = 0.1;
constexpr double kFarewell_s = 1;  // for the last messages to go out

struct Connection {
  UniqueFd fd;  // until it is introduced; then the socket has it
  std::unique_ptr<Introduction> introduction;
  std::unique_ptr<FramedSocket> socket;
  bool has_seat = false;
  bool wants_write = false;

  int descriptor() const { return socket ? socket->fd() : fd.get(); }
  bool is_silent() const { return introduction && !introduction->heard_anything(); }
};

HubLink::Hello own_process() {
  const HostFacts facts = host_facts();
  return {
      .rank = -1, .size = 0, .host_name = facts.host_name, .boot_id = facts.boot_id, .process_id = facts.process_id};
}

class HubServer final : public Hub {
 public:
  HubServer(const HubOptions& options, std::unique_ptr<HubDoor> door, Poller poller, Event stop)
      : options_(options),
        door_(std::move(door)),
        poller_(std::move(poller)),
        stop_(std::move(stop)),
        roster_(options, door_->address(), own_process(), now_ns()) {}

  Status watch_door() { return poller_.add(door_->fd(), kDoorToken); }
  Status watch_stop() { return poller_.add(stop_.fd(), kStopToken); }

  std::string address() const override { return door_->address(); }
  int64_t strangers() const override { return strangers_.load(std::memory_order_relaxed); }
  void stop() override {
    stopping_.store(true);
    stop_.ring();
  }
  bool wait_until_empty(Deadline deadline) override {
    MutexLock lock(mutex_);
    return emptied_.wait(mutex_, deadline, [&]() FDL_REQUIRES(mutex_) { return empty_; });
  }
  void run() override;

 private:
  Deadline next_deadline() const;
  void accept_all();
  void take_in(UniqueFd fd);
  void make_room_for_one_more();
  void drop_impatient();
  void drop_stranger(Peer peer);

  void serve(Peer peer, const Poller::Ready& ready);
  bool introduce(Peer peer, Connection& connection);
  void receive(Peer peer, Connection& connection);
  bool obey(Peer peer, Connection& connection, HubMessage message);

  void deliver();
  bool flush(Peer peer, Connection& connection);
  void watch(Peer peer, Connection& connection, bool write);
  void close(Peer peer);
  void note_emptiness();
  void say_farewell();

  const HubOptions options_;
  const std::unique_ptr<HubDoor> door_;
  Poller poller_;
  Event stop_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> strangers_{0};

  // These belong to the thread in run().
  Roster roster_;
  std::unordered_map<Peer, Connection> connections_;
  std::map<Peer, Deadline> strangers_here_;  // oldest first, for peers are numbered
  Peer next_peer_ = kFirstPeer;
  Deadline accept_again_ = Deadline::never();

  Mutex mutex_;
  CondVar emptied_;
  bool empty_ FDL_GUARDED_BY(mutex_) = false;
};

void HubServer::run() {
  std::array<Poller::Ready, 64> ready;
  while (!stopping_.load()) {
    const std::size_t count = poller_.wait(ready, next_deadline());
    for (std::size_t i = 0; i < count; ++i) {
      if (ready[i].token == kDoorToken) {
        accept_all();
      } else if (ready[i].token != kStopToken) {
        serve(ready[i].token, ready[i]);
      }
    }
    if (accept_again_.passed() && watch_door().ok()) accept_again_ = Deadline::never();
    roster_.tick(now_ns());
    drop_impatient();
    deliver();
    note_emptiness();
  }
  say_farewell();
}

Deadline HubServer::next_deadline() const {
  const Deadline next = roster_.next().earlier(accept_again_);
  return strangers_here_.empty() ? next : next.earlier(strangers_here_.begin()->second);
}

// ---- Strangers ----

void HubServer::accept_all() {
  while (true) {
    auto fd = accept_one(door_->fd());
    if (!fd.ok()) {
      // The connection stays in the kernel's queue, which would wake us at once: look the other way for a moment.
      log_warning("hub: {}; new connections wait", fd.status().text());
      poller_.remove(door_->fd());
      accept_again_ = Deadline::after_seconds(kPauseWithoutDescriptors_s);
      return;
    }
    if (!*fd) return;
    if (HubDoor::is_foreign(fd->get())) {
      strangers_.fetch_add(1, std::memory_order_relaxed);
    } else {
      take_in(fd.take());
    }
  }
}

void HubServer::take_in(UniqueFd fd) {
  make_room_for_one_more();
  const Peer peer = next_peer_++;
  if (!poller_.add(fd.get(), peer).ok()) return;
  Connection connection;
  connection.fd = std::move(fd);
  connection.introduction = std::make_unique<Introduction>(Introduction::Role::server, options_.job_key, kHubPurpose,
                                                           options_.server_name.substr(0, 256));
  connections_.emplace(peer, std::move(connection));
  strangers_here_.emplace(peer, Deadline::after_seconds(kStrangerPatience_s));
  serve(peer, {.token = peer, .readable = true, .writable = false, .hung_up = false});
}

// The oldest of those who said nothing goes first: ranks speak as soon as they are greeted.
void HubServer::make_room_for_one_more() {
  if (strangers_here_.size() < kMostStrangers) return;
  for (const auto& [peer, patience] : strangers_here_) {
    if (connections_.at(peer).is_silent()) return drop_stranger(peer);
  }
  drop_stranger(strangers_here_.begin()->first);
}

void HubServer::drop_impatient() {
  while (!strangers_here_.empty() && strangers_here_.begin()->second.passed()) {
    drop_stranger(strangers_here_.begin()->first);
  }
}

void HubServer::drop_stranger(Peer peer) {
  strangers_.fetch_add(1, std::memory_order_relaxed);
  close(peer);
}

// ---- Connections ----

void HubServer::serve(Peer peer, const Poller::Ready& ready) {
  const auto found = connections_.find(peer);
  if (found == connections_.end()) return;  // closed by what came before it in this round
  Connection& connection = found->second;
  if (!connection.socket && !introduce(peer, connection)) return;
  if (ready.writable && !flush(peer, connection)) return;
  if (ready.readable) receive(peer, connection);
}

// True when the connection is introduced; false while it is not, or when it was dropped.
bool HubServer::introduce(Peer peer, Connection& connection) {
  auto through = connection.introduction->advance(connection.fd.get());
  if (!through.ok()) {
    drop_stranger(peer);
    return false;
  }
  watch(peer, connection, connection.introduction->wants_to_send());
  if (!*through) return false;
  connection.socket = std::make_unique<FramedSocket>(
      std::move(connection.fd), connection.introduction->introduced().session_key, Direction::to_hub);
  connection.introduction.reset();
  return true;
}

void HubServer::receive(Peer peer, Connection& connection) {
  std::vector<HubMessage> messages;
  const FramedSocket::State state = connection.socket->receive(messages);
  for (HubMessage& message : messages) {
    if (!obey(peer, connection, std::move(message))) return drop_stranger(peer);
  }
  if (state == FramedSocket::State::broken) return drop_stranger(peer);
  if (state == FramedSocket::State::closed) close(peer);
}

// False: it broke the protocol.
bool HubServer::obey(Peer peer, Connection& connection, HubMessage message) {
  if (connection.has_seat) return roster_.hear(peer, std::move(message), now_ns()).ok();
  if (message.kind != HubMessage::Kind::hello || message.members.size() != 1) return false;
  const HubLink::Hello& hello = message.members.front();
  if (hello.host_name.size() > kMostName || hello.boot_id.size() > kMostName) return false;
  connection.has_seat = roster_.greet(peer, hello);
  if (connection.has_seat) strangers_here_.erase(peer);
  return true;
}

// Sending may end connections, and that is news for others: until there is none.
void HubServer::deliver() {
  while (true) {
    auto outgoing = roster_.take_outgoing();
    const auto hang_ups = roster_.take_hang_ups();
    if (outgoing.empty() && hang_ups.empty()) return;
    std::vector<Peer> reached;
    for (Roster::Outgoing& one : outgoing) {
      const auto found = connections_.find(one.peer);
      if (found == connections_.end()) continue;
      found->second.socket->send(one.message);
      if (reached.empty() || reached.back() != one.peer) reached.push_back(one.peer);
    }
    for (const Peer peer : reached) {
      if (const auto found = connections_.find(peer); found != connections_.end()) flush(peer, found->second);
    }
    for (const Peer peer : hang_ups) close(peer);
  }
}

// False: the connection was closed, because far too much waits for it.
bool HubServer::flush(Peer peer, Connection& connection) {
  connection.socket->flush();
  if (connection.socket->unsent_bytes() > kMostUnsent) {
    close(peer);
    return false;
  }
  watch(peer, connection, connection.socket->unsent_bytes() > 0);
  return true;
}

void HubServer::watch(Peer peer, Connection& connection, bool write) {
  if (connection.wants_write == write) return;
  connection.wants_write = write;
  if (!poller_.change(connection.descriptor(), peer, true, write).ok()) log_error("hub: cannot watch a connection");
}

void HubServer::close(Peer peer) {
  const auto found = connections_.find(peer);
  if (found == connections_.end()) return;
  poller_.remove(found->second.descriptor());
  connections_.erase(found);
  strangers_here_.erase(peer);
  roster_.closed(peer);
}

void HubServer::note_emptiness() {
  MutexLock lock(mutex_);
  if (empty_ == roster_.is_empty()) return;
  empty_ = roster_.is_empty();
  emptied_.notify_all();
}

void HubServer::say_farewell() {
  roster_.end();
  deliver();
  const Deadline deadline = Deadline::after_seconds(kFarewell_s);
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

Result<std::unique_ptr<Hub>> Hub::open(const HubOptions& options) {
  if (options.size < 1 || options.size > kMostRanks) {
    return Status(Code::invalid_argument, fmt::format("a hub of {} ranks makes no sense", options.size));
  }
  if (options.job_key.size() < 16) {
    return Status(Code::invalid_argument, "the hub needs a job key of at least 16 characters");
  }
  FDL_ASSIGN_OR_RETURN(auto door, HubDoor::open(options.address, options.interfaces, options.port_base));
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  FDL_ASSIGN_OR_RETURN(Event stop, Event::make());
  auto server = std::make_unique<HubServer>(options, std::move(door), std::move(poller), std::move(stop));
  FDL_RETURN_IF_ERROR(server->watch_door());
  FDL_RETURN_IF_ERROR(server->watch_stop());
  return std::unique_ptr<Hub>(std::move(server));
}

}  // namespace fdl
