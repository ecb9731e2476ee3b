// CoordinatorClient is a rank's end of its connection to the coordinator.
//
// One thread (the runtime's progress thread) drives it: it calls progress() when wake_fd() is readable. The store calls
// and the reports may come from any thread; they need the driving thread to make progress.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/coordinator/compatibility.h"
#include "bootstrap/coordinator/rank_state.h"
#include "bootstrap/coordinator/setup_watch.h"
#include "contract/membership.h"
#include "contract/transport.h"

namespace fdl {

struct CoordinatorEvent {
  enum class Kind {
    lost,              // `rank` is lost for good; `why` is the same text on every rank
    left,              // `rank` has left in good order
    comm_failed,       // `comm` failed on some rank; `why` is the same on every rank
    coordinator_lost,  // the connection to the coordinator ended; `why` names the process that served it
    progress_query,    // `rank` queries this rank's progress with `comm`; answer with reply_progress()
    progress_reply,    // `rank` has answered `query`
    silent,            // `rank` (-1: the coordinator) does not answer; `why` is a warning for the log
    answers_again,     // the silence has ended; `why` likewise
    stalled,           // `why`: operations of `comm` wait for ranks; `rank` has reported it, with some of their names
    state_query,       // a user asks what this rank does; answer `query` with reply_state()
    sends_query,       // `rank` asks how many slices of `comm` this rank has sent to it; answer with reply_sends()
    sends_reply,       // `rank` has sent `sent` slices of `comm` to this rank
  };
  Kind kind = Kind::lost;
  int rank = -1;
  std::string comm;
  Status why;
  uint64_t query = 0;
  bool with_stacks = false;  // a state_query asks for the stacks of this rank's threads too
  int64_t begun = -1;        // collectives on devices that `rank` has called; -1: it has no such communicator
  bool waiting = false;      // some of them have not run yet
  SliceCounts sent{};
  std::vector<std::string> names{};
};

class CoordinatorClient {
 public:
  struct Hello {
    int rank = 0;
    int size = 1;
    std::string host_name;
    std::string boot_id;
    int process_id = 0;
    // Settings that must be equal on all ranks. The coordinator compares them and sends them to no rank.
    std::vector<CompatibilitySetting> settings{};
    int numa_node = -1;
    int8_t efa = 0;          // an EfaAnswer
    std::string recovery{};  // the addresses of its recovery listener; see bootstrap/recovery/recovery_point.h
    // Of rank 0: random bytes for the session key of this world. The coordinator passes them on to all ranks.
    std::string salt{};
    std::string location{};  // of its host in the network, see bootstrap/topology/location.h; empty: not known
  };

  // When a coordinator that does not answer is reported, and lost; and how often a waiting rank queries it.
  struct Limits {
    double silence_warning_s = 1;
    double lost_after_s = 10;
    double suspect_after_s = 0.4;
  };

  // Finds the coordinator (with retries until the deadline), runs the handshake and sends the hello. Blocks. If a
  // second process claims the same rank, the coordinator refuses it with an error that names both.
  static Result<std::unique_ptr<CoordinatorClient>> connect(const std::string& rendezvous, const std::string& job_key,
                                                            const Hello& hello, Deadline deadline,
                                                            const Limits& limits);
  static Result<std::unique_ptr<CoordinatorClient>> connect(const std::string& rendezvous, const std::string& job_key,
                                                            const Hello& hello, Deadline deadline) {
    return connect(rendezvous, job_key, hello, deadline, Limits());
  }
  virtual ~CoordinatorClient() = default;

  // ---- the driving thread ----
  // Readable when progress() has work to do. It is an epoll set of the socket and the wake-ups of senders.
  virtual int wake_fd() const = 0;
  // Answers pings, delivers replies, and sends what the socket did not accept before. A rank that does not call it is
  // declared lost after the next probe.
  virtual void progress() = 0;
  virtual std::vector<CoordinatorEvent> take_events() = 0;
  // The ranks that are lost, from any thread; not those that have left.
  virtual std::vector<int> lost_ranks() = 0;

