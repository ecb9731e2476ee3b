// ShmCaller is a connection to the leader of a set-up. It proves the job's key, and then passes its descriptors.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "system/fd.h"
#include "system/handshake.h"
#include "system/poller.h"

namespace fdl {

struct ShmCaller {
  enum class Id { waits, complete, broken };
  // Receives what has come of the id of its doorbell, which precedes the descriptors.
  Id receive_id() {
    while (received < doorbell.size()) {
      if (!wait_readable(fd.get(), Deadline::at_ns(0))) return Id::waits;
      const ssize_t count = ::recv(fd.get(), &doorbell[received], doorbell.size() - received, MSG_DONTWAIT);
      if (count <= 0) return Id::broken;
      received += static_cast<std::size_t>(count);
    }
    return Id::complete;
  }

  UniqueFd fd;
  Introduction introduction;
  Deadline timeout;
  std::optional<std::size_t> index{};  // of the member, once it has proved the key
  std::array<std::byte, sizeof(uint64_t)> doorbell{};
  std::size_t received = 0;  // bytes of it
};

}  // namespace fdl
