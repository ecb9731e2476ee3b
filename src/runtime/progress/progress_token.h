// ProgressToken passes the right to drive a world from thread to thread; exactly one thread owns it at a time. Threads
// that do not own it post tasks to the owner here.
//
// The progress thread owns the token unless a caller that waits for an outcome has taken it. A caller can take it when
// it is free, or from the progress thread while that thread sleeps. A caller that arrives while another thread drives
// waits in line, and inherits the token.
//
// A caller that leaves no work undone only releases the token, which costs no system call. The progress thread, which
// is parked meanwhile, takes the token once it has been free and untouched for kGraceNs. So calls in quick succession
// cost no switch between threads, and an idle world sleeps in one place until something happens.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "runtime/named/entry.h"
#include "runtime/named/handle.h"
#include "system/event.h"

namespace fdl {

class Group;
class OrderedCalls;
struct OrderedCall;

class ProgressToken {
 public:
  // Work for the owner: entries to submit to a group, a call to start on an ordered communicator, or a function.
  struct NamedTask {
    Group* group;
    std::vector<Entry> entries;
  };
  struct OrderedTask {
    OrderedCalls* calls;
    std::unique_ptr<OrderedCall> call;
  };
  using Task = std::variant<std::function<void()>, NamedTask, OrderedTask>;
  enum class Turn {
    drive,  // this thread owns the token, and must call give_back()
    done,   // the handle is done
    late,   // the deadline has passed
  };

  static constexpr int64_t kGraceNs = 1'000'000;

  explicit ProgressToken(Event event) : event_(std::move(event)) {}

  // ---- any thread ----
  // Queues a task for the present or next owner. False after close(): the task was not queued.
  bool post(Task task);
  // Makes the progress thread end as soon as it owns the token.
  void stop();

  // ---- callers ----
  // True: this thread owns the token, and must call give_back(). False: another thread is awake and drives, or the
  // progress thread has ended.
  bool try_take();
  Turn wait_for_turn(Handle& handle, Deadline deadline);
  // Passes the token to the next in line. Without a line it is free, and the progress thread is woken at once if any
  // work is `undone`.
  void give_back(bool undone);

  // ---- the progress thread ----
  // Parks until it owns the token: either it was called, or the token has been free and untouched for kGraceNs.
  void take_for_progress_thread();
  // Called before it sleeps; true if a thread in line has received the token.
  bool pass_on();
  // Refuses all later tasks, and returns those that have not been taken.
  std::vector<Task> close();
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }

  // ---- the owner ----
  // Relaxed: begin_sleep() and give_back() look again under the mutex, so a task that this load misses is not lost.
  bool has_tasks() const { return has_tasks_.load(std::memory_order_relaxed); }
  void take_tasks(std::vector<Task>& tasks);
  // Becomes readable when a sleeping owner must wake up; the owner then clears it.
  int wake_fd() const { return event_.fd(); }
  void clear_wake() const { event_.clear(); }
  // The last step before a sleep; false when there is work to do at once.
  bool begin_sleep();
  // False: a caller took the token from the progress thread during the sleep.
  bool end_sleep();

 private:
  enum class Holder { none, progress_thread, caller };
  // Lives on the stack of the thread that waits in line.
  struct Waiter {
    Handle* handle;
    std::atomic<bool> has_turn{false};
  };

  bool try_take_locked() FDL_REQUIRES(mutex_);
  Waiter* next_in_line() FDL_REQUIRES(mutex_);
  bool hand_to_next() FDL_REQUIRES(mutex_);
  void call_progress_thread() FDL_REQUIRES(mutex_);
  void wake_owner() FDL_REQUIRES(mutex_);

  Event event_;
  std::atomic<bool> has_tasks_{false};
  std::atomic<bool> stopping_{false};

  Mutex mutex_;
  CondVar progress_thread_called_;
  CondVar progress_thread_has_parked_;
  Holder holder_ FDL_GUARDED_BY(mutex_) = Holder::none;
  bool asleep_ FDL_GUARDED_BY(mutex_) = false;     // the owner sleeps on the descriptors
  bool rung_ FDL_GUARDED_BY(mutex_) = false;       // event_ was rung during this sleep
  bool parked_ FDL_GUARDED_BY(mutex_) = false;     // the progress thread waits here, not on the descriptors
  bool wanted_ FDL_GUARDED_BY(mutex_) = false;     // the progress thread must take the token when it is free
  bool long_turn_ FDL_GUARDED_BY(mutex_) = false;  // a caller has had it for kGraceNs; give_back() must notify
  bool closed_ FDL_GUARDED_BY(mutex_) = false;
  uint64_t moves_ FDL_GUARDED_BY(mutex_) = 0;  // how often callers took it or gave it back
  std::vector<Waiter*> line_ FDL_GUARDED_BY(mutex_);
  std::vector<Task> tasks_ FDL_GUARDED_BY(mutex_);
};

}  // namespace fdl
