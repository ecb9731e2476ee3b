// NodePort listens on the leading node of an elastic job for the other nodes. It authenticates both ends of each
// connection by the job's key and collects the messages of all nodes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/coordinator/coordinator_listener.h"
#include "bootstrap/rendezvous/framed_socket.h"
#include "system/event.h"
#include "system/handshake.h"
#include "system/poller.h"

namespace fdl {

// Part of the authentication, so that a rank, which has the same key, cannot pass as a node.
inline constexpr std::string_view kNodePurpose = "node of an elastic job";

// Used by one thread; no method blocks.
class NodePort {
 public:
  using Peer = uint64_t;  // from 1 on
  struct Received {
    Peer peer;
    bool is_closed = false;  // the connection has ended; nothing follows from this peer
    bool has_ended = false;  // is_closed: the peer's system has closed it, not a network without answers
    CoordinatorMessage message{};
  };
  struct Options {
    std::string address;  // a rendezvous
    std::string interfaces{};
    int port_base = 0;
    std::string job_key;
    std::string name;  // of this node, shown by the nodes that connect
    double stranger_timeout_s = 5;
    double lost_after_s = 10;  // the longest outage of the network that connections survive
  };

  static Result<std::unique_ptr<NodePort>> open(const Options& options);

  int fd() const { return poller_.fd(); }  // readable: serve()
  const std::string& address() const { return listener_->address(); }

  void serve();
  std::vector<Received> take_received() { return std::exchange(received_, {}); }
  void send(Peer peer, const CoordinatorMessage& message);
  // Closes after all sent messages have gone out. No more messages of this peer are returned.
  void hang_up(Peer peer);
  bool is_empty() const { return connections_.empty(); }
  int64_t strangers() const { return strangers_; }

  Deadline next() const;
  void tick();

 private:
  struct Connection {
    UniqueFd fd;  // until authentication is complete; then `socket` owns it
    std::unique_ptr<Introduction> introduction;
    std::unique_ptr<FramedSocket> socket;
    bool has_sent_hello = false;  // false: a stranger
    bool is_closing = false;
    bool watches_write = false;
    Deadline timeout = Deadline::never();
  };

  NodePort(Options options, std::unique_ptr<CoordinatorListener> listener, Poller poller)
      : options_(std::move(options)), listener_(std::move(listener)), poller_(std::move(poller)) {}
  void accept_all();
  void serve_one(Peer peer);
  bool introduce(Peer peer, Connection& connection);
  void receive(Peer peer, Connection& connection);
  void flush(Peer peer);
  void close(Peer peer);
  void drop_stranger(Peer peer);
  std::size_t count_strangers() const;

  const Options options_;
  const std::unique_ptr<CoordinatorListener> listener_;
  Poller poller_;
  Peer next_peer_ = 1;
  std::map<Peer, Connection> connections_;
  std::vector<Received> received_;
  int64_t strangers_ = 0;
};

}  // namespace fdl
