// Waitable is an object that one thread drives with progress() and waits for while there is nothing to do, without
// polling.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "system/poller.h"

namespace fdl {

// What a thread that spins learns of the ranks that it waits for (engine/spin.h).
struct PeerActivity {
  // A rank that this object waits for was last seen on the processor of the caller: it can act only after the caller.
  bool on_this_processor = false;
  // The caller should leave the processor to one of them. Of ranks on one processor all but the lowest should.
  bool should_leave = false;
  // Since the previous call this object has woken a sleeping rank, which takes so long to wake up; 0: it has woken
  // none.
  int64_t wake_up_ns = 0;

  // That of several objects together.
  void add(const PeerActivity& other) {
    on_this_processor |= other.on_this_processor;
    should_leave |= other.should_leave;
    wake_up_ns = std::max(wake_up_ns, other.wake_up_ns);
  }
};

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
  // Also tells the peers on which processor the caller runs, so that they can find out the same. It costs a few cache
  // misses. Objects whose peers share no memory with this process know nothing.
  virtual PeerActivity peer_activity() { return {}; }

  // Sleeps until there may be something to do or the deadline passes.
  void sleep_until_ready(Deadline deadline) {
    if (prepare_to_sleep()) wait_readable(wake_fd(), deadline);
    finish_sleep();
  }
};

}  // namespace fdl
