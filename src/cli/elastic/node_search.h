// NodeSearch looks for a node of an elastic job in a thread of its own, so that the supervisor handles signals
// meanwhile.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "system/event.h"
#include "system/handshake.h"

namespace fdl {

// The destructor stops the search and joins the thread; it may wait for one attempt.
class NodeSearch {
 public:
  struct Options {
    std::vector<std::string> targets;  // addresses, tried in this order
    std::string job_key;
    std::string mine;       // this node's name for the other end
    double timeout_s = 30;  // of the whole search; 0: each target is tried once
    double attempt_s = 1;   // of one target
  };
  // The result of the last attempt. `refused`: its host answers, but no process listens there. `dropped`: a process
  // that ends, or is overloaded, has closed the connection.
  enum class Outcome { answered, refused, dropped, silent };
  struct Result {
    Outcome outcome = Outcome::silent;
    std::size_t target = 0;  // index of the one that answered
    UniqueFd fd{};
    Introduced introduced{};
    Status failure{};
  };

  static fdl::Result<std::unique_ptr<NodeSearch>> start(Options options);
  ~NodeSearch();
  NodeSearch(const NodeSearch&) = delete;
  NodeSearch& operator=(const NodeSearch&) = delete;

  int fd() const { return found_.fd(); }  // readable when the search is over
  std::optional<Result> take();
  const std::vector<std::string>& targets() const { return options_.targets; }

 private:
  NodeSearch(Event found, Options options);
  Result search() const;
  Result attempt(const std::string& target, Deadline deadline) const;
  Result attempt_address(const std::string& address, Deadline deadline) const;

  const Options options_;
  Event found_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> is_over_{false};
  std::optional<Result> result_;  // written by the thread before is_over_ is set
  std::thread thread_;
};

}  // namespace fdl
