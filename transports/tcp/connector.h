// TcpConnector makes connections between the ranks of a large world when they are first used. A communicator then has
// the connections that its schedules need, a few per doubling of the number of ranks, and none with the others.
//
// A process has one listener and one thread for all its communicators, so a rank that computes still answers calls: the
// first slice of a channel is sent as soon as there is a connection, whether or not the peer has begun its collective.
//
//   rank 5                                             rank 2
//   send() or recv() on a channel demands it
//   the thread calls the address of rank 2   ------>   its thread accepts
//   handshake with the key of the world      <----->
//                                            <------   one byte: taken, or has left
//   the connection arrives at the transport            the connection arrives at the transport
//
// Both ranks may call at once. The call of the higher rank is kept: it refuses the other one, and the lower rank gives
// up its own. A call for a communicator that the callee has not made yet waits until it has.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "contract/membership.h"
#include "contract/transport.h"
#include "system/event.h"
#include "transports/tcp/links.h"

namespace fdl {

// Ends a connection of a communicator that has ended.
void say_goodbye(const Membership& membership, int peer, TcpConnection connection);

// One communicator at the connector. All functions return at once.
class TcpEndpoint {
 public:
  // A connection that was demanded by this rank or by the peer, or the reason why there is none.
  struct Arrival {
    int peer = -1;
    int number = -1;  // see Assembly::connect()
    TcpConnection connection;
    Status failure;     // if not OK, there is no connection
    bool left = false;  // the peer has ended this communicator: that fails this connection only
  };

  // Asks for the connections of a channel.
  void demand(Channel channel);
  bool has_arrivals() const { return has_arrivals_.load(std::memory_order_acquire); }
  std::vector<Arrival> take();
  int fd() const { return event_.fd(); }  // readable while there are arrivals
  // Why the connector has ended by itself; OK while it makes connections. Streams without a connection then get none.
  // has_arrivals() is true once the connector has ended, and again after each later demand.
  Status ended();
  // Ends the communicator on this rank. Peers that call later get the answer that this rank has left.
  void close();

 private:
  friend class TcpConnector;
  TcpEndpoint(Membership membership, std::vector<int> streams, Event event);
  int connections_with(int member) const;
  void arrive(Arrival arrival);
  void end(const Status& why);

  std::weak_ptr<TcpConnector> connector_;
  std::weak_ptr<TcpEndpoint> self_;
  const Membership membership_;
  const std::vector<int> streams_;  // connections of a channel, by member
  const std::string name_;          // a digest of the communicator's id
  const Event event_;
  std::atomic<bool> has_arrivals_{false};
  Mutex mutex_;
  std::vector<Arrival> arrivals_ FDL_GUARDED_BY(mutex_);
  Status ended_ FDL_GUARDED_BY(mutex_);
  bool closed_ FDL_GUARDED_BY(mutex_) = false;
};

class TcpConnector {
 public:
  // Listens, publishes the addresses of `world`'s own rank in the exchange, and starts the thread. Later, the thread
  // fetches the addresses of ranks that it calls.
  static Result<std::shared_ptr<TcpConnector>> start(const Membership& world, std::unique_ptr<Exchange> exchange);
  ~TcpConnector();
  TcpConnector(const TcpConnector&) = delete;
  TcpConnector& operator=(const TcpConnector&) = delete;

  // Ends the thread, after which no connection is made any more. The exchange is not used afterwards.
  void stop();
  Result<std::shared_ptr<TcpEndpoint>> open(const Membership& membership, std::vector<int> streams);

 private:
  class Loop;
  friend class TcpEndpoint;
  struct Request {
    enum class Kind { open, demand, close } kind;
    std::shared_ptr<TcpEndpoint> endpoint;
    Channel channel = {};
  };
  explicit TcpConnector(std::unique_ptr<Exchange> exchange);
  void post(Request request);

  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Loop> loop_;
  std::weak_ptr<TcpConnector> self_;
  Mutex mutex_;
  std::vector<Request> requests_ FDL_GUARDED_BY(mutex_);
  bool stopped_ FDL_GUARDED_BY(mutex_) = false;
  Status failure_ FDL_GUARDED_BY(mutex_);  // an exception has ended the thread
  std::thread thread_;
};

}  // namespace fdl
