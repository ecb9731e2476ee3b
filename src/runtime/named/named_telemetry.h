// NamedTelemetry reports the named operations of one group to the timeline, to the metrics and to the history.
//
// All are optional, and each call tests a pointer before it does anything else. The timeline may be started and ended
// at any time; metrics are set before the first submission, because entries must carry their time of submission. Only
// the thread that owns progress calls this class.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "runtime/named/entry.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/telemetry/trace.h"
#include "system/history.h"

namespace fdl {

class NamedTelemetry {
 public:
  // Null ends tracing. Operations that were submitted before are not traced.
  void trace_with(std::unique_ptr<Trace> trace) { trace_ = std::move(trace); }
  // Null disables metrics.
  void count_with(std::shared_ptr<GroupMetrics> metrics) { metrics_ = std::move(metrics); }
  // The history outlives this object. Call before the first submission.
  void record_in(History& history, std::string_view group) {
    history_ = &history;
    history_group_ = history.add_group(group);
  }
  // Since the submission of the entry, in ns; -1: unknown.
  int64_t age_ns(const Entry& entry) const { return entry.recorded == 0 ? -1 : history_->age_ns(entry.recorded); }
  // For events that are not about entries. Null while no timeline is written.
  Trace* trace() const { return trace_.get(); }

  // The states of an operation, in their order. `serial` identifies the entry in the timeline.
  void submitted(Entry& entry, uint64_t serial) {
    if (trace_) trace_submitted(entry, serial);
    if (history_ != nullptr) record_submitted(entry, serial);
  }
  void decided(const PlannedBucket& planned) {
    if (trace_) trace_decided(planned);
  }
  void begun(const Entries& entries) {
    if (metrics_) count_begun(entries);
    if (history_ != nullptr) record_begun(entries);
  }
  // The timeline assigns the activities that are recorded from now on to these entries.
  void runs(const Entries& entries) {
    if (trace_) trace_runs(entries);
  }
  void completed(const Entry& entry, const Status& status) {
    if (trace_ && entry.traced != 0) trace_->completed(entry.traced, status.code());
    if (metrics_ && !entry.allocates_symmetric) count_completed(entry, status);
    if (entry.recorded != 0) history_->ended(entry.recorded, static_cast<int>(status.code()));
  }
  // On the group's root: so many tensors were reported as stalled.
  void stalled(std::size_t tensors) {
    if (metrics_) metrics_->stalled(tensors);
  }

 private:
  void trace_submitted(Entry& entry, uint64_t serial);
  void trace_decided(const PlannedBucket& planned);
  void trace_runs(const Entries& entries);
  void record_submitted(Entry& entry, uint64_t serial);
  void record_begun(const Entries& entries);
  void count_begun(const Entries& entries);
  void count_completed(const Entry& entry, const Status& status);

  std::unique_ptr<Trace> trace_;
  std::shared_ptr<GroupMetrics> metrics_;
  History* history_ = nullptr;
  uint32_t history_group_ = 0;
};

}  // namespace fdl
