// Hub door: where a hub listens, and what it must take away again when it closes.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "system/fd.h"

namespace fdl {

class HubDoor {
 public:
  // A rendezvous as world/rendezvous.h has it, or "unix" for a random name. Of a range of ports the first free one;
  // `port_base` where the rendezvous leaves the port open.
  static Result<std::unique_ptr<HubDoor>> open(const std::string& address, const std::string& interfaces = {},
                                               int port_base = 0);
  ~HubDoor();
  HubDoor(const HubDoor&) = delete;
  HubDoor& operator=(const HubDoor&) = delete;

  int fd() const { return fd_.get(); }
  // For ranks: how to come to this very door.
  const std::string& address() const { return address_; }
  // The user at the other end of a Unix connection is another one. Always false over TCP.
  static bool is_foreign(int connection);

 private:
  HubDoor() = default;

  UniqueFd fd_;
  std::string address_;
  std::string written_;      // what stands in the file, or where the name of this process leads
  std::string file_;         // removed at the end if it still says what was written
  std::string memory_name_;  // within this process
};

// Where memory://name leads: waits until a hub of this process has it.
Result<std::string> find_in_memory(const std::string& name, Deadline deadline);

}  // namespace fdl
