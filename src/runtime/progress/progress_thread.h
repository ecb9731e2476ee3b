// Loop: drives a world's groups and its link to the coordinator, in a thread of its own or in a caller that waits.
//
// Its thread sleeps until something happens; an idle job costs nothing. A caller that waits takes the baton and drives
// itself, so that a small operation needs no switch between threads. "The driver" is whoever has the baton.
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "base/config.h"
#include "bootstrap/coordinator/coordinator_client.h"
#include "runtime/lifecycle/group.h"
#include "runtime/progress/progress_token.h"
#include "system/poller.h"

namespace fdl {

class ProgressThread {
 public:
  struct Hooks {
    std::function<void(const CoordinatorEvent&)> on_event;  // in the driver's thread, as are the others
    std::function<void(Group&)> on_stuck;  // nothing of this group has moved for config.suspect_after_s
    std::function<void(Group&, const Status&)>
        on_failure_report;                            // something of this group failed here: what became of it?
    std::function<int64_t(int64_t now_ns)> on_watch;  // says when it is wanted again; INT64_MAX: when watch() is
  };

  static Result<std::unique_ptr<ProgressThread>> start(CoordinatorClient& link, const Config& config, Hooks hooks);
  // Ends the thread; groups must have been removed. Whoever still waits, waits for the handle alone.
  void end();
  ~ProgressThread() { end(); }

  // ---- any thread but the driver ----
  // False when the loop has ended: nothing was submitted.
  bool submit(Group& group, std::vector<Entry> entries);
  // Drives until the handle is done or the deadline; true if it is done.
  bool wait(Handle& handle, Deadline deadline);
  // Both at once, without waking anybody in between. False as with submit.
  bool submit_and_wait(Group& group, std::vector<Entry> entries, Handle& handle, Deadline deadline);
  // True where this thread is driving already, in a callback: it must not wait.
  bool drives_here() const;
  // hooks.on_watch is wanted, first in config.suspect_after_s. Returns at once.
  void watch();
  // Runs the task as the driver, or has the driver run it, and waits for it.
  void call(const std::function<void()>& task);

  // ---- the driver ----
  Status add(Group& group);
  void remove(Group& group);
  // Drives one group until nothing that was agreed upon is left, or the deadline.
  void drain(Group& group, Deadline deadline);

  // How often its own thread woke up.
  uint64_t wakeups() const { return wakeups_.load(std::memory_order_relaxed); }

 private:
  struct Driven {
    Group* group;
    uint64_t token;
    int64_t moved_ns = 0;  // when anything moved last; 0: just now
  };

  class Turn;
  ProgressThread(CoordinatorClient& link, const Config& config, Hooks hooks, Event event, Poller poller);
  void run();
  void drive_until_done(const Handle& handle, Deadline deadline);
  bool undone() const;
  void run_task(ProgressToken::Task& task);
  bool do_tasks();
  bool look_at_link();
  bool drive_groups();
  bool drive(Driven& driven);
  void watch_groups(int64_t now);
  void keep_watch(int64_t now);
  Deadline next_alarm() const;
  bool sleep(Deadline deadline);
  void finish_sleep();

  CoordinatorClient& link_;
  const Config& config_;
  Hooks hooks_;
  ProgressToken progress_token_;
  std::thread thread_;
  std::atomic<uint64_t> wakeups_{0};

  // ---- the driver's ----
  Poller poller_;
  std::vector<ProgressToken::Task> tasks_;
  std::vector<std::unique_ptr<Driven>> driven_;
  uint64_t next_token_ = 2;
  std::size_t prepared_ = 0;  // how many groups' communicators believe that we sleep
  int64_t looked_at_link_ns_ = 0;
  uint32_t rounds_ = 0;
  int64_t next_watch_ns_ = std::numeric_limits<int64_t>::max();
};

}  // namespace fdl
