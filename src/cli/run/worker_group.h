// WorkerGroup: who says whom the supervisor of this node starts, and hears how they end: ElasticJob, ElasticMember.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "system/poller.h"
#include "system/process.h"

namespace fdl {

class WorkerGroup {
 public:
  // What the supervisor is to do. `worker` counts those that this supervisor has started.
  struct Action {
    enum class Kind { start, rename, kill, give_up, drain };
    Kind kind;
    int worker = -1;                                 // start: the count of those started before it
    int rank = -1;                                   // start, rename: under which number it speaks
    int exit_code = 0;                               // give_up, drain: ranks get SIGTERM, and time to save
    std::string text{};                              // give_up, drain
    std::map<std::string, std::string> variables{};  // start
  };

  virtual ~WorkerGroup() = default;

  // The tokens from `first_token` on belong to this object.
  virtual Status watch(Poller& poller, uint64_t first_token) = 0;
  virtual void serve(uint64_t token) = 0;

  virtual bool ended(int worker, const Ending& ending) = 0;  // false: that is no loss
  // This launcher was told to end: nobody is started any more.
  virtual void stop(const std::string& why) = 0;

  virtual Deadline next() const = 0;
  virtual void tick() = 0;
  virtual std::vector<Action> take_actions() = 0;
  // Though no rank runs here, some may be started yet.
  virtual bool stays() const { return false; }
};

}  // namespace fdl
