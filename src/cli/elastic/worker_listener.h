// WorkerListener accepts the workers of this node and exchanges lines with them over an abstract Unix socket, which
// admits only processes of the same user.
//
// A worker requests a generation:
//     join WORKER RANK      RANK: the rank whose loss it detected, or -1
// It gets one of these lines when all workers have requested it:
//     world GENERATION RANK SIZE LOCAL_RANK LOCAL_SIZE RENDEZVOUS    or    removed    or    end WHY
// While it waits, it sends `ping` and gets `pong`: a launcher that is stopped closes no connection.
// It gets `hosts added` or `hosts removed` when a new generation is needed although nothing failed.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/coordinator/coordinator_listener.h"
#include "system/poller.h"

namespace fdl {

class WorkerListener {
 public:
  struct Request {
    int worker;
    int lost_rank;             // whose loss it has observed; -1: none
    bool lacks_state = false;  // it has left its generation before it had the state
  };

  static Result<std::unique_ptr<WorkerListener>> open();

  int fd() const { return poller_.fd(); }  // readable: serve()
  const std::string& address() const { return listener_->address(); }

  // Only expected workers may connect, each with one connection.
  void expect(int worker) { expected_.insert(worker); }
  void forget(int worker) { expected_.erase(worker); }
  void serve();
  std::vector<Request> take_requests() { return std::exchange(requests_, {}); }
  void send_line(int worker, const std::string& line);

  Deadline next() const { return accept_again_; }
  void tick();

 private:
  struct Connection {
    UniqueFd fd;
    int worker = -1;
    std::string unread;
  };

  WorkerListener(std::unique_ptr<CoordinatorListener> listener, Poller poller)
      : listener_(std::move(listener)), poller_(std::move(poller)) {}
  void accept_all();
  void receive(uint64_t token);
  static void send(const Connection& connection, const std::string& line);
  bool handle_line(Connection& connection, const std::string& line);

  const std::unique_ptr<CoordinatorListener> listener_;
  Poller poller_;
  std::set<int> expected_;
  uint64_t next_token_ = 1;
  std::map<uint64_t, Connection> connections_;
  std::vector<Request> requests_;
  Deadline accept_again_ = Deadline::never();
};

}  // namespace fdl
