// NodeSearch looks for a node of an elastic job in a thread of its own, so that the supervisor handles signals
// meanwhile.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
    // Places, tried in this order. A name that stands for all nodes (dns://) is replaced by its addresses, each of
    // which is a place, without this node's own.
    std::vector<std::string> targets;
    std::string job_key;
    std::string mine;       // this node's name for the other end
    double timeout_s = 30;  // of the whole search; 0: each place is tried once
    double attempt_s = 1;   // of one place
    // Addresses at which this node listens. They are never tried: the list of another node's addresses may have some
    // that every host has, such as loopback's, and this node would answer for the other one.
    std::set<std::string> own{};
    std::set<std::string> asked{};  // places that are tried after the others
    bool skips_asked = false;       // `asked` are not tried
  };
  // The result of the last attempt. `refused`: its host answers, but no process listens there. `absent`: its name has
  // no address. `dropped`: a process that ends, or is overloaded, has closed the connection.
  enum class Outcome { answered, refused, absent, dropped, silent };
  struct Result {
    Outcome outcome = Outcome::silent;
    std::string place{};                     // the one that answered
    std::map<std::string, Outcome> tried{};  // in the last round
    // A name that stands for all nodes had an address of this node in the last round: a record as young as itself.
    bool is_named = true;
    std::vector<std::string> named{};  // all places that such a name has, this node's too
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

 private:
  NodeSearch(Event found, Options options);
  struct Round {
    std::vector<std::string> places;
    Result result;
    std::string failures;
  };
  Result search() const;
  Round begin_round() const;
  void add_named(const std::string& target, Round& round) const;
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
