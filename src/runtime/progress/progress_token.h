// ProgressToken: which thread drives a world, one at a time, and what the others want of it; the only door between
// them.
//
// The loop's thread has it unless a caller that waits for an outcome has taken it: when nobody had it, or from the
// loop's thread in its sleep. Whoever comes while somebody drives waits in line, and inherits it.
//
// A caller that leaves nothing undone just lets it go, which costs no system call. The loop's thread, which is parked
// meanwhile, picks it up when it has lain untouched for a while (kGraceNs): calls in quick succession cost no switch
// between threads, and an idle world sleeps in one place, for as long as nothing happens.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "base/mutex.h"
#include "runtime/named/bucket_run.h"
#include "runtime/named/handle.h"
#include "system/event.h"

namespace fdl {

class Group;

class ProgressToken {
 public:
  // For the driver: entries to submit to a group, or a function to call.
  struct Task {
    Group* group = nullptr;
    std::vector<Entry> entries;
    std::function<void()> call;
  };
  enum class Turn {
    drive,  // the thread has the baton, and gives it back
    done,   // the handle is done
    late,   // the deadline has passed
  };
  static constexpr int64_t kGraceNs = 1'000'000;

  explicit ProgressToken(Event event) : event_(std::move(event)) {}

  // ---- any thread ----
  // Whoever drives, now or next, will take it. False when the loop has ended: the task was not taken.
  bool post(Task task);
  // The loop's thread is to end as soon as it has the baton.
  void stop();

  // ---- callers ----
  // True: it is this thread's, which gives it back. False: somebody is awake and drives, or the loop has ended.
  bool try_take();
  Turn wait_for_turn(Handle& handle, Deadline deadline);
  // To the next in line; else to the loop's thread, at once if anything is `undone`.
  void give_back(bool undone);

  // ---- the loop's thread ----
  // Parks until it has the baton: because it is wanted, or because nobody has used it for a while.
  void take_for_progress_thread();
  // Before it sleeps: true if somebody in line has it now.
  bool pass_on();
  // No task is taken any more; what is left is handed back.
  std::vector<Task> close();
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }

  // ---- whoever drives ----
  bool has_tasks() const { return has_tasks_.load(std::memory_order_relaxed); }
  void take_tasks(std::vector<Task>& tasks);
  // Readable when a sleeper is to wake up. A sleeper that sees it readable clears it.
  int wake_fd() const { return event_.fd(); }
  void clear_wake() const { event_.clear(); }
  // The last step before a sleep: false when there is something to do at once.
  bool begin_sleep();
  // False: the baton was taken from the loop's thread in its sleep.
  bool end_sleep();

 private:
  enum class Holder { nobody, loop, caller };
  struct Waiter {
    Handle* handle;
    std::atomic<bool> has_turn{false};
  };

  bool try_take_locked() FDL_REQUIRES(mutex_);
  Waiter* next_in_line() FDL_REQUIRES(mutex_);
  bool hand_to_next() FDL_REQUIRES(mutex_);
  void call_progress_thread() FDL_REQUIRES(mutex_);
  void wake_waiter() FDL_REQUIRES(mutex_);

  Event event_;
  std::atomic<bool> has_tasks_{false};
  std::atomic<bool> stopping_{false};

  Mutex mutex_;
  CondVar progress_thread_called_;
  CondVar progress_thread_has_parked_;
  Holder holder_ FDL_GUARDED_BY(mutex_) = Holder::nobody;
  bool asleep_ FDL_GUARDED_BY(mutex_) = false;     // the holder sleeps on the descriptors
  bool rung_ FDL_GUARDED_BY(mutex_) = false;       // and has been rung
  bool parked_ FDL_GUARDED_BY(mutex_) = false;     // the loop's thread is far from the descriptors
  bool wanted_ FDL_GUARDED_BY(mutex_) = false;     // the loop's thread is to take it when nobody has it
  bool long_turn_ FDL_GUARDED_BY(mutex_) = false;  // a caller has it for long, and tells when it is done
  bool closed_ FDL_GUARDED_BY(mutex_) = false;
  uint64_t moves_ FDL_GUARDED_BY(mutex_) = 0;  // how often callers took it or gave it back
  std::vector<Waiter*> line_ FDL_GUARDED_BY(mutex_);
  std::vector<Task> tasks_ FDL_GUARDED_BY(mutex_);
};

}  // namespace fdl
