// Hub: the one place of a job where ranks meet: a store of small facts, the list of members, and who is still alive.
//
// `farandole run` serves it, or rank 0 does. It is never in the path of a collective. Its loop belongs to whoever calls
// run(); everything else may be called from any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"

namespace fdl {

struct HubOptions {
  int size = 1;
  std::string job_key;
  // A rendezvous (see world/rendezvous.h), or "unix" for a random abstract name. tcp: port 0 is any; a loopback host is
  // listened at alone, any other host means all interfaces.
  std::string address = "tcp://0.0.0.0:0";
  std::string interfaces;                   // of tcp: which ones' addresses are offered, as Config::interfaces
  int port_base = 0;                        // tcp without a port, and a file: listens here; 0: at any port
  std::vector<std::string> expected_hosts;  // by rank, where known: who is missing is named with his pod
  double start_timeout_s = 30;              // then everybody who came is told who is missing
  std::size_t store_bytes = 256_MiB;        // of all that is published
  double lost_after_s = 1;                  // how long a probed rank may stay silent
  // What ranks are told when the hub itself goes: "rank 0 on host-a" or "farandole run on host-a".
  std::string server_name;
  // Whether the next job, once all ranks have left, begins in the same hub: a launcher's does, a rank's ends with it.
  bool serves_again = false;
};

class Hub {
 public:
  static Result<std::unique_ptr<Hub>> open(const HubOptions& options);
  virtual ~Hub() = default;

  virtual std::string address() const = 0;  // to give to ranks as their rendezvous
  virtual void run() = 0;                   // serves until stop(); then tells everybody and returns
  virtual void stop() = 0;
  // Until every rank that came has left or was lost: who serves the hub beside being a rank stops it only then. Needs
  // run() in another thread. False when the deadline passed.
  virtual bool wait_until_empty(Deadline deadline) = 0;
  virtual int64_t strangers() const = 0;  // connections refused: no key, garbage, oversized or truncated frames
};

}  // namespace fdl
