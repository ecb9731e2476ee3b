// Loop: the background thread of a world. It sleeps until something happens; an idle job costs nothing.
//
// It drives the groups' named operations and the link to the hub. Other threads reach it through its queue alone.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/config.h"
#include "runtime/group.h"
#include "runtime/queue.h"
#include "system/poller.h"
#include "world/hub_link.h"

namespace fdl {

class Loop {
 public:
  struct Hooks {
    std::function<void(const HubEvent&)> on_event;  // in the loop's thread
    std::function<void(Group&)> on_stuck;           // nothing of this group has moved for config.suspect_after_s
    std::function<void(Group&, const Status&)> on_suspicion;  // something of this group failed here: what became of it?
  };

  static Result<std::unique_ptr<Loop>> start(HubLink& link, const Config& config, Hooks hooks);
  // Ends the thread; groups must have been removed.
  ~Loop();

  // From any thread. False when the loop has ended.
  bool post(Queue::Task task) { return queue_.push(std::move(task)); }
  // Runs the task in the loop and waits for it. From any thread but the loop's own.
  void call(const std::function<void()>& task);

  // ---- in the loop's thread ----
  Status add(Group& group);
  void remove(Group& group);
  // Drives one group until nothing that was agreed upon is left, or the deadline.
  void drain(Group& group, Deadline deadline);

  uint64_t wakeups() const { return wakeups_.load(std::memory_order_relaxed); }

 private:
  struct Driven {
    Group* group;
    uint64_t token;
    int64_t moved_ns = 0;  // when anything moved last
  };

  Loop(HubLink& link, const Config& config, Hooks hooks, Event event, Poller poller);
  void run();
  bool do_tasks();
  bool drive(Driven& driven);
  void watch(Driven& driven);
  Deadline next_alarm() const;
  void sleep();

  HubLink& link_;
  const Config& config_;
  Hooks hooks_;
  Queue queue_;
  Poller poller_;
  std::vector<Queue::Task> tasks_;
  std::vector<std::unique_ptr<Driven>> driven_;
  uint64_t next_token_ = 2;
  bool stopping_ = false;
  std::atomic<uint64_t> wakeups_{0};
  std::thread thread_;
};

}  // namespace fdl