  // ---- any thread; blocking until the reply ----
  // Waits until all ranks have arrived; else fails with TIMEOUT, "ranks 2 and 5 of 8 have not arrived after 30 s".
  virtual Result<std::vector<Hello>> wait_for_all(Deadline deadline) = 0;
  Status publish(std::string_view key, std::string_view value) { return publish_for(0, key, value); }
  // The same, of a fact that is dropped after `readers` reads; 0: it stays.
  virtual Status publish_for(int readers, std::string_view key, std::string_view value) = 0;
  virtual Result<std::string> fetch(std::string_view key, Deadline deadline) = 0;
  // Fetches the values of the keys prefix + rank, one for each of these ranks, as one request. At the deadline the
  // values that are there are returned.
  virtual Result<ManyFacts> fetch_many(std::string_view prefix, const std::vector<int>& ranks, Deadline deadline) = 0;
  // The same, for a key that only these ranks can publish: fails as soon as one of them is lost or has left.
  virtual Result<std::string> fetch_from(const std::vector<int>& world_ranks, std::string_view key,
                                         Deadline deadline) = 0;
  // ---- any thread; returns at once ----
  // Makes the coordinator ping these ranks. A rank that does not reply causes a `silent` event on all ranks after
  // silence_warning_s, and a `lost` event after lost_after_s. The coordinator itself must answer within the same times;
  // therefore a rank that waits calls this again every suspect_after_s, also with no ranks.
  virtual void probe(const std::vector<int>& world_ranks) = 0;
  // Watches these ranks, the coordinator and the failure decision on `comm` while something is set up with them. The
  // watch ends with the last pointer.
  virtual Result<std::shared_ptr<SetupWatch>> watch(const std::vector<int>& world_ranks,
                                                    const std::string& comm = {}) = 0;
  // Fires all watches, and each later one when it is made: this rank ends its world, and no set-up of it goes on.
  virtual void end_set_ups(const Status& why) = 0;
  // Calls probe() for the ranks of all watches if it is time to. Returns the time of the next call; INT64_MAX if there
  // is no watch, no request without a reply and no report without a decision.
  virtual int64_t probe_watched(int64_t now_ns) = 0;
  // Whether the coordinator has not answered a probe of this rank yet.
  virtual bool has_open_probe() = 0;
  // Reports that a communicator failed on this rank. The coordinator checks the reported rank (lost, left, or alive but
  // unreachable) and sends one failure decision to all ranks. Until it arrives, probe_watched() probes the coordinator:
  // a rank that leaves because the coordinator is silent must not be taken for the cause.
  virtual void report(const std::string& comm, const Status& why) = 0;
  // The same, of a set-up. If it was not complete in time, the coordinator asks all its ranks whether they have begun
  // it. If some have not, they are the decision: a TIMEOUT that names them and no other rank.
  virtual void report(const SetupWatch& set_up, const Status& why) = 0;
  // Queries how many collectives of a communicator these ranks have begun. Each answer is a `progress_reply` event,
  // also for a rank that has left. While another rank's query about the same communicator is valid, this one gets no
  // answers. A query is valid for `timeout_ns`; the rank must repeat it before then.
  virtual void query_progress(const std::string& comm, uint64_t query, const std::vector<int>& world_ranks,
                              int64_t timeout_ns) = 0;
  virtual void reply_progress(const CoordinatorEvent& query, int64_t begun, bool waiting) = 0;
  // Asks these ranks how many slices of a communicator they have sent to this one. Each answer is a `sends_reply`
  // event; the coordinator answers for ranks that are gone.
  virtual void query_sends(const std::string& comm, const std::vector<int>& world_ranks) = 0;
  virtual void reply_sends(const CoordinatorEvent& query, const SliceCounts& sent) = 0;
  // Answers a state_query.
  virtual void reply_state(uint64_t query, const RankState& state) = 0;
  // Reports that operations of a communicator wait for other ranks. All ranks, this one included, get a `stalled`
  // event, and the coordinator's process gets the text too. If several ranks report the stall of one communicator, only
  // the reports of the first one are passed on, for `valid_ns`. Of many names the first kMostStallNames bytes are sent.
  virtual void report_stall(const std::string& comm, const std::string& text, const std::vector<std::string>& names,
                            int64_t valid_ns) = 0;
  // Announces that this rank leaves: closing the connection is then not a loss, once the message has arrived. Requests
  // that wait for a reply end with SHUT_DOWN.
  virtual void leave() = 0;

  // ---- after leave(), when no thread drives any more ----
  // Drives the connection until the coordinator has confirmed the leave message, or has ended itself. Returns false if
  // the deadline passes first. A process that ends before may take the message with it: packets that were lost are not
  // sent again once the connection is reset, and the other ranks are then told that this rank was lost.
  virtual bool wait_until_left(Deadline deadline) = 0;
};

// Why a rank is gone that has left in good order: the same text on all ranks.
Status departure_of(int rank, const std::string& host_name);
// The end of a rank within this time after a failure may be its consequence.
inline constexpr int64_t kShortlyAfter_ns = 10'000'000'000;
// Why a rank is gone, with the failure of a communicator that came shortly before.
Status with_failure_before(const Status& why, const std::string& comm, const Status& failure);

// "rank 3 on host-b (process 4711)".
std::string process_name(const CoordinatorClient::Hello& hello);

// The warning about a process that does not answer.
Status silence_warning(const std::string& name, bool are_several, double silence_warning_s, double lost_after_s);

}  // namespace fdl
