// Poller is an epoll set. It has a descriptor itself, so sets nest: one thread can wait for everything that its parts
// wait for.
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
    bool readable;  // also set on error and hang-up, so that the next read reports them
    bool writable;
    bool hung_up;
  };

  static Result<Poller> make();

  int fd() const { return fd_.get(); }
  Status add(int fd, uint64_t token, bool watch_read = true, bool watch_write = false);
  // Reports each time that `fd` becomes ready for reading, once, also where it is ready already.
  Status add_edges(int fd, uint64_t token);
  Status change(int fd, uint64_t token, bool watch_read, bool watch_write) {
    return change(fd, token, watch_read, watch_write, watch_read);
  }
  // `watch_hang_up` alone wakes when the other end closes, and not on data. Errors always wake.
  Status change(int fd, uint64_t token, bool watch_read, bool watch_write, bool watch_hang_up);
  void remove(int fd);

  // Fills `ready` and returns the number of entries; 0 if the deadline has passed. A signal does not end the wait. With
  // a deadline in the past it does not block.
  std::size_t wait(std::span<Ready> ready, Deadline deadline);

 private:
  explicit Poller(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Wait until `fd` is readable (writable) or the deadline passes; return whether it is.
bool wait_readable(int fd, Deadline deadline);
bool wait_writable(int fd, Deadline deadline);

}  // namespace fdl
