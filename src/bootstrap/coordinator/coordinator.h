// Coordinator is the server to which all ranks of a job connect. It holds a store of small facts and the list of
// members, and it detects failures.
//
// It runs in `farandole run` or in rank 0, and takes no part in collectives. The thread that calls run() owns its event
// loop; all other functions may be called from any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"

namespace fdl {

struct JobView;  // bootstrap/coordinator/job_view.h

struct CoordinatorOptions {
  int size = 1;
  std::string job_key;
  // A rendezvous (see bootstrap/rendezvous/rendezvous.h), or "unix" for a random abstract name. For tcp, port 0 means
  // any port. A loopback host restricts listening to that address; any other host means all interfaces.
  std::string address = "tcp://0.0.0.0:0";
  std::string interfaces;                   // of tcp: whose addresses are offered, as Config::interfaces
  int port_base = 0;                        // port for tcp without a port and for a file; 0: any port
  std::vector<std::string> expected_hosts;  // by rank, if known: named together with missing ranks
  double start_timeout_s = 30;        // from the first arrival; then the present ranks get the list of the missing
  std::size_t store_bytes = 256_MiB;  // limit of all published keys and values
  double silence_warning_s = 1;       // how long a probed rank may take to reply before all ranks are warned
  double lost_after_s = 10;           // and before it is lost
  // How errors name the coordinator when it is lost: "rank 0 on host-a" or "farandole run on host-a".
  std::string server_name;
  // Called in the thread in run() with the text of each stall that a rank reports; may be empty.
  std::function<void(const std::string& text)> on_stall;
  // Called in the thread in run() with the answer to query_states(), and to the query that follows the first report of
  // a stall; may be empty, then there is no such query.
  std::function<void(const JobView& view)> on_states;
  // Whether the coordinator serves another job after all ranks have left. That of a launcher does; that of a rank ends
  // with the rank.
  bool serves_again = false;
  // From how many present ranks on losses that follow each other closely are announced together. In a small job each
  // one is announced at once.
  int losses_together_from = 64;
  // Whether the listener closes as soon as all ranks have arrived: for an address that only the ranks get. The
  // connections stay open.
  bool closes_when_complete = false;
  // Not OK: the job cannot start, for this reason. Each rank that connects gets it.
  Status cannot_start;
};

class Coordinator {
 public:
  static Result<std::unique_ptr<Coordinator>> open(const CoordinatorOptions& options);
  virtual ~Coordinator() = default;

  virtual std::string address() const = 0;  // the rendezvous for the ranks
  // Serves until stop(). Then announces its end to all members, and serves on until each has read that or has left, for
  // as long as stop() grants.
  virtual void run() = 0;
  // The default is for a coordinator whose members are gone, or are to notice its end soon. Where members may be ending
  // themselves, FARANDOLE_LOST_AFTER_S gives a message the time that a slow or lossy network needs.
  static constexpr double kAnnounceEnd_s = 1;
  virtual void stop(double patience_s = kAnnounceEnd_s) = 0;
  // Blocks until each rank that arrived has left or was lost, and each rank has received the reason of a start that has
  // failed; returns false if the deadline passes first. A process that serves the coordinator calls it before stop().
  // run() must be active in another thread.
  virtual bool wait_until_empty(Deadline deadline) = 0;
  // Asks all ranks what they do; on_states gets the answer. From any thread; returns at once.
  virtual void query_states() = 0;
  // The process of a rank has ended, see JobMembership::process_ended(). From any thread; returns at once.
  virtual void note_ended(int rank, const Status& why) = 0;
  virtual int64_t strangers() const = 0;  // connections refused: no key, garbage, oversized or truncated frames
};

}  // namespace fdl
