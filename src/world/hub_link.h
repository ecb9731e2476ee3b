// HubLink: a rank's end of its connection to the hub.
//
// One thread (the runtime's loop) drives it: when fd() is readable (or wants_write()), it calls progress(). The store
// calls and the reports may come from any thread and rely on that thread being there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "contract/membership.h"
#include "world/terms.h"

namespace fdl {

struct HubEvent {
  enum class Kind {
    lost,         // `rank` is gone for good: `why` is the same text on every rank
    left,         // `rank` said good-bye
    comm_failed,  // `comm` failed somewhere: `why` is the same on every rank
    hub_lost,     // the hub itself is gone; `why` names who served it
    asked,        // `rank` asks how far this one is with `comm`: tell()
    told,         // `rank` answers `question`
  };
  Kind kind = Kind::lost;
  int rank = -1;
  std::string comm;
  Status why;
  uint64_t question = 0;
  int64_t begun = -1;    // collectives on devices that were called there; -1: there is no such communicator
  bool waiting = false;  // some of them have not run
};

class HubLink {
 public:
  struct Hello {
    int rank = 0;
    int size = 1;
    std::string host_name;
    std::string boot_id;
    int process_id = 0;
    std::vector<Term> terms{};  // what this rank must have as all others; the hub compares, and tells nobody
    int numa_node = -1;
  };

  // Finds the hub (retrying until it is there), proves the key, says hello. A second process that claims the same rank
  // is refused, naming both. Blocking.
  static Result<std::unique_ptr<HubLink>> connect(const std::string& rendezvous, const std::string& job_key,
                                                  const Hello& hello, Deadline deadline);
  virtual ~HubLink() = default;

  // ---- the driving thread ----
  // Readable when progress() has something to do: it nests the socket and the wake-ups of senders.
  virtual int wake_fd() const = 0;
  // Answers pings, delivers replies, sends what did not fit before. A rank that does not call it is taken for dead.
  virtual void progress() = 0;
  virtual std::vector<HubEvent> take_events() = 0;

  // ---- any thread; blocking until the reply ----
  // Waits until all ranks said hello; else TIMEOUT, "ranks 2 and 5 of 8 have not arrived after 30 s".
  virtual Result<std::vector<Hello>> wait_for_all(Deadline deadline) = 0;
  virtual Status publish(std::string_view key, std::string_view value) = 0;
  virtual Result<std::string> fetch(std::string_view key, Deadline deadline) = 0;
  // The same, and it fails as soon as one of these ranks, who alone can publish it, is lost or has left.
  virtual Result<std::string> fetch_from(const std::vector<int>& world_ranks, std::string_view key,
                                         Deadline deadline) = 0;
  // ---- any thread; returns at once ----
  // Ask whether these ranks are alive; silence of lost_after_s becomes a `lost` event everywhere.
  virtual void probe(const std::vector<int>& world_ranks) = 0;
  // A communicator failed here. The hub finds the culprit (dead? left? alive but unreachable?) and tells all ranks the
  // same.
  virtual void report(const std::string& comm, const Status& why) = 0;
  // Asks these ranks how far they are with a communicator: each answers with `told`, also one that has left, unless
  // another rank asks the same already, and goes on to: then nobody answers. That this one goes on to ask is taken for
  // granted for `patience_ns`.
  virtual void ask(const std::string& comm, uint64_t question, const std::vector<int>& world_ranks,
                   int64_t patience_ns) = 0;
  virtual void tell(const HubEvent& asked, int64_t begun, bool waiting) = 0;
  // Good-bye: closing is no loss any more.
  virtual void leave() = 0;
};

}  // namespace fdl
