// Timeline writes one timeline file: it has the ring that traces fill, and the thread that drains the ring.
//
// The thread sleeps while the ring is empty; while records come it writes about twenty times a second. If memory is
// short, the file ends with the last complete event, later records are discarded, and the process goes on.
#pragma once

#include <atomic>
#include <functional>
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

  // `process_label`: "rank 0 of 2 on host-a". `records`: the ring's capacity, a power of two.
  static Result<std::unique_ptr<Timeline>> start(const std::string& path, std::string_view process_label,
                                                 bool marks_cycles, std::size_t records = kRecords);
  // No trace may be in use any more. Returns OK if the file is complete, else the first failure.
  Status stop();
  ~Timeline() { static_cast<void>(stop()); }

  // ---- the thread that owns progress ----
  // Traces of different groups share the ring.
  std::unique_ptr<Trace> trace(std::string_view group, int rank, int size);
  void put(const TraceRecord& record, std::string_view text, ConstBytes behind) {
    ring_.push(record, text, behind);
    if (asleep_.load(std::memory_order_seq_cst) || ring_.is_half_full() != was_half_full_) [[unlikely]]
      wake();
  }

 private:
  Timeline(TimelineFile file, std::string_view process_label, bool marks_cycles, std::size_t records, Event event);
  void wake();
  void run();
  bool drain();
  void convert(const std::function<void()>& append);
  void add_dropped();
  void write();

  TraceRing ring_;
  const bool marks_cycles_;
  uint16_t groups_ = 0;         // of the owner of progress
  bool was_half_full_ = false;  // of the owner of progress: it has woken the thread because the ring fills
  Event event_;
  std::atomic<bool> asleep_{false};  // the thread waits without a timeout
  std::atomic<bool> stopping_{false};
  std::thread thread_;

  // ---- of the thread, and of stop() once the thread has ended ----
  TimelineFile file_;
  TimelineEvents timeline_events_;
  std::string text_;  // of the record that is converted
  std::string pending_;
  uint64_t reported_dropped_ = 0;
  Status failure_;
};

}  // namespace fdl
