// CoordinatorListener owns the socket on which a coordinator listens, and the file or name to remove when it closes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/rendezvous/rendezvous_file.h"
#include "system/fd.h"
#include "system/poller.h"

namespace fdl {

class CoordinatorListener {
 public:
  // Listens at a rendezvous (see bootstrap/rendezvous/rendezvous.h), or at a random name for "unix". Of a range of
  // ports it takes the first free one. `port_base` is used if the rendezvous leaves the port open.
  static Result<std::unique_ptr<CoordinatorListener>> open(const std::string& address,
                                                           const std::string& interfaces = {}, int port_base = 0);
  ~CoordinatorListener();
  CoordinatorListener(const CoordinatorListener&) = delete;
  CoordinatorListener& operator=(const CoordinatorListener&) = delete;

  int fd() const { return fd_.get(); }
  // The rendezvous text with which ranks reach this listener.
  const std::string& address() const { return address_; }

  // ---- The thread that accepts ----
  // Adds the listener to the poller.
  Status watch(Poller& poller, uint64_t token);
  // Returns a pending connection, or an empty descriptor if none is left. If descriptors or memory are short,
  // connections stay in the kernel's queue and keep the listener readable; it therefore leaves the poller until
  // resume(). `server` begins the warning, of which there is one for each shortage.
  UniqueFd accept(Poller& poller, std::string_view server);
  // Why all attempts to accept a connection have failed for longer than a moment; OK otherwise.
  Status lasting_shortage() const;
  // When resume() is due; never if the listener is watched.
  Deadline pause_ends() const { return pause_ends_; }
  // Watches the listener again after a pause.
  void resume(Poller& poller);
  // Ends listening for good; address() stays.
  void close(Poller& poller);

 private:
  CoordinatorListener() = default;

  UniqueFd fd_;
  std::string address_;
  std::unique_ptr<RendezvousFile> file_;  // null unless the rendezvous is a file
  std::string memory_name_;               // within this process
  uint64_t token_ = 0;                    // in the poller
  Deadline pause_ends_ = Deadline::never();
  Status shortage_;  // of the last attempt to accept a connection
  Deadline shortage_lasts_ = Deadline::never();
};

// Returns the address registered under memory://name. Waits until a coordinator of this process has registered it.
Result<std::string> find_in_memory(const std::string& name, Deadline deadline);

}  // namespace fdl
