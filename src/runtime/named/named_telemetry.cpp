// NamedTelemetry writes one record or count for each entry of a bucket.
#include "runtime/named/named_telemetry.h"

#include "base/clock.h"

namespace fdl {

void NamedTelemetry::trace_submitted(Entry& entry, uint64_t serial) {
  entry.traced = serial;
  trace_->submitted(serial, entry.request, entry.submitted_ns);
}

// A name of the bucket without an entry is recorded as absent: this rank has joined, or begins the bucket with zeros.
void NamedTelemetry::trace_decided(const PlannedBucket& planned) {
  for (std::size_t i = 0; i < planned.entries.size(); ++i) {
    const auto& entry = planned.entries[i];
    if (!entry) {
      trace_->absent(planned.bucket->kind, planned.bucket->names[i]);
    } else if (entry->traced != 0) {
      trace_->decided(entry->traced);
    }
  }
}

void NamedTelemetry::trace_runs(const Entries& entries) {
  trace_->bucket();
  for (const auto& entry : entries) {
    if (entry && entry->traced != 0) trace_->runs(entry->traced);
  }
}

void NamedTelemetry::record_submitted(Entry& entry, uint64_t serial) {
  const Request& request = entry.request;
  entry.recorded = history_->called({.group = history_group_,
                                     .sequence = serial,
                                     .count = entry.element_count(),
                                     .root = request.root,
                                     .kind = static_cast<uint8_t>(request.kind),
                                     .dtype = static_cast<uint8_t>(request.dtype),
                                     .op = request.op,
                                     .flags = kHistoryNamed},
                                    request.name);
}

void NamedTelemetry::record_begun(const Entries& entries) {
  for (const auto& entry : entries) {
    if (entry && entry->recorded != 0) history_->begun(entry->recorded);
  }
}

void NamedTelemetry::count_begun(const Entries& entries) {
  const int64_t now = now_ns();
  for (const auto& entry : entries) {
    if (!entry || entry->allocates_symmetric) continue;
    metrics_->began(GroupMetrics::row_of(entry->request.kind), now - entry->submitted_ns);
  }
}

// The end of the group is not an error of the operation.
void NamedTelemetry::count_completed(const Entry& entry, const Status& status) {
  const bool failed = !status.ok() && status.code() != Code::shut_down;
  metrics_->ended(GroupMetrics::row_of(entry.request.kind), entry.byte_count(), now_ns() - entry.submitted_ns, failed);
}

}  // namespace fdl
