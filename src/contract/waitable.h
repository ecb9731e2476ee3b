// Waitable is an object that one thread drives with progress() and waits for while there is nothing to do, without
// polling.
#pragma once

#include "base/clock.h"
#include "system/poller.h"

namespace fdl {

// How to sleep:   if (x.prepare_to_sleep()) { poll x.wake_fd() for reading ... }   x.finish_sleep();   then progress().
// prepare_to_sleep() announces the sleep to the peers and then checks once more: false means that there is work to do
// at once. While a sleep is announced, every event that makes progress() useful (data, a free buffer, a peer's death,
// interrupt()) makes wake_fd() readable. wake_fd() can be part of an epoll set and stays the same for the object's
// life.
class Waitable {
 public:
  virtual ~Waitable() = default;
  virtual int wake_fd() const = 0;
  virtual bool prepare_to_sleep() = 0;
  virtual void finish_sleep() = 0;

  // Sleeps until there may be something to do or the deadline passes.
  void sleep_until_ready(Deadline deadline) {
    if (prepare_to_sleep()) wait_readable(wake_fd(), deadline);
    finish_sleep();
  }
};

}  // namespace fdl
