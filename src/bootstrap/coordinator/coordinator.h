// Coordinator: the process that all ranks of a job connect to: it holds a store of small facts and the list of members,
// and detects failures.
//
// `farandole run` serves it, or rank 0 does. It takes no part in collectives. The thread that calls run() owns its
// event loop; all other functions may be called from any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"

namespace fdl {

struct CoordinatorOptions {
  int size = 1;
  std::string job_key;
  // A rendezvous (see bootstrap/rendezvous/rendezvous.h), or "unix" for a random abstract name. tcp: port 0 is any; a
  // loopback host is listened at alone, any other host means all interfaces.
  std::string address = "tcp://0.0.0.0:0";
  std::string interfaces;                   // of tcp: which ones' addresses are offered, as Config::interfaces
  int port_base = 0;                        // tcp without a port, and a file: listens here; 0: at any port
  std::vector<std::string> expected_hosts;  // by rank, where known: pods are named beside missing ranks
  double start_timeout_s = 30;              // then the ranks that arrived get the list of the missing ones
  std::size_t store_bytes = 256_MiB;        // of all that is published
  double lost_after_s = 1;                  // how long a probed rank may stay silent
  // How errors name the coordinator when it is lost: "rank 0 on host-a" or "farandole run on host-a".
  std::string server_name;
  // Whether the next job, once all ranks have left, begins in the same coordinator: a launcher's does, a rank's ends
  // with it.
  bool serves_again = false;
};

class Coordinator {
 public:
  static Result<std::unique_ptr<Coordinator>> open(const CoordinatorOptions& options);
  virtual ~Coordinator() = default;

  virtual std::string address() const = 0;  // to give to ranks as their rendezvous
  virtual void run() = 0;                   // serves until stop(); then announces its end to all members and returns
  virtual void stop() = 0;
  // Blocks until each rank that arrived has left or was lost; false when the deadline passes first. A rank that serves
  // the coordinator calls it before stop(). Needs run() in another thread.
  virtual bool wait_until_empty(Deadline deadline) = 0;
  virtual int64_t strangers() const = 0;  // connections refused: no key, garbage, oversized or truncated frames
};

}  // namespace fdl
