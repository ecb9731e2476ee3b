// Timeline: one file being written: the ring that traces fill, and the thread that drains it.
//
// The thread sleeps until there is something; while things happen it writes about twenty times a second.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "runtime/telemetry/timeline_events.h"
#include "runtime/telemetry/timeline_file.h"
#include "runtime/telemetry/trace.h"
#include "runtime/telemetry/trace_ring.h"
#include "system/event.h"

namespace fdl {

class Timeline {
 public:
  static constexpr std::size_t kRecords = std::size_t{1} << 16;  // 4 MiB

  // `who`: "rank 0 of 2 on host-a".
  static Result<std::unique_ptr<Timeline>> start(const std::string& path, std::string_view who, bool marks_cycles,
                                                 std::size_t records = kRecords);
  // No trace may be in use any more. OK: the file is complete.
  Status stop();
  ~Timeline() { static_cast<void>(stop()); }
  // In a forked child, which has no such thread and must not write.
  void forget() {
    if (thread_.joinable()) thread_.detach();
  }

  // ---- whoever drives ----
  std::unique_ptr<Trace> trace(std::string_view group, int rank, int size);
  void put(const TraceRecord& record, std::string_view text, ConstBytes behind) {
    ring_.push(record, text, behind);
    if (asleep_.load(std::memory_order_seq_cst) || ring_.presses() != pressed_) [[unlikely]]
      wake();
  }

 private:
  Timeline(TimelineFile file, std::string_view who, bool marks_cycles, std::size_t records, Event event);
  void wake();
  void run();
  bool drain();
  void tell_dropped();
  void write();

  TraceRing ring_;
  const bool marks_cycles_;
  uint16_t groups_ = 0;   // the driver's
  bool pressed_ = false;  // the driver's: the ring is more than half full, and it has rung
  Event event_;
  std::atomic<bool> asleep_{false};  // for as long as nothing happens
  std::atomic<bool> stopping_{false};
  std::thread thread_;

  // ---- the thread's, and stop()'s afterwards ----
  TimelineFile file_;
  TimelineEvents timeline_events_;
  std::string pending_;
  uint64_t told_dropped_ = 0;
  Status failure_;
};

}  // namespace fdl
