// Mutex, MutexLock and CondVar carry annotations that clang's -Wthread-safety checks.
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/clock.h"

// gcc has no such analysis and ignores the annotations; the lint builds with clang.
#if defined(__clang__)
#define FDL_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define FDL_THREAD_ANNOTATION(x)
#endif
#define FDL_GUARDED_BY(x) FDL_THREAD_ANNOTATION(guarded_by(x))
#define FDL_REQUIRES(...) FDL_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define FDL_EXCLUDES(...) FDL_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

namespace fdl {

class FDL_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() FDL_THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  bool try_lock() FDL_THREAD_ANNOTATION(try_acquire_capability(true)) { return mutex_.try_lock(); }
  void unlock() FDL_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  // CondVar waits on the std::mutex itself: std::condition_variable accepts no other type.
  friend class CondVar;
  std::mutex mutex_;
};

// Locks for the rest of the scope. It cannot be unlocked before, so a guarded region is one block.
class FDL_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) FDL_THREAD_ANNOTATION(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() FDL_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable whose waits take a predicate: a spurious wake-up never returns to the caller.
class CondVar {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

  // Waits until `ready()` holds or the deadline passes; true if it holds. The mutex is held when it returns.
  template <typename Ready>
  bool wait(Mutex& mutex, Deadline deadline, Ready ready) FDL_REQUIRES(mutex) {
    // The caller owns the lock. `lock` only borrows it: also if ready() throws, the mutex stays locked.
    struct Borrowed : std::unique_lock<std::mutex> {
      using std::unique_lock<std::mutex>::unique_lock;
      ~Borrowed() { release(); }
    } lock(mutex.mutex_, std::adopt_lock);
    bool holds = true;
    if (deadline.is_never()) {
      condition_.wait(lock, ready);
    } else {
      // A deadline that has passed gives a wait of 0 ns, which still evaluates the predicate once.
      holds = condition_.wait_for(lock, std::chrono::nanoseconds(deadline.remaining_ns()), ready);
    }
    return holds;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace fdl
