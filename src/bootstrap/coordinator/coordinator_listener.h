// CoordinatorListener: the socket at which a coordinator listens, and the files and names to remove when it closes.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "system/fd.h"

namespace fdl {

class CoordinatorListener {
 public:
  // A rendezvous as bootstrap/rendezvous/rendezvous.h has it, or "unix" for a random name. Of a range of ports the
  // first free one; `port_base` where the rendezvous leaves the port open.
  static Result<std::unique_ptr<CoordinatorListener>> open(const std::string& address,
                                                           const std::string& interfaces = {}, int port_base = 0);
  ~CoordinatorListener();
  CoordinatorListener(const CoordinatorListener&) = delete;
  CoordinatorListener& operator=(const CoordinatorListener&) = delete;

  int fd() const { return fd_.get(); }
  // The rendezvous text with which ranks reach this listener.
  const std::string& address() const { return address_; }
  // Whether the peer of a Unix connection runs as another user. Always false over TCP.
  static bool is_foreign(int connection);

 private:
  CoordinatorListener() = default;

  UniqueFd fd_;
  std::string address_;
  std::string written_;      // the content of the file, or the address registered under the name in this process
  std::string file_;         // removed at the end if it still says what was written
  std::string memory_name_;  // within this process
};

// The address registered under memory://name; waits until a coordinator of this process has registered it.
Result<std::string> find_in_memory(const std::string& name, Deadline deadline);

}  // namespace fdl
