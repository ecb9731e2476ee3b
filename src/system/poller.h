// Poller: an epoll set. It has a descriptor itself, so sets nest: one sleeper can wait for everything its parts wait
// for.
#pragma once

#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/status.h"
#include "system/fd.h"

namespace fdl {

class Poller {
 public:
  struct Ready {
    uint64_t token;
    bool readable;  // also set on error and hang-up, so that the reader meets them
    bool writable;
    bool hung_up;
  };

  static Result<Poller> make();

  int fd() const { return fd_.get(); }
  Status add(int fd, uint64_t token, bool want_read = true, bool want_write = false);
  Status change(int fd, uint64_t token, bool want_read, bool want_write) {
    return change(fd, token, want_read, want_write, want_read);
  }
  // `want_hang_up` alone wakes when the other end closes, and not on data. Errors wake always.
  Status change(int fd, uint64_t token, bool want_read, bool want_write, bool want_hang_up);
  void remove(int fd);

  // Fills `ready` and returns how many; 0 when the deadline has passed. A signal does not end the wait.
  // With an already passed deadline it only looks.
  std::size_t wait(std::span<Ready> ready, Deadline deadline);

 private:
  explicit Poller(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Sleeps until `fd` is readable or the deadline passes; true if readable.
bool wait_readable(int fd, Deadline deadline);
bool wait_writable(int fd, Deadline deadline);

}  // namespace fdl
