// WorkerGroup is the supervisor's interface to an elastic job: it orders which ranks start here and gets their ends.
// ElasticJob and ElasticMember implement it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "system/poller.h"
#include "system/process/process.h"

namespace fdl {

// Used by the supervisor's thread alone; no method blocks.
class WorkerGroup {
 public:
  // An order to the supervisor. `worker` is the index of a child of this supervisor, in order of their start.
  struct Action {
    enum class Kind { start, rename, kill, give_up, drain };
    // A kill of a worker whatever it does, or only if a signal has stopped it: now, or for lost_after_s. The numbers
    // are those of messages between nodes.
    enum class When { always = 0, stopped = 1, stopped_long = 2 };
    Kind kind;
    int worker = -1;                                 // start: the number of children started before it
    int rank = -1;                                   // start, rename: the number that prefixes its output
    int exit_code = 0;                               // give_up, drain; drain sends SIGTERM and gives time to save
    When when = When::always;                        // kill
    std::string text{};                              // give_up, drain
    std::map<std::string, std::string> variables{};  // start
  };

  virtual ~WorkerGroup() = default;

  // The tokens from `first_token` on belong to this object.
  virtual Status watch(Poller& poller, uint64_t first_token) = 0;
  virtual void serve(uint64_t token) = 0;

  virtual bool ended(int worker, const Ending& ending) = 0;  // true: the end is a loss
  // This launcher was terminated: no more ranks are started.
  virtual void stop(const std::string& why) = 0;

  // Asks all ranks what they do; CoordinatorOptions::on_states gets the answer. False: no coordinator runs here.
  virtual bool query_states() { return false; }

  virtual Deadline next() const = 0;
  virtual void tick() = 0;
  virtual std::vector<Action> take_actions() = 0;
  // True while ranks may still be started although none runs here.
  virtual bool stays() const { return false; }
  // Whether it stays although the job has ended well. A request to end then only shortens that.
  virtual bool has_succeeded() const { return false; }
};

}  // namespace fdl
