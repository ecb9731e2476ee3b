// ProgressToken changes its owner under one mutex, and wakes only the thread that must act.
#include "runtime/progress/progress_token.h"

#include <algorithm>

#include "base/check.h"
#include "runtime/progress/ordered_calls.h"

namespace fdl {

// ---- any thread ----

bool ProgressToken::post(Task task) {
  MutexLock lock(mutex_);
  if (closed_) return false;
  tasks_.push_back(std::move(task));
  has_tasks_.store(true, std::memory_order_relaxed);
  if (holder_ == Holder::none) {
    call_progress_thread();
  } else if (asleep_) {
    wake_owner();
  }
  return true;
}

void ProgressToken::stop() {
  MutexLock lock(mutex_);
  stopping_.store(true, std::memory_order_relaxed);
  call_progress_thread();
  if (asleep_) wake_owner();
}

void ProgressToken::call_progress_thread() {
  if (std::exchange(wanted_, true)) return;  // it has been notified, or finds wanted_ before it parks
  if (parked_) progress_thread_called_.notify_one();
}

void ProgressToken::wake_owner() {
  if (!rung_) event_.ring();
  rung_ = true;
}

// ---- callers ----

bool ProgressToken::try_take() {
  MutexLock lock(mutex_);
  return try_take_locked();
}

bool ProgressToken::try_take_locked() {
  if (closed_) return false;
  const bool from_sleeper = holder_ == Holder::progress_thread && asleep_;
  if (holder_ != Holder::none && !from_sleeper) return false;
  if (from_sleeper) {
    // The progress thread must leave the descriptors; otherwise every event of this thread's sleeps would wake it too.
    asleep_ = false;
    event_.ring();
  }
  holder_ = Holder::caller;
  wanted_ = false;  // the caller does the work that the progress thread was called for
  ++moves_;
  return true;
}

ProgressToken::Turn ProgressToken::wait_for_turn(Handle& handle, Deadline deadline) {
  Waiter me{.handle = &handle};
  {
    MutexLock lock(mutex_);
    if (try_take_locked()) return Turn::drive;
    line_.push_back(&me);
  }
  handle.wait(deadline, [&] { return me.has_turn.load(std::memory_order_acquire); });
  MutexLock lock(mutex_);
  if (me.has_turn.load(std::memory_order_relaxed)) return Turn::drive;
  std::erase(line_, &me);
  return handle.done() ? Turn::done : Turn::late;
}

// Skips waiters whose handle is done: they leave the line by themselves.
ProgressToken::Waiter* ProgressToken::next_in_line() {
  const auto next = std::find_if(line_.begin(), line_.end(), [](const Waiter* one) { return !one->handle->done(); });
  return next == line_.end() ? nullptr : *next;
}

bool ProgressToken::hand_to_next() {
  Waiter* next = next_in_line();
  if (next == nullptr) return false;
  std::erase(line_, next);
  holder_ = Holder::caller;
  ++moves_;
  next->has_turn.store(true, std::memory_order_release);
  next->handle->wake();
  return true;
}

void ProgressToken::give_back(bool undone) {
  MutexLock lock(mutex_);
  FDL_CHECK(holder_ == Holder::caller && !asleep_);
  if (hand_to_next()) return;
  holder_ = Holder::none;
  ++moves_;
  wanted_ = false;  // a call during the turn found the token taken, and must be repeated
  if (undone || !tasks_.empty() || stopping()) {
    call_progress_thread();
  } else if (long_turn_) {
    progress_thread_called_.notify_one();
  }
}

// ---- the progress thread ----

void ProgressToken::take_for_progress_thread() {
  // try_take() rang it to bring this thread here. No caller sleeps on it before parked_ is set, so no ring is lost.
  event_.clear();
  MutexLock lock(mutex_);
  parked_ = true;
  progress_thread_has_parked_.notify_all();
  uint64_t seen = moves_;
  const auto called = [&]() FDL_REQUIRES(mutex_) { return holder_ == Holder::none && (wanted_ || moves_ != seen); };
  const auto wanted = [&]() FDL_REQUIRES(mutex_) { return holder_ == Holder::none && wanted_; };
  // Each round waits for one grace period. It ends when this thread is called, or when the token was free throughout.
  // A caller that keeps the token for a whole period makes this thread wait without further timeouts.
  while (true) {
    if (long_turn_) {
      progress_thread_called_.wait(mutex_, Deadline::never(), called);
      long_turn_ = false;
      seen = moves_;
    }
    if (progress_thread_called_.wait(mutex_, Deadline::after_ns(kGraceNs), wanted)) break;
    if (holder_ == Holder::none && moves_ == seen) break;
    long_turn_ = holder_ == Holder::caller && moves_ == seen;
    seen = moves_;
  }
  holder_ = Holder::progress_thread;
  wanted_ = parked_ = false;
}

bool ProgressToken::pass_on() {
  MutexLock lock(mutex_);
  return hand_to_next();
}

std::vector<ProgressToken::Task> ProgressToken::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  holder_ = Holder::none;
  return std::exchange(tasks_, {});
}

// ---- the owner ----

void ProgressToken::take_tasks(std::vector<Task>& tasks) {
  MutexLock lock(mutex_);
  tasks.swap(tasks_);
  has_tasks_.store(false, std::memory_order_relaxed);
}

bool ProgressToken::begin_sleep() {
  MutexLock lock(mutex_);
  const auto busy = [&]() FDL_REQUIRES(mutex_) {
    return !tasks_.empty() || (holder_ == Holder::progress_thread && (stopping() || next_in_line() != nullptr));
  };
  if (busy()) return false;
  if (holder_ == Holder::caller) {
    // The progress thread may still be on its way from the descriptors, and would clear an event meant for this sleep.
    progress_thread_has_parked_.wait(mutex_, Deadline::never(), [&]() FDL_REQUIRES(mutex_) { return parked_; });
    if (busy()) return false;
  }
  asleep_ = true;
  rung_ = false;
  return true;
}

bool ProgressToken::end_sleep() {
  MutexLock lock(mutex_);
  if (!asleep_) return false;
  asleep_ = false;
  return true;
}

}  // namespace fdl
