// ProgressThread drives the groups of a world, its ordered communicators with submitted calls, and its coordinator
// client, in a thread of its own or in a caller that waits.
//
// Its thread sleeps until something happens, so an idle job uses no CPU time. A caller that waits takes the progress
// token and drives the world itself, so that a small operation needs no switch between threads. "The owner" is the
// thread that has the token; see progress_token.h.
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "base/config.h"
#include "bootstrap/coordinator/coordinator_client.h"
#include "engine/spin.h"
#include "runtime/group/group.h"
#include "runtime/progress/driven_set.h"
#include "runtime/progress/ordered_calls.h"
#include "runtime/progress/progress_token.h"
#include "system/poller.h"

namespace fdl {

class ProgressThread {
 public:
  // The owner calls them, without a lock.
  struct Hooks {
    std::function<void(const CoordinatorEvent&)> on_event;
    std::function<void(Communicator&, int64_t waited_ns)> on_stuck;       // as of DrivenSet
    std::function<void(Communicator&, const Status&)> on_failure_report;  // as of DrivenSet
    // Returns when to call it again (clock time in ns); INT64_MAX: only after the next watch().
    std::function<int64_t(int64_t now_ns)> on_watch;
  };

  static Result<std::unique_ptr<ProgressThread>> start(CoordinatorClient& coordinator_client, const Config& config,
                                                       Hooks hooks);
  // Ends the thread; all that is driven must have been removed. A caller that still waits then only waits for its
  // handle.
  void end();
  ~ProgressThread() { end(); }

  // ---- any thread but the owner ----
  // False when the thread has ended: nothing was submitted.
  bool submit(Group& group, std::vector<Entry> entries);
  bool submit(OrderedCalls& calls, std::unique_ptr<OrderedCall> call);
  // Drives until the handle is done or the deadline; true if it is done.
  bool wait(Handle& handle, Deadline deadline);
  // submit() and wait() in one step, which wakes no other thread in between. False as with submit().
  bool submit_and_wait(Group& group, std::vector<Entry> entries, Handle& handle, Deadline deadline);
  bool submit_and_wait(OrderedCalls& calls, std::unique_ptr<OrderedCall> call, Handle& handle, Deadline deadline);
  // True while the calling thread drives this world, that is, inside a callback. It must not wait then.
  bool drives_here() const;
  // Requests calls of hooks.on_watch, the first after config.suspect_after_s. Returns at once.
  void watch();
  // Runs the task as the owner if the token can be taken, else posts it to the owner; waits until it has run. A
  // callback runs it at once; the task must not remove what is being driven then. False: the thread has ended, and the
  // task has not run.
  bool call(const std::function<void()>& task);
  // Posts the task to the owner and returns at once. False as with submit().
  bool post(std::function<void()> task) { return progress_token_.post(std::move(task)); }

  // ---- the owner ----
  // From now on the group is driven. An ordered communicator needs no add(): it is driven while it has work.
  Status add(Group& group);
  void remove(Driven& driven);
  // Requests a call of hooks.on_watch at this moment at the latest.
  void watch_by(int64_t moment_ns) { next_watch_ns_ = std::min(next_watch_ns_, moment_ns); }
  // Drives one group until all buckets that were agreed upon are finished, or the deadline.
  void drain(Group& group, Deadline deadline);

  // How often the progress thread has woken up. From any thread.
  uint64_t wakeups() const { return wakeups_.load(std::memory_order_relaxed); }

 private:
  class Turn;
  ProgressThread(CoordinatorClient& coordinator_client, const Config& config, Hooks hooks, Event event, Poller poller);
  void run();
  bool submit_and_wait(ProgressToken::Task task, Handle& handle, Deadline deadline);
  void drive_until_done(Turn& turn, const Handle& handle, Deadline deadline);
  void run_task(ProgressToken::Task& task);
  bool do_tasks();
  bool poll_coordinator();
  void keep_watch(int64_t now);
  void take_ready(uint64_t token);
  bool sleep(Deadline deadline);

  CoordinatorClient& coordinator_client_;
  const Config& config_;
  Hooks hooks_;
  ProgressToken progress_token_;
  std::thread thread_;
  std::atomic<uint64_t> wakeups_{0};

  // ---- only the owner touches these ----
  Poller poller_;
  std::vector<ProgressToken::Task> tasks_;
  DrivenSet driven_;
  int64_t polled_coordinator_ns_ = 0;
  uint32_t rounds_ = 0;
  Spin spin_;
  int64_t next_watch_ns_ = std::numeric_limits<int64_t>::max();
};

}  // namespace fdl
