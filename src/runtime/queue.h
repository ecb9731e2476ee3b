// Queue: what other threads want of the loop; the only door between them.
#pragma once

#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "system/event.h"

namespace fdl {

class Queue {
 public:
  using Task = std::function<void()>;  // runs in the loop's thread

  explicit Queue(Event event) : event_(std::move(event)) {}

  // From any thread. False when the loop has ended: the task was not taken.
  bool push(Task task) {
    {
      MutexLock lock(mutex_);
      if (closed_) return false;
      tasks_.push_back(std::move(task));
    }
    // The mutex orders this with prepare_to_sleep: either the loop saw the task, or this thread sees that it sleeps.
    if (sleeping_.load(std::memory_order_relaxed)) event_.ring();
    return true;
  }

  // ---- the loop ----
  bool take(std::vector<Task>& tasks) {
    MutexLock lock(mutex_);
    tasks.swap(tasks_);
    return !tasks.empty();
  }
  int wake_fd() const { return event_.fd(); }
  bool prepare_to_sleep() {
    sleeping_.store(true, std::memory_order_relaxed);
    MutexLock lock(mutex_);
    return tasks_.empty();
  }
  void finish_sleep() {
    sleeping_.store(false, std::memory_order_relaxed);
    event_.clear();
  }
  // Nothing is taken any more; what is left is handed back.
  std::vector<Task> close() {
    MutexLock lock(mutex_);
    closed_ = true;
    return std::exchange(tasks_, {});
  }

 private:
  Event event_;
  std::atomic<bool> sleeping_{false};
  Mutex mutex_;
  std::vector<Task> tasks_ FDL_GUARDED_BY(mutex_);
  bool closed_ FDL_GUARDED_BY(mutex_) = false;
};

}  // namespace fdl
