// Event is an eventfd. One thread rings it, and another waits for it, alone or in an epoll set.
#pragma once

#include "base/status.h"
#include "system/fd.h"

namespace fdl {

// Any thread or process that has the descriptor may ring it. The waiting thread must call clear() before it checks for
// work: a ring after the check then makes the descriptor readable again and is not lost.
class Event {
 public:
  static Result<Event> make();
  // Adopts an eventfd that another process made and passed over a Unix socket.
  explicit Event(UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  void ring() const;   // async-signal-safe, never blocks
  void clear() const;  // discards all rings so far

 private:
  UniqueFd fd_;
};

}  // namespace fdl
