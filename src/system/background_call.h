// BackgroundCall makes a call that may block in a thread of its own, so that the thread that drives goes on meanwhile.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/thread_role.h"
#include "system/event.h"
#include "system/thread.h"

namespace fdl {

// One call at a time. One thread drives the object: begin(), then take_end() until it is true. The calls are few, so
// each has a new thread.
class BackgroundCall {
 public:
  static Result<std::unique_ptr<BackgroundCall>> make() {
    FDL_ASSIGN_OR_RETURN(Event ended, Event::make());
    return std::unique_ptr<BackgroundCall>(new BackgroundCall(std::move(ended)));
  }
  // Waits for the call that runs.
  ~BackgroundCall() {
    if (thread_.joinable()) thread_.join();
  }
  BackgroundCall(const BackgroundCall&) = delete;
  BackgroundCall& operator=(const BackgroundCall&) = delete;

  void begin(std::function<void()> call) {
    FDL_CHECK(!thread_.joinable());
    runs_.store(true, std::memory_order_relaxed);
    thread_ = start_thread_without_signals([this, call = std::move(call)] {
      is_library_thread = true;
      call();
      runs_.store(false, std::memory_order_release);
      ended_.ring();
    });
  }
  // Whether the call has ended; what it wrote is visible then. True as well if none was begun.
  bool take_end() {
    if (!has_ended()) return false;
    if (thread_.joinable()) thread_.join();  // it has rung
    ended_.clear();
    return true;
  }
  bool has_ended() const { return !runs_.load(std::memory_order_acquire); }
  // Readable from the end of a call until take_end() is true.
  int fd() const { return ended_.fd(); }

 private:
  explicit BackgroundCall(Event ended) : ended_(std::move(ended)) {}

  const Event ended_;
  std::atomic<bool> runs_{false};
  std::thread thread_;  // uses the others
};

}  // namespace fdl
